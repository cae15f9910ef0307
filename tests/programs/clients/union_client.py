"""A job of several machines: torch's distributed checkpoint, of which each rank saves its part into a directory of its
own, and the same loaded where all of it is in one directory, also by another number of ranks.

    union_client.py save DIRECTORY...
    union_client.py load DIRECTORY RANKS"""

import datetime
import os
import socket
import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from common import check

ACTION, DIRECTORIES = sys.argv[1], sys.argv[2:]
ROWS, COLUMNS, STEP = 64, 1024, 40
torch.set_num_threads(1)


def values(rank):
    """The model, cut by rows and by columns, and what each of the four that have saved it has alone."""
    weight = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)
    turned = (weight * 3 + 1).to(torch.bfloat16)
    return {"weight": weight, "turned": turned, f"own.{rank}": torch.full((100, ), float(rank)), "step": STEP}


def begin(rank, port, size):
    from torch.distributed._tensor import DeviceMesh

    meeting, patience = f"tcp://127.0.0.1:{port}", datetime.timedelta(minutes=2)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=patience)
    return DeviceMesh("cpu", list(range(size)))


def cut(state, mesh):
    from torch.distributed._tensor import Shard, distribute_tensor

    state["weight"] = distribute_tensor(state["weight"], mesh, [Shard(0)])
    state["turned"] = distribute_tensor(state["turned"], mesh, [Shard(1)])
    return state


def save(rank, port, size):
    mesh = begin(rank, port, size)
    path = os.path.join(DIRECTORIES[rank], f"step-{STEP}")
    dcp.save(cut(values(rank), mesh), storage_writer=FileSystemWriter(path))
    with open(os.path.join(DIRECTORIES[rank], "rank.log"), "w") as log:
        log.write(f"rank {rank}\n")
    dist.barrier()


def load(rank, port, size):
    mesh = begin(rank, port, size)
    expected = values(rank)
    state = {name: torch.zeros_like(value) if torch.is_tensor(value) else 0 for name, value in expected.items()}
    state = cut(state, mesh)
    path = os.path.join(DIRECTORIES[0], f"step-{STEP}")
    dcp.load(state, storage_reader=FileSystemReader(path))
    check(state["step"] == STEP and torch.equal(state[f"own.{rank}"], expected[f"own.{rank}"]), rank)
    for name in ["weight", "turned"]:
        check(torch.equal(state[name].full_tensor(), expected[name]), rank, name)
    dist.barrier()


def together(work, size):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            status = 1
            try:
                work(rank, port, size)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                # Neither waits for another one to take leave.
                os._exit(status)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        check(status == 0, work.__name__, status)


if ACTION == "save":
    together(save, len(DIRECTORIES))
else:
    together(load, int(DIRECTORIES[1]))

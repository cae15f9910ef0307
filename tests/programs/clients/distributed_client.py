"""torch's distributed checkpoints: which of them are told to be all there, and what is in them.

    distributed_client.py DIRECTORY TENSORFS

Two processes save one, and one alone saves others; of each, everything is removed, cut and falsified in turn. Tensors
of which each process has a part are read as one, and have the bytes that torch loads."""

import datetime
import io
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import types

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from common import check

DIRECTORY = sys.argv[1]
TREE = os.path.join(os.path.dirname(DIRECTORY), ".tensorfs/tensors", os.path.basename(DIRECTORY))
torch.set_num_threads(1)


def values():
    model = {"weight": torch.arange(4096.0).reshape(64, 64), "bias": torch.ones(7, dtype=torch.bfloat16)}
    return {"model": model, "step": 5, "optimizer": {"lr": 0.1, "state": [torch.zeros(300)]}}


def rank(number, path, port):
    """One of two processes: each has half of the weight."""
    from torch.distributed._tensor import DeviceMesh, Shard, distribute_tensor

    meeting, patience = f"tcp://127.0.0.1:{port}", datetime.timedelta(minutes=2)
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2, timeout=patience)
    state = values()
    state["model"]["weight"] = distribute_tensor(state["model"]["weight"], DeviceMesh("cpu", [0, 1]), [Shard(0)])
    state[f"seen_by_{number}"] = number
    dcp.save(state, checkpoint_id=path)
    dist.barrier()
    # Neither waits for the other to take leave.
    os._exit(0)


def rank_of_sharded(number, path, port):
    """One of two processes, each with a part of tensors that are cut in other ways, and of a model and an optimizer."""
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import ShardedOptimStateDictConfig, ShardedStateDictConfig, StateDictType

    meeting, patience = f"tcp://127.0.0.1:{port}", datetime.timedelta(minutes=2)
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2, timeout=patience)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    several = {
        "rows": (torch.randn(10, 6), Shard(0)),
        "columns": (torch.randn(4, 7, 3).to(torch.bfloat16), Shard(1)),
        "last": (torch.arange(2 * 3 * 5).reshape(2, 3, 5), Shard(2)),
        "odd": (torch.randn(3, 3, dtype=torch.float64), Shard(0)),
        "one": (torch.randn(1, 4) > 0, Shard(0)),
        "turned": (torch.randn(6, 4).t().contiguous(), Shard(1)),
        "both": (torch.arange(5), Replicate()),
    }
    state = {name: distribute_tensor(tensor, mesh, [how]) for name, (tensor, how) in several.items()}
    state |= {"plain": torch.ones(3, dtype=torch.int8), "scalar": torch.tensor(5.0), "transposed": torch.randn(3, 5).t()}
    layers = torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    model = FSDP(torch.nn.Sequential(*layers), device_id=torch.device("cpu"), use_orig_params=True, device_mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 7)).sum().backward()
    optimizer.step()
    on_cpu = ShardedStateDictConfig(offload_to_cpu=True), ShardedOptimStateDictConfig(offload_to_cpu=True)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT, *on_cpu)
    optim = FSDP.optim_state_dict(model, optimizer)
    dcp.save({"several": state, "model": model.state_dict(), "optim": optim, "step": 5}, checkpoint_id=path)
    dist.barrier()
    os._exit(0)


def flat(value, path=""):
    """Each tensor of a state with its name."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(item, f"{path}.{key}" if path else str(key))


def tell(*arguments, status=0):
    done = subprocess.run([sys.argv[2], *arguments], capture_output=True)
    check(done.returncode == status, arguments, done.returncode, done.stderr)
    return done.stdout


def same_as_torch(path):
    """Every tensor is listed with its full shape, and has the bytes that torch loads."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    whole = path + ".pt"
    dcp_to_torch_save(path, whole)
    loaded = dict(flat(torch.load(whole, weights_only=False)))
    os.unlink(whole)
    listed = {line["name"]: line for line in map(json.loads, tell("tensors", "--json", path).splitlines())}
    check(sorted(listed) == sorted(loaded), sorted(listed), sorted(loaded))
    for name, tensor in loaded.items():
        line = listed[name]
        check(line["shape"] == list(tensor.shape) and f"torch.{line['dtype']}" == str(tensor.dtype), name, line)
        check(sum(np.prod(shard["sizes"], dtype=int) for shard in line["shards"]) == tensor.numel(), name, line)
        read = np.load(io.BytesIO(tell("cat", path, name)))
        expected = tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
        check(np.ascontiguousarray(read).tobytes() == expected.numpy().tobytes(), name)
        # As a file it is the same.
        file = os.path.join(TREE, os.path.relpath(path, DIRECTORY) + ".checkpoint", f"{name}.npy")
        mapped = np.load(file, mmap_mode="r" if tensor.dim() else None)
        check((mapped.dtype, mapped.shape, mapped.tobytes()) == (read.dtype, read.shape, read.tobytes()), file)
    return len(loaded), sum(len(line["shards"]) > 1 for line in listed.values())


def sharded():
    """Checkpoints of which each process has a part are one thing for all commands."""
    old, new = (os.path.join(DIRECTORY, name) for name in ["sharded", "sharded-later"])
    for path in [old, new]:
        save_by_two(path, "sharded")
    count, cut = same_as_torch(old)
    check(cut >= 10, cut)
    check(b"0 different" in tell("diff", old, new), "the same saved twice")
    check(b"count" in tell("stat", "--json", old, "several.columns"))
    part = os.path.join(new, "__1_0.distcp")
    os.rename(part, new + ".part")
    open(os.path.join(new, "__7_0.distcp"), "w").close()
    for command in ["verify", "ls"]:
        told = tell(command, new, status=5 if command == "verify" else 0).decode()
        check("__1_0.distcp is missing" in told and "__7_0.distcp is no part" in told, told)
    missing = [line for line in tell("tensors", "--json", new, status=1).splitlines() if b'"missing"' in line]
    check(0 < len(missing) <= count, missing)
    tell("diff", old, new, status=2)
    for path in [old, new]:
        shutil.rmtree(path)
    return count


class FailsInOne(FileSystemWriter):
    """One of two processes does not come to write its part."""

    def write_data(self, plan, planner):
        if dist.get_rank() == 1:
            raise OSError("the second one fails")
        return super().write_data(plan, planner)


def rank_that_saves_over(number, path, port):
    """One of two processes that save other values over a checkpoint, of which the second one fails."""
    from torch.distributed._tensor import DeviceMesh, Shard, distribute_tensor

    meeting, patience = f"tcp://127.0.0.1:{port}", datetime.timedelta(minutes=2)
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2, timeout=patience)
    state = values()
    weight = -state["model"]["weight"]
    state["model"]["weight"] = distribute_tensor(weight, DeviceMesh("cpu", [0, 1]), [Shard(0)])
    state[f"seen_by_{number}"] = number
    try:
        dcp.save(state, storage_writer=FailsInOne(path))
    except dcp.api.CheckpointException:
        os._exit(0)
    os._exit(1)


def saved_over(before):
    """torch loads what is of two saves, and does not notice; it is not called complete."""
    path = os.path.join(DIRECTORY, "over")
    save_by_two(path)
    check(said(path) == "complete" and latest() == path, said(path), latest())
    save_by_two(path, "over")
    state = values()
    dcp.load(state, storage_reader=FileSystemReader(path))
    half, whole = state["model"]["weight"], values()["model"]["weight"]
    check((half[:32] == -whole[:32]).all() and (half[32:] == whole[32:]).all(), "it is of two saves", half)
    check(said(path) == "incomplete" and latest() == before, said(path), latest())
    tell("verify", path, status=5)
    # A copy into a new directory, whatever is copied first, is no save.
    save_by_two(path)
    check(said(path) == "complete" and latest() == path and loads(path), said(path), latest())
    for order in (sorted, lambda names: sorted(names, reverse=True)):
        copy = path + "-copy"
        os.mkdir(copy)
        for name in order(os.listdir(path)):
            shutil.copy(os.path.join(path, name), copy)
        check(said(copy) == "complete", said(copy))
        shutil.rmtree(copy)
    shutil.rmtree(path)


def save_by_two(path, *how):
    again = [sys.executable, __file__, DIRECTORY, sys.argv[2]]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [subprocess.Popen([*again, str(number), path, str(port), *how]) for number in range(2)]
    ends = [process.wait(timeout=300) for process in ranks]
    check(ends == [0, 0], "processes of two ended with", ends)


def save(path, state=None, **options):
    dcp.save(state or values(), storage_writer=FileSystemWriter(path, **options))


def loads(path):
    """Whether torch loads it, the whole of it, in one process."""
    state = values()
    try:
        dcp.load(state, storage_reader=FileSystemReader(path))
    except (Exception, dcp.api.CheckpointException):  # whatever torch says of a partial one
        return False
    return bool((state["model"]["weight"] == values()["model"]["weight"]).all())


def said(path):
    try:
        return os.getxattr(path, "user.tensorfs.complete").decode()
    except OSError:
        return None


def latest():
    found = subprocess.run([sys.argv[2], "latest", DIRECTORY], capture_output=True, text=True)
    return found.stdout.rstrip("\n")


class Case:
    """A checkpoint that is falsified, beside an older one that is not."""

    def __init__(self, before, path):
        self.before, self.path, self.count = before, path, 0
        self.files = {name: self.read(name) for name in sorted(os.listdir(path))}
        self.plan = pickle.loads(self.files[".metadata"])

    def read(self, name):
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    def write(self, name, data):
        path = os.path.join(self.path, name)
        # What is emptied after the plan was written is of another save.
        if name != ".metadata" and os.path.exists(path):
            os.unlink(path)
        with open(path, "wb") as file:
            file.write(data)

    def is_whole(self):
        check(said(self.path) == "complete", self.path, said(self.path))
        check(latest() == self.path, latest(), "is not", self.path)
        check(loads(self.path), self.path)

    def without(self, name, data, what, is_loaded=False):
        """With other bytes in the place of a file, or without it."""
        self.write(name, data) if data is not None else os.unlink(os.path.join(self.path, name))
        check(said(self.path) != "complete", self.path, name, what)
        check(latest() == self.before, latest(), "in spite of", self.path, name, what)
        check(is_loaded or not loads(self.path), "torch loads", self.path, name, what)
        self.write(name, self.files[name])
        self.count += 1

    def all(self):
        self.is_whole()
        for name in (name for name in self.files if name != ".metadata"):
            data = self.files[name]
            self.without(name, None, "removed")
            ends = {len(data) * n // 5 for n in range(5)} | {len(data) - 1}
            # Between its archives.
            places = [place for place in self.plan.storage_data.values() if place.relative_path == name]
            ends |= {place.offset for place in places}
            for end in sorted(ends):
                # torch does not miss the last bytes of a zip.
                self.without(name, data[:end], f"cut to {end}", is_loaded=end == len(data) - 1)
            self.without(name, bytes(len(data)), "zeroed")
            self.write(name, data + b"more")
            os.truncate(os.path.join(self.path, name), len(data))
        plan = self.files[".metadata"]
        for end in sorted({0, 1, 2, 11, len(plan) // 3, len(plan) // 2, len(plan) - 1}):
            self.without(".metadata", plan[:end], f"cut to {end}")
        self.without(".metadata", None, "removed")
        self.without(".metadata", bytes(len(plan)), "zeroed")
        self.without(".metadata", bytes(len(plan) // 2) + plan[len(plan) // 2 :], "half zeroed")
        self.without(".metadata", pickle.dumps({}), "another pickle")
        there = os.path.basename(self.before)
        for foreign in [f"../{there}/", self.before + "/", "./", "missing-", "\0", f"{there}/../"]:
            self.without(".metadata", self.renamed(foreign), foreign, is_loaded=True)
        self.is_whole()

    def renamed(self, begin):
        """The plan with another path of one of its items."""
        plan = pickle.loads(self.files[".metadata"])
        place = next(iter(plan.storage_data.values()))
        place.relative_path = begin + place.relative_path
        return pickle.dumps(plan)


def main():
    torch.manual_seed(0)
    before = os.path.join(DIRECTORY, "step-1")
    save(before)
    check(said(before) == "complete" and latest() == before, said(before), latest())
    os.utime(before, (1, 1))
    for name in os.listdir(before):
        os.utime(os.path.join(before, name), (1, 1))
    ways = {
        "two": save_by_two,
        "threads": lambda path: save(path, thread_count=2),
        "items": lambda path: save(path, single_file_per_rank=False),
    }
    count = 0
    for name, way in ways.items():
        path = os.path.join(DIRECTORY, f"step-2-{name}")
        way(path)
        case = Case(before, path)
        case.all()
        count += case.count
        shutil.rmtree(path)
    saved_over(before)
    # Nothing but objects.
    objects = os.path.join(DIRECTORY, "objects")
    save(objects, {"step": 5, "arguments": types.SimpleNamespace(lr=0.1)}, single_file_per_rank=False)
    check(said(objects) == "complete", said(objects))
    print(f"{count} parts of checkpoints, {sharded()} tensors of one by two")


if len(sys.argv) > 3:
    ranks = {"sharded": rank_of_sharded, "over": rank_that_saves_over}
    (ranks[sys.argv[6]] if len(sys.argv) > 6 else rank)(int(sys.argv[3]), *sys.argv[4:6])
else:
    main()

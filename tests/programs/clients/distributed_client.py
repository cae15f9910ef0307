"""torch's distributed checkpoints: which of them are told to be all there.

    distributed_client.py DIRECTORY TENSORFS

Two processes save one, and one alone saves others; of each, everything is removed, cut and falsified in turn."""

import datetime
import os
import pickle
import shutil
import socket
import subprocess
import sys
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from common import check

DIRECTORY = sys.argv[1]
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


def save_by_two(path):
    again = [sys.executable, __file__, DIRECTORY, sys.argv[2]]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [subprocess.Popen([*again, str(number), path, str(port)]) for number in range(2)]
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
        with open(os.path.join(self.path, name), "wb") as file:
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
    # Nothing but objects.
    objects = os.path.join(DIRECTORY, "objects")
    save(objects, {"step": 5, "arguments": types.SimpleNamespace(lr=0.1)}, single_file_per_rank=False)
    check(said(objects) == "complete", said(objects))
    print(f"{count} parts of checkpoints")


if len(sys.argv) > 3:
    rank(int(sys.argv[3]), *sys.argv[4:])
else:
    main()

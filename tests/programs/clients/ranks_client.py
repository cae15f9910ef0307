"""Distributed checkpoints of two processes, of which one, both, or the server is killed: none that is torn is called
whole, and the one that is called the latest loads.

    ranks_client.py DIRECTORY KILLS SEED TENSORFS

Two processes save one checkpoint after the other, each with half of the model, and the first one removes the oldest.
Each is saved a second time, over the one before: of such a directory no two saves are called one.
On `kill the server` on standard output a line is read when another one serves."""

import contextlib
import ctypes
import datetime
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from common import check

DIRECTORY, KILLS, SEED, TENSORFS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
OVER = os.path.join(os.path.dirname(DIRECTORY), "over", "last")
KEPT = 3
ROWS = 512
PR_SET_PDEATHSIG = 1
OTHER = "it has other values"
torch.set_num_threads(1)


def path_of(step):
    return os.path.join(DIRECTORY, f"step-{step}")


def steps():
    found = [(int(path.rsplit("-", 1)[1]), path) for path in glob.glob(os.path.join(DIRECTORY, "step-*"))]
    return sorted(found, reverse=True)


def rank(number, port, step):
    """Saves until it is killed, or the other one is gone, or nobody serves."""
    from torch.distributed._tensor import DeviceMesh, Shard, distribute_tensor

    where = f"tcp://127.0.0.1:{port}"
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=where, rank=number, world_size=2, timeout=patience)
    mesh = DeviceMesh("cpu", [0, 1])
    while True:
        whole = torch.full((ROWS, 1024), float(step))
        state = {"weight": distribute_tensor(whole, mesh, [Shard(0)]), f"own.{number}": whole[0] + number, "step": step}
        writer = FileSystemWriter(path_of(step), single_file_per_rank=step % 2 == 0)
        dcp.save(state, storage_writer=writer)
        dcp.save(state, storage_writer=FileSystemWriter(OVER))
        if number == 0:
            for _, path in steps()[KEPT:]:
                shutil.rmtree(path)
        step += 1


def start(number, port, step):
    child = os.fork()
    if child:
        return child
    # It saves for no longer than there is somebody to kill it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    with contextlib.suppress(BaseException):
        rank(number, port, step)
    os._exit(1)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def why_not(path, step=None):
    """Why a checkpoint, of whatever step, does not load as one; nothing if it does."""
    found = {"weight": torch.zeros(ROWS, 1024), "own.0": torch.zeros(1024), "own.1": torch.zeros(1024), "step": 0}
    try:
        dcp.load(found, storage_reader=FileSystemReader(path))
    except (Exception, dcp.api.CheckpointException) as why:  # whatever it says of one that is torn
        return repr(why)
    step = step or found["step"]
    own = all((found[f"own.{number}"] == step + number).all() for number in range(2))
    is_same = found["step"] == step and own and bool((found["weight"] == float(step)).all())
    return None if is_same else OTHER


def file_state(path):
    while (state := os.getxattr(path, "user.tensorfs.state").decode()) == "open":
        time.sleep(0.01)
    return state


def was_interrupted(path):
    return any(file_state(file) == "interrupted" for file in glob.glob(os.path.join(path, "*")) + [path + "/.metadata"]
               if os.path.exists(file))


def is_complete(path):
    try:
        return os.getxattr(path, "user.tensorfs.complete") == b"complete"
    except OSError:
        return False


def when_there(path, children):
    """When a directory is there, or one of those that would make it has ended."""
    while not os.path.exists(path) and not any(os.waitpid(child, os.WNOHANG)[0] for child in children):
        time.sleep(0.002)
    return time.monotonic()


def kill(*children):
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)


def wait_or_kill(children):
    """The one that is left hears that the other is gone, and ends, or is killed while it waits."""
    end = time.monotonic() + random.choice([0, 0.05, 5])
    left = set(children)
    while left and time.monotonic() < end:
        for child in list(left):
            if os.waitpid(child, os.WNOHANG)[0]:
                left.remove(child)
        time.sleep(0.005)
    kill(*left)


def main():
    random.seed(SEED)
    names = ["one", "both", "server", "torn", "named", "newer that loads", "loads, not closed", "mixed", "whole again",
             "mixed or not"]
    count = dict.fromkeys(names, 0)
    os.makedirs(os.path.dirname(OVER))
    for nth in range(KILLS):
        step = steps()[0][0] + 1 if steps() else 1
        port = free_port()
        children = [start(number, port, step) for number in range(2)]
        # They save as soon as they have met. Half of them are killed a while after their first save, however long one
        # takes: while they save anew, and over it.
        begun = when_there(path_of(step), children)
        again = when_there(path_of(step + 1), children) if random.random() < 0.5 else begun
        time.sleep(random.uniform(0, max(again - begun, 0.25)))
        what = random.choice(["one", "both", "server"])
        count[what] += 1
        if what == "one":
            random.shuffle(children)
            kill(children[0])
            wait_or_kill(children[1:])
        elif what == "both":
            kill(*children)
        else:
            print("kill the server", flush=True)
            sys.stdin.readline()
            wait_or_kill(children)
        there = steps()
        why = {path: why_not(path, step) for step, path in there}
        complete = [path for _, path in there if is_complete(path)]
        torn = [(path, why[path]) for path in complete if why[path]]
        check(not torn, nth, what, "called whole", torn)
        count["torn"] += sum(reason is not None for reason in why.values())
        said = subprocess.run([TENSORFS, "latest", DIRECTORY], capture_output=True, text=True)
        check(said.stdout == (complete[0] + "\n" if complete else ""), nth, what, said, complete)
        check((said.returncode == 0) == bool(complete), nth, what, said)
        count["named"] += bool(complete)
        # Who was killed before the close has not said that a file is all there, also if it is. Of one whose end no
        # server saw nobody knows.
        loaded = [path for _, path in there if not why[path]]
        good = [path for path in loaded if not was_interrupted(path)]
        count["loads, not closed"] += len(loaded) - len(good)
        if good[:1] != complete[:1]:
            check(what == "server", nth, what, "passed by", good, complete)
            count["newer that loads"] += 1
        # Without a plan a directory is none that would be called whole, and its files are what they are.
        for path in [path for _, path in there if os.path.exists(path + "/.metadata")]:
            told = subprocess.run([TENSORFS, "verify", path], capture_output=True, text=True)
            check(told.returncode != 0 or not why[path], nth, what, "verified", path, told, why[path])
        if os.path.exists(OVER):
            reason = why_not(OVER)
            check(not (is_complete(OVER) and reason), nth, what, "called of one save", reason)
            count["mixed"] += reason == OTHER
            count["whole again"] += is_complete(OVER)
            # All parts may be of the new save, and what names them of the one before.
            count["mixed or not"] += reason is None and not is_complete(OVER)
    print("told:", json.dumps(count), flush=True)


main()

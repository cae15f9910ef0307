"""Orbax: what it saves by default, an OCDBT database of each step, is one model to `tensorfs tensors`."""

import json
import os
import subprocess

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402

from common import array, check, main, same  # noqa: E402

SHAPES = {"weight": (100, 70), "bias": (70,), "one": (1,)}
PROGRAM = os.environ.get("TENSORFS_BIN", "tensorfs")


def tree(step):
    return {"params": {name: array(f"{name}{step}", shape, "f4") for name, shape in SHAPES.items()}}


def write(directory):
    with ocp.CheckpointManager(os.path.join(directory, "run")) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave(tree(step)))
        manager.wait_until_finished()


def verify(directory):
    run = os.path.join(directory, "run")
    with ocp.CheckpointManager(run) as manager:
        kept = manager.restore(2, args=ocp.args.StandardRestore(tree(2)))
    for name in SHAPES:
        same(np.asarray(kept["params"][name]), tree(2)["params"][name], name)
    for step in ("1", "2"):
        command = [PROGRAM, "tensors", "--json", os.path.join(run, step)]
        listed = subprocess.run(command, capture_output=True, check=True)
        lines = [json.loads(line) for line in listed.stdout.splitlines()]
        found = {line["name"]: (tuple(line["shape"]), line["dtype"], line["chunks_there"]) for line in lines}
        check(found == {f"params.{name}": (shape, "float32", 1) for name, shape in SHAPES.items()}, step, found)
        check(os.getxattr(os.path.join(run, step), "user.tensorfs.complete") == b"complete", step)


if __name__ == "__main__":
    main(write, verify)

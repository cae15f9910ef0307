"""Orbax: what it saves by default, an OCDBT database of each step, is one model to `tensorfs tensors`."""

import json
import os
import shutil
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
        check(is_complete(os.path.join(run, step)), step)
    removed_in_part(os.path.join(run, "2"), os.path.join(directory, "part"))


def is_complete(path):
    return os.getxattr(path, "user.tensorfs.complete") == b"complete"


def removed_in_part(step, part):
    """What removes a step may be killed in the middle, whatever it begins with: what is left is not complete."""
    default = os.path.join(part, "default")

    def left(*names):
        for at in (part, default):
            for entry in os.scandir(at) if os.path.isdir(at) else ():
                if entry.name not in names:
                    shutil.rmtree(entry) if entry.is_dir() else os.unlink(entry)

    for names in [
        ("_CHECKPOINT_METADATA",),
        ("_CHECKPOINT_METADATA", "commit_success.txt"),
        ("_CHECKPOINT_METADATA", "default"),
        ("_CHECKPOINT_METADATA", "default", "commit_success.txt"),
        ("_CHECKPOINT_METADATA", "default", "_METADATA"),
        ("_CHECKPOINT_METADATA", "default", "_METADATA", "d"),
        ("_CHECKPOINT_METADATA", "default", "d"),
        ("_CHECKPOINT_METADATA", "default", "ocdbt.process_0"),
        ("_CHECKPOINT_METADATA", "default", "manifest.ocdbt", "_METADATA"),
    ]:
        shutil.copytree(step, part)
        subprocess.run([PROGRAM, "seal", part], check=True, capture_output=True)
        check(is_complete(part), "a copy")
        left(*names)
        check(not is_complete(part), names, os.listdir(part))
        shutil.rmtree(part)


if __name__ == "__main__":
    main(write, verify)

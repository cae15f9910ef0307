"""Orbax: what it saves by default, an OCDBT database of each step, is one model to `tensorfs tensors`; and each array
of what it was told not to compress is one file of NumPy's on the mount."""

import json
import os
import shutil
import subprocess

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
import tensorstore as ts  # noqa: E402

from common import array, check, main, refuses, same  # noqa: E402

SHAPES = {"weight": (100, 70), "bias": (70,), "one": (1,)}
# Arrays that Orbax keeps whole, that it is to cut, and that devices have in parts: of two dimensions, and of one.
PLAIN = {"whole": (100, 70), "small": (7,), "cut": (60, 50), "parts": (32, 24), "line": (4096,), "scalar": ()}
# Of TensorStore alone: the array ends within a chunk, chunks are column by column, and some are not there.
EDGES = [
    ((10, 7), (4, 3), "<f4", "C"),
    ((9, 8), (4, 3), "bfloat16", "C"),
    ((3, 4, 5), (2, 3, 2), ">i2", "F"),
    ((300, 200), (70, 30), "<f8", "C"),
]
PROGRAM = os.environ.get("TENSORFS_BIN", "tensorfs")


def tree(step):
    return {"params": {name: array(f"{name}{step}", shape, "f4") for name, shape in SHAPES.items()}}


def write(directory):
    with ocp.CheckpointManager(os.path.join(directory, "run")) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave(tree(step)))
        manager.wait_until_finished()
    write_plain(os.path.join(directory, "plain"))


def plain_tree():
    """What is saved: each array as float32 and as bfloat16."""
    dtypes = {"f4": np.dtype("f4"), "bf16": ts.bfloat16.numpy_dtype}
    made = {name: array(name, shape, "i2") for name, shape in PLAIN.items()}
    tree = {name: {dtype: values.astype(dtypes[dtype]) for dtype in dtypes} for name, values in made.items()}
    devices = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    for name, axes in {"parts": ("x", "y"), "line": (("x", "y"),)}.items():
        sharding = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec(*axes))
        tree[name] = {dtype: jax.device_put(values, sharding) for dtype, values in tree[name].items()}
    zeroes = {"f4": np.zeros((8, 8), "f4"), "bf16": np.zeros(2000, dtypes["bf16"])}
    return tree | {"zeroes": zeroes, "step": 7, "rate": 0.25}


def handler(compress):
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=compress))


def write_plain(top):
    tree = plain_tree()
    cut = jax.tree.map(lambda _: ocp.SaveArgs(), tree)
    cut["cut"] = {dtype: ocp.SaveArgs(chunk_byte_size=1000) for dtype in cut["cut"]}
    for name in ("plain", "packed"):
        handler(name == "packed").save(os.path.join(top, name), tree, save_args=cut)
    for n in range(len(EDGES)):
        edges(top, n, create=True).write(edge_values(n)).result()
    sparse(top, create=True)[3:8].write(1).result()


def edges(top, n, **how):
    shape, chunks, dtype, order = EDGES[n]
    metadata = {"shape": shape, "chunks": chunks, "dtype": dtype, "order": order, "compressor": None}
    return stored(top, f"edges/{n}", metadata, **how)


def sparse(top, **how):
    metadata = {"shape": [10, 10], "chunks": [3, 4], "dtype": "<i4", "compressor": None, "fill_value": 9}
    return stored(top, "sparse", metadata, **how)


def stored(top, name, metadata, **how):
    store = {"driver": "ocdbt", "base": f"file://{top}/edges/", "path": name + "/"}
    return ts.open({"driver": "zarr", "kvstore": store, "metadata": metadata}, open=True, **how).result()


def edge_values(n):
    shape, _, dtype, _ = EDGES[n]
    dtype = ts.bfloat16.numpy_dtype if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("=")
    return array(f"edges{n}", shape, "i1").astype(dtype)


def verify_plain(top):
    root, name = os.path.split(os.path.dirname(top))
    view = os.path.join(root, ".tensorfs/tensors", name, "plain")

    def load(checkpoint, array, **more):
        return np.load(os.path.join(view, checkpoint + ".checkpoint", array + ".npy"), **more)

    def is_as(found, kept, what):
        kept = np.asarray(kept)
        check(found.shape == kept.shape and found.dtype.itemsize == kept.dtype.itemsize, what, found.dtype, found.shape)
        check(np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(kept).tobytes(), what)

    # What Orbax restores of both is what the files have.
    tree, plain = plain_tree(), os.path.join(top, "plain")
    for checkpoint in ("plain", "packed"):
        kept = handler(checkpoint == "packed").restore(os.path.join(top, checkpoint))
        jax.tree.map(lambda kept, made: is_as(np.asarray(kept), made, checkpoint), kept, jax.tree.map(np.asarray, tree))
    paths = jax.tree_util.tree_flatten_with_path(kept)[0]
    flat = {".".join(str(key.key) for key in path): value for path, value in paths}
    there = os.listdir(view)
    check("plain.checkpoint" in there and "packed.checkpoint" not in there, there)
    check("ocdbt.process_0.checkpoint" not in os.listdir(os.path.join(view, "plain")), "of one process")
    names = os.listdir(os.path.join(view, "plain.checkpoint"))
    check(sorted(names) == sorted(name + ".npy" for name in flat), names)
    for array, value in flat.items():
        is_as(load("plain", array), value, array)
        is_as(np.array(load("plain", array, mmap_mode="r")), value, array)
    # As the commands see them.
    listed = {line["name"]: line for line in lines_of("tensors", "--json", plain)}
    check(sorted(listed) == sorted(flat), list(listed))
    chunks = {array: listed[array + ".f4"]["chunks_there"] for array in ("whole", "cut", "parts", "line", "zeroes")}
    of_many = chunks.pop("cut")
    check(of_many > 1 and chunks == {"whole": 1, "parts": 4, "line": 4, "zeroes": 1}, of_many, chunks)
    check(all(not line.get("codecs") for line in listed.values()), "codecs")
    packed = os.path.join(top, "packed")
    codecs = [line["codecs"] for line in lines_of("tensors", "--json", packed)]
    check(codecs == [["zstd"]] * len(flat), codecs)
    for array in ("parts.f4", "cut.bf16", "step"):
        told = subprocess.run([PROGRAM, "cat", plain, array], capture_output=True, check=True).stdout
        with open(os.path.join(view, "plain.checkpoint", array + ".npy"), "rb") as file:
            check(told == file.read(), "cat", array)
    subprocess.run([PROGRAM, "stat", plain, "parts.f4"], capture_output=True, check=True)
    same_as = subprocess.run([PROGRAM, "diff", plain, plain], capture_output=True, check=True).stdout
    check(same_as.decode().startswith("0 different"), same_as)
    # Arrays that end within chunks.
    for n in range(len(EDGES)):
        kept = edges(top, n).read().result()
        same(kept, edge_values(n), n)
        for found in (load("edges", f"edges/{n}"), np.array(load("edges", f"edges/{n}", mmap_mode="r"))):
            check(found.flags.f_contiguous == (EDGES[n][3] == "F"), n)
            # Whatever its byte order is.
            is_as(found if found.dtype.kind == "V" else found.astype(kept.dtype), kept, n)
    same(load("edges", "sparse"), sparse(top).read().result(), "sparse")
    spoilt(top, view)


def lines_of(*command):
    listed = subprocess.run([PROGRAM, *command], capture_output=True, check=True)
    return [json.loads(line) for line in listed.stdout.splitlines()]


def spoilt(top, view):
    """Of a node of which a byte is another nothing is told; a file of values that is cut is told as each is opened."""
    copy = os.path.join(top, "spoilt")
    shutil.copytree(os.path.join(top, "plain"), copy)
    tree = os.path.join(view, "spoilt.checkpoint")
    data = [os.path.join(at, name) for at, _, names in os.walk(copy) for name in names if os.path.basename(at) == "d"]
    values, node = max(data, key=os.path.getsize), os.path.join(copy, "d", os.listdir(os.path.join(copy, "d"))[0])
    expected = np.load(os.path.join(tree, "whole.f4.npy"))
    with open(node, "r+b") as file:
        file.seek(40)
        byte = file.read(1)[0]
        file.seek(40)
        file.write(bytes([byte ^ 1]))
    for look in (lambda: os.listdir(tree), lambda: np.load(os.path.join(tree, "whole.f4.npy"))):
        check("Input/output" in refuses(OSError, look), "a damaged node")
    with open(node, "r+b") as file:
        file.seek(40)
        file.write(bytes([byte]))
    same(np.load(os.path.join(tree, "whole.f4.npy")), expected, "put right again")
    os.truncate(values, 1000)
    small = np.load(os.path.join(tree, "step.npy"))
    check(small == 7 and "whole.f4.npy" in os.listdir(tree), "what stands beside its key")
    cut = refuses(OSError, lambda: np.load(os.path.join(tree, "whole.f4.npy")))
    check("Input/output" in cut, "values that are cut off", cut)
    shutil.rmtree(copy)


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
    verify_plain(os.path.join(directory, "plain"))


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

"""Tensors as files of the control tree, against what the libraries that own the formats read.

    control_client.py SAMPLES TREE SCRATCH

SAMPLES is a directory on a mount that make_formats.py wrote, TREE the one in the control tree that stands for it.
"""

import io
import json
import os
import pickle
import subprocess
import sys
import types
import zipfile

import numpy as np

from common import array, check, crc32c

SAMPLES, TREE, SCRATCH = (os.fsencode(path) for path in sys.argv[1:4])


def unescape(part):
    """One part of a path, as docs/TENSORS.md says; and whether the next one goes on with it."""
    out, at = b"", 0
    while at < len(part):
        if part[at : at + 1] != b"%":
            out, at = out + part[at : at + 1], at + 1
        elif at + 1 == len(part):
            return out, part != b"%"
        else:
            out, at = out + bytes([int(part[at + 1 : at + 3], 16)]), at + 3
    return out, False


def tensor_of(path):
    """Name and step of the tensor at a path below its file."""
    *directories, leaf = path.split(b"/")
    check(leaf.endswith(b".npy"), leaf)
    base, *fields = leaf[: -len(b".npy")].split(b"@")
    name, goes_on = b"", True
    for part in [*directories, base]:
        text, continued = unescape(part)
        name += (b"" if goes_on else b"/") + text
        goes_on = continued
    steps = [field for field in fields if not field.startswith(b"#") and not field.isalpha()]
    check(len(steps) <= 1, path)
    return name.decode(), int(steps[0]) if steps else None


def files_below(directory):
    for root, _, files in os.walk(directory):
        for name in files:
            yield os.path.relpath(os.path.join(root, name), directory)


def check_samples():
    checked = 0
    for sample in sorted(os.listdir(SAMPLES)):
        if not sample.endswith(b".json"):
            continue
        with open(os.path.join(SAMPLES, sample)) as file:
            tensors = json.load(file)["tensors"]
        directory = os.path.join(TREE, sample.removesuffix(b".json"))
        check(os.path.isdir(directory) == bool(tensors), directory)
        # What is not plain bytes is not there.
        want = {(t["name"], t.get("step")): t for t in tensors if t["crc32c"] is not None}
        found = {tensor_of(path): os.path.join(directory, path) for path in files_below(directory)}
        check(found.keys() == want.keys(), sample, sorted(found.keys() ^ want.keys(), key=str))
        for key, tensor in want.items():
            check_tensor(found[key], tensor)
            checked += 1
    # Of every sort of file that can be made here.
    check(checked > 30, "only", checked)
    print(checked, "tensors are what their libraries read")


def check_tensor(path, tensor):
    value = np.load(path, allow_pickle=False)
    check(list(value.shape) == tensor["shape"], path, value.shape)
    order = "F" if tensor["fortran"] else "C"
    check(crc32c(value.tobytes(order)) == tensor["crc32c"], path)
    if value.dtype.kind in "biufc" and value.dtype not in (np.longdouble, np.clongdouble):
        check(value.dtype.newbyteorder("=").name == tensor["dtype"], path, value.dtype)
    if value.size:
        mapped = np.load(path, mmap_mode="r")
        check(mapped.tobytes(order) == value.tobytes(order) and not mapped.flags.writeable, path, "mapped")
    copy = os.path.join(SCRATCH, b"copy.npy")
    subprocess.run(["cp", "--", path, copy], check=True)
    with open(copy, "rb") as got, open(path, "rb") as want:
        check(got.read() == want.read(), path, "copied")
    check(os.path.getsize(copy) == os.path.getsize(path), path)


def strided_checkpoint(path, base, views):
    """What torch.save writes, without torch: a storage, and tensors that are views of it."""
    fake = types.ModuleType("torch")
    utils = types.ModuleType("torch._utils")

    class FloatStorage:
        pass

    def _rebuild_tensor_v2(*_):
        pass

    FloatStorage.__module__, FloatStorage.__qualname__ = "torch", "FloatStorage"
    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    fake.FloatStorage, utils._rebuild_tensor_v2 = FloatStorage, _rebuild_tensor_v2
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": fake, "torch._utils": utils})

    class Storage:
        pass

    class View:
        def __init__(self, offset, shape, strides):
            self.arguments = (Storage(), offset, shape, strides, False, {})

        def __reduce__(self):
            return _rebuild_tensor_v2, self.arguments

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", FloatStorage, "0", "cpu", base.size) if isinstance(value, Storage) else None

    data = io.BytesIO()
    Pickler(data, protocol=2).dump({name: View(*view) for name, view in views.items()})
    for name, module in before.items():
        sys.modules.pop(name)
        if module is not None:
            sys.modules[name] = module
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data.getvalue())
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", base.tobytes())


def check_large():
    """What has to be decoded, read in any order, by several readers, through mappings and copies."""
    at = lambda name: os.path.join(SAMPLES, name)  # noqa: E731
    values = {
        "deflated": (array("deflated", (1500, 1000), "u1") // 64).astype("f8"),
        "second": np.arange(700_000, dtype="i8").reshape(700, 1000),
    }
    with open(at(b"large.npz"), "wb") as file:
        np.savez_compressed(file, **values)
    base = array("base", (1200, 900), "f4")
    views = {"transposed": (0, (900, 1200), (1, 900)), "steps": (1, (600, 300), (1800, 3))}
    with open(at(b"views.pt"), "wb") as file:
        strided_checkpoint(file, base, views)
    want = {
        b"large.npz/deflated.npy": values["deflated"],
        b"large.npz/second.npy": values["second"],
        b"views.pt/transposed.npy": base.T,
        b"views.pt/steps.npy": base[::2, 1::3],
    }
    order = np.random.default_rng(7)
    for path, value in want.items():
        path = os.path.join(TREE, path)
        mapped = np.load(path, mmap_mode="r")
        check(mapped.shape == value.shape, path)
        for row in order.permutation(value.shape[0])[:12]:
            check(mapped[row].tobytes() == value[row].tobytes(), path, "row", row)
        check(np.load(path).tobytes() == value.tobytes(), path)
        readers = [subprocess.Popen(["cat", path], stdout=subprocess.PIPE) for _ in range(3)]
        with open(path, "rb") as file:
            whole = file.read()
        for reader in readers:
            check(reader.stdout.read() == whole and reader.wait() == 0, path, "read by several")


check_samples()
check_large()

"""h5py: write, append, groups and attributes, in-place update, and a SWMR reader process."""

import itertools
import os
import subprocess
import sys
import time

import h5py
import numpy as np

from common import array, check, main, same

STEPS = 60
ROW = (64, 8)


def rows(count):
    return np.stack([array(f"row{n}", ROW, "f4") for n in range(count)])


def write(directory):
    at = lambda name: os.path.join(directory, name)  # noqa: E731
    with h5py.File(at("model.h5"), "w") as file:
        file.attrs["epoch"] = 1
        layer = file.create_group("encoder/layer0")
        layer["weight"] = array("weight", (400, 300), "f4")
        layer.create_dataset(
            "packed", data=array("packed", (500, 40), "i4"), chunks=(50, 40), compression="gzip"
        )
        layer.create_dataset("history", shape=(0,), maxshape=(None,), dtype="f8", chunks=(128,))
    for n in range(8):
        with h5py.File(at("model.h5"), "a") as file:
            history = file["encoder/layer0/history"]
            history.resize(((n + 1) * 100,))
            history[n * 100 :] = array(f"history{n}", (100,), "f8")
            file.attrs["epoch"] = n + 2
            file[f"extra/{n}"] = array(f"extra{n}", (11,), "i8")
    with h5py.File(at("model.h5"), "r+") as file:
        file["encoder/layer0/weight"][3, :] = 7.0
        del file["extra/0"]

    # Single writer, many readers: the reader is told how many rows are flushed and must find
    # exactly those, bit for bit, while the writer goes on.
    with h5py.File(at("swmr.h5"), "w", libver="latest") as file:
        data = file.create_dataset(
            "rows", shape=(0, *ROW), maxshape=(None, *ROW), dtype="f4", chunks=(4, *ROW)
        )
        file.swmr_mode = True
        reader = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), directory, "follow"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(STEPS):
            data.resize((n + 1, *ROW))
            data[n] = array(f"row{n}", ROW, "f4")
            data.flush()
            if n % 5 == 4:
                print(n + 1, file=reader.stdin, flush=True)
                answer = reader.stdout.readline()
                check(answer == f"{n + 1}\n", "the SWMR reader says", repr(answer))
        reader.stdin.close()
        check(reader.wait() == 0, "the SWMR reader failed")
    check_cuts(directory)
    verify(directory)


def attribute(path, name):
    try:
        return os.getxattr(path, f"user.tensorfs.{name}").decode()
    except OSError:
        return None


def check_cuts(directory):
    """h5py opens none that ends before its superblock says, and no other is told to be cut."""
    path = os.path.join(directory, "cut.h5")
    pages = {"fs_strategy": "page", "fs_page_size": 512}
    versions = [("earliest", {}), ("v108", {}), ("v110", {}), ("v110", pages)]
    for (version, paged), block in itertools.product(versions, [0, 512]):
        libver = version if version == "earliest" else (version, version)
        with h5py.File(path, "w", libver=libver, userblock_size=block, **paged) as file:
            file["values"] = array("values", (500,), "f4")
        with open(path, "rb") as file:
            data = file.read()
        if attribute(path, "state") is None:
            break  # no tensorfs
        for end in [len(data), len(data) - 1, len(data) // 2, block + 60, block + 9]:
            with open(path, "wb") as file:
                file.write(data[:end])
            told = attribute(path, "complete")
            # Of files with an extension of the superblock nothing is told.
            expected = (None,) if end == len(data) else (None, "incomplete") if paged else ("incomplete",)
            check(told in expected, version, block, paged, end, "of", len(data), told)
            try:
                h5py.File(path, "r").close()
                check(end == len(data), version, block, "opens at", end, "of", len(data))
            except OSError:
                check(end < len(data), version, block, "does not open")
        with open(path, "wb") as file:
            file.write(data + b"more")
        check(attribute(path, "complete") is None, version, "with more")
    os.unlink(path)
    # A writer that is killed.
    program = f"import h5py, os; f = h5py.File({path!r}, 'w'); f['a'] = [1] * 9; f.flush(); f['b'] = [2] * 5000"
    subprocess.run([sys.executable, "-c", f"{program}; os._exit(1)"], check=False)
    while attribute(path, "state") == "open":
        time.sleep(0.05)
    check(attribute(path, "complete") is None, "killed behind a flush")
    os.unlink(path)


def follow(directory):
    """The SWMR reader: answers each row count on its input once it has read that many rows."""
    with h5py.File(os.path.join(directory, "swmr.h5"), "r", libver="latest", swmr=True) as file:
        data = file["rows"]
        for line in sys.stdin:
            count = int(line)
            data.refresh()
            check(data.shape[0] >= count, "only", data.shape[0], "rows of", count)
            same(data[:count], rows(count), f"{count} rows")
            print(count, flush=True)
    os._exit(0)  # without main()'s last line


def verify(directory):
    at = lambda name: os.path.join(directory, name)  # noqa: E731
    with h5py.File(at("model.h5"), "r") as file:
        check(file.attrs["epoch"] == 9, file.attrs["epoch"])
        weight = array("weight", (400, 300), "f4")
        weight[3, :] = 7.0
        same(file["encoder/layer0/weight"][...], weight, "weight")
        same(file["encoder/layer0/packed"][...], array("packed", (500, 40), "i4"), "packed")
        want = np.concatenate([array(f"history{n}", (100,), "f8") for n in range(8)])
        same(file["encoder/layer0/history"][...], want, "history")
        check(sorted(file["extra"]) == [str(n) for n in range(1, 8)], list(file["extra"]))
        for n in range(1, 8):
            same(file[f"extra/{n}"][...], array(f"extra{n}", (11,), "i8"), f"extra {n}")
    with h5py.File(at("swmr.h5"), "r") as file:
        same(file["rows"][...], rows(STEPS), "rows")


def tree(directory):
    """The data sets of a file that are plain bytes, each as a file below .tensorfs/tensors of the mount."""
    root, name = os.path.split(directory)
    seen = []
    for of in ["model.h5", "swmr.h5"]:
        views = os.path.join(root, ".tensorfs/tensors", name, of)

        def visit(path, what):
            view = os.path.join(views, path + ".npy")
            if not isinstance(what, h5py.Dataset):
                return
            is_plain = what.id.get_offset() is not None
            check(os.path.exists(view) == is_plain, view)
            if is_plain:
                seen.append(path)
                same(np.load(view, mmap_mode="r"), what[...], view)

        with h5py.File(os.path.join(directory, of), "r") as file:
            file.visititems(visit)
    check(seen == ["encoder/layer0/weight"] + [f"extra/{n}" for n in range(1, 8)], seen)


if __name__ == "__main__":
    main(write, verify, follow=follow, tree=tree)

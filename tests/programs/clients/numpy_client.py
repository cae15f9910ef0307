"""NumPy: np.save, np.load with and without a mapping (r, r+, c), np.savez, np.memmap w+."""

import io
import os

import numpy as np

from common import array, check, main, same

DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "c8", "c16", "?"]
LARGE = (1500, 1000)
MAPPED = (300, 700)


def expected_after_edit():
    """large.npy after the r+ mapping has changed it."""
    want = array("large", LARGE, "f8")
    want[7, :] = array("row", (LARGE[1],), "f8")
    want[-1, -1] = 42.0
    return want


def expected_memmap():
    want = np.zeros(MAPPED, "f4")
    want[10:20] = array("stripe", (10, MAPPED[1]), "f4")
    want[299, 699] = 1.0
    return want


def write(directory):
    at = lambda name: os.path.join(directory, name)  # noqa: E731
    for dtype in DTYPES:
        name = "t_" + dtype.replace("?", "bool")
        np.save(at(name + ".npy"), array(name, (17, 5), dtype))
    np.save(at("fortran.npy"), np.asfortranarray(array("fortran", (31, 9), "f4")))
    np.save(at("empty.npy"), np.zeros((0, 3), "f4"))
    np.save(at("scalar.npy"), np.float64(2.5))

    # More than NumPy's buffer, so that tofile() goes straight to the descriptor (and
    # reserves its space first with fallocate).
    large = array("large", LARGE, "f8")
    np.save(at("large.npy"), large)
    same(np.load(at("large.npy")), large, "large.npy")

    # r: what is mapped is what was saved, and cannot be changed.
    reader = np.load(at("large.npy"), mmap_mode="r")
    same(reader, large, "large.npy mapped r")
    check(not reader.flags.writeable, "a mapping r is writeable")

    # r+: a store is seen by a mapping that was there before, by a new load, and by read().
    editor = np.load(at("large.npy"), mmap_mode="r+")
    editor[7, :] = array("row", (LARGE[1],), "f8")
    editor[-1, -1] = 42.0
    same(reader, expected_after_edit(), "an older mapping after a store through r+")
    same(np.load(at("large.npy")), expected_after_edit(), "load after a store through r+")
    with open(at("large.npy"), "rb") as file:
        same(np.load(io.BytesIO(file.read())), expected_after_edit(), "read() after a store")
    editor.flush()
    del editor

    # c: changes stay in the process.
    private = np.load(at("large.npy"), mmap_mode="c")
    private[0, :] = 0.0
    private[:, 3] = -1.0
    del private
    same(reader, expected_after_edit(), "the file after stores through c")

    # w+: created by its last byte, filled through the mapping.
    mapped = np.memmap(at("mapped.bin"), dtype="f4", mode="w+", shape=MAPPED)
    mapped[10:20] = array("stripe", (10, MAPPED[1]), "f4")
    mapped[299, 699] = 1.0
    other = np.memmap(at("mapped.bin"), dtype="f4", mode="r", shape=MAPPED)
    same(other, expected_memmap(), "a second memmap before the flush")
    mapped.flush()
    del mapped, other

    # A memmap that is never flushed and never closed properly is a file like any other.
    lazy = np.memmap(at("lazy.bin"), dtype="i4", mode="w+", shape=(100_000,))
    lazy[:] = array("lazy", (100_000,), "i4")
    del lazy

    # Saved over: the second content stands, longer or shorter.
    np.save(at("again.npy"), array("first", (4000,), "f8"))
    np.save(at("again.npy"), array("second", (100,), "f4"))
    np.save(at("again.npy"), array("third", (9000,), "f8"))

    members = {name: array(name, (40, 40), "f4") for name in ("one", "two", "three")}
    np.savez(at("stored.npz"), **members)
    np.savez_compressed(at("deflated.npz"), **members)

    # Appended arrays in one file, read one after another.
    with open(at("several.npy"), "ab") as file:
        for n in range(20):
            np.save(file, array(f"several{n}", (n, 3), "i8"))
    verify(directory)


def verify(directory):
    at = lambda name: os.path.join(directory, name)  # noqa: E731
    for dtype in DTYPES:
        name = "t_" + dtype.replace("?", "bool")
        same(np.load(at(name + ".npy")), array(name, (17, 5), dtype), name)
        same(np.load(at(name + ".npy"), mmap_mode="r"), array(name, (17, 5), dtype), name)
    same(np.load(at("fortran.npy")), array("fortran", (31, 9), "f4"), "fortran")
    check(np.load(at("fortran.npy"), mmap_mode="r").flags.f_contiguous, "order was lost")
    check(np.load(at("empty.npy")).shape == (0, 3), "empty.npy")
    check(np.load(at("scalar.npy")) == 2.5, "scalar.npy")
    same(np.load(at("large.npy"), mmap_mode="r"), expected_after_edit(), "large.npy")
    same(np.load(at("large.npy")), expected_after_edit(), "large.npy")
    check(os.path.getsize(at("mapped.bin")) == MAPPED[0] * MAPPED[1] * 4, "size of mapped.bin")
    same(np.memmap(at("mapped.bin"), "f4", "r", shape=MAPPED), expected_memmap(), "mapped.bin")
    same(np.fromfile(at("mapped.bin"), "f4").reshape(MAPPED), expected_memmap(), "mapped.bin")
    same(np.fromfile(at("lazy.bin"), "i4"), array("lazy", (100_000,), "i4"), "lazy.bin")
    same(np.load(at("again.npy")), array("third", (9000,), "f8"), "again.npy")
    for archive in ("stored.npz", "deflated.npz"):
        with np.load(at(archive)) as members:
            check(sorted(members.files) == ["one", "three", "two"], archive, members.files)
            for name in members.files:
                same(members[name], array(name, (40, 40), "f4"), f"{archive} {name}")
    with open(at("several.npy"), "rb") as file:
        for n in range(20):
            same(np.load(file), array(f"several{n}", (n, 3), "i8"), f"several {n}")
        check(file.read() == b"", "several.npy has bytes behind its last array")


def tree(directory):
    """The arrays of one file, each as a file below .tensorfs/tensors of the mount."""
    root, name = os.path.split(directory)
    views = os.path.join(root, ".tensorfs/tensors", name, "several.npy")
    names = ["array.npy"] + [f"array[{n}].npy" for n in range(1, 20)]
    check(sorted(os.listdir(views)) == sorted(names), "several.npy", os.listdir(views))
    for n, view in enumerate(names):
        same(np.load(os.path.join(views, view)), array(f"several{n}", (n, 3), "i8"), view)


if __name__ == "__main__":
    main(write, verify, tree=tree)

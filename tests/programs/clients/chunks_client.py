"""zarr 2 and 3, n5 and TensorStore: arrays in chunks of plain bytes are files of NumPy's on the mount."""

import os
import struct
import warnings

import numpy as np
import tensorstore as ts
import zarr

from common import check, main, same

warnings.simplefilter("ignore")
ARRAYS = [
    ((10, 7), (4, 3), "<f4", 0.5),
    ((10, 7), (4, 7), ">i2", 3),
    ((5,), (2,), "u1", 9),
    ((3, 4, 5), (2, 3, 2), "i8", -1),
    ((64, 33), (64, 33), "f8", 0),
    ((300, 200), (70, 30), "c8", 0),
    ((0, 3), (1, 3), "f4", 0),
]
# Arrays of n5, and of zarr 2 whose chunks are column by column.
COLUMNS = [
    ([9, 8], [4, 3], "uint16"),
    ([5], [2], "uint8"),
    ([3, 4, 5], [2, 3, 2], "int64"),
    ([16, 33], [16, 33], "float32"),
    ([64, 40], [10, 40], "float64"),
]


def named():
    return [(form, n) for form in (2, 3) for n in range(len(ARRAYS))]


def write(directory):
    for form in (2, 3):
        root = zarr.create_group(os.path.join(directory, f"zarr{form}"), zarr_format=form)
        for n, (shape, chunks, dtype, fill) in enumerate(ARRAYS):
            more = dict(shape=shape, chunks=chunks, dtype=dtype, compressors=None, fill_value=fill)
            array = root.create_array(f"in/{n}", **more)
            array[:] = np.arange(array.size).reshape(shape).astype(dtype)
        sparse = dict(shape=(100, 100), chunks=(10, 10), dtype="i2", fill_value=7)
        root.create_array("sparse", compressors=None, **sparse)[:15, :25] = 1
        root.create_array("packed", **sparse)[:] = 1
    metadata = {"shape": [9, 8], "chunks": [4, 3], "dtype": "bfloat16", "compressor": None}
    metadata["dimension_separator"] = "/"
    store = {"driver": "file", "path": os.path.join(directory, "nested")}
    array = ts.open({"driver": "zarr", "kvstore": store, "metadata": metadata}, create=True).result()
    array.write(np.arange(72).reshape(9, 8).astype(array.dtype.numpy_dtype)).result()
    for n, (shape, chunks, dtype) in enumerate(COLUMNS):
        array = opened(directory, f"n5/{n}", n5(shape, chunks, dtype), create=True)
        array.write(numbers(shape, dtype)).result()
        columns = {"shape": shape, "chunks": chunks, "dtype": np.dtype(dtype).newbyteorder(">").str, "order": "F" if len(shape) > 1 else "C"}
        array = opened(directory, f"columns/{n}", dict(columns, compressor=None, fill_value=None), create=True)
        array.write(numbers(shape, dtype)).result()
    # One that was made larger and smaller, and in which some blocks are not there.
    array = opened(directory, "n5/resized", n5([4, 9], [4, 4], "int32"), create=True)
    array.write(numbers([4, 9], "int32")).result()
    array = array.resize(exclusive_max=[10, 6], resize_metadata_only=True).result()
    array[8:, 4:].write(np.full((2, 2), 7, "int32")).result()
    # As n5's own library writes: blocks end where the array does, or did before it was made larger.
    array = opened(directory, "n5/cut", n5([7, 5], [4, 3], "uint16"), create=True)
    for key, size in {"0/0": (4, 3), "1/0": (3, 3), "0/1": (4, 2), "1/1": (2, 1)}.items():
        path = os.path.join(directory, "n5/cut", key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(struct.pack(">HHII", 0, 2, *size) + numbers(size, ">u2").tobytes())
    array = opened(directory, "n5/wrong", n5([4], [4], "uint8"), create=True)
    with open(os.path.join(directory, "n5/wrong/0"), "wb") as file:
        file.write(struct.pack(">HHI", 0, 1, 5) + bytes(5))
    opened(directory, "n5/packed", n5([4], [4], "uint8", "gzip"), create=True).write(np.ones(4, "uint8")).result()


def numbers(shape, dtype):
    return np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)


def n5(shape, chunks, dtype, how="raw"):
    return {"dimensions": shape, "blockSize": chunks, "dataType": dtype, "compression": {"type": how}}


def opened(directory, name, metadata=None, create=False):
    """An array as TensorStore has it."""
    store = {"driver": "file", "path": os.path.join(directory, name)}
    driver = "zarr" if name.startswith("columns") else "n5"
    more = {"metadata": metadata} if metadata else {}
    return ts.open(dict(driver=driver, kvstore=store, **more), create=create, open=True).result()


def verify(directory):
    root, name = os.path.split(directory)
    view = os.path.join(root, ".tensorfs/tensors", name)

    def load(path, **more):
        return np.load(os.path.join(view, path + ".checkpoint", "array.npy"), **more)

    for form, n in named():
        expected = zarr.open_array(os.path.join(directory, f"zarr{form}/in/{n}"), mode="r")[...]
        found = load(f"zarr{form}/in/{n}")
        check(found.dtype.kind == expected.dtype.kind and np.array_equal(found, expected), f"zarr {form}, {n}")
    for form in (2, 3):
        expected = zarr.open_array(os.path.join(directory, f"zarr{form}/sparse"), mode="r")[...]
        same(np.array(load(f"zarr{form}/sparse", mmap_mode="r")), expected, "sparse")
        there = os.listdir(os.path.join(view, f"zarr{form}"))
        check("sparse.checkpoint" in there and "packed.checkpoint" not in there, "packed", there)
    found = load("nested").view(ts.bfloat16.numpy_dtype)
    check(np.array_equal(found.astype("f4"), np.arange(72).reshape(9, 8)), "bfloat16")
    for name in [f"{form}/{n}" for form in ("n5", "columns") for n in range(len(COLUMNS))] + ["n5/resized", "n5/cut"]:
        expected = opened(directory, name).read().result()
        found = load(name)
        check(found.dtype.kind == expected.dtype.kind and np.array_equal(found, expected), name, found, expected)
        check(found.flags.f_contiguous, name)
        check(np.array_equal(np.array(load(name, mmap_mode="r")), expected), name)
    check(opened(directory, "n5/resized").read().result()[9, 5] == 7, "resized")
    there = os.listdir(os.path.join(view, "n5"))
    check("packed.checkpoint" not in there and "wrong.checkpoint" in there, there)
    for read in (lambda: opened(directory, "n5/wrong").read().result(), lambda: load("n5/wrong")):
        try:
            read()
        except (OSError, ValueError):
            continue
        check(False, "a block that is larger than blocks are")


if __name__ == "__main__":
    main(write, verify)

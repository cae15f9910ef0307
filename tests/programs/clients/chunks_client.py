"""zarr 2 and 3 and TensorStore: arrays in chunks of plain bytes are files of NumPy's on the mount."""

import os
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


if __name__ == "__main__":
    main(write, verify)

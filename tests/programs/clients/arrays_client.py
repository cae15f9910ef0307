"""Writes hierarchies of arrays as zarr 3's and TensorStore's libraries do, below a directory, and prints what is to be
seen of each array, a line of JSON each. Those whose elements are plain bytes have the sum of them."""

import json
import os
import sys

import warnings

import numpy as np
import tensorstore as ts
import zarr

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_databases import databases  # noqa: E402

TOP = sys.argv[1]
# Of what the format does not say yet.
warnings.simplefilter("ignore")


def say(hierarchy, name, dtype, shape, chunk, codecs, chunks, there, **more):
    line = dict(hierarchy=hierarchy, name=name, dtype=dtype, shape=shape, chunk=chunk, codecs=codecs, chunks=chunks)
    print(json.dumps(dict(line, chunks_there=there, **more)))


def by_zarr(form, consolidated):
    """Groups in groups, with what the library does if it is told nothing, and with nothing done to chunks."""
    hierarchy = f"zarr{form}{'-consolidated' if consolidated else ''}"
    root = zarr.create_group(os.path.join(TOP, hierarchy), zarr_format=form, attributes={"loss": float("nan")})
    weight = root.create_array("encoder/layer0/weight", shape=(10, 7), chunks=(4, 7), dtype="float32")
    weight[:] = np.arange(70, dtype="float32").reshape(10, 7)
    codecs = ["zstd"] if form == 3 else ["blosc(lz4)"]
    say(hierarchy, "encoder/layer0/weight", "float32", [10, 7], [4, 7], codecs, 3, 3)
    sparse = root.create_array("encoder/sparse", shape=(100, 100), chunks=(10, 10), dtype="int16", fill_value=7)
    sparse[:10, :30] = 1
    assert sparse.nchunks_initialized == 3
    say(hierarchy, "encoder/sparse", "int16", [100, 100], [10, 10], codecs, 100, 3)
    plain = root.create_array("plain", shape=(6,), chunks=(4,), dtype=">f8", compressors=None, fill_value=0)
    plain[:] = np.arange(6)
    tail = root.create_array("tail", shape=(5, 3), chunks=(2, 2), dtype="float32", compressors=None, fill_value=0.5)
    tail[4, 2] = 4
    say(hierarchy, "tail", "float32", [5, 3], [2, 2], [], 6, 1, sum=float(tail[:].sum()))
    say(hierarchy, "plain", "float64", [6], [4], [], 2, 2, sum=15)
    step = root.create_array("step", shape=(), dtype="int64", compressors=None, fill_value=0)
    step[...] = 5
    say(hierarchy, "step", "int64", [], [], [], 1, 1, sum=5)
    empty = root.create_array("empty", shape=(0, 5), chunks=(1, 5), dtype="bool")
    assert empty.size == 0
    say(hierarchy, "empty", "bool", [0, 5], [1, 5], codecs, 0, 0)
    text = root.create_array("text", shape=(2,), chunks=(2,), dtype="U5")
    text[:] = ["ab", "cde"]
    say(hierarchy, "text", "string", [2], [2], codecs, 1, 1)
    if form == 3:
        shards = dict(shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="uint8")
        root.create_array("shards", **shards)[:32] = 1
        say(hierarchy, "shards", "uint8", [64, 64], [32, 32], ["shards(8x8: zstd)"], 4, 2)
    if consolidated:
        zarr.consolidate_metadata(root.store, zarr_format=form)


def by_tensorstore(driver, metadata, name, expected, **more):
    """The first chunk of an array that has more."""
    store = {"driver": driver, "kvstore": {"driver": "file", "path": os.path.join(TOP, name)}, "metadata": metadata}
    array = ts.open(store, create=True).result()
    array[:4, :4].write(np.ones((4, 4), array.dtype.numpy_dtype)).result()
    say(name, "array", *expected, **more)


for form in (2, 3):
    for consolidated in (False, True):
        by_zarr(form, consolidated)
chunks = {"shape": [9, 8], "chunks": [4, 4], "dtype": "bfloat16", "dimension_separator": "/"}
by_tensorstore(
    "zarr", dict(chunks, compressor=None), "nested", ("bfloat16", [9, 8], [4, 4], [], 6, 1)
)
blosc = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
by_tensorstore(
    "zarr", dict(chunks, compressor=blosc), "blosc", ("bfloat16", [9, 8], [4, 4], ["blosc(lz4)"], 6, 1)
)
for kind in ("raw", "gzip"):
    blocks = {"dimensions": [9, 8], "blockSize": [4, 4], "dataType": "uint16", "compression": {"type": kind}}
    more = {"sum": 16} if kind == "raw" else {}
    by_tensorstore("n5", blocks, f"n5-{kind}", ("uint16", [9, 8], [4, 4], [kind], 6, 1), **more)

databases(TOP, say)

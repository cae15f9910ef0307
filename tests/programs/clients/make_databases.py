"""Writes OCDBT databases with TensorStore below a directory, each for something that the format has.

    make_databases.py DIRECTORY

layout/formats/tests/databases has copies. What is to be seen of them is said by `databases`, which arrays_client.py uses.
"""

import os
import sys

import numpy as np
import tensorstore as ts


def databases(top, say):
    """Makes them, and tells `say` of each array."""

    def config(name, **config):
        spec = {"driver": "ocdbt", "base": f"file://{top}/{name}/"}
        return spec | {"config": config} if config else spec

    def zarr2(spec, path, shape, chunks, dtype="<f4", codec=None, fill=None):
        metadata = {"shape": shape, "chunks": chunks, "dtype": dtype, "compressor": codec, "fill_value": fill}
        store = {"driver": "zarr", "kvstore": spec | {"path": path + "/"}, "metadata": metadata}
        return ts.open(store, create=True).result()

    def zarr3(spec, path, shape, chunks):
        metadata = {"shape": shape, "data_type": "float64", "codecs": [{"name": "bytes"}]}
        metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        store = {"driver": "zarr3", "kvstore": spec | {"path": path + "/"}, "metadata": metadata}
        return ts.open(store, create=True).result()

    def count(array):
        array.write(np.arange(array.size).reshape(array.shape).astype(array.dtype.numpy_dtype)).result()

    # As they are by default: nodes are compressed, and values of up to 100 bytes stand beside their keys.
    spec = config("database")
    count(zarr2(spec, "model/weight", [10, 7], [4, 7], codec={"id": "zstd", "level": 1}))
    say("database", "model/weight", "float32", [10, 7], [4, 7], ["zstd"], 3, 3)
    count(zarr2(spec, "model/bias", [3], [3], "<i4"))
    say("database", "model/bias", "int32", [3], [3], [], 1, 1, sum=3)
    zarr2(spec, "sparse", [100, 100], [10, 10], "<i2", fill=7)[:10].write(1).result()
    say("database", "sparse", "int16", [100, 100], [10, 10], [], 100, 10, sum=64000)
    count(zarr3(spec, "three", [6, 4], [4, 4]))
    say("database", "three", "float64", [6, 4], [4, 4], [], 2, 2, sum=276)

    # Nothing is compressed, and all values are in files.
    spec = config("database-plain", compression=None, max_inline_value_bytes=0)
    count(zarr2(spec, "w", [10, 7], [4, 7]))
    say("database-plain", "w", "float32", [10, 7], [4, 7], [], 3, 3, sum=2415)
    count(zarr2(spec, "s", [], [], "<i8"))
    say("database-plain", "s", "int64", [], [], [], 1, 1, sum=0)

    # Small nodes, so that the tree has several levels; more versions than fit in a manifest; keys of no array.
    spec = config("database-deep", max_decoded_node_bytes=500, version_tree_arity_log2=1)
    store = ts.KvStore.open(spec).result()
    count(zarr2(spec, "many", [64, 8], [1, 8], "|u1"))
    say("database-deep", "many", "uint8", [64, 8], [1, 8], [], 64, 64, sum=65280)
    for number in range(9):
        store.write(f"other/{number}", b"x" * 200).result()

    # Versions in manifests that have numbers.
    count(zarr2(config("database-numbered", manifest_kind="numbered"), "w", [4], [2]))
    say("database-numbered", "w", "float32", [4], [2], [], 2, 2, sum=6)

    # As Orbax puts one together of those of several processes: values stay where they are.
    together, context = ts.Transaction(atomic=True), ts.Context()
    merged = ts.KvStore.open(config("database-merged", max_inline_value_bytes=16), context=context).result()
    for number in range(2):
        spec = config(f"database-merged/ocdbt.process_{number}", max_inline_value_bytes=16)
        count(zarr2(spec, f"params.w{number}", [8, 4], [4, 4]))
        say("database-merged", f"params.w{number}", "float32", [8, 4], [4, 4], [], 2, 2, sum=496)
        part = ts.KvStore.open(spec, context=context).result()
        part.experimental_copy_range_to(merged.with_transaction(together)).result()
    together.commit_async().result()

    # No key is left.
    store = ts.KvStore.open(config("database-empty")).result()
    store.write("a", b"b").result()
    store.delete_range(ts.KvStore.KeyRange()).result()


if __name__ == "__main__":
    databases(os.path.abspath(sys.argv[1]), lambda *_, **__: None)

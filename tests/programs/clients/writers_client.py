"""What the libraries write, in each way that they are used: the rows and columns of a table in docs/TENSORS.md.

    writers_client.py DIR WRITER WAY

WAY is `once` (written and closed), `appended` (gone on with once it was closed, or by saving again to the open file,
as the library's users do it), `live` (says `ready`, and holds the file open until its standard input ends), `killed`
(says `ready` with a part written; it is to be killed then, if the process that wrote was not) or `sharded` (one
checkpoint of several files). The last line of standard output is the file's path, or for `sharded`, and of writers of
directories, the directory's. A way that a library does not have says
`none`. What it writes has two tensors of 64 KiB each time, and of scalars two.
"""

import os
import sys
import time

import numpy as np

import writers_torch
import writers_trainers
from writing import ROWS, Stops, Writer, dies, limit_files, only_file, ready, values


def table(turn=0):
    import pyarrow

    return pyarrow.table({name: pyarrow.array(value) for name, value in values(turn).items()})


class NumpySave(Writer):
    """`np.save` to one handle, again and again, is NumPy's own idiom."""

    def _save(self, file, turn):
        for value in values(turn).values():
            np.save(file, value)

    def once(self):
        with open(self.path, "wb") as file:
            self._save(file, 0)

    def appended(self):
        self.once()
        with open(self.path, "ab") as file:
            self._save(file, 1)

    def live(self):
        with open(self.path, "wb") as file:
            self._save(file, 0)
            file.flush()
            os.fsync(file.fileno())
            ready(self.path)

    def killed(self):
        with open(self.path, "wb") as file:
            self._save(file, 0)
            file.flush()
            os.truncate(self.path, os.path.getsize(self.path) - 1000)
            ready(self.path)


class NumpySavez(Writer):
    def once(self):
        with open(self.path, "wb") as file:
            np.savez(file, **values())

    def appended(self):
        with open(self.path, "wb") as file:
            for turn in range(2):
                np.savez(file, **values(turn))

    def live(self):
        with open(self.path, "wb") as file:
            np.savez(file, **values())
            file.flush()
            ready(self.path)

    def killed(self):
        with open(self.path, "wb") as file:
            np.savez(Stops(file, self.path, 1000), **values())


class Safetensors(Writer):
    def once(self):
        from safetensors.numpy import save_file

        save_file(values(), self.path)

    def killed(self):
        # It makes a file of another name, as long as it will be, before it writes.
        dies("once", 100_000)
        ready(only_file(self.directory))

    def sharded(self):
        import json

        from safetensors.numpy import save_file

        names = {}
        for number, (name, value) in enumerate(values().items(), 1):
            part = f"model-{number:05}-of-00002.safetensors"
            save_file({name: value}, os.path.join(self.directory, part))
            names[name] = part
        with open(os.path.join(self.directory, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": names}, file)
        return self.directory


class SafetensorsBytes(Writer):
    """`save`, of which a program writes the bytes itself."""

    def once(self, do=lambda: None):
        from safetensors.numpy import save

        with open(self.path, "wb") as file:
            file.write(save(values()))
            file.flush()
            do()

    def live(self):
        self.once(lambda: ready(self.path))

    def killed(self):
        from safetensors.numpy import save

        with open(self.path, "wb") as file:
            Stops(file, self.path, 100_000).write(save(values()))


class H5py(Writer):
    def _open(self, mode):
        import h5py

        return h5py.File(self.path, mode)

    def once(self):
        with self._open("w") as file:
            for name, value in values().items():
                file[name] = value

    def appended(self):
        self.once()
        with self._open("a") as file:
            for name, value in values(1).items():
                file["second/" + name] = value

    def live(self):
        with self._open("w") as file:
            for name, value in values().items():
                file[name] = value
            file.flush()
            ready(self.path)

    def killed(self):
        with self._open("w") as file:
            for name, value in values().items():
                file[name] = value
            ready(self.path)

    def sharded(self):
        import h5py

        members = os.path.join(self.directory, "f%d.h5")
        with h5py.File(members, "w", driver="family", memb_size=100_000) as file:
            for name, value in values().items():
                file[name] = value
        return self.directory


class Gguf(Writer):
    def once(self, do=lambda: None, **options):
        import gguf

        writer = gguf.GGUFWriter(self.path, "llama", **options)
        for name, value in values().items():
            writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.flush()
        do()
        writer.close()

    def live(self):
        self.once(lambda: ready(self.path))

    def sharded(self):
        self.path += ".gguf"
        self.once(split_max_tensors=1)
        return self.directory

    def killed(self):
        import gguf

        writer = gguf.GGUFWriter(self.path, "llama")
        for name, value in values().items():
            writer.add_tensor_info(name, value.shape, value.dtype, value.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.write_tensor_data(values()["weight"])
        for file in writer.fout:
            file.flush()
        ready(self.path)


def data_set(directory, format):
    """Half of the rows in each file."""
    import pyarrow.dataset

    half = ROWS // 2
    pyarrow.dataset.write_dataset(table(), directory, format=format, max_rows_per_file=half, max_rows_per_group=half)
    return directory


class Feather(Writer):
    def _write(self, file):
        from pyarrow import feather

        feather.write_feather(table(), file, compression="uncompressed")

    def once(self):
        self._write(self.path)

    def live(self):
        with open(self.path, "wb") as file:
            self._write(file)
            file.flush()
            ready(self.path)

    def killed(self):
        with open(self.path, "wb") as file:
            self._write(Stops(file, self.path, 100_000))

    def sharded(self):
        return data_set(self.directory, "feather")


class ArrowFile(Writer):
    """Arrow's file format, of which the footer is written last."""

    def _writer(self, file):
        import pyarrow

        return pyarrow.ipc.new_file(file, table().schema)

    def _write(self, writer, file, turn=0):
        writer.write_table(table(turn))
        file.flush()

    def once(self):
        with open(self.path, "wb") as file, self._writer(file) as writer:
            self._write(writer, file)

    def live(self):
        with open(self.path, "wb") as file, self._writer(file) as writer:
            self._write(writer, file)
            ready(self.path)

    def killed(self):
        self.live()

    def sharded(self):
        return data_set(self.directory, "ipc")


class ArrowStream(ArrowFile):
    """Arrow's streams, as `datasets` keeps its tables."""

    def _writer(self, file):
        import pyarrow

        return pyarrow.ipc.new_stream(file, table().schema)

    def appended(self):
        self.once()
        with open(self.path, "ab") as file, self._writer(file) as writer:
            self._write(writer, file, 1)

    def killed(self):
        import pyarrow

        with open(self.path, "wb") as file:
            with self._writer(Stops(file, self.path, 200_000)) as writer:
                for turn in range(2):
                    writer.write_table(table(turn))

    def sharded(self):
        # As `save_to_disk` of `datasets` does.
        for number in range(2):
            path = os.path.join(self.directory, f"data-{number:05}-of-00002.arrow")
            with open(path, "wb") as file, self._writer(file) as writer:
                writer.write_table(table().slice(number * ROWS // 2, ROWS // 2))
        return self.directory


class Zarr(Writer):
    """A directory, in which an array is of two chunks."""

    VERSION = 3

    def _save(self, turn, **options):
        import zarr

        group = zarr.open_group(self.path, mode="a", zarr_format=self.VERSION)
        options = {"shape": (ROWS,), "chunks": (ROWS // 2,)} | options
        self.arrays = []
        for name, value in values(turn).items():
            self.arrays.append(group.create_array(f"{turn}/{name}", dtype=value.dtype, **options))
            self.arrays[-1][:] = value

    def once(self):
        self._save(0)

    def appended(self):
        self._save(0)
        self._save(1)

    def killed(self):
        import zarr

        group = zarr.open_group(self.path, mode="a", zarr_format=self.VERSION)
        array = group.create_array("weight", shape=(ROWS,), chunks=(ROWS // 2,), dtype="<f4")
        array[: ROWS // 2] = values()["weight"][: ROWS // 2]
        ready(self.path)

    def live(self):
        self._save(0)
        ready(self.path)

    def sharded(self):
        # Both chunks of an array are in one file.
        self._save(0, shards=(ROWS,))
        return self.path


class Zarr2(Zarr):
    VERSION = 2
    sharded = None


class TensorStore(Writer):
    """As Orbax has it write: an array in zarr 3."""

    chunk = ROWS // 2
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]

    def _open(self, name):
        return self._zarr3({"driver": "file", "path": os.path.join(self.path, name)})

    def _zarr3(self, store):
        import tensorstore

        metadata = {"shape": [ROWS], "data_type": "float32", "codecs": self.codecs}
        metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [self.chunk]}}
        return tensorstore.open({"driver": "zarr3", "kvstore": store, "metadata": metadata}, create=True).result()

    def once(self, turn=0):
        self.arrays = []
        for name, value in values(turn).items():
            self.arrays.append(self._open(name + str(turn)))
            self.arrays[-1].write(value).result()

    def appended(self):
        self.once(0)
        self.once(1)

    def killed(self):
        self._open("weight")[: ROWS // 2].write(values()["weight"][: ROWS // 2]).result()
        ready(self.path)

    def live(self):
        self.once()
        ready(self.path)

    def sharded(self):
        shards = {"chunk_shape": [self.chunk], "codecs": self.codecs}
        self.chunk, self.codecs = ROWS, [{"name": "sharding_indexed", "configuration": shards}]
        self.once()
        return self.path


class Ocdbt(TensorStore):
    """As Orbax has it write by default: all keys in one database."""

    def _open(self, name):
        import tensorstore

        store = {"driver": "ocdbt", "base": f"file://{self.path}/", "path": name + "/"}
        if self.chunk == ROWS:
            return self._zarr3(store)
        metadata = {"shape": [ROWS], "dtype": "<f4", "chunks": [self.chunk], "compressor": None}
        return tensorstore.open({"driver": "zarr", "kvstore": store, "metadata": metadata}, create=True).result()


class N5(TensorStore):
    """Blocks as n5 has them, with nothing done to them."""

    sharded = None

    def _open(self, name):
        import tensorstore

        metadata = {"dimensions": [ROWS], "blockSize": [ROWS // 2], "dataType": "float32"}
        spec = {"driver": "n5", "kvstore": {"driver": "file", "path": os.path.join(self.path, name)}}
        return tensorstore.open(spec | {"metadata": metadata | {"compression": {"type": "raw"}}}, create=True).result()


class TensorBoard(Writer):
    """tensorboardX."""

    def _writer(self):
        from tensorboardX import SummaryWriter

        return SummaryWriter(logdir=self.directory, flush_secs=1)

    def _scalars(self, writer, steps):
        for step in steps:
            writer.add_scalar("loss", float(step), step)
        writer.flush()
        # What is flushed goes through a queue.
        time.sleep(2)

    def _path(self):
        (name,) = [name for name in os.listdir(self.directory) if "tfevents" in name]
        return os.path.join(self.directory, name)

    def once(self):
        writer = self._writer()
        self._scalars(writer, range(2))
        writer.close()
        return self._path()

    def live(self):
        writer = self._writer()
        self._scalars(writer, range(2))
        ready(self._path(), lambda: self._scalars(writer, range(2, 4)))
        writer.close()

    def killed(self):
        writer = self._writer()
        self._scalars(writer, range(2))
        ready(self._path())


class SummaryWriter(TensorBoard):
    """torch's, which has TensorBoard's own writer: it opens the file for each piece, appends, and closes it."""

    def _writer(self):
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self.directory, flush_secs=1)


class Smdebug(Writer):
    """smdebug's own writer of event files."""

    def _writer(self):
        from smdebug.core.writer import FileWriter

        return FileWriter(trial_dir=self.directory, step=0, worker="worker")

    def _write(self, writer):
        for name, value in values().items():
            writer.write_tensor(tdata=value, tname=name)
        writer.flush()

    def _path(self):
        found = [os.path.join(at, name) for at, _, names in os.walk(self.directory) for name in names]
        (path,) = [path for path in found if "events" in path]
        return path

    def once(self):
        writer = self._writer()
        self._write(writer)
        writer.close()
        return self._path()

    def live(self):
        writer = self._writer()
        self._write(writer)
        ready(self._path(), lambda: self._write(writer))
        writer.close()

    def killed(self):
        writer = self._writer()
        self._write(writer)
        ready(self._path())


class Messages(Writer):
    """Messages of TensorFlow's without frames, one behind the other."""

    def _message(self, turn):
        raise NotImplementedError

    def _append(self, turn, mode, do=lambda: None):
        with open(self.path, mode) as file:
            file.write(self._message(turn))
            file.flush()
            do()

    def once(self):
        self._append(0, "wb")

    def appended(self):
        self._append(0, "wb")
        self._append(1, "ab")

    def live(self):
        self._append(0, "wb", lambda: ready(self.path))

    def killed(self):
        message = self._message(0)
        with open(self.path, "wb") as file:
            Stops(file, self.path, len(message) - 1000).write(message)


class TensorProto(Messages):
    """One tensor."""

    def _tensor(self, value):
        from tensorboardX.proto.tensor_pb2 import TensorProto

        tensor = TensorProto(dtype=1, tensor_content=value.tobytes())
        tensor.tensor_shape.dim.add(size=ROWS)
        return tensor

    def _message(self, turn):
        return self._tensor(values(turn)["weight"]).SerializeToString()


class Events(TensorProto):
    """An Event for each tensor."""

    def _message(self, turn):
        from tensorboardX.proto.event_pb2 import Event

        message = b""
        for name, value in values(turn).items():
            event = Event(wall_time=1.0, step=turn)
            event.summary.value.add(tag=name).tensor.CopyFrom(self._tensor(value))
            message += event.SerializeToString()
        return message


class Raw(Writer):
    """Bytes of no format."""

    def once(self, mode="wb"):
        with open(self.path, mode) as file:
            file.write(values()["weight"].tobytes())
            file.flush()
            os.fsync(file.fileno())

    def appended(self):
        self.once()
        self.once("ab")

    def live(self):
        with open(self.path, "wb") as file:
            file.write(values()["weight"].tobytes())
            file.flush()
            os.fsync(file.fileno())
            ready(self.path)

    def killed(self):
        with open(self.path, "wb") as file:
            file.write(values()["weight"].tobytes())
            file.flush()
            ready(self.path)


WRITERS = {
    "np.save": NumpySave,
    "np.savez": NumpySavez,
    "safetensors": Safetensors,
    "safetensors, save": SafetensorsBytes,
    "h5py": H5py,
    "gguf": Gguf,
    "Feather": Feather,
    "Arrow, file": ArrowFile,
    "Arrow, stream": ArrowStream,
    "zarr 2": Zarr2,
    "zarr 3": Zarr,
    "TensorStore": TensorStore,
    "TensorStore, OCDBT": Ocdbt,
    "TensorStore, n5": N5,
    "tensorboardX": TensorBoard,
    "SummaryWriter": SummaryWriter,
    "smdebug": Smdebug,
    "Events without frames": Events,
    "TensorProto": TensorProto,
    "raw bytes": Raw,
    **writers_torch.WRITERS,
    **writers_trainers.WRITERS,
}

if __name__ == "__main__":
    directory, writer, way = sys.argv[1:]
    os.environ.setdefault("SMDEBUG_LOG_LEVEL", "error")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.makedirs(directory, exist_ok=True)
    limit_files()
    writer = WRITERS[writer](directory)
    act = getattr(writer, way, None)
    if act is None:
        print("none")
    else:
        print(act() or writer.path)

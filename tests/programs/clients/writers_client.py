"""What the libraries write, in each way that they are used: the rows and columns of a table in docs/TENSORS.md.

    writers_client.py DIR WRITER WAY

WAY is `once` (written and closed), `appended` (gone on with once it was closed, or by saving again to the open file,
as the library's users do it), `live` (says `ready`, and holds the file open until its standard input ends), `killed`
(says `ready` with a part written; it is to be killed then) or `sharded` (one checkpoint of several files). The last
line of standard output is the file's path, or for `sharded`, and of writers of directories, the directory's. A way that a library does not have says
`none`. What it writes has two tensors of 64 KiB each time, and of scalars two.
"""

import os
import sys
import time

import numpy as np

from common import array

ROWS = 16384


def values(turn=0):
    return {name: array(f"{name}{turn}", (ROWS,), "<f4") for name in ("weight", "bias")}


def table(turn=0):
    import pyarrow

    return pyarrow.table({name: pyarrow.array(value) for name, value in values(turn).items()})


def ready(path):
    print("ready", flush=True)
    print(path, flush=True)
    sys.stdin.read()


class Writer:
    """A way that is not here the library does not have."""

    name = "file"

    def __init__(self, directory):
        self.directory = directory
        self.path = os.path.join(directory, self.name)


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

    def killed(self):
        with open(self.path, "wb") as file:
            np.savez(Stops(file, self.path, 1000), **values())


class Stops:
    """A file of which so many bytes are written, and no more."""

    def __init__(self, file, path, most):
        self.file, self.path, self.left = file, path, most

    def write(self, data):
        data = memoryview(data).cast("B")
        self.file.write(data[: self.left])
        self.left -= len(data)
        if self.left <= 0:
            self.file.flush()
            ready(self.path)
        return len(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


class Safetensors(Writer):
    def once(self):
        from safetensors.numpy import save_file

        save_file(values(), self.path)

    def killed(self):
        from safetensors.numpy import save

        with open(self.path, "wb") as file:
            Stops(file, self.path, 100_000).write(save(values()))

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


class Gguf(Writer):
    def once(self):
        import gguf

        writer = gguf.GGUFWriter(self.path, "llama")
        for name, value in values().items():
            writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

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


class Feather(Writer):
    def once(self):
        from pyarrow import feather

        feather.write_feather(table(), self.path, compression="uncompressed")


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


class Zarr(Writer):
    """A directory, in which an array is of two chunks."""

    VERSION = 3

    def _save(self, turn):
        import zarr

        group = zarr.open_group(self.path, mode="a", zarr_format=self.VERSION)
        for name, value in values(turn).items():
            group.create_array(f"{turn}/{name}", shape=(ROWS,), chunks=(ROWS // 2,), dtype=value.dtype)[:] = value

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


class Zarr2(Zarr):
    VERSION = 2


class TensorStore(Writer):
    """As Orbax has it write: an array in zarr 3."""

    def _open(self, name):
        import tensorstore

        metadata = {"shape": [ROWS], "data_type": "float32"}
        metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [ROWS // 2]}}
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": os.path.join(self.path, name)}}
        return tensorstore.open(spec | {"metadata": metadata}, create=True).result()

    def once(self, turn=0):
        for name, value in values(turn).items():
            self._open(name + str(turn)).write(value).result()

    def appended(self):
        self.once(0)
        self.once(1)

    def killed(self):
        self._open("weight")[: ROWS // 2].write(values()["weight"][: ROWS // 2]).result()
        ready(self.path)


class Ocdbt(TensorStore):
    """As Orbax has it write by default: all keys in one database."""

    def _open(self, name):
        import tensorstore

        metadata = {"shape": [ROWS], "dtype": "<f4", "chunks": [ROWS // 2], "compressor": None}
        base = f"file://{self.path}/"
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": name + "/"}}
        return tensorstore.open(spec | {"metadata": metadata}, create=True).result()


class N5(TensorStore):
    """Blocks as n5 has them, with nothing done to them."""

    def _open(self, name):
        import tensorstore

        metadata = {"dimensions": [ROWS], "blockSize": [ROWS // 2], "dataType": "float32"}
        spec = {"driver": "n5", "kvstore": {"driver": "file", "path": os.path.join(self.path, name)}}
        return tensorstore.open(spec | {"metadata": metadata | {"compression": {"type": "raw"}}}, create=True).result()


class Orbax(Writer):
    """A step of a run."""

    def sharded(self):
        import orbax.checkpoint as ocp

        with ocp.CheckpointManager(os.path.join(self.directory, "run")) as manager:
            manager.save(1, args=ocp.args.StandardSave({"params": values()}))
            manager.wait_until_finished()
        return os.path.join(self.directory, "run", "1")


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
        ready(self._path())
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
        ready(self._path())
        writer.close()

    def killed(self):
        writer = self._writer()
        self._write(writer)
        ready(self._path())


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


class Torch(Writer):
    OPTIONS = {}
    MOST = 70_000

    def _state(self, turn=0):
        import torch

        return {name: torch.from_numpy(value) for name, value in values(turn).items()}

    def once(self):
        import torch

        torch.save(self._state(), self.path, **self.OPTIONS)

    def appended(self):
        import torch

        with open(self.path, "wb") as file:
            for turn in range(2):
                torch.save(self._state(turn), file, **self.OPTIONS)

    def killed(self):
        import torch

        with open(self.path, "wb") as file:
            torch.save(self._state(), Stops(file, self.path, self.MOST), **self.OPTIONS)


class TorchLegacy(Torch):
    OPTIONS = {"_use_new_zipfile_serialization": False}
    # Elements are written to the descriptor itself.
    MOST = 100


class Distributed(Writer):
    """torch's distributed checkpoint, by one process and two threads, so that there are two files."""

    def sharded(self):
        import torch.distributed.checkpoint as dcp
        import torch

        state = {name: torch.from_numpy(value) for name, value in values().items()}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(self.directory, thread_count=2))
        return self.directory


def torch_model():
    """A model of just these two tensors."""
    import torch

    model = torch.nn.Module()
    for name, value in values().items():
        setattr(model, name, torch.nn.Parameter(torch.from_numpy(value)))
    return model


class Exported(Writer):
    """A program of torch.export's."""

    name = "model.pt2"

    def once(self):
        import torch

        class Program(torch.nn.Module):
            def __init__(self):
                super().__init__()
                for name, value in values().items():
                    setattr(self, name, torch.nn.Parameter(torch.from_numpy(value)))

            def forward(self, x):
                return x * self.weight + self.bias

        torch.export.save(torch.export.export(Program(), (torch.ones(ROWS),)), self.path)


class Keras(Writer):
    """A model, with torch as its backend."""

    name = "model.keras"

    def _save(self, model):
        model.save(self.path)

    def once(self):
        os.environ["KERAS_BACKEND"] = "torch"
        import keras

        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(ROWS)])
        self._save(model)


class KerasWeights(Keras):
    name = "model.weights.h5"

    def _save(self, model):
        model.save_weights(self.path)


class Trainer(Writer):
    """Hugging Face's: of three checkpoints two are kept."""

    def sharded(self):
        import torch
        import transformers

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                for name, value in values().items():
                    setattr(self, name, torch.nn.Parameter(torch.from_numpy(value)))

            def forward(self, x):
                return {"loss": ((x * self.weight + self.bias) ** 2).mean()}

        arguments = transformers.TrainingArguments(
            self.directory, max_steps=6, save_steps=2, save_total_limit=2, per_device_train_batch_size=1, use_cpu=True,
            report_to=[], disable_tqdm=True, logging_strategy="no",
        )
        data = [{"x": torch.ones(ROWS)} for _ in range(6)]
        transformers.Trainer(Model(), arguments, train_dataset=data).train()
        kept = sorted(name for name in os.listdir(self.directory) if name.startswith("checkpoint-"))
        assert kept == ["checkpoint-4", "checkpoint-6"], kept
        return os.path.join(self.directory, "checkpoint-6")


class Lightning(Writer):
    """What its ModelCheckpoint saves."""

    def once(self):
        import lightning
        import torch
        from lightning.pytorch.callbacks import ModelCheckpoint

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                for name, value in values().items():
                    setattr(self, name, torch.nn.Parameter(torch.from_numpy(value)))

            def training_step(self, batch, _):
                return ((batch * self.weight + self.bias) ** 2).mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.01)

        saves = ModelCheckpoint(self.directory, filename="model")
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=1, callbacks=[saves], logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=self.directory,
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(2, ROWS)))
        return saves.best_model_path


class Ranks(Writer):
    """A model that two processes have halves of, saved by both."""

    def _shard(self, model):
        raise NotImplementedError

    def _rank(self, rank, meeting):
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
        state = get_model_state_dict(self._shard(torch_model()))
        dcp.save(state, checkpoint_id=self.directory)
        dist.destroy_process_group()

    def sharded(self):
        import tempfile

        import torch.multiprocessing as mp

        with tempfile.TemporaryDirectory() as elsewhere:
            mp.spawn(self._rank, (os.path.join(elsewhere, "meeting"),), 2)
        return self.directory


class FullyShard(Ranks):
    def _shard(self, model):
        import torch
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        return fully_shard(model, mesh=mesh)


class Fsdp(Ranks):
    def _shard(self, model):
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel

        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        return FullyShardedDataParallel(model, device_mesh=mesh, use_orig_params=True, device_id=torch.device("cpu"))


WRITERS = {
    "np.save": NumpySave,
    "np.savez": NumpySavez,
    "safetensors": Safetensors,
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
    "Orbax": Orbax,
    "tensorboardX": TensorBoard,
    "SummaryWriter": SummaryWriter,
    "smdebug": Smdebug,
    "raw bytes": Raw,
    "torch.save": Torch,
    "torch.save, before 1.6": TorchLegacy,
    "torch's DCP": Distributed,
    "fully_shard, two ranks": FullyShard,
    "FSDP, two ranks": Fsdp,
    "torch.export.save": Exported,
    "Keras": Keras,
    "Keras, weights": KerasWeights,
    "Trainer": Trainer,
    "Lightning": Lightning,
}

if __name__ == "__main__":
    directory, writer, way = sys.argv[1:]
    os.environ.setdefault("SMDEBUG_LOG_LEVEL", "error")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.makedirs(directory, exist_ok=True)
    writer = WRITERS[writer](directory)
    act = getattr(writer, way, None)
    if act is None:
        print("none")
    else:
        print(act() or writer.path)

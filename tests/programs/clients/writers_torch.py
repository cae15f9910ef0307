"""What torch itself writes: its own files, and distributed checkpoints."""

import json
import os
import signal
import tempfile
import time

from common import check
from writing import LIMIT, Stops, Writer, dies, limit_files, ready, values


class Torch(Writer):
    OPTIONS = {}
    MOST = 70_000

    def _state(self, turn=0):
        import torch

        return {name: torch.from_numpy(value) for name, value in values(turn).items()}

    def once(self):
        import torch

        torch.save(self._state(), self.path, **self.OPTIONS)

    def live(self):
        import torch

        with open(self.path, "wb") as file:
            torch.save(self._state(), file, **self.OPTIONS)
            file.flush()
            ready(self.path)

    def sharded(self):
        import torch

        parts = {}
        for number, (name, value) in enumerate(self._state().items(), 1):
            parts[name] = f"pytorch_model-{number:05}-of-00002.bin"
            torch.save({name: value}, os.path.join(self.directory, parts[name]), **self.OPTIONS)
        with open(os.path.join(self.directory, "pytorch_model.bin.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": parts}, file)
        return self.directory

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

    def _save(self, threads=2, turn=0):
        import torch.distributed.checkpoint as dcp

        state = Torch._state(self, turn)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(self.directory, thread_count=threads))
        return self.directory

    def sharded(self):
        return self._save()

    def appended(self):
        # Saved over.
        self._save()
        return self._save(turn=1)

    def live(self):
        import torch.distributed.checkpoint as dcp

        store = storage_that_waits(lambda: ready(self.directory))(self.directory, thread_count=2)
        dcp.async_save(Torch._state(self), storage_writer=store).result()

    def in_one_file(self):
        return self._save(threads=1)

    def killed(self):
        dies("in_one_file", 100_000)
        ready(self.directory)


def storage_that_waits(before_plan=lambda: None, before_data=lambda: None):
    """The library's own, but that something is done before the tensors are written, and before the plan is."""
    import torch.distributed.checkpoint as dcp

    class Storage(dcp.FileSystemWriter):
        def write_data(self, *arguments, **named):
            before_data()
            return super().write_data(*arguments, **named)

        def finish(self, *arguments, **named):
            before_plan()
            super().finish(*arguments, **named)

    return Storage


def torch_model():
    """A model of just these two tensors."""
    import torch

    model = torch.nn.Module()
    for name, value in values().items():
        setattr(model, name, torch.nn.Parameter(torch.from_numpy(value)))
    return model


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


class Ranks(Writer):
    """A model that two processes have halves of, saved by both."""

    def _shard(self, model):
        raise NotImplementedError

    def _rank(self, rank, elsewhere, way):
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{elsewhere}/meeting", rank=rank, world_size=2)
        state = get_model_state_dict(self._shard(torch_model()))
        if way == "live":
            storage = storage_that_waits(lambda: self._wait(elsewhere))(self.directory)
            dcp.async_save(state, storage_writer=storage).result()
        elif way == "killed":
            # Each has its part of the plan when the first of them dies.
            storage = storage_that_waits(before_data=dist.barrier)(self.directory)
            limit_files()
            dcp.save(state, storage_writer=storage)
        else:
            for _ in range(2 if way == "appended" else 1):
                dcp.save(state, checkpoint_id=self.directory)
        dist.destroy_process_group()

    def _wait(self, elsewhere):
        open(os.path.join(elsewhere, "written"), "w").close()
        wait_for(os.path.join(elsewhere, "go on"))

    def _ranks(self, way, meanwhile=lambda elsewhere: None):
        import torch.multiprocessing as mp

        with tempfile.TemporaryDirectory() as elsewhere:
            ranks = mp.spawn(self._rank, (elsewhere, way), 2, join=False)
            meanwhile(elsewhere)
            for process in ranks.processes:
                process.join()
            return [process.exitcode for process in ranks.processes]

    def sharded(self, way="sharded"):
        check(self._ranks(way) == [0, 0], "ranks")
        return self.directory

    def appended(self):
        # Saved over.
        return self.sharded("appended")

    def live(self):
        def meanwhile(elsewhere):
            wait_for(os.path.join(elsewhere, "written"))
            ready(self.directory)
            open(os.path.join(elsewhere, "go on"), "w").close()

        check(self._ranks("live", meanwhile) == [0, 0], "ranks")
        return self.directory

    def killed(self):
        os.environ[LIMIT] = str(40_000)
        check(self._ranks("killed") == [-signal.SIGXFSZ] * 2, "ranks")
        ready(self.directory)


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
    "torch.save": Torch,
    "torch.save, before 1.6": TorchLegacy,
    "torch's DCP": Distributed,
    "fully_shard, two ranks": FullyShard,
    "FSDP, two ranks": Fsdp,
}

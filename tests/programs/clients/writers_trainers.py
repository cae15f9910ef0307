"""What trainers and other libraries write that need gigabytes of packages."""

import os

from writing import ROWS, Writer, dies, ready, values


class Orbax(Writer):
    """Steps of a run."""

    def _steps(self, *steps, names=("weight", "bias"), **options):
        import orbax.checkpoint as ocp

        run = os.path.join(self.directory, "run")
        with ocp.CheckpointManager(run, options=ocp.CheckpointManagerOptions(**options)) as manager:
            for step in steps:
                params = {name: values(step)[name] for name in names}
                manager.save(step, args=ocp.args.StandardSave({"params": params}))
            manager.wait_until_finished()
        return run

    def sharded(self):
        return os.path.join(self._steps(1), "1")

    def appended(self):
        # Another step: the run is seen.
        return self._steps(1, 2)

    def live(self):
        from orbax.checkpoint._src.path import atomicity

        class Waits(atomicity.AtomicRenameTemporaryPath):
            """All of the step is written, on a thread, and it has yet to get its name."""

            async def finalize(self):
                if self.get_final().name == "1":
                    ready(str(self.get()))
                await super().finalize()

        self._steps(1, temporary_path_class=Waits)

    def one_tensor(self):
        self._steps(1, names=["weight"])

    def killed(self):
        # Two are written at a time, and nobody knows how far the other one has come.
        dies("one_tensor", 50_000)
        ready(os.path.join(self.directory, "run"))


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

    def killed(self):
        dies("once", 100_000)
        ready(self.path)


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

    def killed(self):
        dies("once", 100_000)
        ready(self.path)


class KerasWeights(Keras):
    name = "model.weights.h5"

    def _save(self, model):
        model.save_weights(self.path)

    def sharded(self):
        def save(model):
            # In GiB: one of the two is too much for a file.
            model.save_weights(os.path.join(self.directory, "model.weights.json"), max_shard_size=100_000 / 2**30)

        self._save = save
        self.once()
        return self.directory


class SavePretrained(Writer):
    """Hugging Face's models."""

    name = "model.safetensors"

    def _save(self, **options):
        import torch
        import transformers

        class Model(transformers.PreTrainedModel):
            config_class = transformers.PretrainedConfig

            def __init__(self, config):
                super().__init__(config)
                for name, value in values().items():
                    setattr(self, name, torch.nn.Parameter(torch.from_numpy(value)))

        Model(transformers.PretrainedConfig()).save_pretrained(self.directory, **options)

    def once(self):
        self._save()

    def killed(self):
        dies("once", 100_000)
        # It makes a file of another name, as long as it will be, before it writes.
        (name,) = [name for name in os.listdir(self.directory) if name != "config.json"]
        ready(os.path.join(self.directory, name))

    def sharded(self):
        self._save(max_shard_size=100_000)
        return self.directory


class SavePretrainedBin(SavePretrained):
    """As they were saved before safetensors."""

    name = "pytorch_model.bin"

    def _save(self, **options):
        super()._save(safe_serialization=False, **options)

    def killed(self):
        dies("once", 100_000)
        ready(self.path)


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

    def killed(self):
        dies("sharded", 100_000)
        ready(os.path.join(self.directory, "checkpoint-2"))


class Lightning(Writer):
    """What its ModelCheckpoint saves."""

    def _fit(self, shards=False, **options):
        import lightning
        import torch
        from lightning.pytorch.callbacks import ModelCheckpoint
        from torch.distributed.fsdp import fully_shard

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                for name, value in values().items():
                    setattr(self, name, torch.nn.Parameter(torch.from_numpy(value)))

            def configure_model(self):
                if shards:
                    fully_shard(self, mesh=self.device_mesh["data_parallel"])

            def forward(self, batch):
                return ((batch * self.weight + self.bias) ** 2).mean()

            def training_step(self, batch, _):
                return self(batch)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.01)

        saves = ModelCheckpoint(self.directory, filename="model")
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=1, callbacks=[saves], logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=self.directory, **options,
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(2, ROWS)))
        return saves.best_model_path

    def once(self):
        return self._fit()

    def sharded(self):
        from lightning.pytorch.strategies import ModelParallelStrategy

        # It runs this program once more, as the second rank.
        path = self._fit(shards=True, devices=2, strategy=ModelParallelStrategy())
        if os.environ.get("LOCAL_RANK", "0") != "0":
            os._exit(0)
        return path

    def killed(self):
        # What it saves is in a file of another name until it is whole, in TMPDIR.
        dies("once", 100_000, TMPDIR=self.directory)
        (path,) = [entry.path for entry in os.scandir(self.directory) if entry.is_file()]
        ready(path)


WRITERS = {
    "Orbax": Orbax,
    "torch.export.save": Exported,
    "Keras": Keras,
    "Keras, weights": KerasWeights,
    "save_pretrained": SavePretrained,
    "save_pretrained, before safetensors": SavePretrainedBin,
    "Trainer": Trainer,
    "Lightning": Lightning,
}

"""Checkpoints whose writer is killed at any moment: `tensorfs latest` names the newest that loads, and no other.

    checkpoints_client.py DIRECTORY safetensors|torch|trainer KILLS TENSORFS

A child saves one after the other, files, or directories as a trainer makes them with rotation and shards, until it is
killed. `trainer` is Hugging Face's own, which goes on each time from what `tensorfs latest` names."""

import contextlib
import glob
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
DIRECTORY, KIND, KILLS, TENSORFS = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
KEPT = 3
MOUNT = os.stat(DIRECTORY).st_dev
if KIND == "torch":
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

    torch.set_num_threads(1)
    SHARD, INDEX = "pytorch_model-{}-of-00002.bin", "pytorch_model.bin.index.json"

    def save_file(tensors, path):
        torch.save({name: torch.from_numpy(value) for name, value in tensors.items()}, path)

    def load_file(path):
        return {name: value.numpy() for name, value in torch.load(path, weights_only=True).items()}

elif KIND == "trainer":
    import torch
    import transformers
    from safetensors.numpy import load_file

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
else:
    from safetensors.numpy import load_file, save_file

if KIND != "torch":
    SHARD, INDEX = "model-{}-of-00002.safetensors", "model.safetensors.index.json"


def state(step, name):
    return {f"{name}.{n}": np.full((64, 4096), step, "f4") for n in range(2)}


def load_weights(step, path):
    found = load_file(path)
    want = state(step, "w")
    assert sorted(found) == sorted(want)
    for name, value in want.items():
        assert (found[name] == value).all(), name


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)


class Files:
    """A file for each step."""

    ending = "pt" if KIND == "torch" else "safetensors"

    def path(self, step):
        return os.path.join(DIRECTORY, "files", f"step-{step}.{self.ending}")

    def save(self, step):
        os.makedirs(os.path.dirname(self.path(step)), exist_ok=True)
        save_file(state(step, "w"), self.path(step))

    def load(self, step):
        self.load_weights(step)

    def load_weights(self, step):
        load_weights(step, self.path(step))

    def remove(self, path):
        os.unlink(path)


class Trainer:
    """Directories, in the order in which Hugging Face's Trainer writes what is in them."""

    def path(self, step):
        return os.path.join(DIRECTORY, "trainer", f"checkpoint-{step}")

    def save_weights(self, step):
        at = lambda name: os.path.join(self.path(step), name)  # noqa: E731
        shards = {part: SHARD.format(part) for part in ("00001", "00002")}
        for part, shard in shards.items():
            save_file(state(step, part), at(shard))
        names = {name: shard for part, shard in shards.items() for name in state(step, part)}
        write_json(at(INDEX), {"metadata": {}, "weight_map": names})

    def save(self, step):
        os.makedirs(self.path(step))
        self.save_weights(step)
        at = lambda name: os.path.join(self.path(step), name)  # noqa: E731
        if KIND == "torch":
            save_file(state(step, "w"), at("optimizer.pt"))
        else:
            with open(at("rng_state.npz"), "wb") as file:
                np.savez(file, **state(step, "w"))
        write_json(at("trainer_state.json"), {"global_step": step, "log_history": [{"loss": float("nan")}] * 200})

    def load_weights(self, step):
        at = lambda name: os.path.join(self.path(step), name)  # noqa: E731
        with open(at(INDEX)) as file:
            names = json.load(file)["weight_map"]
        for shard in set(names.values()):
            for name, value in load_file(at(shard)).items():
                assert names[name] == shard and (value == step).all(), name

    def load(self, step):
        at = lambda name: os.path.join(self.path(step), name)  # noqa: E731
        with open(at("trainer_state.json")) as file:
            assert json.load(file)["global_step"] == step
        self.load_weights(step)
        if KIND == "torch":
            load_weights(step, at("optimizer.pt"))
        else:
            with np.load(at("rng_state.npz")) as found:
                assert all((found[name] == step).all() for name in found.files)

    def remove(self, path):
        shutil.rmtree(path)


class Pretrained(Trainer):
    """Directories as `save_pretrained` makes them, called by their steps: nothing tells what they are before the index."""

    def path(self, step):
        return os.path.join(DIRECTORY, "pretrained", f"step-{step}")

    def save(self, step):
        os.makedirs(self.path(step))
        self.save_weights(step)

    def load(self, step):
        self.load_weights(step)


class Distributed:
    """Directories as torch's distributed checkpoint makes them."""

    def path(self, step):
        return os.path.join(DIRECTORY, "distributed", f"step-{step}")

    def tensors(self, step):
        return {name: torch.from_numpy(value) for name, value in state(step, "w").items()}

    def save(self, step):
        os.makedirs(self.path(step))
        writer = FileSystemWriter(self.path(step), single_file_per_rank=step % 2 == 0)
        dcp.save({"model": self.tensors(step), "step": step}, storage_writer=writer)

    def load(self, step):
        found = {"model": self.tensors(0), "step": 0}
        try:
            dcp.load(found, storage_reader=FileSystemReader(self.path(step)))
        except dcp.api.CheckpointException as why:  # which is no Exception
            raise ValueError from why
        assert found["step"] == step and all((value == step).all() for value in found["model"].values())

    def load_weights(self, step):
        self.load(step)

    def remove(self, path):
        shutil.rmtree(path)


class HuggingFace:
    """Hugging Face's Trainer, of a model whose weights are all the number of the step."""

    beside = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin")

    def path(self, step):
        return os.path.join(DIRECTORY, "run", f"checkpoint-{step}")

    def trainer(self, where, **options):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                for name in ("a", "b"):
                    setattr(self, name, torch.nn.Parameter(torch.zeros(64, 4096)))

            def forward(self, x):
                return {"loss": -self.a.sum() - self.b.sum()}

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 1 << 20

            def __getitem__(self, n):
                return {"x": torch.ones(1)}

        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        arguments = transformers.TrainingArguments(
            where, per_device_train_batch_size=1, use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no",
            max_grad_norm=0, ignore_data_skip=True, **options,
        )
        return transformers.Trainer(model, arguments, train_dataset=Data(), optimizers=(optimizer, schedule))

    def load_libraries(self):
        """Once for all children: it takes much longer than what they do."""
        with tempfile.TemporaryDirectory() as elsewhere, contextlib.redirect_stdout(io.StringIO()):
            self.trainer(elsewhere, max_steps=1, save_strategy="no").train()

    def save_on(self):
        where = os.path.dirname(self.path(0))
        said = subprocess.run([TENSORFS, "latest", where], capture_output=True, text=True)
        trainer = self.trainer(where, max_steps=1 << 18, save_steps=1, save_total_limit=KEPT)
        trainer.train(resume_from_checkpoint=said.stdout.strip() or None)

    def load_weights(self, step):
        found = load_file(os.path.join(self.path(step), "model.safetensors"))
        assert sorted(found) == ["a", "b"] and all((value == step).all() for value in found.values()), step

    def load(self, step):
        at = lambda name: os.path.join(self.path(step), name)  # noqa: E731
        self.load_weights(step)
        for name in self.beside:
            torch.load(at(name), weights_only=False)
        with open(at("trainer_state.json")) as file:
            assert json.load(file)["global_step"] == step


def steps(how):
    found = glob.glob(os.path.join(os.path.dirname(how.path(0)), "*"))
    number = lambda path: int("".join(c for c in os.path.basename(path).split(".")[0] if c.isdigit()))  # noqa: E731
    return sorted(((number(path), path) for path in found), reverse=True)


def save_on(how, step):
    while True:
        how.save(step)
        for _, path in steps(how)[KEPT:]:
            how.remove(path)
        step += 1


def loads(load, step):
    try:
        load(step)
        return True
    except Exception:  # whatever a library says of a partial file
        return False


def state_of(path):
    try:
        return os.getxattr(path, "user.tensorfs.complete").decode()
    except OSError:
        return None


def was_interrupted(path):
    paths = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names] or [path]
    return any(file_state(path) == "interrupted" for path in paths)


def file_state(path):
    state = "open"
    while state == "open":
        state = os.getxattr(path, "user.tensorfs.state").decode()
        time.sleep(0.01)
    return state


def wait_until_it_begins(how):
    """A trainer takes a while until it saves; by what it saves anew it is seen to."""
    when = lambda: [os.stat(path).st_mtime_ns for _, path in steps(how)]  # noqa: E731
    before, end = when(), time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if when() != before:
                return
        except FileNotFoundError:  # removed meanwhile
            return
        time.sleep(0.005)


def is_mounted():
    """Where somebody detaches the mount, as a test that takes too long is ended, all goes on in the directory below it:
    a saver finds no directory for its step, and files of early steps have no attributes of tensorfs'."""
    try:
        return os.stat(DIRECTORY).st_dev == MOUNT
    except OSError:
        return False


def main():
    seed = int(os.environ.get("TENSORFS_KILL_SEED", "1"))
    random.seed(seed)
    partial = interrupted = half_removed = 0
    if KIND == "trainer":
        HuggingFace().load_libraries()
    for kill in range(KILLS):
        ways = [Files(), Trainer(), Pretrained()] + ([Distributed()] if KIND == "torch" else [])
        ways = [HuggingFace()] if KIND == "trainer" else ways
        how = ways[kill % len(ways)]
        first = steps(how)[0][0] + 1 if steps(how) else 1
        child = os.fork()
        if child == 0:
            how.save_on() if KIND == "trainer" else save_on(how, first)
        if KIND == "trainer":
            wait_until_it_begins(how)
        time.sleep(random.uniform(0, 0.3 if KIND == "trainer" else 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert is_mounted(), f"after {kill} kills {DIRECTORY} is not on the mount any more: somebody has detached it"
        there = steps(how)
        # Who was killed before the close has not said that a file is all there, also if it is: those are passed by.
        loaded = [(step, path) for step, path in there if loads(how.load, step)]
        good = [(step, path) for step, path in loaded if not was_interrupted(path)]
        interrupted += len(loaded) - len(good)
        partial += len(there) - len(loaded)
        where = os.path.dirname(how.path(0))
        if not there:
            continue
        said = subprocess.run([TENSORFS, "latest", where], capture_output=True, text=True)
        expected = good[0][1] + "\n" if good else ""
        assert said.stdout == expected, (kill, said, expected, there)
        assert (said.returncode == 0) == bool(good) and len(said.stderr.splitlines()) == (not good), said
        # Any but the newest may be half removed: a Trainer removes the oldest by times that removing itself changes. What
        # nothing names, such as an optimizer's state, may be gone then, but no weights.
        for step, path in there:
            complete = state_of(path) == "complete"
            if complete and (step, path) not in good:
                assert (step, path) != there[0] and loads(how.load_weights, step), (kill, path, os.listdir(path))
                half_removed += 1
            assert complete or (step, path) not in good, (kill, path, state_of(path))
        if kill % 3 == 2:
            # What takes the newest that is there takes a whole one then; and without one nothing is touched.
            done = subprocess.run([TENSORFS, "rollback", where], capture_output=True, text=True)
            left = steps(how)
            assert (done.returncode == 0) == bool(good), (kill, done)
            assert left[0] == good[0] if good else left == there, (kill, done, left, there)
            assert all(one in left for one in good), (kill, done, left)
    print(f"{KILLS} kills, {partial} partial checkpoints, {half_removed} of them complete but for what nothing names, "
          f"and {interrupted} that load and were passed by, as their writer was killed before its close")


main()

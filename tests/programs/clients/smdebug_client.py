"""smdebug, unmodified: FileWriter, a hook, create_trial, and a reader that follows the writer.

Runs without any training framework: the hook is a subclass of smdebug's own CallbackHook, driven
as its XGBoost hook drives it, with NumPy arrays for tensors.
"""

import base64
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import warnings

warnings.filterwarnings("ignore")  # NumPy about tostring()
os.environ.setdefault("SMDEBUG_LOG_LEVEL", "error")
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")  # boto3 is imported, never used

import numpy as np  # noqa: E402
from smdebug.core.collection import CollectionKeys  # noqa: E402
from smdebug.core.collection_manager import CollectionManager  # noqa: E402
from smdebug.core.access_layer.utils import training_has_ended  # noqa: E402
from smdebug.core.hook import CallbackHook  # noqa: E402
from smdebug.core.modes import ModeKeys  # noqa: E402
from smdebug.core.reduction_config import ReductionConfig  # noqa: E402
from smdebug.core.reductions import get_numpy_reduction  # noqa: E402
from smdebug.core.save_config import SaveConfig  # noqa: E402
from smdebug.core.utils import FRAMEWORK, make_numpy_array  # noqa: E402
from smdebug.core.writer import FileWriter  # noqa: E402
from smdebug.profiler.profiler_config_parser import get_profiler_config_parser  # noqa: E402
from smdebug.trials import create_trial  # noqa: E402

from common import array, check, crc32c, main, masked, same, tfrecords  # noqa: E402

VERSION = "1.0.34"
STEPS = 50
STRIDE = 41  # 50 steps over three index directories, which hold 1000 steps each
CONSTANT_FOOTER = masked(crc32c(b"0x12345678"))
# Every type smdebug can both write and read. It reads int8 back as uint8 (its own table says so).
DTYPES = {"f2": "f2", "f4": "f4", "f8": "f8", "i1": "u1", "i4": "i4", "i8": "i8", "u1": "u1",
          "c16": "c16", "?": "?"}  # fmt: skip


def unmodified():
    """The installed smdebug is, file by file, what its wheel's RECORD lists."""
    distribution = importlib.metadata.distribution("smdebug")
    check(distribution.version == VERSION, "smdebug is", distribution.version)
    checked = 0
    for file in distribution.files:
        if file.hash is None:
            continue
        digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
        value = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        check(value == file.hash.value, file, "is not the wheel's")
        checked += file.name.endswith(".py")
    check(checked > 100, "only", checked, "modules in RECORD")


def tensors(writer, step):
    """What `writer` ("file" or "hook") saves at a step: {name: (array, as it is read back)}."""
    out = {}
    for dtype, back in DTYPES.items():
        name = f"{writer}/layer.{dtype.replace('?', 'bool')}"
        value = array(f"{name}{step}", (5, step % 7 + 1), dtype)
        out[name] = (value, value.view(back))
    large = array(f"{writer}large{step}", (160, 160), "f4")
    out[f"{writer}/large"] = (large, large)
    return out


def write_step(directory, step, worker="worker_0"):
    with FileWriter(trial_dir=directory, step=step, worker=worker) as writer:
        for name, (value, _) in tensors("file", step).items():
            writer.write_tensor(tdata=value, tname=name)
        writer.write_tensor(tdata=np.array([f"s{step}", "näme"]), tname="file/strings")


def steps():
    return [n * STRIDE for n in range(STEPS)]


def with_file_writer(directory):
    """50 steps by FileWriter, while another process reads each as soon as it is there."""
    follower = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), directory, "follow"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    collections = CollectionManager()
    collections.get(CollectionKeys.DEFAULT).include("file/.*")
    collections.set_num_workers(1)
    collections.export(directory, "worker_0_collections.json")
    for n, step in enumerate(steps()):
        write_step(directory, step)
        if n % 5 == 4:
            # The reader goes on reading older steps meanwhile; it must get to this one.
            print(step, file=follower.stdin, flush=True)
            answer = follower.stdout.readline()
            check(answer == f"{step}\n", "the following reader says", repr(answer))
    training_has_ended(directory)
    follower.stdin.close()
    check(follower.wait() == 0, "the following reader failed")


def follow(directory):
    """Reads every step of a trial that is being written, until its writer is done."""
    trial = create_trial(directory)
    seen = set()
    for line in sys.stdin:
        target = int(line)
        while target not in seen:
            for step in trial.steps():
                if step not in seen:
                    read_step(trial, step)
                    seen.add(step)
        print(target, flush=True)
    check(seen == set(steps()), "the following reader saw", sorted(seen))
    os._exit(0)  # without main()'s last line


def read_step(trial, step):
    want = tensors("file", step)
    names = set(trial.tensor_names(step=step))
    check(names == {*want, "file/strings"}, "tensors at", step, names)
    for name, (_, back) in want.items():
        same(trial.tensor(name).value(step), back, f"{name} at {step}")
    strings = list(trial.tensor("file/strings").value(step))
    check(strings == [f"s{step}", "näme"], strings)


class Hook(CallbackHook):
    """The smallest hook: smdebug's base class, told what its framework subclasses tell it."""

    def __init__(self, out_dir):
        collections = CollectionManager()
        collections.get("weights").include("hook/.*")
        super().__init__(
            collection_manager=collections,
            default_include_collections=["weights", "losses"],
            profiler_config_parser=get_profiler_config_parser(FRAMEWORK.XGBOOST),
            data_type_name="ndarray",
            out_dir=out_dir,
            export_tensorboard=True,
            save_config=SaveConfig(save_interval=1),
            reduction_config=ReductionConfig(reductions=["max"], save_raw_tensor=True),
        )
        collections.get("losses").include("loss")
        self.worker = self._get_worker_name()

    def _get_num_workers(self):
        return 1

    def _get_worker_name(self):
        return "worker_0"

    def _get_default_collections(self):
        return ["weights", "losses", "default", "all"]

    def _is_not_supported(self):
        return False

    def _export_model(self):
        pass

    @staticmethod
    def _get_reduction_of_data(reduction_name, tensor_value, tensor_name, abs):
        return get_numpy_reduction(reduction_name, tensor_value, abs)

    @staticmethod
    def _make_numpy_array(tensor_value):
        return make_numpy_array(tensor_value)

    def after_step(self, mode, values, loss):
        if not self.prepared_collections:
            self._prepare_collections()
        self.set_mode(mode)
        self._increment_step()
        if self.last_saved_step is not None and not self.exported_collections:
            self.export_collections()
            self.exported_collections = True
        self._initialize_writers()
        for name, value in values.items():
            self._save_for_tensor(name, value)
        self._save_for_tensor("loss", loss)
        self.save_scalar("learning_rate", 1.0 / (self.step + 1))
        self.last_saved_step = self.step
        self._close_writers()


def mode_of(n):
    return ModeKeys.EVAL if n % 5 == 4 else ModeKeys.TRAIN


def hook_values(n):
    """What the hook is given at its n-th step; finite numbers, for histograms and maxima."""
    values = {name: value for name, (value, _) in tensors("hook", n).items()}
    for name, value in values.items():
        if value.dtype.kind in "fc":
            values[name] = (np.arange(value.size, dtype="f4") - n).astype(value.dtype)
            values[name] = values[name].reshape(value.shape)
    return values


def loss_of(n):
    return np.array([100.0 / (n + 1)], "f4")


def with_hook(directory):
    hook = Hook(directory)
    for n in range(STEPS):
        hook.after_step(mode_of(n), hook_values(n), loss_of(n))
    hook.close()


def write(directory):
    unmodified()
    with_file_writer(os.path.join(directory, "file"))
    with_hook(os.path.join(directory, "hook"))
    verify(directory)


def verify(directory):
    unmodified()
    verify_file_writer(os.path.join(directory, "file"))
    verify_hook(os.path.join(directory, "hook"))


def no_leftovers(directory):
    for path, _, files in os.walk(directory):
        for name in files:
            check(not name.endswith((".tmp", "claim.smd")), "left over:", path, name)


def verify_file_writer(directory):
    no_leftovers(directory)
    trial = create_trial(directory)
    check(trial.steps() == steps(), "steps:", trial.steps())
    for step in steps():
        read_step(trial, step)
        path = os.path.join(directory, "events", f"{step:012}", f"{step:012}_worker_0.tfevents")
        frames = tfrecords(path)
        check(len(frames) == len(DTYPES) + 2, path, "has", len(frames), "frames")
        check(all(footer == CONSTANT_FOOTER for _, footer in frames), path, "footers")


def verify_hook(directory):
    no_leftovers(directory)
    trial = create_trial(directory)
    counts = {ModeKeys.TRAIN: 0, ModeKeys.EVAL: 0}
    for n in range(STEPS):
        mode = mode_of(n)
        mode_step, counts[mode] = counts[mode], counts[mode] + 1
        for name, value in {**hook_values(n), "loss": loss_of(n)}.items():
            back = value.view("u1") if value.dtype == "i1" else value
            tensor = trial.tensor(name)
            same(tensor.value(mode_step, mode=mode), back, f"{name} at {n}")
            if name != "loss":
                got = tensor.reduction_value(mode_step, "max", mode=mode)
                check(got == np.amax(value).view(back.dtype), name, "max at", n, "is", got)
        rate = trial.tensor("scalar/learning_rate").value(mode_step, mode=mode)
        check(rate == 1.0 / (n + 1), "learning rate at", n, "is", rate)
    check(trial.steps() == list(range(STEPS)), "steps:", trial.steps())
    for mode, count in counts.items():
        check(trial.steps(mode) == list(range(count)), mode, trial.steps(mode))
    # The hook's TensorBoard files carry true checksums.
    summaries = 0
    for path, _, files in os.walk(os.path.join(directory, "tensorboard")):
        for name in files:
            for payload, footer in tfrecords(os.path.join(path, name)):
                check(footer == masked(crc32c(payload)), path, name, "bad checksum")
                summaries += 1
    check(summaries > STEPS, "only", summaries, "summaries")


if __name__ == "__main__":
    main(write, verify, follow=follow)

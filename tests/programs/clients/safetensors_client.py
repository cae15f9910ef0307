"""safetensors: save_file, load_file, safe_open (a mapping), slices, saving over an open file."""

import os

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load, load_file, save, save_file

from common import array, check, main, same

DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


def tensors(round_):
    """A checkpoint: every dtype, an empty tensor, a scalar, and one that takes many pages."""
    out = {f"layer.{d.replace('?', 'bool')}": array(f"{d}{round_}", (33, 7), d) for d in DTYPES}
    out["empty"] = np.zeros((0, 5), "f4")
    out["scalar"] = np.asarray(round_, "i8")
    out["large.weight"] = array(f"large{round_}", (1024, 1500), "f4")
    return out


def equal(got, want, what):
    check(sorted(got) == sorted(want), what, sorted(got))
    for name, value in want.items():
        same(got[name], value, f"{what} {name}")


def write(directory):
    at = lambda name: os.path.join(directory, name)  # noqa: E731
    save_file(tensors(1), at("model.safetensors"), metadata={"format": "np", "round": "1"})
    equal(load_file(at("model.safetensors")), tensors(1), "load_file")

    # A reader keeps the file it opened while the next checkpoint takes its name.
    with safe_open(at("model.safetensors"), "np") as reader:
        save_file(tensors(2), at("model.safetensors"), metadata={"format": "np", "round": "2"})
        check(reader.metadata()["round"] == "1", "the open file became another one")
        equal({n: reader.get_tensor(n) for n in reader.keys()}, tensors(1), "the open file")

    # Through ordinary buffered I/O.
    with open(at("bytes.safetensors"), "wb") as file:
        file.write(save(tensors(3)))
    for n in range(10):
        save_file({"step": np.asarray([n])}, at(f"step-{n:04}.safetensors"))
    verify(directory)


def verify(directory):
    at = lambda name: os.path.join(directory, name)  # noqa: E731
    want = tensors(2)
    equal(load_file(at("model.safetensors")), want, "load_file")
    with safe_open(at("model.safetensors"), "np") as reader:
        check(reader.metadata() == {"format": "np", "round": "2"}, reader.metadata())
        for name, value in want.items():
            same(reader.get_tensor(name), value, name)
        rows = reader.get_slice("large.weight")
        check(tuple(rows.get_shape()) == (1024, 1500), rows.get_shape())
        same(rows[100:107, 5:900], want["large.weight"][100:107, 5:900], "a slice")
    with open(at("bytes.safetensors"), "rb") as file:
        equal(load(file.read()), tensors(3), "load")
    for n in range(10):
        equal(
            load_file(at(f"step-{n:04}.safetensors")), {"step": np.asarray([n])}, f"step {n}"
        )


if __name__ == "__main__":
    main(write, verify)

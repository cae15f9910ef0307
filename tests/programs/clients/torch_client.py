"""PyTorch: torch.save, torch.load with and without a mapping, from_file(shared=True).

(Large: needs torch >= 2.1, which has `torch.load(mmap=True)`.)
"""

import os

import torch

from common import check, in_another_process, main

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]  # fmt: skip
SHARED = 300_000


def state(round_):
    """A checkpoint, the same in every process."""
    generator = torch.Generator().manual_seed(round_)
    out = {"step": round_}
    for dtype in DTYPES:
        value = torch.randint(0, 2**7, (37, 11), generator=generator)
        out[str(dtype)] = value.to(dtype)
    out["large"] = torch.randn(700, 900, generator=generator)
    out["view"] = out["large"][100:200, ::3]
    return out


def equal(got, want, what):
    check(sorted(got) == sorted(want), what, sorted(got))
    for name, value in want.items():
        if isinstance(value, torch.Tensor):
            check(got[name].dtype == value.dtype, what, name, "dtype")
            check(torch.equal(got[name], value), what, name, "differs")
        else:
            check(got[name] == value, what, name)


def load(path, **options):
    return torch.load(path, weights_only=True, **options)


def write(directory):
    at = lambda name: os.path.join(directory, name)  # noqa: E731
    torch.save(state(1), at("model.pt"))
    equal(load(at("model.pt")), state(1), "load")
    mapped = load(at("model.pt"), mmap=True)
    equal(mapped, state(1), "load, mapped")
    mapped["large"].zero_()  # the mapping is private
    equal(load(at("model.pt"), mmap=True), state(1), "load after a store through a mapping")

    # Saved over, in place, under the same name.
    for round_ in (2, 3):
        torch.save(state(round_), at("again.pt"))
        equal(load(at("again.pt"), mmap=True), state(round_), "saved over")
    torch.save(state(4), at("legacy.pt"), _use_new_zipfile_serialization=False)

    # Shared storage: a store through one mapping is seen by another process at once.
    shared = torch.from_file(at("shared.bin"), shared=True, size=SHARED, dtype=torch.int64)
    shared.copy_(torch.arange(SHARED))
    in_another_process(directory, "negate")
    check(torch.equal(shared, -torch.arange(SHARED)), "the other process's stores")
    verify(directory)


def negate(directory):
    shared = torch.from_file(
        os.path.join(directory, "shared.bin"), shared=True, size=SHARED, dtype=torch.int64
    )
    check(torch.equal(shared, torch.arange(SHARED)), "the first process's stores")
    shared.neg_()


def verify(directory):
    at = lambda name: os.path.join(directory, name)  # noqa: E731
    for name, round_ in (("model.pt", 1), ("again.pt", 3)):
        equal(load(at(name)), state(round_), name)
        equal(load(at(name), mmap=True), state(round_), name)
    equal(load(at("legacy.pt")), state(4), "legacy.pt")
    shared = torch.from_file(at("shared.bin"), shared=False, size=SHARED, dtype=torch.int64)
    check(torch.equal(shared, -torch.arange(SHARED)), "shared.bin")


if __name__ == "__main__":
    main(write, verify, negate=negate)

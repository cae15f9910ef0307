"""PyTorch tensors on a shelf: `write` puts them there, `verify` finds them in a new process."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../examples/shelf"))

import numpy as np
import torch
from shelf import shelf

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]

EIGHT_BITS = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]


def write(directory):
    s = shelf(directory, force_new=True)
    for dtype in TYPES:
        s[f"t_{str(dtype)[6:]}"] = torch.arange(6).reshape(2, 3).to(dtype)
    for dtype in EIGHT_BITS:
        s[f"t_{str(dtype)[6:]}"] = torch.arange(6.0).reshape(2, 3).to(dtype)
    s.weight = torch.nn.Parameter(torch.zeros(4, 4))
    s.weight[1, 2] = 5
    s.weight += 1
    s.array = np.arange(10, dtype=np.float32)
    torch.from_numpy(s.array)[3] = 30
    assert s.array[3] == 30, "one memory"
    s.sync()


def verify(directory):
    s = shelf(directory)
    for dtype in TYPES:
        tensor = s[f"t_{str(dtype)[6:]}"]
        assert tensor.dtype == dtype and torch.equal(tensor, torch.arange(6).reshape(2, 3).to(dtype)), dtype
    for dtype in EIGHT_BITS:
        tensor = s[f"t_{str(dtype)[6:]}"]
        expected = torch.arange(6.0).reshape(2, 3).to(dtype)
        assert tensor.dtype == dtype and torch.equal(tensor.view(torch.uint8), expected.view(torch.uint8)), dtype
    expected = torch.ones(4, 4)
    expected[1, 2] = 6
    assert torch.equal(s.weight, expected)
    assert s.array[3] == 30 and isinstance(s.array, np.ndarray)


if __name__ == "__main__":
    {"write": write, "verify": verify}[sys.argv[2]](sys.argv[1])

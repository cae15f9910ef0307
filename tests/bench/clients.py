"""One save or load of a large checkpoint by an unmodified library; prints the seconds of the call alone.

    clients.py LIBRARY ACTION PATH BYTES
    clients.py smdebug steps DIRECTORY STEPS

LIBRARY is numpy, safetensors or torch; ACTION is save, load or map. A checkpoint has tensors of 16 MiB
(NumPy: one array). What is loaded is summed, so that every page is touched.
"""

import sys
import time


def numpy_client():
    import numpy as np

    return (
        lambda size: np.ones(size // 4, dtype=np.float32),
        lambda array, path: np.save(path, array),
        lambda path: np.load(path).sum(),
        lambda path: np.load(path, mmap_mode="r").sum(),
    )


def safetensors_client():
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    def mapped(path):
        with safe_open(path, framework="np") as file:
            return sum(float(file.get_tensor(name).sum()) for name in file.keys())

    return (
        lambda size: {name: np.ones(count, dtype=np.float32) for name, count in tensors(size)},
        save_file,
        lambda path: sum(float(array.sum()) for array in load_file(path).values()),
        mapped,
    )


def torch_client():
    import torch

    torch.set_num_threads(1)
    load = lambda path, **how: sum(float(tensor.sum()) for tensor in torch.load(path, **how).values())
    return (
        lambda size: {name: torch.ones(count) for name, count in tensors(size)},
        torch.save,
        load,
        lambda path: load(path, mmap=True),
    )


def smdebug_steps(directory, size):
    """The median seconds of a step of smdebug's own FileWriter: 10 tensors of 64 KiB."""
    import os
    import statistics

    os.environ.setdefault("SMDEBUG_LOG_LEVEL", "error")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")  # for boto3, which is imported and not used
    import numpy as np
    from smdebug.core.writer import FileWriter

    array = np.ones(16384, dtype=np.float32)
    times = []
    for step in range(size):
        start = time.perf_counter()
        with FileWriter(trial_dir=directory, step=step, worker="worker_0") as writer:
            for n in range(10):
                writer.write_tensor(tdata=array, tname=f"layer_{n}/weight")
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def tensors(size, piece=16 << 20):
    return [(f"layers.{n}.weight", min(piece, size) // 4) for n in range(max(size // piece, 1))]


def main():
    library, action, path, size = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if library == "smdebug":
        print(smdebug_steps(path, size))
        return
    make, save, load, mapped = globals()[library + "_client"]()
    if action == "save":
        checkpoint = make(size)
        start = time.perf_counter()
        save(checkpoint, path)
    else:
        start = time.perf_counter()
        total = (load if action == "load" else mapped)(path)
        assert total == size // 4, total
    print(time.perf_counter() - start)


main()

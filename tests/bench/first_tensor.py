#!/usr/bin/env python3
"""How long the first tensor of a large file takes after `mount --from`, with the rest of the file in the remote.

Usage: first_tensor.py PROGRAM DIRECTORY [GIB [TIMES]], as root. A file of 64 MiB tensors of noise is made, sealed and
carried to file://DIRECTORY/remote, if that is not there yet. Then the pool is made and mounted anew each time, and one
tensor is read: the header of the file, its first MiB, and all of it; then another one as .npy. Prints seconds from the
beginning of `mount`, and for the second tensor from when it is opened.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import time

SIZE = 64 << 20


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def make(program, directory, tensors):
    pool, at = f"{directory}/pool", f"{directory}/at"
    run(program, "create", pool)
    run(program, "mount", pool, at)
    spans = {f"t{n}": {"dtype": "U8", "shape": [SIZE], "data_offsets": [n * SIZE, (n + 1) * SIZE]} for n in range(tensors)}
    header = json.dumps(spans).encode()
    noise = os.urandom((1 << 20) - 16)
    with open(f"{at}/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for tensor in range(tensors):
            for mib in range(64):
                file.write(struct.pack("<QQ", tensor, mib) + noise)
    run(program, "seal", at)
    run(program, "umount", at)
    run(program, "remote", "set", pool, f"file://{directory}/remote")
    run(program, "remote", "carry", pool)
    shutil.rmtree(pool)


def read(file, at, length):
    parts = []
    while length > 0:
        parts.append(os.pread(file, min(length, 1 << 20), at))
        at, length = at + len(parts[-1]), length - len(parts[-1])
    return b"".join(parts)


def first(program, directory, wanted, other):
    pool, at = f"{directory}/made", f"{directory}/at"
    begun = time.time()
    run(program, "mount", "--from", f"file://{directory}/remote", pool, at)
    times = [time.time() - begun]
    file = os.open(f"{at}/model.safetensors", os.O_RDONLY)
    (length,) = struct.unpack("<Q", read(file, 0, 8))
    start = 8 + length + json.loads(read(file, 8, length))[f"t{wanted}"]["data_offsets"][0]
    times.append(time.time() - begun)
    assert struct.unpack("<QQ", read(file, start, 1 << 20)[:16]) == (wanted, 0)
    times.append(time.time() - begun)
    whole = read(file, start, SIZE)
    times.append(time.time() - begun)
    assert all(struct.unpack("<QQ", whole[mib << 20:][:16]) == (wanted, mib) for mib in range(64))
    begun = time.time()
    with open(f"{at}/.tensorfs/tensors/model.safetensors/t{other}.npy", "rb") as tensor:
        assert struct.unpack("<QQ", tensor.read()[-SIZE:][:16]) == (other, 0)
    times.append(time.time() - begun)
    os.close(file)
    run(program, "umount", at)
    shutil.rmtree(pool)
    return times


def main():
    program, directory = sys.argv[1:3]
    tensors = int(sys.argv[3] if len(sys.argv) > 3 else 10) * 16
    os.makedirs(f"{directory}/at", exist_ok=True)
    if not os.path.exists(f"{directory}/remote"):
        make(program, directory, tensors)
    print("mounted, header, first MiB, 64 MiB; another as .npy")
    for turn in range(int(sys.argv[4] if len(sys.argv) > 4 else 3)):
        print(" ".join(f"{took:.2f}" for took in first(program, directory, tensors // 2 + turn, tensors // 4 + turn)))


main()

"""What every client shares: arguments, checks, data that both runs can work out, CRC-32C.

A client is a program `client.py DIR write|verify|all`: `write` makes its files below DIR with an
unmodified library and checks them on the spot; `verify` reads them again, for instance after the
filesystem was unmounted and mounted, and compares every byte with what `write` must have written.
It works on any directory, so that what it expects can be tried out on a plain one.
"""

import os
import struct
import subprocess
import sys
import zlib

import numpy as np

SEED = 20240917


def check(condition, *message):
    """An assertion that `python -O` does not remove."""
    if not condition:
        raise AssertionError(" ".join(str(m) for m in message) or "check failed")


def refuses(kind, action):
    """The text of the exception that the action must end with."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def same(got, want, what):
    """Equal dtype, shape and bits (so that NaNs and -0.0 count)."""
    got, want = np.asarray(got), np.asarray(want)
    check(got.dtype == want.dtype, what, "dtype", got.dtype, "is not", want.dtype)
    check(got.shape == want.shape, what, "shape", got.shape, "is not", want.shape)
    check(got.tobytes() == want.tobytes(), what, "differs in its bits")


def array(name, shape, dtype):
    """The array called `name`: random bits, the same in every process."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == np.bool_:
        return rng.integers(0, 2, size=shape).astype(np.bool_)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype=dtype).reshape(shape).copy()


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_TABLE = _crc_table()


def crc32c(data):
    """CRC-32C of `data`, slow and obvious."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(crc):
    """The mask TFRecord puts on its checksums."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecords(path, partial=False):
    """The (payload, footer) pairs of a TFRecord file; fails unless the framing is whole.

    `partial` allows the last frame to be unfinished: its writer is still at it.
    """
    with open(path, "rb") as file:
        data = file.read()
    frames, at = [], 0
    while at < len(data):
        if partial and len(data) - at < 12:
            break
        check(len(data) - at >= 12, path, "ends inside a frame at", at)
        (length,) = struct.unpack_from("<Q", data, at)
        (header,) = struct.unpack_from("<I", data, at + 8)
        check(header == masked(crc32c(data[at : at + 8])), path, "bad length checksum at", at)
        if partial and at + 16 + length > len(data):
            break
        check(at + 16 + length <= len(data), path, "ends inside a frame at", at)
        payload = data[at + 12 : at + 12 + length]
        (footer,) = struct.unpack_from("<I", data, at + 12 + length)
        frames.append((payload, footer))
        at += 16 + length
    return frames


def in_another_process(*arguments):
    """Runs this client again as a process of its own; fails if it fails."""
    subprocess.run([sys.executable, os.path.abspath(sys.argv[0]), *arguments], check=True)


def main(write, verify, **others):
    """The command line of a client."""
    actions = {"write": write, "verify": verify, **others}
    if len(sys.argv) < 3 or sys.argv[2] not in (*actions, "all"):
        sys.exit(f"usage: {sys.argv[0]} DIR {'|'.join([*actions, 'all'])}")
    directory = os.path.abspath(sys.argv[1])
    os.makedirs(directory, exist_ok=True)
    if sys.argv[2] == "all":
        write(directory)
        in_another_process(directory, "verify")
    else:
        actions[sys.argv[2]](directory, *sys.argv[3:])
    print(f"{os.path.basename(sys.argv[0])} {sys.argv[2]}: ok")

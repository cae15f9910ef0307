#!/usr/bin/env python3
"""Appends to a sealed file: appends.py PROGRAM MIB-BEFORE APPENDS, in the directory in which it is called.

First the same in a file beside the pool, of the bare filesystem."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time


def fill(path, piece, before):
    with open(path, "wb") as file:
        for _ in range(before):
            file.write(piece)
        os.fsync(file.fileno())


def append(path, piece, appends, in_the_middle):
    """How long it takes, without what is done in the middle."""
    seconds = 0.0
    with open(path, "ab", buffering=0) as file:
        for number in range(appends):
            begun = time.monotonic()
            file.write(piece)
            os.fsync(file.fileno())
            seconds += time.monotonic() - begun
            if number == appends // 2:
                in_the_middle()
    return seconds


def main():
    program, before, appends = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    place = tempfile.mkdtemp(dir=".")
    pool, mount = os.path.join(place, "pool"), os.path.join(place, "mnt")
    os.mkdir(mount)

    def run(*arguments):
        return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout

    piece = os.urandom(1 << 20)
    try:
        bare = os.path.join(place, "bare")
        fill(bare, piece, before)
        print(f"the bare filesystem: {append(bare, piece, appends, lambda: None):.2f} s", flush=True)
        os.remove(bare)
        run("create", pool)
        run("mount", pool, mount)
        path = os.path.join(mount, "f")
        fill(path, piece, before)
        run("seal", path)
        server = json.loads(run("info", "--json", mount))["pid"]

        def read_by_server():
            with open(f"/proc/{server}/io") as lines:
                return int(next(line for line in lines if line.startswith("rchar")).split()[1])

        verdict = []

        def verify():
            verdict.append(subprocess.run([program, "verify", path], capture_output=True, text=True).stdout)

        at_first = read_by_server()
        seconds = append(path, piece, appends, verify)
        appended = read_by_server()
        run("seal", path)
        sealed = read_by_server()
        print(f"{seconds:.2f} s; read {appended - at_first >> 20} MiB, and {sealed - appended >> 20} MiB to seal it")
        print(f"{os.getxattr(path, 'user.tensorfs.records').decode()} records; in the middle: {verdict[0]}")
    finally:
        subprocess.run([program, "umount", mount], check=False)
        shutil.rmtree(place)


main()

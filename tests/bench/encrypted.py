#!/usr/bin/env python3
"""What encrypting the second copy costs.

    encrypted.py PROGRAM POOLS REMOTES [MIB] [ROUNDS]     (root; PROGRAM is tensorfs, with tensorfs-carrier beside it)

A pool in POOLS gets MIB (1024) of files of 64 MiB of noise, is sealed and closed; in each of ROUNDS (3) it is carried to
a new remote in REMOTES, which is then checked and restored: in turn without a key, and with one. Put the directories
on a tmpfs to see what the processor does, and on a disk to see what there is of it there.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM, POOLS, REMOTES = sys.argv[1:4]
MIB, ROUNDS = (int(one) for one in (sys.argv[4:] + ["1024", "3"][len(sys.argv) - 4:]))
PART = 64


def tensorfs(*arguments):
    subprocess.run([PROGRAM, *arguments], check=True, stdout=subprocess.DEVNULL)


def timed(*arguments):
    """Seconds, and seconds of a processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    tensorfs(*arguments)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make(pool, mount):
    tensorfs("create", pool)
    os.mkdir(mount)
    tensorfs("mount", pool, mount)
    try:
        for number in range(MIB // PART):
            with open(f"{mount}/{number}", "wb") as file:
                file.write(os.urandom(PART << 20))
        tensorfs("sync", mount)
        tensorfs("seal", mount)
    finally:
        tensorfs("umount", mount)


def one_round(pool, key, base):
    remote, restored = f"{base}/remote", f"{os.path.dirname(pool)}/restored"
    url, more = f"file://{remote}", ["--key-file", key] if key else []
    tensorfs("remote", "set", pool, url, *more)
    os.sync()
    times = {"carry": timed("remote", "carry", pool)}
    times["check --data"] = timed("remote", "check", "--data", url, *more)
    os.sync()
    times["restore"] = timed("remote", "restore", url, restored, *more)
    tensorfs("remote", "off", pool)
    shutil.rmtree(remote)
    shutil.rmtree(restored)
    return times


def main():
    pools, base = tempfile.mkdtemp(dir=POOLS), tempfile.mkdtemp(dir=REMOTES)
    try:
        pool, key = f"{pools}/pool", f"{pools}/key"
        make(pool, f"{pools}/mount")
        tensorfs("remote", "key", key)
        rounds = [{name: one_round(pool, key if name == "with" else None, base) for name in ("without", "with")}
                  for _ in range(ROUNDS)]
    finally:
        shutil.rmtree(pools)
        shutil.rmtree(base)
    for what in ("carry", "check --data", "restore"):
        median = lambda name, at: statistics.median(one[name][what][at] for one in rounds)
        row = {"what": what, "mib": MIB, "rounds": ROUNDS}
        for at, unit in enumerate(("seconds", "processor")):
            for name in ("without", "with"):
                row[f"{name}_{unit}"] = round(median(name, at), 2)
            ratios = [one["with"][what][at] / one["without"][what][at] for one in rounds]
            row[f"ratio_{unit}"] = round(statistics.median(ratios), 2)
        print(json.dumps(row))


if __name__ == "__main__":
    main()

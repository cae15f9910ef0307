#!/usr/bin/env python3
"""What was slow once, beside ext4: cuts, holes, links, short appends, small files, SQLite, a stat after a rename.

    beside_ext4.py PROGRAM DIRECTORY [ROW...]      (root; DIRECTORY gets an image of 3 GiB, which is mounted)

ext4 with a journal on a loop device has the pools and a bare directory; each does the same in turn, in changing order.
"""

import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import threading
import time

PROGRAM, BASE, ROWS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
ROUNDS = int(os.environ.get("ROUNDS", "5"))
WRITE = os.O_CREAT | os.O_WRONLY


def run(*line):
    subprocess.run(line, check=True, capture_output=True)


def timed(act):
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def full(path, size):
    with open(path, "wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())


def punches(directory):
    """12,800 holes in a file that is committed, and one fsync."""
    path = f"{directory}/holes"
    full(path, 100 << 20)
    fd = os.open(path, os.O_RDWR)
    fallocate = lambda n: LIBC.fallocate(fd, 3, n * 8192, 4096)

    def act():
        for n in range(12_800):
            assert fallocate(n) == 0
        os.fsync(fd)

    took = timed(act)
    os.close(fd)
    return took * 1e6 / 12_800


def cuts(directory):
    """200 cuts of a file that is committed and open."""
    path = f"{directory}/cut"
    full(path, 10 << 20)
    with open(path, "r+b") as file:
        return timed(lambda: [os.ftruncate(file.fileno(), (10 << 20) - n * 8192) for n in range(200)]) * 1e6 / 200


def sealed_cuts(directory):
    """Files that are sealed, each cut once."""
    paths = [f"{directory}/sealed{n}" for n in range(50)]
    for path in paths:
        full(path, 100_000)
    if not directory.startswith(f"{BASE}/host"):
        run(PROGRAM, "seal", *paths)
    return timed(lambda: [os.truncate(path, 50_000) for path in paths]) * 1e6 / len(paths)


def links(directory):
    """64,999 further names of one file."""
    full(f"{directory}/one", 1000)
    os.mkdir(f"{directory}/names")
    make = lambda: [os.link(f"{directory}/one", f"{directory}/names/{n}") for n in range(64_999)]
    return timed(make) * 1e6 / 64_999


def appends(directory):
    """Three writers append four bytes at a time to one file, and somebody reads it."""
    path, stop = f"{directory}/appended", threading.Event()
    full(path, 4)

    def read():
        fd = os.open(path, os.O_RDONLY)
        at = 0
        while not stop.is_set():
            at += len(os.pread(fd, 65536, at)) or -at
        os.close(fd)

    reader = threading.Thread(target=read)
    code = "import os,sys; fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\nfor n in range(20000): os.write(fd, b'1234')"
    reader.start()
    took = timed(lambda: [one.wait() for one in [subprocess.Popen([sys.executable, "-c", code, path]) for _ in range(3)]])
    stop.set()
    reader.join()
    assert os.path.getsize(path) == 4 + 3 * 80_000
    return took * 1e6 / 60_000


def database(directory):
    """SQLite with a delete journal and synchronous=full: 100 transactions."""
    base = sqlite3.connect(f"{directory}/base", isolation_level=None)
    base.execute("pragma synchronous=full")
    base.execute("create table t(a)")
    took = timed(lambda: [base.execute("insert into t values(1)") for _ in range(100)])
    base.close()
    return took * 1e6 / 100


def files(directory):
    """rsync -a of 820 files of 0.2 to 8 KiB into an empty directory."""
    return timed(lambda: run("rsync", "-a", f"{BASE}/source/", f"{directory}/copied/")) * 1e6 / 820


def stats(directory):
    """The first stat after a rename."""
    path, names = f"{directory}/name", (f"{directory}/name", f"{directory}/other")
    full(path, 1000)
    took = []
    for n in range(4000):
        os.rename(names[n % 2], names[1 - n % 2])
        took.append(timed(lambda: os.stat(names[1 - n % 2])))
    return statistics.median(took) * 1e6


PLACES = {
    "ext4": None,
    "fsync": "durability=fsync",
    "off": "durability=fsync,passthrough=off",
    "write": "durability=write",
}
MEASURES = {
    "a hole": (punches, ["ext4", "fsync", "off"]),
    "a cut": (cuts, ["ext4", "fsync", "off"]),
    "a cut of what is sealed": (sealed_cuts, ["ext4", "fsync"]),
    "a link": (links, ["ext4", "fsync"]),
    "a short append": (appends, ["ext4", "fsync", "off"]),
    "a transaction of SQLite": (database, ["ext4", "fsync", "write"]),
    "a small file by rsync": (files, ["ext4", "fsync", "off"]),
    "a stat after a rename": (stats, ["ext4", "fsync"]),
}


def measure(name):
    act, places = MEASURES[name]
    took = {place: [] for place in places}
    for n in range(ROUNDS):
        for place in places if n % 2 else places[::-1]:
            root = f"{BASE}/host/bare" if PLACES[place] is None else f"{BASE}/m-{place}"
            directory = f"{root}/work"
            os.mkdir(directory)
            run("sync", "-f", BASE + "/host")
            took[place].append(act(directory))
            shutil.rmtree(directory)
    bare = took["ext4"]
    for place in places:
        ratios = [one / other for one, other in zip(took[place], bare)]
        figures = f"{statistics.median(took[place]):.1f} | {statistics.median(ratios):.2f}"
        print(f"| {name} | {place} | {figures} ({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)


def main():
    os.makedirs(f"{BASE}/host", exist_ok=True)
    os.makedirs(f"{BASE}/source", exist_ok=True)
    for n in range(820):
        with open(f"{BASE}/source/{n}", "wb") as file:
            file.write(os.urandom(200 + n * 7919 % 7800))
    run("truncate", "-s", "3G", f"{BASE}/image")
    run("mkfs.ext4", "-q", "-F", "-N", "400000", f"{BASE}/image")
    run("mount", "-o", "loop", f"{BASE}/image", f"{BASE}/host")
    mounted = []
    try:
        os.mkdir(f"{BASE}/host/bare")
        for place, options in PLACES.items():
            if options is not None:
                os.makedirs(f"{BASE}/m-{place}", exist_ok=True)
                run(PROGRAM, "create", f"{BASE}/host/{place}")
                run(PROGRAM, "mount", f"{BASE}/host/{place}", f"{BASE}/m-{place}", "-o", options)
                mounted.append(f"{BASE}/m-{place}")
        print("| what | where | us, median | beside ext4, median (least to most) |\n|---|---|---|---|")
        for name in MEASURES:
            if not ROWS or any(word in name for word in ROWS):
                measure(name)
    finally:
        for mount in mounted:
            run(PROGRAM, "umount", mount)
        run("umount", f"{BASE}/host")
        os.unlink(f"{BASE}/image")


if __name__ == "__main__":
    import ctypes

    LIBC = ctypes.CDLL(None, use_errno=True)
    LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    main()

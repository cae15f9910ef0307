"""What operations take while others poll .tensorfs/info, while many files are there, and while many are open.

    polling.py PROGRAM DIRECTORY [FILES ...]      (root; DIRECTORY gets a pool and a mount point)

FILES are how many empty files there are (default: 1000 400000). "read" are four programs of four users that read a file
of the host in place of .tensorfs/info: what they take of the processors is not the pool's doing. The turns go by in
rounds, so that a machine that gets slower does so for all. The median and the longest, in milliseconds.
"""

import os
import resource
import signal
import statistics
import subprocess
import sys
import time

PROGRAM, BASE = sys.argv[1:3]
FILES = [int(files) for files in sys.argv[3:]] or [1000, 400_000]
WRITERS = [0, 10_000]
ROUNDS, TURNS = 7, 200
MOUNT = BASE + "/m"


def poll(path, user):
    """A program of that user that reads a file all the time."""
    child = os.fork()
    if child:
        return child
    os.setgid(user)
    os.setuid(user)
    while True:
        with open(path) as file:
            file.read()


class Others:
    """Four programs that read this file; none if there is none."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.children = [poll(self.path, 4001 + n) for n in range(4 if self.path else 0)]
        time.sleep(0.2)

    def __exit__(self, *_):
        for child in self.children:
            # One that has ended did so because it could not read.
            ended, status = os.waitpid(child, os.WNOHANG)
            assert not ended, f"{self.path}: who reads it ended with {status}"
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def each(act):
    took = []
    for n in range(TURNS):
        begun = time.perf_counter()
        act(n)
        took.append((time.perf_counter() - begun) * 1000)
    return took


def names(n):
    os.mkdir(MOUNT + "/made")
    os.rmdir(MOUNT + "/made")


def rename(n):
    os.rename(f"{MOUNT}/directory-{n % 2}", f"{MOUNT}/directory-{(n + 1) % 2}")


def sync(file):
    def act(n):
        os.pwrite(file, b"z" * 100, 0)
        os.fsync(file)

    return act


def tensorfs(*arguments):
    subprocess.run([PROGRAM, *arguments], check=True, capture_output=True)


def measure(acts):
    """Of each act and of each kind of others the median of all turns."""
    others = {"nobody": None, "read": "/proc/meminfo", "poll": MOUNT + "/.tensorfs/info"}
    took = {(name, who): [] for name in acts for who in others}
    for turn in range(ROUNDS):
        order = list(others)
        for who in order[turn % 3 :] + order[: turn % 3]:
            with Others(others[who]):
                for name, act in acts.items():
                    took[name, who] += each(act)
    return {key: (statistics.median(all), max(all)) for key, all in took.items()}


def row(place, name, figures):
    of_each = (figures[name, who] for who in ("nobody", "read", "poll"))
    cells = " | ".join(f"{median:.3f} / {most:.1f}" for median, most in of_each)
    print(f"| {place} | {name} | {cells} |", flush=True)


def with_files(files):
    for directory in range(0, files, 1000):
        os.mkdir(f"{MOUNT}/{directory}")
        for n in range(directory, min(directory + 1000, files)):
            os.close(os.open(f"{MOUNT}/{directory}/{n}", os.O_CREAT | os.O_WRONLY, 0o644))
    tensorfs("sync", MOUNT)
    row(f"{files} files", "mkdir, rmdir", measure({"mkdir, rmdir": names}))


def with_writers(writers):
    os.mkdir(MOUNT + "/open")
    make = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    files = [os.open(f"{MOUNT}/open/{n}", make, 0o644) for n in range(writers)]
    for file in files:
        os.pwrite(file, b"z" * 100, 0)
    os.mkdir(MOUNT + "/directory-0")
    one = os.open(MOUNT + "/synced", os.O_CREAT | os.O_WRONLY, 0o644)
    tensorfs("sync", MOUNT)
    acts = {"mkdir, rmdir": names, "rename of a directory": rename, "write and fsync": sync(one)}
    figures = measure(acts)
    for name in acts:
        row(f"{writers} open writers", name, figures)
    for file in files + [one]:
        os.close(file)


def on_a_pool(act, number):
    pool = BASE + "/p"
    os.makedirs(MOUNT, exist_ok=True)
    tensorfs("create", pool)
    tensorfs("mount", pool, MOUNT, "--log", BASE + "/log")
    try:
        act(number)
    finally:
        tensorfs("umount", MOUNT)
        subprocess.run(["rm", "-rf", pool], check=True)


def main():
    most = max(WRITERS) + 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, max(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    print(f"load {os.getloadavg()[0]:.1f} before it, {os.cpu_count()} processors")
    print("| there are | ms | nobody polls | four read a file of the host | four poll .tensorfs/info |")
    print("|---|---|---|---|---|")
    for files in FILES:
        on_a_pool(with_files, files)
    for writers in WRITERS:
        on_a_pool(with_writers, writers)


main()

"""How far apart commits are while much is removed, and while the pool is checked and scrubbed.

    commits.py PROGRAM DIRECTORY FILES [WHAT ...]      (root; DIRECTORY gets a pool and a mount point)

Each WHAT is one row: `nothing`, or of rm, check and scrub those that go on at the same time, with + between them
(default: nothing rm rm+check rm+scrub rm+check+scrub). For each row FILES empty files are made, and 200 of 1 MiB. Beside
a file that is written ten times a second, with commit=1: `rm` is five `rm -rf`; `check --data` and `scrub` are begun
again until those are over, in turn where both go on. The row ends then, and after ten seconds at the earliest; without
rm, after a minute.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time

PROGRAM, BASE, FILES = sys.argv[1], sys.argv[2], int(sys.argv[3])
ROWS = sys.argv[4:] or ["nothing", "rm", "rm+check", "rm+scrub", "rm+check+scrub"]
MOUNT, POOL = BASE + "/m", BASE + "/p"
AGAIN = {"check": [PROGRAM, "check", "--data", MOUNT], "scrub": [PROGRAM, "scrub", "--no-limit", MOUNT]}


def tensorfs(*arguments):
    subprocess.run([PROGRAM, *arguments], check=True, capture_output=True)


def make():
    for top in range(5):
        os.mkdir(f"{MOUNT}/{top}")
        for n in range(top, FILES, 5):
            directory = f"{MOUNT}/{top}/{n // 5000}"
            if n // 5 % 1000 == 0:
                os.makedirs(directory, exist_ok=True)
            os.close(os.open(f"{directory}/{n}", os.O_CREAT | os.O_WRONLY, 0o644))
    os.mkdir(MOUNT + "/sealed")
    for n in range(200):
        with open(f"{MOUNT}/sealed/{n}", "wb") as file:
            file.write(os.urandom(1 << 20))
    tensorfs("sync", MOUNT)
    tensorfs("seal", MOUNT + "/sealed")


class Commits:
    """Writes a file, and notes when the background has committed."""

    def __init__(self):
        self.over, self.at = threading.Event(), []
        self.threads = [threading.Thread(target=act) for act in (self.write, self.look)]

    def write(self):
        file = os.open(MOUNT + "/written", os.O_CREAT | os.O_WRONLY, 0o644)
        n = 0
        while not self.over.wait(0.1):
            n += os.pwrite(file, b"z" * 100, n)
        os.close(file)

    def look(self):
        before = None
        while not self.over.wait(0.005):
            with open(MOUNT + "/.tensorfs/info") as file:
                told = json.load(file)
            count = told["counters"]["commits_background"]
            if before is not None and count != before:
                self.at.append(time.perf_counter())
            before = count

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def until_over(command, over):
    while True:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        # A server does one of the two at a time: they take turns.
        if "being scrubbed or checked already" in done.stderr:
            time.sleep(0.1)
        else:
            assert done.returncode == 0, f"{command}: {done.returncode}: {done.stderr}"
        if over.is_set():
            return


def measure(what):
    parts = [] if what == "nothing" else what.split("+")
    unknown = [part for part in parts if part != "rm" and part not in AGAIN]
    assert not unknown, f"{unknown}: not one of nothing, rm, check, scrub"
    tensorfs("create", POOL)
    os.makedirs(MOUNT, exist_ok=True)
    tensorfs("mount", POOL, MOUNT, "--commit", "1", "--log", BASE + "/log")
    try:
        make()
        over = threading.Event()
        with Commits() as commits:
            begun = time.perf_counter()
            others = [threading.Thread(target=until_over, args=(AGAIN[part], over)) for part in parts if part != "rm"]
            for other in others:
                other.start()
            if "rm" in parts:
                for child in [subprocess.Popen(["rm", "-rf", f"{MOUNT}/{top}"]) for top in range(5)]:
                    assert child.wait() == 0
            elif parts:
                time.sleep(60)
            over.set()
            for other in others:
                other.join()
            time.sleep(max(0, begun + 10 - time.perf_counter()))
            # One that was due long ago counts with what it has taken by now.
            ended = time.perf_counter()
        ends = commits.at + [ended]
        apart = [later - earlier for earlier, later in zip(ends, ends[1:])]
        assert len(apart) > 1, "no commits"
        print(
            f"| {what} | {FILES:,} | {ended - begun:.0f} s | {len(commits.at)} | {statistics.median(apart):.2f} s "
            f"| {max(apart):.2f} s |",
            flush=True,
        )
    finally:
        tensorfs("umount", MOUNT)
        subprocess.run(["rm", "-rf", POOL], check=True)


def main():
    print(f"load {os.getloadavg()[0]:.1f} before it, {os.cpu_count()} processors")
    print("| what goes on | files | for | commits | median | longest |")
    print("|---|---|---|---|---|---|")
    for what in ROWS:
        measure(what)


main()

"""What it costs to be looked at: metrics read each second, and requests traced.

    observers.py PROGRAM DIRECTORY [ROUNDS]     (root; DIRECTORY gets a pool and a mount point)
"""

import os
import statistics
import subprocess
import sys
import threading
import time

PROGRAM, BASE = sys.argv[1:3]
# Quartiles want two.
ROUNDS = max(2, int((sys.argv[3:] or [15])[0]))
# So many seconds each turn lasts at least: it has scrapes in it, however fast the machine is.
TURN = 3


def timed(count, act):
    begun = time.perf_counter()
    for n in range(count):
        act(n)
    return (time.perf_counter() - begun) / count * 1e6


def operations(mounted, turn):
    """Microseconds of each."""
    took = {}
    make = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    took["create"] = timed(1000, lambda n: os.close(os.open(f"{mounted}/{turn}-{n}", make)))
    directory = os.open(mounted, os.O_RDONLY)
    # Attributes are the kernel's for long; a changed mode makes it ask.
    path = f"{mounted}/{turn}-0"

    def stat(n):
        os.chmod(path, 0o600 + n % 2)
        os.stat(path)

    took["chmod and stat"] = timed(2000, stat)
    fd = os.open(path, os.O_RDWR)

    def sync(n):
        os.pwrite(fd, b"z" * 100, 0)
        os.fsync(fd)

    took["write and fsync"] = timed(200, sync)
    os.close(fd)
    os.close(directory)
    for n in range(1000):
        os.unlink(f"{mounted}/{turn}-{n}")
    return took


class Scraped:
    """Metrics are read each second."""

    def __init__(self, mounted):
        self.mounted, self.over = mounted, threading.Event()

    def look(self):
        while not self.over.wait(1):
            subprocess.run([PROGRAM, "metrics", self.mounted], check=True, capture_output=True)

    def __enter__(self):
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Traced:
    """Somebody traces requests."""

    def __init__(self, mounted):
        self.mounted = mounted

    def __enter__(self):
        line = [PROGRAM, "trace", "--json", self.mounted]
        self.child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.3)

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


class Nobody:
    def __init__(self, mounted):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def main():
    mounted = BASE + "/m"
    os.makedirs(mounted, exist_ok=True)
    subprocess.run([PROGRAM, "create", BASE + "/p"], check=True, capture_output=True)
    subprocess.run([PROGRAM, "mount", BASE + "/p", mounted, "--log", BASE + "/log"], check=True, capture_output=True)
    found = {}
    try:
        for turn in range(ROUNDS):
            # In turn, and the first of a round is another one each time.
            order = [Nobody, Scraped, Traced]
            for observer in order[turn % 3 :] + order[: turn % 3]:
                with observer(mounted):
                    begun, all = time.perf_counter(), []
                    while time.perf_counter() - begun < TURN:
                        all.append(operations(mounted, f"{turn}-{observer.__name__}-{len(all)}"))
                    for name in all[0]:
                        took = statistics.mean(one[name] for one in all)
                        found.setdefault(name, {}).setdefault(observer.__name__, []).append(took)
    finally:
        subprocess.run([PROGRAM, "umount", mounted], check=True, capture_output=True)
    print("| us | nobody looks | a scrape each second | ratio, from to | traced | ratio |")
    print("|---|---|---|---|---|---|")
    for name, by in found.items():
        base = by["Nobody"]
        ratios = {who: [x / y for x, y in zip(by[who], base)] for who in by}
        median = {who: statistics.median(took) for who, took in by.items()}
        scraped = statistics.quantiles(ratios["Scraped"], n=4)
        print(
            f"| {name} | {median['Nobody']:.1f} | {median['Scraped']:.1f} | {scraped[1]:.2f}, {scraped[0]:.2f} {scraped[2]:.2f} "
            f"| {median['Traced']:.1f} | {statistics.median(ratios['Traced']):.2f} |"
        )


main()

"""What a keeper costs, and how long programs wait while another server takes over.

    keeper.py PROGRAM DIRECTORY [FILES:OPEN ...]     (root; DIRECTORY gets pools and mount points)

With FILES:OPEN only how long programs wait, in pools with so many files, so many of them open.
"""

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time

PROGRAM, BASE = sys.argv[1:3]
POOLS = [tuple(map(int, pair.split(":"))) for pair in sys.argv[3:]]
ROUNDS = 9


def mount(name, options):
    directory = os.path.join(BASE, name)
    os.makedirs(directory + "/m", exist_ok=True)
    subprocess.run([PROGRAM, "create", directory + "/p"], check=True, capture_output=True)
    line = [PROGRAM, "mount", directory + "/p", directory + "/m", "--log", directory + "/log", "-o", options]
    subprocess.run(line, check=True, capture_output=True)
    return directory


def umount(directory):
    subprocess.run([PROGRAM, "umount", directory + "/m"], check=True, capture_output=True)


def timed(count, act):
    begun = time.perf_counter()
    for n in range(count):
        act(n)
    return (time.perf_counter() - begun) / count * 1e6


def operations(directory):
    """Microseconds of each."""
    mounted = directory + "/m"
    path = mounted + "/x"
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(b"y" * 100_000)
    took = {}
    kept = os.open(path, os.O_RDONLY)
    took["open and close, open elsewhere"] = timed(4000, lambda n: os.close(os.open(path, os.O_RDONLY)))
    os.close(kept)
    time.sleep(0.05)
    took["open and close"] = timed(4000, lambda n: os.close(os.open(path, os.O_RDONLY)))
    took["open and close, to write"] = timed(2000, lambda n: os.close(os.open(path, os.O_RDWR)))
    make = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    took["create"] = timed(2000, lambda n: os.close(os.open(f"{mounted}/c{n}", make)))
    took["stat"] = timed(4000, lambda n: os.stat(f"{mounted}/c{n % 2000}"))
    fd = os.open(path, os.O_RDWR)

    def sync(n):
        os.pwrite(fd, b"z" * 100, 0)
        os.fsync(fd)

    took["write and fsync"] = timed(100, sync)
    took["write of 4 KiB"] = timed(4000, lambda n: os.pwrite(fd, b"z" * 4096, 0))
    took["read of 4 KiB"] = timed(4000, lambda n: os.pread(fd, 4096, 0))
    os.close(fd)
    for n in range(2000):
        os.unlink(f"{mounted}/c{n}")
    return took


def compare():
    kinds = {"without": "", "keeper": ",keeper", "privileged": ",keeper,privileged"}
    mounts = {kind: mount(kind, "passthrough=on" + options) for kind, options in kinds.items()}
    rounds = []
    for n in range(ROUNDS + 1):
        order = list(kinds) if n % 2 else list(reversed(kinds))
        took = {kind: operations(mounts[kind]) for kind in order}
        if n > 0:
            rounds.append(took)
    print("| | without, us | with a keeper, us | ratio | with `privileged`, us | ratio |\n|---|---|---|---|---|---|")
    for name in rounds[0]["keeper"]:
        median = {kind: statistics.median(took[kind][name] for took in rounds) for kind in kinds}
        ratio = {kind: statistics.median(took[kind][name] / took["without"][name] for took in rounds) for kind in kinds}
        kept = [f"{median[kind]:.1f} | {ratio[kind]:.2f}" for kind in ("keeper", "privileged")]
        print(f"| {name} | {median['without']:.1f} | {' | '.join(kept)} |", flush=True)
    for directory in mounts.values():
        umount(directory)


def upgrade(mounted):
    """The longest that somebody waits who asks all the time, in milliseconds."""
    time.sleep(0.5)
    upgrading = subprocess.Popen([PROGRAM, "upgrade", mounted], stderr=subprocess.DEVNULL)
    longest = 0
    while upgrading.poll() is None:
        begun = time.perf_counter()
        os.mkdir(mounted + "/made")
        os.rmdir(mounted + "/made")
        longest = max(longest, time.perf_counter() - begun)
    if upgrading.returncode != 0:
        sys.exit("the upgrade failed")
    return longest * 1e3


def pause(files, opened):
    directory = mount(f"pause-{files}-{opened}", "passthrough=on,keeper")
    mounted = directory + "/m"
    path = lambda n: f"{mounted}/d{n // 1000}/f{n}"
    for n in range(files):
        if n % 1000 == 0:
            os.mkdir(os.path.dirname(path(n)))
        os.close(os.open(path(n), os.O_CREAT | os.O_WRONLY))
    handles = [os.open(path(n), os.O_RDWR) for n in range(opened)]
    time.sleep(2)
    took = []
    left = []
    for n in range(15):
        time.sleep(random.uniform(0.5, 1))
        with open(directory + "/p/lock") as lock:
            server = json.load(lock)["pid"]
        begun = time.perf_counter()
        os.kill(server, 9)
        os.mkdir(mounted + "/made")
        took.append((time.perf_counter() - begun) * 1e3)
        os.rmdir(mounted + "/made")
        os.pwrite(handles[n % opened], b"x", 0)
        os.fsync(handles[n % opened])
        left.append(upgrade(mounted))
    figures = f"{statistics.median(took):.0f} | {max(took):.0f} | {statistics.median(left):.0f} | {max(left):.0f}"
    print(f"| {files:,} | {opened:,} | {figures} |", flush=True)
    for handle in handles:
        os.close(handle)
    umount(directory)


resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
if not POOLS:
    compare()
print("\n| files in the pool | open | killed: pause, ms, median | worst of 15 | upgraded: median | worst |")
print("|---|---|---|---|---|---|")
for files, opened in POOLS or ((10, 10), (10_000, 10_000), (200_000, 10)):
    pause(files, opened)

#!/usr/bin/env python3
"""A store that is away for a while: what a mount with a remote, and one without, notice of it; and that all is carried after.

    store_away.py PROGRAM DIRECTORY [--seconds 3600] [--before 120] [--every 1] [--weed WEED]

As root. DIRECTORY gets two pools and a store: SeaweedFS's `weed`, which `tests/run` installs, on loopback. Each pool is
mounted; in turn a MiB is saved with fsync, an empty file is made, and 4 KiB are appended and synced, in both mounts, and
every tenth of what was saved goes again. The store is killed, stays away, and is started again on the same ports. Prints
a table of milliseconds, how far the carrier was behind and what memory it took, and whether the remote is whole then.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

from second_copy import KEYS, MIB, Store, dies_with_us, free, run, say, the_same

TOLD = ("batch", "files_behind", "bytes_behind", "seconds_since", "carrier", "error")
KINDS = ("save of 1 MiB with fsync", "create", "append of 4 KiB with fsync")


def timed(action):
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * 1e3


class Saver:
    def __init__(self, at):
        self.at, self.saved, self.took = at, 0, {}
        self.bytes = os.urandom(MIB)
        self.journal = os.open(f"{at}/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def end(self):
        if self.journal is not None:
            os.close(self.journal)
        self.journal = None

    def write(self, name, data):
        with open(name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def append(self):
        os.write(self.journal, os.urandom(4096))
        os.fsync(self.journal)

    def turn(self, phase):
        n = self.saved
        self.saved += 1
        data = n.to_bytes(8, "little") + self.bytes[8:]
        actions = (lambda: self.write(f"{self.at}/checkpoint-{n:06}", data),
                   lambda: os.close(os.open(f"{self.at}/made-{n:06}", os.O_CREAT | os.O_WRONLY)), self.append)
        for kind, action in zip(KINDS, actions):
            self.took.setdefault((phase, kind), []).append(timed(action))
        if n % 10 == 9:
            os.unlink(f"{self.at}/checkpoint-{n - 9:06}")


def memory(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))
    except (OSError, StopIteration):
        return 0


def start_again(store):
    store.process = subprocess.Popen(store.process.args, stdin=subprocess.DEVNULL, stdout=store.log, stderr=store.log,
                                     env={**os.environ, "HOME": store.directory}, preexec_fn=dies_with_us)


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("program")
    asked.add_argument("directory")
    asked.add_argument("--seconds", type=float, default=3600)
    asked.add_argument("--before", type=float, default=120)
    asked.add_argument("--every", type=float, default=1)
    asked.add_argument("--weed", default="target/venv/s3/bin/weed")
    wants = asked.parse_args()
    program, base = os.path.abspath(wants.program), os.path.abspath(wants.directory)
    os.makedirs(base, exist_ok=True)
    store = Store(os.path.abspath(wants.weed), f"{base}/store")
    store.new_bucket()
    env = dict(os.environ) | KEYS
    url, endpoint = f"s3://{store.bucket}/x", store.endpoint
    mounts, carrier = {}, None
    try:
        for name in ("remote", "none"):
            pool, at = f"{base}/{name}.pool", f"{base}/{name}"
            run(program, "create", pool)
            os.makedirs(at)
            if name == "remote":
                run(program, "remote", "set", pool, url, "--endpoint", endpoint, env=env)
            run(program, "mount", pool, at, "--log", f"{base}/{name}.log", env=env)
            mounts[name] = Saver(at)
        pool, at = f"{base}/remote.pool", f"{base}/remote"
        log = open(f"{base}/carrier.log", "w")
        carrier = subprocess.Popen([program, "remote", "carry", pool, "--watch"], env=env, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, preexec_fn=dies_with_us)
        most = {}

        def go_on(phase, seconds):
            until = time.monotonic() + seconds
            look = 0
            while time.monotonic() < until:
                begun = time.monotonic()
                for saver in mounts.values():
                    saver.turn(phase)
                if begun >= look:
                    look = begun + 10
                    most[phase] = max(most.get(phase, 0), memory(carrier.pid))
                    # Its status is not 0 while the store is away.
                    told = subprocess.run([program, "remote", "status", pool, "--json"], capture_output=True, text=True)
                    told = {key: json.loads(told.stdout)[key] for key in TOLD}
                    say(f"{phase}: {mounts['remote'].saved} saves, {most[phase] / MIB:.0f} MiB: {json.dumps(told)[:400]}")
                time.sleep(max(0, begun + wants.every - time.monotonic()))

        go_on("before", wants.before)
        os.kill(store.process.pid, signal.SIGKILL)
        store.process.wait()
        go_on("away", wants.seconds)
        health = subprocess.run([program, "health", at], capture_output=True, text=True)
        say(f"health: {health.returncode}: {health.stdout}{health.stderr}")
        start_again(store)
        back = time.monotonic()
        go_on("after", wants.before)
        for saver in mounts.values():
            # What is open is never whole.
            saver.end()
        waited = timed(lambda: run(program, "remote", "wait", at, env=env))
        say(f"all is carried {time.monotonic() - back:.0f} s after the store was back ({waited / 1e3:.1f} s of waiting)")
        say(run(program, "remote", "check", "--data", pool, env=env))
        run(program, "remote", "restore", url, f"{base}/restored", "--endpoint", endpoint, env=env)
        os.makedirs(f"{base}/second")
        run(program, "mount", f"{base}/restored", f"{base}/second", env=env)
        say(f"{the_same(f'{base}/remote', f'{base}/second')} files are restored, and the same")
        run(program, "umount", f"{base}/second")
        assert carrier.poll() is None, f"the carrier ended, {carrier.returncode}"
        say("\n| | | with a remote, ms: median, 99th, longest | without | ratio of medians |\n|---|---|---|---|---:|")
        for phase in ("before", "away", "after"):
            for kind in KINDS:
                rows = [sorted(mounts[name].took[phase, kind]) for name in ("remote", "none")]
                cells = [f"{statistics.median(row):.2f}, {row[len(row) * 99 // 100]:.2f}, {row[-1]:.1f}" for row in rows]
                ratio = statistics.median(rows[0]) / statistics.median(rows[1])
                say(f"| {phase} | {kind} | {cells[0]} | {cells[1]} | {ratio:.2f} |")
        say("\nThe carrier's memory at most: " + ", ".join(f"{p} {m / MIB:.0f} MiB" for p, m in most.items()))
    finally:
        if carrier:
            carrier.terminate()
            carrier.wait()
        for saver in mounts.values():
            saver.end()
            subprocess.run([program, "umount", saver.at])
        free(f"{base}/second")
        store.end()
    for name in os.listdir(base):
        if not name.endswith(".log"):
            shutil.rmtree(f"{base}/{name}", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

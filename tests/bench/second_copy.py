#!/usr/bin/env python3
"""A second copy in an S3 store, made by tensorfs and by other tools: seconds, bytes, processor and memory.

    second_copy.py PROGRAM DIRECTORY [--only large small checkpoints first saves] [--rounds N] [--weed WEED]

As root. DIRECTORY gets a pool, plain files, and a store: SeaweedFS's `weed`, which `tests/run` installs, on loopback.
rclone, s5cmd, restic and rustic are taken from PATH; what is missing is left out. Whatever is measured takes its turn in
each round, with a bucket of its own; what is read was read before, and is in the host's cache for everybody. Prints
tables of medians, and ratios of tensorfs to the others.

large        8 files of 128 MiB of noise are carried, mounted and read a little, and restored
small        10,000 files of 4 KiB
checkpoints  as many as --checkpoints, of which a tenth of the tensors changes, carried one by one as they come
first        a file of --gib GiB: the first tensor after `mount --from`
saves        on a mount whose pool is being carried, beside one whose pool is not
"""

import argparse
import ctypes
import filecmp
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

KEYS = {"AWS_ACCESS_KEY_ID": "all", "AWS_SECRET_ACCESS_KEY": "all-secret", "AWS_REGION": "us-east-1"}
USERS = {"identities": [
    {"name": "all", "credentials": [{"accessKey": "all", "secretKey": "all-secret"}], "actions": ["Admin"]},
    {"name": "anonymous", "actions": ["Read", "List"]}]}
MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
HERE = os.path.dirname(os.path.abspath(__file__))


def say(*words):
    print(*words, flush=True)


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def dies_with_us():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Spent:
    """What a command, or several, took: seconds, processor seconds, the most memory at a time, the store's processor."""

    def __init__(self):
        self.seconds = self.processor = self.memory = self.store = 0

    def run(self, store, words, env=None, cwd=None, log=None):
        before = store.processor()
        begun = time.perf_counter()
        child = subprocess.Popen(words, env=env, cwd=cwd, stdout=log or subprocess.DEVNULL, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)
        self.seconds += time.perf_counter() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {child.returncode}; see {log.name if log else 'nowhere'}")
        self.processor += used.ru_utime + used.ru_stime
        self.memory = max(self.memory, used.ru_maxrss << 10)
        self.store += store.processor() - before
        return self


class Store:
    """SeaweedFS with all its parts, in a directory; each bucket is removed when it is not needed any more."""

    def __init__(self, weed, directory):
        self.directory, self.bucket, self.made = directory, None, 0
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        with open(f"{directory}/users.json", "w") as file:
            json.dump(USERS, file)
        held = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
        self.ports = [one.getsockname()[1] for one in held]
        for one in held:
            one.close()
        words = [weed, "server", "-master.telemetry=false", "-filer", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                 "-volume.max=400", "-master.volumeSizeLimitMB=1024", "-s3.port.iceberg=0", "-s3.port.lance=0",
                 f"-dir={directory}", f"-s3.config={directory}/users.json"]
        for part, (port, other) in zip(("master", "volume", "filer", "s3"), zip(self.ports[::2], self.ports[1::2])):
            words += [f"-{part}.port={port}", f"-{part}.port.grpc={other}"]
        self.log = open(f"{directory}.log", "w")
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={**os.environ, "HOME": directory}, preexec_fn=dies_with_us)
        self.endpoint = f"http://127.0.0.1:{self.ports[6]}"
        for _ in range(600):
            if self.asks(0, "GET", "/dir/assign") == 200 and self.asks(6, "GET", "/") and self.new_bucket():
                return
            time.sleep(0.1)
        raise RuntimeError("the store does not start")

    def asks(self, part, method, path, **more):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[part], timeout=60)
            connection.request(method, path, **more)
            answer = connection.getresponse()
            self.said = answer.read()
            return answer.status
        except OSError:
            return None

    def new_bucket(self):
        """Removes the bucket that there was, with its bytes, and makes one to which somebody has put something."""
        if self.bucket:
            self.asks(4, "DELETE", f"/buckets/{self.bucket}/?recursive=true&ignoreRecursiveError=true")
        self.made += 1
        self.bucket = f"bucket-{self.made}"
        if self.asks(4, "POST", f"/buckets/{self.bucket}/") != 201:
            return False
        puts = [self.asks(4, "PUT", f"/buckets/{self.bucket}/warm/{n}", body=b"warm") for n in range(16)]
        return all(status == 201 for status in puts)

    def holds(self, prefix="x/"):
        """How many bytes, in how many objects."""
        found, after = [0, 0], ""
        while True:
            status = self.asks(6, "GET", f"/{self.bucket}?list-type=2&max-keys=1000&prefix={prefix}&start-after={after}")
            assert status == 200, (status, self.said)
            root = xml.fromstring(self.said)
            space = root.tag.partition("}")[0] + "}"
            for one in root.iter(f"{space}Contents"):
                after = one.find(f"{space}Key").text
                found[0] += int(one.find(f"{space}Size").text)
                found[1] += 1
            if root.find(f"{space}IsTruncated").text != "true":
                return found

    def processor(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def give_way(self):
        """From now on it has the processor when nobody else wants it, as if it were another machine's."""
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

    def end(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        for port in self.ports:
            if os.path.exists(f"/tmp/seaweedfs-s3-{port}.sock"):
                os.unlink(f"/tmp/seaweedfs-s3-{port}.sock")


# --- tools ---------------------------------------------------------------------------------------------


class Tool:
    """One that copies a directory; `x/` in the bucket is its own."""

    def __init__(self, name, base):
        self.name, self.base, self.program = name, base, shutil.which(name)
        self.log = open(f"{base}/{name}.log", "a")

    def begin(self, store):
        """Before anything is measured."""
        self.store = store
        names = ("PATH", "HOME", "LANG")
        self.env = {name: os.environ[name] for name in names if name in os.environ} | KEYS | self.variables(store)

    def variables(self, store):
        return {}

    def run(self, words, spent=None, cwd=None):
        return (spent or Spent()).run(self.store, [self.program, *words], self.env, cwd, self.log)

    def carry(self, source, spent=None):
        return self.run(self.carrying(source), spent)

    def restore(self, source, to):
        """Where it was once, and where it is to be. Returns what was spent, and where it is."""
        os.makedirs(to)
        return self.run(self.restoring(source, to)), to

    def mounting(self, at):
        """Words of a command that mounts, in the foreground; or nothing."""

    def on_mount(self, at, source):
        return at


class Rclone(Tool):
    def variables(self, store):
        keys = {"ACCESS_KEY_ID": "all", "SECRET_ACCESS_KEY": "all-secret", "REGION": "us-east-1"}
        said = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": store.endpoint, "FORCE_PATH_STYLE": "true", **keys}
        return {f"RCLONE_CONFIG_X_{name}": value for name, value in said.items()} | {"RCLONE_CONFIG": "/dev/null"}

    def carrying(self, source):
        return ["copy", source, f"X:{self.store.bucket}/x"]

    def restoring(self, _, to):
        return ["copy", f"X:{self.store.bucket}/x", to]

    def mounting(self, at):
        return [self.program, "mount", "--read-only", f"X:{self.store.bucket}/x", at]


class S5cmd(Tool):
    def variables(self, store):
        return {"S3_ENDPOINT_URL": store.endpoint}

    def carrying(self, source):
        return ["sync", f"{source}/", f"s3://{self.store.bucket}/x/"]

    def restoring(self, _, to):
        return ["cp", f"s3://{self.store.bucket}/x/*", f"{to}/"]


class Restic(Tool):
    def variables(self, store):
        repository = f"s3:{store.endpoint}/{store.bucket}/x"
        return {"RESTIC_REPOSITORY": repository, "RESTIC_PASSWORD": "x", "RESTIC_CACHE_DIR": f"{self.base}/cache"}

    def begin(self, store):
        shutil.rmtree(f"{self.base}/cache", ignore_errors=True)
        super().begin(store)
        self.run(["init"])

    def carrying(self, source):
        return ["backup", "-q", source]

    def restore(self, source, to):
        os.makedirs(to)
        return self.run(["restore", "-q", "latest", "--target", to]), to + source

    def mounting(self, at):
        return [self.program, "mount", at]

    def on_mount(self, at, source):
        return f"{at}/snapshots/latest{source}"


class Rustic(Tool):
    def begin(self, store):
        shutil.rmtree(f"{self.base}/cache", ignore_errors=True)
        self.at = f"{self.base}/rustic"
        os.makedirs(self.at, exist_ok=True)
        options = {"bucket": store.bucket, "root": "/x", "endpoint": store.endpoint, "region": "us-east-1",
                   "access_key_id": "all", "secret_access_key": "all-secret", "enable_virtual_host_style": "false"}
        with open(f"{self.at}/rustic.toml", "w") as file:
            file.write('[repository]\nrepository = "opendal:s3"\npassword = "x"\n')
            file.write(f'cache-dir = "{self.base}/cache"\n[repository.options]\n')
            file.writelines(f'{name} = "{value}"\n' for name, value in options.items())
        super().begin(store)
        self.run(["init"])

    def run(self, words, spent=None, cwd=None):
        return super().run(["--no-progress", *words], spent, self.at)

    def carrying(self, source):
        return ["backup", source]

    def restore(self, source, to):
        os.makedirs(to)
        return self.run(["restore", f"latest:{source}", to]), to


class Tensorfs(Tool):
    """Takes a pool for a source, and for what a plain directory is to the others, `root` is what is mounted."""

    def __init__(self, program, base):
        super().__init__("tensorfs", base)
        self.program = os.path.abspath(program)

    def begin(self, store, pool=None):
        super().begin(store)
        self.url = f"s3://{store.bucket}/x"
        if pool:
            if os.path.exists(f"{pool}/remote"):
                self.run(["remote", "off", pool])
            self.run(["remote", "set", pool, self.url, "--endpoint", store.endpoint])

    def carrying(self, pool):
        return ["remote", "carry", pool]

    def restore(self, pool, to):
        spent = self.run(["remote", "restore", self.url, to + ".pool", "--endpoint", self.store.endpoint])
        self.mount(to + ".pool", to)
        return spent, to

    def mount(self, pool, at, *more):
        os.makedirs(at, exist_ok=True)
        run(self.program, "mount", pool, at, "--log", f"{self.base}/server.log", *more, env=self.env)

    def umount(self, at):
        run(self.program, "umount", at)
        os.rmdir(at)

    def from_store(self):
        return "--from", self.url, "--endpoint", self.store.endpoint


def tools(program, base):
    found = [Tensorfs(program, base)]
    for name, kind in [("rclone", Rclone), ("s5cmd", S5cmd), ("restic", Restic), ("rustic", Rustic)]:
        if shutil.which(name):
            found.append(kind(name, base))
        else:
            say(f"{name}: not there, and left out")
    return found


# --- what is measured ----------------------------------------------------------------------------------


def noise(path, size):
    with open(path, "wb") as file:
        for at in range(0, size, MIB):
            file.write(os.urandom(min(MIB, size - at)))


def header_of(names, size):
    spans = {name: {"dtype": "U8", "shape": [size], "data_offsets": [n * size, (n + 1) * size]}
             for n, name in enumerate(names)}
    words = json.dumps(spans).encode()
    return struct.pack("<Q", len(words)) + words


def warm(path):
    """Everything below it, or a part of it, is in the host's cache."""
    for at, _, names in os.walk(path):
        for name in names:
            with open(f"{at}/{name}", "rb") as file:
                while file.read(MIB):
                    pass


def settle(base):
    """Nothing that was written before is on its way to the disk."""
    run("sync", "-f", base)


def the_same(one, other):
    """Byte by byte."""
    count = 0
    for at, directories, names in os.walk(one):
        there = at.replace(one, other, 1)
        found = sorted(name for name in os.listdir(there) if name != ".tensorfs")
        assert found == sorted(directories + names), f"{there} has other names: {found[:9]}"
        for name in names:
            assert filecmp.cmp(f"{at}/{name}", f"{there}/{name}", shallow=False), f"{there}/{name} differs"
            count += 1
    return count


def set_aside(base, path):
    """It has no bytes any more, and goes at the end: for minutes ext4 looks through all inodes of files that were removed,
    one by one, for each file that is made."""
    gone = f"{base}/gone"
    os.makedirs(gone, exist_ok=True)
    for at, _, names in os.walk(path):
        for name in names:
            os.truncate(f"{at}/{name}", 0)
    os.rename(path, f"{gone}/{len(os.listdir(gone))}")


def fill_pool(tool, base, plain):
    """A closed pool with the same files, all sealed."""
    pool, at = f"{base}/pool", f"{base}/at"
    run(tool.program, "create", pool)
    tool.env = dict(os.environ)
    tool.mount(pool, at)
    shutil.copytree(plain, at, dirs_exist_ok=True)
    run(tool.program, "seal", at)
    tool.umount(at)
    return pool


def first_bytes(tool, base, source, name):
    """Seconds from when the bucket is mounted until a MiB in the middle of a file was read."""
    at, pool = f"{base}/first", f"{base}/first.pool"
    os.makedirs(at, exist_ok=True)
    begun = time.perf_counter()
    server = None
    if tool.name == "tensorfs":
        tool.mount(pool, at, *tool.from_store())
        path = f"{at}/{name}"
    elif words := tool.mounting(at):
        server = subprocess.Popen(words, env=tool.env, stdout=tool.log, stderr=tool.log, preexec_fn=dies_with_us)
        path = f"{tool.on_mount(at, source)}/{name}"
    else:
        return None
    while not os.path.exists(path):
        assert server is None or server.poll() is None, f"{tool.name} does not mount"
        time.sleep(0.005)
    file = os.open(path, os.O_RDONLY)
    found = os.pread(file, MIB, 64 * MIB)
    took = time.perf_counter() - begun
    os.close(file)
    with open(f"{source}/{name}", "rb") as real:
        assert found == os.pread(real.fileno(), len(found), 64 * MIB) and found
    if server:
        run("umount", at)
        server.wait()
        os.rmdir(at)
    else:
        tool.umount(at)
        shutil.rmtree(pool)
    return took


COLUMNS = [
    ("carry, s", "carry", lambda s: s, "{:.2f}"), ("processor, s", "carry_processor", lambda s: s, "{:.2f}"),
    ("memory, MiB", "carry_memory", lambda s: s / MIB, "{:.0f}"), ("MiB in the store", "bytes", lambda s: s / MIB, "{:,.1f}"),
    ("objects", "objects", lambda s: s, "{:,.0f}"), ("store's processor, s", "carry_store", lambda s: s, "{:.2f}"),
    ("restore, s", "restore", lambda s: s, "{:.2f}"), ("and synced, s", "synced", lambda s: s, "{:.2f}"),
    ("processor, s", "restore_processor", lambda s: s, "{:.2f}"),
    ("memory, MiB", "restore_memory", lambda s: s / MIB, "{:.0f}"),
    ("first MiB, s", "first", lambda s: s, "{:.2f}"),
]


def table(title, took):
    shown = [column for column in COLUMNS if any(column[1] in found for found in took.values())]
    say(f"\n| {title} | " + " | ".join(column[0] for column in shown) + " |\n" + "|---" * (len(shown) + 1) + "|")
    for name, found in took.items():
        cells = []
        for _, key, scale, form in shown:
            values = [value for value in found.get(key, []) if value is not None]
            cells.append(form.format(scale(statistics.median(values))) if values else "")
        say(f"| {name} | " + " | ".join(cells) + " |")
    for what in ("carry", "restore", "synced"):
        ours = took["tensorfs"].get(what, [])
        others = {name: found[what] for name, found in took.items() if name != "tensorfs" and found.get(what)}
        if not others or not ours:
            continue
        # How much of the others' pace it has, round by round.
        ratios = {name: statistics.median(o / t for o, t in zip(times, ours)) for name, times in others.items()}
        best = [min(times[n] for times in others.values()) / ours[n] for n in range(len(ours))]
        all_of = ", ".join(f"{ratio:.2f} of {name}'s" for name, ratio in ratios.items())
        say(f"{what}: tensorfs has {statistics.median(best):.2f} of the fastest's pace ({all_of})")
    say("rounds: " + json.dumps({name: {key: [round(v, 2) if v else v for v in values] for key, values in found.items()
                                        if key in ("carry", "restore", "synced", "first")} for name, found in took.items()}))


def note(found, **values):
    for name, value in values.items():
        found.setdefault(name, []).append(value)


def turn(tool, store, base, plain, pool, found, name_of_first):
    store.new_bucket()
    source = pool if tool.name == "tensorfs" else plain
    tool.begin(store, pool) if tool.name == "tensorfs" else tool.begin(store)
    warm(source)
    settle(base)
    spent = tool.carry(source)
    size, objects = store.holds()
    note(found, carry=spent.seconds, carry_processor=spent.processor, carry_memory=spent.memory, bytes=size,
         objects=objects, carry_store=spent.store)
    restored(tool, base, plain, found)
    if name_of_first:
        settle(base)
        note(found, first=first_bytes(tool, base, plain, name_of_first))


def restored(tool, base, plain, found):
    settle(base)
    to = f"{base}/restored"
    begun = time.perf_counter()
    spent, at = tool.restore(plain, to)
    settle(base)
    # The mount of a restored pool, behind it, is no part of that.
    synced = spent.seconds + timed(lambda: settle(base)) if tool.name == "tensorfs" else time.perf_counter() - begun
    note(found, restore=spent.seconds, restore_processor=spent.processor, restore_memory=spent.memory, synced=synced)
    assert the_same(plain, at) > 0
    if tool.name == "tensorfs":
        tool.umount(to)
        to += ".pool"
    set_aside(base, to)


def timed(act):
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def in_turns(title, all_tools, store, base, plain, rounds, first=None):
    pool = fill_pool(all_tools[0], base, plain)
    took = {tool.name: {} for tool in all_tools}
    for n in range(rounds):
        for tool in all_tools[n % len(all_tools):] + all_tools[: n % len(all_tools)]:
            turn(tool, store, base, plain, pool, took[tool.name], first)
    table(title, took)
    shutil.rmtree(pool)
    shutil.rmtree(plain)


def large(all_tools, store, base, options):
    os.makedirs(plain := f"{base}/plain")
    for n in range(8):
        noise(f"{plain}/{n}.bin", 128 * MIB)
    in_turns("8 files of 128 MiB", all_tools, store, base, plain, options.rounds, "5.bin")


def small(all_tools, store, base, options):
    plain = f"{base}/plain"
    for n in range(10000):
        if n % 100 == 0:
            os.makedirs(f"{plain}/{n // 100:02}")
        noise(f"{plain}/{n // 100:02}/{n % 100:02}", 4096)
    in_turns("10,000 files of 4 KiB", all_tools, store, base, plain, options.rounds)


def checkpoints(all_tools, store, base, options):
    """Each of 20 tensors, of which two change from one to the next."""
    size, many = options.tensor_kib << 10, options.checkpoints
    header = header_of([f"layer{n:02}.weight" for n in range(20)], size)
    kept, all_bytes = f"{base}/kept", 0
    tensors = [os.urandom(size) for _ in range(20)]
    for step in range(many):
        os.makedirs(f"{kept}/step-{step:04}")
        for n in (2 * step % 20, (2 * step + 11) % 20):
            tensors[n] = os.urandom(size)
        with open(f"{kept}/step-{step:04}/model.safetensors", "wb") as file:
            file.write(header)
            all_bytes += len(header) + sum(file.write(tensor) for tensor in tensors)
    del tensors
    took = {tool.name: {} for tool in all_tools}
    for n in range(options.rounds):
        for tool in all_tools[n % len(all_tools):] + all_tools[: n % len(all_tools)]:
            store.new_bucket()
            one_by_one(tool, store, base, kept, many, took[tool.name])
    table(f"{many} checkpoints of {all_bytes / many / MIB:.1f} MiB, one by one", took)
    for name, found in took.items():
        say(f"{name}: {statistics.median(found['bytes']) / all_bytes:.3f} of the bytes that they have")
    shutil.rmtree(kept)


def one_by_one(tool, store, base, kept, many, found):
    plain, pool, at = f"{base}/plain", f"{base}/pool", f"{base}/at"
    os.makedirs(plain)
    if tool.name == "tensorfs":
        run(tool.program, "create", pool)
        tool.begin(store, pool)
        tool.mount(pool, at)
    else:
        tool.begin(store)
    spent = Spent()
    settle(base)
    for step in sorted(os.listdir(kept)):
        shutil.copytree(f"{kept}/{step}", f"{at if tool.name == 'tensorfs' else plain}/{step}")
        if tool.name == "tensorfs":
            run(tool.program, "seal", f"{at}/{step}")
            run("sync", "-f", at)
            tool.carry(pool, spent)
        else:
            tool.carry(plain, spent)
    size, objects = store.holds()
    note(found, carry=spent.seconds, carry_processor=spent.processor, carry_memory=spent.memory, bytes=size,
         objects=objects, carry_store=spent.store)
    if tool.name == "tensorfs":
        tool.umount(at)
        shutil.rmtree(pool)
        shutil.rmtree(plain)
        plain = kept
    restored(tool, base, plain, found)
    shutil.rmtree(f"{base}/plain", ignore_errors=True)


def first(all_tools, store, base, options):
    tool, size, many = all_tools[0], 64 * MIB, options.gib * 16
    pool, at = f"{base}/pool", f"{base}/at"
    run(tool.program, "create", pool)
    store.new_bucket()
    tool.begin(store, pool)
    tool.mount(pool, at)
    header = header_of([f"t{n}" for n in range(many)], size)
    rest = os.urandom(MIB - 16)
    with open(f"{at}/model.safetensors", "wb") as file:
        file.write(header)
        for n in range(many * 64):
            file.write(struct.pack("<QQ", n // 64, n % 64) + rest)
    run(tool.program, "seal", at)
    tool.umount(at)
    spent = tool.carry(pool)
    say(f"\n{options.gib} GiB were carried in {spent.seconds:.1f} s ({spent.processor:.1f} s of processor, "
        f"{spent.memory / MIB:.0f} MiB of memory)")
    shutil.rmtree(pool)
    say(f"\n| {options.gib} GiB: mounted, s | header | first MiB of a tensor | all 64 MiB | another one, as .npy |")
    say("|---|---|---|---|---|")
    rows = []
    for n in range(max(options.rounds, 5)):
        settle(base)
        rows.append(first_tensor(tool, f"{base}/made", at, many // 2 + n, many // 4 + n))
        say("| " + " | ".join(f"{took:.2f}" for took in rows[-1]) + " |")
    say("| median: " + " | ".join(f"{statistics.median(column):.2f}" for column in zip(*rows)) + " |")


def first_tensor(tool, pool, at, wanted, other):
    begun = time.perf_counter()
    tool.mount(pool, at, *tool.from_store())
    times = [time.perf_counter() - begun]
    file = os.open(f"{at}/model.safetensors", os.O_RDONLY)
    (length,) = struct.unpack("<Q", os.pread(file, 8, 0))
    place = 8 + length + json.loads(os.pread(file, length, 8))[f"t{wanted}"]["data_offsets"][0]
    times.append(time.perf_counter() - begun)
    assert struct.unpack("<QQ", os.pread(file, MIB, place)[:16]) == (wanted, 0)
    times.append(time.perf_counter() - begun)
    for n in range(1, 64):
        assert struct.unpack("<QQ", os.pread(file, MIB, place + n * MIB)[:16]) == (wanted, n)
    times.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    with open(f"{at}/.tensorfs/tensors/model.safetensors/t{other}.npy", "rb") as tensor:
        assert struct.unpack("<QQ", tensor.read()[-64 * MIB:][:16]) == (other, 0)
    times.append(time.perf_counter() - begun)
    os.close(file)
    tool.umount(at)
    shutil.rmtree(pool)
    return times


# --- saves while something is carried ------------------------------------------------------------------


def save(path, size, block):
    """Of a file that is there, its bytes are written over."""
    begun = time.perf_counter()
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    for at in range(0, size, len(block)):
        os.write(file, block[: size - at])
    os.fsync(file)
    os.close(file)
    return time.perf_counter() - begun


def saves(all_tools, store, base, options):
    ordinary(all_tools, store, base, options, "a store on the same disk and processors")
    memory = f"/dev/shm/second_copy-{os.getpid()}"
    other = Store(options.weed, memory)
    try:
        other.give_way()
        ordinary(all_tools, other, base, options, "a store in memory, that gives way (as another machine's)")
    finally:
        other.end()


def ordinary(all_tools, store, base, options, title):
    tool, others = all_tools[0], [other for other in all_tools if other.name == "rclone"]
    pool, at, plain = f"{base}/pool", f"{base}/at", f"{base}/plain"
    os.makedirs(plain)
    for n in range(8):
        noise(f"{plain}/{n}.bin", 128 * MIB)
    run(tool.program, "create", pool)
    tool.begin(store, pool)
    tool.mount(pool, at)
    for copy in range(2):
        shutil.copytree(plain, f"{at}/backlog{copy}")
        # Nothing of it is twice.
        for n in range(8):
            with open(f"{at}/backlog{copy}/{n}.bin", "r+b") as file:
                for place in range(128):
                    os.pwrite(file.fileno(), struct.pack("<QQ", copy, n), place * MIB)
    run(tool.program, "seal", at)
    block, small_block = os.urandom(MIB), os.urandom(4096)
    took = {name: {64 * MIB: [], 4096: []} for name in ["nothing", "tensorfs"] + [other.name for other in others]}
    behind = []
    # The memory of the large ones is had before: where a machine's free memory is its host's, as here, the first use of
    # it takes up to ten times as long as the save, whoever carries.
    over = f"{at}/over"
    os.makedirs(over)
    for n in range(8):
        save(f"{over}/l{n}", 64 * MIB, block)
    for n in range(options.rounds):
        names = list(took)
        for name in names[n % len(names):] + names[: n % len(names)]:
            store.new_bucket()
            warm(at)
            carrier, bandwidth = None, []
            if name == "tensorfs":
                tool.begin(store, pool)
                carrier = [tool.program, "remote", "carry", pool, "--watch", "--interval", "1", "--progress", "none"]
                env, log = tool.env, tool.log
            elif name != "nothing":
                (other,) = others
                other.begin(store)
                carrier = ["ionice", "-c3", "nice", "-n", "19", other.program, *other.carrying(plain)]
                env, log = other.env, other.log
            settle(base)
            if carrier:
                carrier = subprocess.Popen(carrier, env=env, stdout=log, stderr=log, preexec_fn=dies_with_us)
                while store.holds()[1] < 3:
                    assert carrier.poll() is None, f"{name} carries nothing"
                    time.sleep(0.02)
            os.makedirs(f"{at}/saves")
            large, little = [], []
            until = time.perf_counter() + 20
            while len(large) < 8 and time.perf_counter() < until and (carrier is None or carrier.poll() is None):
                if carrier and len(large) % 2 == 0 and name == "tensorfs" and store.holds("x/log/")[1] > 0:
                    break
                large.append(save(f"{over}/l{len(large)}", 64 * MIB, block))
                little += [save(f"{at}/saves/s{len(large)}-{n}", 4096, small_block) for n in range(25)]
            if carrier:
                carrier.kill()
                carrier.wait()
                behind.append((name, len(large), store.holds()[0] // MIB))
            took[name][64 * MIB].append(statistics.median(large))
            took[name][4096].append(statistics.median(little))
            shutil.rmtree(f"{at}/saves")
            run("sync", "-f", at)
    say(f"\n| {title}: what carries | 64 MiB written over and fsync, ms | pace | a new file of 4 KiB and fsync, ms | pace |\n|---|---|---|---|---|")
    for name, found in took.items():
        cells = []
        for size in (64 * MIB, 4096):
            pace = statistics.median(w / c for w, c in zip(took["nothing"][size], found[size]))
            cells.append(f"{statistics.median(found[size]) * 1e3:.2f} | {pace:.2f}")
        say(f"| {name} | " + " | ".join(cells) + " |")
    say("rounds: " + json.dumps({name: {size: [round(s * 1e3, 2) for s in rounds] for size, rounds in found.items()}
                                 for name, found in took.items()}))
    say("who carried, large saves beside, MiB put meanwhile: " + json.dumps(behind))
    tool.umount(at)
    shutil.rmtree(pool)
    shutil.rmtree(plain)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("directory")
    every = {"large": large, "small": small, "checkpoints": checkpoints, "first": first, "saves": saves}
    parser.add_argument("--only", nargs="+", choices=list(every), default=list(every))
    parser.add_argument("--tools", nargs="+", help="these alone, and tensorfs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument("--tensor-kib", type=int, default=512)
    parser.add_argument("--gib", type=int, default=10)
    parser.add_argument("--weed", default=f"{HERE}/../../target/venv/s3/bin/weed")
    options = parser.parse_args()
    base = os.path.abspath(options.directory)
    os.makedirs(base, exist_ok=True)
    for left in ("plain", "pool", "kept", "restored", "restored.pool", "first", "first.pool", "at", "made", "gone"):
        assert not os.path.exists(f"{base}/{left}"), f"{base}/{left} is there"
    all_tools = [tool for tool in tools(options.program, base)
                 if tool.name == "tensorfs" or not options.tools or tool.name in options.tools]
    store = Store(options.weed, f"{base}/store")
    try:
        for part in options.only:
            every[part](all_tools, store, base, options)
    finally:
        for mounted in ("at", "first", "restored"):
            if os.path.ismount(f"{base}/{mounted}"):
                subprocess.run(["umount", "-l", f"{base}/{mounted}"])
        store.end()
        shutil.rmtree(f"{base}/gone", ignore_errors=True)


if __name__ == "__main__":
    main()

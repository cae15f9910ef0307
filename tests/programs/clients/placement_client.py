"""examples/placement without PyTorch: the server, its agents, the tiers, and what happens on a bad day.

The training job is a stand-in: each step copies every array into a buffer of the tier that the map names, and what is
in the tier
`pm` must be on its medium before the step goes on."""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/placement")
sys.path.insert(0, EXAMPLE)

import numpy as np
from advisor import Advisor
from agent import Room, key_of, make
from common import check, main, refuses
from tiers import PAGE, Tier


def from_file(path, size):
    array = np.memmap(path, np.uint8, "r+", shape=(size,))
    return array, array.ctypes.data


class Server:
    """server.py as a process of its own; its socket is not on the mount."""

    def __init__(self, *options):
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "socket")
        self.start(*options)

    def start(self, *options):
        command = [sys.executable, os.path.join(EXAMPLE, "server.py"), self.path, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        check(self.process.stdout.readline() == f"listening on {self.path}\n", "the server listens")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.directory.cleanup()


# Small ones that cost a sync each, and large ones that fill the faster tier with a few: which is better there is to be
# found out.
SMALL, LARGE = 16 << 10, 256 << 10
ALLOCATIONS = [
    {"kind": kind, "name": f"{module}.{n}", "shape": [size // 4], "bytes": size}
    for kind, module, size, count in [
        ("activation", "layer1", LARGE, 4),
        ("activation", "layer2", SMALL, 24),
        ("weight", "layer1", LARGE, 2),
        ("weight", "layer2", SMALL, 12),
    ]
    for n in range(count)
]
TIERS = [{"name": "dram", "bytes": 36 * SMALL + LARGE}, {"name": "pm", "bytes": None}]


class Job:
    def __init__(self, directory):
        limit = TIERS[0]["bytes"]
        self.dram = Tier("dram", os.path.join(directory, "dram"), from_file, limit)
        self.pm = Tier("pm", os.path.join(directory, "pm"), from_file, write_through=True)
        self.arrays = {key_of(a): np.full(a["bytes"], 7, np.uint8) for a in ALLOCATIONS}

    def step(self, plan):
        """Returns how long it took and how often it waited for the medium."""
        taken = []
        for allocation in ALLOCATIONS:
            tier = self.dram if plan.get(key_of(allocation)) == "dram" else self.pm
            try:
                taken.append((allocation, tier.take(allocation["bytes"])))
            except OSError:
                taken.append((allocation, self.pm.take(allocation["bytes"])))
        begun, before = time.perf_counter(), self.pm.syncs
        for allocation, buffer in taken:
            buffer.memory[: allocation["bytes"]] = self.arrays[key_of(allocation)]
            if buffer.tier.write_through:
                buffer.sync()
        seconds = time.perf_counter() - begun
        for _, buffer in taken:
            buffer.tier.give(buffer)
        return seconds, self.pm.syncs - before

    def close(self):
        self.dram.close()
        self.pm.close()


def gain(directory):
    """The bandit's maps are better than random ones: in syncs, which it is never told of, and so in time, which is all
    it is told.

    It learns from what it measures on a machine that others use, too, and may be misled once: it has three attempts."""
    check(any(attempt(directory, seed) for seed in range(1, 4)), "no better than chance")


def attempt(directory, seed):
    options = ("--seed", str(seed))
    with Server("--agent", "bandit", *options) as bandit, Server("--agent", "random", *options) as chance:
        job = Job(directory)
        advisors = [Advisor(server.path, patience=60) for server in (bandit, chance)]
        plans = [advisor.begin(ALLOCATIONS, TIERS) for advisor in advisors]
        measured = ([], [])
        # In turns, so that whatever else the machine does falls on both.
        for _ in range(60):
            for which, advisor in enumerate(advisors):
                seconds, syncs = job.step(plans[which])
                measured[which].append((seconds, syncs))
                plans[which] = advisor.step(seconds)
        job.close()
    seconds, syncs = ([statistics.median(step[at] for step in steps[-20:]) for steps in measured] for at in (0, 1))
    print(f"seed {seed}, median of the last 20 steps: bandit {seconds[0]:.6f} s, {syncs[0]} syncs; "
          f"random {seconds[1]:.6f} s, {syncs[1]}")
    return syncs[0] < 0.9 * syncs[1] and seconds[0] < seconds[1]


def agents(_):
    """What every agent's map holds to."""
    for name in ("bandit", "random", "weight=pm,activation=dram"):
        agent = make(name, 1)
        agent.begin(ALLOCATIONS, TIERS)
        for step in range(50):
            plan = agent.place()
            check(sorted(plan) == sorted(map(key_of, ALLOCATIONS)), name, "names every allocation")
            check(set(plan.values()) <= {"dram", "pm"}, name, "names only tiers that there are")
            if "=" in name:
                check(all((tier == "pm") == key.startswith("weight:") for key, tier in plan.items()), "by the flag")
            else:
                used = sum(a["bytes"] for a in ALLOCATIONS if plan[key_of(a)] == "dram")
                check(used <= TIERS[0]["bytes"], name, "keeps the limit", used)
            agent.learn(0.1 + step % 7 / 100)
        maps = []
        for _ in range(2):
            agent = make(name, 5)
            agent.begin(ALLOCATIONS, TIERS)
            maps.append([agent.place() for _ in range(5)])
        check(maps[0] == maps[1], name, "with the same seed gives the same maps")
    refuses(ValueError, lambda: make("oracle"))
    room = Room([{"name": "a", "bytes": 10}, {"name": "b", "bytes": 5}])
    check([room.first(["a", "b"], n) for n in (6, 5, 5, 4)] == ["a", "b", "b", "a"], "room")


def protocol(_):
    """Bad requests are answered with an error, and harm neither the connection nor the others."""
    with Server() as server:
        good = socket.socket(socket.AF_UNIX)
        good.connect(server.path)
        lines = good.makefile("rw")

        def ask(text):
            lines.write(text + "\n")
            lines.flush()
            return json.loads(lines.readline())

        whole = {"begin": {"allocations": ALLOCATIONS, "tiers": TIERS}}
        check("error" in ask('{"seconds": 1}'), "seconds before begin")
        check(len(ask(json.dumps(whole))["map"]) == len(ALLOCATIONS), "a map")
        bad = ["", "x", "1", "null", "[]", '"begin"', "{}", '{"begin": 1}', '{"begin": {}}', '{"seconds": "x"}']
        bad += ['{"seconds": -1}', '{"seconds": NaN}', '{"seconds": 1e999}', '{"seconds": null}', "[" * 5000]
        bad += ['{"begin": {"allocations": [], "tiers": []}}']
        bad += ['{"begin": {"allocations": [1], "tiers": [{"name": "a"}]}}']
        for field, value in [("kind", "gradient"), ("name", 1), ("bytes", -1), ("bytes", "many"), ("bytes", None)]:
            wrong = {**ALLOCATIONS[0], field: value}
            bad.append(json.dumps({"begin": {"allocations": [wrong], "tiers": TIERS}}))
        for text in bad:
            check("error" in ask(text), "not refused:", text[:100])
        answer = ask('{"seconds": 0.5}')
        check(answer["steps"] == 1 and len(answer["map"]) == len(ALLOCATIONS), "goes on as if nothing had been", answer)
        # One that hangs up in the middle of a line, and one that says nothing.
        torn = socket.socket(socket.AF_UNIX)
        torn.connect(server.path)
        torn.sendall(b'{"begin": {"alloc')
        torn.close()
        silent = socket.socket(socket.AF_UNIX)
        silent.connect(server.path)
        check(ask('{"seconds": 0.5}')["steps"] == 2, "others are not disturbed")
        second = subprocess.run([*server.process.args], capture_output=True, text=True)
        check(second.returncode == 1 and "in use" in second.stderr, "two servers on one socket:", second.stderr)
        for one in (good, silent):
            one.close()
    command = [sys.executable, os.path.join(EXAMPLE, "server.py"), "/nonexistent/socket"]
    refused = subprocess.run(command, capture_output=True, text=True)
    check(refused.returncode == 1 and refused.stderr.count("\n") == 1, "one line:", refused.stderr)


def gone(_):
    """A server that is not there, dies, hangs, talks nonsense or comes back: the job goes on with its defaults."""
    said = []
    with Server() as server:
        advisor = Advisor(server.path, patience=60, retry=3, say=said.append)
        check(len(advisor.begin(ALLOCATIONS, TIERS)) == len(ALLOCATIONS) and said == [], "a map")
        server.kill()
        for _ in range(3):
            check(advisor.step(0.1) == {}, "an empty map")
        check(len(said) == 1 and "defaults" in said[0], "said once:", said)
        server.start()
        check(len(advisor.step(0.1)) == len(ALLOCATIONS) and "answers" in said[-1], "it is asked again", said)
        # A server that is stopped takes requests, and never answers.
        os.kill(server.process.pid, signal.SIGSTOP)
        os.waitpid(server.process.pid, os.WUNTRACED)
        advisor.patience = 0.2
        check(advisor.step(0.1) == {} and "timed out" in said[-1], "a server that hangs:", said[-1])
        check(advisor.step(0.1) == {} and len(said) == 3, "not asked, not waited for, nothing said", said)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "nonsense")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        answers = (b"", b"\n", b"nonsense\n", b"[]\n", b'{"map": 1}\n', b'{"error": "no"}\n', b"\xff\n")
        for answer in (*answers, b"[" * 9999 + b"\n"):
            advisor = Advisor(path, patience=60, say=said.append)
            child = os.fork()
            if child == 0:
                connection = listener.accept()[0]
                connection.recv(1 << 16)
                connection.sendall(answer)
                connection.close()
                os._exit(0)
            check(advisor.begin(ALLOCATIONS[:1], TIERS) == {}, "taken for a map:", answer)
            os.waitpid(child, 0)
            advisor.close()


def full(directory):
    """A tier that is full says so instead of taking the process down, and what is given back can be taken again."""
    tier = Tier("dram", os.path.join(directory, "full"), from_file, limit=10 * PAGE)
    buffers = [tier.take(PAGE * 3 - 5) for _ in range(3)]
    check("36864 of 40960" in refuses(OSError, lambda: tier.take(2 * PAGE)), "says how full it is")
    tier.give(buffers.pop())
    check(tier.take(4 * PAGE).size == 4 * PAGE, "an idle buffer makes room")
    refuses(OSError, lambda: tier.take(PAGE))
    tier.close()
    # The medium itself: as many bytes as nobody has.
    tier = Tier("dram", os.path.join(directory, "full"), from_file)
    refuses(OSError, lambda: tier.take(1 << 50))
    check(tier.taken == 0, "nothing is taken")
    check(sum(len(files) for _, _, files in os.walk(tier.directory)) == 0, "nothing is left of it")
    tier.close()


def leftovers(directory):
    """Buffers of a process that was killed are removed by the next; those of one that lives are not."""
    place = os.path.join(directory, "killed")
    code = f"""
import sys
sys.path[:0] = {sys.path[:2]!r}
from placement_client import from_file
from tiers import Tier
tier = Tier("pm", {place!r}, from_file)
tier.take(100_000).memory[:] = 1
print("taken", flush=True)
sys.stdin.read()
"""
    children = []
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        check(child.stdout.readline() == "taken\n", "a child")
        children.append(child)
    scratch = lambda: [name for name in os.listdir(place) if name.startswith("activations.")]  # noqa: E731
    check(len(scratch()) == 2, "both")
    children[0].kill()
    children[0].wait()
    tier = Tier("pm", place, from_file)
    check(len(scratch()) == 2, "that of the one that lives, and ours", scratch())
    tier.close()
    children[1].kill()
    children[1].wait()
    Tier("pm", place, from_file).close()
    check(scratch() == [], "none")


def tiers(directory, dram):
    """On a mount whose pool has the tiers `dram` and `small`: what is taken is where it should be, and a full one says
    so."""
    held = lambda place: sum(len(files) for _, _, files in os.walk(os.path.join(place, "segments")))  # noqa: E731
    opened = {name: Tier(name, os.path.join(directory, name), from_file) for name in ("pm", "dram", "small")}
    check(all(tier.apart is None for tier in opened.values()), "tiers of the pool:",
          [tier.apart for tier in opened.values()])
    for name, tier in opened.items():
        before = held(dram)
        buffer = tier.take(100_000)
        buffer.memory[:] = 5
        weight = tier.new_weight("w", 5000)
        weight.memory[:] = 6
        tier.settle("w", weight)
        for path in (buffer.path, tier.weight_path("w")):
            found = os.getxattr(path, "user.tensorfs.tier").decode()
            check(found == name, path, "is in", found)
        check(np.load(tier.weight_path("w")).tobytes() == b"\x06" * 5000, "a weight is an array")
        check(os.getxattr(tier.weight_path("w"), "user.tensorfs.tensors") == b"1", "a weight is a tensor")
        check(held(dram) - before == (2 if name == "dram" else 0), "where the bytes are:", name)
        buffer.sync()
    check("No space left" in refuses(OSError, lambda: [opened["small"].take(1 << 20) for _ in range(100)]), "full")
    check(opened["pm"].take(64 << 20).size == 64 << 20, "the others are not")
    unknown = Tier("optane", os.path.join(directory, "optane"), from_file)
    check("no pool with a tier 'optane'" in unknown.apart, "unknown")
    for tier in opened.values():
        tier.close()


def write(directory):
    for part in (agents, protocol, gone, full, leftovers, gain):
        part(directory)


def verify(directory):
    names = [name for place in ("pm", "dram") for name in os.listdir(os.path.join(directory, place))]
    check(all(not name.startswith("activations.") for name in names))


if __name__ == "__main__":
    main(write, verify, tiers=tiers)

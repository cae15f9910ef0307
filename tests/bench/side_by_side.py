"""What those who come from other programs had, beside what they have here.

    side_by_side.py PROGRAM DIRECTORY KERNELS [ANCESTOR]

DIRECTORY gets a pool, its mount and bare files. KERNELS has the libraries of examples/kernels, as `make` builds them;
ANCESTOR is tests/bench/ancestor, built. Python needs NumPy, smdebug and, for the placement, PyTorch; what is missing is
left out, and the environment's PARTS names those that are wanted. Prints tables of the median and the least of several
rounds, in which everything takes its turn.
"""

import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "../../examples")
PROGRAM, BASE, LIBRARIES = (os.path.abspath(path) for path in sys.argv[1:4])
ANCESTOR = os.path.abspath(sys.argv[4]) if len(sys.argv) > 4 else None
ROUNDS = 7
MOUNT, BARE = os.path.join(BASE, "m"), os.path.join(BASE, "bare")
sys.path[:0] = [os.path.join(EXAMPLES, name) for name in ("shelf", "kernels", "placement")]


def timed(act):
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def table(title, rounds, unit, scale):
    print(f"\n| {title} | median, {unit} | least |\n|---|---|---|")
    for name, seconds in rounds.items():
        print(f"| {name} | {statistics.median(seconds) * scale:.3g} | {min(seconds) * scale:.3g} |", flush=True)


def in_turn(ways, rounds=ROUNDS):
    """Seconds of each, round by round; the first one does not count."""
    took = {name: [] for name in ways}
    for n in range(rounds + 1):
        for name in sorted(ways, reverse=n % 2 == 1):
            seconds = ways[name]()
            if n > 0:
                took[name].append(seconds)
    return took


# --- a shelf that is opened again ----------------------------------------------------------------------

# A new process, which has NumPy: from there to the first number, and to the sum of all.
OPEN = {
    "shelf": "from shelf import shelf; s = shelf({0!r}); arrays = lambda: (s[n] for n in s.items)",
    "np.load": "import glob; arrays = lambda: map(np.load, sorted(glob.glob({0!r} + '/*.npy')))",
    "np.load, mapped": "import glob; arrays = lambda: (np.load(p, mmap_mode='r') "
    "for p in sorted(glob.glob({0!r} + '/*.npy')))",
    "pickle": "import pickle; arrays = lambda: pickle.load(open({0!r} + '/all.pickle', 'rb')).values()",
}
REOPEN = """
import sys, time, numpy as np
sys.path.insert(0, {path!r})
begun = time.perf_counter()
{how}
first = next(iter(arrays()))[0, 0]
opened = time.perf_counter() - begun
total = sum(float(a.sum()) for a in arrays())
print(opened, time.perf_counter() - begun)
"""


def shelves():
    from shelf import shelf

    arrays = {f"a{n:02}": np.random.default_rng(n).random((512, 1024)) for n in range(32)}
    on_shelf = shelf(os.path.join(MOUNT, "shelf"))
    for name, value in arrays.items():
        on_shelf[name] = value
        np.save(os.path.join(BARE, name + ".npy"), value)
    with open(os.path.join(BARE, "all.pickle"), "wb") as file:
        pickle.dump(arrays, file, protocol=5)
    places = {name: os.path.join(MOUNT, "shelf") if name == "shelf" else BARE for name in OPEN}
    rest = {name: [] for name in OPEN}

    def opened(name):
        code = REOPEN.format(path=os.path.join(EXAMPLES, "shelf"), how=OPEN[name].format(places[name]))
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        rest[name].append(float(said[1]))
        return float(said[0])

    took = in_turn({name: lambda name=name: opened(name) for name in OPEN})
    table("32 arrays of 4 MiB, in the host's cache, in a new process: to the first number", took, "ms", 1e3)
    table("to the sum of all", {name: seconds[1:] for name, seconds in rest.items()}, "ms", 1e3)


# --- arrays by key -------------------------------------------------------------------------------------


class Held:
    """A map in memory, which keeps copies."""

    def __init__(self):
        self.map = {}

    def save(self, key, array):
        self.map[key] = array.copy()

    def get(self, key):
        return self.map[key]


def keys():
    from kernels import Kernels

    os.makedirs(os.path.join(MOUNT, "keys"), exist_ok=True)
    stores = {"a map in this process": Held(), "kernels on the mount": Kernels(LIBRARIES, os.path.join(MOUNT, "keys"))}
    for size, many in [(4 << 10, 200), (1 << 20, 30)]:
        array = np.random.default_rng(1).integers(0, 255, size, np.uint8)

        def saved(store):
            return timed(lambda: [store.save(f"k{n}", array) for n in range(many)]) / many

        def got(store):
            return timed(lambda: [store.get(f"k{n}")[size // 2] for n in range(many)]) / many

        for what, act in [("save", saved), ("get, and read a byte", got)]:
            ways = {name: lambda store=store: act(store) for name, store in stores.items()}
            table(f"{what}, {size >> 10} KiB", in_turn(ways), "us", 1e6)


# --- steps of smdebug ----------------------------------------------------------------------------------


def begin_trial(directory):
    from smdebug.core.collection_manager import CollectionManager

    collections = CollectionManager()
    collections.set_num_workers(1)
    collections.export(directory, "worker_0_collections.json")


def smdebug_step(directory, step):
    from smdebug.core.writer import FileWriter

    writer = FileWriter(trial_dir=directory, step=step, worker="worker_0")
    for n in range(10):
        writer.write_tensor(tdata=TENSOR, tname=f"layer{n}")
    writer.flush()
    writer.close()


TENSOR = np.random.default_rng(0).random(8192)
STEPS = 40


def steps():
    from smdebug.trials import create_trial

    with tempfile.TemporaryDirectory(dir=BASE) as one:
        smdebug_step(one, 0)
        all_ = [os.path.join(at, name) for at, _, names in os.walk(one) for name in names]
        (events,) = [path for path in all_ if path.endswith("tfevents")]
        events = shutil.copy(events, os.path.join(BASE, "events"))
    took, rest = {"smdebug on the mount": [], "smdebug, bare": []}, {}
    for n in range(3):
        for name, place in [("smdebug on the mount", MOUNT), ("smdebug, bare", BARE)]:
            trial = os.path.join(place, f"trial{n}")
            begin_trial(trial)
            took[name] += [timed(lambda step=step: smdebug_step(trial, step)) for step in range(STEPS)]

            def read():
                opened = create_trial(trial)
                opened.wait_for_steps([STEPS - 1])
                return sum(opened.tensor(t).value(s)[0] for t in opened.tensor_names() for s in opened.steps())

            with open(os.path.join(trial, "training_job_end.ts"), "w"):
                pass
            stored = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(trial) for name in names)
            rest.setdefault(name, []).append((stored, timed(read)))
        if ANCESTOR:
            pool = os.path.join(BARE, f"pmemobj{n}")
            said = subprocess.run([ANCESTOR, pool, str(256 << 20), "@" + events, str(STEPS)], capture_output=True,
                                  text=True, check=True, env={**os.environ, "PMEM_IS_PMEM_FORCE": "0"})
            *seconds, stored, opened = said.stdout.split()
            took.setdefault("libpmemobj, the same events", []).extend(map(float, seconds))
            rest.setdefault("libpmemobj, the same events", []).append((int(stored), float(opened)))
            os.unlink(pool)
    table("a step of 10 tensors of 64 KiB", took, "ms", 1e3)
    print(f"\n| {STEPS} steps | bytes | opened again, and all of it read, ms (median) |\n|---|---|---|")
    for name, found in rest.items():
        print(f"| {name} | {found[0][0]:,} | {statistics.median(s for _, s in found) * 1e3:.3g} |", flush=True)


# --- placement -----------------------------------------------------------------------------------------

PLAIN = """
import sys, time, torch
sys.path.insert(0, {path!r})
from train import SmallResNet, batches
torch.manual_seed(0)
torch.set_num_threads(1)
model, data = SmallResNet(), batches(0, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range({steps} + 1):
    pictures, labels = next(data)
    begun = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(pictures), labels).backward()
    optimizer.step()
    if step > {steps} // 2:
        print(time.perf_counter() - begun)
"""


def placement(steps=int(os.environ.get("STEPS", "60"))):
    import torch

    memory = tempfile.mkdtemp(dir="/dev/shm")
    path = os.path.join(EXAMPLES, "placement")

    def plain():
        code = PLAIN.format(path=path, steps=steps)
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return list(map(float, said.stdout.split()))

    def placed(name, *options, limit="", agent=None):
        tiers = [f"--tier=dram={memory}/{name}{limit}", f"--tier=pm={MOUNT}/placement/{name}", "--write-through=pm"]
        command = [sys.executable, os.path.join(path, "train.py"), f"--steps={steps}", *tiers, *options]
        server = None
        if agent:
            socket = os.path.join(memory, agent + ".socket")
            server = subprocess.Popen([sys.executable, os.path.join(path, "server.py"), socket, "--agent", agent],
                                      stdout=subprocess.DEVNULL)
            command += ["--agent", socket, "--patience=60"]
            while not os.path.exists(socket):
                time.sleep(0.05)
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        if server:
            server.kill()
            server.wait()
        *lines, _ = map(json.loads, said.stdout.splitlines())
        return [line["seconds"] for line in lines[steps // 2 + 1 :]]

    ways = {
        "plain PyTorch": plain,
        "the hooks, all in ordinary memory": lambda: placed("memory"),
        "all in DRAM": lambda: placed("dram", "--weights=dram", "--activations=dram"),
        "all in the pool, written through": lambda: placed("pm", "--weights=pm", "--activations=pm"),
        "a random map, 10 MiB of DRAM": lambda: placed("random", limit=":10M", agent="random"),
        "the bandit's map, 10 MiB of DRAM": lambda: placed("bandit", limit=":10M", agent="bandit"),
    }
    took = {name: way() for name, way in ways.items()}
    shutil.rmtree(memory)
    table(f"a step, of the second half of {steps}; PyTorch {torch.__version__}", took, "ms", 1e3)


def main():
    os.environ.setdefault("SMDEBUG_LOG_LEVEL", "error")
    parts = os.environ.get("PARTS", "").split() or ["shelves", "keys", "steps", "placement"]
    for path in (MOUNT, BARE):
        os.makedirs(path)
    subprocess.run([PROGRAM, "create", BASE + "/p"], check=True, capture_output=True)
    subprocess.run([PROGRAM, "mount", BASE + "/p", MOUNT, "--log", BASE + "/log"], check=True, capture_output=True)
    try:
        for part in [globals()[name] for name in parts]:
            try:
                part()
            except ImportError as error:
                print(f"\n{part.__name__}: left out ({error})")
    finally:
        subprocess.run([PROGRAM, "umount", MOUNT], check=True, capture_output=True)


main()

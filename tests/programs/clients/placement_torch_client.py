"""examples/placement with an unmodified PyTorch: `write` trains with weights and activations in every tier, `verify`
finds the weights
in a new process. (Large: needs torch.)"""

import concurrent.futures
import ctypes
import functools
import json
import os
import signal
import subprocess
import sys

from common import check, main
from memory import anonymous, frames
from placement_client import EXAMPLE, Server

import numpy as np
import torch
from torch import nn

import placement
from placement import Placement, open_tier
from train import SmallResNet, batches

TRAIN = os.path.join(EXAMPLE, "train.py")
MIB = 1 << 20


def train(*options, steps=6):
    """The lines that train.py prints, the summary apart, and what it says."""
    run = subprocess.run([sys.executable, TRAIN, "--steps", str(steps), *options], capture_output=True, text=True)
    check(run.returncode == 0, "train.py:", run.stderr)
    *lines, summary = map(json.loads, run.stdout.splitlines())
    return lines, summary, run.stderr


@functools.cache
def undisturbed():
    """What a run with everything in memory comes to."""
    return results(*train()[:2])


def results(lines, summary):
    return [line["loss"] for line in lines], summary["weights"]


def the_same_wherever_it_is(directory):
    """Losses and weights are equal, bit for bit, with everything in memory, in either tier, in both by chance, and by
    an agent's map."""
    expected = undisturbed()
    tiers = lambda name: [f"--tier={tier}={directory}/{name}/{tier}" for tier in ("dram", "pm")]  # noqa: E731
    for name, options in [
        ("dram", ["--weights=dram", "--activations=dram"]),
        ("pm", ["--weights=pm", "--activations=pm", "--write-through=pm"]),
        ("flags", ["--weights=pm", "--activations=dram"]),
    ]:
        lines, summary, said = train(*tiers(name), *options)
        check(results(lines, summary) == expected, name, results(lines, summary), expected)
        check(summary["fallbacks"] == 0, name, summary)
        last = lines[-1]
        if name == "flags":
            # Activations are stored in each step, weights only once.
            check(last["dram"]["stored"] > 20 * MIB and last["pm"]["stored"] == 0, last)
            check(lines[0]["pm"]["stored"] == summary["bytes"] - last["dram"]["stored"], "all weights:", lines[0])
        else:
            other = {"dram": "pm", "pm": "dram"}[name]
            check(last[name]["stored"] > 20 * MIB and last[other]["stored"] == 0, last)
    for agent in ("random", "bandit"):
        with Server("--agent", agent) as server:
            options = [*tiers(agent), "--tier", f"dram={directory}/{agent}/dram:10M"]
            options += ["--agent", server.path, "--patience=60"]
            lines, summary, _ = train(*options[1:])
        check(results(lines, summary) == expected, agent, results(lines, summary), expected)
        check(all(line["dram"]["taken"] <= 10 * MIB for line in lines), "the limit")
        check(all(sum(line[tier]["stored"] for line in lines) > 0 for tier in ("dram", "pm")), "both are used")


def by_the_map(directory):
    """Each allocation goes where the map says: what is stored in a tier is to the byte what the map names for it."""
    torch.manual_seed(1)
    model = SmallResNet()
    tiers = [open_tier(name, f"{directory}/map/{name}") for name in ("dram", "pm")]
    placed = Placement(model, tiers)
    pictures, labels = next(batches(1, 4))

    def step(plan):
        before = {tier.name: tier.stored for tier in tiers}
        with placed.step(plan):
            nn.functional.cross_entropy(model(pictures), labels).backward()
        return {tier.name: tier.stored - before[tier.name] for tier in tiers}

    check(step({}) == {"dram": 0, "pm": 0}, "all in memory")
    allocations = list(placed.allocations.values())
    check({a.kind for a in allocations} == {"weight", "activation"}, "flags")
    names = {a.name for a in allocations if a.kind == "weight"}
    check(names == set(model.state_dict()), "a weight is called what its model calls it")
    check("layer1.0.conv1#0" in {a.name for a in allocations if a.kind == "activation"},
          "an activation after its module")
    plans = [
        {a.key: "dram" if a.kind == "activation" else "pm" for a in allocations},
        {a.key: ("pm", "dram", "memory")[number % 3] for number, a in enumerate(allocations)},
        {a.key: "pm" for a in allocations if "layer2" in a.name},
    ]
    where = {}
    for plan in plans:
        stored = step(plan)
        expected = {"dram": 0, "pm": 0}
        for a in allocations:
            tier = plan.get(a.key, "memory")
            # Weights are stored when they move, activations in each step.
            if tier != "memory" and (a.kind == "activation" or where.get(a.name) != tier):
                expected[tier] += a.bytes
            if a.kind == "weight":
                where[a.name] = tier
        check(stored == expected, "stored", stored, "not", expected)
        for a in allocations:
            for tier in tiers:
                if a.kind == "weight":
                    check(tier.has(a.name) == (plan.get(a.key) == tier.name), a, tier.name, plan.get(a.key))
    check(step(plans[0])["pm"] > 0 and step(plans[0])["pm"] == 0, "the second time they are there")
    placed.close()


def mapped(directory):
    """A weight is the file's memory: another process that maps the file has the very same pages, and sees each step."""
    model = nn.Linear(256, 256)
    tiers = [open_tier("pm", f"{directory}/mapped")]
    placed = Placement(model, tiers, {"weight": "pm"})
    with placed.step():
        model(torch.ones(1, 256)).sum().backward()
    path = tiers[0].weight_path("weight")
    code = f"import numpy as np, sys\na = np.load({path!r}, mmap_mode='r')\n"
    code += "for line in sys.stdin: print(a[0, 7], a.ctypes.data, a.sum() > 1e30, flush=True)\n"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask():
        other.stdin.write("\n")
        other.stdin.flush()
        return other.stdout.readline().split()

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(3):
        with placed.step():
            optimizer.zero_grad()
            model(torch.ones(1, 256)).sum().backward()
            optimizer.step()
        value, address, _ = ask()
        check(abs(float(value) - model.weight[0, 7].item()) < 1e-5, "a step is seen at once")
    if os.geteuid() == 0:
        ours = frames(os.getpid(), model.weight.data_ptr(), 256 * 256 * 4)
        check(all(ours) and ours == frames(other.pid, int(address), 256 * 256 * 4), "not the same memory")
    else:
        print("physical pages are not compared: that needs root")
    other.stdin.close()
    check(other.wait() == 0, "the other")
    placed.close()


class Odd(nn.Module):
    """Weights of many types, and one without dimensions."""

    def __init__(self):
        super().__init__()
        for name in "float32 float64 float16 bfloat16 float8_e4m3fn int64 uint8 bool complex64".split():
            self.register_buffer(f"a_{name}", torch.arange(6).reshape(2, 3).to(getattr(torch, name)))
        self.register_buffer("step", torch.tensor(7))

    def forward(self, x):
        return x


def recognised(directory):
    """A weight is a `.npy` file: NumPy loads it, and a mount says what it is."""
    model = Odd()
    tier = open_tier("pm", f"{directory}/recognised")
    placed = Placement(model, [tier], {"weight": "pm"})
    with placed.step():
        pass
    placed.close()
    bits = {"bfloat16": ("V2", torch.int16), "float8_e4m3fn": ("V1", torch.uint8)}
    for name, tensor in model.state_dict().items():
        array = np.load(tier.weight_path(name))
        wanted, view = bits.get(name[2:], (str(tensor.dtype).removeprefix("torch."), None))
        check(array.dtype == np.dtype(wanted) and array.shape == tuple(tensor.shape), name, array.dtype, array.shape)
        check(array.tobytes() == (tensor if view is None else tensor.view(view)).numpy().tobytes(), name)
        if not is_plain(directory):
            check(os.getxattr(tier.weight_path(name), "user.tensorfs.tensors") == b"1", name, "is no tensor")
    again = Odd()
    for tensor in again.state_dict().values():
        tensor.zero_()
    placed = Placement(again, [open_tier("pm", f"{directory}/recognised")])
    check(placed.resumed and all((a.float() == b.float()).all() if not a.is_complex() else (a == b).all()
                                 for a, b in zip(model.state_dict().values(), again.state_dict().values())))
    placed.close()
    # The same bytes, and other elements.
    other = nn.Module()
    other.register_buffer("step", torch.tensor(7.0, dtype=torch.float64))
    said = []
    placed = Placement(other, [open_tier("pm", f"{directory}/recognised")], say=said.append)
    check(not placed.resumed and "is another array" in said[0], said)
    placed.close()


def is_plain(directory):
    """Whether it is in no tensorfs."""
    try:
        with open(f"{directory}/probe", "wb") as file:
            file.write(b"x")
        os.getxattr(f"{directory}/probe", "user.tensorfs.state")
        return False
    except OSError:
        return True


class Deep(nn.Module):
    """Saves 4 MiB in each of its 24 layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Tanh() for _ in range(24))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def activations_leave_memory(directory):
    """What is packed into a tier is no memory of the process that the machine would have to keep: it is the tier's."""
    # Else malloc keeps what is freed. (M_MMAP_THRESHOLD; for programs: MALLOC_MMAP_THRESHOLD_.)
    ctypes.CDLL(None).mallopt(-3, MIB)
    held = {}
    for where in ("memory", "pm"):
        model = Deep()
        placed = Placement(model, [open_tier("pm", f"{directory}/deep")], {"activation": where})
        x = torch.full((1024, 1024), 0.5, requires_grad=True)
        with placed.step():
            before = anonymous()
            y = model(x)
            held[where] = anonymous() - before
            y.sum().backward()
        want = at = torch.tensor(0.5, requires_grad=True)
        for _ in range(24):
            want = torch.tanh(want)
        want.backward()
        check(torch.allclose(x.grad, at.grad.expand(1024, 1024)), "the gradient")
        del x, y
        placed.close()
    check(held["memory"] > 80 * MIB and held["pm"] < 40 * MIB, held)


def graphs_that_stay(directory):
    """A graph that outlives its step keeps its buffers: the steps after it do not write over them."""
    layer = nn.Tanh()
    tiers = [open_tier("pm", f"{directory}/graphs")]
    placed = Placement(layer, tiers, {"activation": "pm"})
    kept = []
    for n in range(4):
        x = torch.full((64, 64), n / 4, requires_grad=True)
        with placed.step():
            kept.append((x, layer(x)))
    for n, (x, y) in enumerate(kept):
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        check(torch.allclose(x.grad, 2 * (1 - torch.tanh(torch.tensor(n / 4)) ** 2).expand(64, 64)), n)
    taken = tiers[0].taken
    del x, y
    kept.clear()
    for _ in range(8):
        x = torch.ones(64, 64, requires_grad=True)
        with placed.step():
            layer(x).sum().backward()
    check(tiers[0].taken == taken, "and gives them back")
    # A step that fails leaves the next one right.
    try:
        with placed.step():
            layer(torch.ones(64, 64, requires_grad=True))
            raise ValueError
    except ValueError:
        pass
    with placed.step():
        layer(x).sum().backward()
    check(tiers[0].taken == taken, "after a step that failed")
    placed.close()


def full(directory):
    """A tier that is full says so, and the other gets the rest; when both are, memory does. The results are the
    same."""
    expected = undisturbed()
    small = [f"--tier=dram={directory}/f/dram:3M", f"--tier=pm={directory}/f/pm:4M"]
    lines, summary, said = train(*small, "--weights=dram", "--activations=dram")
    check(results(lines, summary) == expected, "other results")
    check(summary["fallbacks"] > 0 and said.count("tier dram gives nothing more") == 1, said)
    check(said.count("tier pm gives nothing more") == 1 and said.count("the rest is in ordinary memory") == 1, said)
    check(lines[-1]["dram"]["taken"] <= 3 * MIB and lines[-1]["pm"]["taken"] <= 4 * MIB, lines[-1])
    check(lines[-1]["dram"]["taken"] > 2 * MIB and lines[-1]["pm"]["taken"] > 3 * MIB, lines[-1])
    lines, summary, said = train(f"--tier=pm={directory}/f/pm", "--weights=optane")
    check(results(lines, summary) == expected and "no tier 'optane'" in said, said)


def without_its_agent(directory):
    """An agent that is not there, dies or hangs costs a line, not the run."""
    expected = undisturbed()

    def options(name):
        return [f"--tier=pm={directory}/{name}", "--weights=pm", "--activations=pm", "--patience=0.2"]

    lines, summary, said = train(*options("none"), "--agent", "/nonexistent/socket")
    check(results(lines, summary) == expected and said.count("defaults") == 1, said)
    for hurt in (signal.SIGKILL, signal.SIGSTOP):
        with Server() as server:
            command = [sys.executable, TRAIN, "--steps=6", *options(hurt.name), "--agent", server.path]
            run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            first = [run.stdout.readline() for _ in range(3)]
            os.kill(server.process.pid, hurt)
            rest, said = run.communicate()
            *lines, summary = map(json.loads, [*first, *rest.splitlines()])
            check(run.returncode == 0 and results(lines, summary) == expected, said)
            check(said.count("defaults") == 1, said)


def killed(directory):
    """A job that is killed leaves its weights, whole files under their names; its buffers go with the next."""
    options = [f"--tier=pm={directory}/killed", "--weights=pm", "--activations=pm"]
    run = subprocess.Popen([sys.executable, TRAIN, "--steps=100000", *options], stdout=subprocess.PIPE, text=True)
    for _ in range(4):
        run.stdout.readline()
    run.kill()
    run.wait()
    check(any(name.startswith("activations.") for name in os.listdir(f"{directory}/killed")),
          "buffers of the killed one")
    lines, summary, said = train(*options, steps=2)
    check(summary["resumed"], "goes on with the weights", said)
    check(os.listdir(f"{directory}/killed") == ["weights"], os.listdir(f"{directory}/killed"))
    os.unlink(f"{directory}/killed/weights/head.bias.npy")
    _, summary, said = train(*options, steps=2)
    check(not summary["resumed"] and "head.bias is missing" in said, said)


def better_than_chance(directory):
    """The bandit's maps against random ones: fewer waits for the medium in the end, of which it is told the time only.

    It learns from what it measures on a machine that others use, too, and may be misled: it has three attempts."""

    def waits(agent, seed):
        with Server("--agent", agent, f"--seed={seed}") as server:
            tiers = [f"--tier=dram={directory}/{agent}{seed}/dram:3M", f"--tier=pm={directory}/{agent}{seed}/pm"]
            lines, summary, _ = train(*tiers, "--write-through=pm", "--agent", server.path, "--patience=60",
                                      "--batch=4", steps=100)
        found = sorted(line["pm"]["syncs"] for line in lines[-40:])[20]
        print(f"{agent}: {found} syncs a step, seconds at first {summary['first_tenth']}, "
              f"in the end {summary['last_tenth']}")
        return found

    chance = waits("random", 1)
    check(any(waits("bandit", seed) < 0.8 * chance for seed in range(1, 4)), "no better than chance")


def keep(directory, summary):
    """Remembers the end of a run for the next process."""
    with open(f"{directory}/kept.json", "w") as file:
        json.dump(summary, file)
        file.flush()
        os.fsync(file.fileno())


def kept(directory):
    """Weights stay where they are between processes: see `verify`."""
    _, summary, _ = train(f"--tier=dram={directory}/kept/dram", f"--tier=pm={directory}/kept/pm",
                          "--weights=dram", "--keep=pm")
    check(not summary["resumed"], "a new one")
    keep(directory, summary)


def verify(directory):
    with open(f"{directory}/kept.json") as file:
        expected = json.load(file)["weights"]
    torch.manual_seed(99)
    model = SmallResNet()
    tiers = [open_tier("pm", f"{directory}/kept/pm")]
    placed = Placement(model, tiers)
    check(placed.resumed, "the weights are there")
    check(sum(tensor.double().sum().item() for tensor in model.state_dict().values()) == expected, "and the same")
    placed.close()


def in_all_threads(directory):
    """PyTorch's hooks are each thread's own; what any thread of the program saves is placed all the same."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    tier = open_tier("pm", f"{directory}/threads")
    placed = Placement(model, [tier], {"activation": "pm"})
    inputs = torch.randn(4, 512, 512)

    def gradients(run):
        model.zero_grad()
        before = tier.stored
        with placed.step():
            sum(loss for loss in run(lambda n: model(inputs[n]).square().sum())).backward()
        return [parameter.grad.clone() for parameter in model.parameters()], tier.stored - before

    def in_threads(forward):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(pool.map(forward, range(4)))

    alone, stored = gradients(lambda forward: [forward(n) for n in range(4)])
    together, stored_together = gradients(in_threads)
    # What is saved outside of a module (`square`) is placed in the step's own thread only.
    per_layer = 4 * inputs[0].numel() * 4 * 4
    check(stored_together >= per_layer and stored >= stored_together, stored, stored_together)
    apart = max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(alone, together))
    check(apart < 1e-4, "other gradients", apart)

    def fails(_):
        try:
            model(torch.ones(3))
        except RuntimeError:
            return True

    with placed.step():
        check(all(in_threads(fails)))
    check(gradients(in_threads)[1] == stored_together, "as before, after modules that failed")
    placed.close()


PARTS = [the_same_wherever_it_is, by_the_map, mapped, recognised, activations_leave_memory, graphs_that_stay, full,
         in_all_threads, without_its_agent]
PARTS += [killed, better_than_chance, kept]


def before_the_reboot(directory):
    """In a pool with the tier `dram`: some weights in it, some in the pool itself, and activations."""
    tiers = [f"--tier=dram={directory}/dram:1M", f"--tier=pm={directory}/pm"]
    lines, summary, said = train(*tiers, "--weights=dram", "--activations=pm")
    check(results(lines, summary) == undisturbed(), "other results")
    check("in no pool" not in said, said)
    names = {tier: os.listdir(f"{directory}/{tier}/weights") for tier in ("dram", "pm")}
    check(len(names["dram"]) > 20, names)
    for tier, weights in names.items():
        for name in weights:
            where = os.getxattr(f"{directory}/{tier}/weights/{name}", "user.tensorfs.tier").decode()
            check(where == tier, name, "is in", where)


def after_the_reboot(directory):
    """Weights that were in memory are lost, which is said, and a new run begins. What it leaves in `pm` survives the
    next one."""
    tiers = [f"--tier=dram={directory}/dram:1M", f"--tier=pm={directory}/pm"]
    lines, summary, said = train(*tiers, "--weights=dram", "--activations=dram", "--keep=pm")
    check(not summary["resumed"] and "cannot be used" in said, said)
    check(results(lines, summary) == undisturbed(), "other results")
    check(os.listdir(f"{directory}/dram/weights") == [], "nothing is left in memory")
    keep(directory, summary)


def after_another_reboot(directory):
    with open(f"{directory}/kept.json") as file:
        expected = json.load(file)["weights"]
    model = SmallResNet()
    placed = Placement(model, [open_tier(name, f"{directory}/{name}") for name in ("dram", "pm")])
    check(placed.resumed, "the weights are there")
    check(sum(tensor.double().sum().item() for tensor in model.state_dict().values()) == expected, "and the same")
    placed.close()


def write(directory, *names):
    """All parts, or those named."""
    print("torch", torch.__version__)
    for part in PARTS:
        if not names or part.__name__ in names:
            part(directory)
            print(f"{part.__name__}: ok", flush=True)


if __name__ == "__main__":
    main(write, verify, before=before_the_reboot, after=after_the_reboot, again=after_another_reboot)

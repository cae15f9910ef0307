"""Trains a small residual network whose weights and activations are where a map says.

    train.py --tier dram=/mnt/tensors/run/dram:24M --tier pm=/mnt/tensors/run/pm --write-through pm \\
        --agent SOCKET --steps 200

Prints a line of JSON for each step, and one at the end.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import torch
from torch import nn

from advisor import Advisor, say
from placement import Placement, open_tier


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class SmallResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1))
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.head(x.mean((2, 3)))


def batches(seed, size):
    """Pictures that are noise, with a bright patch whose place is the class."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(0, 10, (size,), generator=generator)
        pictures = torch.randn(size, 3, 32, 32, generator=generator)
        for picture, label in zip(pictures, labels.tolist()):
            picture[:, 3 * label : 3 * label + 3, :] += 1
        yield pictures, labels


def size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def parse(text, write_through):
    """NAME=DIRECTORY[:LIMIT]"""
    name, _, rest = text.partition("=")
    directory, _, limit = rest.partition(":")
    if not name or not directory:
        raise ValueError(f"--tier {text}: not NAME=DIRECTORY[:LIMIT]")
    tier = open_tier(name, directory, size(limit) if limit else None, name in write_through)
    if tier.apart:
        say(f"placement: {tier.apart}: used as it is")
    return tier


def main():
    arguments = argparse.ArgumentParser(description="trains a small residual network with its memory in tiers")
    arguments.add_argument("--tier", action="append", default=[], metavar="NAME=DIRECTORY[:LIMIT]")
    arguments.add_argument("--write-through", action="append", default=[], metavar="NAME",
                           help="what is stored in this tier is on its medium before the step goes on")  # fmt: skip
    arguments.add_argument("--weights", default="memory", help="their tier where the map says nothing")
    arguments.add_argument("--activations", default="memory", help="likewise")
    arguments.add_argument("--agent", metavar="SOCKET", help="where server.py listens")
    arguments.add_argument("--patience", type=float, default=1.0, help="seconds that the agent may take to answer")
    arguments.add_argument("--keep", metavar="TIER", help="put all weights there at the end, durably")
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()

    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    model = SmallResNet()
    try:
        opened = [parse(text, options.write_through) for text in options.tier]
    except (ValueError, OSError) as error:
        sys.exit(f"train.py: {error}")
    default = {"weight": options.weights, "activation": options.activations}
    placement = Placement(model, opened, default)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = batches(options.seed, options.batch)
    advisor = Advisor(options.agent, options.patience) if options.agent else None

    plan, times, losses = {}, [], []
    for step in range(options.steps + 1):
        pictures, labels = next(data)
        stored = {tier.name: (tier.stored, tier.syncs) for tier in opened}
        begun = time.perf_counter()
        with placement.step(plan):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - begun - placement.moving
        losses.append(loss.item())
        line = {"step": step, "loss": loss.item(), "seconds": round(seconds, 6), "moving": round(placement.moving, 6)}
        for tier in opened:
            before = stored[tier.name]
            line[tier.name] = {"stored": tier.stored - before[0], "syncs": tier.syncs - before[1], "taken": tier.taken}
        print(json.dumps(line), flush=True)
        # The first step finds out which allocations there are; its time does not count.
        if step > 0:
            times.append(seconds)
        if advisor:
            plan = advisor.step(seconds) if step > 0 else advisor.begin(*placement.describe())
    if options.keep:
        placement.keep(options.keep)
    tenth = max(len(times) // 10, 1)
    weights = sum(tensor.double().sum().item() for tensor in model.state_dict().values())
    summary = {
        "resumed": placement.resumed,
        "allocations": len(placement.allocations),
        "bytes": sum(allocation.bytes for allocation in placement.allocations.values()),
        "fallbacks": placement.fallbacks,
        "first_tenth": round(statistics.median(times[:tenth]), 6) if times else None,
        "last_tenth": round(statistics.median(times[-tenth:]), 6) if times else None,
        "losses": [losses[0], losses[-1]],
        "weights": weights,
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }
    placement.close()
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()

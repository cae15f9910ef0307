"""Agents: what decides which tier an allocation goes to. They know sizes, kinds and the time of each step, and nothing
of PyTorch.

An agent gets the list of allocations once (`begin`). Then it is asked for a map before each step (`place`), and told
afterwards how long the step took with that map (`learn`).

An allocation is a dictionary: `kind` ("weight" or "activation"), `name` ("layer1.0.conv1#0"), `shape`, `bytes`. A tier
is a dictionary: `name`, and `bytes`, what may be put there (None: no limit).
"""

import math
import random
import statistics


def key_of(allocation):
    """What an allocation is called in a map."""
    return f"{allocation['kind']}:{allocation['name']}"


class Fixed:
    """Puts everything of a kind into one tier: Fixed({"weight": "pm", "activation": "dram"})."""

    def __init__(self, tiers):
        self.of_kind = tiers

    def begin(self, allocations, tiers):
        self.allocations = allocations

    def place(self):
        return {key_of(a): self.of_kind[a["kind"]] for a in self.allocations if a["kind"] in self.of_kind}

    def learn(self, seconds):
        pass


class Random:
    """A random tier for each allocation, as far as there is room: what other agents are compared with."""

    def __init__(self, seed=0):
        self.random = random.Random(seed)

    def begin(self, allocations, tiers):
        self.allocations, self.tiers = allocations, tiers

    def place(self):
        room = Room(self.tiers)
        shuffled = self.random.sample(self.allocations, len(self.allocations))
        names = [tier["name"] for tier in self.tiers]
        return {key_of(a): room.first(self.random.sample(names, len(names)), a["bytes"]) for a in shuffled}

    def learn(self, seconds):
        pass


class Bandit:
    """Epsilon-greedy: now and then a random map, else the best one by what has been measured.

    The arms are (group, tier), where a group is all allocations of one kind in one top-level module. What an arm costs
    is learnt from whole steps only: the logarithm of a step's time is taken to be the sum of what its arms cost, and
    what the step took more or less than that is shared out among the arms that it used (least mean squares). The best
    map gives the room of the better tiers to the groups that gain most by it for each byte.
    """

    def __init__(self, seed=0, decay=0.97, least=0.05, rate=0.5):
        self.random = random.Random(seed)
        self.decay, self.least, self.rate = decay, least, rate

    def begin(self, allocations, tiers):
        self.tiers = tiers
        self.groups = {}
        for allocation in allocations:
            self.groups.setdefault(group_of(allocation), []).append(allocation)
        self.bytes = {group: max(sum(a["bytes"] for a in members), 1) for group, members in self.groups.items()}
        self.costs = {(group, tier["name"]): 0.0 for group in self.groups for tier in tiers}
        self.epsilon, self.base, self.surprises, self.used = 1.0, None, [], {}

    def place(self):
        plan = self.explore() if self.random.random() < self.epsilon else self.best()
        # How much of each group is where.
        self.used = {}
        for group, members in self.groups.items():
            for allocation in members:
                arm = (group, plan[key_of(allocation)])
                self.used[arm] = self.used.get(arm, 0.0) + allocation["bytes"] / self.bytes[group]
        return plan

    def explore(self):
        """Whole groups to random tiers, which shows what they cost more clearly than scattering them would."""
        names = [tier["name"] for tier in self.tiers]
        groups = self.random.sample(sorted(self.groups), len(self.groups))
        return self.fill((group, self.random.sample(names, len(names))) for group in groups)

    def best(self):
        names = [tier["name"] for tier in self.tiers]
        cost = {group: sorted((self.costs[group, name], name) for name in names) for group in self.groups}
        gain = {group: (cost[group][-1][0] - cost[group][0][0]) / self.bytes[group] for group in self.groups}
        groups = sorted(self.groups, key=gain.get, reverse=True)
        return self.fill((group, [name for _, name in cost[group]]) for group in groups)

    def fill(self, groups):
        """A map: each group into the tier that it likes best among those that have room."""
        room = Room(self.tiers)
        return {key_of(a): room.first(names, a["bytes"]) for group, names in groups for a in self.groups[group]}

    def learn(self, seconds):
        self.epsilon = max(self.least, self.epsilon * self.decay)
        took = math.log(max(seconds, 1e-9))
        if self.base is None:
            self.base = took
        surprise = took - self.base - sum(self.costs[arm] * part for arm, part in self.used.items())
        # A step that something else held up must not undo what many steps have taught.
        self.surprises = [*self.surprises[-29:], abs(surprise)]
        most = 3 * statistics.median(self.surprises)
        share = self.rate * max(-most, min(most, surprise)) / (1 + sum(part * part for part in self.used.values()))
        self.base += share
        for arm, part in self.used.items():
            self.costs[arm] += share * part


def group_of(allocation):
    return f"{allocation['kind']}:{allocation['name'].split('.')[0].split('#')[0]}"


class Room:
    """What is left in each tier while a map is made."""

    def __init__(self, tiers):
        self.left = {tier["name"]: tier.get("bytes") for tier in tiers}

    def first(self, names, size):
        """The first of these tiers that has room, which is taken; the last one if none has."""
        for name in names:
            if self.left[name] is None or self.left[name] >= size:
                if self.left[name] is not None:
                    self.left[name] -= size
                return name
        return names[-1]


def make(text, seed=0):
    """An agent by its name: `bandit`, `random`, or `weight=TIER,activation=TIER`."""
    if text == "bandit":
        return Bandit(seed)
    if text == "random":
        return Random(seed)
    if "=" in text:
        return Fixed(dict(part.split("=", 1) for part in text.split(",")))
    raise ValueError(f"no agent is called {text!r}: bandit, random, or weight=TIER,activation=TIER")

"""Puts a model's weights, and the activations that it saves for backward, into files of tiers. PyTorch is not modified.

    tiers = [open_tier("dram", "/mnt/tensors/run/dram", limit=4 << 20), open_tier("pm", "/mnt/tensors/run/pm")]
    placement = Placement(model, tiers)
    for batch in data:
        # The plan: {"weight:conv1.weight": "pm", "activation:layer1.0.conv1#0": "dram", ...}
        with placement.step(plan):
            loss(model(batch)).backward()
            optimizer.step()

Weights: `parameter.data` becomes a tensor that `torch.from_file` maps, of what is behind the header of a `.npy` file.
What is in a persistent tier stays there: the next process that makes an equal model with equal tiers goes on with it
(`placement.resumed`).

Activations: hooks (`torch.autograd.graph.saved_tensors_hooks`) copy what an operation saves into a buffer of its tier,
and give backward the buffer's memory. An activation is named after the module that saved it and its number there:
`layer1.0.conv1#0`. PyTorch has hooks for each thread: in other threads than that of the step, they hold while a module
of the model is at work.
"""

import contextlib
import inspect
import itertools
import sys
import threading
import time
import weakref
from dataclasses import asdict, dataclass

import torch

from advisor import say
from tiers import PAGE, Tier, npy_header

# Ordinary memory, which is always there.
MEMORY = "memory"


@dataclass(frozen=True)
class Allocation:
    kind: str  # "weight" or "activation"
    name: str
    shape: tuple
    bytes: int

    @property
    def key(self):
        return f"{self.kind}:{self.name}"

    def as_dict(self):
        return asdict(self)


def from_file(path, size):
    """A mapper for tiers."""
    tensor = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    return tensor, tensor.data_ptr()


# NumPy's letters; for what it has no name for, plain bytes, as its extensions write them.
LETTERS = {"bool": "b", "uint": "u", "int": "i", "float": "f", "complex": "c"}


def header_of(tensor):
    """What a `.npy` file of such a tensor begins with."""
    name, size = str(tensor.dtype).removeprefix("torch."), tensor.element_size()
    letter = LETTERS.get(name.rstrip("0123456789"), "V")
    order = "|" if size == 1 or letter == "V" else {"little": "<", "big": ">"}[sys.byteorder]
    return npy_header(f"{order}{letter}{size}", tensor.shape)


def open_tier(name, directory, limit=None, write_through=False):
    return Tier(name, directory, from_file, limit, write_through)


class Packed:
    """An activation in a buffer, for as long as backward may want it."""

    __slots__ = ("tensor", "__weakref__")

    def __init__(self, tensor):
        self.tensor = tensor


class Thread(threading.local):
    """What is going on in one thread."""

    def __init__(self):
        # The modules that are at work, the innermost last.
        self.stack = []
        # The hooks, if they were put up for the outermost of these.
        self.hooks = None
        # They are up anyway: it is the thread of the step.
        self.steps = False


class Placement:
    """Places a model's allocations in tiers. `default` says where allocations of a kind go that no map names."""

    def __init__(self, model, tiers, default=None, say=say):
        self.tiers = {tier.name: tier for tier in tiers}
        self.default = default or {}
        self.say = say
        self.allocations = {}
        # The seconds of this step that went into making files and moving weights: a map does not cost them each time.
        self.moving = 0.0
        self.fallbacks = 0
        self._said = set()
        self._plan = {}
        self._thread, self._numbers = Thread(), {}
        self._stepping = False
        # What threads share: the buffers, the numbers, and what is counted.
        self._lock = threading.Lock()
        self._in_use = []
        self._weights = {}
        # Since PyTorch 2.0 it can be heard of that a module has failed.
        parameters = inspect.signature(torch.nn.Module.register_forward_hook).parameters
        always = {"always_call": True} if "always_call" in parameters else {}
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda _, __, name=name: self._enter(name))
            module.register_forward_hook(lambda _, __, ___: self._leave(), **always)
        self._tensors = dict(itertools.chain(model.named_parameters(), model.named_buffers()))
        for name, tensor in self._tensors.items():
            size = tensor.numel() * tensor.element_size()
            self._note(Allocation("weight", name, tuple(tensor.shape), size))
        self.resumed = self._resume()

    @contextlib.contextmanager
    def step(self, plan=None):
        """One forward and backward, with this map. Other threads may be at work in it; one step ends before the next."""
        self._plan = plan or {}
        self.moving = 0.0
        self._recycle()
        with self._moved():
            self._place_weights()
        self._thread.stack.clear()
        self._numbers.clear()
        self._stepping = self._thread.steps = True
        try:
            with self._hooks():
                yield
            for buffer in self._weights.values():
                if buffer.tier.write_through:
                    buffer.sync()
        finally:
            self._stepping = self._thread.steps = False
            self._recycle()

    def describe(self):
        """What an agent is told: the allocations seen so far, and the tiers."""
        tiers = [{"name": tier.name, "bytes": tier.limit} for tier in self.tiers.values()]
        return [allocation.as_dict() for allocation in self.allocations.values()], tiers

    def keep(self, tier):
        """Puts all weights into one tier and returns when they are on its medium."""
        self._plan = {key: tier for key in self.allocations}
        self._place_weights()
        for buffer in self._weights.values():
            buffer.sync()
        for tier in self.tiers.values():
            tier.sync_names()

    def close(self):
        for tier in self.tiers.values():
            tier.close()

    # --- which tier ----------------------------------------------------------------------------------

    def _wanted(self, allocation):
        return self._plan.get(allocation.key, self.default.get(allocation.kind, MEMORY))

    def _take(self, allocation, take):
        """A buffer from the tier that the map names, else from another; None for ordinary memory."""
        wanted = self._wanted(allocation)
        if wanted == MEMORY:
            return None
        if wanted not in self.tiers:
            self._say_once(wanted, f"there is no tier {wanted!r}: its share goes to the others")
        others = [tier for name, tier in self.tiers.items() if name != wanted]
        for tier in [self.tiers[wanted], *others] if wanted in self.tiers else others:
            try:
                return take(tier)
            except OSError as error:
                self.fallbacks += 1
                self._say_once(tier.name, f"tier {tier.name} gives nothing more ({error}): what is left goes elsewhere")
        self._say_once(MEMORY, "no tier has room: the rest is in ordinary memory")
        return None

    @contextlib.contextmanager
    def _moved(self):
        begun = time.perf_counter()
        yield
        self.moving += time.perf_counter() - begun

    def _say_once(self, what, text):
        if what not in self._said:
            self._said.add(what)
            self.say(f"placement: {text}")

    def _note(self, allocation):
        self.allocations[allocation.key] = allocation
        return allocation

    # --- weights -------------------------------------------------------------------------------------

    def _resume(self):
        """Goes on with the weights that are in the tiers, if all of them are."""
        found = {name: [tier for tier in self.tiers.values() if tier.has(name)] for name in self._tensors}
        if not all(found.values()):
            if any(found.values()):
                missing = next(name for name, tiers in found.items() if not tiers)
                self.say(f"placement: the weights in the tiers are not complete ({missing} is missing): not used")
            return False
        buffers = {}
        try:
            for name, tiers in found.items():
                size = self.allocations[f"weight:{name}"].bytes
                buffers[name] = tiers[0].weight(name, size, header_of(self._tensors[name]))
        except (OSError, ValueError) as error:
            self.say(f"placement: the weights in the tiers cannot be used: {error}")
            return False
        for name, (_, *stale) in found.items():
            for tier in stale:
                tier.forget(name)
        for name, buffer in buffers.items():
            self._map_weight(name, buffer)
        return True

    def _place_weights(self):
        for name, tensor in self._tensors.items():
            allocation = self.allocations[f"weight:{name}"]
            old = self._weights.get(name)
            wanted = self._wanted(allocation)
            if wanted == (old.tier.name if old else MEMORY):
                continue
            new = lambda tier: tier.new_weight(name, allocation.bytes, header_of(tensor))
            take = lambda tier: old if old and tier is old.tier else new(tier)
            buffer = self._take(allocation, take)
            if buffer is old:
                continue
            if buffer is None:
                tensor.data = tensor.data.clone()
                self._weights.pop(name)
            else:
                buffer.memory.view(tensor.dtype).view(tensor.shape).copy_(tensor.data)
                buffer.tier.stored += buffer.size
                buffer.tier.settle(name, buffer)
                self._map_weight(name, buffer)
            if old:
                old.tier.remove_weight(name, old)

    def _map_weight(self, name, buffer):
        tensor = self._tensors[name]
        tensor.data = buffer.memory.view(tensor.dtype).view(tensor.shape)
        self._weights[name] = buffer

    # --- activations ---------------------------------------------------------------------------------

    def _hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda packed: packed.tensor)

    def _enter(self, name):
        thread = self._thread
        if self._stepping and not thread.steps and thread.hooks is None:
            thread.stack.clear()
            thread.hooks = self._hooks()
            thread.hooks.__enter__()
        thread.stack.append(name)

    def _leave(self):
        thread = self._thread
        if thread.stack:
            thread.stack.pop()
        if not thread.stack and thread.hooks is not None:
            hooks, thread.hooks = thread.hooks, None
            hooks.__exit__(None, None, None)

    def _pack(self, tensor):
        size = tensor.numel() * tensor.element_size()
        is_weight = any(tensor.data_ptr() == own.data_ptr() for own in self._tensors.values())
        if is_weight or size < PAGE or tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return Packed(tensor)
        stack = self._thread.stack
        module = stack[-1] if stack else ""
        with self._lock:
            number = self._numbers[module] = self._numbers.get(module, -1) + 1
            allocation = self._note(Allocation("activation", f"{module}#{number}", tuple(tensor.shape), size))
            with self._moved():
                buffer = self._take(allocation, lambda tier: tier.take(size))
            if buffer is None:
                return Packed(tensor)
            buffer.tier.stored += size
        memory = buffer.memory[:size].view(tensor.dtype).view(tensor.shape)
        memory.copy_(tensor)
        if buffer.tier.write_through:
            buffer.sync()
        packed = Packed(memory)
        with self._lock:
            self._in_use.append((weakref.ref(packed), buffer))
        return packed

    def _recycle(self):
        """Gives back the buffers that no graph holds any more."""
        with self._lock:
            held = []
            for packed, buffer in self._in_use:
                if packed() is None:
                    buffer.tier.give(buffer)
                else:
                    held.append((packed, buffer))
            self._in_use = held

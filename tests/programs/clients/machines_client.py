"""A training that goes from machine to machine, whenever one is lost with all that it has: smdebug's own PyTorch hook,
and a checkpoint now and then.

    machines_client.py train DIRECTORY RECORDS NUMBER TENSORFS     on the machine of this number, until it is killed
    machines_client.py prove RECORDS                               the same without an interruption, and compared

RECORDS is a directory that no machine takes with it. There each says what it does (before it does), what it has done,
and what `remote wait` has promised it. The next one looks whether what it finds is the tree behind one of these, before it
goes on with it.
"""

import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("SMDEBUG_LOG_LEVEL", "error")
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

import torch  # noqa: E402

from common import check  # noqa: E402

# After so many steps a checkpoint, of which so many are kept; a step takes so many seconds at least.
EVERY, KEPT, STEP = 3, 3, 0.1
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


class Net(torch.nn.Module):
    """What does not change (`table`), and what does."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(400, 1000), requires_grad=False)
        self.fc1 = torch.nn.Linear(1000, 300)
        self.fc2 = torch.nn.Linear(300, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x @ self.table)))


class Training:
    def __init__(self):
        torch.manual_seed(7)
        self.net, self.loss = Net(), torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.done = 0

    def step(self):
        """One step; its batch is that of its number, on whichever machine."""
        random = torch.Generator().manual_seed(self.done)
        x, y = torch.randn(4, 400, generator=random), torch.randint(0, 10, (4, ), generator=random)
        self.optimizer.zero_grad()
        self.loss(self.net(x), y).backward()
        self.optimizer.step()
        self.done += 1

    def state(self):
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}

    def load(self, path):
        state = torch.load(path)
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]

    def digest(self):
        digest = hashlib.sha256()
        momenta = [entry["momentum_buffer"] for entry in self.optimizer.state_dict()["state"].values()]
        for tensor in [*self.net.state_dict().values(), *momenta]:
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def found(directory):
    """All that is there: of each file a digest, of a link where it leads."""
    tree = {}
    for at, dirs, names in os.walk(directory):
        for name in dirs + names:
            path = os.path.join(at, name)
            if os.path.islink(path):
                what = "-> " + os.readlink(path)
            elif os.path.isdir(path):
                what = "directory"
            else:
                with open(path, "rb") as file:
                    what = hashlib.sha256(file.read()).hexdigest()
            tree[os.path.relpath(path, directory)] = what
    return tree


class Records:
    """What outlives a machine."""

    def __init__(self, path):
        self.file, self.lock = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), threading.Lock()

    def say(self, **what):
        with self.lock:
            os.write(self.file, (json.dumps(what) + "\n").encode())


def read(path):
    with open(path, "rb") as file:
        # The machine may have been killed over the last line.
        return [json.loads(line) for line in file.read().split(b"\n")[:-1]]


def is_temporary(path):
    return path.endswith(".tmp")


def said_open(path):
    """Of which files `mount --from` has said that they were open when they were carried: bytes may be missing."""
    with open(path, errors="surrogateescape") as said:
        return {name for name in re.findall(r"remote: /(.*): was open to write: \d+ of its \d+ bytes", said.read())}


def differs(tree, state, touched, were_open):
    """What is not as it was then, but for what was being changed, and bytes that were said to be missing."""
    def others(one):
        kept = {path: what for path, what in one.items() if not is_temporary(path) and not path.startswith(touched)}
        return {path: "file" if path in were_open else what for path, what in kept.items()}

    here, there = others(tree), others(state)
    return sorted(path for path in here.keys() | there.keys() if here.get(path) != there.get(path))


def look_back(directory, path, were_open):
    """Finds the unit behind which the tree is as it is here."""
    tree = found(directory)
    lines = read(path)
    states = {line["unit"]: line["tree"] for line in lines if "tree" in line}
    doing = {line["unit"]: line for line in lines if "doing" in line}
    trees, state = {}, {}
    for unit in sorted(states):
        state = {**state, **states[unit]}
        trees[unit] = state = {name: what for name, what in state.items() if what is not None}
    last = max(trees)
    # The newest first: that nothing at all was lost is as good.
    nearest = []
    for unit in range(last, -1, -1):
        following = doing.get(unit + 1)
        touched = tuple(following["doing"]) if following else ()
        wrong = differs(tree, trees[unit], touched, were_open)
        # What was being changed is as before or as behind that, each name for itself.
        for name in tree.keys() | trees[unit].keys():
            is_known = unit + 1 in trees and not is_temporary(name) and name not in were_open
            if touched and name.startswith(touched) and is_known:
                if tree.get(name) not in (trees[unit].get(name), trees[unit + 1].get(name)):
                    wrong.append(name)
        if not wrong:
            break
        nearest.append((len(wrong), unit, wrong[:5]))
    else:
        raise AssertionError(f"the tree of no moment: {sorted(nearest)[:3]}")
    promises = [line for line in lines if "promised" in line]
    for promise in promises:
        name, since = promise["promised"], promise["unit"]
        check(unit >= since, name, "was promised behind unit", since, "and the tree is that behind", unit)
        was = trees[since][name]
        removed = any(trees[later].get(name) != was for later in range(since, unit + 1) if later in trees)
        removed |= name.startswith(tuple(doing.get(unit + 1, {"doing": ["\0"]})["doing"]))
        check(tree.get(name) == was or removed, "promised, and not as it was:", name)
    # Whatever has its last name is whole, known or not; but for what was torn on the machine before, where it has not
    # been removed yet. A checkpoint that gets such a name later, as a step is done again, says nothing of that.
    made = [line for line in lines if "digest" in line and line["unit"] <= unit + 1]
    digests = {line["checkpoint"]: line["digest"] for line in made}
    looked = 0
    for name in sorted(glob.glob("ckpt-*.pt", root_dir=directory)):
        if name in digests and name not in were_open:
            training = Training()
            training.load(os.path.join(directory, name))
            check(training.digest() == digests[name], name, "is another one")
            looked += 1
    if not any(name.startswith("events-") for name in were_open):
        look_at_events(directory, lines)
    return {"unit": unit, "last": last, "promises": len(promises), "read": looked, "open": len(were_open)}


def look_at_events(directory, lines):
    """What smdebug had saved on the machine before: each step that it finds is that step, and none is left out."""
    from smdebug.trials import create_trial

    values = {line["step"]: line["values"] for line in lines if "values" in line}
    for out in glob.glob(os.path.join(directory, "events-*")):
        number = int(out.rsplit("-", 1)[1])
        if number != lines[0]["machine"] or not glob.glob(out + "/index/*/*.json"):
            continue
        if not glob.glob(out + "/collections/*/*.json"):
            continue
        trial = create_trial(out)
        steps = trial.steps()
        check(steps == list(range(len(steps))), "steps of smdebug", steps)
        for step in steps:
            for name, digest in values.get(step, {}).items():
                got = hashlib.sha256(trial.tensor(name).value(step).tobytes()).hexdigest()
                check(got == digest, name, "of step", step)


class Machine:
    def __init__(self, directory, records, number, tensorfs):
        self.directory, self.number, self.tensorfs = directory, number, tensorfs
        self.say = Records(os.path.join(records, f"doing-{number}")).say
        self.unit, self.known, self.waiting, self.wanted = 0, found(directory), None, None
        self.say(unit=0, tree=self.known, machine=number)

    def at(self, name):
        return os.path.join(self.directory, name)

    def do(self, act, *touched, **more):
        """One unit: what begins with these names is changed, and nothing else."""
        self.unit += 1
        self.say(unit=self.unit, doing=touched, **more)
        act()
        now = found(self.directory)
        changed = {name: what for name, what in now.items() if self.known.get(name) != what and not is_temporary(name)}
        changed.update({name: None for name in self.known if name not in now and not is_temporary(name)})
        self.say(unit=self.unit, tree=changed)
        self.known = now

    def promise(self, name):
        """Has somebody wait until a file is elsewhere, unless he does for another one."""
        if self.waiting is not None and self.waiting.is_alive():
            return
        unit, self.wanted = self.unit, name

        def wait():
            waits = [self.tensorfs, "remote", "wait", self.at(name), "--timeout=120", "--progress=none"]
            if subprocess.run(waits, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
                self.say(promised=name, unit=unit)

        self.waiting = threading.Thread(target=wait, daemon=True)
        self.waiting.start()

    def train(self, torn):
        from smdebug.core.save_config import SaveConfig
        from smdebug.pytorch import Hook

        training = Training()
        there = sorted(name for name in glob.glob("ckpt-*.pt", root_dir=self.directory) if name not in torn)
        if there:
            training.load(self.at(there[-1]))
        self.say(begins=training.done)
        for name in sorted(torn & self.known.keys()):
            self.do(lambda name=name: os.unlink(self.at(name)), name)
        for old in sorted(glob.glob(self.at("events-*")))[:-1] + glob.glob(self.at("*.tmp")):
            remove = shutil.rmtree if os.path.isdir(old) else os.unlink
            self.do(lambda old=old, remove=remove: remove(old), os.path.basename(old))
        events = f"events-{self.number:03}"
        hook = Hook(out_dir=self.at(events), save_config=SaveConfig(save_interval=1), include_regex=["fc2", "fc1.bias"])
        hook.register_module(training.net)
        hook.register_loss(training.loss)
        first = training.done
        while True:
            begun = time.monotonic()
            weights = {f"Net_fc2.{n}": p for n, p in training.net.fc2.named_parameters()}
            values = {n: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for n, p in weights.items()}
            self.do(training.step, events, step=training.done - first, values=values)
            self.do(lambda: self.log(training.done), "log")
            if training.done % EVERY == 0:
                self.checkpoint(training)
            time.sleep(max(0, STEP - (time.monotonic() - begun)))

    def log(self, done):
        with open(self.at("log.new.tmp"), "w") as log:
            log.write(f"machine {self.number}, {done} steps\n")
        os.rename(self.at("log.new.tmp"), self.at("log"))

    def checkpoint(self, training):
        name = f"ckpt-{training.done:06}.pt"
        temporary = name + ".tmp"
        self.do(lambda: torch.save(training.state(), self.at(temporary)), temporary)
        self.do(lambda: os.rename(self.at(temporary), self.at(name)), name, checkpoint=name, digest=training.digest())
        self.do(lambda: self.link(name), "newest")
        self.promise(name)
        old = sorted(path for path in self.known if path.startswith("ckpt-") and path.endswith(".pt"))[:-KEPT]
        for name in old:
            if name != self.wanted or not self.waiting.is_alive():
                self.do(lambda name=name: os.unlink(self.at(name)), name)

    def link(self, name):
        os.symlink(name, self.at("newest.tmp"))
        os.rename(self.at("newest.tmp"), self.at("newest"))


def train(directory, records, number, tensorfs):
    with open(os.path.join(records, "from")) as text:
        source = int(text.read())
    were_open = said_open(os.path.join(records, f"mount-{number}"))
    if source >= 0:
        # What this one finds was left by the last one that had carried anything.
        seen = look_back(directory, os.path.join(records, f"doing-{source}"), were_open)
        with open(os.path.join(records, "seen"), "a") as lines:
            lines.write(json.dumps({"machine": int(number), "of": source, **seen}) + "\n")
    # A machine may have been lost before it had removed what was torn when it began, and has carried that as it was.
    torn = set().union(*map(said_open, glob.glob(os.path.join(records, "mount-*"))))
    Machine(directory, records, int(number), tensorfs).train(torn)


def prove(records):
    """Wherever it was killed, it is the training that nobody killed."""
    digests = {}
    for path in glob.glob(os.path.join(records, "doing-*")):
        for line in read(path):
            if "digest" in line:
                done = int(line["checkpoint"][5:-3])
                check(digests.setdefault(done, line["digest"]) == line["digest"], "two trainings at step", done)
    training = Training()
    while training.done < max(digests, default=0):
        training.step()
        if training.done in digests:
            check(training.digest() == digests[training.done], "it is another training at step", training.done)
    print(f"{training.done} steps", flush=True)


if __name__ == "__main__":
    {"train": train, "prove": prove}[sys.argv[1]](*sys.argv[2:])

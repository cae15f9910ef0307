"""examples/shelf on the mount: what PyMM's users do. `write` makes the arrays, `verify` finds them in a new process."""

import os
import resource
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../examples/shelf"))

import numpy as np
from common import refuses
from memory import one_resident_copy
from shelf import ndarray, shelf

GIB = 1 << 30


def write(directory):
    s = shelf(directory, force_new=True)
    assert s.items == [] and len(s) == 0
    s.x = ndarray((1000, 1000), dtype=np.int64)
    assert not s.x.any() and s.x.shape == (1000, 1000)
    s.x[1][1] = 9
    assert s.x[1, 1] == 9 and s.x.sum() == 9
    s.x.fill(3)
    data = np.arange(1_000_000, dtype=np.int64)
    outside = directory + ".dat"
    data.tofile(outside)
    with open(outside, "rb") as source:
        source.readinto(memoryview(s.x).cast("B"))
    os.unlink(outside)
    assert (s.x.reshape(-1) == data).all()
    s.x += 1
    np.multiply(s.x, 2, out=s.x)
    s.x[:, 0] = -1
    s.y = np.random.default_rng(5).integers(1, 100, size=(100, 100))
    reference = s.y
    assert sum(s.y.diagonal()) == reference.trace()
    s.gone = np.zeros(10)
    assert s.items == ["gone", "x", "y"] and "gone" in s and "x" in dir(s)
    s.erase("gone")
    del s.y
    refuses(AttributeError, lambda: s.y)
    assert reference.sum() > 0, "who has it mapped keeps it"
    refuses(KeyError, lambda: s.erase("y"))
    s.y = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    assert s.y.flags.f_contiguous
    s.empty = np.zeros((0, 5), dtype="f4")
    s.scalar = np.array(7, dtype="u2")
    s["any name: 1"] = np.arange(3)[::-1]
    assert 0 <= s.used <= 100 and s.capacity > 0
    assert "int" in refuses(TypeError, lambda: setattr(s, "z", 0))
    refuses(TypeError, lambda: setattr(s, "z", np.array([{}])))
    for name in ["", ".hidden", "_own", "a/b", "items", "erase", "path", "x" * 300]:
        refuses(ValueError, lambda: s.__setitem__(name, np.zeros(1)))
    refuses(OSError, lambda: setattr(s, "z", np.lib.stride_tricks.as_strided(np.zeros(1), (1 << 50,), (0,))))
    assert "z" not in s
    larger_than_memory(s)
    in_bounded_memory(s, directory)
    keeps_room(s)
    of_a_size(directory)
    s.sync()


def larger_than_memory(s):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    refuses(OSError, lambda: setattr(s, "big", ndarray((4 * memory + s._free(),), dtype=np.uint8)))
    assert "big" not in s
    s.big = ndarray((4 * memory,), dtype=np.uint8, sparse=True)
    for at in (0, memory, 4 * memory - 1):
        s.big[at] = at % 251 + 1
    assert s.big.nbytes == 4 * memory
    assert os.stat(os.path.join(s.path, "big.npy")).st_blocks * 512 < memory // 100


def keeps_room(s):
    """What is made on a shelf has its room, whatever is stored elsewhere meanwhile."""
    s.room = ndarray((1 << 20,), dtype=np.uint8)
    assert os.stat(os.path.join(s.path, "room.npy")).st_blocks * 512 >= 1 << 20
    sparse = shelf(s.path, sparse=True)
    sparse.room = ndarray((1 << 20,), dtype=np.uint8)
    assert os.stat(os.path.join(s.path, "room.npy")).st_blocks * 512 < 1 << 20
    s.erase("room")


def of_a_size(directory):
    """PyMM's way to make a shelf, with a size of its own that every process keeps to."""
    above, name = os.path.split(directory + "-sized")
    s = shelf(name, size_mb=4, pmem_path=above, force_new=True)
    assert s.path == directory + "-sized" and s.capacity == 4 << 20 and s.used == 0
    s.x = ndarray((2 << 20,), dtype=np.uint8)
    assert 49 <= s.used <= 52, s.used
    again = shelf(name, pmem_path=above)
    assert again.capacity == 4 << 20 and again.used == s.used
    assert "left" in refuses(OSError, lambda: setattr(again, "y", np.zeros(3 << 20, dtype=np.uint8)))
    assert again.items == ["x"]
    again.y = np.ones(1 << 20, dtype=np.uint8)
    # Two processes that put there at the same time do not pass it together.
    code = f"""
import sys
sys.path.insert(0, {sys.path[0]!r})
import numpy as np
from shelf import shelf
try:
    shelf({s.path!r})[sys.argv[1]] = np.ones(600 << 10, dtype=np.uint8)
except OSError:
    print("full")
"""
    put = lambda name: subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
    ends = [child.communicate()[0] for child in [put("a"), put("b"), put("c")]]
    assert ends.count("full\n") == 2 and len(s.items) == 3, (ends, s.items)
    refuses(ValueError, lambda: shelf(name, size_mb=0, pmem_path=above))
    assert shelf(name, size_mb=8, pmem_path=above).capacity == 8 << 20 and s.capacity == 8 << 20
    shelf(name, pmem_path=above, force_new=True)
    os.rmdir(s.path)


def in_bounded_memory(s, directory):
    """An array is assigned from a mapped one by a process that may not hold it."""
    source = directory + ".source.npy"
    array = np.lib.format.open_memmap(source, mode="w+", dtype=np.float32, shape=(64 << 20,))
    array[:: 1 << 20] = np.arange(64)
    del array
    code = f"""
import resource, sys
sys.path.insert(0, {sys.path[0]!r})
import numpy as np
from shelf import shelf
s = shelf({s.path!r})
source = np.load({source!r}, mmap_mode="r")
held = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) << 10
before = held()
s.copied = source
assert held() - before < source.nbytes // 8, held() - before
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    os.unlink(source)
    assert s.copied.shape == (64 << 20,) and s.copied[63 << 20] == 63


def verify(directory):
    s = shelf(directory)
    assert s.items == ["any name: 1", "big", "copied", "empty", "scalar", "x", "y"], s.items
    expected = (np.arange(1_000_000, dtype=np.int64).reshape(1000, 1000) + 1) * 2
    expected[:, 0] = -1
    assert s.x.dtype == np.int64 and (s.x == expected).all()
    assert (s.y == np.arange(12.0).reshape(3, 4)).all() and s.y.flags.f_contiguous
    assert s.empty.shape == (0, 5) and s.scalar[()] == 7
    assert s["any name: 1"].tolist() == [2, 1, 0]
    size = s.big.nbytes
    assert [s.big[at] for at in (0, size // 4, size - 1)] == [at % 251 + 1 for at in (0, size // 4, size - 1)]
    assert (np.load(os.path.join(directory, "x.npy")) == expected).all(), "usable without the module"
    shared(s)


def shared(s):
    """Two processes on one array: each sees at once what the other does, without a word said."""
    code = f"""
import sys
sys.path.insert(0, {sys.path[0]!r})
from shelf import shelf
s = shelf({s.path!r})
array = s.scalar
for line in sys.stdin:
    assert array[()] == int(line), (array[()], line)
    array[()] += 1
    print(array[()], flush=True)
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    array = s.scalar
    for value in (100, 200, 300):
        array[()] = value
        other.stdin.write(f"{value}\n")
        other.stdin.flush()
        assert int(other.stdout.readline()) == value + 1
        assert array[()] == value + 1
    array[()] = 7
    other.stdin.close()
    assert other.wait() == 0


def kill(directory):
    """A process is killed in the midst of assignments: what is there is one of the versions, whole."""
    s = shelf(directory)
    code = f"""
import sys
sys.path.insert(0, {sys.path[0]!r})
import numpy as np
from shelf import shelf
s = shelf({s.path!r})
for n in range(1, 1_000_000):
    s.killed = np.full(1 << 20, n)
    print(n, flush=True)
"""
    for _ in range(5):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3):
            last = int(child.stdout.readline())
        child.kill()
        last = max([last, *(int(line) for line in child.stdout.read().split())])
        child.wait()
        value = shelf(directory).killed
        assert (value == value[0]).all() and value[0] in (last, last + 1), (value[0], last)
        left = [name for name in os.listdir(directory) if name.endswith(".tmp")]
        assert left == [], "what the killed process had begun is cleared away"
    s.erase("killed")


def memory(directory, pool, passthrough):
    """No copy, and one in memory for all."""
    s = shelf(directory)
    s.one = np.arange(4 << 20, dtype=np.int64)
    program = f"from shelf import shelf\narray = shelf({directory!r}).one"
    one_resident_copy(os.path.join(directory, "one.npy"), [s.one], [program] * 3, pool, passthrough == "on")
    s.erase("one")


if __name__ == "__main__":
    actions = {"write": write, "verify": verify, "kill": kill, "memory": memory}
    actions[sys.argv[2]](sys.argv[1], *sys.argv[3:])

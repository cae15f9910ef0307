"""examples/kernels on the mount: operators in libraries of their own share arrays by key. `LIBRARIES` are directories
or files, with
colons between them: each saves what the others get."""

import ctypes
import itertools
import os
import subprocess
import sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/kernels")
sys.path.insert(0, HERE)

import numpy as np
from common import refuses
from memory import one_resident_copy
from kernels import Array, Kernels

LIBRARIES = os.environ["LIBRARIES"].split(":")
EIGHT_BITS = ["float8_e4m3fn", "float8_e5m2"]
TYPES = ["<f4", "<f8", "<f2", "|u1", "|i1", "<u2", "<i4", "<i8", "<c8", "<c16", "|b1"]


def write(directory):
    os.makedirs(directory, exist_ok=True)
    stores = [Kernels(library, directory) for library in LIBRARIES]
    for one, other in itertools.product(stores, stores):
        for dtype in TYPES:
            array = (np.arange(24) % 2 if dtype == "|b1" else np.arange(24)).reshape(2, 3, 4).astype(dtype)
            one.save("a", array)
            found = other.get("a")
            assert found.dtype == array.dtype and (found == array).all(), dtype
            assert (np.load(os.path.join(directory, "a")) == array).all()
        for array in [np.asfortranarray(np.eye(3, 5)), np.zeros((0, 3)), np.array(5.0), np.arange(20)[::3]]:
            one.save("b", array)
            found = other.get("b")
            assert found.shape == array.shape and (found == array).all()
        without_a_copy(one, other)
        assert one.save("a", np.arange(3, dtype=">i4")) == "a" and other.get("a").tolist() == [0, 1, 2]
        times, record = np.zeros(1, dtype="M8[ns]"), np.zeros(1, dtype="i4,f4")
        for no_numbers in [np.array([{}]), np.array(["a"]), times, record]:
            refuses(TypeError, lambda: one.save("a", no_numbers))
            assert other.get("a").tolist() == [0, 1, 2], "the old value stays"
        refuses_what_is_no_array(one, other)
        assert other.delete("a") is True and one.delete("a") is False
        assert one.keys() == ["b"]
        assert "No such file" in refuses(KeyError, lambda: one.get("a"))
        for key in ["", ".", "..", "../x", "x/y", ".hidden"]:
            refuses(OSError, lambda: one.save(key, np.zeros(1)))
            refuses((OSError, KeyError), lambda: one.get(key))
    hostile(stores, directory)
    stores[0].delete("b")
    between_processes(directory)
    never_half(directory)
    for number, store in enumerate(stores):
        store.save(f"kept-{number}", np.arange(1000) + number)


def refuses_what_is_no_array(one, other):
    """The libraries believe no caller: what others could not get does not take the place of what they can."""
    raw = lambda descr, shape, size: Array(descr=descr, rank=1, shape=(shape,), bytes=size, data=data.ctypes.data)
    data = np.zeros(100)
    for wrong in [
        raw(b"<M8[ns]", 1, 8),
        raw(b"|O", 1, 8),
        raw(b"<f4", 2, 4),
        raw(b"<f4", -1, 4),
        raw(b"<f4', 'x': '", 1, 4),
        raw(b"", 1, 8),
        raw(b"<f8", 1 << 62, 8),
    ]:
        refuses(OSError, lambda: one._call(one._save, "a", ctypes.byref(wrong)))
    assert other.get("a").tolist() == [0, 1, 2]


def without_a_copy(one, other):
    """Two libraries map the same memory: what one changes the other has."""
    one.save("shared", np.zeros(1 << 20))
    here, there = one.get("shared"), other.get("shared")
    here[12345] = 7
    assert there[12345] == 7
    one.save("shared", np.ones(4))
    assert there[12345] == 7 and other.get("shared").sum() == 4, "the version that is mapped stays"
    one.delete("shared")
    assert here[12345] == 7
    # The mapping goes with the last of what was made of it. It used to stay until Python looked for circles.
    one.save("owned", np.arange(1 << 20))
    part = one.get("owned")[5:10][::2]
    assert part.tolist() == [5, 7, 9] and mapped("owned") == 1
    del part
    assert mapped("owned") == 0
    one.delete("owned")


def mapped(key):
    return sum(line.rstrip().endswith(f"/{key}") for line in open("/proc/self/maps"))


def hostile(stores, directory):
    """Files of other programs are refused, not believed."""
    whole = b"\x93NUMPY\x01\x00"
    text = lambda text: whole + len(text).to_bytes(2, "little") + text
    files = [
        b"",
        b"x",
        whole,
        whole + b"\xff\xff",
        text(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000, ), }\n"),
        text(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999, ), }\n"),
        text(b"{'descr': '|O', 'fortran_order': False, 'shape': (1, ), }\n") + b"12345678",
        text(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, ), }\n"),
        text(b"{'descr': '<f"),
        text(b"{'shape': ("),
    ]
    for number, content in enumerate(files):
        with open(os.path.join(directory, "bad"), "wb") as file:
            file.write(content)
        for store in stores:
            refuses(OSError, lambda: store.get("bad"))
    os.unlink(os.path.join(directory, "bad"))


def other_process(directory, library, code):
    setup = f"import sys; sys.path.insert(0, {HERE!r}); from kernels import Kernels; import numpy as np\n"
    setup += f"store = Kernels({library!r}, {directory!r})\n"
    return subprocess.Popen([sys.executable, "-c", setup + code], stdout=subprocess.PIPE, text=True)


def between_processes(directory):
    for library, other in itertools.product(LIBRARIES, LIBRARIES):
        store = Kernels(library, directory)
        child = other_process(directory, other, "store.save('from child', np.arange(10.)); print('saved')")
        assert child.communicate()[0] == "saved\n" and child.returncode == 0
        assert store.get("from child").sum() == 45
        child = other_process(directory, other, "store.get('from child')[3] = 100; print('changed')")
        array = store.get("from child")
        assert child.communicate()[0] == "changed\n" and child.returncode == 0
        assert array[3] == 100, "one memory"
        store.delete("from child")


def never_half(directory):
    """While others save and delete a key over and over, who gets it gets one version whole, or is told that there is
    none."""
    code = """
for n in range(200):
    store.save('busy', np.full(50_000 + n, n))
    if n % 7 == 0:
        store.delete('busy')
"""
    children = [other_process(directory, library, code) for library in LIBRARIES * 2]
    store = Kernels(LIBRARIES[0], directory)
    found = missing = 0
    while any(child.poll() is None for child in children):
        try:
            array = store.get("busy")
        except KeyError:
            missing += 1
            continue
        found += 1
        assert (array == array[0]).all() and len(array) == 50_000 + array[0]
    assert all(child.wait() == 0 for child in children) and found > 0, (found, missing)
    store.delete("busy")
    assert [name for name in os.listdir(directory) if name.endswith(".tmp")] == []


def verify(directory):
    stores = [Kernels(library, directory) for library in LIBRARIES]
    assert stores[0].keys() == [f"kept-{number}" for number in range(len(stores))]
    for number, store in itertools.product(range(len(stores)), stores):
        assert (store.get(f"kept-{number}") == np.arange(1000) + number).all()


def torch(directory):
    import torch

    os.makedirs(directory, exist_ok=True)
    library = Kernels(LIBRARIES[0], directory).register_torch()
    ops = torch.ops.tensorfs
    ops.save_tensor("w", torch.arange(6.0).reshape(2, 3))
    tensor = ops.get_tensor("w")
    assert torch.equal(tensor, torch.arange(6.0).reshape(2, 3))
    ops.get_tensor("w")[1, 2] = 50
    assert tensor[1, 2] == 50
    assert ops.delete_tensor("w") is True and ops.delete_tensor("w") is False
    refuses(Exception, lambda: ops.get_tensor("w"))
    parameter = torch.nn.Parameter(torch.ones(3))
    assert ops.save_tensor("p", parameter) == "p" and ops.get_tensor("p").tolist() == [1, 1, 1]
    for dtype in [torch.bfloat16, *(getattr(torch, name) for name in EIGHT_BITS if hasattr(torch, name))]:
        tensor = torch.arange(6.0).reshape(3, 2).t().to(dtype)
        ops.save_tensor("p", tensor)
        found = ops.get_tensor("p")
        assert found.dtype == dtype and torch.equal(found.float(), tensor.float()), dtype
    refuses(Exception, lambda: ops.save_tensor("p", torch.eye(3).to_sparse()))
    assert torch.equal(ops.get_tensor("p").float(), tensor.float())
    ops.delete_tensor("p")
    del library


def memory(directory, pool, passthrough):
    """No copy, and one in memory for all, in one process and in several."""
    os.makedirs(directory, exist_ok=True)
    stores = [Kernels(library, directory) for library in LIBRARIES]
    stores[0].save("one", np.arange(4 << 20, dtype=np.int64))
    programs = [
        f"from kernels import Kernels\narray = Kernels({library!r}, {directory!r}).get('one')"
        for library in LIBRARIES
    ]
    arrays = [store.get("one") for store in stores]
    one_resident_copy(os.path.join(directory, "one"), arrays, programs, pool, passthrough == "on")
    stores[0].delete("one")


def kill(directory):
    """A process is killed in the midst of saves: what the key has is one of the versions, whole."""
    os.makedirs(directory, exist_ok=True)
    code = "for n in range(1, 1_000_000):\n    store.save('killed', np.full(1 << 20, n))\n    print(n, flush=True)"
    for library in LIBRARIES * 3:
        child = other_process(directory, library, code)
        for _ in range(3):
            last = int(child.stdout.readline())
        child.kill()
        last = max([last, *map(int, child.stdout.read().split())])
        child.wait()
        for store in [Kernels(library, directory) for library in LIBRARIES]:
            value = store.get("killed")
            assert len(value) == 1 << 20 and (value == value[0]).all(), value[0]
            assert value[0] in (last, last + 1), (value[0], last)
    Kernels(LIBRARIES[0], directory).delete("killed")


if __name__ == "__main__":
    actions = {"write": write, "verify": verify, "torch": torch, "memory": memory, "kill": kill}
    actions[sys.argv[2]](sys.argv[1], *sys.argv[3:])

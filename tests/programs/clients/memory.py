"""That an array is in memory once, whoever has it mapped: by the numbers of its physical pages, and by what the kernel
accounts for."""

import mmap
import os
import struct
import subprocess
import sys

import numpy as np

from common import check

PAGE = mmap.PAGESIZE


def frames(pid, address, size):
    """The numbers of the physical pages behind `size` bytes at `address` of a process (0: none). Only root may know
    them."""
    first, last = address // PAGE, (address + size - 1) // PAGE
    with open(f"/proc/{pid}/pagemap", "rb") as file:
        file.seek(8 * first)
        entries = struct.unpack(f"<{last - first + 1}Q", file.read(8 * (last - first + 1)))
    return [entry & ((1 << 55) - 1) if entry >> 63 else 0 for entry in entries]


def resident(pid, address):
    """Rss and Pss, in bytes, of the mapping at `address`: what is in memory, and the process's share of that."""
    found, inside = {}, False
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            head = line.split()[0]
            if not head.endswith(":"):
                first, last = (int(part, 16) for part in head.split("-"))
                inside = first <= address < last
            elif inside and head in ("Rss:", "Pss:"):
                found[head] = int(line.split()[1]) << 10
    return found["Rss:"], found["Pss:"]


def anonymous():
    """Bytes of this process's own memory: no file has them."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


def segment_of(pool, path):
    """The host's file that holds a file's bytes."""
    with open(path, "rb") as file:
        want = file.read()
    for directory, _, names in os.walk(os.path.join(pool, "segments")):
        for name in names:
            candidate = os.path.join(directory, name)
            if os.stat(candidate).st_size == len(want):
                with open(candidate, "rb") as file:
                    if file.read() == want:
                        return candidate
    raise AssertionError(f"no segment holds the bytes of {path}")


def one_resident_copy(path, arrays, programs, pool, passthrough):
    """Checks that the file at `path` is in memory once: it is mapped here as `arrays`, and by programs of Python that
    set `array`.

    With passthrough the pages are those of the pool's own file; without, the host has a second copy of what went
    through the server."""
    size = arrays[0].nbytes
    before = anonymous()
    mapped = [(os.getpid(), array.ctypes.data) for array in arrays]
    for array in arrays:
        check(array.max() > 0, "touched")
    check(anonymous() - before < size // 4, "a copy in our own memory:", anonymous() - before)
    children = []
    for program in programs:
        code = f"import sys\nsys.path[:0] = {sys.path!r}\nfrom memory import anonymous\n"
        code += f"before = anonymous()\n{program}\n"
        code += "assert array.max() > 0\nprint(array.ctypes.data, anonymous() - before, flush=True)\nsys.stdin.read()\n"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        address, own = map(int, child.stdout.readline().split())
        check(own < size // 2, "a copy in its own memory:", own)
        mapped.append((child.pid, address))
        children.append(child)
    memory = [resident(*where) for where in mapped]
    check(all(rss >= size for rss, _ in memory), "each has all of it:", memory)
    together = sum(pss for _, pss in memory)
    check(size * 9 // 10 < together < size * 11 // 10, "together they have it once:", memory)
    if os.geteuid() == 0:
        ours, *others = [frames(*where, size) for where in mapped]
        check(all(ours) and all(other == ours for other in others), "not the same pages")
        with open(segment_of(pool, path), "rb") as file:
            # Mapped at the offset that the array has in the file.
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        host = np.frombuffer(whole, np.uint8)
        check(host.max() > 0, "touched")
        at = host.size - size
        pages = frames(os.getpid(), host.ctypes.data + at, size)
        check((pages == ours) == passthrough, "the pool's own pages:", passthrough)
        check(passthrough or not set(pages) & set(ours), "a copy apart without passthrough")
    else:
        print("physical pages are not compared: that needs root")
    for child in children:
        child.stdin.close()
        check(child.wait() == 0, "a program that has it mapped")

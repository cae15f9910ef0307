"""examples/languages: programs in five languages have one array in memory once.

    languages_client.py FILE.npy memory POOL on|off PRELOADED PROGRAM...

Each program is run with the file's name in the place of `FILE`, and stopped while it has the file mapped; Python has
it, too."""

import os
import signal
import subprocess
import sys

import numpy as np

from common import check
from memory import frames, one_resident_copy, resident


def address_in(pid, path):
    """Where a process has a file mapped."""
    with open(f"/proc/{pid}/maps") as maps:
        found = [line for line in maps if line.rstrip().endswith(os.path.realpath(path))]
    check(len(found) == 1, "mapped once:", *found)
    return int(found[0].split("-")[0], 16)


def stop(path, preloaded, command, size):
    """The program, stopped while it has the file mapped."""
    environment = {**os.environ, "LD_PRELOAD": preloaded, "STOP_AT": str(size)}
    words = [path if word == "FILE" else word for word in command.split()]
    child = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    check(os.WIFSTOPPED(status), command, "ended before it unmapped the array:", status)
    return child


def share(path, stopped, size):
    """They have the same pages of it as we have."""
    whole = np.memmap(path, np.uint8, "r")
    check(whole.max() > 0, "touched")
    places = [(child.pid, address_in(child.pid, path)) for child in stopped]
    memory = [resident(*place) for place in places]
    check(all(rss >= size for rss, _ in memory), "each has all of it:", memory)
    check(all(pss < size * 3 // 4 for _, pss in memory), "and shares it:", memory)
    if os.geteuid() == 0:
        ours = frames(os.getpid(), whole.ctypes.data, size)
        check(all(ours), "touched")
        for place, child in zip(places, stopped):
            check(frames(*place, size) == ours, child.args, "has another copy")
    else:
        print("physical pages are not compared: that needs root")


def go_on(stopped):
    for child in stopped:
        child.send_signal(signal.SIGCONT)
    for child in stopped:
        check(child.wait() == 0, child.args)


def memory(path, pool, passthrough, preloaded, *programs):
    array = np.load(path, mmap_mode="r")
    check(array.sum() > 0, "touched")
    program = f"import numpy\narray = numpy.load({path!r}, mmap_mode='r')"
    one_resident_copy(path, [array], [program], pool, passthrough == "on")
    size = os.stat(path).st_size
    stopped = [stop(path, preloaded, command, size) for command in programs]
    try:
        share(path, stopped, size)
    finally:
        go_on(stopped)


def fortran(path, preloaded, command):
    """The program makes the file and then maps it: the size is that of the one before."""
    size = os.stat(path).st_size
    child = stop(path, preloaded, command, size)
    try:
        share(path, [child], size)
    finally:
        # It stops a second time, for the second file.
        child.send_signal(signal.SIGCONT)
        os.waitpid(child.pid, os.WUNTRACED)
        go_on([child])


if __name__ == "__main__":
    {"memory": memory, "fortran": fortran}[sys.argv[2]](sys.argv[1], *sys.argv[3:])

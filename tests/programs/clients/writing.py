"""What the writers of writers_client.py share."""

import os
import resource
import signal
import subprocess
import sys

from common import array, check

ROWS = 16384
LIMIT = "FILES_LIMIT"


def values(turn=0):
    return {name: array(f"{name}{turn}", (ROWS,), "<f4") for name in ("weight", "bias")}


def ready(path, go_on=None):
    """Says that there is something to be seen; for each line of standard input more is written."""
    print("ready", flush=True)
    print(path, flush=True)
    for _ in sys.stdin:
        go_on()


class Writer:
    """A way that is not here the library does not have."""

    name = "file"

    def __init__(self, directory):
        self.directory = directory
        self.path = os.path.join(directory, self.name)


class Stops:
    """A file of which so many bytes are written, and no more."""

    def __init__(self, file, path, most):
        self.file, self.path, self.left = file, path, most

    def write(self, data):
        data = memoryview(data).cast("B")
        self.file.write(data[: self.left])
        self.left -= len(data)
        if self.left <= 0:
            self.file.flush()
            ready(self.path)
        return len(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


def dies(way, most, **environment):
    """Has a process do it that is killed by the kernel, as it is about to make a file larger than that. For libraries
    that open their files themselves, and write them at once."""
    command = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:3], way]
    environment = os.environ | {LIMIT: str(most)} | environment
    died = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    check(died.returncode == -signal.SIGXFSZ, "it was not killed:", died.returncode, died.stderr.decode())


def limit_files():
    """Called by whoever is to be killed so. Python would ignore the signal."""
    if LIMIT in os.environ:
        most = int(os.environ[LIMIT])
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def only_file(directory):
    """The one file that is below a directory."""
    (path,) = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]
    return path

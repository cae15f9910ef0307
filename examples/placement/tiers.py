"""Tiers: directories whose files hold memory. Nothing here knows PyTorch; only `mark` knows tensorfs.

A tier's directory has

    weights/NAME.npy      a file for each weight; they stay, and whatever knows NumPy's format can read them
    activations.XXXX/     buffers of one process, for as long as it lives
"""

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile

MARK = "user.tensorfs.tier"
PAGE = os.sysconf("SC_PAGE_SIZE")
MS_SYNC = 4

libc = ctypes.CDLL(None, use_errno=True)
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def mark(directory, tier):
    """Has what is made in a directory from now on belong to a tier of the pool. Returns why it will not, or None."""
    os.makedirs(directory, exist_ok=True)
    try:
        os.setxattr(directory, MARK, tier.encode())
    except OSError as error:
        return f"{directory} is in no pool with a tier {tier!r} ({error.strerror})"
    return None


def npy_header(descr, shape):
    """What a `.npy` file of such an array begins with; its elements come next, 64 bytes or a multiple behind."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    text = text.ljust(-(10 + len(text) + 1) % 64 + len(text)) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


class Buffer:
    """A file, and the memory of what is behind its header."""

    def __init__(self, tier, path, size, mapper, header=b""):
        self.tier, self.path, self.size = tier, path, size
        self.mapped = len(header) + size
        # Room is taken before anything is stored: a store through a mapping of a full tier would be a SIGBUS.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.mapped)
            os.pwrite(descriptor, header, 0)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        memory, self.address = mapper(path, self.mapped)
        self.memory = memory[len(header) :]

    def sync(self):
        """Returns when what was stored is on the tier's medium."""
        self.tier.syncs += 1
        if libc.msync(self.address, self.mapped, MS_SYNC) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.path)


class Tier:
    """A directory from which memory is taken. `mapper(path, size)` maps a file and returns (memory, address).

    On a tensorfs mount whose pool has a tier of that name, what is made in the directory belongs to that tier.
    Elsewhere `apart` says why not, and the directory is one like any other. `limit` is how many bytes may be taken.
    With `write_through`, what is stored is on the medium before the training goes on, as it is on persistent memory;
    without, the kernel writes it some time later, as it does for any file.
    """

    def __init__(self, name, directory, mapper, limit=None, write_through=False):
        self.name, self.directory, self.mapper = name, os.path.abspath(directory), mapper
        self.limit, self.write_through = limit, write_through
        self.taken = 0
        self.stored = 0
        self.syncs = 0
        self._free = {}
        self.apart = mark(self.directory, name)
        os.makedirs(os.path.join(self.directory, "weights"), exist_ok=True)
        self._remove_leftovers()
        self._scratch = tempfile.mkdtemp(prefix="activations.", dir=self.directory)
        # Held for as long as this process lives, so that others can tell whether the buffers are still in use.
        self._lock = os.open(self._scratch, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._count = 0

    # --- buffers for activations -------------------------------------------------------------------

    def take(self, size):
        """A buffer of at least that size; OSError (ENOSPC) if the tier is full."""
        size = -(-max(size, 1) // PAGE) * PAGE
        if self._free.get(size):
            return self._free[size].pop()
        self._make_room(size)
        self._count += 1
        buffer = Buffer(self, os.path.join(self._scratch, str(self._count)), size, self.mapper)
        self.taken += size
        return buffer

    def give(self, buffer):
        """Takes a buffer back, for the next allocation that needs one of its size."""
        self._free.setdefault(buffer.size, []).append(buffer)

    def _make_room(self, size):
        while self.limit is not None and self.taken + size > self.limit:
            idle = max((s for s, buffers in self._free.items() if buffers), default=None)
            if idle is None:
                raise OSError(errno.ENOSPC, f"{self.taken} of {self.limit} bytes are taken", self.directory)
            self._drop(self._free[idle].pop())

    def _drop(self, buffer):
        os.unlink(buffer.path)
        self.taken -= buffer.size

    # --- files for weights ---------------------------------------------------------------------------

    def weight_path(self, name):
        return os.path.join(self.directory, "weights", name + ".npy")

    def weight(self, name, size, header=None):
        """The file of a weight as it is, mapped. It has to be an array of that header, by default one of bytes."""
        path, header = self.weight_path(name), header or npy_header("|u1", (size,))
        with open(path, "rb") as file:
            if file.read(len(header)) != header:
                raise ValueError(f"{path} is another array")
        if os.stat(path).st_size != len(header) + size:
            raise ValueError(f"{path} has {os.stat(path).st_size} bytes, not {len(header) + size}")
        buffer = Buffer(self, path, size, self.mapper, header)
        self.taken += size
        return buffer

    def new_weight(self, name, size, header=None):
        """A file for a weight, mapped; it gets its name by `settle`, when it is filled."""
        self._make_room(size)
        path = os.path.join(self.directory, "weights", f".{name}.tmp")
        buffer = Buffer(self, path, size, self.mapper, header or npy_header("|u1", (size,)))
        self.taken += size
        return buffer

    def settle(self, name, buffer):
        path = self.weight_path(name)
        os.rename(buffer.path, path)
        buffer.path = path

    def remove_weight(self, name, buffer):
        self.forget(name)
        self.taken -= buffer.size

    def forget(self, name):
        try:
            os.unlink(self.weight_path(name))
        except FileNotFoundError:
            pass

    def sync_names(self):
        """Makes durable which weights there are."""
        directory = os.open(os.path.join(self.directory, "weights"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def has(self, name):
        return os.path.exists(self.weight_path(name))

    # --- the end -----------------------------------------------------------------------------------

    def close(self):
        """Removes the buffers."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._lock)

    def _remove_leftovers(self):
        """Removes what processes that were killed left behind."""
        for name in os.listdir(self.directory):
            if not name.startswith("activations."):
                continue
            path = os.path.join(self.directory, name)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            except BlockingIOError:
                pass
            finally:
                os.close(descriptor)

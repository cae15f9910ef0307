"""Shelves: named arrays that stay where they are between runs, without being loaded or saved.

    import numpy as np
    from shelf import ndarray, shelf

    s = shelf("/mnt/tensors/myshelf")          # or shelf("myshelf", size_mb=1024, pmem_path="/mnt/tensors")
    s.x = np.random.rand(1000, 1000)           # copied once into the pool
    s.x[1][1] = 9                              # in place, in the pool
    s.y = ndarray((1000, 1000), dtype="int64") # made in the pool: zeroes, no copy
    s.items                                    # ['x', 'y']

A shelf is a directory and an array on it is a plain .npy file, which np.load(..., mmap_mode="r+") and everything else
that knows .npy can use without this module.

What `s.x` gives is mapped: a change to it is a change to the file, seen at once by every process that has it mapped.
Changes in place are durable after `s.sync()`, and otherwise whenever the kernel writes them.

`s.x = array` makes a new version. It is there whole and durable when the assignment returns, and not at all if the
process is killed before. Processes that have the old version mapped keep it.

What is put on a shelf has its room in the pool from then on: no store into it finds the pool full. With `sparse=True`
an array made there takes room only where something is stored, and a store can find none.

PyTorch tensors can be put on a shelf where PyTorch is installed, and come back as tensors on the same memory.
"""

import contextlib
import errno
import fcntl
import os
import sys

import numpy as np

__all__ = ["ndarray", "shelf"]

SUFFIX = ".npy"
TEMPORARY = ".tmp"
# The attribute that says that an array was put here as a tensor, and of which type.
TENSOR = "user.shelf.tensor"
# The attribute of a shelf's directory that says how many bytes it may hold.
SIZE = "user.shelf.size"
LONGEST = 200


class ndarray:
    """An array that is to be made on a shelf, of zeroes: takes what numpy.ndarray takes. If it is `sparse`, no room is
    kept for it."""

    def __init__(self, shape, dtype=float, order="C", sparse=False):
        self.shape = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
        self.dtype = np.dtype(dtype)
        self.order = order
        self.sparse = sparse
        self.nbytes = self.dtype.itemsize * int(np.prod(self.shape, dtype=object))


class shelf:
    """The arrays in one directory, which is made if it is not there: `name`, below `pmem_path` if that is given. With
    `force_new` it is emptied first.

    With `size_mb` it holds no more than so many MiB, for every process and from now on; without, what it was made with,
    or as much as the pool. Arrays that are made on a `sparse` shelf take no room until something is stored in them.
    """

    def __init__(self, name, size_mb=None, pmem_path=None, force_new=False, sparse=False):
        own = self.__dict__
        own["path"] = os.path.abspath(name if pmem_path is None else os.path.join(pmem_path, name))
        own["_sparse"] = sparse
        own["_mapped"] = {}
        os.makedirs(self.path, exist_ok=True)
        self._remove_leftovers()
        if force_new:
            for name in self.items:
                self.erase(name)
        if size_mb is not None:
            if not (isinstance(size_mb, int) and size_mb > 0):
                raise ValueError(f"size_mb is a number of MiB: {size_mb!r}")
            os.setxattr(self.path, SIZE, str(size_mb << 20).encode())

    # --- what is on it ---------------------------------------------------------------------------

    @property
    def items(self):
        """The names of all arrays."""
        names = (name[: -len(SUFFIX)] for name in os.listdir(self.path) if name.endswith(SUFFIX))
        return sorted(name for name in names if not name.startswith("."))

    def __contains__(self, name):
        return name in self.items

    def __iter__(self):
        return iter(self.items)

    def __len__(self):
        return len(self.items)

    def __dir__(self):
        return [*super().__dir__(), *self.items]

    def __repr__(self):
        return f"shelf({self.path!r}): {', '.join(self.items) or 'empty'}"

    # --- arrays ----------------------------------------------------------------------------------

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"nothing is called {name!r} on the shelf {self.path}") from None

    def __setattr__(self, name, value):
        self[name] = value

    def __delattr__(self, name):
        self.erase(name)

    def __getitem__(self, name):
        path = self._path_of(name)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise KeyError(name) from None
        version, array = self._mapped.get(name, (None, None))
        # Another process may have put a new version here.
        if version != status.st_ino:
            array = _map(path)
            self._mapped[name] = (status.st_ino, array)
        return array

    def __setitem__(self, name, value):
        path = self._path_of(name)
        if value is self._mapped.get(name, (None, None))[1] and name in self:
            return  # s.x += 1 changes it in place, and then assigns it
        array, tensor = _as_array(name, value)
        sparse = isinstance(array, ndarray) and (array.sparse or self._sparse)
        temporary = os.path.join(self.path, f".{name}.{os.getpid()}{TEMPORARY}")
        with self._room_for(name, 0 if sparse else array.nbytes), open(temporary, "wb") as file:
            # Held for as long as this process works on the file, which tells it from what a killed process left.
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                _write(file, array, sparse)
                if tensor:
                    os.setxattr(file.fileno(), TENSOR, tensor.encode())
                file.flush()
                os.fsync(file.fileno())
                os.rename(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        self._mapped.pop(name, None)
        self._sync_directory()

    def erase(self, name):
        """Takes an array off the shelf. Processes that have it mapped keep it."""
        try:
            os.unlink(self._path_of(name))
        except FileNotFoundError:
            raise KeyError(f"nothing is called {name!r} on the shelf {self.path}") from None
        self._mapped.pop(name, None)
        self._sync_directory()

    def sync(self):
        """Makes the changes that this process made in place durable."""
        for _, array in self._mapped.values():
            base = array.numpy() if hasattr(array, "numpy") else array
            while base is not None and not isinstance(base, np.memmap):
                base = getattr(base, "base", None)
            if base is not None:
                base.flush()
        self._sync_directory()

    # --- space -----------------------------------------------------------------------------------

    @property
    def capacity(self):
        """Bytes that the shelf can hold: its own size, or the pool's if it has none."""
        status = os.statvfs(self.path)
        return self._size() or status.f_blocks * status.f_frsize

    @property
    def used(self):
        """How much of the capacity is used, in percent."""
        return round(100 * (1 - self._free() / max(self.capacity, 1)))

    def _size(self):
        try:
            return int(os.getxattr(self.path, SIZE))
        except OSError:
            return None

    def _free(self):
        status = os.statvfs(self.path)
        free = status.f_bavail * status.f_frsize
        size = self._size()
        return free if size is None else max(0, min(free, size - self._held()))

    def _held(self):
        """Bytes that the shelf's arrays take, also those that another process is about to put there."""
        held = 0
        for entry in os.scandir(self.path):
            try:
                held += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                pass
        return held

    @contextlib.contextmanager
    def _room_for(self, name, size):
        """Says at once if there is no room, and keeps others from taking it meanwhile where the shelf has a size."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            if self._size() is not None:
                fcntl.flock(directory, fcntl.LOCK_EX)
            free = self._free()
            if size > free:
                raise OSError(errno.ENOSPC, f"{name} needs {size} bytes, and the shelf has {free} left", self.path)
            yield
        finally:
            os.close(directory)

    # --- files -----------------------------------------------------------------------------------

    def _path_of(self, name):
        reserved = name in self.__dict__ or hasattr(type(self), name)
        if not name or name[0] in "._" or "/" in name or "\0" in name or len(os.fsencode(name)) > LONGEST or reserved:
            raise ValueError(f"{name!r} cannot be the name of an array on a shelf")
        return os.path.join(self.path, name + SUFFIX)

    def _sync_directory(self):
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _remove_leftovers(self):
        for name in os.listdir(self.path):
            if name.startswith(".") and name.endswith(TEMPORARY):
                path = os.path.join(self.path, name)
                try:
                    with open(path, "rb") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.unlink(path)
                except (BlockingIOError, FileNotFoundError):
                    pass


def _as_array(name, value):
    """The value as an array that can be written, and the type of its tensor, if it is one."""
    if isinstance(value, ndarray):
        array = value
    elif isinstance(value, np.ndarray):
        array = value
    elif "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        torch = sys.modules["torch"]
        tensor = str(value.dtype).removeprefix("torch.")
        value = value.detach().cpu()
        if value.is_sparse or value.is_quantized:
            raise TypeError(f"{name} is no dense tensor ({value.layout})")
        # NumPy has neither bfloat16 nor 8-bit floats; their bits are kept.
        bits = {"bfloat16": torch.int16}.get(tensor, torch.uint8 if tensor.startswith("float8") else None)
        return (value if bits is None else value.contiguous().view(bits)).numpy(), tensor
    else:
        raise TypeError(f"only arrays and tensors can be put on a shelf: {name} is of {type(value)}")
    if array.dtype.hasobject:
        raise TypeError(f"{name} holds Python objects, which mean nothing to another process")
    return array, None


def _write(file, array, sparse):
    if not isinstance(array, ndarray):
        # Straight from memory, whatever its size: an array that is itself mapped need not fit into RAM.
        np.lib.format.write_array(file, array, allow_pickle=False)
        return
    description = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": array.order == "F",
        "shape": array.shape,
    }
    np.lib.format.write_array_header_2_0(file, description)
    size = file.tell() + array.nbytes
    file.flush()
    if sparse:
        file.truncate(size)
    else:
        os.posix_fallocate(file.fileno(), 0, size)


def _map(path):
    try:
        array = np.load(path, mmap_mode="r+")
    except PermissionError:
        array = np.load(path, mmap_mode="r")
    except ValueError:
        # There is nothing to map in an array without elements.
        array = np.load(path)
    try:
        tensor = os.getxattr(path, TENSOR).decode()
    except OSError:
        return array
    import torch

    tensor_type = getattr(torch, tensor)
    result = torch.from_numpy(array)
    return result.view(tensor_type) if result.dtype != tensor_type else result

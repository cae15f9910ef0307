"""The operators of this directory from Python: NumPy arrays by ctypes, and PyTorch tensors as custom operators.

    store = Kernels("build", "/mnt/tensors/store")
    store.save("weights", array)
    store.get("weights")            # the array in the pool, not a copy
    store.delete("weights")         # KeyError if there is none

`store.register_torch()` makes them torch.ops.tensorfs.save_tensor, get_tensor and delete_tensor.
"""

import ctypes
import errno
import os

import numpy as np


class Array(ctypes.Structure):
    _fields_ = [
        ("descr", ctypes.c_char * 16),
        ("rank", ctypes.c_int32),
        ("column_major", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 16),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("mapping", ctypes.c_void_p),
        ("mapped", ctypes.c_uint64),
    ]


class Mapped:
    """Keeps a mapping for as long as an array shows it."""

    def __init__(self, array, release):
        self.array, self.release = array, release
        order = "F" if array.column_major else "C"
        shape = tuple(array.shape[: array.rank])
        buffer = (ctypes.c_char * array.bytes).from_address(array.data)
        buffer.owner = self
        self.view = np.frombuffer(buffer, dtype=array.descr.decode()).reshape(shape, order=order)

    def __del__(self):
        self.release(ctypes.byref(self.array))


class Kernels:
    """`libraries` is the directory of the three C++ libraries, or one library that has all three operators."""

    def __init__(self, libraries, directory):
        self.directory = os.fsencode(directory)
        names = ("save_tensor", "get_tensor", "delete_tensor")
        if os.path.isdir(libraries):
            libraries = [ctypes.CDLL(os.path.join(libraries, f"{name}.so")) for name in names]
        else:
            libraries = [ctypes.CDLL(libraries)] * 3
        self._save, self._get, self._delete = (getattr(library, name) for library, name in zip(libraries, names))
        self._release = libraries[1].release_tensor

    def _call(self, function, key, *arguments):
        why = ctypes.create_string_buffer(300)
        code = function(self.directory, os.fsencode(key), *arguments, why, ctypes.c_size_t(len(why)))
        if code == errno.ENOENT:
            raise KeyError(why.value.decode())
        if code != 0:
            raise OSError(code, why.value.decode())

    def save(self, key, array):
        array = np.asarray(array)
        column_major = array.flags.f_contiguous and not array.flags.c_contiguous
        array = array if column_major else np.ascontiguousarray(array).reshape(array.shape)
        raw = Array(descr=array.dtype.str.encode(), rank=array.ndim, column_major=column_major, bytes=array.nbytes)
        raw.shape[: array.ndim] = array.shape
        raw.data = array.ctypes.data
        self._call(self._save, key, ctypes.byref(raw))

    def get(self, key):
        raw = Array()
        self._call(self._get, key, ctypes.byref(raw))
        if raw.bytes == 0:
            empty = np.empty(tuple(raw.shape[: raw.rank]), dtype=raw.descr.decode())
            self._release(ctypes.byref(raw))
            return empty
        return Mapped(raw, self._release).view

    def delete(self, key):
        self._call(self._delete, key)

    def keys(self):
        return sorted(name for name in os.listdir(os.fsdecode(self.directory)) if not name.startswith("."))

    def register_torch(self):
        import torch

        library = torch.library.Library("tensorfs", "DEF")
        library.define("save_tensor(str key, Tensor tensor) -> ()")
        library.define("get_tensor(str key) -> Tensor")
        library.define("delete_tensor(str key) -> ()")
        library.impl("save_tensor", lambda key, tensor: self.save(key, tensor.numpy()), "CPU")
        library.impl("get_tensor", lambda key: torch.from_numpy(self.get(key)), "CompositeExplicitAutograd")
        library.impl("delete_tensor", lambda key: self.delete(key), "CompositeExplicitAutograd")
        return library

"""The operators of this directory from Python: NumPy arrays by ctypes, and PyTorch tensors as custom operators.

    store = Kernels("build", "/mnt/tensors/store")
    store.save("weights", array)    # "weights"
    store.get("weights")            # the array in the pool, not a copy; KeyError if there is none
    store.delete("weights")         # True; False if there is none

`store.register_torch()` makes them torch.ops.tensorfs.save_tensor, get_tensor and delete_tensor.

Who owns what: `save` only reads what it is given. What `get` gives belongs to the pool, and the mapping to the array
and to all that was made of it (views, tensors): it is unmapped when the last of them is gone, and not before.
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
        ("type", ctypes.c_char * 16),
    ]


class Mapping:
    """Ends when nobody holds it any more, which whoever shows its memory does. It must not hold them."""

    def __init__(self, array, release):
        self.array, self.release = array, release

    def __del__(self):
        self.release(ctypes.byref(self.array))


def view_of(array, release):
    buffer = (ctypes.c_char * array.bytes).from_address(array.data)
    buffer.owner = Mapping(array, release)
    order = "F" if array.column_major else "C"
    shape = tuple(array.shape[: array.rank])
    return np.frombuffer(buffer, dtype=array.descr.decode()).reshape(shape, order=order)


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

    def save(self, key, array, type=""):
        """Saves an array of numbers. `type` says what they are where NumPy has no name for it, as for "bfloat16"."""
        array = np.asarray(array)
        # A value that others could not get must not take the place of one that they can.
        if array.dtype.kind not in "biufc":
            raise TypeError(f"only arrays of numbers have a key: {key} is of {array.dtype}")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        column_major = array.flags.f_contiguous and not array.flags.c_contiguous
        array = array if column_major else np.ascontiguousarray(array).reshape(array.shape)
        raw = Array(descr=array.dtype.str.encode(), rank=array.ndim, column_major=column_major, bytes=array.nbytes)
        raw.shape[: array.ndim] = array.shape
        raw.data = array.ctypes.data
        raw.type = type.encode()
        self._call(self._save, key, ctypes.byref(raw))
        return key

    def get(self, key):
        return self._get_typed(key)[0]

    def _get_typed(self, key):
        raw = Array()
        self._call(self._get, key, ctypes.byref(raw))
        if raw.bytes == 0:
            empty = np.empty(tuple(raw.shape[: raw.rank]), dtype=raw.descr.decode())
            self._release(ctypes.byref(raw))
            return empty, raw.type.decode()
        return view_of(raw, self._release), raw.type.decode()

    def delete(self, key):
        try:
            self._call(self._delete, key)
        except KeyError:
            return False
        return True

    def keys(self):
        return sorted(name for name in os.listdir(os.fsdecode(self.directory)) if not name.startswith("."))

    def register_torch(self):
        import torch

        library = torch.library.Library("tensorfs", "DEF")

        def save(key, tensor):
            if tensor.layout != torch.strided or tensor.is_quantized:
                raise TypeError(f"only dense tensors have a key: {key} is {tensor.layout}")
            tensor = tensor.detach().resolve_conj().resolve_neg()
            name = str(tensor.dtype).removeprefix("torch.")
            # NumPy has neither bfloat16 nor 8-bit floats; their bits are kept.
            bits = {"bfloat16": torch.int16}.get(name, torch.uint8 if name.startswith("float8") else None)
            if bits is None:
                return self.save(key, tensor.numpy())
            return self.save(key, tensor.contiguous().view(bits).numpy(), name)

        def get(key):
            array, name = self._get_typed(key)
            tensor = torch.from_numpy(array)
            return tensor.view(getattr(torch, name)) if name else tensor

        library.define("save_tensor(str key, Tensor tensor) -> str")
        library.define("get_tensor(str key) -> Tensor")
        library.define("delete_tensor(str key) -> bool")
        library.impl("save_tensor", save, "CPU")
        # A parameter is saved as its values.
        library.impl("save_tensor", save, "AutogradCPU")
        library.impl("get_tensor", get, "CompositeExplicitAutograd")
        library.impl("delete_tensor", lambda key: self.delete(key), "CompositeExplicitAutograd")
        return library

"""Writes small files with the libraries that own the formats, and beside each what the library reads from it.

    make_formats.py DIRECTORY

FILE.json lists the tensors of FILE: name, dtype, shape, step, mode, order, and the CRC-32C of the bytes. The lists come
from the libraries (numpy.load, torch.load, safe_open, smdebug's own reader, protobuf), never from tensorfs. Whatever
library is not installed here is left out; run it once for each environment.

layout/formats/tests/formats.rs compares them with what is recognised; its copies are in layout/formats/tests/samples.
"""

import importlib.metadata
import io
import json
import os
import shutil
import struct
import sys
import warnings
import zipfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import array, crc32c  # noqa: E402

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]


def entry(name, value, **more):
    """What is expected of the NumPy array `value`."""
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    plain = not value.dtype.hasobject
    out = {
        "name": name,
        "dtype": dtype_name(value.dtype),
        "shape": list(value.shape),
        "fortran": fortran,
        "crc32c": crc32c(value.tobytes("F" if fortran else "C")) if plain else None,
    }
    out.update(more)
    return out


def dtype_name(dtype):
    if dtype.hasobject:
        return "object"
    if dtype.names:
        return "structured"
    if dtype.kind in "SU":
        return "string"
    if dtype.kind in "Mm" or dtype in (np.longdouble, np.clongdouble):
        return "other"
    return "other" if dtype.kind == "V" else dtype.newbyteorder("=").name


class Samples:
    def __init__(self, directory):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def expect(self, name, format_, library, tensors, **more):
        with open(self.path(name + ".json"), "w") as file:
            head = {"format": format_, "library": library, **more}
            lines = ",\n".join("  " + json.dumps(t, sort_keys=True) for t in tensors)
            file.write(json.dumps(head, sort_keys=True)[:-1] + f', "tensors": [\n{lines}\n]}}\n')


# --- NumPy -----------------------------------------------------------------------------------------


def make_numpy(samples):
    library = f"numpy {np.__version__}"
    arrays = {d.replace("?", "bool"): array(d, (3, 5), d) for d in DTYPES}
    arrays.update({
        "fortran": np.asfortranarray(array("fortran", (4, 6), "f4")),
        "fortran3": np.asfortranarray(array("fortran3", (2, 3, 4), "i2")),
        "line": np.asfortranarray(array("line", (1, 6, 1), "f4")),
        "big": array("big", (4, 6), ">f8"),
        "scalar": array("scalar", (), "f8"),
        "empty": np.zeros((0, 7), "f4"),
        "text": np.array([["α", "beta"], ["", "x"]]),
        "bytes": np.array([b"one", b"three"]),
        "dates": np.array(["2020-01-01", "NaT"], dtype="M8[ns]"),
        "longdouble": np.arange(3, dtype=np.longdouble),
        "void": array("void", (3, 8), "u1").view("V8").reshape(3),
        "structured": np.zeros(5, [("a", "<i4"), ("b", ">f8", (2, 3)), ("c", [("d", "S3"), ("é", "?")])]),
        "aligned": np.ones(3, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        "objects": np.array([{"a": 1}, None, "x"], dtype=object),
    })
    for name, value in arrays.items():
        np.save(samples.path(f"{name}.npy"), value)
        back = np.load(samples.path(f"{name}.npy"), allow_pickle=True)
        samples.expect(f"{name}.npy", "npy", library, [entry("array", back)])
    for version in [(1, 0), (2, 0), (3, 0)]:
        name = f"version{version[0]}.npy"
        with open(samples.path(name), "wb") as file:
            np.lib.format.write_array(file, arrays["f4"], version)
        samples.expect(name, "npy", library, [entry("array", np.load(samples.path(name)))])
    # Saved one after the other to an open file, and read so.
    for name, some in [("two.npy", ["f4", "f8"]), ("several.npy", sorted(arrays))]:
        with open(samples.path(name), "wb") as file:
            for key in some:
                np.save(file, arrays[key])
        with open(samples.path(name), "rb") as file:
            values = [np.load(file, allow_pickle=True) for _ in some]
            listed = [entry(f"array[{n}]" if n else "array", value) for n, value in enumerate(values)]
            assert file.read() == b""
        samples.expect(name, "npy", library, listed)

    some = {k: arrays[k] for k in ["f4", "bool", "fortran", "big", "scalar", "empty", "structured", "objects"]}
    some["nested/name"] = arrays["i8"]
    np.savez(samples.path("arrays.npz"), **some)
    np.savez_compressed(samples.path("compressed.npz"), **some, zeroes=np.zeros((300, 400), "f8"))
    for name in ["arrays.npz", "compressed.npz"]:
        with np.load(samples.path(name), allow_pickle=True) as npz:
            samples.expect(name, "npz", library, [entry(k, npz[k]) for k in npz.files])


def make_ml_dtypes(samples):
    import ml_dtypes

    for name in ["bfloat16", "float8_e4m3fn"]:
        value = np.arange(6).astype(getattr(ml_dtypes, name)).reshape(2, 3)
        np.save(samples.path(f"{name}.npy"), value)
        with open(samples.path(f"{name}.npy"), "rb") as file:
            np.lib.format.read_magic(file)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        back = {"name": "array", "dtype": "other", "shape": list(shape), "fortran": fortran}
        back["crc32c"] = crc32c(value.tobytes())
        samples.expect(f"{name}.npy", "npy", f"ml_dtypes {ml_dtypes.__version__}", [back])


# --- safetensors -----------------------------------------------------------------------------------


def make_safetensors(samples):
    import safetensors
    from safetensors import safe_open
    from safetensors.numpy import save_file

    tensors = {f"layer.{d.replace('?', 'bool')}": array(d, (3, 5), d) for d in DTYPES if d not in ("c8", "c16")}
    tensors.update({"scalar": np.array(2.5, "f4"), "empty": np.zeros((0, 4), "i8"), "ünï": array("u", (9,), "f4")})
    metadata = {"format": "np", "quote": 'a "b" \\ c', "é": "ü"}
    save_file(tensors, samples.path("model.safetensors"), metadata=metadata)
    with safe_open(samples.path("model.safetensors"), "np") as reader:
        listed = [entry(name, reader.get_tensor(name)) for name in reader.offset_keys()]
        library = f"safetensors {safetensors.__version__}"
        samples.expect("model.safetensors", "safetensors", library, listed, metadata=reader.metadata())


def make_safetensors_torch(samples):
    import safetensors
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    names = "bfloat16 float16 float32 complex64 uint16 uint64"
    names += " float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    tensors = {n: torch.arange(12).reshape(3, 4).to(torch.float32).to(getattr(torch, n)) for n in names.split()}
    save_file(tensors, samples.path("torch.safetensors"), metadata={"format": "pt"})
    with safe_open(samples.path("torch.safetensors"), "pt") as reader:
        listed = [torch_entry(name, reader.get_tensor(name)) for name in reader.offset_keys()]
        for item in listed:
            del item["storage"]
        library = f"safetensors {safetensors.__version__}, torch {torch.__version__}"
        samples.expect("torch.safetensors", "safetensors", library, listed, metadata=reader.metadata())


# --- torch -----------------------------------------------------------------------------------------


def torch_entry(name, value):
    import torch

    def raw(t):
        t = t.detach().resolve_conj().resolve_neg() if hasattr(t, "resolve_neg") else t.detach()
        return t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()

    def address(t):
        return (t.untyped_storage() if hasattr(t, "untyped_storage") else t.storage()).data_ptr()

    reverse = value.permute(tuple(reversed(range(value.dim()))))
    fortran = not value.is_contiguous() and reverse.is_contiguous()
    return {
        "name": name,
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "fortran": fortran,
        "crc32c": crc32c(raw(reverse if fortran else value)),
        "storage": address(value.detach()) if value.numel() else None,
    }


def paths(value, path=()):
    """Tensors of nested dictionaries, lists and tuples, with the keys to them."""
    import torch

    if isinstance(value, torch.Tensor):
        yield ".".join(path) if path else "tensor", value
    elif isinstance(value, torch.nn.Module):
        yield from paths(vars(value), path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, path + (str(int(key) if isinstance(key, bool) else key),))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from paths(item, path + (str(index),))


def make_torch(samples):
    import torch

    torch.manual_seed(1)
    new = hasattr(torch, "float8_e4m3fn")
    prefix = "torch2" if new else "torch1"
    library = f"torch {torch.__version__}"

    def expect(name, **more):
        try:
            loaded = torch.load(samples.path(name), weights_only=False) if new else torch.load(samples.path(name))
        except TypeError:
            loaded = torch.load(samples.path(name))
        listed = [torch_entry(n, t) for n, t in paths(loaded)]
        # Addresses say only which tensors share a storage.
        number = {}
        for item in listed:
            if item["storage"] is not None:
                item["storage"] = number.setdefault(item["storage"], len(number))
        samples.expect(name, "torch", library, listed, **more)

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Conv2d(2, 3, 2), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model[2](model[0](torch.randn(5, 4))).sum().backward()
    optimizer.step()
    checkpoint = {
        "epoch": 7,
        "loss": 0.5,
        "history": [0.1, 0.2, None, "text", b"bytes", 2**70, True],
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        3: (torch.ones(2), [torch.zeros(1), {"deep": torch.full((2, 2), 7)}]),
        "long": "x" * 10_000,
        "size": torch.Size([2, 3]),
        "set": {1, 2},
        "numpy": np.arange(3),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "device": torch.device("cpu"),
        "dtype": torch.float16,
    }
    torch.save(checkpoint, samples.path(f"{prefix}-checkpoint.pt"))
    expect(f"{prefix}-checkpoint.pt", calls=[])
    torch.save(checkpoint, samples.path(f"{prefix}-protocol4.pt"), pickle_protocol=4)
    expect(f"{prefix}-protocol4.pt", calls=[])

    names = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
    if new:
        names += " uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
        names += " float8_e8m0fnu complex32"
    numbers = torch.arange(6).reshape(2, 3).to(torch.float32)
    dtypes = {name: numbers.to(getattr(torch, name)) for name in names.split() if hasattr(torch, name)}
    dtypes = {name: tensor for name, tensor in dtypes.items() if can_be_saved(tensor)}
    torch.save(dtypes, samples.path(f"{prefix}-dtypes.pt"))
    expect(f"{prefix}-dtypes.pt", calls=[])

    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    views = {
        "base": base,
        "transposed": base[0].t(),
        "reversed": base.permute(2, 1, 0),
        "permuted": base.permute(1, 2, 0),
        "row": base[1],
        "column": base[:, 1, 2],
        "steps": base[::2, 1:3, ::2],
        "expanded": base[0, 0, 0].expand(3, 2),
        "scalar": base[2, 3, 4],
        "empty": base[:0],
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "other": base.clone(),
    }
    torch.save(views, samples.path(f"{prefix}-views.pt"))
    expect(f"{prefix}-views.pt", calls=[])
    torch.save(base.to(torch.int16), samples.path(f"{prefix}-tensor.pt"))
    expect(f"{prefix}-tensor.pt", calls=[])
    torch.save(base, samples.path(f"{prefix}-legacy.pt"), _use_new_zipfile_serialization=False)
    expect(f"{prefix}-legacy.pt", calls=[])
    if not new:
        return
    make_torch_signs(samples, expect, base)
    make_torch_several(samples, library, [views, base[0], {"epoch": 7}, dtypes])
    # An archive from a machine of the other byte order: storages swapped, and the file "byteorder" says so.
    torch.save(dtypes["float32"], samples.path("little.pt"))
    big_path = samples.path("torch2-big.pt")
    with zipfile.ZipFile(samples.path("little.pt")) as little, zipfile.ZipFile(big_path, "w") as big:
        for name in little.namelist():
            data = little.read(name)
            if name.endswith("byteorder"):
                data = b"big"
            elif "/data/" in name:
                data = np.frombuffer(data, "<f4").astype(">f4").tobytes()
            big.writestr(name, data)
    os.remove(samples.path("little.pt"))
    loaded = torch.load(samples.path("torch2-big.pt")).numpy()
    assert loaded.tolist() == dtypes["float32"].tolist()
    samples.expect("torch2-big.pt", "torch", library, [entry("tensor", loaded.astype(">f4"))], calls=[])


def make_torch_signs(samples, expect, base):
    """Conjugates, and what comes from them: kept as what they are of, and metadata says that signs are others."""
    import torch

    pairs = torch.view_as_complex(base.reshape(10, 3, 2).contiguous())
    wide = pairs.to(torch.complex128)
    signs = {
        "plain": pairs,
        "conjugate": pairs.conj(),
        "transposed": pairs.conj().t(),
        "steps": pairs.conj()[::2, 1],
        "wide": wide.conj(),
        "wide transposed": wide.conj().t(),
        "parameter": torch.nn.Parameter(pairs.conj()),
        "negative": torch._neg_view(pairs[1:]),
        "both": torch._neg_view(pairs.conj()[1:]),
        "real": torch._neg_view(base * 2),
        "half": torch._neg_view(base.half()),
        "brain": torch._neg_view(base.bfloat16()),
        "double": wide.conj().imag.clone(),
        "empty": pairs.conj()[:0],
    }
    assert signs["conjugate"].is_conj() and signs["real"].is_neg()
    for name, how in [("torch2-signs.pt", True), ("torch2-signs-legacy.pt", False)]:
        torch.save(signs, samples.path(name), _use_new_zipfile_serialization=how)
        expect(name, calls=[])
    # What comes from one is of another type than its storage, which torch saves alone.
    imaginary = torch.view_as_complex(base.reshape(10, 3, 2)).conj().imag
    assert imaginary.is_neg()
    torch.save(imaginary, samples.path("torch2-signs-imaginary.pt"))
    expect("torch2-signs-imaginary.pt", calls=[])


def make_torch_several(samples, library, values):
    """Several checkpoints in one file: saved so, and by torch's distributed checkpoint."""
    import tempfile

    import torch
    import torch.distributed.checkpoint as dcp

    def expect(name, parts):
        with open(samples.path(name), "rb") as file:
            data = file.read()
        # All are kept, so that no two storages have one address.
        loaded = [torch.load(io.BytesIO(data[at : at + length]), weights_only=False) for at, length in parts]
        listed = [torch_entry(f"{path}[{n}]" if n else path, t) for n, v in enumerate(loaded) for path, t in paths(v)]
        number = {}
        for item in listed:
            if item["storage"] is not None:
                item["storage"] = number.setdefault(item["storage"], len(number))
        samples.expect(name, "torch", library, listed, calls=[])

    places = []
    with open(samples.path("torch2-several.pt"), "wb") as file:
        for value in values:
            at = file.tell()
            torch.save(value, file)
            places.append((at, file.tell() - at))
    expect("torch2-several.pt", places)

    with tempfile.TemporaryDirectory() as directory:
        model = {"weight": torch.randn(3, 4), "bias": torch.arange(5)}
        state = {"step": 5, "model": model, "half": torch.ones(2).half()}
        dcp.save(state, checkpoint_id=directory)
        metadata = dcp.FileSystemReader(directory).read_metadata()
        parts = sorted((info.offset, info.length) for info in metadata.storage_data.values())
        names = {info.relative_path for info in metadata.storage_data.values()}
        shutil.copy(os.path.join(directory, *names), samples.path("torch2-dcp.distcp"))
        shutil.copy(os.path.join(directory, ".metadata"), samples.path("torch2-dcp.metadata"))
    expect("torch2-dcp.distcp", parts)


def can_be_saved(tensor):
    """PyTorch had some types before it could save them."""
    import torch

    try:
        torch.save(tensor, io.BytesIO())
    except KeyError:
        return False
    return True


# --- event files -----------------------------------------------------------------------------------


def frames(path):
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + length]
        at += length + 16


def histogram_entry(name, histo, step):
    rows = np.array([histo.bucket_limit, histo.bucket], "f8").T
    return entry(name, np.ascontiguousarray(rows), step=step, mode=None, mode_step=None, kind="histogram")


def make_smdebug(samples):
    import smdebug
    from smdebug.core.modes import ModeKeys
    from smdebug.core.tfevent.event_file_reader import get_tensor_data
    from smdebug.core.tfevent.proto.event_pb2 import Event
    from smdebug.core.tfrecord.tensor_reader import TensorReader
    from smdebug.core.writer import FileWriter
    from smdebug.exceptions import SMDebugValueError

    library = f"smdebug {getattr(smdebug, '__version__', '')}".strip()
    trial = samples.path("trial")
    modes = [ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT, ModeKeys.GLOBAL]
    for checksum in [False, True]:
        writer = FileWriter(trial_dir=trial, step=17, worker="w", write_checksum=checksum)
        for n, d in enumerate(DTYPES):
            name = f"{d.replace('?', 'bool')}:0/ä"
            writer.write_tensor(tdata=array(d, (3, 5), d), tname=name, mode=modes[n % 4], mode_step=n)
        writer.write_tensor(tdata=np.float32(3.5), tname="scalar", mode=ModeKeys.TRAIN, mode_step=4)
        writer.write_tensor(tdata=np.zeros((0, 3), "f4"), tname="empty", mode=ModeKeys.TRAIN, mode_step=4)
        writer.write_tensor(tdata=np.array(["text"]), tname="string", mode=ModeKeys.TRAIN, mode_step=4)
        writer.write_tensor(tdata=np.array(["some", "words"]), tname="strings", mode=ModeKeys.TRAIN, mode_step=4)
        writer.close()
        name = f"smdebug{'-checksum' if checksum else ''}.tfevents"
        shutil.move(os.path.join(trial, "events/000000000017/000000000017_w.tfevents"), samples.path(name))
        with open(samples.path(name), "rb") as file:
            reader = TensorReader(file.read())
        listed = []
        for step, value in ((s, v) for s, summary in reader.read_summaries(check="full" if checksum else "minimal")
                            for v in summary.value):
            tname = value.tag
            mode, mode_step = reader._get_mode_modestep(step, value.metadata.plugin_data)
            try:
                data = get_tensor_data(value.tensor)
            except (KeyError, SMDebugValueError):
                # It writes unsigned numbers and empty arrays, but cannot read them.
                code = tname.split(":")[0]
                data = np.zeros((0, 3), "f4") if code == "empty" else array(code, (3, 5), code)
            if tname.startswith("i1"):
                # It reads DT_INT8 as bytes without a sign.
                data = data.view("i1")
            more = {"step": step, "mode": mode.name, "mode_step": mode_step, "kind": "tensor"}
            if tname.startswith("string"):
                data = [d.encode() if isinstance(d, str) else bytes(d) for d in np.asarray(data).reshape(-1)]
                crc = crc32c(data[0]) if len(data) == 1 else None
                tensor = {"name": tname, "dtype": "string", "shape": [len(data)], "fortran": False, "crc32c": crc}
                listed.append({**tensor, **more})
            else:
                listed.append(entry(tname, np.asarray(data), **more))
        samples.expect(name, "tfrecord", library, listed, frames=len(list(frames(samples.path(name)))))
    shutil.rmtree(trial)

    writer = FileWriter(trial_dir=trial, step=5, worker="w", wtype="tensorboard", mode=ModeKeys.TRAIN)
    writer.write_scalar_summary("loss", 0.25, 5)
    writer.write_histogram_summary(np.linspace(-3, 4, 1000), "weights", 6)
    path = writer.name()
    writer.close()
    name = "smdebug-tensorboard.tfevents"
    path = path if os.path.exists(path) else path.removesuffix(".tmp")
    shutil.move(path, samples.path(name))
    shutil.rmtree(trial)
    expect_events(samples, name, library, Event)


def expect_events(samples, name, library, event_class):
    payloads = list(frames(samples.path(name)))
    listed = list_events([event_class.FromString(payload) for payload in payloads])
    samples.expect(name, "tfrecord", library, listed, frames=len(payloads))


def list_events(events):
    listed = []
    for event in events:
        for value in event.summary.value:
            which = value.WhichOneof("value")
            if which == "simple_value":
                number = np.array(value.simple_value, "f4")
                listed.append(entry(value.tag, number, step=event.step, mode=None, mode_step=None, kind="scalar"))
            elif which == "histo":
                listed.append(histogram_entry(value.tag, value.histo, event.step))
            elif which == "tensor":
                data = make_ndarray(value.tensor)
                more = {"step": event.step, "mode": None, "mode_step": None, "kind": "tensor"}
                if data.dtype.kind == "S":
                    more["dtype"] = "string"
                listed.append(entry(value.tag, data, **more))
    return listed


def make_ndarray(proto):
    """As tensorflow.make_ndarray does it."""
    shape = [dim.size for dim in proto.tensor_shape.dim]
    dtype, field = {
        1: ("f4", "float_val"), 2: ("f8", "double_val"), 3: ("i4", "int_val"), 4: ("u1", "int_val"),
        6: ("i1", "int_val"),
        7: ("S", "string_val"), 8: ("c8", "scomplex_val"), 9: ("i8", "int64_val"), 10: ("?", "bool_val"),
    }[proto.dtype]
    if proto.tensor_content:
        return np.frombuffer(proto.tensor_content, dtype).reshape(shape)
    values = list(getattr(proto, field))
    if field == "scomplex_val":
        values = [complex(a, b) for a, b in zip(values[::2], values[1::2])]
    count = int(np.prod(shape, dtype=int))
    values = (values or [0]) + (values or [0])[-1:] * (count - len(values))
    return np.array(values[:count], dtype).reshape(shape)


def make_tensorboardx(samples):
    import tensorboardX
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboardX.proto.tensor_pb2 import TensorProto
    from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto

    directory = samples.path("board")
    writer = tensorboardX.SummaryWriter(directory)
    for step in range(5):
        writer.add_scalar("loss/train", 1 / (step + 1), step)
    writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 3)
    writer.add_histogram("weights", np.linspace(-1, 1, 500), 2)
    writer.add_histogram("bins", np.arange(20.0), 3, bins="auto")
    writer.add_text("note", "some words", 4)
    picture = Summary.Value(tag="picture", image=Summary.Image(height=2, width=2, encoded_image_string=b"png"))
    writer.file_writer.add_summary(Summary(value=[picture]), 4)

    # As tf.summary writes tensors: elements listed one by one, all of them or with the last one repeated.
    def proto(shape, dtype, **values):
        dims = [TensorShapeProto.Dim(size=n) for n in shape]
        return TensorProto(dtype=dtype, tensor_shape=TensorShapeProto(dim=dims), **values)

    protos = {
        "one": proto([], 1, float_val=[0.5]),
        "floats": proto([3], 1, float_val=[1, 2, 3]),
        "same": proto([2, 3], 1, float_val=[7]),
        "none": proto([2], 2),
        "ints": proto([4], 3, int_val=[1, -1, 300]),
        "small": proto([3], 6, int_val=[1, -1, -128]),
        "longs": proto([2], 9, int64_val=[-(2**60), 5]),
        "flags": proto([3], 10, bool_val=[True, False]),
        "complex": proto([3], 8, scomplex_val=[1, 2, 3, 4]),
        "content": proto([2, 2], 1, tensor_content=np.arange(4, dtype="f4").tobytes()),
        "zero": proto([0, 4], 1),
    }
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars", content=b"\x00"))
    for tag, tensor in protos.items():
        writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=metadata)]), 9)
    writer.close()
    for name in sorted(os.listdir(directory)):
        if ".tfevents." in name:
            shutil.move(os.path.join(directory, name), samples.path("board.tfevents"))
    shutil.rmtree(directory)
    expect_events(samples, "board.tfevents", f"tensorboardX {tensorboardX.__version__}", Event)


def make_protobuf(samples):
    """Without frames around them: what the old program for libpmemobj kept of each event, and a tensor alone."""
    import google.protobuf
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.proto.tensor_pb2 import TensorProto
    from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto

    library = f"protobuf {google.protobuf.__version__}"

    def proto(code, number, shape):
        dims = TensorShapeProto(dim=[TensorShapeProto.Dim(size=n) for n in shape])
        content = array(f"pb{number}", shape, code).tobytes()
        return TensorProto(dtype=number, tensor_shape=dims, tensor_content=content)

    protos = {"weight": proto("f4", 1, (3, 5)), "step": proto("i8", 9, (2,)), "mask": proto("u1", 4, (2, 2, 9))}
    with open(samples.path("tensor.pb"), "wb") as file:
        file.write(protos["weight"].SerializeToString())
    with open(samples.path("tensor.pb"), "rb") as file:
        back = TensorProto.FromString(file.read())
    samples.expect("tensor.pb", "protobuf", library, [entry("tensor", make_ndarray(back))])
    values = [Summary.Value(tag=tag, tensor=tensor) for tag, tensor in protos.items()]
    events = [
        Event(wall_time=1.6e9 + n, step=n, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.5), *values]))
        for n in range(4)
    ]
    for name, some in [("event.pb", events[2:3]), ("events.pb", events)]:
        with open(samples.path(name), "wb") as file:
            file.write(b"".join(event.SerializeToString() for event in some))
        samples.expect(name, "protobuf", library, list_events(some))


# --- the rest --------------------------------------------------------------------------------------


def hdf5_entries(file):
    """What h5py finds in an open file, in the order in which it goes through it."""
    import h5py

    listed = []

    def visit(name, what):
        if not isinstance(what, h5py.Dataset):
            return
        in_place = what.id.get_offset() is not None or what.id.get_create_plist().get_layout() == h5py.h5d.COMPACT
        value = what[()] if what.shape is not None else np.zeros(0, what.dtype)
        value = value if isinstance(value, np.ndarray) and value.dtype.kind != "O" else np.asarray(value, what.dtype)
        kind = dtype_name(what.dtype.base)
        if h5py.check_string_dtype(what.dtype):
            kind = "string"
        elif what.dtype.kind == "O":
            kind = "other"
        plain = kind not in ("structured", "object") and what.dtype.kind != "O"
        wanted = entry(name, value)
        wanted["dtype"] = kind
        if not (plain and (in_place or value.size == 0)):
            wanted["crc32c"] = None
        listed.append(wanted)

    file.visititems(visit)
    return listed


def fill_hdf5(file):
    """Data sets of every plain type and layout, and some that are not plain."""
    import h5py

    for code in DTYPES:
        file[f"types/{code.replace('?', 'bool')}"] = array(code, (3, 5), code)
    for code in [">i2", ">u4", ">f4", ">f8", ">c8"]:
        file[f"big/{code[1:]}"] = array(code, (4, 6), code)
    half = h5py.h5t.IEEE_F16LE.copy()
    half.set_fields(15, 7, 8, 0, 7)
    half.set_ebias(127)
    space = h5py.h5s.create_simple((2, 3))
    layer = file.create_group("encoder/layer 0/é")
    layer["scalar"] = 2.5
    layer["empty"] = np.zeros((0, 7), "f4")
    layer["nothing"] = h5py.Empty("f8")
    layer["text"] = np.array([b"one", b"three"])
    layer["bytes"] = array("void", (3, 8), "u1").view("V8").reshape(3)
    layer["dates"] = np.array(["2020-01-01", "NaT"], "M8[ns]").astype(h5py.opaque_dtype("<M8[ns]"))
    layer["enum"] = np.array([3, 1], h5py.enum_dtype({"a": 1, "b": 3}, basetype="i2"))
    layer["rows"] = np.zeros(2, np.dtype(("<f4", (3,))))
    layer.create_dataset("pairs", (2,), np.dtype(("<i4", (2, 3))))[:] = np.arange(12).reshape(2, 2, 3)
    layer["records"] = np.zeros(2, [("a", "<i4"), ("b", "<f8")])
    layer["words"] = ["a", "bc"]
    layer.create_dataset("lists", (2,), h5py.vlen_dtype("i4"))
    layer.create_dataset("unwritten", (5,), "f4")
    layer.create_dataset("packed", data=array("packed", (50, 4), "i4"), chunks=(10, 4), compression="gzip")
    layer.create_dataset("chunked", data=array("chunked", (10,), "i4"), chunks=(4,), maxshape=(None,))
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.COMPACT)
    compact = h5py.h5d.create(layer.id, b"compact", h5py.h5t.NATIVE_INT32, space, plan)
    compact.write(h5py.h5s.ALL, h5py.h5s.ALL, array("compact", (2, 3), "i4"))
    file["named"] = np.dtype("<f4")
    layer.create_dataset("of named", data=np.ones(3, "f4"), dtype=file["named"])
    # Other names, and ways back.
    file["again"] = layer["scalar"]
    layer["above"] = file["encoder"]
    file["soft"] = h5py.SoftLink("/types/f4")
    file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")


def make_h5py(samples):
    import h5py

    library = f"h5py {h5py.__version__}"

    def write(name, fill, **options):
        with h5py.File(samples.path(name), "w", **options) as file:
            fill(file)
        with h5py.File(samples.path(name), "r") as file:
            # What has a name that is too long for a block of a heap is left out.
            listed = [wanted for wanted in hdf5_entries(file) if len(wanted["name"]) <= 4000]
            samples.expect(name, "hdf5", library, listed)

    def plain(file):
        file["x"] = np.arange(10)

    def many(file):
        # More than fit into one node of a tree, or one block of a heap.
        for n in range(300):
            file[f"many/a name of some length {n}"] = np.uint8(n % 251)

    def long(file):
        many(file)
        for n in range(2):
            file["many/" + "long" * 1250 + str(n)] = np.uint8(n)

    write("plain.h5", plain)
    write("userblock.h5", plain, userblock_size=1024)
    for version in ["earliest", "v108", "v110"]:
        libver = version if version == "earliest" else (version, version)
        write(f"{version}.h5", fill_hdf5, libver=libver)
    write("tracked.h5", fill_hdf5, track_order=True)
    write("many.h5", many)
    write("dense.h5", many, libver="latest")
    write("long.h5", long, libver="latest")


def make_keras(samples):
    os.environ.setdefault("KERAS_BACKEND", "numpy")
    import h5py
    import keras

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    for name, save in [("keras.weights.h5", model.save_weights), ("keras.h5", model.save)]:
        save(samples.path(name))
        with h5py.File(samples.path(name), "r") as file:
            samples.expect(name, "hdf5", f"keras {keras.__version__}", hdf5_entries(file))


# --- Arrow -----------------------------------------------------------------------------------------


def arrow_entry(name, column, is_compressed):
    """What is expected of a column of a batch."""
    import pyarrow as pa

    kind, inner, shape, is_full = column.type, column, [len(column)], column.null_count == 0
    while pa.types.is_fixed_size_list(kind):
        # What a list that is missing would have stands in the file all the same.
        inner = inner.values.slice(inner.offset * kind.list_size, len(inner) * kind.list_size)
        shape.append(kind.list_size)
        kind = kind.value_type
        is_full = is_full and inner.null_count == 0
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    is_time = pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    is_plain = (is_number or is_time or pa.types.is_fixed_size_binary(kind)) and is_full
    is_text = any(f(kind) for f in [pa.types.is_string, pa.types.is_binary, pa.types.is_large_string,
                                    pa.types.is_large_binary, pa.types.is_string_view])
    wanted = {"name": name, "dtype": "string" if is_text else "other", "shape": shape, "fortran": False, "crc32c": None}
    if is_number:
        wanted["dtype"] = np.dtype(kind.to_pandas_dtype()).name
    if is_plain and not is_compressed:
        values = inner.buffers()[1] if pa.types.is_fixed_size_binary(kind) else inner.to_numpy(zero_copy_only=True)
        values = values.to_pybytes() if isinstance(values, pa.Buffer) else values.tobytes()
        wanted["crc32c"] = crc32c(values[: len(inner) * kind.byte_width])
    return wanted


def make_pyarrow(samples):
    import pyarrow as pa
    import pyarrow.feather as feather

    library = f"pyarrow {pa.__version__}"
    rows = 24

    def streams(name):
        """The batches of all streams that a file has."""
        with pa.OSFile(samples.path(name)) as file:
            while file.tell() < file.size():
                yield from pa.ipc.open_stream(file)

    def listed(name, is_compressed, batches=None):
        reader = batches or pa.ipc.open_file(samples.path(name))
        all_ = []
        for n, batch in enumerate(batches or map(reader.get_batch, range(reader.num_record_batches))):
            all_ += [
                arrow_entry(f"{key}[{n}]" if n else key, column, is_compressed)
                for key, column in zip(batch.schema.names, batch.columns)
            ]
        samples.expect(name, "arrow", library, all_)

    numbers = {code: pa.array(array(code, (rows,), code)) for code in DTYPES if code[0] not in "?c"}
    flat = pa.array(array("flat", (rows * 6,), "f4"))
    words = [str(n) for n in range(rows)]
    columns = numbers | {
        "rows": pa.FixedSizeListArray.from_arrays(flat, 6),
        "matrices": pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 2), 3),
        "rows with gaps": pa.array([[1.0, 2.0], None] * (rows // 2), pa.list_(pa.float32(), 2)),
        "flags": pa.array(array("flags", (rows,), "?")),
        "gaps": pa.array([None, 1] * (rows // 2), pa.int32()),
        "words": pa.array(words),
        "views": pa.array([word * 9 for word in words], pa.string_view()),
        "lists": pa.array([[n] * (n % 3) for n in range(rows)]),
        "structs": pa.array([{"a": n, "b": "x"} for n in range(rows)]),
        "codes": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([5, rows], pa.int32()), pa.array([1, 2])),
        "maps": pa.array([[("k", n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
        "unions": pa.UnionArray.from_sparse(pa.array([0, 1] * (rows // 2), pa.int8()), [numbers["i4"], numbers["f4"]]),
        "nothing": pa.nulls(rows),
        "times": pa.array(range(rows), pa.timestamp("us", "UTC")),
        "spans": pa.array(range(rows), pa.duration("ms")),
        "dates": pa.array(range(rows), pa.date32()),
        "bytes": pa.array([b"%04d" % n for n in range(rows)], pa.binary(4)),
        "last": numbers["f8"],
    }
    table = pa.table(columns)
    batches = table.to_batches()
    for name, options in [("columns.arrow", None), ("lz4.arrow", pa.ipc.IpcWriteOptions(compression="lz4"))]:
        with pa.ipc.new_file(samples.path(name), table.schema, options=options) as writer:
            for n in range(2 if options is None else 1):
                writer.write_batch(batches[0])
                writer.write_batch(pa.table(columns).slice(8 * n, 8).combine_chunks().to_batches()[0])
        listed(name, options is not None)
    # A version before 0.15 wrote no mark in front of a message.
    old = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, use_legacy_format=True)
    plain = pa.table(numbers)
    with pa.ipc.new_file(samples.path("old.arrow"), plain.schema, options=old) as writer:
        writer.write_table(plain)
    listed("old.arrow", False)
    feather.write_feather(plain, samples.path("plain.feather"), compression="uncompressed", chunksize=15)
    listed("plain.feather", False)
    # Streams: one alone, and two of unlike columns.
    with pa.ipc.new_stream(samples.path("stream.arrow"), table.schema) as writer:
        writer.write_batch(batches[0])
        writer.write_batch(pa.table(columns).slice(8, 8).combine_chunks().to_batches()[0])
    listed("stream.arrow", False, list(streams("stream.arrow")))
    with open(samples.path("streams.arrow"), "wb") as file:
        for some in [plain, plain.select(["f4", "i8"])]:
            with pa.ipc.new_stream(file, some.schema) as writer:
                writer.write_table(some, max_chunksize=10)
    listed("streams.arrow", False, list(streams("streams.arrow")))
    # Before that mark, and behind it one with it.
    with open(samples.path("old.stream.arrow"), "wb") as file:
        for some, options in [(plain, old), (plain.select(["f4", "i8"]), old), (plain.select(["u2"]), None)]:
            with pa.ipc.new_stream(file, some.schema, options=options) as writer:
                writer.write_table(some, max_chunksize=10)
    listed("old.stream.arrow", False, list(streams("old.stream.arrow")))


def make_opaque(samples):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    for name, data in [("text.txt", b"just text\n" * 20), ("other.zip", buffer.getvalue()), ("nothing", b"")]:
        with open(samples.path(name), "wb") as file:
            file.write(data)
        samples.expect(name, "opaque", "none", [])


# --- GGUF ------------------------------------------------------------------------------------------


def make_gguf(samples):
    import gguf
    from gguf.quants import quantize

    kinds = gguf.GGMLQuantizationType
    plain = {"F32": "float32", "F16": "float16", "F64": "float64", "BF16": "bfloat16"}
    plain |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}
    library = f"gguf {importlib.metadata.version('gguf')}"

    def write(name, **options):
        writer = gguf.GGUFWriter(samples.path(name), "llama", **options)
        writer.add_block_count(2)
        writer.add_float32("some.number", 0.5)
        writer.add_bool("some.truth", True)
        writer.add_array("some.words", ["a", "bc", ""])
        writer.add_array("some.numbers", [1, 2, 3])
        for code in ["f4", "f2", "f8", "i1", "i2", "i4", "i8"]:
            writer.add_tensor(f"blk.0.{code}", array(code, (3, 5), code))
        # The writer fills up what is behind the last one, which readers can do without.
        writer.add_tensor("line", array("line", (8,), "f4"))
        if not options:
            bits = quantize(array("bf16", (4, 6), "f4"), kinds.BF16)
            writer.add_tensor("half", bits, raw_dtype=kinds.BF16)
            for kind in [kinds.Q8_0, kinds.Q4_0, kinds.Q5_1]:
                writer.add_tensor(f"blk.1.{kind.name}", quantize(array("q", (2, 64), "f4"), kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        expect(name, options)

    def expect(name, options):
        reader = gguf.GGUFReader(samples.path(name))
        listed = []
        for tensor in reader.tensors:
            kind = tensor.tensor_type.name
            listed.append({
                "name": tensor.name,
                "dtype": plain.get(kind, "other"),
                "shape": [int(size) for size in reversed(tensor.shape)],
                "fortran": False,
                "crc32c": crc32c(tensor.data.tobytes()) if kind in plain else None,
            })
        metadata = {}
        for key, field in reader.fields.items():
            kind = field.types[0] if field.types else None
            if key.startswith("GGUF.") or kind == gguf.GGUFValueType.ARRAY:
                continue
            value = field.parts[-1]
            text = kind == gguf.GGUFValueType.STRING
            metadata[key] = bytes(value).decode() if text else str(value[0]).lower()
        samples.expect(name, "gguf", library, listed, metadata=metadata)

    write("model.gguf")
    write("big.gguf", endianess=gguf.GGUFEndian.BIG)


def make_exported(samples):
    """Programs as torch.export writes them since torch 2.8: with all weights, with none of them saved, with one of a
    class of its own."""
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor

    if not os.path.isdir(os.path.join(os.path.dirname(torch.__file__), "export", "pt2_archive")):
        raise ImportError("torch of before 2.8")
    torch.manual_seed(1)
    library = f"torch {torch.__version__}"

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 4)
            self.tied = self.layer.weight
            whole = torch.arange(24, dtype=torch.float32)
            self.register_buffer("transposed", whole[:12].reshape(3, 4).t())
            self.register_buffer("later", whole[13:19].reshape(2, 3))
            self.register_buffer("steps", torch.arange(12, dtype=torch.int64)[::3])
            self.register_buffer("scalar", torch.tensor(2.5, dtype=torch.float64))
            self.register_buffer("few", torch.ones(2, 3, dtype=torch.bfloat16))
            self.register_buffer("empty", torch.zeros(0, 3))

        def forward(self, x):
            x = self.layer(x) + self.transposed.sum() + self.later.sum() + self.steps.sum()
            return x + self.scalar + self.few.sum() + self.empty.sum()

    example = (torch.ones(1, 3),)
    name = "torch2-exported.pt2"
    torch.export.save(torch.export.export(Program(), example), samples.path(name))
    weights = torch.export.load(samples.path(name)).state_dict
    listed, number = [torch_entry(key, weight.detach()) for key, weight in weights.items()], {}
    for item in listed:
        if item["storage"] is not None:
            item["storage"] = number.setdefault(item["storage"], len(number))
    samples.expect(name, "torch", library, listed, calls=[])
    with FakeTensorMode(allow_non_fake_inputs=True):
        program = torch.export.export(torch.nn.Linear(3, 4), (torch.ones(1, 3),))
    torch.export.save(program, samples.path("torch2-unsaved.pt2"))
    samples.expect("torch2-unsaved.pt2", "torch", library, [], calls=[])
    model = torch.nn.Linear(3, 4)
    model.weight = torch.nn.Parameter(TwoTensor(torch.ones(4, 3), torch.zeros(4, 3)))
    torch.export.save(torch.export.export(model, example), samples.path("torch2-pickled.pt2"))
    bias = torch.export.load(samples.path("torch2-pickled.pt2")).state_dict["bias"].detach().numpy()
    pickled = {"name": "weight", "dtype": "float32", "shape": [4, 3], "fortran": False, "crc32c": None}
    samples.expect("torch2-pickled.pt2", "torch", library, [pickled, entry("bias", bias)], calls=[])


def main():
    samples = Samples(sys.argv[1])
    warnings.simplefilter("ignore")
    only = sys.argv[2:]
    for make in [make_numpy, make_ml_dtypes, make_safetensors, make_safetensors_torch, make_torch, make_exported,
                 make_smdebug, make_tensorboardx, make_protobuf, make_h5py, make_keras, make_pyarrow, make_gguf, make_opaque]:
        what = make.__name__.removeprefix("make_")
        if only and what not in only:
            continue
        try:
            make(samples)
            print(f"{what}: done")
        except ImportError as error:
            print(f"{what}: left out ({error})")


if __name__ == "__main__":
    main()

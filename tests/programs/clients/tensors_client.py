"""`tensorfs tensors`, `cat`, `stat` and `diff` against NumPy.

    tensors_client.py TENSORFS SAMPLES SCRATCH

SAMPLES is a directory of what make_formats.py wrote.
"""

import json
import os
import subprocess
import sys

import numpy as np
from safetensors.numpy import save_file

from common import array, check, crc32c

TENSORFS, SAMPLES, SCRATCH = sys.argv[1:4]


def run(*arguments, status=0):
    done = subprocess.run([TENSORFS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check(done.returncode == status, arguments, "exits with", done.returncode, done.stderr.decode())
    return done.stdout


def lines(*arguments, status=0):
    return [json.loads(line) for line in run(*arguments, "--json", status=status).splitlines()]


def close(got, want, what):
    if want is None or got is None:
        check(got is None and want is None, what, got, want)
    else:
        check(np.isclose(got, want, rtol=1e-9, atol=1e-300), what, got, "is not", want)


def finite(value):
    if value.dtype.kind == "c":
        value = np.abs(value.astype("c16")[np.isfinite(value)])
    return value[np.isfinite(value)] if value.dtype.kind == "f" else value.reshape(-1)


def check_stat(path, wanted, value):
    got = json.loads(run("stat", path, wanted, "--json"))
    numbers = finite(value)
    check(got["count"] == value.size, "count")
    if value.dtype.kind in "fc":
        check(got["nan"] == np.isnan(value).sum(), wanted, "NaN")
        check(got["inf"] == (np.isinf(value) & ~np.isnan(value)).sum(), wanted, "Inf")
    check(got["zeros"] == (numbers == 0).sum(), wanted, "zeros")
    if numbers.size == 0:
        check(got["min"] is None and got["mean"] is None and got["histogram"] is None, wanted)
        return
    if value.dtype.kind in "iu":
        check((got["min"], got["max"]) == (int(numbers.min()), int(numbers.max())), wanted, "extremes")
    else:
        close(got["min"], float(numbers.min()), wanted)
        close(got["max"], float(numbers.max()), wanted)
    wide = numbers.astype("f8")
    with np.errstate(all="ignore"):
        mean = float(np.mean(wide.astype(np.longdouble)))
        deviation = float(np.std(wide.astype(np.longdouble)))
    close(got["mean"], mean, f"{wanted}: mean")
    # A square may be more than a double holds; JSON has no infinity.
    if deviation < 1e150:
        close(got["std"], deviation, f"{wanted}: std")
    with np.errstate(all="ignore"):
        spread = float(wide.max()) - float(wide.min())
    if np.isfinite(spread):
        counts, edges = np.histogram(wide, bins=len(got["histogram"]["counts"]))
        check(np.allclose(got["histogram"]["edges"], edges, rtol=1e-12, atol=spread * 1e-12), wanted, "edges")
        # A number on an edge may fall on either side of it.
        apart = np.abs(np.cumsum(counts) - np.cumsum(got["histogram"]["counts"])).max()
        near = sum((np.abs(wide - e) <= spread * 1e-12).sum() for e in edges[1:-1])
        check(apart <= near, wanted, counts, got["histogram"]["counts"])
    check(sum(got["histogram"]["counts"]) == wide.size, wanted, "histogram")


def check_samples():
    checked = 0
    for name in sorted(os.listdir(SAMPLES)):
        if not name.endswith(".json"):
            continue
        with open(os.path.join(SAMPLES, name)) as file:
            sample = json.load(file)
        path = os.path.join(SAMPLES, name.removesuffix(".json"))
        opaque = sample["format"] == "opaque"
        # A program of which no weight was saved.
        unsaved = sample["format"] == "torch" and not sample["tensors"]
        listed = lines("tensors", path, status=1 if opaque or unsaved else 0)
        if sample["format"] in ("hdf5", "arrow"):
            # Of a sealed file in the order of their bytes.
            listed.sort(key=lambda t: t["name"])
            sample["tensors"].sort(key=lambda t: t["name"])
        check([t["name"] for t in listed] == [t["name"] for t in sample["tensors"]], path, "names")
        for got, want in zip(listed, sample["tensors"]):
            for key in ("dtype", "shape", "step", "mode", "mode_step", "kind"):
                if key in want:
                    check(got[key] == want[key], path, want["name"], key, got[key], want[key])
            selector = want["name"]
            if want.get("step") is not None:
                selector += f"@{want['step']}"
            if want["crc32c"] is None:
                run("cat", path, selector, status=1)
                continue
            # From a file: out of memory NumPy copies fields, and the gaps between them get lost.
            with open(os.path.join(SCRATCH, "x.npy"), "wb") as file:
                file.write(run("cat", path, selector))
            value = np.load(file.name, allow_pickle=False)
            check(list(value.shape) == want["shape"], path, selector, value.shape)
            check(crc32c(value.tobytes("F" if want["fortran"] else "C")) == want["crc32c"], path, selector)
            if value.dtype.kind in "biufc" and value.dtype not in (np.longdouble, np.clongdouble):
                check_stat(path, selector, value)
            checked += 1
    check(checked > 100, "only", checked)


def check_diff():
    at = lambda name: os.path.join(SCRATCH, name)  # noqa: E731
    old = {d: np.nan_to_num(array(f"diff{d}", (1000, 400), d)) for d in ["f2", "f4", "f8", "i1", "i8", "u8", "?"]}
    old["gone"] = np.zeros(3, "f4")
    old["shape"] = np.zeros((2, 3), "f4")
    old["type"] = np.zeros((2, 3), "f4")
    old["nan"] = np.array([1, np.nan, np.inf, -0.0, 5], "f8")
    old["same"] = np.array([np.nan, 1, -np.inf])
    old["f8"] = np.clip(old["f8"], -1e100, 1e100)
    new = {k: v.copy() for k, v in old.items() if k != "gone"}
    new["come"] = np.ones(2)
    new["shape"] = np.zeros((3, 2), "f4")
    new["type"] = np.zeros((2, 3), "f8")
    new["nan"] = np.array([1, 2, np.inf, 0.0, np.nan], "f8")
    for d in ["f2", "f4", "f8"]:
        new[d][::7, 3:9] *= d == "f2" and np.float16(0.5) or np.asarray(1.0625, d)
    new["i8"][5, 5] = ~new["i8"][5, 5]
    new["u8"][0, 0] = 2**64 - 1
    new["?"][1, 1] ^= True
    save_file(old, at("old.safetensors"))
    save_file(new, at("new.safetensors"))
    np.savez(at("old.npz"), **{k: np.asfortranarray(v) for k, v in old.items()})
    np.savez_compressed(at("new.npz"), **new)
    changed = ["f2", "f4", "f8", "i8", "u8", "?", "nan"]
    for a, b in [("old.safetensors", "new.safetensors"), ("old.npz", "new.npz"), ("old.safetensors", "new.npz")]:
        found = {line["name"]: line for line in lines("diff", at(a), at(b), status=1)}
        kinds = {"gone": "removed", "come": "added", "shape": "type", "type": "type", **{d: "values" for d in changed}}
        check({k: v["change"] for k, v in found.items()} == kinds, a, b, found)
        for name in changed:
            x, y, got = old[name], new[name], found[name]
            both_nan = np.isnan(x) & np.isnan(y) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
            differ = (x != y) & ~both_nan
            check(got["elements"] == differ.sum(), name, got)
            if x.dtype.kind in "iu":
                distance = np.array([abs(int(p) - int(q)) for p, q in zip(x[differ], y[differ])], "f8")
                scale = np.array([max(abs(int(p)), abs(int(q))) for p, q in zip(x[differ], y[differ])], "f8")
            else:
                usable = differ & np.isfinite(x.astype("f8")) & np.isfinite(y.astype("f8"))
                p, q = x[usable].astype("f8"), y[usable].astype("f8")
                distance, scale = np.abs(p - q), np.maximum(np.abs(p), np.abs(q))
            scale = np.where(scale == 0, 1, scale)
            close(got["max_abs"], float(distance.max(initial=0)), f"{name}: max_abs")
            close(got["max_rel"], float((distance / scale).max(initial=0)), f"{name}: max_rel")
            if x.dtype.kind == "f":
                check(got["nan"] == [int(np.isnan(x).sum()), int(np.isnan(y).sum())], name, "NaN")
                check(got["inf"] == [int(np.isinf(x).sum()), int(np.isinf(y).sum())], name, "Inf")
    check(lines("diff", at("old.safetensors"), at("old.npz")) == [], "the same in two formats")


check_samples()
check_diff()

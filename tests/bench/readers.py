"""What it costs that bytes of files are looked into by processes that are locked in: programs beside each other.

    readers.py DIRECTORY PROGRAM [PROGRAM...]      (root; DIRECTORY gets pools and mount points, and takes 4 GiB)

Each program serves a pool of its own, in turn, for some rounds; the median of each is printed, and the least. Where
nothing is looked into, as in the host's own files or in a file of the mount as it is, is what there is to compare it with.
"""

import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time
import zipfile

BASE, PROGRAMS = sys.argv[1], sys.argv[2:]
ROUNDS = 5
MANY = 10_000
GIB = 1 << 30


def npy_header(size):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}"
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


def safetensors(count):
    tensors = {f"t{n}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n in range(count)}
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * (4 * count)


def timed(act):
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def state(path):
    return os.getxattr(path, "user.tensorfs.state").decode()


def drain(path, at=0):
    with open(path, "rb") as file:
        file.seek(at)
        while file.read(1 << 20):
            pass


class Served:
    def __init__(self, number, program):
        self.program = program
        self.home = os.path.join(BASE, str(number))
        self.top = os.path.join(self.home, "m")
        os.makedirs(self.top)
        run(program, "create", self.home + "/p")
        run(program, "mount", self.home + "/p", self.top, "--log", self.home + "/log")
        self.write_many(self.top + "/d")
        self.write_many(self.home + "/d")
        with open(self.top + "/many", "wb") as file:
            file.write(safetensors(1000))
        with open(self.top + "/large.npy", "wb") as file:
            file.write(npy_header(GIB))
            for _ in range(1024):
                file.write(os.urandom(1 << 20))
        with zipfile.ZipFile(self.top + "/packed.npz", "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("a.npy", npy_header(256 << 20) + b"\0" * (256 << 20))

    def unseal(self, name):
        """Opening it to write voids its seals; its bytes are what they were."""
        with open(self.top + "/" + name, "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(first)

    def wait_for_seal(self, name):
        while state(self.top + "/" + name) != "sealed":
            time.sleep(0.002)

    def measure(self):
        took, tree = {}, self.top + "/.tensorfs/tensors"
        took["`ls -l` of 10,000 files"] = timed(lambda: run("ls", "-l", self.top + "/d"))
        took["the same in a directory of the host"] = timed(lambda: run("ls", "-l", self.home + "/d"))
        self.unseal("many")
        took["`user.tensorfs.tensors` of 1,000, not sealed"] = timed(
            lambda: os.getxattr(self.top + "/many", "user.tensorfs.tensors"))
        took["`tensorfs tensors` of 1,000, not sealed"] = timed(lambda: run(self.program, "tensors", self.top + "/many"))
        outside = self.home + "/many"
        shutil.copyfile(self.top + "/many", outside)
        took["`tensorfs tensors` of 1,000, elsewhere"] = timed(lambda: run(self.program, "tensors", outside))
        tensor = f"{tree}/large.npy/{os.listdir(tree + '/large.npy')[0]}"
        took["`.npy` of 1 GiB through the tree"] = timed(lambda: drain(tensor))
        took["the same file, as it is"] = timed(lambda: drain(self.top + "/large.npy"))
        took["the last MiB of a deflated `.npz` of 256 MiB"] = timed(
            lambda: drain(f"{tree}/packed.npz/a.npy", at=(256 << 20) - (1 << 20)))
        self.unseal("large.npy")
        took["sealing 1 GiB, from the close"] = timed(lambda: self.wait_for_seal("large.npy"))
        return took

    def write_many(self, directory):
        """Files of each of which nobody knows yet what it is."""
        os.makedirs(directory, exist_ok=True)
        one = safetensors(1)
        for n in range(MANY):
            with open(f"{directory}/{n}", "wb") as file:
                file.write(one if n % 2 else b"no tensors")

    def measure_unsealed(self):
        took, directory = {}, self.top + "/d"
        self.write_many(directory)
        took["listing `.tensorfs/tensors/d` of 10,000 files, not sealed"] = timed(
            lambda: os.listdir(self.top + "/.tensorfs/tensors/d"))
        self.write_many(directory)
        took["`ls -l`, and `user.tensorfs.state` of each of 10,000, not sealed"] = timed(
            lambda: (run("ls", "-l", directory), [state(f"{directory}/{n}") for n in range(MANY)]))
        took["and then `user.tensorfs.tensors` of each"] = timed(
            lambda: [os.getxattr(f"{directory}/{n}", "user.tensorfs.tensors") for n in range(MANY)])
        return took

    def end(self):
        run(self.program, "umount", self.top)
        shutil.rmtree(self.home)


def main():
    served = [Served(number, program) for number, program in enumerate(PROGRAMS)]
    rounds = [{} for _ in served]
    for n in range(ROUNDS):
        order = list(enumerate(served))
        for which, one in order if n % 2 else reversed(order):
            took = one.measure()
            took |= one.measure_unsealed()
            for name, seconds in took.items():
                rounds[which].setdefault(name, []).append(seconds)
    print("| | " + " | ".join(PROGRAMS) + " |\n|---|" + "---|" * len(PROGRAMS))
    for name in rounds[0]:
        cells = [f"{statistics.median(one[name]) * 1000:.1f} ms ({min(one[name]) * 1000:.1f})" for one in rounds]
        print(f"| {name} | " + " | ".join(cells) + " |")
    for one in served:
        one.end()


if __name__ == "__main__":
    main()

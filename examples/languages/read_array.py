"""Prints the sum of an array, and the element at a row and column: read_array.py FILE.npy ROW COLUMN

With `-` in the place of the file's name, each line of standard input is a command (`FILE.npy ROW COLUMN`), and mappings
are kept from one to the next."""

import sys

import numpy as np

mapped = {}


def answer(path, row, column):
    # One mapping is enough: it shows what others change later, too.
    if path not in mapped:
        mapped[path] = np.load(path, mmap_mode="r")
    array = mapped[path]
    print(array.sum(), array[int(row), int(column)], flush=True)


if sys.argv[1] == "-":
    for line in sys.stdin:
        answer(*line.split())
else:
    answer(*sys.argv[1:])

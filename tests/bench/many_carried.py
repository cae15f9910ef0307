#!/usr/bin/env python3
"""The second copy of very many files: seconds, processor and the most memory of each command, and objects there are.

    many_carried.py PROGRAM DIRECTORY [FILES=1000000] [BYTES=100]

As root. DIRECTORY gets a pool with so many files, 1,000 in each directory, a remote (`file://`), and what is restored.
The pool is closed while it is carried; then one file of it changes, and it is carried again. Prints a row for each.
"""

import os
import shutil
import sys

from second_copy import MIB, Spent, free, run, say


class NoStore:
    """The remote is a directory: nobody else's processor is used."""

    def processor(self):
        return 0


def main():
    program, base = map(os.path.abspath, sys.argv[1:3])
    files, size = (int(word) for word in (sys.argv[3:] + ["1000000", "100"][len(sys.argv) - 3:])[:2])
    pool, at, url = f"{base}/pool", f"{base}/at", f"file://{base}/remote"
    os.makedirs(at)
    log = open(f"{base}/log", "w")
    try:
        run(program, "create", pool)
        run(program, "mount", pool, at, "--log", f"{base}/server.log", "-o", "commit=30")
        for n in range(files):
            if n % 1000 == 0:
                os.mkdir(f"{at}/{n // 1000}")
            with open(f"{at}/{n // 1000}/{n}", "wb") as file:
                file.write(n.to_bytes(8, "little") * (size // 8))
        run(program, "seal", at)
        run(program, "umount", at)
        run(program, "remote", "set", pool, url)
        say("| | seconds | processor, s | memory, MiB |\n|---|---|---|---|")

        def row(name, *words):
            spent = Spent().run(NoStore(), [program, *words], log=log)
            say(f"| {name} | {spent.seconds:.1f} | {spent.processor:.1f} | {spent.memory / MIB:.0f} |")

        row(f"`carry` of {files:,} files", "remote", "carry", pool)
        run(program, "mount", pool, at, "--log", f"{base}/server.log")
        with open(f"{at}/0/0", "r+b") as file:
            file.write(b"changed")
        run(program, "seal", f"{at}/0/0")
        row("`carry` when one has changed", "remote", "carry", pool)
        row("`wait` for all of them", "remote", "wait", at)
        run(program, "umount", at)
        row("`check --data`", "remote", "check", "--data", pool)
        row("`gc`", "remote", "gc", pool)
        row("`restore`", "remote", "restore", url, f"{base}/restored")
        row("`mount --from`, until it is there", "mount", f"{base}/first", at, "--from", url, "--log", f"{base}/server.log")
        with open(f"{at}/7/7007" if files > 7007 else f"{at}/0/7", "rb") as file:
            assert len(file.read()) == size // 8 * 8
        run(program, "umount", at)
        kinds = {kind: sum(len(names) for *_, names in os.walk(f"{base}/remote/{kind}")) for kind in os.listdir(f"{base}/remote")}
        say(f"\nObjects there are: {kinds}")
    finally:
        free(at)
    for name in os.listdir(base):
        shutil.rmtree(f"{base}/{name}", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

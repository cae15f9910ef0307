"""A program that does all kinds of things to files of its own and compares each with what it knows: any error, and any
difference, ends it with status 1. Several run at the same time, while their server is killed again and again.

    takeover_client.py MOUNT NUMBER STOP [--passthrough]

It goes on until there is a file STOP. It has locks of a file of its own all the time, and tries to get those of others.

Without --passthrough the server reads what is written from the kernel; should it be killed in that moment, the kernel
itself answers EIO (K6). Such a write is counted and done again.
"""

import errno
import fcntl
import mmap
import os
import random
import sys

MOST = 2_000_000
LOCKS = [fcntl.flock, fcntl.lockf]


class Files:
    def __init__(self, mount, number):
        self.dir = os.path.join(mount, f"w{number}")
        os.mkdir(self.dir)
        self.random = random.Random(number * 7919)
        self.names = {}  # of each name, which file
        self.bytes = {}  # of each file
        self.open = []  # (file, descriptor)
        self.refused = 0
        self.made = 0
        self.mapped = None  # (file, mapping), of one that is never cut
        self.locked = os.open(os.path.join(mount, f"lock{number}"), os.O_RDWR | os.O_CREAT)
        for lock in LOCKS:
            lock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.held = os.path.join(self.dir, "held")
        # Of each other program: its file, and what is there as long as it has the locks.
        others = [other for other in range(3) if other != number]
        self.others = [[os.path.join(mount, name) for name in (f"lock{n}", f"w{n}/held")] for n in others]
        os.mkdir(self.held)

    def path(self, name):
        return os.path.join(self.dir, name)

    def some_name(self):
        return f"f{self.random.randrange(30)}"

    def an_open_one(self):
        return self.random.choice(self.open) if self.open else (None, None)

    def a_named_one(self):
        return self.random.choice(sorted(self.names)) if self.names else None

    def write(self, fd, data, place=None):
        while True:
            try:
                done = os.write(fd, data) if place is None else os.pwrite(fd, data, place)
                assert done == len(data), (done, len(data))
                return
            except OSError as error:
                if error.errno != errno.EIO or "--passthrough" in sys.argv:
                    raise
                self.refused += 1
                assert self.refused < 10, "too many writes refused"

    def create(self):
        name = self.some_name()
        try:
            fd = os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            assert name in self.names, name
            return
        assert name not in self.names, name
        self.made += 1
        self.names[name] = self.made
        self.bytes[self.made] = bytearray()
        if len(self.open) < 20:
            self.open.append((self.made, fd))
        else:
            os.close(fd)

    def change(self):
        one, fd = self.an_open_one()
        if one is None:
            return
        known = self.bytes[one]
        place = self.random.randrange(len(known) + 1)
        data = self.random.randbytes(self.random.choice([1, 10, 5000, 70000]))
        self.write(fd, data, place)
        known[place : place + len(data)] = data
        if len(known) > MOST and not self.is_mapped(one):
            os.ftruncate(fd, 100)
            del known[100:]

    def read(self):
        one, fd = self.an_open_one()
        if one is None:
            return
        known = self.bytes[one]
        assert os.pread(fd, len(known) + 10, 0) == known, "read"
        assert os.fstat(fd).st_size == len(known), (os.fstat(fd).st_size, len(known))

    def close(self):
        if self.open:
            os.close(self.open.pop(self.random.randrange(len(self.open)))[1])

    def unlink(self):
        if name := self.a_named_one():
            os.unlink(self.path(name))
            del self.names[name]

    def rename(self):
        if name := self.a_named_one():
            to = self.some_name()
            os.rename(self.path(name), self.path(to))
            # Two names of one file stay.
            if self.names.get(to) != self.names[name]:
                self.names[to] = self.names.pop(name)

    def link(self):
        if name := self.a_named_one():
            to = self.some_name()
            try:
                os.link(self.path(name), self.path(to))
                assert to not in self.names, to
                self.names[to] = self.names[name]
            except FileExistsError:
                assert to in self.names, to

    def read_anew(self):
        if name := self.a_named_one():
            known = self.bytes[self.names[name]]
            fd = os.open(self.path(name), self.random.choice([os.O_RDONLY, os.O_RDWR]))
            assert os.pread(fd, len(known) + 10, 0) == known, name
            os.close(fd)

    def append(self):
        if name := self.a_named_one():
            fd = os.open(self.path(name), os.O_WRONLY | os.O_APPEND)
            data = self.random.randbytes(self.random.choice([3, 4000]))
            self.write(fd, data)
            os.close(fd)
            self.bytes[self.names[name]] += data

    def is_mapped(self, one):
        return self.mapped is not None and self.mapped[0] == one

    def rewrite(self):
        name = self.a_named_one()
        if name and not self.is_mapped(self.names[name]):
            data = self.random.randbytes(self.random.choice([10, 40000]))
            fd = os.open(self.path(name), os.O_WRONLY | os.O_TRUNC)
            self.write(fd, data, 0)
            os.close(fd)
            self.bytes[self.names[name]][:] = data

    def directory(self):
        path = self.path(f"d{self.random.randrange(10)}")
        if os.path.isdir(path):
            os.rmdir(path)
            assert not os.path.exists(path)
        else:
            os.mkdir(path)

    def sync(self):
        _, fd = self.an_open_one()
        if fd is not None:
            self.random.choice([os.fsync, os.fdatasync])(fd)

    def attribute(self):
        if name := self.a_named_one():
            try:
                os.setxattr(self.path(name), "user.k", b"v", os.XATTR_CREATE)
            except FileExistsError:
                os.removexattr(self.path(name), "user.k")

    def map(self):
        """Stores through a mapping that is there for long, also while servers come and go."""
        if self.mapped is None:
            one, fd = self.an_open_one()
            if one is None or len(self.bytes[one]) < 5000:
                return
            self.mapped = one, mmap.mmap(fd, 5000)
        one, mapping = self.mapped
        known = self.bytes[one]
        assert mapping[:] == known[:5000], "mapping"
        place = self.random.randrange(4900)
        data = self.random.randbytes(100)
        mapping[place : place + 100] = data
        known[place : place + 100] = data

    def unmap(self):
        if self.mapped and self.random.randrange(5) == 0:
            self.mapped[1].close()
            self.mapped = None

    def lock(self):
        """Whoever has said that it has locks has them as long as it says so."""
        for path, held in self.others:
            for lock in LOCKS:
                if not os.path.isdir(held):
                    continue
                fd = os.open(path, os.O_RDWR)
                try:
                    lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    assert not os.path.isdir(held), f"{path} was not locked"
                except BlockingIOError:
                    pass
                finally:
                    os.close(fd)

    def list(self):
        found = sorted(name for name in os.listdir(self.dir) if name.startswith("f"))
        assert found == sorted(self.names), set(found) ^ set(self.names)
        for name, one in sorted(self.names.items())[:5]:
            stat = os.stat(self.path(name))
            assert stat.st_size == len(self.bytes[one]), (name, stat.st_size, len(self.bytes[one]))
            assert stat.st_nlink == list(self.names.values()).count(one), (name, stat.st_nlink)

    def run(self, stop):
        kinds = [self.create, self.change, self.change, self.read, self.read, self.close, self.unlink, self.rename]
        kinds += [self.link, self.read_anew, self.append, self.rewrite, self.directory, self.sync, self.attribute]
        kinds += [self.list, self.map, self.map, self.unmap, self.lock]
        done = 0
        while done % 100 or not os.path.exists(stop):
            self.random.choice(kinds)()
            done += 1
        os.rmdir(self.held)
        return done


files = Files(sys.argv[1], int(sys.argv[2]))
done = files.run(sys.argv[3])
print(f"{done} operations, {files.refused} writes refused")

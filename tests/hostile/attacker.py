"""`attack SEED UID SECONDS SAMPLES`: does all that an ordinary user of a mount can think of, in the directory it is
started in, in one of four directories of its own that it comes back to. SAMPLES is a directory with a file of each
format.
`save UID SECONDS [killed]`: saves checkpoints there; prints how long each took, and what was promised. The server may be
killed meanwhile.

Both begin as root, so that Python is theirs whatever its directories allow, and become somebody else at once. What a
call of the attacker gives does not matter, only that it gives something: what it does to others does. How much it may
have is for the server to say.
"""

import ctypes
import errno
import fcntl
import hashlib
import io
import json
import mmap
import os
import random
import resource
import signal
import stat
import struct
import sys
import threading
import time
import zipfile

OPEN = 500
# Of files that are open to read, and of children and threads that have some.
TO_READ = 10_000
BY_CHILD = 2_000
THREADS = 200
# Of what has no name any more.
GONE = 500
MIB = 1 << 20
# Of a sample.
LARGEST = 1 << 20


def become(uid):
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def have_descriptors(count):
    """More than a user has as a rule; as root."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def save(seconds, killed):
    """Each checkpoint as a careful program saves it. A line for each that is durable under its name, when all are: nobody
    reads before that, and whoever waits for a reader saves nothing."""
    end = time.monotonic() + seconds
    number, lines = 0, []
    while time.monotonic() < end:
        content = os.urandom(64 << 10) * 16
        begun = time.monotonic()
        try:
            with open(".next", "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            # K6 of SEMANTICS.md: of a server that is killed as it reads the bytes of a write. Nothing was promised.
            if error.errno != errno.EIO or not killed:
                raise
            continue
        name = f"checkpoint-{number % 16}"
        os.rename(".next", name)
        took = time.monotonic() - begun
        lines.append(json.dumps([name, hashlib.sha256(content).hexdigest(), took]))
        number += 1
    print("\n".join(lines), flush=True)


class Attack:
    def __init__(self, seed, samples):
        self.random = random.Random(seed)
        self.samples = samples
        self.home = f"attack-{seed % 4}"
        os.makedirs(self.home, exist_ok=True)
        self.held = []
        self.looks = []
        self.gone = []
        # Names go on where an earlier one of the same directory may have ended.
        self.files = seed << 20

    def run(self, seconds):
        kinds = [getattr(self, name) for name in dir(self) if name.startswith("by_")]
        end = time.monotonic() + seconds
        counts = {}
        while time.monotonic() < end:
            kind = self.random.choice(kinds)
            try:
                kind()
            except (OSError, ValueError, BufferError) as error:
                counts[type(error).__name__] = counts.get(type(error).__name__, 0) + 1
            counts[kind.__name__] = counts.get(kind.__name__, 0) + 1
        print(json.dumps(counts), flush=True)

    def path(self, name=None):
        return os.path.join(self.home, name or f"f{self.random.randrange(200)}")

    def file(self, flags=os.O_RDWR | os.O_CREAT):
        return os.open(self.path(), flags, 0o666)

    # --- opens, names, attributes ----------------------------------------------------------------

    def by_opens(self):
        while len(self.held) < OPEN:
            self.held.append(self.file(self.random.choice([os.O_RDWR | os.O_CREAT, os.O_RDONLY, os.O_PATH])))
        for fd in self.held[:: self.random.randrange(1, 4)]:
            os.close(fd)
            self.held.remove(fd)

    def by_readers(self):
        """Of few files, by the thousand, all at once: nobody but the kernel bounds what is open to read."""
        fds, count = [], self.random.randrange(1, TO_READ)
        paths = [self.path() for _ in range(20)]
        try:
            while len(fds) < count:
                try:
                    fds.append(os.open(self.random.choice(paths), os.O_RDONLY | os.O_NONBLOCK))
                except FileNotFoundError:
                    paths[self.random.randrange(20)] = self.path()
                    os.close(self.file())
        finally:
            for fd in fds:
                os.close(fd)

    def by_threads(self):
        """As many requests at a time as there are threads, also of one file."""
        paths = [self.path() for _ in range(3)]

        def act():
            for path in paths * 3:
                try:
                    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
                    try:
                        os.pwrite(fd, b"x" * 5000, 0)
                        os.pread(fd, 5000, 0)
                        os.fstat(fd)
                    finally:
                        os.close(fd)
                    os.unlink(path)
                except OSError:
                    pass

        threads = [threading.Thread(target=act) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def by_fat_children(self):
        """Children that have very many descriptors, some of them of files that they replace, and are killed with them: for
        each file it is looked at who else has it."""

        def hold():
            fds = []
            while len(fds) < BY_CHILD:
                fds.append(self.file(self.random.choice([os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC])))
                if len(fds) % 50 == 0:
                    os.pwrite(fds[-1], b"x", 0)
                    os.close(os.dup(fds[0]))
            time.sleep(10)

        self.killed([hold] * 2, self.random.random() * 2)

    def by_names(self):
        for _ in range(300):
            self.files += 1
            os.close(os.open(self.path(f"{self.files}-" + "n" * self.random.randrange(240)), os.O_CREAT | os.O_WRONLY))

    def by_directories(self):
        path = self.path(f"d{self.random.randrange(20)}")
        for _ in range(30):
            os.mkdir(path)
            path += "/" + "d" * 100

    def by_links(self):
        one, other = self.path(), self.path()
        for action in (os.link, os.symlink, os.rename):
            try:
                action(one, other)
            except OSError:
                pass
        os.unlink(other)

    def by_attributes(self):
        for number in range(40):
            os.setxattr(self.path(), f"user.{number}", os.urandom(self.random.randrange(64 << 10)))

    def by_targets(self):
        for _ in range(100):
            self.files += 1
            os.symlink("t" * self.random.randrange(1, 4095), self.path(f"{self.files}-link"))

    def by_tiers(self):
        """Files go back and forth, many at a time, some of them while they are written."""
        for _ in range(self.random.randrange(1, 40)):
            tier = self.random.choice([b"pm", b"other", b"other", b"none", b"x" * 1000])
            path = self.path(self.random.choice([None, None, None, "."]))
            try:
                os.setxattr(path, "user.tensorfs.tier", tier)
            except OSError:
                pass

    def by_access_lists(self):
        """What is made in the directory gets as long a list."""
        entry = lambda tag, uid: struct.pack("<HHI", tag, 7, uid)
        named = b"".join(entry(2, 100_000 + n) for n in range(self.random.randrange(480)))
        none = (1 << 32) - 1
        entries = [entry(1, none), named, entry(4, none), entry(16, none), entry(32, none)]
        directory = self.path(f"lists{self.random.randrange(20)}")
        os.makedirs(directory, exist_ok=True)
        os.setxattr(directory, "system.posix_acl_default", struct.pack("<I", 2) + b"".join(entries))
        for n in range(20):
            os.makedirs(f"{directory}/{self.random.randrange(1000)}", exist_ok=True)

    def by_removed(self):
        """What is gone, and held by its path or as a working directory."""
        for fd in self.gone[: len(self.gone) if len(self.gone) > GONE else self.random.randrange(10)]:
            os.close(fd)
            self.gone.remove(fd)
        for _ in range(50):
            self.files += 1
            path = self.path(f"{self.files}-gone")
            make, remove = self.random.choice([(os.mkdir, os.rmdir), (os.mkfifo, os.unlink)])
            make(path)
            self.gone.append(os.open(path, os.O_PATH))
            remove(path)
        self.killed([lambda: self.stay_in(self.path(f"{os.getpid()}-left"))])

    def stay_in(self, path):
        os.mkdir(path)
        os.chdir(path)
        os.rmdir(os.getcwd())
        for name in (".", "..", "f"):
            try:
                os.stat(name)
            except OSError:
                pass
        time.sleep(10)

    def by_exchanges(self):
        """Names change places, files with directories too, and nothing is replaced."""
        libc, here = ctypes.CDLL(None, use_errno=True), -100
        for _ in range(50):
            name = [None, None, f"d{self.random.randrange(20)}", f"lists{self.random.randrange(20)}"]
            one, other = (self.path(self.random.choice(name)).encode() for _ in range(2))
            # RENAME_NOREPLACE, EXCHANGE, WHITEOUT, and what is not known.
            libc.renameat2(here, one, here, other, self.random.choice([1, 2, 2, 2, 4, 8]))

    def by_special_files(self):
        self.files += 1
        path = self.path(f"{self.files}-special")
        self.random.choice([os.mkfifo, lambda path: os.mknod(path, stat.S_IFSOCK | 0o666)])(path)
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    def by_listing(self):
        for entry in os.scandir(self.home):
            entry.stat(follow_symlinks=False)

    # --- bytes -----------------------------------------------------------------------------------

    def by_writing(self):
        fd = self.file(os.O_RDWR | os.O_CREAT | self.random.choice([0, os.O_TRUNC, os.O_APPEND, os.O_SYNC]))
        try:
            for _ in range(20):
                os.pwrite(fd, os.urandom(self.random.randrange(1, 100_000)), self.random.randrange(MIB))
            os.fsync(fd)
            os.ftruncate(fd, self.random.randrange(MIB))
        finally:
            os.close(fd)

    def by_direct(self):
        """Past the cache, in places where a block is, and where none is; of memory that is a file of the mount, too."""
        fd = self.file(os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        try:
            with mmap.mmap(-1, 1 << 16) as memory:
                for _ in range(20):
                    place = self.random.randrange(MIB) & ~self.random.choice([0, 511, 4095, 4095, 4095])
                    try:
                        self.random.choice([os.preadv, os.pwritev])(fd, [memory], place)
                    except OSError:
                        pass
            os.ftruncate(fd, MIB)
            with mmap.mmap(fd, MIB) as memory:
                os.pwritev(fd, [memory], self.random.randrange(MIB) & ~4095)
        finally:
            os.close(fd)

    def by_records(self):
        """Each is one, in memory, until there are too many."""
        fd = self.file(os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for _ in range(100):
                os.write(fd, b"x")
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def by_space(self):
        """Blocks come and go, and are shared."""
        fd, other = self.file(), self.file()
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            for _ in range(20):
                # Nothing, FALLOC_FL_KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, and what is not known.
                mode = self.random.choice([0, 1, 3, 0x10, 0x11, 0x20])
                place, size = self.random.randrange(MIB), self.random.randrange(1, MIB)
                libc.fallocate(fd, mode, ctypes.c_long(place), ctypes.c_long(size))
                os.copy_file_range(fd, other, size, self.random.randrange(MIB), place)
        finally:
            os.close(fd)
            os.close(other)

    def by_mapping(self):
        fd = self.file()
        try:
            os.ftruncate(fd, MIB)
            with mmap.mmap(fd, MIB) as mapped:
                for _ in range(50):
                    mapped[self.random.randrange(MIB)] = 1
                if self.random.random() < 0.3:
                    mapped.flush()
        finally:
            os.close(fd)

    def killed(self, actions, after=None):
        """A child for each action, all at once, which are killed in the middle of it."""
        children, parent, libc = [], os.getpid(), ctypes.CDLL(None)
        for action in actions:
            child = os.fork()
            if child == 0:
                try:
                    # PR_SET_PDEATHSIG: none outlives a parent that is killed, also if it was before this.
                    libc.prctl(1, signal.SIGKILL)
                    if os.getppid() != parent:
                        os._exit(1)
                    self.random.seed(os.getpid())
                    while True:
                        try:
                            action()
                        except (OSError, ValueError, BufferError):
                            pass
                finally:
                    os._exit(1)
            children.append(child)
        time.sleep(self.random.random() / 20 if after is None else after)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def by_killed_children(self):
        def write():
            fd = self.file(os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                os.write(fd, b"x" * 100_000)
            finally:
                os.close(fd)

        self.killed([write])

    def by_killed_crowds(self):
        """Of anything that is here, by some at a time: also while a reader, a lock or a disk is waited for."""
        others = [self.by_names, self.by_attributes, self.by_writing, self.by_mapping, self.by_links, self.by_listing]
        others += [self.by_hostile_files, self.by_checkpoints, self.by_long_names, self.by_packed, self.by_locks]
        others += [self.by_waiting_locks, self.by_control_files, self.by_tiers, self.by_questions, self.by_space]
        self.killed(self.random.sample(others, 4))

    def by_holes(self):
        """A file of terabytes that looks like a tensor file, which takes nothing of the disk."""
        fd = self.file()
        try:
            os.pwrite(fd, self.random.choice(self.hostile()), 0)
            os.ftruncate(fd, self.random.randrange(1 << 44))
        finally:
            os.close(fd)
        self.ask(self.path())

    # --- what the server looks into --------------------------------------------------------------

    def sample(self, ending=""):
        return self.random.choice([content for name, content in self.samples.items() if name.endswith(ending)])

    def hostile(self):
        """A sample of any format, with bytes of it changed and cut; and what says that there is more than there is."""
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, ), }"
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(self.random.randrange(1, 30)):
                archive.writestr(f"{number}.npy", b"\0" * self.random.randrange(MIB))
        sample = bytearray(self.sample())
        for _ in range(self.random.randrange(4)):
            sample[self.random.randrange(len(sample))] = self.random.randrange(256)
        return [
            bytes(sample),
            bytes(sample[: self.random.randrange(len(sample))]),
            struct.pack("<QI", self.random.randrange(1 << 45), 0) + b"x" * 100,
            b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header,
            struct.pack("<Q", self.random.randrange(1 << 20)) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            packed.getvalue(),
            b"\x89HDF\r\n\x1a\n" + bytes([self.random.randrange(4)]) + os.urandom(100),
            b"PAR1" + os.urandom(100) + struct.pack("<I", self.random.randrange(1 << 32)) + b"PAR1",
            b"ARROW1\0\0" + os.urandom(100) + struct.pack("<I", self.random.randrange(1 << 32)) + b"ARROW1",
            b"PAR1\x15\x04\x15\x10rows\x04\0\0\0PAR1",
            b"ARROW1\0\0batches\x08\0\0\0ARROW1",
            b"GGUF" + struct.pack("<IQQ", self.random.randrange(5), *(self.random.randrange(1 << 40) for _ in range(2))),
            b"PK\x05\x06" + os.urandom(18),
            b"\x80\x02" + b"(" * 10_000,
        ]

    def by_hostile_files(self):
        content = bytearray(self.random.choice(self.hostile()) * self.random.randrange(1, 4))
        for _ in range(self.random.randrange(5)):
            content[self.random.randrange(len(content))] = self.random.randrange(256)
        path = self.path()
        with open(path, "wb") as file:
            file.write(content)
        self.ask(path)

    def by_packed(self):
        """Many reads near the end of what has to be unpacked from its beginning, by one request each."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (16777216,), }".ljust(117) + b"\n"
            archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * (16 * MIB))
        path = self.path(f"packed-{self.random.randrange(5)}")
        with open(path, "wb") as file:
            file.write(packed.getvalue())
        below = f"{self.top()}/.tensorfs/tensors/{self.where()}/{path}"
        fd = os.open(f"{below}/a.npy", os.O_RDONLY)
        try:
            for _ in range(20):
                os.pread(fd, 4096, 16 * MIB - self.random.randrange(MIB))
        finally:
            os.close(fd)

    def by_packed_at_once(self):
        """The ends of some at the same time, which stay open behind that: each has something to go on with."""
        packed = [self.path(name) for name in os.listdir(self.home) if name.startswith("packed-")]
        if not packed:
            return self.by_packed()
        below = f"{self.top()}/.tensorfs/tensors/{self.where()}"
        begun = len(self.looks)
        while len(self.looks) < begun + 10:
            self.looks.append(os.open(f"{below}/{self.random.choice(packed)}/a.npy", os.O_RDONLY))

        def read(fd):
            try:
                os.pread(fd, 4096, 16 * MIB - self.random.randrange(MIB))
            except OSError:
                pass

        threads = [threading.Thread(target=read, args=(fd,)) for fd in self.looks[begun:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def by_long_names(self):
        """Tensors are called something, which is in memory once the file is sealed."""
        count, tensors, place = self.random.randrange(1, 5000), {}, 0
        for number in range(count):
            tensors[f"{number}" + "n" * 500] = {"dtype": "U8", "shape": [1], "data_offsets": [place, place + 1]}
            place += 1
        header = json.dumps(tensors).encode()
        with open(self.path(), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + b"\0" * count)

    def by_checkpoints(self):
        """Plans and indexes that are right, that are somewhat wrong, and that are something else."""
        directory = self.path(f"checkpoint-{self.random.randrange(50)}")
        os.makedirs(directory, exist_ok=True)
        parts = {f"t{n}": f"part-{n}.safetensors" for n in range(self.random.choice([1, 10, 10_000]))}
        right = {
            ".metadata": self.sample(".metadata"),
            "__0_0.distcp": self.sample(".distcp"),
            "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": parts}).encode(),
            "part-0.safetensors": self.sample(".safetensors"),
            "trainer_state.json": b'{"global_step": NaN, "log_history": ' + b"[" * self.random.choice([0, 100_000]),
            "random_states_0.pkl": self.sample(".pt"),
        }
        for name, content in self.random.sample(sorted(right.items()), 3):
            content = bytearray(self.random.choice([content, content, self.random.choice(self.hostile())]))
            for _ in range(self.random.randrange(3)):
                content[self.random.randrange(len(content))] = self.random.randrange(256)
            with open(os.path.join(directory, name), "wb") as file:
                file.write(content)
        for path in (directory, self.home, "."):
            os.getxattr(path, "user.tensorfs.complete")
        # What is in it as a whole.
        below = f"{self.top()}/.tensorfs/tensors/{self.where()}/{directory}.checkpoint"
        for name in os.listdir(below)[:5]:
            with open(os.path.join(below, name), "rb") as file:
                file.read(MIB)

    def ask(self, path):
        for name in ("state", "tensors", "records", "checksum", "tier", "complete"):
            try:
                os.getxattr(path, f"user.tensorfs.{name}")
            except OSError:
                pass
        below = f"{self.top()}/.tensorfs/tensors/{self.where()}/{path}"
        for name in os.listdir(below)[:5]:
            with open(os.path.join(below, name), "rb") as file:
                file.seek(self.random.randrange(MIB))
                file.read(MIB)

    def top(self):
        return ".."

    def where(self):
        return os.path.basename(os.getcwd())

    def by_control_files(self):
        control = f"{self.top()}/.tensorfs"
        for name in os.listdir(control):
            path = f"{control}/{name}"
            if stat.S_ISREG(os.stat(path).st_mode):
                fd = os.open(path, self.random.choice([os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC]))
                try:
                    os.read(fd, MIB)
                    os.write(fd, os.urandom(1000))
                finally:
                    os.close(fd)

    def by_tensors(self):
        """Tensors and listings that stay open, of files that become others."""
        tree = f"{self.top()}/.tensorfs/tensors/{self.where()}/{self.home}"
        if len(self.looks) > 200:
            for fd in self.looks[::2]:
                os.close(fd)
                self.looks.remove(fd)
        for file in self.random.sample(os.listdir(tree), 3):
            listing = os.open(f"{tree}/{file}", os.O_RDONLY)
            self.looks.append(listing)
            for name in os.listdir(listing)[:3]:
                if name.endswith(".npy"):
                    self.looks.append(os.open(name, os.O_RDONLY, dir_fd=listing))
                    os.pread(self.looks[-1], 100_000, self.random.randrange(MIB))

    def by_texts(self):
        """As many as he is given, all at once."""
        fds = []
        try:
            while len(fds) < 400:
                name = self.random.choice(["info", "metrics", "README", "placement"])
                fds.append(os.open(f"{self.top()}/.tensorfs/{name}", os.O_RDONLY))
        finally:
            for fd in fds:
                os.close(fd)

    def by_questions(self):
        """The ioctl that programs ask the server by: what its messages begin with, and then anything."""
        fd = self.file(self.random.choice([os.O_RDWR | os.O_CREAT, os.O_RDONLY, os.O_WRONLY]))
        try:
            for _ in range(20):
                asked = bytearray(8184)
                length = self.random.randrange(100)
                asked[0] = self.random.randrange(10)
                asked[1 : 1 + length] = os.urandom(length)
                try:
                    fcntl.ioctl(fd, 3 << 30 | 8184 << 16 | 0xA7 << 8 | 2, asked)
                except OSError:
                    pass
        finally:
            os.close(fd)

    def by_ioctls(self):
        fd = self.file()
        try:
            for _ in range(20):
                number = self.random.choice([self.random.randrange(1 << 32), 0xC0005400 | self.random.randrange(256)])
                try:
                    fcntl.ioctl(fd, number, bytearray(os.urandom(self.random.randrange(1024))))
                except OSError:
                    pass
        finally:
            os.close(fd)

    def by_locks(self):
        fds = [self.file() for _ in range(10)]
        try:
            for fd in fds:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.random.randrange(1 << 40))
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            for fd in fds:
                os.close(fd)

    def by_waiting_locks(self):
        """Children wait for each other's locks, some of them in a circle, until they are killed."""
        paths = [self.path(), self.path()]

        def wait():
            self.random.shuffle(paths)
            with open(paths[0], "ab") as one, open(paths[1], "ab") as other:
                for file in (one, other):
                    self.random.choice([fcntl.lockf, fcntl.flock])(file, fcntl.LOCK_EX)

        self.killed([wait] * 5)

    def by_leases(self):
        """Who opens what has a lease waits for its holder."""
        fd = self.file(os.O_RDONLY | os.O_CREAT)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, self.random.choice([fcntl.F_RDLCK, fcntl.F_WRLCK]))
            fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_MODIFY)
        finally:
            os.close(fd)

    def by_what_is_not_his(self):
        """Nothing of the victim's can be had."""
        for action in (os.listdir, os.rmdir, lambda path: os.open(f"{path}/checkpoint-0", os.O_RDWR)):
            try:
                action(f"{self.top()}/victim")
            except PermissionError:
                continue
            print("the attacker could look into what is the victim's", flush=True)
            os._exit(3)

    def by_removing(self):
        for name in self.random.sample(os.listdir(self.home), 20):
            os.unlink(os.path.join(self.home, name))


if __name__ == "__main__":
    if sys.argv[1] == "save":
        become(int(sys.argv[2]))
        save(float(sys.argv[3]), sys.argv[4:] == ["killed"])
    else:
        entries = [entry for entry in os.scandir(sys.argv[5]) if entry.is_file() and not entry.name.endswith(".json")]
        paths = [entry.path for entry in entries if entry.stat().st_size > 0]
        samples = {os.path.basename(path): open(path, "rb").read(LARGEST) for path in sorted(paths)}
        have_descriptors(TO_READ + OPEN + 1000)
        become(int(sys.argv[3]))
        Attack(int(sys.argv[2]), samples).run(float(sys.argv[4]))

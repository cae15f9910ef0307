//! One side of the comparison: a directory of a real filesystem, and what an actor has open in it.

use super::fill::fill;
use super::op::{ANY, At, Lock, MAPS, Op, Outcome, SLOTS, Step, Time};
use super::users::User;
use nix::errno::Errno;
use nix::fcntl::{self, AtFlags, OFlag};
use nix::sys::stat::{self, FileStat, Mode, SFlag};
use nix::unistd;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Errno>;

/// Times behind this are not of today, but were set.
const OLD: i64 = 1_500_000_000;
/// Likewise, in front of it.
const FUTURE: i64 = 4_000_000_000;

/// The times of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FileTimes {
    pub ino: u64,
    pub mtime: (i64, i64),
    pub ctime: (i64, i64),
}

struct Mapping {
    address: *mut libc::c_void,
    len: usize,
    ino: u64,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and is reached through here only.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

/// A directory, and what is open.
pub struct System {
    path: PathBuf,
    /// This is what tensorfs is compared with. Where it is documented to differ, this side does as tensorfs should.
    stands_in: bool,
    root: Option<OwnedFd>,
    slots: [Option<OwnedFd>; SLOTS as usize],
    was_mapped: [bool; SLOTS as usize],
    maps: [Option<Mapping>; MAPS as usize],
    /// Files that were stored to through a mapping: when their times move is not told.
    loose: HashSet<u64>,
}

impl System {
    /// An actor's directory in this one. It is made, with one inside it that the actor starts in: a symbolic link may
    /// point to its neighbours.
    pub fn new(path: &Path, stands_in: bool) -> System {
        for path in [path.to_owned(), path.join("root")] {
            std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            chmod(&path, 0o777).unwrap();
        }
        let mut system = System {
            path: path.to_owned(),
            stands_in,
            root: None,
            slots: Default::default(),
            was_mapped: Default::default(),
            maps: Default::default(),
            loose: HashSet::new(),
        };
        system.enter();
        system
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory, for instance after it was mounted again.
    pub fn enter(&mut self) {
        let root = fcntl::open(&self.path.join("root"), OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        self.root = Some(root.unwrap_or_else(|error| panic!("{}: {error}", self.path.display())));
    }

    /// Closes everything. A mapping that is gone has written all that was stored through it.
    pub fn leave(&mut self) {
        self.unmap();
        self.slots = Default::default();
        self.was_mapped = Default::default();
        self.root = None;
        // The kernel remembers the working directory, which keeps a mount busy.
        unistd::chdir("/").unwrap();
    }

    /// Slots of what is there only as long as its server is: it has no name any more, and no file is open of it.
    pub fn outlived_by_servers(&self) -> Vec<usize> {
        let of = |fd: &OwnedFd| {
            let stat = stat::fstat(fd).ok()?;
            let flags = fcntl::fcntl(fd, fcntl::FcntlArg::F_GETFL).ok()?;
            let is_file = stat.st_mode & libc::S_IFMT == libc::S_IFREG && flags & libc::O_PATH == 0;
            Some(stat.st_nlink == 0 && !is_file)
        };
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, fd)| fd.as_ref().and_then(of).unwrap_or(false)).map(|(slot, _)| slot).collect()
    }

    /// Takes all mappings down.
    pub fn unmap(&mut self) {
        self.maps = Default::default();
    }

    /// Whether the times of a file are unsure.
    pub fn is_loose(&self, ino: u64) -> bool {
        self.loose.contains(&ino)
    }

    /// In passthrough a mapping holds the segment, not what it was mapped through, and so not that one's locks.
    fn close(&mut self, slot: usize) {
        if let (Some(fd), true) = (&self.slots[slot], self.was_mapped[slot]) {
            // SAFETY: plain system call on an open descriptor.
            unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_UN) };
            let _ = range_lock(fd.as_fd(), Lock::None, 0, 0);
        }
        self.slots[slot] = None;
        self.was_mapped[slot] = false;
    }

    fn slot(&self, slot: usize) -> Result<BorrowedFd<'_>> {
        self.slots[slot].as_ref().map(AsFd::as_fd).ok_or(Errno::EBADF)
    }

    /// The directory that a path starts from.
    fn base(&self, at: &At) -> BorrowedFd<'_> {
        let slot = at.dir.and_then(|slot| self.slots[slot].as_ref());
        slot.or(self.root.as_ref()).expect("the root is open").as_fd()
    }

    /// For system calls that know no directory: goes there. Each actor's thread has a working directory of its own.
    fn go(&self, at: &At) -> Result<CString> {
        unistd::fchdir(self.base(at))?;
        Ok(CString::new(at.path.as_bytes()).expect("no NUL"))
    }

    /// Does a step.
    pub fn apply(&mut self, step: &Step) -> Outcome {
        if let Op::Umask { mask } = step.op {
            // SAFETY: plain system call; the mask is this thread's, and so both sides'.
            unsafe { libc::umask(mask) };
            return Outcome::done();
        }
        if self.wants_what_is_not_there(&step.op) || self.asks_about_the_removed(&step.op) {
            return Outcome::Skipped;
        }
        match self.run(step) {
            Ok(outcome) => outcome,
            Err(errno) => Outcome::Failed(errno),
        }
    }

    fn wants_what_is_not_there(&self, op: &Op) -> bool {
        match op {
            Op::CopyRange { from, to, .. } => self.slots[*from].is_none() || self.slots[*to].is_none(),
            Op::Load { map, .. } | Op::Store { map, .. } | Op::Msync { map } | Op::Unmap { map } => {
                self.maps[*map].is_none()
            }
            _ => op.slot().is_some_and(|slot| self.slots[slot].is_none()),
        }
    }

    /// Of a directory or special file that has no name left, tensorfs knows no more than `fstat` shows: FUSE does not
    /// tell it that somebody has it open.
    fn asks_about_the_removed(&self, op: &Op) -> bool {
        let fd = match op {
            Op::Fchmod { slot, .. }
            | Op::Fchown { slot, .. }
            | Op::Futimens { slot, .. }
            | Op::FsetXattr { slot, .. }
            | Op::FgetXattr { slot, .. } => self.slot(*slot).ok(),
            Op::Chmod { at, .. }
            | Op::Chown { at, .. }
            | Op::Utimens { at, .. }
            | Op::SetXattr { at, .. }
            | Op::GetXattr { at, .. }
            | Op::ListXattr { at, .. }
            | Op::RemoveXattr { at, .. } => Some(self.base(at)),
            _ => None,
        };
        let stat = fd.and_then(|fd| stat::fstat(fd).ok());
        stat.is_some_and(|stat| stat.st_nlink == 0 && stat.st_mode & libc::S_IFMT != libc::S_IFREG)
    }

    fn run(&mut self, step: &Step) -> Result<Outcome> {
        let user = step.user;
        match &step.op {
            Op::Open { slot, at, flags, mode } => {
                // A FIFO must not wait for its other end.
                let flags = OFlag::from_bits_retain(*flags | libc::O_NONBLOCK | libc::O_CLOEXEC);
                let mode = Mode::from_bits_truncate(*mode);
                let existed = stat::fstatat(self.base(at), at.path.as_str(), AtFlags::empty()).is_ok();
                let is_device =
                    |stat: &FileStat| [libc::S_IFCHR, libc::S_IFBLK].contains(&(stat.st_mode & libc::S_IFMT));
                let opened = user.act(|| fcntl::openat(self.base(at), at.path.as_str(), flags, mode));
                if opened.as_ref().is_err_and(|errno| *errno == Errno::EPERM)
                    && stat::fstatat(self.base(at), at.path.as_str(), AtFlags::empty()).is_ok_and(|s| is_device(&s))
                {
                    // Whether it may be opened at all (see below) is asked before whether with `O_NOATIME`.
                    return Err(Errno::EACCES);
                }
                let fd = opened?;
                let kind = stat::fstat(&fd)?.st_mode & libc::S_IFMT;
                // The mount is `nodev`, the host's filesystem is not.
                if !flags.contains(OFlag::O_PATH) && (kind == libc::S_IFCHR || kind == libc::S_IFBLK) {
                    return Err(Errno::EACCES);
                }
                let writes = flags.bits() & libc::O_ACCMODE != libc::O_RDONLY && !flags.contains(OFlag::O_PATH);
                if self.stands_in && existed && writes && user != User::Root {
                    drop_privileges(user, &fd)?;
                }
                self.close(*slot);
                self.slots[*slot] = Some(fd);
                Ok(Outcome::done())
            }
            Op::Close { slot } => {
                self.close(*slot);
                Ok(Outcome::done())
            }
            Op::Read { slot, len } => {
                let mut buffer = vec![0; *len];
                let read = unistd::read(self.slot(*slot)?, &mut buffer)?;
                buffer.truncate(read);
                Ok(Outcome::Done(format!("{read} bytes"), buffer))
            }
            Op::Write { slot, len, seed } => {
                let fd = self.slot(*slot)?;
                let bytes = fill(*seed, *len);
                Ok(Outcome::said(unistd::write(fd, &bytes)?))
            }
            Op::Pread { slot, offset, len } => {
                let mut buffer = vec![0; *len];
                let read = nix::sys::uio::pread(self.slot(*slot)?, &mut buffer, *offset)?;
                buffer.truncate(read);
                Ok(Outcome::Done(format!("{read} bytes"), buffer))
            }
            Op::Pwrite { slot, offset, len, seed } => {
                let fd = self.slot(*slot)?;
                let bytes = fill(*seed, *len);
                Ok(Outcome::said(nix::sys::uio::pwrite(fd, &bytes, *offset)?))
            }
            Op::Seek { slot, offset, whence } => {
                let fd = self.slot(*slot)?.as_raw_fd();
                if stat::fstat(self.slot(*slot)?)?.st_mode & libc::S_IFMT == libc::S_IFDIR {
                    // Positions in a directory are its filesystem's own.
                    return Ok(Outcome::Skipped);
                }
                // SAFETY: plain system call on an open descriptor.
                Ok(Outcome::said(Errno::result(unsafe { libc::lseek(fd, *offset, *whence) })?))
            }
            Op::SeekHole { slot, offset, whence } => self.seek_hole(self.slot(*slot)?, *offset, *whence),
            Op::Ftruncate { slot, size } => {
                let fd = self.slot(*slot)?;
                done(user.act(|| unistd::ftruncate(fd, *size)))
            }
            Op::Truncate { at, size } => {
                let path = self.go(at)?;
                done(user.act(|| unistd::truncate(path.as_c_str(), *size)))
            }
            Op::Fallocate { slot, mode, offset, len } => {
                let fd = self.slot(*slot)?.as_raw_fd();
                // SAFETY: plain system call on an open descriptor.
                done(Errno::result(user.act(|| unsafe { libc::fallocate(fd, *mode, *offset, *len) })))
            }
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.slot(*from)?, self.slot(*to)?);
                let (mut from_offset, mut to_offset, mut left) = (*from_offset, *to_offset, *len);
                // It may copy less than asked.
                loop {
                    let copied = fcntl::copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), left);
                    // A file that is copied into itself may come to overlap.
                    let copied = if left < *len { copied.unwrap_or(0) } else { copied? };
                    left -= copied;
                    if copied == 0 || left == 0 {
                        return Ok(Outcome::said(len - left));
                    }
                }
            }
            Op::Fsync { slot, data: true } => done(unistd::fdatasync(self.slot(*slot)?)),
            Op::Fsync { slot, data: false } => done(unistd::fsync(self.slot(*slot)?)),
            Op::Map { map, slot, len, write } => {
                let fd = self.slot(*slot)?;
                let ino = stat::fstat(fd)?.st_ino;
                let protection = if *write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
                // SAFETY: a new mapping, which no reference is ever made into.
                let address =
                    unsafe { libc::mmap(std::ptr::null_mut(), *len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
                if address == libc::MAP_FAILED {
                    return Err(Errno::last());
                }
                self.was_mapped[*slot] = true;
                self.maps[*map] = Some(Mapping { address, len: *len, ino });
                Ok(Outcome::done())
            }
            Op::Load { map, offset, len } => self.load(self.maps[*map].as_ref().ok_or(Errno::EBADF)?, *offset, *len),
            Op::Store { map, offset, len, seed } => {
                let map = self.maps[*map].as_ref().ok_or(Errno::EBADF)?;
                let ino = map.ino;
                let outcome = self.store(map, *offset, *len, *seed);
                self.loose.insert(ino);
                outcome
            }
            Op::Msync { map } => {
                let map = self.maps[*map].as_ref().ok_or(Errno::EBADF)?;
                // SAFETY: the whole of a mapping of ours.
                done(Errno::result(unsafe { libc::msync(map.address, map.len, libc::MS_SYNC) }))
            }
            Op::Unmap { map } => {
                self.maps[*map] = None;
                Ok(Outcome::done())
            }
            Op::Mkdir { at, mode } => {
                let mode = Mode::from_bits_truncate(*mode);
                done(user.act(|| stat::mkdirat(self.base(at), at.path.as_str(), mode)))
            }
            Op::Rmdir { at } => {
                done(user.act(|| unistd::unlinkat(self.base(at), at.path.as_str(), unistd::UnlinkatFlags::RemoveDir)))
            }
            Op::Mknod { at, kind, mode } => {
                let kind = SFlag::from_bits_truncate(*kind);
                let mode = Mode::from_bits_truncate(*mode);
                let device = if kind == SFlag::S_IFCHR { stat::makedev(1, 3) } else { stat::makedev(7, 0) };
                done(user.act(|| stat::mknodat(self.base(at), at.path.as_str(), kind, mode, device)))
            }
            Op::Link { from, to, follow } => {
                let flags = if *follow { AtFlags::AT_SYMLINK_FOLLOW } else { AtFlags::empty() };
                done(user.act(|| {
                    unistd::linkat(self.base(from), from.path.as_str(), self.base(to), to.path.as_str(), flags)
                }))
            }
            Op::Unlink { at } => {
                done(user.act(|| unistd::unlinkat(self.base(at), at.path.as_str(), unistd::UnlinkatFlags::NoRemoveDir)))
            }
            Op::Symlink { target, at } => {
                done(user.act(|| unistd::symlinkat(target.as_str(), self.base(at), at.path.as_str())))
            }
            Op::Readlink { at } => {
                let target = user.act(|| fcntl::readlinkat(self.base(at), at.path.as_str()))?;
                Ok(Outcome::Done(String::new(), target.as_bytes().to_vec()))
            }
            Op::Rename { from, to, flags } => {
                let flags = fcntl::RenameFlags::from_bits_retain(*flags);
                done(user.act(|| {
                    fcntl::renameat2(self.base(from), from.path.as_str(), self.base(to), to.path.as_str(), flags)
                }))
            }
            Op::Chmod { at, mode } => {
                let mode = Mode::from_bits_truncate(*mode);
                let follow = stat::FchmodatFlags::FollowSymlink;
                done(user.act(|| stat::fchmodat(self.base(at), at.path.as_str(), mode, follow)))
            }
            Op::Fchmod { slot, mode } => {
                let fd = self.slot(*slot)?;
                done(user.act(|| stat::fchmod(fd, Mode::from_bits_truncate(*mode))))
            }
            Op::Chown { at, uid, gid, follow } => {
                let (uid, gid) = (uid.map(unistd::Uid::from_raw), gid.map(unistd::Gid::from_raw));
                let flags = if *follow { AtFlags::empty() } else { AtFlags::AT_SYMLINK_NOFOLLOW };
                done(user.act(|| unistd::fchownat(self.base(at), at.path.as_str(), uid, gid, flags)))
            }
            Op::Fchown { slot, uid, gid } => {
                let fd = self.slot(*slot)?;
                let (uid, gid) = (uid.map(unistd::Uid::from_raw), gid.map(unistd::Gid::from_raw));
                done(user.act(|| unistd::fchown(fd, uid, gid)))
            }
            Op::Utimens { at, atime, mtime, follow } => {
                let flags = if *follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                let path = CString::new(at.path.as_bytes()).expect("no NUL");
                let times = [timespec(*atime), timespec(*mtime)];
                let base = self.base(at).as_raw_fd();
                // SAFETY: a directory, a NUL-terminated path, two times.
                done(Errno::result(user.act(|| unsafe { libc::utimensat(base, path.as_ptr(), times.as_ptr(), flags) })))
            }
            Op::Futimens { slot, atime, mtime } => {
                let fd = self.slot(*slot)?.as_raw_fd();
                let times = [timespec(*atime), timespec(*mtime)];
                // SAFETY: a descriptor, two times.
                done(Errno::result(user.act(|| unsafe { libc::futimens(fd, times.as_ptr()) })))
            }
            Op::SetXattr { at, name, value, flags, follow } => {
                let (path, name) = (self.go(at)?, c(name));
                let set = if *follow { libc::setxattr } else { libc::lsetxattr };
                // SAFETY: two NUL-terminated strings, a value and its length.
                done(Errno::result(
                    user.act(|| unsafe {
                        set(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), *flags)
                    }),
                ))
            }
            Op::GetXattr { at, name, room, follow } => {
                let (path, name) = (self.go(at)?, c(name));
                let get = if *follow { libc::getxattr } else { libc::lgetxattr };
                let mut buffer = vec![0u8; *room];
                // SAFETY: two NUL-terminated strings, a buffer and its length.
                let len =
                    Errno::result(user.act(|| unsafe {
                        get(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
                    }))?;
                buffer.truncate(len as usize);
                Ok(Outcome::Done(len.to_string(), buffer))
            }
            Op::ListXattr { at, follow } => {
                let path = self.go(at)?;
                let names = user.act(|| list_xattrs(&path, *follow))?;
                Ok(Outcome::said(format_args!("{names:?}")))
            }
            Op::RemoveXattr { at, name, follow } => {
                let (path, name) = (self.go(at)?, c(name));
                let remove = if *follow { libc::removexattr } else { libc::lremovexattr };
                // SAFETY: two NUL-terminated strings.
                done(Errno::result(user.act(|| unsafe { remove(path.as_ptr(), name.as_ptr()) })))
            }
            Op::FsetXattr { slot, name, value } => {
                let (fd, name) = (self.slot(*slot)?.as_raw_fd(), c(name));
                // SAFETY: a NUL-terminated string, a value and its length.
                done(Errno::result(
                    user.act(|| unsafe { libc::fsetxattr(fd, name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }),
                ))
            }
            Op::FgetXattr { slot, name } => {
                let (fd, name) = (self.slot(*slot)?.as_raw_fd(), c(name));
                let mut buffer = vec![0u8; 1000];
                // SAFETY: a NUL-terminated string, a buffer and its length.
                let len =
                    Errno::result(user.act(|| unsafe {
                        libc::fgetxattr(fd, name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
                    }))?;
                buffer.truncate(len as usize);
                Ok(Outcome::Done(len.to_string(), buffer))
            }
            Op::Stat { at, follow } => {
                let flags = if *follow { AtFlags::empty() } else { AtFlags::AT_SYMLINK_NOFOLLOW };
                let stat = user.act(|| stat::fstatat(self.base(at), at.path.as_str(), flags))?;
                Ok(Outcome::said(self.describe(&stat)))
            }
            Op::Fstat { slot } => Ok(Outcome::said(self.describe(&stat::fstat(self.slot(*slot)?)?))),
            Op::Access { at, mask } => {
                let mask = unistd::AccessFlags::from_bits_truncate(*mask);
                done(user.act(|| unistd::faccessat(self.base(at), at.path.as_str(), mask, AtFlags::AT_EACCESS)))
            }
            Op::Statfs { at } => {
                let path = self.go(at)?;
                // SAFETY: all zeroes is a valid `statfs`.
                let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
                // SAFETY: a NUL-terminated string and a buffer of the right type.
                Errno::result(user.act(|| unsafe { libc::statfs(path.as_ptr(), &mut statfs) }))?;
                let sane = statfs.f_bfree <= statfs.f_blocks && statfs.f_bavail <= statfs.f_bfree;
                Ok(Outcome::said(format_args!("names of {} bytes, sane: {sane}", statfs.f_namelen)))
            }
            Op::List { at, seek } => {
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                let fd = user.act(|| fcntl::openat(self.base(at), at.path.as_str(), flags, Mode::empty()))?;
                list(fd, *seek)
            }
            Op::Flock { slot, lock } => {
                let fd = self.slot(*slot)?.as_raw_fd();
                let lock = match lock {
                    Lock::Shared => libc::LOCK_SH,
                    Lock::Exclusive => libc::LOCK_EX,
                    Lock::None => libc::LOCK_UN,
                };
                // SAFETY: plain system call on an open descriptor.
                done(Errno::result(unsafe { libc::flock(fd, lock | libc::LOCK_NB) }))
            }
            Op::RangeLock { slot, lock, start, len } => done(range_lock(self.slot(*slot)?, *lock, *start, *len)),
            Op::Umask { .. } => unreachable!("done before"),
        }
    }

    /// What two filesystems must agree on about an object.
    fn describe(&self, stat: &FileStat) -> String {
        let kind = stat.st_mode & libc::S_IFMT;
        let mut text =
            format!("{:o} {}:{} links {} rdev {}", stat.st_mode, stat.st_uid, stat.st_gid, stat.st_nlink, stat.st_rdev);
        // A directory's size is its filesystem's own.
        if kind != libc::S_IFDIR {
            text += &format!(" size {}", stat.st_size);
        }
        // What goes through a FIFO moves its times in memory; FUSE does not tell the server.
        if self.is_loose(stat.st_ino) || kind == libc::S_IFIFO {
            return text + " mtime " + ANY;
        }
        text + " mtime " + &time(stat.st_mtime, stat.st_mtime_nsec)
    }

    /// The times of what a path stands for, and of the directory it is in: (mtime, ctime) of each that is there.
    pub fn times(&self, at: &At) -> Vec<Option<FileTimes>> {
        let parent = match at.path.trim_end_matches('/').rsplit_once('/') {
            Some((parent, _)) => parent.to_owned(),
            None => ".".to_owned(),
        };
        [&at.path, &parent].map(|path| self.times_of(self.base(at), path)).to_vec()
    }

    /// The times of what a descriptor is of, as [`System::times`] has them for a path.
    pub fn slot_times(&self, slot: usize) -> Vec<Option<FileTimes>> {
        match self.slot(slot) {
            Ok(fd) => vec![self.sure_times(stat::fstat(fd).ok())],
            Err(_) => Vec::new(),
        }
    }

    fn times_of(&self, base: BorrowedFd<'_>, path: &str) -> Option<FileTimes> {
        self.sure_times(stat::fstatat(base, path, AtFlags::AT_SYMLINK_NOFOLLOW).ok())
    }

    fn sure_times(&self, stat: Option<FileStat>) -> Option<FileTimes> {
        let stat = stat.filter(|stat| !self.is_loose(stat.st_ino))?;
        let (mtime, ctime) = ((stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec));
        Some(FileTimes { ino: stat.st_ino, mtime, ctime })
    }

    /// What `SEEK_DATA` and `SEEK_HOLE` say depends on what the host has allocated. But a hole reads as zeroes, and
    /// what is behind the end is neither.
    fn seek_hole(&self, fd: BorrowedFd<'_>, offset: i64, whence: i32) -> Result<Outcome> {
        let meta = stat::fstat(fd)?;
        let readable = OFlag::from_bits_retain(fcntl::fcntl(fd, fcntl::FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
        if meta.st_mode & libc::S_IFMT != libc::S_IFREG || readable == OFlag::O_WRONLY {
            return Ok(Outcome::Skipped);
        }
        // SAFETY: plain system calls on an open descriptor.
        let seek = |offset, whence| Errno::result(unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) });
        let before = seek(0, libc::SEEK_CUR)?;
        let found = seek(offset, whence);
        seek(before, libc::SEEK_SET)?;
        let zeroes = |from: i64, to: i64| -> Result<bool> {
            let mut buffer = vec![0; usize::try_from(to - from).unwrap_or(0)];
            let read = nix::sys::uio::pread(fd, &mut buffer, from)?;
            Ok(buffer[..read].iter().all(|&byte| byte == 0))
        };
        let size = meta.st_size;
        if self.is_loose(meta.st_ino) {
            // Through the server, what was stored counts once it is written back.
            return Ok(Outcome::said(ANY));
        }
        if size > 8 << 20 {
            return Ok(Outcome::Skipped);
        }
        let fits = match found {
            _ if offset >= size => found == Err(Errno::ENXIO),
            Ok(at) if whence == libc::SEEK_DATA => (offset..size).contains(&at) && zeroes(offset, at)?,
            Ok(at) => (offset..=size).contains(&at),
            Err(Errno::ENXIO) if whence == libc::SEEK_DATA => zeroes(offset, size)?,
            Err(_) => false,
        };
        Ok(Outcome::said(if fits { "true".to_owned() } else { format!("untrue:{found:?},of,{size}") }))
    }

    /// Reads through a mapping. By a system call, so that a page that is not there gives EFAULT and no signal; one page
    /// at a time, so that it is known how far it got.
    fn load(&self, map: &Mapping, offset: usize, len: usize) -> Result<Outcome> {
        let offset = offset.min(map.len);
        let end = offset + len.min(map.len - offset);
        let mut bytes = Vec::new();
        while offset + bytes.len() < end {
            let at = offset + bytes.len();
            let mut page = vec![0; (at + 1).next_multiple_of(4096).min(end) - at];
            let (output, input) = unistd::pipe()?;
            // SAFETY: inside the mapping; the kernel checks each page.
            let moved = unsafe { libc::write(input.as_raw_fd(), map.address.byte_add(at), page.len()) };
            match Errno::result(moved) {
                Ok(moved) => page.truncate(moved as usize),
                Err(errno) if bytes.is_empty() => return Err(errno),
                Err(_) => break,
            }
            unistd::read(&output, &mut page)?;
            bytes.extend(page);
        }
        Ok(Outcome::Done(format!("{} bytes", bytes.len()), bytes))
    }

    /// Writes through a mapping, likewise.
    fn store(&self, map: &Mapping, offset: usize, len: usize, seed: u64) -> Result<Outcome> {
        let offset = offset.min(map.len);
        let bytes = fill(seed, len.min(map.len - offset));
        let mut at = 0;
        while at < bytes.len() {
            let end = (offset + at + 1).next_multiple_of(4096).min(offset + bytes.len()) - offset;
            let (output, input) = unistd::pipe()?;
            unistd::write(&input, &bytes[at..end])?;
            // SAFETY: inside the mapping; the kernel checks each page.
            let moved = unsafe { libc::read(output.as_raw_fd(), map.address.byte_add(offset + at), end - at) };
            match Errno::result(moved) {
                Ok(moved) => at += moved as usize,
                Err(errno) if at == 0 => return Err(errno),
                Err(errno) => return Ok(Outcome::said(format_args!("{at} bytes, then {errno:?}"))),
            }
        }
        Ok(Outcome::said(format_args!("{at} bytes")))
    }

    /// Everything below the actor's directory.
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        let mut entries = BTreeMap::new();
        let mut names = BTreeMap::new();
        let mut todo = vec![String::new()];
        while let Some(relative) = todo.pop() {
            let path = if relative.is_empty() { self.path.clone() } else { self.path.join(&relative) };
            let text = match self.describe_all(&path, &relative, &mut names) {
                Ok((text, is_dir)) => {
                    if is_dir {
                        let entries = std::fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                        let mut below: Vec<String> = entries
                            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                            .map(|name| if relative.is_empty() { name } else { format!("{relative}/{name}") })
                            .collect();
                        // Of several links to a file, both sides meet the same one first.
                        below.sort();
                        todo.extend(below);
                    }
                    text
                }
                Err(errno) => format!("{errno:?}"),
            };
            entries.insert(relative, text);
        }
        entries
    }

    fn describe_all(&self, path: &Path, relative: &str, names: &mut BTreeMap<u64, String>) -> Result<(String, bool)> {
        let stat = stat::lstat(path)?;
        let kind = stat.st_mode & libc::S_IFMT;
        let mut text = self.describe(&stat);
        let first = names.entry(stat.st_ino).or_insert_with(|| relative.to_owned());
        if first != relative {
            text += &format!(", is {first:?}");
        }
        let c_path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        for name in list_xattrs(&c_path, false)? {
            let mut value = vec![0u8; 70_000];
            let c_name = c(&name);
            // SAFETY: two NUL-terminated strings, a buffer and its length.
            let len = Errno::result(unsafe {
                libc::lgetxattr(c_path.as_ptr(), c_name.as_ptr(), value.as_mut_ptr().cast(), value.len())
            })?;
            value.truncate(len as usize);
            text += &format!(", {name}={value:02x?}");
        }
        match kind {
            libc::S_IFLNK => text += &format!(" -> {:?}", fcntl::readlink(path)?),
            libc::S_IFREG if stat.st_size <= 8 << 20 => {
                let bytes = std::fs::read(path).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
                text += &format!(", {} bytes {:016x}", bytes.len(), hash(&bytes));
            }
            _ => {}
        }
        Ok((text, kind == libc::S_IFDIR))
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn chmod(path: &Path, mode: u32) -> Result<()> {
    stat::fchmodat(fcntl::AT_FDCWD, path, Mode::from_bits_truncate(mode), stat::FchmodatFlags::FollowSymlink)
}

/// What tensorfs does when a user opens a file for writing, and ext4 when it is written (SEMANTICS.md, A5).
fn drop_privileges(user: User, fd: &OwnedFd) -> Result<()> {
    let stat = stat::fstat(fd)?;
    let mut mode = stat.st_mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 || !user.is_in(stat.st_gid) {
        mode &= !libc::S_ISGID;
    }
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG || mode == stat.st_mode {
        return Ok(());
    }
    stat::fchmod(fd, Mode::from_bits_truncate(mode))
}

fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL")
}

fn done<T>(result: Result<T>) -> Result<Outcome> {
    result.map(|_| Outcome::done())
}

/// A time that was set is told, another is just "now".
fn time(seconds: i64, nanoseconds: i64) -> String {
    match seconds {
        OLD..FUTURE => "now".to_owned(),
        _ => format!("{seconds}.{nanoseconds:09}"),
    }
}

fn timespec(time: Time) -> libc::timespec {
    match time {
        Time::Omit => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Time::Now => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Time::Fixed(tv_sec, tv_nsec) => libc::timespec { tv_sec, tv_nsec },
    }
}

fn range_lock(fd: BorrowedFd<'_>, lock: Lock, start: i64, len: i64) -> Result<i32> {
    let kind = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
        Lock::None => libc::F_UNLCK,
    };
    // SAFETY: all zeroes is a valid `flock`.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as i16;
    range.l_start = start;
    range.l_len = len;
    fcntl::fcntl(fd, fcntl::FcntlArg::F_OFD_SETLK(&range))
}

fn list_xattrs(path: &CStr, follow: bool) -> Result<Vec<String>> {
    let list = if follow { libc::listxattr } else { libc::llistxattr };
    let mut buffer = vec![0u8; 70_000];
    // SAFETY: a NUL-terminated string, a buffer and its length.
    let len = Errno::result(unsafe { list(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) })?;
    let names = buffer[..len as usize].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Reads a directory twice, the second time from where one of its entries was.
fn list(fd: OwnedFd, seek: u64) -> Result<Outcome> {
    // SAFETY: the descriptor is given away; `Dir` does not tell positions.
    let dir = unsafe { libc::fdopendir(std::os::fd::IntoRawFd::into_raw_fd(fd)) };
    if dir.is_null() {
        return Err(Errno::last());
    }
    let read = || {
        let mut entries = Vec::new();
        loop {
            // SAFETY: an open directory, used by this thread only.
            let position = unsafe { libc::telldir(dir) };
            // SAFETY: likewise.
            let entry = unsafe { libc::readdir64(dir) };
            if entry.is_null() {
                return entries;
            }
            // SAFETY: the entry is valid until the next call, and its name ends with a NUL.
            let (name, kind) = unsafe { (CStr::from_ptr((*entry).d_name.as_ptr()), (*entry).d_type) };
            entries.push((position, OsStr::from_bytes(name.to_bytes()).to_owned(), kind));
        }
    };
    let mut all = read();
    let from = (seek % all.len().max(1) as u64) as usize;
    let mut text = String::new();
    if let Some((position, ..)) = all.get(from) {
        // SAFETY: a position of this directory.
        unsafe { libc::seekdir(dir, *position) };
        if read() != all[from..] {
            text = format!("after seeking to entry {from} of {}: another directory; ", all.len());
        }
    }
    // SAFETY: opened above, and not used any more.
    unsafe { libc::closedir(dir) };
    all.sort_by(|a, b| a.1.cmp(&b.1));
    let names: Vec<String> = all.iter().map(|(_, name, kind)| format!("{name:?}/{kind}")).collect();
    text += &names.join(" ");
    Ok(Outcome::said(text))
}

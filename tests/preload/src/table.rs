//! The rules, as they lie in memory that a test and the programs under it share.
//!
//! The test alone adds and removes rules; the programs only count. A rule counts from the moment on that its `on` is
//! stored, which is last.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Names the file with the table, in the environment of a program.
pub const VARIABLE: &str = "TENSORFS_HOST_CALLS";

/// How many rules there can be at a time.
pub const RULES: usize = 64;

/// The longest path that a rule names.
pub const UNDER: usize = 256;

/// The longest part of a path that a rule names.
pub const PART: usize = 64;

/// Without limit.
pub const ALWAYS: u64 = u64::MAX;

/// What a program asks its host for. Functions of libc that do the same are one call here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Call {
    /// `open`, `openat`, `openat2`.
    Open,
    /// `read`, `pread` and the like.
    Read,
    /// `write`, `pwrite` and the like.
    Write,
    /// `fdatasync`.
    Fdatasync,
    /// `fsync`.
    Fsync,
    /// `sync_file_range`.
    SyncFileRange,
    /// `syncfs`.
    Syncfs,
    /// `fallocate`.
    Fallocate,
    /// `ftruncate`.
    Ftruncate,
    /// `unlink`, `unlinkat`; `rmdir` as well.
    Unlink,
    /// `rename` and the like, by either of the two names.
    Rename,
    /// `link`, `linkat`, by either of the two names.
    Link,
    /// `fstat`, `stat`, `statx`.
    Fstat,
    /// `fcntl` that takes a lease, not one that gives it back.
    Lease,
    /// `ioctl` that registers a file for passthrough, by the path of that file.
    Backing,
    /// `copy_file_range`, `sendfile`, and `ioctl` that shares extents, by the path of the file that is written.
    Copy,
    /// `lseek`.
    Seek,
    /// `mkdir`, `mkdirat`.
    Mkdir,
    /// `opendir`, `fdopendir`.
    List,
    /// `mmap` of a file.
    Map,
    /// `statfs`, `fstatfs`, `statvfs`.
    Statfs,
    /// `futimens`.
    Times,
    /// `fcntl` that takes a lock.
    Lock,
    /// `fchmod`, `fchown`.
    Mode,
    /// A request of the kernel's that was just read from `/dev/fuse`, as a file of the kind's number there.
    Request,
    /// An answer to one, by the number of the kind that it answers.
    Answer,
}

impl Call {
    /// All of them.
    pub const ALL: [Call; 26] = [
        Call::Open,
        Call::Read,
        Call::Write,
        Call::Fdatasync,
        Call::Fsync,
        Call::SyncFileRange,
        Call::Syncfs,
        Call::Fallocate,
        Call::Ftruncate,
        Call::Unlink,
        Call::Rename,
        Call::Link,
        Call::Fstat,
        Call::Lease,
        Call::Backing,
        Call::Copy,
        Call::Seek,
        Call::Mkdir,
        Call::List,
        Call::Map,
        Call::Statfs,
        Call::Times,
        Call::Lock,
        Call::Mode,
        Call::Request,
        Call::Answer,
    ];

    /// As one bit of a set.
    pub fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// One rule. Every field is an atomic that stands alone; a zeroed rule is off.
#[derive(Debug)]
#[repr(C)]
pub struct Rule {
    /// 1 while the rule counts.
    pub on: AtomicU32,
    /// The error that the call gives, or 0.
    pub errno: AtomicU32,
    /// 1 if the call is made first, and what the rule says happens then.
    pub after: AtomicU32,
    /// The process whose calls it is about, or 0.
    pub pid: AtomicU32,
    /// The calls it is about, as a set of bits.
    pub calls: AtomicU64,
    /// How many matching calls pass before it acts.
    pub skip: AtomicU64,
    /// How many more times it acts.
    pub times: AtomicU64,
    /// For how many milliseconds the call is kept waiting; less if the rule is switched off.
    pub delay: AtomicU64,
    /// Matching calls that came.
    pub arrived: AtomicU64,
    /// Those on which the rule acted.
    pub hits: AtomicU64,
    /// Those that are being kept waiting.
    pub waiting: AtomicU64,
    /// The path lies below this one, or is it.
    pub under: Text<UNDER>,
    /// The rest of the path contains this.
    pub part: Text<PART>,
}

impl Rule {
    /// Whether it counts at the moment.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire) == 1
    }
}

/// The table.
#[derive(Debug)]
#[repr(C)]
pub struct Table {
    /// The calls that any rule is about.
    pub wanted: AtomicU64,
    /// So many seconds are added to the clock that nobody sets,
    pub forward: AtomicU64,
    /// as this process sees it.
    pub forward_of: AtomicU32,
    /// The rules.
    pub rules: [Rule; RULES],
}

/// A short text, ended by a zero.
#[derive(Debug)]
#[repr(C)]
pub struct Text<const MOST: usize>([AtomicU8; MOST]);

impl<const MOST: usize> Text<MOST> {
    /// Whether `path` begins with this text, as a path does: the rest of it, if so.
    pub fn rest_of<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let mut buffer = [0; MOST];
        let rest = path.strip_prefix(self.get(&mut buffer))?;
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    }

    /// Whether this text is in `path`.
    pub fn is_in(&self, path: &[u8]) -> bool {
        let mut buffer = [0; MOST];
        let part = self.get(&mut buffer);
        part.is_empty() || path.windows(part.len()).any(|window| window == part)
    }

    fn get<'a>(&self, buffer: &'a mut [u8; MOST]) -> &'a [u8] {
        let len = self.0.iter().position(|byte| byte.load(Ordering::Relaxed) == 0).unwrap_or(MOST);
        for (to, from) in buffer.iter_mut().zip(&self.0[..len]) {
            *to = from.load(Ordering::Relaxed);
        }
        &buffer[..len]
    }

    /// Stores a text, which must fit.
    pub fn set(&self, text: &[u8]) {
        assert!(text.len() < MOST, "{MOST} bytes at the most");
        for (to, from) in self.0.iter().zip(text.iter().chain(std::iter::repeat(&0))) {
            to.store(*from, Ordering::Relaxed);
        }
    }
}

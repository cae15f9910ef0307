//! The operations, and what can come of one.

use super::users::User;
use std::fmt;

/// Descriptors that an actor can have open.
pub const SLOTS: u64 = 5;
/// Mappings that it can have.
pub const MAPS: u64 = 2;

/// A path, relative to the directory in a slot, or to the actor's own if the slot is empty or none is named.
#[derive(Clone, PartialEq, Eq)]
pub struct At {
    /// A slot.
    pub dir: Option<usize>,
    /// The path.
    pub path: String,
}

impl fmt::Debug for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slot) = self.dir {
            write!(f, "fd{slot}:")?;
        }
        // Names at the limit are long.
        match self.path.len() {
            0..=60 => write!(f, "{:?}", self.path),
            len => write!(f, "{:?}...({len} bytes)", &self.path[..20]),
        }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Time {
    Omit,
    Now,
    Fixed(i64, i64),
}

/// A lock to take, without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Lock {
    Shared,
    Exclusive,
    None,
}

/// A system call, or a few that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Open {
        slot: usize,
        at: At,
        flags: i32,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        len: usize,
    },
    Write {
        slot: usize,
        len: usize,
        seed: u64,
    },
    Pread {
        slot: usize,
        offset: i64,
        len: usize,
    },
    Pwrite {
        slot: usize,
        offset: i64,
        len: usize,
        seed: u64,
    },
    Seek {
        slot: usize,
        offset: i64,
        whence: i32,
    },
    /// To data or to a hole: what it says must be true of the bytes.
    SeekHole {
        slot: usize,
        offset: i64,
        whence: i32,
    },
    Ftruncate {
        slot: usize,
        size: i64,
    },
    Truncate {
        at: At,
        size: i64,
    },
    Fallocate {
        slot: usize,
        mode: i32,
        offset: i64,
        len: i64,
    },
    CopyRange {
        from: usize,
        from_offset: i64,
        to: usize,
        to_offset: i64,
        len: usize,
    },
    Fsync {
        slot: usize,
        data: bool,
    },
    Map {
        map: usize,
        slot: usize,
        len: usize,
        write: bool,
    },
    Load {
        map: usize,
        offset: usize,
        len: usize,
    },
    Store {
        map: usize,
        offset: usize,
        len: usize,
        seed: u64,
    },
    Msync {
        map: usize,
    },
    Unmap {
        map: usize,
    },
    Mkdir {
        at: At,
        mode: u32,
    },
    Rmdir {
        at: At,
    },
    Mknod {
        at: At,
        kind: u32,
        mode: u32,
    },
    Link {
        from: At,
        to: At,
        follow: bool,
    },
    Unlink {
        at: At,
    },
    Symlink {
        target: String,
        at: At,
    },
    Readlink {
        at: At,
    },
    Rename {
        from: At,
        to: At,
        flags: u32,
    },
    Chmod {
        at: At,
        mode: u32,
    },
    Fchmod {
        slot: usize,
        mode: u32,
    },
    Chown {
        at: At,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    },
    Fchown {
        slot: usize,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Utimens {
        at: At,
        atime: Time,
        mtime: Time,
        follow: bool,
    },
    Futimens {
        slot: usize,
        atime: Time,
        mtime: Time,
    },
    SetXattr {
        at: At,
        name: String,
        value: Vec<u8>,
        flags: i32,
        follow: bool,
    },
    GetXattr {
        at: At,
        name: String,
        room: usize,
        follow: bool,
    },
    ListXattr {
        at: At,
        follow: bool,
    },
    RemoveXattr {
        at: At,
        name: String,
        follow: bool,
    },
    FsetXattr {
        slot: usize,
        name: String,
        value: Vec<u8>,
    },
    FgetXattr {
        slot: usize,
        name: String,
    },
    Stat {
        at: At,
        follow: bool,
    },
    Fstat {
        slot: usize,
    },
    Access {
        at: At,
        mask: i32,
    },
    Statfs {
        at: At,
    },
    /// Reads a directory, then again from an entry in the middle.
    List {
        at: At,
        seek: u64,
    },
    Flock {
        slot: usize,
        lock: Lock,
    },
    /// A lock of the open file description (`F_OFD_SETLK`).
    RangeLock {
        slot: usize,
        lock: Lock,
        start: i64,
        len: i64,
    },
    Umask {
        mask: u32,
    },
}

impl Op {
    /// The slot that it works on, if that is one which must be in use.
    pub fn slot(&self) -> Option<usize> {
        match self {
            Op::Close { slot }
            | Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::Pread { slot, .. }
            | Op::Pwrite { slot, .. }
            | Op::Seek { slot, .. }
            | Op::SeekHole { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Fallocate { slot, .. }
            | Op::Fsync { slot, .. }
            | Op::Map { slot, .. }
            | Op::Fchmod { slot, .. }
            | Op::Fchown { slot, .. }
            | Op::Futimens { slot, .. }
            | Op::FsetXattr { slot, .. }
            | Op::FgetXattr { slot, .. }
            | Op::Fstat { slot }
            | Op::Flock { slot, .. }
            | Op::RangeLock { slot, .. } => Some(*slot),
            _ => None,
        }
    }
}

/// An operation, and how it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// By whom.
    pub user: User,
    /// Also compare which times it moves. Takes some milliseconds.
    pub watched: bool,
    /// What.
    pub op: Op,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watched = if self.watched { " (times watched)" } else { "" };
        write!(f, "{:?}: {:?}{watched}", self.user, self.op)
    }
}

/// What came of an operation.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There was nothing to do it with, such as no open descriptor.
    Skipped,
    /// It failed.
    Failed(nix::errno::Errno),
    /// It succeeded, and this is what it said.
    Done(String, Vec<u8>),
}

impl Outcome {
    /// Success, and nothing to say.
    pub fn done() -> Outcome {
        Outcome::Done(String::new(), Vec::new())
    }

    /// Success, and some text.
    pub fn said(text: impl fmt::Display) -> Outcome {
        Outcome::Done(text.to_string(), Vec::new())
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Skipped => f.write_str("skipped"),
            Outcome::Failed(errno) => write!(f, "{errno:?}"),
            Outcome::Done(text, bytes) => {
                f.write_str("ok")?;
                if !text.is_empty() {
                    write!(f, " {text}")?;
                }
                match bytes.len() {
                    0 => Ok(()),
                    1..=32 => write!(f, " {bytes:02x?}"),
                    len => write!(f, " {:02x?}...({len} bytes)", &bytes[..32]),
                }
            }
        }
    }
}

/// Stands for a value that is not to be compared.
pub const ANY: &str = "~";

/// Whether two texts say the same, but for what is not to be compared.
pub fn agree(ours: &str, theirs: &str) -> bool {
    let any = |word: &str| word.trim_end_matches(',') == ANY;
    let (ours, theirs) = (ours.split(' '), theirs.split(' '));
    ours.clone().count() == theirs.clone().count() && ours.zip(theirs).all(|(a, b)| a == b || any(a) || any(b))
}

/// Says how two outcomes differ.
pub fn difference((name, ours): (&str, &Outcome), (other, theirs): (&str, &Outcome)) -> Option<String> {
    let same = match (ours, theirs) {
        (Outcome::Done(text, bytes), Outcome::Done(other, others)) => bytes == others && agree(text, other),
        _ => ours == theirs,
    };
    if same {
        return None;
    }
    let mut text = format!("{name}: {ours:?}\n{other}: {theirs:?}");
    if let (Outcome::Done(_, ours), Outcome::Done(_, theirs)) = (ours, theirs)
        && ours != theirs
    {
        let at = ours.iter().zip(theirs).position(|(a, b)| a != b).unwrap_or(ours.len().min(theirs.len()));
        text += &format!(
            "\n{} bytes and {}; the first difference at {at}: {:02x?} and {:02x?}",
            ours.len(),
            theirs.len(),
            &ours[at..(at + 16).min(ours.len())],
            &theirs[at..(at + 16).min(theirs.len())]
        );
    }
    Some(text)
}

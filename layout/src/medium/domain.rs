//! The persistence domain: how what is stored in a pool becomes durable, and the one seam through which it does.
//!
//! [`Medium`] is that seam. *Store* puts bytes where a killed server's successor finds them; *persist* makes everything
//! stored before it survive a power loss. Tests put simulated media behind it. A failed persist is final: whoever
//! gets one must not try again and believe the second answer (rule 9 of docs/FORMAT.md).

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use crate::medium::anew::write_anew;

/// `RAMFS_MAGIC` of linux/magic.h.
const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

/// How stores to a pool become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// Mapped persistent memory: write-back of cache lines, then a fence.
    Dax,
    /// A file behind the page cache: `fdatasync`.
    Cached,
    /// Memory (tmpfs): nothing survives a power loss.
    Volatile,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dax => "dax",
            Self::Cached => "cached",
            Self::Volatile => "volatile",
        })
    }
}

/// What a log and its segments are kept on.
pub trait Medium: Send + Sync + fmt::Debug {
    /// How stores become durable here.
    fn domain(&self) -> Domain;
    /// Bytes of the log file.
    fn log_len(&self) -> io::Result<u64>;
    /// Fills `bytes` from the log file; `UnexpectedEof` behind its end.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// True if so much of the log file is holes that it is worth asking for them, and the host can be trusted with what
    /// it says of them now.
    fn is_sparse(&self) -> bool {
        false
    }
    /// The first part of a range of the log file that may hold something else than zeroes; nothing if all of it is a
    /// hole, `UnexpectedEof` if that is behind the file's end. Where a medium knows of no holes, that is all of it.
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        Ok(Some(range).filter(|range| !range.is_empty()))
    }
    /// Stores bytes in the log file, within its length.
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes all that was stored in the log file durable.
    fn persist(&self) -> io::Result<()>;
    /// Makes the log file `len` bytes long: allocated, zeroed from its old length on, and durable.
    fn grow(&self, from: u64, len: u64) -> io::Result<()>;
    /// Makes the log file shorter. Need not be durable.
    fn shrink(&self, len: u64) -> io::Result<()>;
    /// Makes a segment's bytes and size durable.
    fn sync_segment(&self, segment: BorrowedFd<'_>) -> io::Result<()>;
    /// Has the host begin to write a segment's bytes, and finish that if it is to `wait`. No sync, but what fails is
    /// told here, and the sync may then not hear of it.
    fn write_out(&self, segment: BorrowedFd<'_>, wait: bool) -> io::Result<()>;
    /// Writes the first bytes of a segment where the host has failed to: its sync counts once more.
    fn write_anew(&self, segment: &File, bytes: &[u8]) -> io::Result<()> {
        write_anew(segment, bytes)
    }
    /// Makes a directory's entries durable.
    fn sync_directory(&self, directory: BorrowedFd<'_>) -> io::Result<()>;
    /// Makes everything on the host filesystem that `directory` is on durable.
    fn sync_all(&self, directory: BorrowedFd<'_>) -> io::Result<()>;
}

/// True for a filesystem in memory: nothing on it survives the end of the machine's boot.
pub(crate) fn is_volatile(fs: nix::sys::statfs::FsType) -> bool {
    fs == nix::sys::statfs::TMPFS_MAGIC || fs == nix::sys::statfs::FsType(RAMFS_MAGIC as _)
}

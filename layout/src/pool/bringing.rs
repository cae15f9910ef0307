//! How the bytes of files that are away come: a process of its own, which knows the remote, asks the server of the
//! mount which file is to come next, and is told a new segment. It writes the bytes there and says so; the server
//! compares them with the checksums that the file was sealed with before they are the file's.
//!
//! Whoever reads a file that is away waits for a portion of it alone. That is asked for in the same way, and what has
//! come of it is told part by part, as each has the checksum that the remote has of it; then it is given to who waits.
//!
//! It asks by an ioctl(2) on any directory of the mount, as root or as the user whom the server runs as. The encoding
//! is postcard's; the number of the ioctl stands for its version. What was added later stands behind the rest, so that
//! one who knows less can ask a server that knows more.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::file::{LOG, open_log, open_pool};
use crate::log::superblock::{INCOMPAT_REMOTE, Superblock};
use crate::medium;
use crate::medium::dir::Dir;
use crate::pool::asking::ask;
use crate::segment::home::{SEGMENTS, path_within};

/// Bytes of a request or an answer, at most.
pub const SIZE: usize = 1024;

/// The ioctl(2) by which files are brought.
pub const BRING: u32 = nix::request_code_readwrite!(0xa7, 5, SIZE) as u32;

/// What is asked, or told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bring {
    /// Which file is to come next.
    Next {
        /// Of the pool that has this uuid.
        pool: String,
        /// Only one that somebody waits for.
        waited_for: bool,
    },
    /// A file is on its way.
    Coming {
        /// The file.
        ino: Ino,
        /// What its bytes are written to.
        segment: SegmentId,
        /// So many have come since that was said last.
        bytes: u64,
    },
    /// All of them have, and whoever wrote them has closed it.
    Come {
        /// The file.
        ino: Ino,
        /// What they were written to.
        segment: SegmentId,
    },
    /// They do not come.
    Failed {
        /// The file.
        ino: Ino,
        /// What they were to be written to.
        segment: SegmentId,
        /// Why, in a line.
        why: String,
        /// It is of no use to try again.
        for_good: bool,
    },
    /// As [`Bring::Next`], by one who fetches portions of files, too ([`BringReply::Portion`]).
    Portion {
        /// Of the pool that has this uuid.
        pool: String,
        /// Only of one that somebody waits for.
        waited_for: bool,
    },
    /// Instead of a portion that was asked for, one comes that it is within: parts come as a whole.
    Takes {
        /// The file.
        ino: Ino,
        /// What its bytes are written to.
        segment: SegmentId,
        /// Where the portion that was asked for begins, and its bytes.
        asked: (u64, u64),
        /// And those of the one that comes.
        takes: (u64, u64),
    },
    /// These bytes of a file are where they belong: they have been compared with the checksum of their part.
    Got {
        /// The file.
        ino: Ino,
        /// What they were written to.
        segment: SegmentId,
        /// Where they begin.
        offset: u64,
        /// So many.
        len: u64,
    },
    /// These do not come.
    Lacks {
        /// The file.
        ino: Ino,
        /// What they were to be written to.
        segment: SegmentId,
        /// Where they begin, and how many.
        bytes: (u64, u64),
        /// Why, in a line.
        why: String,
        /// It is of no use to try again.
        for_good: bool,
    },
    /// What was to be fetched of a portion was, and whoever wrote it has closed the segment.
    Over {
        /// The file.
        ino: Ino,
        /// What it was written to.
        segment: SegmentId,
        /// Where the portion that was asked for begins, and its bytes.
        asked: (u64, u64),
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BringReply {
    /// This one is to come.
    File {
        /// The file.
        ino: Ino,
        /// Its number in the remote.
        number: u64,
        /// Its bytes.
        size: u64,
        /// Where to write them.
        segment: SegmentId,
    },
    /// None now. So many are away.
    Nothing {
        /// These.
        away: u64,
    },
    /// It is noted.
    Noted,
    /// Nothing is known of that any more: another server serves, or it took too long.
    Unknown,
    /// A portion of this one is to come. What is in the segment there already, whoever is told this has written, or one
    /// before him.
    Portion {
        /// The file.
        ino: Ino,
        /// Its number in the remote.
        number: u64,
        /// Its bytes.
        size: u64,
        /// Where to write them.
        segment: SegmentId,
        /// Where the portion begins.
        offset: u64,
        /// Its bytes.
        len: u64,
    },
}

/// Asks the server of the mount that a directory is in.
///
/// # Errors
/// What it says; `ENOTTY` of one that does not know this, and where there is none.
pub fn bring(mount: &File, request: &Bring) -> io::Result<BringReply> {
    ask(mount, BRING, request)
}

impl Bring {
    /// A request, as a server gets it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

impl BringReply {
    /// What a server answers.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }
}

/// True of a pool in which files are away, or were: whoever mounts it has them fetched.
///
/// # Errors
/// It cannot be read.
pub fn has_remote(pool: &Path) -> Result<bool> {
    let log = open_log(&open_pool(pool)?, false)?;
    let log = medium::open_to_read(log).map_err(|error| Error::in_pool(pool, LOG, "open", error))?;
    Ok(Superblock::read(pool, &*log)?.0.features.incompat & INCOMPAT_REMOTE != 0)
}

/// The segments of a pool, for whoever writes the bytes of files there that come. Its directory is opened once,
/// whatever has its path later.
#[derive(Debug)]
pub struct ToBring {
    segments: Dir,
}

impl ToBring {
    /// Those of a pool.
    ///
    /// # Errors
    /// The host's.
    pub fn of(pool: &Path) -> Result<Self> {
        let segments = open_pool(pool)?.below(SEGMENTS);
        segments.map(|segments| Self { segments }).map_err(|error| Error::in_pool(pool, SEGMENTS, "open", error))
    }

    /// Whose the pool is.
    pub fn owner(&self) -> u32 {
        self.segments.owner().uid()
    }

    /// Opens the segment that the bytes of a file are to be written to.
    ///
    /// # Errors
    /// The host's.
    pub fn open(&self, segment: SegmentId) -> io::Result<OwnedFd> {
        self.segments.open_file(path_within(segment).as_str(), libc::O_RDWR)
    }

    /// Opens a segment to which bytes were written, to read them: nobody takes who does for one who may write it.
    ///
    /// # Errors
    /// The host's.
    pub fn open_to_read(&self, segment: SegmentId) -> io::Result<OwnedFd> {
        self.segments.open_file(path_within(segment).as_str(), libc::O_RDONLY)
    }
}

//! What a segment looks like on the host, and what that proves of it.

use std::sync::Arc;

use tensorfs_layout::segment::Gone;
use tensorfs_layout::{Ino, SegmentId, Timestamp};

use crate::clock;
use crate::error::{Fault, Host, Result};
use crate::reader::Mark;
use crate::store::host::{self, HostStat};

use super::Files;
use super::locked::Locked;
use super::state::Sight;

impl Files {
    /// Asks the host about the segment of a file that is open or written.
    pub(super) fn look(&self, sight: &Sight) -> Result<HostStat> {
        match &sight.fd {
            Some(fd) => host::stat(fd).host("looking at a segment"),
            None => self.store().segments().stat(sight.segment).host("looking at a segment"),
        }
    }
}

impl Locked<'_> {
    /// Asks the host about the segment of a file in use.
    pub(super) fn look(&self) -> Result<HostStat> {
        let serving = self.serving().ok_or(Fault::new(libc::ENOENT))?;
        if let Some(writing) = &serving.writing {
            return host::stat(&writing.fd).host("looking at a segment");
        }
        self.files.store().segments().stat(serving.segment).host("looking at a segment")
    }
}

/// A segment that was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Synced {
    pub segment: SegmentId,
    /// What it was: all that it held then is what this is about.
    pub before: HostStat,
}

impl Synced {
    /// True if the segment is as it was: what is recorded of it now is durable.
    pub fn covers(&self, segment: SegmentId, now: &HostStat) -> bool {
        self.segment == segment && self.before.size == now.size && self.before.ctime == now.ctime
    }
}

/// How bytes were made durable before they are recorded.
#[derive(Clone, Debug)]
pub(super) enum Made {
    /// Their segment was synced.
    Synced(Synced),
    /// They are going to be stored with the record.
    Value(Synced, Arc<[u8]>),
}

impl Made {
    /// This, if it is true of all bytes that the segment holds now.
    pub fn if_covers(self, segment: SegmentId, now: &HostStat) -> Option<Self> {
        let (Self::Synced(before) | Self::Value(before, _)) = &self;
        before.covers(segment, now).then_some(self)
    }

    /// The bytes that go into the log.
    pub fn value(&self) -> Option<&Arc<[u8]>> {
        match self {
            Self::Value(_, bytes) => Some(bytes),
            Self::Synced(_) => None,
        }
    }
}

/// What is seen of a file from outside, which differs if its bytes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub segment: SegmentId,
    pub size: u64,
    pub mtime: Timestamp,
    ctime: Timestamp,
}

impl Version {
    /// True if the bytes are the same, as far as size and modification time tell.
    pub fn has_bytes_of(&self, other: &Version) -> bool {
        (self.segment, self.size, self.mtime) == (other.segment, other.size, other.mtime)
    }

    /// True if the bytes of that one, which were away, have come to this one's segment.
    pub fn has_come_of(&self, away: &Version) -> bool {
        self.segment != away.segment && (self.size, self.mtime) == (away.size, away.mtime)
    }

    /// What stands for it among readers.
    pub fn mark(&self) -> Mark {
        (self.segment.0, self.size, self.ctime.sec, self.ctime.nsec)
    }

    /// True if a change after `now` would show.
    pub fn is_settled(&self, now: Timestamp) -> bool {
        clock::is_past_tick(self.ctime, now)
    }
}

impl Files {
    /// True of a version whose bytes are away, or were.
    pub fn is_of_remote(&self, version: &Version) -> bool {
        matches!(self.store().segments().gone(version.segment), Some(Gone::Away { .. }))
    }

    /// What a regular file looks like now, if it has a segment.
    pub fn version(&self, ino: Ino) -> Result<Version> {
        let (stat, segment) = self.look_at(ino)?;
        let attributes = &stat.attributes;
        let segment = segment.or(attributes.segment).filter(|_| attributes.mode & libc::S_IFMT == libc::S_IFREG);
        let segment = segment.ok_or(Fault::new(libc::ENOENT))?;
        Ok(Version { segment, size: stat.size, mtime: attributes.mtime, ctime: attributes.ctime })
    }
}

//! What the host says about a segment.

use nix::sys::stat::FileStat;

use crate::time::Timestamp;

/// What the host says about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStat {
    /// Bytes.
    pub size: u64,
    /// Bytes allocated on the host.
    pub allocated: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
}

impl From<FileStat> for SegmentStat {
    fn from(stat: FileStat) -> Self {
        Self {
            size: stat.st_size as u64,
            allocated: stat.st_blocks as u64 * 512,
            atime: Timestamp::new(stat.st_atime, stat.st_atime_nsec as u32),
            mtime: Timestamp::new(stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: Timestamp::new(stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }
}

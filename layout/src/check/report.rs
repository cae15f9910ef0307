//! What a check found.

use serde::{Deserialize, Serialize};

use crate::ids::{Ino, SegmentId};
use crate::log::tier::PM;
use crate::segment::home::path_within;
use crate::time::Timestamp;

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// One of the two superblocks.
    Superblock,
    /// One of the two horizon marks.
    HorizonMark,
    /// Transactions that should be in the log.
    Transactions,
    /// Bytes in the log that are neither a frame nor zeroes.
    LogBlock,
    /// The tree that the records describe.
    Tree,
    /// A regular file and its segment.
    File,
    /// A file in the segments directory.
    Segment,
    /// An entry of the quarantine, or its note.
    Quarantine,
    /// A tier of the pool.
    Tier,
    /// A file of the pool itself, such as its lock.
    Part,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about.
    pub subject: Subject,
    /// The file or directory on the mount, if one is concerned; bytes that are not text are replaced.
    pub path: Option<String>,
    /// The bytes of the path, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// Its object.
    pub ino: Option<Ino>,
    /// The host file, relative to the pool.
    pub host_file: String,
    /// Where in the host file.
    pub offset: Option<u64>,
    /// The tensors that are hurt, as far as that is known: `NAME@STEP`, the first few.
    pub tensors: Vec<String>,
    /// What is wrong.
    pub what: String,
    /// What that means for whoever owns the data.
    pub meaning: String,
}

/// A scrub that came to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastScrub {
    /// When it ended.
    pub time: Timestamp,
    /// Bytes whose checksums were verified.
    pub verified_bytes: u64,
    /// Bytes that had none.
    pub unsealed_bytes: u64,
    /// Files that were written again and again meanwhile, and so not verified.
    pub busy_files: u64,
    /// Damaged places that it found.
    pub findings: u64,
}

impl LastScrub {
    /// A scrub that has ended, and what it counted.
    pub fn new(time: Timestamp, report: &Report, busy_files: u64, findings: u64) -> Self {
        let (verified_bytes, unsealed_bytes) = (report.verified_bytes, report.unsealed_bytes);
        Self { time, verified_bytes, unsealed_bytes, busy_files, findings }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What was found; nothing if the pool is whole.
    pub findings: Vec<Finding>,
    /// Frames whose checksums were verified.
    pub frames: u64,
    /// Live records.
    pub records: u64,
    /// Objects reached from the root.
    pub objects: u64,
    /// Segments looked at.
    pub segments: u64,
    /// Bytes of files whose checksums were verified.
    pub verified_bytes: u64,
    /// Bytes of files that have no checksum, because they are not sealed.
    pub unsealed_bytes: u64,
    /// True if the pool had not been closed: the next mount recovers it.
    pub unclean: bool,
    /// The last scrub before, if that is known.
    #[serde(default)]
    pub last_scrub: Option<LastScrub>,
}

impl Report {
    /// With what is known from before, and was not found again.
    #[must_use]
    pub fn with_known(mut self, known: &[Finding]) -> Self {
        let is_new = |known: &Finding| !self.findings.iter().any(|one| one.ino == known.ino && one.what == known.what);
        let new: Vec<Finding> = known.iter().filter(|known| is_new(known)).cloned().collect();
        self.findings.extend(new);
        self
    }
}

/// How far a check has come: what it does now, and how much of it is done.
pub type Progress<'a> = &'a (dyn Fn(&'static str, u64, u64) + Sync);

/// What is said of a file that tensorfs did not put where it is.
pub(crate) const NOT_A_SEGMENT: &str = "is no segment";
/// What a check says of something in the pool's directory.
pub(crate) const NOT_OURS: &str = "is none of the pool's";
/// What a check says of an entry without a note.
pub(crate) const NOTELESS: &str = "has no note that can be read";

/// Where a segment is in its pool, or in a tier of it.
pub fn segment_path(id: SegmentId) -> String {
    let path = format!("segments/{}", path_within(id));
    if id.tier() == PM { path } else { format!("tier {}: {path}", id.tier()) }
}

//! Damage that was found: which runs of which files no longer have the bytes that were sealed. It is kept in memory
//! and, from one mount to the next, in the pool, and forgotten when the file is written again. It changes nothing about
//! the file: what can be read is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use parking_lot::{Mutex, MutexGuard};
use tensorfs_layout::check::{DamagedFile, Finding, LastScrub, Scrubbed, Unfinished};
use tensorfs_layout::segment::{Changes, QuarantineEntry};
use tensorfs_layout::{Ino, SegmentId, Timestamp};

/// Findings that are kept; what is more is in the log.
const MOST: usize = 1000;
/// A segment, and how often what is recorded of it has changed.
pub(super) type Version = (SegmentId, u64);

/// How far a scrub has come.
pub(crate) enum Scrub {
    /// To its end.
    Ended(LastScrub),
    /// So far.
    Stopped(Unfinished),
    /// None has come any further.
    Unchanged,
}

/// What has been found.
#[derive(Default)]
pub(super) struct Damage {
    hurt: Mutex<BTreeMap<Ino, Hurt>>,
    /// What the pool keeps of it.
    kept: Mutex<Scrubbed>,
    shown: Mutex<Shown>,
    /// Files that were not sealed as these bytes of what was sealed before are others now.
    unlike: Mutex<HashMap<Ino, (SegmentId, Vec<BadRun>)>>,
    /// Files that were lost with their tier, and wanted since.
    wanted: Mutex<BTreeSet<Ino>>,
}

/// What is shown again and again, and takes long to find out.
#[derive(Default)]
pub(super) struct Shown {
    /// The paths of files that were shown. They may have been moved since.
    pub paths: HashMap<Ino, Vec<u8>>,
    /// What is in quarantine, when its directories were changed last, and when they were looked at.
    pub quarantine: Option<(Changes, Timestamp, Vec<QuarantineEntry>)>,
}

struct Hurt {
    version: Version,
    findings: Vec<Finding>,
}

/// A run that does not have the bytes that were sealed.
#[derive(Clone, Debug)]
pub(crate) struct BadRun {
    pub offset: u64,
    pub len: u64,
    pub what: String,
    /// Tensors that are in it now, of which its seal says nothing.
    pub tensors: Vec<String>,
}

impl BadRun {
    /// Of its tensors those are hurt that its seal speaks of.
    pub fn new(offset: u64, len: u64, what: String) -> Self {
        Self { offset, len, what, tensors: Vec::new() }
    }
}

impl Damage {
    /// What was found before this mount.
    pub fn remembered(kept: Scrubbed) -> Self {
        let hurt = kept
            .damaged()
            .iter()
            .map(|file| (file.ino(), Hurt { version: file.version(), findings: file.findings().to_vec() }));
        Self { hurt: Mutex::new(hurt.collect()), kept: Mutex::new(kept), ..Self::default() }
    }

    /// The last scrub that came to its end.
    pub fn last_scrub(&self) -> Option<LastScrub> {
        self.kept.lock().last().cloned()
    }

    /// The last scrub, if it was interrupted.
    pub fn unfinished(&self) -> Option<Unfinished> {
        self.kept.lock().unfinished().cloned()
    }

    /// What is known is handed to `write`, with how far a scrub has come, unless it is what was kept last.
    pub fn keep_all(&self, scrub: Scrub, write: impl FnOnce(&Scrubbed) -> io::Result<()>) -> io::Result<()> {
        let mut kept = self.kept.lock();
        let hurt = self.hurt.lock();
        let damaged = hurt.iter().map(|(ino, hurt)| DamagedFile::new(*ino, hurt.version, hurt.findings.clone()));
        let (last, unfinished) = match scrub {
            Scrub::Ended(last) => (Some(last), None),
            Scrub::Stopped(unfinished) => (kept.last().cloned(), Some(unfinished)),
            Scrub::Unchanged => (kept.last().cloned(), kept.unfinished().cloned()),
        };
        let now = Scrubbed::new(last, damaged.collect(), unfinished);
        drop(hurt);
        if now != *kept {
            write(&now)?;
            *kept = now;
        }
        Ok(())
    }

    /// What was found out to be shown.
    pub fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock()
    }

    /// A file with this segment was not sealed as bytes of it are not what was sealed before.
    pub fn set_unlike(&self, ino: Ino, segment: SegmentId, runs: Vec<BadRun>) {
        let mut unlike = self.unlike.lock();
        if unlike.len() >= MOST {
            // Others are found out again.
            unlike.clear();
        }
        unlike.insert(ino, (segment, runs.into_iter().take(MOST).collect()));
    }

    /// Why a file with this segment was not sealed.
    pub fn unlike(&self, ino: Ino, segment: SegmentId) -> Vec<BadRun> {
        let unlike = self.unlike.lock();
        let found = unlike.get(&ino).filter(|(of, _)| *of == segment);
        found.map_or(Vec::new(), |(_, runs)| runs.clone())
    }

    /// Somebody wants a file that was lost with its tier.
    pub fn want(&self, ino: Ino) {
        let mut wanted = self.wanted.lock();
        if wanted.len() < MOST {
            wanted.insert(ino);
        }
    }

    /// Those of these files that are lost yet, in order.
    pub fn wanted(&self, is_lost: impl Fn(Ino) -> bool) -> Vec<Ino> {
        let wanted: Vec<Ino> = self.wanted.lock().iter().copied().collect();
        let (lost, others): (Vec<Ino>, Vec<Ino>) = wanted.into_iter().partition(|ino| is_lost(*ino));
        self.wanted.lock().retain(|ino| others.binary_search(ino).is_err());
        lost
    }

    /// Nothing is known to be wrong with a file.
    pub fn forget(&self, ino: Ino) {
        self.hurt.lock().remove(&ino);
    }

    /// Keeps what was found in a version of a file.
    pub fn keep(&self, ino: Ino, version: Version, findings: &[Finding]) {
        let mut known = self.hurt.lock();
        if known.len() < MOST || known.contains_key(&ino) {
            known.insert(ino, Hurt { version, findings: findings.iter().take(MOST).cloned().collect() });
        }
    }

    /// The version of a file that was found damaged.
    pub fn version(&self, ino: Ino) -> Option<Version> {
        self.hurt.lock().get(&ino).map(|hurt| hurt.version)
    }

    /// The version of each file that was found damaged.
    pub fn versions(&self) -> Vec<(Ino, Version)> {
        self.hurt.lock().iter().map(|(ino, hurt)| (*ino, hurt.version)).collect()
    }

    /// Everything that was found.
    pub fn all(&self) -> Vec<Finding> {
        self.hurt.lock().values().flat_map(|hurt| hurt.findings.clone()).take(MOST).collect()
    }
}

//! Which segments may have bytes, or a name, that are not durable.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;

use crate::ids::{Ino, SegmentId};

/// What is not known to be durable, and what a sync of it said.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    pub tracked: Mutex<HashMap<SegmentId, Tracked>>,
    /// The directories of these segments may not have been synced since they were created, by tier.
    pub grown: Mutex<BTreeMap<u8, Grown>>,
    /// Segments with a failed sync, and whether the file that has it is marked as damaged.
    pub failed: Mutex<HashMap<SegmentId, bool>>,
    /// Held while a segment is synced: one at a time, and until a failure is kept in mind.
    pub turns: Mutex<HashMap<SegmentId, Arc<Mutex<()>>>>,
    /// A sync of the whole host failed once. It reports a failure only once, and that may have been the failure of a
    /// segment that was not due: from then on each segment is asked itself.
    pub suspicious: AtomicBool,
    /// How often a segment became due without a record that says so.
    pub touches: AtomicU64,
}

impl Unsynced {
    /// The segment is about to be removed.
    pub fn forget(&self, id: SegmentId) {
        self.tracked.lock().remove(&id);
        self.failed.lock().remove(&id);
    }

    /// The descriptor that is held to sync the segment.
    pub fn descriptor(&self, id: SegmentId) -> Option<Arc<OwnedFd>> {
        self.tracked.lock().get(&id).map(|entry| entry.fd.clone())
    }
}

/// A segment that may have bytes that are not durable.
#[derive(Debug)]
pub(super) struct Tracked {
    pub fd: Arc<OwnedFd>,
    pub writers: u32,
    /// The next commit must sync it.
    pub due: bool,
    /// May have been written since the last sync.
    pub dirty: bool,
    /// Counts how often it became due.
    pub calls: u64,
    /// The file that has it, once a record says so.
    pub ino: Option<Ino>,
    /// Some record speaks of bytes in it.
    pub mentioned: bool,
    /// The log holds the file's bytes: the number of the value's record, while the segment may not hold them durably.
    pub value: Option<u64>,
    /// Nothing was recorded since the value, so that no commit need sync the segment.
    pub covered: bool,
}

impl Tracked {
    pub fn new(fd: Arc<OwnedFd>) -> Self {
        Self {
            fd,
            writers: 0,
            due: false,
            dirty: false,
            calls: 0,
            ino: None,
            mentioned: false,
            value: None,
            covered: false,
        }
    }

    pub fn call(&mut self) {
        self.due = true;
        self.dirty = true;
        self.covered = false;
        self.calls += 1;
    }
}

#[derive(Debug, Default)]
pub(super) struct Grown {
    /// The directory of the directories.
    pub top: bool,
    pub segments: HashSet<SegmentId>,
    pub shards: HashSet<u8>,
}

//! The segments that something may still write: open for writing, or mapped so since.
//!
//! Whoever counts space asks their sizes of the host, as nothing is recorded yet of what the kernel writes there.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::{Ino, SegmentId};

use super::host::HostStat;
use super::limit::BLOCK;

/// A segment that something may still write.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub ino: Ino,
    pub segment: SegmentId,
    /// The descriptor that will sync it.
    pub fd: Arc<OwnedFd>,
    /// It can be written through a mapping, which fills holes without asking.
    mapped: bool,
    /// A handle writes it without asking.
    unasked: bool,
}

impl Written {
    /// A segment that nothing has opened yet.
    pub fn new(ino: Ino, segment: SegmentId, fd: Arc<OwnedFd>) -> Self {
        Self { ino, segment, fd, mapped: false, unasked: false }
    }

    /// True if it can be written through a mapping, and there is room for what that fills.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// What it takes of the host, or may take without asking.
    pub fn extent(&self, host: &HostStat) -> u64 {
        let size = if self.mapped { host.size.next_multiple_of(BLOCK) } else { 0 };
        host.allocated.max(size)
    }
}

/// All of them, by their file.
#[derive(Default)]
pub(crate) struct Writers(Mutex<HashMap<Ino, Written>>);

impl Writers {
    /// Something may write the file's segment from now on.
    pub fn insert(&self, written: Written) {
        self.0.lock().insert(written.ino, written);
    }

    /// Nothing can write the file any more.
    pub fn remove(&self, ino: Ino) {
        let gone = self.0.lock().remove(&ino);
        // The descriptor is closed without the lock.
        drop(gone);
    }

    /// True if something may write the file.
    pub fn has(&self, ino: Ino) -> bool {
        self.0.lock().contains_key(&ino)
    }

    /// The segment of a file that something may write: the file's own, or the one that is to replace it.
    pub fn segment(&self, ino: Ino) -> Option<SegmentId> {
        self.0.lock().get(&ino).map(|written| written.segment)
    }

    /// A segment that something may write.
    pub fn get(&self, ino: Ino) -> Option<Written> {
        self.0.lock().get(&ino).cloned()
    }

    /// The file can be mapped for writing from now on.
    pub fn map(&self, ino: Ino) {
        if let Some(written) = self.0.lock().get_mut(&ino) {
            written.mapped = true;
        }
    }

    /// The segment is written without asking from now on.
    pub fn let_write_unasked(&self, ino: Ino) {
        if let Some(written) = self.0.lock().get_mut(&ino) {
            written.unasked = true;
        }
    }

    /// How many are written without asking.
    pub fn unasked(&self) -> usize {
        self.0.lock().values().filter(|written| written.unasked).count()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Their files.
    pub fn inos(&self) -> Vec<Ino> {
        self.0.lock().keys().copied().collect()
    }

    /// All of them, as they are now.
    pub fn all(&self) -> Vec<Written> {
        self.0.lock().values().cloned().collect()
    }
}

//! The segments that something may still write: open for writing, or mapped so since.
//!
//! Whoever counts space asks their sizes of the host, as nothing is recorded yet of what the kernel writes there.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::{Ino, SegmentId};

/// A segment that something may still write.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub ino: Ino,
    pub segment: SegmentId,
    /// The descriptor that will sync it.
    pub fd: Arc<OwnedFd>,
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

//! What comes of learning many files, also of those with which the host was late.

use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::error::{Fault, Result};

use super::walks::Walks;

/// Who learns files in the background, and what came of that since it was asked last.
#[derive(Default)]
pub(super) struct Learning {
    walks: Arc<Walks<Ino>>,
    since: Mutex<Outcome>,
}

impl Learning {
    /// Those who go through the files.
    pub fn walks(&self) -> &Arc<Walks<Ino>> {
        &self.walks
    }

    /// One of them has been learned.
    pub fn note(&self, outcome: Outcome) {
        let mut since = self.since.lock();
        since.changed |= outcome.changed;
        since.fault = since.fault.take().or(outcome.fault);
    }

    /// What has come of it since the last time.
    pub fn take(&self) -> Outcome {
        std::mem::take(&mut *self.since.lock())
    }
}

/// What came of learning files.
#[derive(Default)]
pub(super) struct Outcome {
    /// Some of them may differ from what was last synced.
    changed: bool,
    /// The first that could not be recorded.
    fault: Option<Fault>,
}

impl Outcome {
    /// A file may differ.
    pub fn changed(&mut self, changed: bool) {
        self.changed |= changed;
    }

    /// A file could not be recorded.
    pub fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Whether any may differ, if all could be recorded.
    pub fn into_result(self) -> Result<bool> {
        self.fault.map_or(Ok(self.changed), Err)
    }
}

//! Which files could not be synced, until somebody has heard of it.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::ids::Ino;

/// Files that were marked as damaged because a sync of theirs failed.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<Marked>);

#[derive(Debug, Default)]
struct Marked {
    /// How often that happened since the pool was opened.
    count: u64,
    /// Those of which nobody has heard. A file that is no more is none of them.
    untold: HashSet<Ino>,
}

impl Failures {
    pub fn add(&self, ino: Ino) {
        let mut marked = self.0.lock();
        marked.count += 1;
        marked.untold.insert(ino);
    }

    /// One that an earlier server had marked.
    pub fn add_untold(&self, ino: Ino) {
        self.0.lock().untold.insert(ino);
    }

    pub fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// Somebody has heard of this one.
    pub fn told(&self, ino: Ino) {
        self.0.lock().untold.remove(&ino);
    }

    /// Somebody hears of all that are left: how many there were.
    pub fn tell_all(&self) -> usize {
        std::mem::take(&mut self.0.lock().untold).len()
    }
}

//! What the kernel may still ask about objects that are gone.
//!
//! A process can stay in a removed directory, or hold a removed FIFO or an `O_PATH` descriptor. The pool has dropped
//! the object then; its last attributes stay here until the kernel forgets the inode.

use std::collections::HashMap;

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use super::stat::Stat;

/// The kernel forgets every inode sooner or later; the bound is for what a fault of ours would leave.
const MOST: usize = 1 << 18;

/// Last attributes of removed objects.
#[derive(Default)]
pub(super) struct Ghosts(Mutex<HashMap<Ino, Stat>>);

impl Ghosts {
    /// Keeps what an object was.
    pub fn keep(&self, mut stat: Stat) {
        (stat.links, stat.volatile) = (0, false);
        // It goes with the object.
        stat.attributes.segment = None;
        let mut ghosts = self.0.lock();
        if ghosts.len() < MOST {
            ghosts.insert(stat.ino, stat);
        }
    }

    /// What a removed object was.
    pub fn get(&self, ino: Ino) -> Option<Stat> {
        self.0.lock().get(&ino).cloned()
    }

    /// The kernel has no more use for the inode.
    pub fn forget(&self, ino: Ino) {
        let mut ghosts = self.0.lock();
        if !ghosts.is_empty() {
            ghosts.remove(&ino);
        }
    }
}

//! What the kernel may still ask about objects that are gone.
//!
//! A process can stay in a removed directory, or hold a removed FIFO or an `O_PATH` descriptor. The pool has dropped
//! the object then; its last attributes stay here until the kernel forgets the inode.

use std::collections::HashMap;

use nix::unistd::geteuid;
use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::shares::{Share, Shares};

use super::stat::Stat;

/// So many are kept; a user's no more than half of what those of others leave. Root's, and of whoever runs the server,
/// are kept as long as there is room.
const MOST: usize = 1 << 18;

/// Last attributes of removed objects.
pub(super) struct Ghosts {
    all: Mutex<HashMap<Ino, (Stat, Share)>>,
    shares: Shares,
}

impl Default for Ghosts {
    fn default() -> Self {
        Self { all: Mutex::default(), shares: Shares::new(MOST) }
    }
}

impl Ghosts {
    /// Keeps what an object was, which counts for its owner.
    pub fn keep(&self, mut stat: Stat) {
        (stat.links, stat.volatile) = (0, false);
        // It goes with the object.
        stat.attributes.segment = None;
        let owner = stat.attributes.uid;
        let share = if owner == 0 || owner == geteuid().as_raw() {
            self.shares.would_have(None, 1, 0).then(|| self.shares.take_for_nobody(1))
        } else {
            self.shares.take(owner)
        };
        if let Some(share) = share {
            self.all.lock().insert(stat.ino, (stat, share));
        }
    }

    /// What a removed object was.
    pub fn get(&self, ino: Ino) -> Option<Stat> {
        self.all.lock().get(&ino).map(|(stat, _)| stat.clone())
    }

    /// The kernel has no more use for the inode.
    pub fn forget(&self, ino: Ino) {
        let mut ghosts = self.all.lock();
        if !ghosts.is_empty() {
            ghosts.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorfs_layout::Timestamp;
    use tensorfs_layout::log::Attributes;

    use super::*;

    fn keep(ghosts: &Ghosts, ino: u64, uid: u32) -> bool {
        let mode = libc::S_IFDIR | 0o700;
        let [atime, mtime, ctime, btime] = [Timestamp::default(); 4];
        let attributes =
            Attributes { mode, uid, gid: 0, rdev: 0, atime, mtime, ctime, btime, segment: None, damaged: false };
        let stat = Stat { ino: Ino(ino), attributes, links: 0, size: 0, allocated: 0, volatile: false };
        ghosts.keep(stat);
        ghosts.get(Ino(ino)).is_some()
    }

    /// Proves X5.
    #[test]
    fn a_user_who_holds_what_he_has_removed_leaves_room_for_others() {
        let (ghosts, mine, others) = (Ghosts::default(), geteuid().as_raw() + 1, geteuid().as_raw() + 2);
        let kept = (0..MOST as u64).take_while(|ino| keep(&ghosts, *ino, mine)).count();
        assert_eq!(kept, MOST / 3);
        assert!(keep(&ghosts, 1 << 40, others) && keep(&ghosts, 2 << 40, 0));
        ghosts.forget(Ino(7));
        ghosts.forget(Ino(8));
        assert!(keep(&ghosts, 3 << 40, mine) && keep(&ghosts, 4 << 40, mine));
        assert!(!keep(&ghosts, 5 << 40, mine));
    }
}

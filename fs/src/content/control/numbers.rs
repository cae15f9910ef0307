//! Inode numbers of the control tree's changing part.
//!
//! A number is a hash of what it stands for, so it is the same whenever it is asked for. What the kernel knows of is
//! kept until it forgets it; for a file that is the place of its tensor, not its name, so that a million of them are
//! affordable.

use std::collections::HashMap;

use parking_lot::Mutex;
use tensorfs_layout::{Ino, SegmentId, Timestamp};

use super::fixed::{FIRST, MIRROR};
use crate::content::hash::number;
use crate::content::index::DirId;

/// What an object of the tree stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// A directory of the pool.
    Mirror(Ino),
    /// A directory of tensors, and the one that it is in. A file of several names has a directory for each: a directory
    /// can be in one place only. `place` tells them apart.
    Directory { file: Ino, dir: DirId, parent: Ino, place: u64 },
    /// A tensor of what a file holds as long as it has that stamp.
    Tensor { file: Ino, segment: SegmentId, stamp: u64, ordinal: u32 },
}

/// A tensor's file as it was when it was looked up. It never changes: another content is another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub size: u64,
    pub mtime: Timestamp,
}

/// What the kernel knows of.
#[derive(Default)]
pub(super) struct Numbers(Mutex<HashMap<Ino, Known>>);

struct Known {
    origin: Origin,
    look: Look,
    lookups: u64,
}

/// Numbers below this, counted from [`FIRST`], belong to the part of the tree that does not change.
const FIXED: u64 = 1 << 16;

/// The number that a origin has unless another one has it.
pub(super) fn of(origin: &Origin) -> Ino {
    match origin {
        Origin::Mirror(dir) => Ino(FIRST | MIRROR | dir.0),
        _ => Ino(FIRST | (number(origin) & (MIRROR - 1)).max(FIXED)),
    }
}

impl Numbers {
    /// The number of a origin that the kernel is about to be told of.
    pub(super) fn tell(&self, origin: Origin, look: Look) -> Ino {
        let mut ino = of(&origin);
        if let Origin::Mirror(_) = origin {
            return ino;
        }
        let mut known = self.0.lock();
        loop {
            let entry = known.entry(ino).or_insert(Known { origin, look, lookups: 0 });
            if entry.origin == origin {
                entry.lookups += 1;
                return ino;
            }
            ino = Ino(FIRST | ((ino.0 + 1) & (MIRROR - 1)).max(FIXED));
        }
    }

    /// What a origin looked like when the kernel was told of it, if it knows it still.
    pub(super) fn look(&self, origin: &Origin) -> Option<Look> {
        self.0.lock().get(&of(origin)).filter(|known| known.origin == *origin).map(|known| known.look)
    }

    /// What a number stands for.
    pub(super) fn get(&self, ino: Ino) -> Option<(Origin, Look)> {
        if ino.0 & MIRROR != 0 {
            return Some((Origin::Mirror(Ino(ino.0 & (MIRROR - 1))), Look::default()));
        }
        self.0.lock().get(&ino).map(|known| (known.origin, known.look))
    }

    /// The kernel has forgotten so many of the times that it was told.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        let mut known = self.0.lock();
        if let Some(entry) = known.get_mut(&ino) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0 {
                known.remove(&ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::index::TOP;

    #[test]
    fn a_number_lives_until_the_kernel_forgets_it() {
        let numbers = Numbers::default();
        let origin = Origin::Directory { file: Ino(7), dir: TOP, parent: Ino(FIRST), place: 0 };
        let ino = numbers.tell(origin, Look::default());
        assert_eq!((ino, numbers.tell(origin, Look::default())), (of(&origin), ino));
        assert!(ino.0 >= FIRST + FIXED && ino.0 & MIRROR == 0);
        numbers.forget(ino, 1);
        assert_eq!(numbers.get(ino), Some((origin, Look::default())));
        numbers.forget(ino, 1);
        assert_eq!(numbers.get(ino), None);
    }

    #[test]
    fn two_nodes_never_share_a_number() {
        let numbers = Numbers::default();
        let tensor = |ordinal| Origin::Tensor { file: Ino(7), segment: SegmentId(8), stamp: 9, ordinal };
        let ino = numbers.tell(tensor(0), Look { size: 1, ..Look::default() });
        // As if the hash had collided.
        let other = {
            let mut known = numbers.0.lock();
            let taken = known.remove(&ino).unwrap();
            known.insert(of(&tensor(1)), taken);
            drop(known);
            numbers.tell(tensor(1), Look { size: 2, ..Look::default() })
        };
        assert_ne!(other, of(&tensor(1)));
        assert_eq!(numbers.get(other), Some((tensor(1), Look { size: 2, ..Look::default() })));
        assert_eq!(numbers.get(of(&tensor(1))).unwrap().0, tensor(0));
    }

    #[test]
    fn directories_of_the_pool_need_not_be_kept() {
        let numbers = Numbers::default();
        let ino = numbers.tell(Origin::Mirror(Ino(5)), Look::default());
        assert_eq!(numbers.get(ino), Some((Origin::Mirror(Ino(5)), Look::default())));
        assert!(numbers.0.lock().is_empty());
    }
}

//! Files that programs of an earlier mount can still write, as far as their handles were not taken over.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;
use tensorfs_layout::SegmentId;
use tensorfs_layout::pool::OpenSegment;

use crate::store::Store;

/// So many are looked at, and told of, at one time.
const AT_ONCE: usize = 100;

/// What recovery found open, but for what was found closed since.
#[derive(Default)]
pub(super) struct Outlived(Mutex<VecDeque<OpenSegment>>);

impl Outlived {
    /// What the pool's recovery found.
    pub fn of(store: &Store) -> Self {
        let recovery = store.pool().recovery();
        let inherited = store.link().handover().map(|handover| handover.open_files()).unwrap_or_default();
        Self(Mutex::new(recovery.open_segments.iter().filter(|open| !inherited.contains(&open.ino)).copied().collect()))
    }

    /// Of a limited number of them those that are still open. Others have their turn the next time.
    pub fn some(&self, is_closed: impl Fn(SegmentId) -> bool) -> Vec<OpenSegment> {
        let mut looked: Vec<OpenSegment> = {
            let mut all = self.0.lock();
            let count = all.len().min(AT_ONCE);
            all.rotate_left(count);
            all.iter().rev().take(count).copied().collect()
        };
        // The host is asked without the lock.
        let closed = looked.iter().map(|open| open.segment).filter(|segment| is_closed(*segment));
        let closed: HashSet<SegmentId> = closed.collect();
        if !closed.is_empty() {
            looked.retain(|open| !closed.contains(&open.segment));
            self.0.lock().retain(|open| !closed.contains(&open.segment));
        }
        looked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    use tensorfs_layout::Ino;

    fn of(count: u64) -> Outlived {
        let open = |n| OpenSegment { ino: Ino(n), segment: SegmentId(n) };
        Outlived(Mutex::new((0..count).map(open).collect()))
    }

    #[test]
    fn what_is_closed_is_told_of_no_more() {
        let outlived = of(3);
        assert_eq!(outlived.some(|_| false).len(), 3);
        assert_eq!(outlived.some(|segment| segment.0 == 1).len(), 2);
        assert!(outlived.some(|_| true).is_empty() && outlived.some(|_| panic!("there is none")).is_empty());
    }

    #[test]
    fn each_look_costs_the_same_however_many_are_open() {
        let outlived = of(100_000);
        let asked = Cell::new(0);
        let ask = |_| asked.replace(asked.get() + 1) == usize::MAX;
        assert_eq!((outlived.some(ask).len(), asked.get()), (AT_ONCE, AT_ONCE));
        // Each has its turn, and only who is seen to be open is told of.
        let rounds = (0..100_000 / AT_ONCE).filter(|_| outlived.some(|_| true).is_empty()).count();
        assert_eq!(rounds, 100_000 / AT_ONCE);
        assert!(outlived.0.lock().is_empty());
    }
}

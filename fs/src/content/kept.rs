//! What is kept of files for a while, within a bound of memory: what was not asked for longest gives way.

use lru::LruCache;
use parking_lot::Mutex;
use tensorfs_layout::Ino;

/// What an entry takes beside its value: its place in the table and among those that were asked for.
const EACH: usize = 64;
/// So many are let go of before others have a turn.
const LOT: usize = 64;

/// Of each file, or directory, one value.
pub(super) struct Kept<V> {
    most: usize,
    entries: Mutex<Entries<V>>,
}

struct Entries<V> {
    /// In the order in which they were asked for.
    by_ino: LruCache<Ino, Entry<V>>,
    bytes: usize,
}

struct Entry<V> {
    value: V,
    bytes: usize,
}

impl<V: Clone> Kept<V> {
    /// Values are to take so many bytes at most; a single one may take more.
    pub fn new(most: usize) -> Self {
        Self { most, entries: Mutex::new(Entries { by_ino: LruCache::unbounded(), bytes: 0 }) }
    }

    /// The value of a file, if it is still that: otherwise nobody has asked for it.
    pub fn get(&self, ino: Ino, holds: impl FnOnce(&V) -> bool) -> Option<V> {
        let mut entries = self.entries.lock();
        let value = entries.by_ino.peek(&ino).map(|entry| &entry.value).filter(|value| holds(value))?.clone();
        entries.by_ino.promote(&ino);
        Some(value)
    }

    /// Keeps the value of a file, which takes so many bytes. What was not asked for longest is let go of for it.
    pub fn put(&self, ino: Ino, value: V, bytes: usize) {
        let bytes = bytes + size_of::<Entry<V>>() + EACH;
        let before = {
            let mut entries = self.entries.lock();
            let before = entries.by_ino.put(ino, Entry { value, bytes });
            entries.bytes = entries.bytes + bytes - before.as_ref().map_or(0, |entry| entry.bytes);
            before
        };
        drop(before);
        while self.let_go(LOT, |entries| entries.bytes > self.most && entries.by_ino.len() > 1) {}
    }

    /// Lets go of what was not asked for longest. False if nothing is left.
    pub fn let_go_of_one(&self) -> bool {
        self.let_go(1, |entries| !entries.by_ino.is_empty())
    }

    /// What there is takes so many bytes.
    pub fn bytes(&self) -> usize {
        self.entries.lock().bytes
    }

    /// Lets go of so many at most, as long as that is to be. True if there were so many.
    fn let_go(&self, most: usize, is_to_be: impl Fn(&Entries<V>) -> bool) -> bool {
        let mut gone = Vec::new();
        let mut entries = self.entries.lock();
        while gone.len() < most && is_to_be(&entries) {
            let Some((_, entry)) = entries.by_ino.pop_lru() else { break };
            entries.bytes -= entry.bytes;
            gone.push(entry);
        }
        // Freed without the lock.
        drop(entries);
        gone.len() == most
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const TAKES: usize = size_of::<Entry<Arc<u64>>>() + EACH;

    fn there(kept: &Kept<Arc<u64>>, count: u64) -> Vec<u64> {
        (0..count).filter(|n| kept.entries.lock().by_ino.contains(&Ino(*n))).collect()
    }

    #[test]
    fn what_was_not_asked_for_longest_gives_way() {
        let kept = Kept::new(3 * (100 + TAKES));
        let values: Vec<Arc<u64>> = (0..4).map(Arc::new).collect();
        (0..3).for_each(|n| kept.put(Ino(n), values[n as usize].clone(), 100));
        assert_eq!((there(&kept, 4), kept.bytes()), (vec![0, 1, 2], kept.most));
        assert_eq!(kept.get(Ino(0), |_| true).as_deref(), Some(&0));
        assert_eq!(kept.get(Ino(1), |value| **value == 7), None, "who asks for another value");
        kept.put(Ino(3), values[3].clone(), 100);
        assert_eq!((there(&kept, 4), kept.bytes()), (vec![0, 2, 3], kept.most));
        assert_eq!(Arc::strong_count(&values[1]), 1, "nobody has it any more");
        // A new value of the same file takes the place of the one before.
        kept.put(Ino(2), values[1].clone(), 100);
        assert_eq!((there(&kept, 4), kept.bytes(), Arc::strong_count(&values[2])), (vec![0, 2, 3], kept.most, 1));
    }

    #[test]
    fn one_may_take_more_than_all_together() {
        let kept = Kept::new(1000);
        (0..4).for_each(|n| kept.put(Ino(n), Arc::new(n), 10));
        kept.put(Ino(9), Arc::new(9), 5000);
        assert_eq!((there(&kept, 10), kept.bytes()), (vec![9], 5000 + TAKES));
        kept.put(Ino(1), Arc::new(1), 10);
        assert_eq!((there(&kept, 10), kept.bytes()), (vec![1], 10 + TAKES));
        assert!(kept.let_go_of_one() && !kept.let_go_of_one());
        assert_eq!((there(&kept, 10), kept.bytes()), (vec![], 0));
    }

    /// Going through all of them for each that gives way would take hours.
    #[test]
    fn many_give_way_one_by_one() {
        const COUNT: u64 = 1 << 17;
        let kept = Kept::new(COUNT as usize * TAKES);
        (0..2 * COUNT).for_each(|n| kept.put(Ino(n), Arc::new(n), 0));
        assert_eq!(kept.bytes(), kept.most);
        assert!(kept.get(Ino(COUNT - 1), |_| true).is_none() && kept.get(Ino(COUNT), |_| true).is_some());
        kept.put(Ino(0), Arc::new(0), kept.most);
        assert_eq!(there(&kept, 2 * COUNT), [0]);
    }
}

//! Extended attributes of an object, in memory.
//!
//! There are millions of them in a large pool, a few to a file and with the same few names. So a file's are one sorted
//! vector, and the names are shared.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::log::ledger::{Ledger, Placed, Tomb};
use crate::log::length;

/// Names of attributes, each kept once.
#[derive(Debug, Default)]
pub(crate) struct Names(FxHashSet<Arc<[u8]>>);

impl Names {
    /// So many are shared; whoever makes up others keeps them for himself.
    const MAX: usize = 1024;

    pub fn share(&mut self, name: &[u8]) -> Arc<[u8]> {
        if let Some(name) = self.0.get(name) {
            return name.clone();
        }
        let name: Arc<[u8]> = name.into();
        if self.0.len() < Self::MAX {
            self.0.insert(name.clone());
        }
        name
    }
}

/// What an attribute takes in memory beside its name and value.
const EACH: usize = 128;
/// So much of each object's attributes is not counted for its owner: what every file may have, lists and labels.
const UNCOUNTED: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Xattr {
    value: Box<[u8]>,
    placed: Placed,
    /// Oldest block that may hold a record of this name.
    since: u64,
}

/// The extended attributes of an object.
#[derive(Debug, Default)]
pub(crate) struct Xattrs {
    /// Sorted by name.
    live: Vec<(Arc<[u8]>, Xattr)>,
    /// The removals that must be kept. Few objects have any, but one may have many, which are in nobody's way here.
    removed: BTreeMap<Arc<[u8]>, Tomb>,
    /// What `live` takes in memory.
    taken: u64,
}

/// What an attribute takes in memory.
fn taken(name: &[u8], value: &[u8]) -> u64 {
    (EACH + name.len() + value.len()) as u64
}

/// What is counted for an object's owner if its attributes take so much.
fn counted(taken: u64) -> u64 {
    taken.saturating_sub(UNCOUNTED)
}

impl Xattrs {
    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.live.binary_search_by(|(other, _)| (**other).cmp(name))
    }

    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.find(name).ok().map(|at| &*self.live[at].1.value)
    }

    /// A value, and the sequence number of its record.
    pub fn get_numbered(&self, name: &[u8]) -> Option<(&[u8], u64)> {
        self.find(name).ok().map(|at| &self.live[at].1).map(|xattr| (&*xattr.value, xattr.placed.seq))
    }

    /// What is counted of them for the object's owner.
    pub fn counted(&self) -> u64 {
        counted(self.taken)
    }

    /// By how much more that would be with these values.
    pub fn growth<'a>(&self, set: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> u64 {
        let (mut added, mut dropped) = (0, 0);
        for (name, value) in set {
            added += taken(name, value);
            dropped += self.get(name).map_or(0, |old| taken(name, old));
        }
        counted((self.taken + added).saturating_sub(dropped)).saturating_sub(self.counted())
    }

    /// Names, values, and the sequence numbers of their records.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], u64)> {
        self.live.iter().map(|(name, xattr)| (&**name, &*xattr.value, xattr.placed.seq))
    }

    /// Applies the record of a value.
    pub fn set(&mut self, ledger: &mut Ledger, name: Arc<[u8]>, value: Box<[u8]>, placed: Placed) {
        let since = self.forget(ledger, &name, placed);
        if let Ok(at) = self.find(&name) {
            self.taken -= taken(&name, &self.live[at].1.value);
        }
        ledger.add(placed, length::xattr(name.len(), value.len()));
        self.taken += taken(&name, &value);
        let xattr = Xattr { value, placed, since };
        match self.find(&name) {
            Ok(at) => self.live[at].1 = xattr,
            Err(at) => {
                if self.live.len() < 4 {
                    // Most files have few, and there are many files.
                    self.live.reserve_exact(1);
                }
                self.live.insert(at, (name, xattr));
            }
        }
    }

    /// Applies the record of a removal. It is kept only if an older block may hold what it removes.
    pub fn remove(&mut self, ledger: &mut Ledger, name: Arc<[u8]>, placed: Placed) {
        let since = self.forget(ledger, &name, placed);
        if let Ok(at) = self.find(&name) {
            let (_, old) = self.live.remove(at);
            self.taken -= taken(&name, &old.value);
            if self.live.is_empty() {
                self.live = Vec::new();
            }
        }
        if since < placed.incarnation {
            let tomb = Tomb { placed, since };
            ledger.add_tomb(&tomb, length::removal(name.len()));
            self.removed.insert(name, tomb);
        }
    }

    /// A newer record of a name takes the place of what is known of it. Returns the oldest block that may hold one.
    fn forget(&mut self, ledger: &mut Ledger, name: &[u8], placed: Placed) -> u64 {
        let mut since = placed.incarnation;
        if let Ok(at) = self.find(name) {
            let old = &self.live[at].1;
            since = since.min(old.since);
            ledger.sub(old.placed, length::xattr(name.len(), old.value.len()));
        }
        if let Some(tomb) = self.removed.remove(name) {
            since = since.min(tomb.since);
            ledger.sub_tomb(&tomb, length::removal(name.len()));
        }
        since
    }

    /// The object is gone.
    pub fn leave(&self, ledger: &mut Ledger) {
        for (name, xattr) in &self.live {
            ledger.sub(xattr.placed, length::xattr(name.len(), xattr.value.len()));
        }
        for (name, tomb) in &self.removed {
            ledger.sub_tomb(tomb, length::removal(name.len()));
        }
    }

    /// True if the value of that name is what the record at `placed` says.
    pub fn is_set_at(&self, name: &[u8], placed: Placed) -> bool {
        self.find(name).is_ok_and(|at| self.live[at].1.placed == placed)
    }

    /// The removal that is kept of a name.
    pub fn tomb(&self, name: &[u8]) -> Option<&Tomb> {
        self.removed.get(name)
    }

    /// Cleaning copied the record of a value to another block.
    pub fn relocate(&mut self, ledger: &mut Ledger, name: &[u8], to: Placed) {
        if let Ok(at) = self.find(name) {
            let xattr = &mut self.live[at].1;
            let len = length::xattr(name.len(), xattr.value.len());
            ledger.sub(xattr.placed, len);
            ledger.add(to, len);
            xattr.placed = to;
        }
    }

    /// Cleaning copied the record of a removal to another block.
    pub fn relocate_tomb(&mut self, ledger: &mut Ledger, name: &[u8], to: Placed) {
        if let Some(tomb) = self.removed.get_mut(name) {
            ledger.sub_tomb(tomb, length::removal(name.len()));
            tomb.placed = to;
            ledger.add_tomb(tomb, length::removal(name.len()));
        }
    }

    /// A removal need not be kept any more.
    pub fn drop_tomb(&mut self, ledger: &mut Ledger, name: &[u8], placed: Placed) {
        if self.tomb(name).is_some_and(|tomb| tomb.placed == placed)
            && let Some(tomb) = self.removed.remove(name)
        {
            ledger.sub_tomb(&tomb, length::removal(name.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seq: u64, incarnation: u64) -> Placed {
        Placed { seq, incarnation }
    }

    #[test]
    fn names_are_shared_up_to_a_bound() {
        let mut names = Names::default();
        assert!(Arc::ptr_eq(&names.share(b"user.a"), &names.share(b"user.a")));
        for n in 0..Names::MAX + 10 {
            names.share(format!("user.{n}").as_bytes());
        }
        assert_eq!(names.0.len(), Names::MAX);
        assert!(Arc::ptr_eq(&names.share(b"user.a"), &names.share(b"user.a")));
        assert_eq!(&*names.share(b"user.another"), b"user.another");
    }

    #[test]
    fn a_removal_is_kept_for_the_sake_of_older_blocks_alone() {
        let (mut xattrs, mut ledger) = (Xattrs::default(), Ledger::default());
        let mut apply = |xattrs: &mut Xattrs, name: &str, value: Option<&[u8]>, placed| match value {
            Some(value) => xattrs.set(&mut ledger, name.as_bytes().into(), value.into(), placed),
            None => xattrs.remove(&mut ledger, name.as_bytes().into(), placed),
        };
        apply(&mut xattrs, "b", Some(b"1"), at(1, 7));
        apply(&mut xattrs, "a", Some(b"2"), at(2, 7));
        apply(&mut xattrs, "c", Some(b"3"), at(3, 7));
        apply(&mut xattrs, "b", Some(b"4"), at(4, 8));
        let found: Vec<_> = xattrs.iter().map(|(name, value, seq)| (name.to_vec(), value.to_vec(), seq)).collect();
        let expected = [(b"a", b"2", 2), (b"b", b"4", 4), (b"c", b"3", 3)];
        assert_eq!(found, expected.map(|(name, value, seq)| (name.to_vec(), value.to_vec(), seq)));
        assert!(xattrs.is_set_at(b"b", at(4, 8)) && !xattrs.is_set_at(b"b", at(1, 7)));
        // Both records of `b` are in other blocks than its removal, and of what was never there no record is.
        apply(&mut xattrs, "b", None, at(5, 9));
        apply(&mut xattrs, "c", None, at(6, 7));
        apply(&mut xattrs, "d", None, at(7, 9));
        assert_eq!(xattrs.get(b"b"), None);
        assert_eq!(xattrs.tomb(b"b").map(|tomb| tomb.since), Some(7));
        assert!(xattrs.tomb(b"a").is_none() && xattrs.tomb(b"c").is_none() && xattrs.tomb(b"d").is_none());
        // Of the four, `a` and the removal are left.
        assert_eq!(ledger.records(), 1);
        assert_eq!(ledger.cost(9, Some(7)), length::removal(1) as u64);
        assert_eq!((ledger.cost(7, None), ledger.cost(8, None)), (length::xattr(1, 1) as u64, 0));
        xattrs.relocate_tomb(&mut ledger, b"b", at(5, 10));
        assert_eq!((ledger.cost(9, Some(7)), ledger.cost(10, Some(7))), (0, length::removal(1) as u64));
        xattrs.drop_tomb(&mut ledger, b"b", at(5, 9));
        assert!(xattrs.tomb(b"b").is_some(), "that is another record");
        xattrs.drop_tomb(&mut ledger, b"b", at(5, 10));
        assert!(xattrs.tomb(b"b").is_none());
        xattrs.relocate(&mut ledger, b"a", at(2, 11));
        assert_eq!((ledger.cost(7, None), ledger.cost(11, None)), (0, length::xattr(1, 1) as u64));
        xattrs.leave(&mut ledger);
        assert_eq!((ledger.records(), ledger.cost(10, Some(7)), ledger.cost(11, None)), (0, 0, 0));
    }
}

//! Extended attributes of an object, in memory.
//!
//! There are millions of them in a large pool, a few to a file and with the same few names. So a file's are one sorted
//! vector, and the names are shared.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::codec::padded;
use crate::ledger::{Ledger, Placed, Tomb};
use crate::record::{HEADER, removal_body, xattr_body};

const fn xattr_len(name: usize, value: usize) -> usize {
    HEADER + padded(xattr_body(name, value))
}
const fn removal_len(name: usize) -> usize {
    HEADER + padded(removal_body(name))
}

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

/// What the newest record of a name says.
#[derive(Debug)]
struct Xattr {
    /// `None`: it is removed, and that must be kept (see [`Tomb`]).
    value: Option<Box<[u8]>>,
    placed: Placed,
    /// Oldest block that may hold a record of this name.
    since: u64,
}

impl Xattr {
    fn as_tomb(&self) -> Tomb {
        Tomb { placed: self.placed, since: self.since }
    }

    fn enter(&self, ledger: &mut Ledger, name: usize) {
        match &self.value {
            Some(value) => ledger.add(self.placed, xattr_len(name, value.len())),
            None => ledger.add_tomb(&self.as_tomb(), removal_len(name)),
        }
    }

    fn leave(&self, ledger: &mut Ledger, name: usize) {
        match &self.value {
            Some(value) => ledger.sub(self.placed, xattr_len(name, value.len())),
            None => ledger.sub_tomb(&self.as_tomb(), removal_len(name)),
        }
    }
}

/// The extended attributes of an object, and the removals that must be kept, sorted by name.
#[derive(Debug, Default)]
pub(crate) struct Xattrs(Vec<(Arc<[u8]>, Xattr)>);

impl Xattrs {
    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| (**other).cmp(name))
    }

    fn newest(&self, name: &[u8]) -> Option<&Xattr> {
        self.find(name).ok().map(|at| &self.0[at].1)
    }

    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.newest(name)?.value.as_deref()
    }

    /// Names, values, and the sequence numbers of their records.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], u64)> {
        self.0.iter().filter_map(|(name, xattr)| Some((&**name, xattr.value.as_deref()?, xattr.placed.seq)))
    }

    /// Applies the record of a value, or of a removal: that is kept only if an older block may hold what it removes.
    pub fn apply(&mut self, ledger: &mut Ledger, name: Arc<[u8]>, value: Option<Box<[u8]>>, placed: Placed) {
        let mut xattr = Xattr { value, placed, since: placed.incarnation };
        let found = self.find(&name);
        if let Ok(at) = found {
            let old = &self.0[at].1;
            old.leave(ledger, name.len());
            xattr.since = xattr.since.min(old.since);
        }
        let kept = xattr.value.is_some() || xattr.since < placed.incarnation;
        if kept {
            xattr.enter(ledger, name.len());
        }
        match found {
            Ok(at) if kept => self.0[at].1 = xattr,
            Ok(at) => drop(self.0.remove(at)),
            Err(at) if kept => {
                if self.0.len() < 4 {
                    // Most files have few, and there are many files.
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (name, xattr));
            }
            Err(_) => {}
        }
    }

    /// The object is gone.
    pub fn leave(&self, ledger: &mut Ledger) {
        self.0.iter().for_each(|(name, xattr)| xattr.leave(ledger, name.len()));
    }

    /// True if the value of that name is what the record at `placed` says.
    pub fn is_set_at(&self, name: &[u8], placed: Placed) -> bool {
        self.newest(name).is_some_and(|xattr| xattr.value.is_some() && xattr.placed == placed)
    }

    /// The removal that is kept of a name.
    pub fn tomb(&self, name: &[u8]) -> Option<Tomb> {
        self.newest(name).filter(|xattr| xattr.value.is_none()).map(Xattr::as_tomb)
    }

    /// Cleaning copied the record of a name, of a value or of a removal, to another block.
    pub fn relocate(&mut self, ledger: &mut Ledger, name: &[u8], removal: bool, to: Placed) {
        let Ok(at) = self.find(name) else { return };
        let xattr = &mut self.0[at].1;
        if xattr.value.is_none() == removal {
            xattr.leave(ledger, name.len());
            xattr.placed = to;
            xattr.enter(ledger, name.len());
        }
    }

    /// A removal need not be kept any more.
    pub fn drop_tomb(&mut self, ledger: &mut Ledger, name: &[u8], placed: Placed) {
        if self.tomb(name).is_some_and(|tomb| tomb.placed == placed)
            && let Ok(at) = self.find(name)
        {
            self.0.remove(at).1.leave(ledger, name.len());
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
        let mut apply = |xattrs: &mut Xattrs, name: &str, value: Option<&[u8]>, placed| {
            xattrs.apply(&mut ledger, name.as_bytes().into(), value.map(Box::from), placed);
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
        assert_eq!(ledger.cost(9, Some(7)), removal_len(1) as u64);
        assert_eq!((ledger.cost(7, None), ledger.cost(8, None)), (xattr_len(1, 1) as u64, 0));
        xattrs.relocate(&mut ledger, b"b", false, at(5, 10));
        assert_eq!(ledger.cost(10, Some(7)), 0, "the record of a value says nothing of a removal");
        xattrs.relocate(&mut ledger, b"b", true, at(5, 10));
        assert_eq!((ledger.cost(9, Some(7)), ledger.cost(10, Some(7))), (0, removal_len(1) as u64));
        xattrs.drop_tomb(&mut ledger, b"b", at(5, 9));
        assert!(xattrs.tomb(b"b").is_some(), "that is another record");
        xattrs.drop_tomb(&mut ledger, b"b", at(5, 10));
        assert!(xattrs.tomb(b"b").is_none());
        xattrs.leave(&mut ledger);
        assert_eq!((ledger.records(), ledger.cost(7, Some(7)), ledger.cost(10, Some(7))), (0, 0, 0));
    }
}

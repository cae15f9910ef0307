//! The names in a directory, and their places in listings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use tensorfs_formats::is_called_as_plan;

use crate::ids::Ino;
use crate::log::ledger::{Placed, Tomb};

/// Smaller cookies of directory listings stand for `.` and `..`.
const FIRST_COOKIE: u64 = 16;

#[derive(Debug)]
pub(crate) struct Entry {
    pub ino: Ino,
    pub placed: Placed,
    /// Oldest block that may hold a record of this name.
    pub since: u64,
    /// Where the name stands in listings.
    pub cookie: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Directory {
    pub(super) parent: Option<Ino>,
    /// Where its own name stands in listings of that one.
    pub(super) place: u64,
    pub(super) subdirectories: u32,
    pub(super) entries: HashMap<Arc<[u8]>, Entry>,
    /// The names by their cookies.
    pub(super) order: BTreeMap<u64, Arc<[u8]>>,
    /// Those that are called as plans of checkpoints: whoever looks for some need not go through all names.
    pub(super) plans: BTreeSet<Arc<[u8]>>,
    pub(super) removed: HashMap<Box<[u8]>, Tomb>,
}

impl Directory {
    /// Takes in a name that is not there.
    pub fn insert(&mut self, name: Arc<[u8]>, entry: Entry) {
        if is_called_as_plan(&name) {
            self.plans.insert(name.clone());
        }
        self.order.insert(entry.cookie, name.clone());
        self.entries.insert(name, entry);
    }

    /// Takes out a name.
    pub fn remove(&mut self, name: &[u8]) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        self.order.remove(&entry.cookie);
        self.plans.remove(name);
        Some(entry)
    }

    /// The place of a new name in listings, by its hash, as on ext4. A name that is replaced, or removed and made
    /// again, has the place it had, so that a listing does not meet it twice; and one that renames what it meets ends,
    /// as what it makes is as likely behind it as before it.
    pub fn cookie(&self, name: &[u8]) -> u64 {
        self.free_cookie(name, |name, attempt| {
            let mut hasher = DefaultHasher::new();
            hasher.write(name);
            hasher.write_u64(attempt);
            // Small enough for what a 32-bit program gets of it.
            hasher.finish() >> 34
        })
    }

    /// A place that is taken sends a name anywhere, not next to it: names that somebody chose for their hashes lie
    /// close together, and one behind the other they would take ever longer to place.
    fn free_cookie(&self, name: &[u8], hash: impl Fn(&[u8], u64) -> u64) -> u64 {
        let mut cookies = (0..).map(|attempt| FIRST_COOKIE + hash(name, attempt));
        cookies.find(|cookie| !self.order.contains_key(cookie)).expect("fewer names than places")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_taken_sends_a_name_elsewhere() {
        let mut dir = Directory::default();
        let hash = |_: &[u8], attempt: u64| [5, 900, 7][attempt as usize];
        for expected in [5, 900, 7] {
            let cookie = dir.free_cookie(b"name", hash);
            assert_eq!(cookie, FIRST_COOKIE + expected);
            dir.order.insert(cookie, b"name"[..].into());
        }
        assert_eq!(dir.cookie(b"a"), Directory::default().cookie(b"a"), "the same name has the same place");
        assert!((0..1000u32).all(|n| dir.cookie(&n.to_ne_bytes()) <= i32::MAX as u64));
    }

    #[test]
    fn plans_are_found_without_going_through_all_names() {
        let mut dir = Directory::default();
        let placed = Placed { incarnation: 1, seq: 1 };
        for name in ["b.bin.index.json", "x", ".metadata", "index.json", "a.safetensors.index.json", ".metadata2"] {
            let cookie = dir.cookie(name.as_bytes());
            dir.insert(name.as_bytes().into(), Entry { ino: Ino(7), placed, since: 1, cookie });
        }
        let plans = |dir: &Directory| dir.plans.iter().map(|name| String::from_utf8_lossy(name).into()).collect();
        let all: Vec<String> = plans(&dir);
        assert_eq!(all, [".metadata", "a.safetensors.index.json", "b.bin.index.json"]);
        assert!(["x", ".metadata", "b.bin.index.json"].iter().all(|name| dir.remove(name.as_bytes()).is_some()));
        let left: Vec<String> = plans(&dir);
        assert!(dir.remove(b"x").is_none() && left == ["a.safetensors.index.json"]);
        assert_eq!((dir.entries.len(), dir.order.len()), (3, 3));
    }
}

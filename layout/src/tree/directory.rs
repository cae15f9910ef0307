//! The names in a directory, and their places in listings.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

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
    pub parent: Option<Ino>,
    /// Where its own name stands in listings of that one.
    pub place: u64,
    pub subdirectories: u32,
    pub entries: HashMap<Arc<[u8]>, Entry>,
    /// The names by their cookies.
    pub order: BTreeMap<u64, Arc<[u8]>>,
    pub removed: HashMap<Box<[u8]>, Tomb>,
}

impl Directory {
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
}

//! How much of what is below a directory is looked at, where it need not be all.

use std::cell::Cell;

use crate::show::failure::Failure;
use crate::tensors::place::Place;

/// What is left of it.
pub struct Bound {
    left: Cell<u64>,
    is_passed: Cell<bool>,
}

impl Bound {
    /// So many entries of directories.
    pub fn of(entries: u64) -> Bound {
        Bound { left: Cell::new(entries), is_passed: Cell::new(false) }
    }

    /// All that there is.
    pub fn none() -> Bound {
        Bound::of(u64::MAX)
    }

    /// Whether there was more than that.
    pub fn is_passed(&self) -> bool {
        self.is_passed.get()
    }

    /// Takes what is as much work as so many entries. False if that is more than what is left.
    pub fn take(&self, entries: u64) -> bool {
        let left = self.left.get().checked_sub(entries);
        self.left.set(left.unwrap_or(0));
        self.is_passed.set(self.is_passed() || left.is_none());
        left.is_some()
    }

    /// What is in a directory, as far as it goes.
    pub fn inside(&self, dir: &Place) -> Result<Vec<Place>, Failure> {
        let most = usize::try_from(self.left.get()).unwrap_or(usize::MAX);
        let (inside, is_all) = dir.inside_at_most(most)?;
        self.take(inside.len() as u64);
        self.is_passed.set(self.is_passed() || !is_all);
        Ok(inside)
    }
}

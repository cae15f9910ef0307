//! The superblock of an open pool: what it says can be asked at any time, and one at a time writes it.

use std::io;

use parking_lot::{Mutex, MutexGuard};

use crate::log::superblock::Superblock;
use crate::medium::domain::Medium;

/// What the superblock says, and the turn to write it.
#[derive(Debug)]
pub(super) struct Current {
    /// Held for a look or a change alone.
    known: Mutex<Superblock>,
    /// Held while it is written.
    turn: Mutex<()>,
}

impl Current {
    pub fn new(superblock: Superblock) -> Self {
        Self { known: Mutex::new(superblock), turn: Mutex::default() }
    }

    /// What it says.
    pub fn get(&self) -> Superblock {
        self.known.lock().clone()
    }

    /// Something of what it says.
    pub fn of<T>(&self, what: impl FnOnce(&Superblock) -> T) -> T {
        what(&self.known.lock())
    }

    /// Nobody writes it while this is held.
    pub fn keep(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Changes it durably, and then what is known of it.
    pub fn change(&self, medium: &dyn Medium, change: impl FnOnce(&mut Superblock)) -> io::Result<()> {
        let _turn = self.turn.lock();
        let mut changed = self.get();
        change(&mut changed);
        let written = changed.write(medium);
        let mut known = self.known.lock();
        match written {
            Ok(()) => *known = changed,
            // The numbers that were used are not used again.
            Err(_) => known.skip_to(&changed),
        }
        written
    }
}

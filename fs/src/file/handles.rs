//! Open handles, by the number the kernel gives back with every request.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::error::{Fault, Result};

use super::mode::Manner;

/// Handles that were taken over from a server that died, by the requests that they were made for, with how the kernel
/// is to treat them. Such a request may come again: whether it had been answered, nobody knows.
pub(super) type Inherited = Mutex<FxHashMap<u64, (u64, Manner)>>;

const SHARDS: usize = 16;

/// All open handles of one kind.
pub(crate) struct Handles<T> {
    next: AtomicU64,
    shards: [Mutex<FxHashMap<u64, T>>; SHARDS],
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl<T> Handles<T> {
    /// The first number is this one.
    pub fn starting_at(number: u64) -> Self {
        Self { next: AtomicU64::new(number), ..Self::default() }
    }
}

impl<T: Clone> Handles<T> {
    /// A number that nothing else has, for what is about to be opened.
    pub fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Keeps an open under this number.
    pub fn insert_as(&self, number: u64, opened: T) {
        self.shard(number).lock().insert(number, opened);
    }

    /// What a number stands for.
    pub fn get(&self, number: u64) -> Result<T> {
        self.shard(number).lock().get(&number).cloned().ok_or(Fault::new(libc::EBADF))
    }

    /// Forgets a number.
    pub fn remove(&self, number: u64) -> Option<T> {
        self.shard(number).lock().remove(&number)
    }

    /// Forgets all numbers: the kernel is gone.
    pub fn drain(&self) -> Vec<T> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock()).into_values()).collect()
    }

    fn shard(&self, number: u64) -> &Mutex<FxHashMap<u64, T>> {
        &self.shards[number as usize % SHARDS]
    }
}

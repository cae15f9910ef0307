//! The pool's limit, and what is known of how close it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tensorfs_layout::pool::Pool;

/// The unit in which space is counted and shown.
pub(crate) const BLOCK: u64 = 4096;

/// The state of the limit.
pub(super) struct Limit {
    /// The limit; 0 if there is none.
    pub limit: AtomicU64,
    /// Not less than what is used.
    pub estimate: AtomicU64,
    /// Bytes of writes that were let through and are not done: the estimate has them, what the host says may not.
    pub under_way: AtomicU64,
    /// The host was short of space, and what could be given back to it has not been since.
    pub was_tight: AtomicBool,
    /// Held while a write near the limit is measured and done.
    pub gate: Mutex<()>,
}

impl Limit {
    /// The limit of a pool that is about to be served.
    pub fn new(pool: &Pool) -> Self {
        pool.quarantine().recount();
        let usage = pool.usage();
        let limit = AtomicU64::new(usage.limit.unwrap_or(0));
        Self {
            limit,
            estimate: AtomicU64::new(usage.bytes()),
            under_way: AtomicU64::new(0),
            was_tight: AtomicBool::new(false),
            gate: Mutex::default(),
        }
    }

    /// A write of so many bytes is under way until what is returned is let go of.
    pub fn begin(&self, bytes: u64) -> UnderWay<'_> {
        self.under_way.fetch_add(bytes, Relaxed);
        UnderWay { limit: self, bytes }
    }

    /// The limit, if there is one.
    pub fn get(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit > 0)
    }
}

/// A write that was let through.
pub(super) struct UnderWay<'a> {
    limit: &'a Limit,
    bytes: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.limit.under_way.fetch_sub(self.bytes, Relaxed);
    }
}

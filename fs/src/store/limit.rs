//! The pool's limit, and what is known of how close it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tensorfs_layout::pool::Pool;

/// The state of the limit.
pub(super) struct Limit {
    /// The limit; 0 if there is none.
    pub limit: AtomicU64,
    /// Not less than what is used, if only the server has written since it was last counted.
    pub estimate: AtomicU64,
    /// How often it was asked whether the pool is nearly full.
    pub asked: AtomicU64,
    /// The host was short of space, and what could be given back to it has not been since.
    pub was_tight: AtomicBool,
    /// Held while a write near the limit is measured and done.
    pub gate: Mutex<()>,
}

impl Limit {
    /// The limit of a pool that is about to be served.
    pub fn new(pool: &Pool) -> Self {
        let usage = pool.usage();
        let used = usage.log_bytes + usage.segment_bytes;
        let limit = AtomicU64::new(usage.limit.unwrap_or(0));
        Self {
            limit,
            estimate: AtomicU64::new(used),
            asked: AtomicU64::new(0),
            was_tight: AtomicBool::new(false),
            gate: Mutex::default(),
        }
    }

    /// The limit, if there is one.
    pub fn get(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit > 0)
    }
}

//! The pool's limit, and what is known of how close it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorfs_layout::pool::Pool;

/// The unit in which space is counted and shown.
pub(crate) const BLOCK: u64 = 4096;

/// The state of the limit.
pub(super) struct Limit {
    /// The limit; 0 if there is none.
    pub limit: AtomicU64,
    /// What was used when it was counted last, less the bytes of all writes that were done before.
    counted: AtomicU64,
    /// Bytes of all writes that were let through so far.
    begun: AtomicU64,
    /// Those of them that are done.
    done: AtomicU64,
    /// The host was short of space, and what could be given back to it has not been since.
    pub was_tight: AtomicBool,
    /// Held while a write near the limit is let through. Nothing is asked of the host meanwhile.
    pub gate: Mutex<()>,
    /// Held by whoever sets the limit.
    pub setting: Mutex<()>,
    /// When all open files were asked for last because a write found no room.
    all: Mutex<Option<Instant>>,
}

/// A write that finds no room has all open files asked for, unless that was done so short a time ago.
const ALL_AGAIN: Duration = Duration::from_secs(1);

impl Limit {
    /// The limit of a pool that is about to be served.
    pub fn new(pool: &Pool) -> Self {
        pool.quarantine().recount();
        let usage = pool.usage();
        let limit = AtomicU64::new(usage.limit.unwrap_or(0));
        Self {
            limit,
            counted: AtomicU64::new(usage.bytes()),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            was_tight: AtomicBool::new(false),
            gate: Mutex::default(),
            setting: Mutex::default(),
            all: Mutex::default(),
        }
    }

    /// A write of so many bytes is under way until what is returned is let go of.
    pub fn begin(&self, bytes: u64) -> UnderWay<'_> {
        self.begun.fetch_add(bytes, SeqCst);
        UnderWay { limit: self, bytes }
    }

    /// Bytes of writes that were let through and are not done: what the host says may not have them.
    pub fn under_way(&self) -> u64 {
        let done = self.done.load(SeqCst);
        self.begun.load(SeqCst).wrapping_sub(done)
    }

    /// Counts what is used. Every write is in what the host says, or still in the estimate: also one that ends while
    /// it is counted.
    pub fn count(&self, used: impl FnOnce() -> u64) -> u64 {
        let done = self.done.load(SeqCst);
        let used = used();
        self.counted.store(used.wrapping_sub(done), SeqCst);
        used
    }

    /// True once a second: the caller asks for all files.
    pub fn is_due_for_all(&self) -> bool {
        let mut last = self.all.lock();
        let due = last.is_none_or(|last| last.elapsed() > ALL_AGAIN);
        if due {
            *last = Some(Instant::now());
        }
        due
    }

    /// Not less than what is used.
    pub fn estimate(&self) -> u64 {
        self.counted.load(SeqCst).wrapping_add(self.begun.load(SeqCst))
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

impl UnderWay<'_> {
    /// So many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.limit.done.fetch_add(self.bytes, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorfs_layout::pool::{CreateOptions, OpenOptions};

    #[test]
    fn a_write_that_ends_while_it_is_counted_is_in_the_estimate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
        let limit = Limit::new(&pool);
        let before = limit.begin(10);
        let counted = limit.count(|| {
            // Each file was looked at before this.
            let used = 1000;
            drop(before);
            drop(limit.begin(100));
            used
        });
        assert_eq!((counted, limit.estimate(), limit.under_way()), (1000, 1110, 0));
        let after = limit.begin(7);
        assert_eq!((limit.estimate(), limit.under_way()), (1117, 7));
        drop(after);
        limit.count(|| 1100);
        assert_eq!(limit.estimate(), 1100);
        pool.close().unwrap();
    }
}

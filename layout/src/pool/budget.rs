//! What the pool may still take beyond what is recorded: bytes of files for the log, and blocks for the log itself.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// What may still be taken, and what is taken and not recorded.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Bytes that may be committed by value before the next round of housekeeping.
    values_left: AtomicI64,
    /// What is used of the size limit beyond the records: by files that are open, and by what is in quarantine.
    claimed: AtomicU64,
}

impl Budget {
    /// So many bytes may be committed by value.
    pub fn of(values: i64) -> Self {
        Self { values_left: values.into(), ..Self::default() }
    }

    /// True if more bytes may be committed by value.
    pub fn has_values(&self) -> bool {
        self.values_left.load(Relaxed) > 0
    }

    /// So many more were.
    pub fn take_values(&self, len: usize) {
        self.values_left.fetch_sub(len as i64, Relaxed);
    }

    /// So many may be from now on.
    pub fn refill_values(&self, values: i64) {
        self.values_left.store(values, Relaxed);
    }

    /// So much is used beyond the records.
    pub fn claim(&self, bytes: u64) {
        self.claimed.store(bytes, Relaxed);
    }

    /// What is used beyond the records.
    pub fn claimed(&self) -> u64 {
        self.claimed.load(Relaxed)
    }
}

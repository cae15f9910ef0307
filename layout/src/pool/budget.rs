//! What the pool may still take beyond what is recorded: bytes of files for the log, and blocks for the log itself.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use crate::ids::Ino;

/// Hears of each object of which something was recorded, before anybody sees that in the view. Waits for nothing.
pub type WhenRecorded = Box<dyn Fn(Ino) + Send + Sync>;

/// Hears that somebody waits for room in the log, while it gets longer: cleaning would help. Waits for nothing.
pub type WhenOutOfRoom = Box<dyn Fn() + Send + Sync>;

/// What may still be taken, and what is taken and not recorded.
#[derive(Default)]
pub(super) struct Budget {
    /// Bytes that may be committed by value before the next round of housekeeping.
    values_left: AtomicI64,
    /// What is used of the size limit beyond the records: by files that are open, and by what is in quarantine.
    claimed: AtomicU64,
    /// Who counts that.
    when_recorded: OnceLock<WhenRecorded>,
    /// Who cleans.
    when_out_of_room: OnceLock<WhenOutOfRoom>,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { values_left, claimed, .. } = self;
        f.debug_struct("Budget").field("values_left", values_left).field("claimed", claimed).finish_non_exhaustive()
    }
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

    /// Who is told what was recorded. The first one stays.
    pub fn when_recorded(&self, when: WhenRecorded) {
        let _ = self.when_recorded.set(when);
    }

    /// Something was recorded of an object.
    pub fn recorded(&self, ino: Ino) {
        if let Some(when) = self.when_recorded.get() {
            when(ino);
        }
    }

    /// Who is told that somebody waits for room in the log. The first one stays.
    pub fn when_out_of_room(&self, when: WhenOutOfRoom) {
        let _ = self.when_out_of_room.set(when);
    }

    /// True if somebody is told of that.
    pub fn has_cleaner(&self) -> bool {
        self.when_out_of_room.get().is_some()
    }

    /// Somebody waits for room in the log.
    pub fn is_out_of_room(&self) {
        if let Some(when) = self.when_out_of_room.get() {
            when();
        }
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

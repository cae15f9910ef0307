//! How far transactions have come: stored, durable, and written down as durable in the fixed places.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::ids::TxId;
use crate::log::group::Group;

/// What was stored, what of it is durable, and those who wait for that.
#[derive(Debug)]
pub(super) struct Commits {
    waiting: Group,
    newest: AtomicU64,
    horizon: AtomicU64,
    /// Segments that became due without a record are synced up to this one.
    touches: AtomicU64,
    /// The horizon that stands in the fixed places too. Locked while it is written there.
    marked: Mutex<u64>,
}

impl Commits {
    pub fn new(newest: u64, horizon: u64) -> Self {
        Self {
            waiting: Group::default(),
            newest: newest.into(),
            horizon: horizon.into(),
            touches: 0.into(),
            marked: Mutex::default(),
        }
    }

    /// Returns once `done` is true; one of those who wait does the `work` for all who came before.
    pub fn wait<E>(&self, done: impl Fn() -> bool, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.waiting.wait(done, work)
    }

    pub fn newest(&self) -> TxId {
        TxId(self.newest.load(Ordering::Acquire))
    }

    /// This transaction is stored.
    pub fn stored(&self, id: TxId) {
        self.newest.store(id.0, Ordering::Release);
    }

    pub fn horizon(&self) -> TxId {
        TxId(self.horizon.load(Ordering::Acquire))
    }

    /// Everything up to this transaction is durable.
    pub fn durable(&self, upto: u64) {
        self.horizon.store(upto, Ordering::Release);
    }

    pub fn touches(&self) -> u64 {
        self.touches.load(Ordering::Acquire)
    }

    /// What had become due by then without a record is synced.
    pub fn touched(&self, touches: u64) {
        self.touches.store(touches, Ordering::Release);
    }

    /// The horizon in the fixed places; nobody else writes it there while this is held.
    pub fn marked(&self) -> MutexGuard<'_, u64> {
        self.marked.lock()
    }
}

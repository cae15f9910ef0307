//! How far transactions have come: stored, durable, and written down as durable in the fixed places.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::error::Result;
use crate::ids::{Ino, TxId};
use crate::log::group::Group;
use crate::pool::failures::Failures;
use crate::pool::hearer::Hearer;

/// Records what lies below directories that were moved.
pub type BeforeMoves = Box<dyn Fn(&[Ino]) -> Result<()> + Send + Sync>;

/// Directories that were moved, and who records what lies below them before that is durable.
#[derive(Default)]
struct Moves {
    before: OnceLock<BeforeMoves>,
    pending: Mutex<Vec<(TxId, Ino)>>,
}

impl fmt::Debug for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moves").field("pending", &self.pending).finish_non_exhaustive()
    }
}

/// What was stored, what of it is durable, and those who wait for that.
#[derive(Debug)]
pub(super) struct Commits {
    waiting: Group,
    newest: AtomicU64,
    horizon: AtomicU64,
    /// Segments that became due without a record are synced up to this one.
    touches: AtomicU64,
    /// Files that could not be synced.
    pub failures: Failures,
    /// The horizon that stands in the fixed places too. Locked while it is written there.
    marked: Mutex<u64>,
    moves: Moves,
    /// Who hears of what is stored.
    pub hearer: Hearer,
}

impl Commits {
    pub fn new(newest: u64, horizon: u64) -> Self {
        Self {
            waiting: Group::default(),
            newest: newest.into(),
            horizon: horizon.into(),
            touches: 0.into(),
            failures: Failures::default(),
            marked: Mutex::default(),
            moves: Moves::default(),
            hearer: Hearer::default(),
        }
    }

    /// Returns once `done` is true; one of those who wait does the `work` for all who came before.
    pub fn wait(&self, done: impl Fn() -> bool, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.waiting.wait(done, work)
    }

    pub fn newest(&self) -> TxId {
        TxId(self.newest.load(Ordering::Acquire))
    }

    /// This transaction is stored.
    pub fn stored(&self, id: TxId) {
        self.newest.store(id.0, Ordering::Release);
    }

    /// Directories were moved by this transaction, which was just stored under the state's lock.
    pub fn moved(&self, id: TxId, directories: &[Ino]) {
        if self.moves.before.get().is_some() {
            self.moves.pending.lock().extend(directories.iter().map(|ino| (id, *ino)));
        }
    }

    /// Who records what lies below directories that were moved. The first one stays.
    pub fn before_moves(&self, before: BeforeMoves) {
        let _ = self.moves.before.set(before);
    }

    /// Has what lies below the directories that were moved so far recorded: a commit may pass them then.
    pub fn settle_moves(&self) -> Result<()> {
        let pending = self.moves.pending.lock().clone();
        let (Some(before), Some((last, _))) = (self.moves.before.get(), pending.last()) else { return Ok(()) };
        let directories: BTreeSet<Ino> = pending.iter().map(|(_, ino)| *ino).collect();
        before(&directories.into_iter().collect::<Vec<_>>())?;
        self.moves.pending.lock().retain(|(id, _)| id > last);
        Ok(())
    }

    /// How far a commit may come: to the `newest` transaction, or to the one before a move that is not settled. Asked
    /// under the state's lock.
    pub fn passable(&self, newest: u64) -> u64 {
        self.moves.pending.lock().first().map_or(newest, |(id, _)| newest.min(id.0 - 1))
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

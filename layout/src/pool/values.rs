//! Bytes of small files that the log holds: how many it may get, and how it gets rid of them.

use crate::error::Result;
use crate::ids::Ino;
use crate::log::record::VALUE_MAX;
use crate::log::superblock::{INCOMPAT_PARTS, INCOMPAT_VALUES};
use crate::medium::domain::Domain;
use crate::pool::opened::Pool;

/// So many bytes of files the log may get between two rounds of housekeeping, which clean it of those before.
const VALUES_PER_ROUND: i64 = 16 << 20;

/// A smaller part of a pool with a size limit, whose users want the space.
const VALUES_PART: u64 = 32;

impl Pool {
    /// The most bytes that a file may have to be committed by value now; none where that saves no flush, or where the
    /// log got so many of late that it should not get more.
    pub fn value_room(&self) -> Option<usize> {
        let wanted = self.domain() == Domain::Cached && self.budget.has_values();
        wanted.then(|| self.value_max())
    }

    /// The most bytes that a file may have that is ever committed by value here.
    pub fn value_max(&self) -> usize {
        match self.domain() {
            Domain::Cached => (self.state.read().log.largest_frame() / 2).min(VALUE_MAX),
            _ => 0,
        }
    }

    /// Has programs that know nothing of values refuse the pool: to be called before the first one is stored.
    pub fn allow_values(&self) -> Result<()> {
        self.need(INCOMPAT_VALUES | INCOMPAT_PARTS)
    }

    /// Has programs refuse the pool that do not know these features.
    pub(super) fn need(&self, needed: u64) -> Result<()> {
        if self.superblock.of(|superblock| superblock.features.incompat & needed == needed) {
            return Ok(());
        }
        let written = self.superblock.change(&*self.medium, |superblock| superblock.features.incompat |= needed);
        written.map_err(|error| self.fail("writing the superblock", &error))
    }

    /// Makes durable in their segments what only the log holds, so that it need not be kept there. No commit waits for
    /// it.
    pub fn settle_values(&self) -> Result<()> {
        let settled = self
            .segments
            .sync_covered(|ino, seq| self.value(ino, seq))
            .map_err(|error| self.fail("syncing the segments", &error))?;
        self.mark_damaged()?;
        if !settled.is_empty() {
            let mut state = self.state.write();
            settled.into_iter().for_each(|(ino, seq)| state.view.settle_value(ino, seq));
        }
        Ok(())
    }

    /// The bytes of a value that only the log is known to hold durably, by its sequence number.
    pub(super) fn value(&self, ino: Ino, seq: u64) -> Option<Box<[u8]>> {
        let (newest, bytes) = self.view().object(ino)?.chain()?.to_restore()?;
        (newest == seq).then_some(bytes)
    }

    /// The log may get as many values as it may in one round of housekeeping.
    pub(crate) fn refill_values(&self) {
        let limit = self.superblock.of(|superblock| superblock.limit);
        self.budget.refill_values(values_per_round(limit));
    }
}

pub(super) fn values_per_round(limit: Option<u64>) -> i64 {
    limit.map_or(VALUES_PER_ROUND, |limit| VALUES_PER_ROUND.min((limit / VALUES_PART).cast_signed()))
}

//! The size limit of a pool.

use crate::error::{Error, Result};
use crate::log::superblock::Superblock;
use crate::pool::budget::WhenRecorded;
use crate::pool::create::{LIMIT_MIN, small_limit};
use crate::pool::opened::Pool;

/// So many blocks that stand at its end the log has cleaned, to be cut for a smaller limit.
const CUTS: usize = 8;

impl Pool {
    /// Has `when` called with each object of which something is recorded: who counts what is used beyond the records
    /// looks at it again.
    pub fn when_recorded(&self, when: WhenRecorded) {
        self.budget.when_recorded(when);
    }

    /// Says what is used of the size limit beyond what is recorded: the log does not grow into that.
    pub fn claim(&self, bytes: u64) {
        if bytes < self.budget.claimed() {
            self.may_grow();
        }
        self.budget.claim(bytes);
    }

    /// Sets or lifts the size limit, durably. `used` is what the pool uses on its host beside the log as far as the
    /// caller knows, open files included; `removed` are the bytes recorded of files that are removed, but still known
    /// to somebody, which do not count.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the limit is below what is used, or below [`LIMIT_MIN`].
    pub fn resize(&self, limit: Option<u64>, used: u64, removed: u64) -> Result<()> {
        self.check_writable()?;
        let used = || {
            let recorded = self.view().totals().allocated.saturating_sub(removed);
            self.superblock.of(Superblock::log_len).saturating_add(used.max(recorded))
        };
        let is_too_small = || limit.is_some_and(|limit| limit < used());
        // What the log has ahead is nothing that is in use.
        if is_too_small() {
            (0..CUTS).try_for_each(|_| self.cut_some())?;
        }
        // The log cannot grow past the new limit meanwhile.
        let growing = self.upkeep.growing.lock();
        if is_too_small() {
            self.cut_log(&growing)?;
        }
        let used = used();
        let too_small = |what| Err(Error::Invalid { pool: self.path.clone(), what });
        match limit {
            Some(limit) if limit < LIMIT_MIN => return too_small(small_limit()),
            Some(limit) if limit < used => {
                return too_small(format!(
                    "{used} bytes are in use, which is more than the {limit} that it is to be limited to"
                ));
            }
            _ => {}
        }
        let written = self.superblock.change(&*self.medium, |superblock| superblock.limit = limit);
        written.map_err(|error| self.fail("writing the superblock", &error))?;
        self.segments.be_sparing(limit.is_some());
        self.may_grow();
        Ok(())
    }
}

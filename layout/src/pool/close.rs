//! Closing a pool.

use crate::error::{Error, Result};
use crate::log::file::LOG;
use crate::log::superblock::PoolState;
use crate::pool::ending::Ending;
use crate::pool::opened::Pool;

/// Why a pool takes no more changes once it is closed.
const CLOSED: &str = "the pool is closed";

impl Pool {
    /// Commits everything, and marks the pool as closed. Further changes are refused. May be called again, and does not
    /// take back that something is left to a recovery.
    ///
    /// Where recovery found files that programs of a killed server can still write, whoever opens the pool next looks
    /// at them again.
    pub fn close(&self) -> Result<()> {
        self.close_watched(!self.recovery.open_segments.is_empty())
    }

    /// As [`Pool::close`], for who has watched these files since: `outlived` if there are still some.
    pub fn close_watched(&self, outlived: bool) -> Result<()> {
        self.end(if outlived { PoolState::Outlived } else { PoolState::Clean })
    }

    /// As [`Pool::close`], but there is something that only a recovery brings to order: whoever opens the pool next
    /// does so.
    pub fn leave(&self) -> Result<()> {
        self.end(PoolState::Left)
    }

    /// True if it was closed in order, and nothing is left to a recovery.
    pub fn is_closed(&self) -> bool {
        let ending = self.upkeep.ending.lock();
        ending.over && ending.state != PoolState::Left
    }

    fn end(&self, state: PoolState) -> Result<()> {
        // No cleaning goes on beside this, nor another close.
        let _cleaner = self.upkeep.cleaning.lock();
        let mut ending = self.upkeep.ending.lock();
        ending.at_least(state);
        if self.lock.is_read_only() {
            // It was closed when it was opened, and has not changed.
            ending.over = true;
        }
        if ending.over {
            return Ok(());
        }
        let ended = self.end_now(&mut ending);
        if ended.is_err() {
            self.note_ended();
            ending.noted = true;
        } else if ending.noted {
            self.told();
        }
        ended
    }

    fn end_now(&self, ending: &mut Ending) -> Result<()> {
        self.check_writable()?;
        loop {
            self.segments.touch_all();
            self.commit(self.newest())?;
            let state = self.state.write();
            // Values are stored under this lock, too.
            if state.log.horizon() == state.log.newest() && !self.segments.any_covered() {
                // Under the lock that every change needs: what was stored is durable, and nothing more will be.
                self.failed.write().get_or_insert(CLOSED.into());
                break;
            }
        }
        self.removals.let_go_of_all();
        self.unlink_covered();
        self.unlink_again();
        if let Err(error) = self.quarantine.write_owed_notes() {
            let count = self.quarantine.owed_notes();
            log::error!("{}: {count} entries of the quarantine stay without notes: {error}", self.path.display());
        }
        self.mark_horizon()?;
        if self.unremoved() > 0 {
            // Only a recovery looks for what is no file's.
            log::warn!("{}: {} deleted files are left for the next mount", self.path.display(), self.unremoved());
            ending.at_least(PoolState::Left);
        }
        let state = ending.state;
        let written = self.superblock.change(&*self.medium, |superblock| superblock.state = state);
        written.map_err(|error| Error::in_pool(&self.path, LOG, "write the superblock", error))?;
        ending.over = true;
        Ok(())
    }
}

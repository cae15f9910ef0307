//! Closing a pool.

use crate::error::{Error, Result};
use crate::log::superblock::PoolState;
use crate::pool::opened::Pool;

/// Why a pool takes no more changes once it is closed.
const CLOSED: &str = "the pool is closed";

impl Pool {
    /// Commits everything, and marks the pool as closed. Further changes are refused. May be called again.
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

    fn end(&self, state: PoolState) -> Result<()> {
        // No cleaning goes on beside this, nor another close.
        let _cleaner = self.upkeep.cleaning.lock();
        let is_left = self.superblock.of(|superblock| superblock.state != PoolState::Dirty) || self.unremoved() > 0;
        if is_left && self.is_read_only().as_deref() == Some(CLOSED) {
            return Ok(());
        }
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
        self.unlink_covered();
        self.unlink_again();
        self.mark_horizon()?;
        if self.unremoved() > 0 {
            // Only a recovery looks for what is no file's.
            log::warn!("{}: {} deleted files are left for the next mount", self.path.display(), self.unremoved());
            return Ok(());
        }
        let written = self.superblock.change(&*self.medium, |superblock| superblock.state = state);
        written.map_err(|error| Error::io(self.path.join("log"), "write the superblock", error))
    }
}

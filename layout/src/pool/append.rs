//! Appending frames to the log, and making it longer for them.

use crate::error::{Error, Result};
use crate::ids::TxId;
use crate::log::blocks::{Full, Reserve};
use crate::log::draft::Draft;
use crate::log::superblock::BLOCKS_MAX;
use crate::medium::domain::Medium;
use crate::pool::opened::{Live, Pool};

impl Pool {
    /// Makes room and appends a frame.
    pub(crate) fn append(&self, state: &mut Live, draft: Draft, reserve: Reserve) -> Result<TxId> {
        self.check_writable()?;
        if draft.len() > state.log.largest_frame() {
            return Err(Error::TooLarge { pool: self.path.clone(), bytes: draft.len() });
        }
        let io = |error| Error::io(self.path.join("log"), "write", error);
        if state.log.reserve(draft.len(), reserve).map_err(io)? == Err(Full) {
            self.grow(state)?;
            if state.log.reserve(draft.len(), reserve).map_err(io)? == Err(Full) {
                return Err(Error::NoSpace { pool: self.path.clone(), what: "the log is full".into() });
            }
        }
        let next_id = state.view.next_id();
        // A frame that could not be stored leaves nothing behind that counts, but a medium that refuses a store to
        // blocks that were written before is broken.
        let id = state.log.append(draft, next_id).map_err(|error| self.fail("writing the log", &error))?;
        self.commits.stored(id);
        Ok(id)
    }

    /// Rule 7: more blocks, written with zeroes and synced before they are used.
    pub(crate) fn grow(&self, state: &mut Live) -> Result<()> {
        self.check_writable()?;
        let full = |what: &str| Error::NoSpace { pool: self.path.clone(), what: what.into() };
        let mut superblock = self.superblock.lock();
        let more = (superblock.blocks / 8).clamp(1, 64).min(BLOCKS_MAX.saturating_sub(superblock.blocks));
        if more == 0 {
            return Err(full("the log has as many blocks as it can have"));
        }
        let mut grown = superblock.clone();
        grown.blocks += more;
        if let Some(limit) = superblock.limit
            && grown.log_len().saturating_add(state.view.totals().allocated).saturating_add(self.budget.claimed())
                > limit
        {
            return Err(full("the pool's size limit is reached"));
        }
        match self.medium.grow(superblock.log_len(), grown.log_len()) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
                return Err(full("the host is full"));
            }
            Err(error) => return Err(self.fail("growing the log", &error)),
        }
        *superblock = grown;
        superblock.write(&*self.medium).map_err(|error| self.fail("writing the superblock", &error))?;
        state.log.resize(superblock.blocks as usize);
        Ok(())
    }
}

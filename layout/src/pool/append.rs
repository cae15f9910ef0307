//! Appending frames to the log.

use crate::error::{Error, Result};
use crate::ids::TxId;
use crate::log::blocks::{Full, Reserve};
use crate::log::draft::Draft;
use crate::log::file::LOG;
use crate::pool::opened::{Live, Pool};

impl Pool {
    /// Makes room and appends a frame.
    pub(crate) fn append(&self, state: &mut Live, draft: Draft, reserve: Reserve) -> Result<TxId> {
        self.check_writable()?;
        if draft.len() > state.log.largest_frame() {
            return Err(Error::TooLarge { pool: self.path.clone(), bytes: draft.len() });
        }
        let io = |error| Error::in_pool(&self.path, LOG, "write", error);
        if state.log.reserve(draft.len(), reserve).map_err(io)? == Err(Full) {
            self.grow_within(state, reserve)?;
            if state.log.reserve(draft.len(), reserve).map_err(io)? == Err(Full) {
                return Err(Error::NoSpace { pool: self.path.clone(), what: "the log is full".into() });
            }
        }
        let next_id = state.view.next_id();
        // A frame that could not be stored leaves nothing behind that counts, but a medium that refuses a store to
        // blocks that were written before is broken.
        let id = state.log.append(draft, next_id).map_err(|error| self.fail("writing the log", &error))?;
        self.commits.stored(id);
        self.note_room(&state.log);
        Ok(id)
    }
}

//! Appending frames to the log.

use crate::error::{Error, Result};
use crate::ids::TxId;
use crate::log::blocks::Reserve;
use crate::log::draft::Draft;
use crate::log::file::LOG;
use crate::pool::opened::{Changing, Live, Pool};

impl Pool {
    /// Makes room and appends a frame. Others read the view while the host takes it; `then` is run with the frame
    /// counted, before they see that.
    pub(crate) fn append<T>(
        &self,
        state: &mut Changing<'_>,
        draft: Draft,
        reserve: Reserve,
        then: impl FnOnce(&mut Live, TxId) -> T,
    ) -> Result<T> {
        self.check_writable()?;
        if draft.len() > state.log.largest_frame() {
            return Err(Error::TooLarge { pool: self.path.clone(), bytes: draft.len() });
        }
        let io = |error| Error::in_pool(&self.path, LOG, "write", error);
        let mut begun = state.log.begin(draft.len(), reserve).map_err(io)?;
        if begun.is_err() {
            self.grow_within(state, reserve)?;
            begun = state.log.begin(draft.len(), reserve).map_err(io)?;
        }
        let Ok(begun) = begun else {
            return Err(Error::NoSpace { pool: self.path.clone(), what: "the log is full".into() });
        };
        if let Some(begun) = begun {
            state.with_upgraded(|live| live.log.count_begun(begun));
        }
        let next_id = state.view.next_id();
        // A frame that could not be stored leaves nothing behind that counts, but a medium that refuses a store to
        // blocks that were written before is broken.
        let stored = state.log.store(draft, next_id).map_err(|error| self.fail("writing the log", &error))?;
        Ok(state.with_upgraded(|live| {
            let id = live.log.count(stored);
            self.commits.stored(id);
            self.note_room(&live.log);
            then(live, id)
        }))
    }
}

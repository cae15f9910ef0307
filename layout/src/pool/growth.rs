//! Making the log longer, before somebody needs it where that can be: nobody who looks something up waits for it.
//!
//! Rule 7: the blocks are written with zeroes and synced, then the superblocks count them, and only then the log has
//! them. The state's lock is needed for the last step alone. One at a time changes how long the log is.

use std::sync::atomic::Ordering::Relaxed;

use crate::error::{Error, Result};
use crate::log::blocks::{Log, RESERVE_BLOCKS, Reserve};
use crate::log::draft::Draft;
use crate::log::superblock::BLOCKS_MAX;
use crate::medium::domain::Medium;
use crate::pool::opened::{Changing, Pool};

/// An ordinary transaction is not larger than this.
const ORDINARY: usize = 80 << 10;

/// Beyond the reserve, a log has this part of its blocks free before somebody needs them.
const AHEAD: usize = 32;

/// Room that is there whenever somebody begins to change the pool, if the log can have it.
fn ordinary(log: &Log) -> usize {
    ORDINARY.min(log.block_size() / 8)
}

impl Pool {
    /// True if the log should get longer now, so that nobody has to wait for it soon.
    pub fn is_short(&self) -> bool {
        self.upkeep.short.load(Relaxed)
    }

    /// Makes the log longer, if it is short. Ordinary operations go on meanwhile.
    pub fn grow_ahead(&self) -> Result<()> {
        self.grow_unless(|log, refused| refused || !is_short(log))
    }

    /// Makes the log longer, unless there is room for a frame of an ordinary transaction.
    pub(super) fn grow_for(&self, len: usize) -> Result<()> {
        self.grow_unless(|log, refused| refused || log.has_room(len, Reserve::Untouched))
    }

    /// Makes the log longer, unless it has blocks beyond the reserve.
    pub(super) fn grow_beyond_reserve(&self) -> Result<()> {
        self.grow_unless(|log, _| log.free_blocks() > RESERVE_BLOCKS)
    }

    fn grow_unless(&self, enough: impl Fn(&Log, bool) -> bool) -> Result<()> {
        self.check_writable()?;
        let _growing = self.upkeep.growing.lock();
        let allocated = {
            let state = self.state.read();
            if enough(&state.log, self.upkeep.refused.load(Relaxed)) {
                return Ok(());
            }
            state.view.totals().allocated
        };
        let blocks = self.lengthen(allocated)?;
        let mut state = self.state.write();
        state.log.resize(blocks);
        self.note_room(&state.log);
        Ok(())
    }

    /// As a last resort, for whoever has the state's lock and found no room all the same.
    pub(super) fn grow_within(&self, state: &mut Changing<'_>, reserve: Reserve) -> Result<()> {
        // A commit has nothing else to try.
        if self.upkeep.refused.load(Relaxed) && reserve != Reserve::Cleaning {
            return Err(self.full("the log is full"));
        }
        // Whoever is at it needs the lock to end it.
        let Some(_growing) = self.upkeep.growing.try_lock() else {
            return Err(self.full("the log is just getting longer"));
        };
        let blocks = self.lengthen(state.view.totals().allocated)?;
        state.with_upgraded(|live| live.log.resize(blocks));
        self.note_room(&state.log);
        Ok(())
    }

    /// Waits until nobody makes the log longer or shorter.
    pub(super) fn wait_for_growth(&self) {
        drop(self.upkeep.growing.lock());
    }

    /// The state, to store what a commit needs. Where the log has no room for it, and is just getting longer, that is
    /// waited for: nothing of a commit fails for it.
    pub(super) fn state_for_commit(&self, draft: &Draft) -> Changing<'_> {
        loop {
            let state = self.state.upgradable_read();
            if state.log.has_room(draft.len(), Reserve::Cleaning) || self.upkeep.growing.try_lock().is_some() {
                return state;
            }
            drop(state);
            self.wait_for_growth();
        }
    }

    /// Writes more blocks; returns how many there are then. The caller has the turn to grow.
    fn lengthen(&self, allocated: u64) -> Result<usize> {
        self.check_writable()?;
        let refuse = |what| {
            self.upkeep.refused.store(true, Relaxed);
            Err(self.full(what))
        };
        let superblock = self.superblock();
        let more = (superblock.blocks / 8).clamp(1, 64).min(BLOCKS_MAX.saturating_sub(superblock.blocks));
        if more == 0 {
            return refuse("the log has as many blocks as it can have");
        }
        let mut grown = superblock.clone();
        grown.blocks += more;
        if superblock.limit.is_some_and(|limit| {
            grown.log_len().saturating_add(allocated).saturating_add(self.budget.claimed()) > limit
        }) {
            return refuse("the pool's size limit is reached");
        }
        match self.medium.grow(superblock.log_len(), grown.log_len()) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
                self.upkeep.patience.refuse();
                return refuse("the host is full");
            }
            Err(error) => return Err(self.fail("growing the log", &error)),
        }
        let counted = self.superblock.change(&*self.medium, |superblock| superblock.blocks = grown.blocks);
        counted.map_err(|error| self.fail("writing the superblock", &error))?;
        self.upkeep.patience.end();
        Ok(grown.blocks as usize)
    }

    fn full(&self, what: &str) -> Error {
        Error::NoSpace { pool: self.path.clone(), what: what.into() }
    }

    /// The log may be able to grow again: something was given back to the host, or the limit is another.
    pub(super) fn may_grow(&self) {
        self.upkeep.refused.store(false, Relaxed);
    }

    /// Keeps in mind how much room there is in the log, which has just changed.
    pub(super) fn note_room(&self, log: &Log) {
        self.upkeep.short.store(is_short(log) && !self.upkeep.refused.load(Relaxed), Relaxed);
    }

    /// The state, to change it, with room in the log for an ordinary transaction of so many bytes if it can have that.
    pub(super) fn state_with_room(&self, len: Option<usize>) -> Changing<'_> {
        loop {
            let state = self.state.upgradable_read();
            let len = len.unwrap_or_else(|| ordinary(&state.log)).min(state.log.largest_frame());
            if state.log.has_room(len, Reserve::Untouched) || self.upkeep.refused.load(Relaxed) {
                return state;
            }
            drop(state);
            // What keeps it from growing is found out again by whoever stores more than fits.
            if self.grow_for(len).is_err() {
                return self.state.upgradable_read();
            }
        }
    }
}

/// True if what is left of the newest block will not last long, and nothing is free behind it.
fn is_short(log: &Log) -> bool {
    log.free_blocks() <= RESERVE_BLOCKS + log.blocks().len() / AHEAD && !log.has_head_room(log.block_size() / 2)
}

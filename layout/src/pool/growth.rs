//! Making the log longer, before somebody needs it where that can be: nobody who looks something up waits for it.
//!
//! Rule 7: the blocks are written with zeroes and synced, then the superblocks count them, and only then the log has
//! them. The state's lock is needed for the last step alone. One at a time changes how long the log is.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use crate::error::{Error, Result};
use crate::log::blocks::{Log, RESERVE_BLOCKS, Reserve};
use crate::log::draft::Draft;
use crate::log::superblock::BLOCKS_MAX;
use crate::medium::domain::Medium;
use crate::pool::budget::WhenOutOfRoom;
use crate::pool::opened::{Changing, Pool};

/// An ordinary transaction is not larger than this.
const ORDINARY: usize = 80 << 10;

/// The log begins to get longer when this part of its blocks is left beyond the reserve.
const LOW: usize = 32;

/// So many bytes a log has free beyond the reserve, where the pool has plenty of room: who makes many names has them,
/// while the host takes seconds to make the log longer.
const AHEAD: u64 = 16 << 20;

/// That is at most this part of all the room that the pool may have, ...
const OF_ALL: u64 = 64;

/// ... and of what is left of it.
const OF_REST: u64 = 16;

/// So long it is left alone that there was no room ahead, at first and at most.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_MOST: Duration = Duration::from_secs(3600);

/// So long who wants room waits for the log to get longer, before he looks whether cleaning has made some.
const AGAIN: Duration = Duration::from_millis(10);

/// So often he looks before he asks for more of that.
const RINGS: u32 = 10;

/// Room that is there whenever somebody begins to change the pool, if the log can have it.
pub(super) fn ordinary(log: &Log) -> usize {
    ORDINARY.min(log.block_size() / 8)
}

impl Pool {
    /// True if the log should get longer now, so that nobody has to wait for it soon.
    pub fn is_short(&self) -> bool {
        self.upkeep.short.load(Relaxed)
    }

    /// Makes the log longer, if it is short, or has less free than it could have. Ordinary operations go on meanwhile.
    pub fn grow_ahead(&self) -> Result<()> {
        let growing = self.upkeep.growing.lock();
        self.grow_unless(&growing, None, |log, refused| refused || !is_short(log))?;
        let Some(ahead) = self.find_ahead() else { return Ok(()) };
        let mut no_room = self.upkeep.no_room_ahead.lock();
        if no_room.is_some_and(|(since, pause)| since.elapsed() < pause) {
            return Ok(());
        }
        let grown = self.grow_unless(&growing, Some(ahead), |log, _| log.free_blocks() >= RESERVE_BLOCKS + ahead);
        // A try writes what there is room for, and gives it back: not again and again for what nobody needs yet.
        *no_room = match &grown {
            Err(Error::NoSpace { .. }) => {
                let pause = no_room.map_or(PAUSE, |(_, pause)| (pause * 2).min(PAUSE_MOST));
                Some((Instant::now(), pause))
            }
            _ => None,
        };
        grown
    }

    /// Makes the log longer, unless there is room for a frame of an ordinary transaction. Where somebody else is at it,
    /// that is waited for, or for cleaning.
    pub(super) fn grow_for(&self, len: usize) -> Result<()> {
        let enough = |log: &Log, refused| refused || log.has_room(len, Reserve::Untouched);
        for tries in 0_u32.. {
            if let Some(growing) = self.upkeep.growing.try_lock_for(AGAIN) {
                return self.grow_unless(&growing, None, enough);
            }
            if enough(&self.state.read().log, self.upkeep.refused.load(Relaxed)) {
                return Ok(());
            }
            if tries.is_multiple_of(RINGS) {
                self.budget.is_out_of_room();
            }
        }
        Ok(())
    }

    /// Has `when` called while somebody waits for the log to get longer, again and again: what is dead in it is room,
    /// too, and can be had by [`Pool::maintain`].
    pub fn when_out_of_room(&self, when: WhenOutOfRoom) {
        self.budget.when_out_of_room(when);
    }

    /// How many blocks the log should have free beyond the reserve, as far as the pool has room; none if nobody knows.
    pub(super) fn find_ahead(&self) -> Option<usize> {
        // Nobody makes names in a pool that is not served.
        if !self.budget.has_cleaner() {
            return Some(0);
        }
        let superblock = self.superblock();
        let host = self.host_space().ok()?;
        let unit = host.fragment_size();
        let (mut all, mut rest) = (host.blocks().saturating_mul(unit), host.blocks_available().saturating_mul(unit));
        if let Some(limit) = superblock.limit {
            let used = superblock.log_len() + self.view().totals().allocated + self.budget.claimed();
            (all, rest) = (all.min(limit), rest.min(limit.saturating_sub(used)));
        }
        let bytes = AHEAD.min(all / OF_ALL).min(rest / OF_REST);
        Some((bytes / u64::from(superblock.block_size)) as usize)
    }

    /// The caller has the turn to grow, and wants a block, or so many free beyond the reserve that nobody needs yet.
    fn grow_unless(
        &self,
        _growing: &MutexGuard<'_, ()>,
        ahead: Option<usize>,
        enough: impl Fn(&Log, bool) -> bool,
    ) -> Result<()> {
        self.check_writable()?;
        let (allocated, missing) = {
            let state = self.state.read();
            if enough(&state.log, self.upkeep.refused.load(Relaxed)) {
                return Ok(());
            }
            let missing = |ahead: usize| (RESERVE_BLOCKS + ahead).saturating_sub(state.log.free_blocks()) as u32;
            (state.view.totals().allocated, ahead.map(missing))
        };
        let blocks = self.lengthen(allocated, missing)?;
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
        let blocks = self.lengthen(state.view.totals().allocated, None)?;
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

    /// Writes more blocks, so many as are to be `ahead` if there is a number; returns how many there are then. The
    /// caller has the turn to grow.
    fn lengthen(&self, allocated: u64, ahead: Option<u32>) -> Result<usize> {
        self.check_writable()?;
        let refuse = |what| {
            if ahead.is_none() {
                self.upkeep.refused.store(true, Relaxed);
            }
            Err(self.full(what))
        };
        let superblock = self.superblock();
        let more = ahead.unwrap_or(superblock.blocks / 8).clamp(1, 64);
        let more = more.min(BLOCKS_MAX.saturating_sub(superblock.blocks));
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
                if ahead.is_none() {
                    self.upkeep.patience.refuse();
                }
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
    log.free_blocks() <= RESERVE_BLOCKS + log.blocks().len() / LOW && !log.has_head_room(log.block_size() / 2)
}

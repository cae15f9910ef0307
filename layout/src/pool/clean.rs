//! An open pool: transactions in, commits out.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use crate::error::{Error, Result};
use crate::ids::{POOL, TxId};
use crate::log::blocks::{Block, Log, RESERVE_BLOCKS, Reserve};
use crate::log::draft::Draft;
use crate::log::file::LOG;
use crate::log::filled::BlockBytes;
use crate::log::frame;
use crate::log::ledger::Placed;
use crate::log::length;
use crate::log::record::Record;
use crate::log::scan::{self, Found};
use crate::log::superblock::Superblock;
use crate::log::transaction::Transaction;
use crate::medium::domain::Medium;
use crate::pool::create::INITIAL_BLOCKS;
use crate::pool::growth::ordinary;
use crate::pool::opened::{Live, Pool};
use crate::pool::unanswered::unanswered;

/// Records are carried over in frames of about this many bytes, so that others are not kept waiting.
const BATCH: usize = 64 << 10;

/// So long is waited for who cleans one.
const CLEANED: Duration = Duration::from_secs(2);

/// A block worth cleaning.
#[derive(Clone, Copy, Debug)]
struct Victim {
    index: usize,
    incarnation: u64,
    first: u64,
    last: u64,
    /// Bytes that would have to be carried over.
    cost: u64,
}

/// What cleaning each block in use would have to carry over, by incarnation.
fn costs(state: &Live) -> BTreeMap<u64, u64> {
    let mut in_use: Vec<u64> = state.log.blocks().iter().filter_map(Block::incarnation).collect();
    in_use.sort_unstable();
    let older = std::iter::once(None).chain(in_use.iter().copied().map(Some));
    in_use.iter().zip(older).map(|(one, older)| (*one, state.view.ledger().cost(*one, older))).collect()
}

/// The block whose cleaning copies least; among equals the oldest.
fn cheapest(victims: &mut dyn Iterator<Item = Victim>) -> Option<Victim> {
    victims.min_by_key(|victim| (victim.cost, victim.incarnation))
}

/// Whoever was refused before that has not seen it.
fn is_recent(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() < Duration::from_secs(1))
}

/// The blocks that stay where so many are in use: the log can grow by a quarter before the host has to be asked again,
/// or by what it should have ahead.
fn staying(in_use: usize, ahead: usize) -> usize {
    (in_use + (in_use / 4).max(ahead) + RESERVE_BLOCKS).max(INITIAL_BLOCKS as usize)
}

impl Pool {
    /// A bounded stretch of housekeeping for the log, if there is anything worth doing: cleans blocks, and gives blocks
    /// that it will not need soon back to the host.
    pub fn maintain(&self) -> Result<()> {
        self.check_writable()?;
        self.refill_values();
        let cleaned = self.clean_some();
        self.may_grow();
        cleaned?;
        // Nobody knows how much room there is.
        let Some(ahead) = self.find_ahead() else { return Ok(()) };
        // The log is left alone until it is worth a few flushes, unless hardly anything is left in the pool: then it
        // gets as short as it was.
        self.shrink(ahead, |blocks, in_use| if in_use <= 1 { 1 } else { (blocks / 4).max(2) })
    }

    /// True if the log is longer than its records need by a block at least, so that some of it can be given back to the
    /// host; or was, a moment ago. Who finds no space looks once more then.
    pub fn may_be_shortened(&self) -> bool {
        let Some(last) = self.upkeep.shortening.try_lock() else { return true };
        is_recent(last.done) || (self.is_long() && !is_recent(last.futile))
    }

    fn is_long(&self) -> bool {
        let (_, wasteful) = self.waste();
        let log = &self.state.read().log;
        let blocks = log.blocks().len();
        blocks > staying(blocks - log.free_blocks(), 0) + 1 || (wasteful && blocks > INITIAL_BLOCKS as usize + 1)
    }

    /// Gives back to the host what the log does not need, for who finds no space. Waits for commits, for whoever does
    /// the same, and a while for who has the blocks stay as they are. True if it is worth looking once more.
    pub fn shorten(&self) -> Result<bool> {
        self.check_writable()?;
        let mut last = self.upkeep.shortening.lock();
        if is_recent(last.done) {
            return Ok(true);
        }
        if is_recent(last.futile) || self.upkeep.cleaning.try_lock_for(CLEANED).is_none() {
            return Ok(false);
        }
        let before = self.usage().log_blocks;
        let (mut stalled, mut progress) = (0, None);
        // A round cleans a part of it, and cuts what is free at its end.
        while self.is_long() && stalled < 2 {
            self.clean_some()?;
            self.shrink(0, |_, _| 1)?;
            let usage = self.usage();
            let now = (usage.log_blocks, usage.free_blocks);
            stalled = if progress.replace(now) == Some(now) { stalled + 1 } else { 0 };
        }
        let is_shorter = self.usage().log_blocks < before;
        *(if is_shorter { &mut last.done } else { &mut last.futile }) = Some(Instant::now());
        Ok(is_shorter)
    }

    /// Cuts off what is free at the end of the log, but for what an ordinary pool has there, for who has the turn to
    /// change how long it is.
    pub(super) fn cut_log(&self, growing: &MutexGuard<'_, ()>) -> Result<()> {
        self.cut(growing, 0, |_, _| 1).map(drop)
    }

    /// As [`Pool::cut_log`], but what is in the way goes further in front. Once, while nobody makes the log longer.
    pub(super) fn cut_some(&self) -> Result<()> {
        self.shrink(0, |_, _| 1)
    }

    fn clean_some(&self) -> Result<()> {
        let worth = self.block_size() * 3 / 4;
        let most = self.usage().log_blocks / 8 + 1;
        for _ in 0..most {
            let (free, wasteful) = self.waste();
            if free > RESERVE_BLOCKS + 1 && !wasteful {
                return Ok(());
            }
            if !self.clean_if(|victims| cheapest(victims).filter(|victim| victim.cost <= worth))? {
                break;
            }
        }
        if self.state.read().log.free_blocks() > RESERVE_BLOCKS {
            return Ok(());
        }
        // Who makes the log longer may wait for the host, and is somebody else.
        if self.upkeep.refused.load(Relaxed) { self.clean_if(|victims| cheapest(victims)).map(drop) } else { Ok(()) }
    }

    /// Cuts free blocks off the end of the log, if so many as `worth` says of all and of those in use can go, and those
    /// that are to be `ahead` stay; or has the last one in use that is in the way cleaned.
    fn shrink(&self, ahead: usize, worth: impl Fn(usize, usize) -> usize) -> Result<()> {
        // Who changes how long the log is waits for the host; who looks something up does not, nor who waits for the
        // next block to be cleaned.
        let Some(growing) = self.upkeep.growing.try_lock() else { return Ok(()) };
        let Some(stay) = self.cut(&growing, ahead, worth)? else { return Ok(()) };
        drop(growing);
        // The live records of a block near the end go to one further in front.
        self.clean_if(|victims| victims.max_by_key(|victim| victim.index).filter(|last| last.index >= stay)).map(drop)
    }

    /// The first half of it. How many blocks are to stay, if one behind them is in the way.
    fn cut(
        &self,
        _growing: &MutexGuard<'_, ()>,
        ahead: usize,
        worth: impl Fn(usize, usize) -> usize,
    ) -> Result<Option<usize>> {
        let mut state = self.state.write();
        let log = &mut state.log;
        let (blocks, free) = (log.blocks().len(), log.free_blocks());
        let stay = staying(blocks - free, ahead);
        let worth = worth(blocks, blocks - free);
        if blocks < stay + worth {
            return Ok(None);
        }
        let trailing = log.blocks().iter().rev().take_while(|block| **block == Block::Free).count();
        let cut = trailing.min(blocks - stay);
        if cut < worth {
            log.leave_head_behind(stay);
            return Ok(Some(stay));
        }
        // From now on nobody takes one of them.
        log.resize(blocks - cut);
        self.note_room(&state.log);
        drop(state);
        let written = self.superblock.change(&*self.medium, |superblock| superblock.blocks -= cut as u32);
        written.map_err(|error| self.fail("writing the superblock", &error))?;
        // A log that is longer than the superblock says is fine, too.
        if let Err(error) = self.medium.shrink(self.superblock.of(Superblock::log_len)) {
            log::warn!("{}: cannot make the log shorter: {error}", self.path.display());
        }
        Ok(None)
    }

    /// Free blocks, and whether most of what the others hold is dead.
    fn waste(&self) -> (usize, bool) {
        let state = self.state.read();
        let costs = costs(&state);
        let (count, loads): (u64, u64) = (costs.len() as u64, costs.values().sum());
        let bytes = count * state.log.block_size() as u64;
        (state.log.free_blocks(), count > 2 && loads < bytes * 2 / 5)
    }

    /// Cleans until an ordinary transaction finds room again, or nothing is left that would help. True if it helped.
    pub(crate) fn clean_for_room(&self) -> Result<bool> {
        let blocks = || self.state.read().log.free_blocks();
        let (before, most) = (blocks(), self.block_size() * 9 / 10);
        // Each block once at most: what is carried over may fill as much as was freed.
        for _ in 0..self.usage().log_blocks {
            if blocks() > RESERVE_BLOCKS
                || !self.clean_if(|victims| cheapest(victims).filter(|victim| victim.cost <= most))?
            {
                break;
            }
        }
        Ok(blocks() > before)
    }

    fn block_size(&self) -> u64 {
        u64::from(self.superblock.of(|superblock| superblock.block_size))
    }

    /// Cleans the block that `choose` chooses, if it chooses one.
    fn clean_if(&self, choose: impl Fn(&mut dyn Iterator<Item = Victim>) -> Option<Victim>) -> Result<bool> {
        let _cleaner = self.upkeep.cleaning.lock();
        // Only records at or below the horizon are cleaned. Bytes of files are not carried over: their
        // segments hold them from now on.
        self.settle_values()?;
        self.commit(self.newest())?;
        let victim = choose(&mut self.victims().into_iter());
        let Some(victim) = victim.filter(|victim| self.fits(victim)) else { return Ok(false) };
        if !self.state.write().log.leave_full_head(victim.index, victim.last) {
            return Ok(false);
        }
        self.clean(victim)?;
        Ok(true)
    }

    /// The blocks that can be cleaned.
    fn victims(&self) -> Vec<Victim> {
        let state = self.state.read();
        let costs = costs(&state);
        // Where nothing else is left, and the next frame would start another block as well.
        let log = &state.log;
        let is_full_head = (1..=RESERVE_BLOCKS).contains(&log.free_blocks()) && !log.has_head_room(ordinary(log));
        let victims = state.log.blocks().iter().enumerate().filter_map(|(index, block)| match *block {
            Block::InUse { incarnation, first, last, .. }
                if (!state.log.is_head(index) || is_full_head) && last <= state.log.horizon() =>
            {
                Some(Victim { index, incarnation, first, last, cost: *costs.get(&incarnation)? })
            }
            _ => None,
        });
        victims.collect()
    }

    /// True if there is room for all that cleaning the victim appends. A cleaning that ran out of it half-way would
    /// have used up the last block, and freed none.
    fn fits(&self, victim: &Victim) -> bool {
        let state = self.state.read();
        // Two batches that follow each other are larger than one may be, but at the end of a block; somebody's commit
        // may come behind each.
        let frames = 2 * victim.cost as usize / BATCH.min(state.log.largest_frame()) + 4;
        let frames_most = victim.last.saturating_sub(victim.first).saturating_add(1);
        let numbers = (unanswered().len() as u64).min(frames_most) as usize;
        let overhead = 2 * frames * frame::HEADER + (1 + numbers) * (frame::HEADER + length::RETIRED);
        victim.cost as usize + overhead <= state.log.room_for_cleaning()
    }

    fn clean(&self, victim: Victim) -> Result<()> {
        let io = |what| move |error| Error::in_pool(&self.path, LOG, what, error);
        let superblock = self.superblock();
        let offset = self.state.read().log.block_offset(victim.index);
        let bytes = BlockBytes::whole(&*self.medium, &superblock, victim.index).map_err(io("read"))?;
        let scanned = scan::scan_block(&bytes, victim.index as u32, &superblock);
        let whole = scanned.header.is_some_and(|header| header.incarnation == victim.incarnation)
            && scanned.frames.iter().all(|found| found.sound)
            && scanned.frames.last().map(|found| found.header.id) == Some(victim.last)
            && victim.last.checked_sub(victim.first).is_some_and(|more| scanned.frames.len() as u64 == more + 1);
        if !whole {
            let damaged = std::io::Error::new(std::io::ErrorKind::InvalidData, "a block to be cleaned is damaged");
            return Err(io("clean")(damaged));
        }
        self.carry_over(&victim, &bytes, &scanned.frames).map_err(io("clean"))??;
        self.commit(self.newest())?;
        let zeroed = Log::zero_block(&*self.medium, offset, bytes.len());
        zeroed.map_err(|error| self.fail("zeroing a block of the log", &error))?;
        let mut state = self.state.write();
        state.log.set_free(victim.index);
        self.note_room(&state.log);
        state.view.forget_block(victim.incarnation);
        log::debug!("{}: cleaned log block {}", self.path.display(), victim.index);
        Ok(())
    }

    /// Appends the victim's live records again, and the record that nothing of its transactions is missed.
    fn carry_over(&self, victim: &Victim, bytes: &BlockBytes, frames: &[Found]) -> std::io::Result<Result<()>> {
        let mut records = Vec::new();
        for found in frames {
            let frame = bytes.get(found.offset..found.end()).ok_or(std::io::ErrorKind::InvalidData)?;
            for record in frame::records(&found.header, frame) {
                records.push(record.map_err(|what| std::io::Error::new(std::io::ErrorKind::InvalidData, what))?);
            }
        }
        let mut rest = records.as_slice();
        while !rest.is_empty() {
            let most = BATCH.min(self.state.read().log.room_for_batch() - frame::HEADER);
            let mut size = 0;
            let batch = rest.iter().take_while(|(_, _, encoded)| {
                size += encoded.len();
                size <= most || size == encoded.len()
            });
            let (batch, behind) = rest.split_at(batch.count());
            rest = behind;
            if let Err(error) = self.carry_batch(victim, batch) {
                return Ok(Err(error));
            }
        }
        let mut edit = self.edit_with_any_room();
        let record = edit.retire(TxId(victim.first), TxId(victim.last));
        // Of requests that may come again it has to be known that they were done: a frame says it of one.
        let unanswered = unanswered();
        let mut numbers: Vec<u64> = frames.iter().map(|found| found.header.unique).collect();
        numbers.retain(|unique| unanswered.contains(unique));
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() {
            numbers.push(0);
        }
        for unique in numbers {
            let transaction = Transaction::new(unique).with(record.clone());
            if let Err(error) = edit.store_again(transaction) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    fn carry_batch(&self, victim: &Victim, batch: &[(Record, u64, &[u8])]) -> Result<()> {
        let mut state = self.state.upgradable_read();
        let mut draft = Draft::new(0);
        let (mut carried, mut dead) = (Vec::new(), Vec::new());
        for (record, seq, encoded) in batch {
            let placed = Placed { seq: *seq, incarnation: victim.incarnation };
            let needed = |since, until| state.log.has_block_in(since..until);
            if state.view.is_live(record, placed, needed) {
                draft.push_encoded(encoded);
                carried.push((record, placed));
                if record.ino() == POOL {
                    draft.say_of_pool();
                }
            } else {
                dead.push((record, placed));
            }
        }
        state.with_upgraded(|live| dead.into_iter().for_each(|(record, at)| live.view.drop_tomb(record, at)));
        if draft.is_empty() {
            return Ok(());
        }
        self.append(&mut state, draft, Reserve::Cleaning, |live, _| {
            let incarnation = live.log.head_incarnation();
            for (record, from) in carried {
                live.view.relocate(record, from, Placed { seq: from.seq, incarnation });
            }
        })
    }
}

impl Pool {
    /// Makes room after an operation was refused for lack of it: commits, removes what is free, and cleans the log.
    /// True if it is worth trying again.
    pub fn reclaim(&self) -> Result<bool> {
        self.wait_for_growth();
        self.commit(self.newest())?;
        let unlinked = self.unlink_covered();
        self.may_grow();
        Ok(self.clean_for_room()? || unlinked > 0)
    }
}

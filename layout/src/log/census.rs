//! Which transactions the blocks of a log hold, which of them are kept, and what each block holds of those.

use crate::ids::TxId;
use crate::log::blocks::Block;
use crate::log::frame;
use crate::log::scan::ScannedBlock;

/// Which transactions the blocks hold.
pub(crate) struct Census<'a> {
    blocks: &'a [ScannedBlock],
    /// Transactions whose frames are sound, in order.
    sound: Vec<u64>,
}

impl<'a> Census<'a> {
    pub(crate) fn new(blocks: &'a [ScannedBlock]) -> Self {
        let frames = blocks.iter().flat_map(|block| &block.frames);
        let mut sound: Vec<u64> = frames.filter(|found| found.sound).map(|found| found.header.id).collect();
        sound.sort_unstable();
        sound.dedup();
        Self { blocks, sound }
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = &frame::Header> {
        self.blocks.iter().flat_map(|block| &block.frames).map(|found| &found.header)
    }

    /// Ranges that frames up to `upto` say are retired.
    pub(crate) fn retired(&self, upto: u64) -> Vec<(TxId, TxId)> {
        let all = self.blocks.iter().flat_map(|block| &block.retired);
        let mut ranges: Vec<_> = all.filter(|(id, ..)| *id <= upto).map(|(_, first, last)| (*first, *last)).collect();
        ranges.sort_unstable();
        ranges
    }

    /// The transactions up to `upto` that are neither there nor retired, as ranges.
    pub(crate) fn missing(&self, upto: u64) -> Vec<(u64, u64)> {
        let mut missing: Vec<(u64, u64)> = Vec::new();
        let retired = self.retired(upto);
        let mut sound = self.sound.iter().copied().peekable();
        let mut next = 1;
        while next <= upto {
            while sound.next_if(|id| *id < next).is_some() {}
            if sound.next_if_eq(&next).is_some() {
                next += 1;
            } else if let Some((_, last)) = retired.iter().find(|(first, last)| first.0 <= next && next <= last.0) {
                next = last.0 + 1;
            } else {
                // Missing up to the next transaction that is there, or retired.
                let behind = sound.peek().copied().unwrap_or(u64::MAX);
                let retired = retired.iter().map(|(first, _)| first.0).filter(|first| *first > next).min();
                let end = behind.min(retired.unwrap_or(u64::MAX)).min(upto + 1) - 1;
                missing.push((next, end));
                next = end + 1;
            }
        }
        missing
    }

    /// The newest horizon that the log itself and the two fixed places vouch for.
    pub(crate) fn horizon(&self, mark: u64) -> u64 {
        self.headers().map(|header| header.horizon).max().unwrap_or(0).max(mark)
    }

    /// The newest horizon after a power loss: proposed by a frame, with all frames up to it there; or vouched for.
    pub(crate) fn horizon_after_power_loss(&self, mark: u64) -> u64 {
        let horizon = self.horizon(mark);
        let mut proposed: Vec<u64> = self
            .blocks
            .iter()
            .flat_map(|block| &block.frames)
            .filter(|found| found.sound && found.header.proposal > horizon)
            .map(|found| found.header.proposal)
            .collect();
        proposed.sort_unstable();
        proposed.into_iter().rev().find(|upto| self.missing(*upto).is_empty()).unwrap_or(horizon)
    }

    /// The newest transaction of a log whose server stored every frame whole, but perhaps the last.
    pub(crate) fn newest_complete(&self) -> u64 {
        self.sound.last().copied().unwrap_or(0)
    }
}

/// What each block holds of the kept transactions, and which blocks have to be zeroed from which byte on.
pub(crate) fn decide_blocks(
    blocks: &[ScannedBlock],
    retired: &[(TxId, TxId)],
    keep: u64,
) -> (Vec<Block>, Vec<(usize, usize)>) {
    let mut zero = Vec::new();
    let mut decide = |index: usize, block: &ScannedBlock| {
        let kept = block.frames.iter().rfind(|found| found.header.id <= keep && found.sound);
        if let (Some(header), Some(last_kept)) = (block.header, kept) {
            let last = last_kept.header.id;
            // A block whose cleaning was done but for the zeroing.
            let gone = retired.iter().any(|(first, end)| first.0 <= header.first && last <= end.0);
            if !gone {
                let used = last_kept.offset + last_kept.header.length;
                let behind = block.frames.last().is_some_and(|found| found.header.id > last);
                if behind || block.garbage && last == keep {
                    zero.push((index, used));
                }
                return Block::InUse { incarnation: header.incarnation, first: header.first, last, used };
            }
        }
        if !block.empty {
            zero.push((index, 0));
        }
        Block::Free
    };
    let uses = blocks.iter().enumerate().map(|(index, block)| decide(index, block)).collect();
    (uses, zero)
}

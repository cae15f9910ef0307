//! Which transactions the blocks of a log hold, which of them are kept, and what each block holds of those.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
        let mut retired = retired.iter().map(|(first, last)| (first.0, last.0)).peekable();
        let mut sound = self.sound.iter().copied().peekable();
        let (mut next, mut gone) = (1, 0);
        while next <= upto {
            while sound.next_if(|id| *id < next).is_some() {}
            while let Some((_, last)) = retired.next_if(|(first, _)| *first <= next) {
                gone = last.max(gone);
            }
            if sound.next_if_eq(&next).is_some() {
                next += 1;
            } else if next <= gone {
                next = gone + 1;
            } else {
                // Missing up to the next transaction that is there, or retired.
                let behind = sound.peek().copied().unwrap_or(u64::MAX);
                let retired = retired.peek().map_or(u64::MAX, |(first, _)| *first);
                let end = behind.min(retired).min(upto + 1) - 1;
                missing.push((next, end));
                next = end + 1;
            }
        }
        missing
    }

    /// The newest of these transactions up to which none is missing. They are in order.
    fn newest_without_gap(&self, candidates: &[u64]) -> Option<u64> {
        let all = self.blocks.iter().flat_map(|block| &block.retired);
        let mut retired: Vec<_> = all.map(|(id, first, last)| (*id, first.0, last.0)).collect();
        retired.sort_unstable();
        let mut retired = retired.into_iter().peekable();
        // Those that frames up to the candidate tell of, by the first transaction.
        let mut told = BinaryHeap::new();
        let mut sound = self.sound.iter().copied().peekable();
        let (mut next, mut gone, mut newest) = (1, 0, None);
        for &upto in candidates {
            while let Some((_, first, last)) = retired.next_if(|(id, ..)| *id <= upto) {
                told.push(Reverse((first, last)));
            }
            while next <= upto {
                while sound.next_if(|id| *id < next).is_some() {}
                while let Some(Reverse((_, last))) = told.peek().filter(|Reverse((first, _))| *first <= next) {
                    gone = (*last).max(gone);
                    told.pop();
                }
                match sound.peek() {
                    _ if next <= gone => next = gone + 1,
                    Some(id) if *id == next => next += 1,
                    _ => break,
                }
            }
            if next > upto {
                newest = Some(upto);
            }
        }
        newest
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
        self.newest_without_gap(&proposed).unwrap_or(horizon)
    }

    /// The newest transaction of a log whose server stored every frame whole, but perhaps the last.
    pub(crate) fn newest_complete(&self) -> u64 {
        self.sound.last().copied().unwrap_or(0)
    }
}

/// What each block holds of the kept transactions, and which blocks have to be zeroed from which byte on. What is
/// retired is in order.
pub(crate) fn decide_blocks(
    blocks: &[ScannedBlock],
    retired: &[(TxId, TxId)],
    keep: u64,
) -> (Vec<Block>, Vec<(usize, usize)>) {
    let mut zero = Vec::new();
    // Up to where what begins at or before each is retired.
    let furthest = |end: &mut u64, (_, last): &(TxId, TxId)| {
        *end = last.0.max(*end);
        Some(*end)
    };
    let ends: Vec<u64> = retired.iter().scan(0, furthest).collect();
    let mut decide = |index: usize, block: &ScannedBlock| {
        let kept = block.frames.iter().rfind(|found| found.header.id <= keep && found.sound);
        if let (Some(header), Some(last_kept)) = (block.header, kept) {
            let last = last_kept.header.id;
            // A block whose cleaning was done but for the zeroing.
            let before = retired.partition_point(|(first, _)| first.0 <= header.first);
            let gone = before.checked_sub(1).is_some_and(|index| last <= ends[index]);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::block;
    use crate::log::scan::Found;

    /// A log of one block, of these transactions with what each proposes, and these ranges with the frames that say
    /// that they are retired.
    fn block(frames: &[(u64, u64)], retired: &[(u64, u64, u64)]) -> ScannedBlock {
        let found = |&(id, proposal): &(u64, u64)| {
            let header = frame::Header { id, proposal, length: frame::HEADER, ..frame::Header::default() };
            Found { header, offset: block::HEADER, sound: true }
        };
        let retired = retired.iter().map(|&(id, first, last)| (id, TxId(first), TxId(last)));
        ScannedBlock {
            header: frames.first().map(|(id, _)| block::Header { incarnation: 1, first: *id, index: 0 }),
            frames: frames.iter().map(found).collect(),
            retired: retired.collect(),
            ..ScannedBlock::default()
        }
    }

    /// Number by number.
    fn missing(frames: &[(u64, u64)], retired: &[(u64, u64, u64)], upto: u64) -> Vec<u64> {
        let is_there = |number: u64| frames.iter().any(|(id, _)| *id == number);
        let is_retired =
            |number| retired.iter().any(|(id, first, last)| *id <= upto && (*first..=*last).contains(&number));
        (1..=upto).filter(|number| !is_there(*number) && !is_retired(*number)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_missing_is_what_is_neither_there_nor_retired(
            mut frames in prop::collection::vec((1..40_u64, 0..45_u64), 0..40),
            retired in prop::collection::vec((1..40_u64, 1..40_u64, 0..8_u64), 0..10),
            upto in 0..45_u64,
        ) {
            frames.sort_unstable();
            let retired: Vec<_> = retired.iter().map(|(id, first, more)| (*id, *first, first + more)).collect();
            let blocks = [block(&frames, &retired)];
            let census = Census::new(&blocks);
            let listed: Vec<u64> = census.missing(upto).iter().flat_map(|(first, last)| *first..=*last).collect();
            prop_assert_eq!(listed, missing(&frames, &retired, upto));
            let proposed = frames.iter().map(|(_, proposal)| *proposal);
            let whole = proposed.filter(|upto| missing(&frames, &retired, *upto).is_empty()).max().unwrap_or(0);
            prop_assert_eq!(census.horizon_after_power_loss(0), whole);
            let told = census.retired(upto);
            let (uses, _) = decide_blocks(&blocks, &told, upto);
            let last = frames.iter().map(|(id, _)| *id).filter(|id| *id <= upto).max();
            let gone = |last| told.iter().any(|(first, end)| first.0 <= frames[0].0 && last <= end.0);
            prop_assert_eq!(uses[0] != Block::Free, last.is_some_and(|last| !gone(last)));
        }
    }

    #[test]
    fn gaps_and_proposals_without_number_are_gone_through_once() {
        let many = 200_000;
        let frames: Vec<(u64, u64)> = (2..many).map(|number| (2 * number, 2 * number)).collect();
        let retired: Vec<(u64, u64, u64)> =
            (2..many).map(|number| (2 * number, 2 * number + 1, 2 * number + 1)).collect();
        let blocks = [block(&frames, &retired)];
        let census = Census::new(&blocks);
        assert_eq!(census.horizon_after_power_loss(0), 0, "the first one is missing");
        assert_eq!(census.missing(2 * many - 2), [(1, 3)]);
    }
}

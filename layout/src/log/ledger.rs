//! Where the live records are: bytes per log block, so that cleaning knows which block is worth it.
//!
//! A log block is known by its incarnation, the number it got when it was last taken into use; incarnations only grow.

use std::collections::BTreeMap;

/// Where a record stands: its number in its object's chain and the block that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub seq: u64,
    pub incarnation: u64,
}

/// A removal that must be kept: an older record of the same key may still be in a block of `since..placed.incarnation`,
/// and would come back to life without it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tomb {
    pub placed: Placed,
    pub since: u64,
}

#[derive(Debug, Default)]
struct BlockLoad {
    /// Bytes of records that the view rests on.
    live: u64,
    /// Bytes of removals kept for older blocks' sake, by the oldest such block.
    tombs: BTreeMap<u64, u64>,
}

/// Live bytes per block in use, and the number of live records.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    blocks: BTreeMap<u64, BlockLoad>,
    records: u64,
}

impl Ledger {
    pub fn add(&mut self, placed: Placed, bytes: usize) {
        self.blocks.entry(placed.incarnation).or_default().live += bytes as u64;
        self.records += 1;
    }

    pub fn sub(&mut self, placed: Placed, bytes: usize) {
        if let Some(load) = self.blocks.get_mut(&placed.incarnation) {
            load.live = load.live.saturating_sub(bytes as u64);
        }
        self.records = self.records.saturating_sub(1);
    }

    pub fn add_tomb(&mut self, tomb: &Tomb, bytes: usize) {
        let load = self.blocks.entry(tomb.placed.incarnation).or_default();
        *load.tombs.entry(tomb.since).or_default() += bytes as u64;
    }

    pub fn sub_tomb(&mut self, tomb: &Tomb, bytes: usize) {
        if let Some(load) = self.blocks.get_mut(&tomb.placed.incarnation) {
            let left = load.tombs.remove(&tomb.since).unwrap_or_default().saturating_sub(bytes as u64);
            if left > 0 {
                load.tombs.insert(tomb.since, left);
            }
        }
    }

    /// Bytes of a block that cleaning has to carry over. `older` is the youngest block in use among those older than
    /// it: removals that were kept for the sake of others alone have nothing to protect any more.
    pub fn cost(&self, incarnation: u64, older: Option<u64>) -> u64 {
        let Some(load) = self.blocks.get(&incarnation) else { return 0 };
        let tombs = older.map_or(0, |older| load.tombs.range(..=older).map(|(_, bytes)| bytes).sum());
        load.live + tombs
    }

    /// The block is no longer in the log.
    pub fn forget_block(&mut self, incarnation: u64) {
        self.blocks.remove(&incarnation);
    }

    pub fn records(&self) -> u64 {
        self.records
    }
}

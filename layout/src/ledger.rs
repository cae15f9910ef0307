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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockLoad {
    /// Bytes of records that the view rests on.
    pub live: u64,
    /// Bytes of removals kept for older blocks' sake.
    pub tombs: u64,
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
        self.blocks.entry(tomb.placed.incarnation).or_default().tombs += bytes as u64;
    }

    pub fn sub_tomb(&mut self, tomb: &Tomb, bytes: usize) {
        if let Some(load) = self.blocks.get_mut(&tomb.placed.incarnation) {
            load.tombs = load.tombs.saturating_sub(bytes as u64);
        }
    }

    pub fn block(&self, incarnation: u64) -> BlockLoad {
        self.blocks.get(&incarnation).copied().unwrap_or_default()
    }

    /// The block is no longer in the log.
    pub fn forget_block(&mut self, incarnation: u64) {
        self.blocks.remove(&incarnation);
    }

    pub fn records(&self) -> u64 {
        self.records
    }
}

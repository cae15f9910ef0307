//! The log: fixed-size blocks of frames, and where the next frame goes.
//!
//! Rule 2 lives here: room for a frame is found before the frame gets its id, and what [`Reserve`] a transaction may
//! use decides which of the last free blocks it can take.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ids::TxId;
use crate::log::block;
use crate::log::draft::{Draft, Proposal};
use crate::log::frame;
use crate::log::superblock::{BLOCKS_OFFSET, Superblock};
use crate::medium::domain::Medium;

/// How deep into the last free blocks a transaction may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reserve {
    /// Leaves two blocks free.
    Untouched,
    /// Deletion: leaves one block free.
    Deletion,
    /// Commits, cleaning and recovery: may take the last one.
    Cleaning,
}

impl Reserve {
    fn keeps_free(self) -> usize {
        match self {
            Self::Untouched => 2,
            Self::Deletion => 1,
            Self::Cleaning => 0,
        }
    }
}

/// Blocks that ordinary transactions never take.
pub(crate) const RESERVE_BLOCKS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Free,
    InUse {
        incarnation: u64,
        /// The first transaction in it, and the last one so far (one less than `first` if there is none).
        first: u64,
        last: u64,
        /// Bytes up to the end of the last frame.
        used: usize,
    },
}

impl Block {
    /// Which use of the block this is, if it is in use.
    pub fn incarnation(&self) -> Option<u64> {
        match self {
            Self::InUse { incarnation, .. } => Some(*incarnation),
            Self::Free => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Log {
    medium: Arc<dyn Medium>,
    secret: Superblock,
    blocks: Vec<Block>,
    /// Those of them that hold nothing, lowest first.
    free: BTreeSet<usize>,
    /// The incarnations of the others.
    in_use: BTreeSet<u64>,
    head: Option<usize>,
    next_incarnation: u64,
    /// What seeds the checksums of an incarnation: each frame of the block that takes them asks for it.
    seed: (u64, u32),
    newest: u64,
    horizon: u64,
}

/// A block whose header is stored, which takes the next frame once it is counted.
#[derive(Debug)]
pub(crate) struct Begun {
    index: usize,
    incarnation: u64,
}

/// A frame that is stored, and not counted yet.
#[derive(Debug)]
pub(crate) struct Stored {
    index: usize,
    id: u64,
    len: usize,
}

/// There is no room, of the kind asked for, in the blocks that the log has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Log {
    /// A log as recovery found it. The block that holds the newest transaction takes the next one.
    pub fn new(
        medium: Arc<dyn Medium>,
        superblock: &Superblock,
        blocks: Vec<Block>,
        newest: u64,
        horizon: u64,
    ) -> Self {
        let in_use = |block: &Block| match block {
            Block::InUse { incarnation, last, .. } => Some((*incarnation, *last)),
            Block::Free => None,
        };
        let head = blocks.iter().position(|block| in_use(block).is_some_and(|(_, last)| last == newest));
        let next_incarnation = blocks.iter().filter_map(in_use).map(|(one, _)| one).max().unwrap_or(0) + 1;
        let secret = superblock.clone();
        let free = (0..blocks.len()).filter(|index| blocks[*index] == Block::Free).collect();
        let in_use = blocks.iter().filter_map(Block::incarnation).collect();
        let incarnation = head.and_then(|index| blocks[index].incarnation()).unwrap_or(0);
        let seed = (incarnation, secret.seed(incarnation));
        Self { medium, secret, blocks, free, in_use, head, next_incarnation, seed, newest, horizon }
    }

    /// What each block holds.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The newest transaction.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Everything up to this transaction is durable.
    pub fn horizon(&self) -> u64 {
        self.horizon
    }

    /// Everything up to this transaction was made durable.
    pub fn raise_horizon(&mut self, upto: u64) {
        self.horizon = upto;
    }

    /// The log has this many blocks now: those that come are free, and those that go were.
    pub fn resize(&mut self, blocks: usize) {
        self.free.extend(self.blocks.len()..blocks);
        self.free.split_off(&blocks);
        self.blocks.resize(blocks, Block::Free);
    }

    /// The block at `index` holds nothing any more: it was zeroed.
    pub fn set_free(&mut self, index: usize) {
        if let Some(incarnation) = self.blocks[index].incarnation() {
            self.in_use.remove(&incarnation);
        }
        self.blocks[index] = Block::Free;
        self.free.insert(index);
    }

    /// Incarnations are never reused: recovery raises the next one above any that it has seen.
    pub fn raise_incarnation(&mut self, above: u64) {
        self.next_incarnation = self.next_incarnation.max(above + 1);
    }

    pub fn block_size(&self) -> usize {
        self.secret.block_size as usize
    }

    pub fn block_offset(&self, index: usize) -> u64 {
        BLOCKS_OFFSET + index as u64 * u64::from(self.secret.block_size)
    }

    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Has the next frame start another block, if the one that it would go to stands behind the first `front` blocks
    /// and one of those is free.
    pub fn leave_head_behind(&mut self, front: usize) {
        let front_is_free = self.free.first().is_some_and(|first| *first < front);
        if front_is_free && self.free_blocks() > RESERVE_BLOCKS && self.head.is_some_and(|head| head >= front) {
            self.head = None;
        }
    }

    /// Has the next frame start another block, if it would go to this one, which can be cleaned then. False if a frame
    /// has come to it since `last`.
    pub fn leave_full_head(&mut self, index: usize, newest: u64) -> bool {
        if !self.is_head(index) {
            return true;
        }
        let is_same = matches!(self.blocks[index], Block::InUse { last, .. } if last == newest);
        if is_same {
            self.head = None;
        }
        is_same
    }

    /// True if frames are appended to this block.
    pub fn is_head(&self, index: usize) -> bool {
        self.head == Some(index)
    }

    /// True if a block of these incarnations, the last one excluded, is in the log.
    pub fn has_block_in(&self, incarnations: std::ops::Range<u64>) -> bool {
        !incarnations.is_empty() && self.in_use.range(incarnations).next().is_some()
    }

    /// The largest frame that a block holds.
    pub fn largest_frame(&self) -> usize {
        self.block_size() - block::HEADER
    }

    /// Room behind the newest frame.
    fn head_room(&self) -> usize {
        match self.head.map(|index| self.blocks[index]) {
            Some(Block::InUse { used, .. }) => self.block_size() - used,
            _ => 0,
        }
    }

    /// Room that cleaning is sure to find in one block.
    pub fn room_for_cleaning(&self) -> usize {
        if self.free_blocks() > 0 { self.largest_frame() } else { self.head_room() }
    }

    /// How large a frame that may have any size should be: it fills the newest block, unless little is left there.
    pub fn room_for_batch(&self) -> usize {
        if self.head_room() > self.block_size() / 8 { self.head_room() } else { self.largest_frame() }
    }

    /// True if there are so many bytes behind the newest frame.
    pub fn has_head_room(&self, len: usize) -> bool {
        self.head_room() >= len
    }

    /// True if [`Log::reserve`] would find room.
    pub fn has_room(&self, len: usize, reserve: Reserve) -> bool {
        let free = self.free_blocks();
        free > reserve.keeps_free() || free == reserve.keeps_free() && self.head_room() >= len
    }

    /// Makes sure that the next frame of `len` bytes fits: after `Ok`, [`Log::append`] needs no more room.
    pub fn reserve(&mut self, len: usize, reserve: Reserve) -> std::io::Result<Result<(), Full>> {
        Ok(self.begin(len, reserve)?.map(|begun| begun.into_iter().for_each(|begun| self.count_begun(begun))))
    }

    /// As [`Log::reserve`], in two steps of which this one waits for the host, while others may read: stores the header
    /// of another block, if the frame needs one. Nobody else changes the log until that is counted.
    pub fn begin(&self, len: usize, reserve: Reserve) -> std::io::Result<Result<Option<Begun>, Full>> {
        // A block that was taken from the reserve is still the reserve's: it is not filled by others.
        if self.free_blocks() < reserve.keeps_free() {
            return Ok(Err(Full));
        }
        if self.head_room() >= len {
            return Ok(Ok(None));
        }
        if self.free_blocks() <= reserve.keeps_free() {
            return Ok(Err(Full));
        }
        let Some(index) = self.free.first().copied() else { return Ok(Err(Full)) };
        let incarnation = self.next_incarnation;
        let header = block::Header { incarnation, first: self.newest + 1, index: index as u32 };
        self.medium.store(self.block_offset(index), &block::encode(header, self.secret.seed(incarnation)))?;
        Ok(Ok(Some(Begun { index, incarnation })))
    }

    /// The next frame goes to this block.
    pub fn count_begun(&mut self, begun: Begun) {
        let Begun { index, incarnation } = begun;
        self.next_incarnation = incarnation + 1;
        self.free.remove(&index);
        self.in_use.insert(incarnation);
        self.seed = (incarnation, self.secret.seed(incarnation));
        let (first, last) = (self.newest + 1, self.newest);
        self.blocks[index] = Block::InUse { incarnation, first, last, used: block::HEADER };
        self.head = Some(index);
    }

    /// The incarnation of the block that takes the next frame. Call after [`Log::reserve`].
    pub fn head_incarnation(&self) -> u64 {
        match self.head.map(|index| self.blocks[index]) {
            Some(Block::InUse { incarnation, .. }) => incarnation,
            _ => 0,
        }
    }

    /// Stores a frame for which room was reserved, under the next id. If the medium fails, nothing has changed.
    pub fn append(&mut self, draft: Draft, next_id: u64) -> std::io::Result<TxId> {
        let stored = self.store(draft, next_id)?;
        Ok(self.count(stored))
    }

    /// As [`Log::append`], in two steps of which this one waits for the host, while others may read. Nobody else
    /// changes the log until the frame is counted.
    pub fn store(&self, mut draft: Draft, next_id: u64) -> std::io::Result<Stored> {
        let Some(index) = self.head else { return Err(std::io::ErrorKind::StorageFull.into()) };
        let offset = self.block_offset(index);
        let Block::InUse { incarnation, used, .. } = self.blocks[index] else {
            return Err(std::io::ErrorKind::StorageFull.into());
        };
        let id = self.newest + 1;
        let header = frame::Header {
            id,
            horizon: self.horizon,
            proposal: match draft.proposal {
                Proposal::None => 0,
                // Nothing came between: the frame itself tells nothing that could be lost, so it is covered as well.
                Proposal::UpTo(up_to) if up_to == self.newest => id,
                Proposal::UpTo(up_to) => up_to,
            },
            unique: draft.unique,
            next_id,
            records: draft.records,
            flags: draft.flags,
            ..frame::Header::default()
        };
        draft.set_number(id);
        let seed = if self.seed.0 == incarnation { self.seed.1 } else { self.secret.seed(incarnation) };
        frame::finish(&mut draft.bytes, &header, seed);
        self.medium.store(offset + used as u64, &draft.bytes)?;
        Ok(Stored { index, id, len: draft.bytes.len() })
    }

    /// This frame is the newest one.
    pub fn count(&mut self, stored: Stored) -> TxId {
        let Stored { index, id, len } = stored;
        if let Block::InUse { last, used, .. } = &mut self.blocks[index] {
            *last = id;
            *used += len;
        }
        self.newest = id;
        TxId(id)
    }

    /// Zeroes a block durably and makes it free.
    pub fn zero_block(medium: &dyn Medium, offset: u64, size: usize) -> std::io::Result<()> {
        medium.store(offset, &vec![0; size])?;
        medium.persist()
    }
}

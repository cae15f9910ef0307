//! A frame about to be appended to the log.

use crate::log::frame;
use crate::log::record::Record;

/// A frame about to be appended, its records already encoded behind room for the header.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(super) bytes: Vec<u8>,
    pub(super) records: u16,
    pub(super) unique: u64,
    pub(super) flags: u16,
    pub(super) proposal: Proposal,
}

/// Which horizon a frame proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proposal {
    None,
    /// Up to this transaction.
    UpTo(u64),
}

impl Draft {
    pub fn new(unique: u64) -> Self {
        Self { bytes: vec![0; frame::HEADER], records: 0, unique, flags: 0, proposal: Proposal::None }
    }

    /// Marks the frame as one that says something of the pool itself.
    pub fn say_of_pool(&mut self) {
        self.flags |= frame::FLAG_POOL;
    }

    /// The frame proposes a horizon.
    pub fn propose(&mut self, upto: u64) {
        self.proposal = Proposal::UpTo(upto);
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// True if no more records may go into one frame.
    pub fn is_crowded(&self) -> bool {
        self.records == u16::MAX
    }

    pub fn push(&mut self, record: &Record, seq: u64) {
        record.encode(seq, &mut self.bytes);
        self.records += 1;
    }

    /// Adds a record as it stands in another frame.
    pub fn push_encoded(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.records += 1;
    }
}

//! A frame about to be appended to the log.

use crate::log::frame;
use crate::log::length;
use crate::log::record::Record;

/// A frame about to be appended, its records already encoded behind room for the header.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(super) bytes: Vec<u8>,
    pub(super) records: u16,
    pub(super) unique: u64,
    pub(super) flags: u16,
    pub(super) proposal: Proposal,
    /// Where the number of the frame itself belongs.
    numbers: Vec<usize>,
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
        Self {
            bytes: vec![0; frame::HEADER],
            records: 0,
            unique,
            flags: 0,
            proposal: Proposal::None,
            numbers: Vec::new(),
        }
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
        if let Record::Data { origin, .. } | Record::Sealed { origin, .. } = record
            && origin.is_of_this_frame()
        {
            self.numbers.push(self.bytes.len() - length::ORIGIN);
        }
    }

    /// The frame has got its number.
    pub(super) fn set_number(&mut self, id: u64) {
        for at in self.numbers.drain(..) {
            self.bytes[at..at + 8].copy_from_slice(&id.to_le_bytes());
        }
    }

    /// Adds a record as it stands in another frame.
    pub fn push_encoded(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.records += 1;
    }
}

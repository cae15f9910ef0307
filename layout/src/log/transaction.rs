//! Transactions: records that become true together.

use crate::ids::SegmentId;
use crate::log::record::Record;

/// The records that become true together.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    unique: u64,
    records: Vec<Record>,
    durable: Option<SegmentId>,
}

impl Transaction {
    /// An empty transaction. `unique` is the number of the request it answers, so that a re-sent request can be told
    /// from a new one; 0 if there is none.
    pub fn new(unique: u64) -> Self {
        Self { unique, records: Vec::new(), durable: None }
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Adds a record.
    #[must_use]
    pub fn with(mut self, record: Record) -> Self {
        self.push(record);
        self
    }

    /// The bytes that the records speak of are durable in this segment, which is open for writing: a commit need not
    /// sync it for their sake.
    pub fn bytes_are_durable(&mut self, segment: SegmentId) {
        self.durable = Some(segment);
    }

    /// The number of the request that it answers; 0 if there is none.
    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    /// The records, in the order in which they were added.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The records, to keep.
    pub(crate) fn into_records(self) -> Vec<Record> {
        self.records
    }

    /// True if the bytes that the records speak of are durable in this segment.
    pub(crate) fn are_durable_in(&self, segment: SegmentId) -> bool {
        self.durable == Some(segment)
    }

    /// True if there is nothing to store.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

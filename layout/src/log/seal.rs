//! A seal: the checksum of a run of a file's bytes, and what these bytes are.

use crate::log::description::{self, Summary, TensorEntry};

/// What sealing found out about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// CRC32C of the run's bytes.
    pub crc: u32,
    /// What the bytes are, if they were recognised; empty if not.
    pub description: Box<[u8]>,
}

impl Seal {
    /// What the whole file was recognised as, if this seal says that. Of several that do, the last one counts.
    pub fn summary(&self) -> Option<Summary> {
        description::summary(&self.description)
    }

    /// The tensors that start in the run.
    pub fn tensors(&self) -> impl Iterator<Item = TensorEntry> {
        description::entries(&self.description)
    }
}

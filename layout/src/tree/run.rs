//! A run: consecutive bytes of a file that one record describes.

use crate::log::Origin;
use crate::log::ledger::Placed;
use crate::log::seal::Seal;

/// One run of a file's bytes, as a data record describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 only in the last run, where it marks the end of the file.
    pub len: u64,
    /// Its seal, whether it holds or is provisional.
    pub(super) seal: Option<Seal>,
    /// Its seal is provisional: the bytes may have changed since.
    pub(super) provisional: bool,
    /// What made its bytes part of the file.
    pub origin: Origin,
    pub(super) placed: Placed,
    /// Bytes of its record on media.
    pub(super) record_len: usize,
    /// Size of the segment before a truncation that has not been confirmed.
    pub(super) cut_from: Option<u64>,
    /// One more than the index of the newest run, up to this one, whose seal says what the file is; 0 if none does.
    pub(super) said: u32,
}

impl Run {
    /// What it takes in memory.
    pub(super) fn taken(&self) -> u64 {
        let said = self.seal.as_ref().map_or(0, |seal| seal.description.len());
        (size_of::<Self>() + said) as u64
    }

    /// Its seal, if it has one that holds.
    pub fn seal(&self) -> Option<&Seal> {
        self.seal.as_ref().filter(|_| !self.provisional)
    }

    /// Its seal, if it is provisional: what the bytes were at some time, while somebody had the file open who may
    /// have changed them since.
    pub fn provisional_seal(&self) -> Option<&Seal> {
        self.seal.as_ref().filter(|_| self.provisional)
    }

    /// Its seal, whether it holds or is provisional.
    pub fn any_seal(&self) -> Option<&Seal> {
        self.seal.as_ref()
    }

    /// The number of its record among those of its file: no larger than any version of the chain that has it.
    pub fn version(&self) -> u64 {
        self.placed.seq
    }

    /// The first byte behind the run.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

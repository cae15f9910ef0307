//! What a pool holds and uses.

use serde::{Deserialize, Serialize};

use crate::log::blocks::Log;
use crate::log::superblock::Superblock;
use crate::tree::view::{Totals, View};

/// What a pool holds and uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of the log file.
    pub log_bytes: u64,
    /// Bytes allocated to segments, as last recorded.
    pub segment_bytes: u64,
    /// Bytes allocated to what is in quarantine.
    pub quarantine_bytes: u64,
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// All objects.
    pub objects: u64,
    /// Live records.
    pub records: u64,
    /// Log blocks.
    pub log_blocks: u64,
    /// Log blocks that hold nothing.
    pub free_blocks: u64,
    /// The size limit.
    pub limit: Option<u64>,
}

impl Usage {
    /// What is used without some of the objects.
    pub fn without(self, gone: &Totals) -> Self {
        Self {
            files: self.files.saturating_sub(gone.files),
            directories: self.directories.saturating_sub(gone.directories),
            objects: self.objects.saturating_sub(gone.objects),
            segment_bytes: self.segment_bytes.saturating_sub(gone.allocated),
            ..self
        }
    }

    /// Bytes of the host that the pool uses.
    pub fn bytes(&self) -> u64 {
        self.log_bytes.saturating_add(self.segment_bytes).saturating_add(self.quarantine_bytes)
    }
}

pub(crate) fn usage(view: &View, log: &Log, superblock: &Superblock, quarantine_bytes: u64) -> Usage {
    let totals = view.totals();
    Usage {
        log_bytes: superblock.log_len(),
        segment_bytes: totals.allocated,
        quarantine_bytes,
        files: totals.files,
        directories: totals.directories,
        objects: totals.objects,
        records: view.records(),
        log_blocks: log.blocks().len() as u64,
        free_blocks: log.free_blocks() as u64,
        limit: superblock.limit,
    }
}

//! What opening a pool found and did.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{Ino, SegmentId};
use crate::log::shutdown::Shutdown;

/// A segment that something can still write, although no server has given it out: a program that outlived its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSegment {
    /// The file.
    pub ino: Ino,
    /// Its segment.
    pub segment: SegmentId,
}

/// So many open segments are shown.
const SHOWN: usize = 100;

/// What opening a pool found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// How the pool was left.
    pub kind: Shutdown,
    /// Its server had ended in order, while programs that had outlived an earlier one could still write its files.
    #[serde(default)]
    pub outlived: bool,
    /// Its server had ended in order, and left something that only a recovery brings to order.
    #[serde(default)]
    pub left: bool,
    /// Its server had ended when its disk took nothing any more.
    #[serde(default)]
    pub unwritten: bool,
    /// Transactions behind the horizon that a power loss undid.
    pub dropped_transactions: u64,
    /// Files whose newest bytes or times no record had told of yet.
    pub learned_files: u64,
    /// Objects without a name that were removed.
    pub orphans: u64,
    /// Files whose bytes are missing on the host.
    pub damaged_files: u64,
    /// Names of what was put into quarantine.
    pub quarantined: Vec<String>,
    /// Files that programs of a killed server can still write.
    pub open_segments: Vec<OpenSegment>,
    /// Requests of the mount that were done, though whoever sent one of them may not have been told.
    #[serde(skip)]
    pub requests: Arc<HashSet<u64>>,
}

impl Recovery {
    /// What is shown of it: of the files that programs can still write, the first 100.
    pub fn shown(&self) -> Self {
        let open_segments = self.open_segments.iter().take(SHOWN).copied().collect();
        let (quarantined, requests) = (self.quarantined.clone(), Arc::clone(&self.requests));
        let Self {
            kind, outlived, left, unwritten, dropped_transactions, learned_files, orphans, damaged_files, ..
        } = *self;
        Self {
            kind,
            outlived,
            left,
            unwritten,
            dropped_transactions,
            learned_files,
            orphans,
            damaged_files,
            quarantined,
            open_segments,
            requests,
        }
    }

    /// True unless the pool's server had ended in order.
    pub(crate) fn unsafe_shutdown(&self) -> bool {
        self.kind != Shutdown::Clean && !self.outlived && !self.left
    }
}

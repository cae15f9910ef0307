//! What is written beside an entry of the quarantine: whose bytes these are, and why they are there.

use serde::{Deserialize, Serialize};

use crate::ids::Ino;
use crate::time::Timestamp;

/// Why something is in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A program that was replacing the file died of a signal: this is the version before.
    InterruptedReplace,
    /// Power was lost before the replacement was durable: these are the new bytes.
    UnfinishedReplace,
    /// Power was lost before these bytes, at the end of the file, were durable.
    UncommittedTail,
    /// Power was lost before these bytes, which the file held, were known to be durable: what was durable of it was
    /// written over them.
    UncommittedBytes,
    /// Power was lost before the file's record was durable, or no record speaks of these bytes.
    UnknownSegment,
    /// A log that could not be read in full, before it was written anew.
    DamagedLog,
    /// From the offset on the file's bytes were missing, or had not been synced: there is only this note.
    LostBytes,
}

/// Whose bytes are set aside, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The file.
    pub ino: Option<Ino>,
    /// Its path when it was set aside; bytes that are not text are replaced.
    pub path: Option<String>,
    /// The bytes of the path, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// Why.
    pub reason: Reason,
    /// Where the bytes were in the file.
    pub offset: u64,
    /// When.
    pub time: Timestamp,
}

//! The pool: its format on media and the rules that keep it whole.
//!
//! A pool is a directory with a *log* of records and one *segment* (backing file) per regular file that has bytes.
//! This crate knows both, and nothing of FUSE: it stores transactions, makes them durable in order, recovers them,
//! and cleans the log. It starts no threads of its own beyond a scan's, and reads no clock: callers give the time.
//!
//! Which tensors a file holds is for the crate `tensorfs-formats` to say.
//!
//! docs/FORMAT.md describes the bytes and the rules, docs/SEMANTICS.md what users may rely on.

pub mod check;
mod error;
#[cfg(test)]
mod forged_logs;
mod ids;
pub mod log;
pub mod medium;
mod parallel;
pub mod pool;
pub mod segment;
pub mod testing;
mod time;
pub mod tree;

pub use error::{Error, Result};
pub use ids::{Ino, POOL, ROOT, SegmentId, TIER_MAX, TxId};
pub use time::Timestamp;

// for the time of the move
pub use check::{
    Contents, Depth, Finding, Inspection, KeepStill, Progress, Repair, Report, Subject, Verdict, check, check_in_use,
    fault_of_run, inspect, is_hurt, repair, segment_path, verify_runs,
};
pub use log::{
    Attributes, Features, LAYOUT_NAME_MAX, NAME_MAX, PLACEMENT_MAX, PM, PM_NAME, PoolState as State, Record, Seal,
    Shutdown as Kind, Summary, Superblock, TARGET_MAX, TensorEntry, Tier, Transaction, VALUE_MAX, XATTR_VALUE_MAX,
};
pub use medium::{Direct, Domain, Flushes, Medium};
pub use pool::{
    CreateOptions, Edit, Holder, LIMIT_MIN, OpenOptions, OpenSegment, Pool, Recovery, Usage, holder, is_unfinished,
};
pub use segment::{
    DESCRIPTIONS_MAX, DueSegment, Gone, LARGE, Note, Quarantine, QuarantineEntry as Entry, RUN_MAX, Reason,
    SYNC_FD_LIMIT, SealedRun, SegmentStat, Segments, TierInfo, TierState, examine,
};
pub use tree::{FileChain, Object, Run, Totals, View};

//! The pool: its format on media and the rules that keep it whole.
//!
//! A pool is a directory with a *log* of records and one *segment* (backing file) per regular file that has bytes.
//! This crate knows both, and nothing of FUSE: it stores transactions, makes them durable in order, recovers them,
//! and cleans the log. It starts no threads of its own beyond a scan's, and reads no clock: callers give the time.
//!
//! Which tensors a file holds is for the crate `tensorfs-formats` to say.
//!
//! docs/FORMAT.md describes the bytes and the rules, docs/SEMANTICS.md what users may rely on.

mod cacheline;
mod chain;
mod check;
mod check_in_use;
mod clean;
mod codec;
mod description;
mod direct;
mod domain;
mod error;
mod flushes;
mod frame;
mod group;
mod ids;
mod inspect;
mod ledger;
mod load;
mod lock;
mod log;
mod object;
mod objects;
mod owner;
mod pool;
mod quarantine;
mod record;
mod recover;
mod repair;
mod scan;
mod seal;
mod segments;
mod superblock;
pub mod testing;
mod tier;
mod tiers;
mod time;
mod verify;
mod view;
mod xattrs;

pub use chain::{FileChain, Run, Seal};
pub use check::{Depth, Finding, Progress, Report, Subject, check, segment_path};
pub use check_in_use::{KeepStill, check_in_use};
pub use description::{Entry as TensorEntry, Summary};
pub use direct::Direct;
pub use domain::{Domain, Medium};
pub use error::{Error, Result};
pub use flushes::Flushes;
pub use ids::{Ino, POOL, ROOT, SegmentId, TIER_MAX, TxId};
pub use inspect::{Contents, Inspection, inspect};
pub use lock::{Holder, holder};
pub use object::Object;
pub use pool::{CreateOptions, Edit, LIMIT_MIN, OpenOptions, Pool, Usage, is_unfinished};
pub use quarantine::{Entry, Note, Quarantine, Reason};
pub use record::{Attributes, NAME_MAX, Record, TARGET_MAX, Transaction, VALUE_MAX, XATTR_VALUE_MAX};
pub use recover::{Kind, OpenSegment, Recovery};
pub use repair::{Repair, repair};
pub use seal::{DESCRIPTIONS_MAX, LARGE, RUN_MAX, SealedRun, examine};
pub use segments::{DueSegment, SYNC_FD_LIMIT, SegmentStat, Segments};
pub use superblock::{Features, LAYOUT_NAME_MAX, State, Superblock};
pub use tier::{Gone, PLACEMENT_MAX, PM, PM_NAME, Tier, TierInfo, TierState};
pub use time::Timestamp;
pub use verify::{Verdict, fault_of_run, is_hurt, verify_runs};
pub use view::{Totals, View};

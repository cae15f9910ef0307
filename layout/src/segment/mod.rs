//! Segments: the host files that hold the bytes of regular files; the tiers they are in, and what is set aside.

pub(crate) mod examine;
pub(crate) mod gone;
pub(crate) mod home;
pub(crate) mod quarantine;
pub(crate) mod segments;
pub(crate) mod stat;
pub(crate) mod sync;
pub(crate) mod tier;
pub(crate) mod tiers;
pub(crate) mod tracking;
pub(crate) mod unsynced;

pub use examine::{DESCRIPTIONS_MAX, LARGE, RUN_MAX, SealedRun, examine};
pub use gone::Gone;
pub use quarantine::{Note, Quarantine, QuarantineEntry, Reason};
pub use segments::{SYNC_FD_LIMIT, Segments};
pub use stat::SegmentStat;
pub use tiers::{TierInfo, TierState};
pub use tracking::DueSegment;

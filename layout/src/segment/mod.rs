//! Segments: the host files that hold the bytes of regular files; the tiers they are in, and what is set aside of them.
//!
//! It stands on the view, which says what tiers there are and which files have bytes that must be there.

mod ahead;
pub(crate) mod apart;
mod collisions;
mod compared;
pub(crate) mod examine;
pub(crate) mod gone;
pub(crate) mod home;
pub(crate) mod host_errors;
pub(crate) mod lost;
pub(crate) mod note;
pub(crate) mod place;
pub(crate) mod quarantine;
pub(crate) mod segments;
pub(crate) mod stat;
pub(crate) mod sync;
pub(crate) mod tier;
pub(crate) mod tiers;
mod tracking;
mod unsynced;
mod versions;

pub use apart::start_apart;
pub use examine::{Before, DESCRIPTIONS_MAX, GoneOn, Known, LARGE, NotAsSealed, SealedRun, Unlike, examine};
pub use gone::Gone;
pub use note::{Note, Reason};
pub use quarantine::{Changes, Quarantine, QuarantineEntry};
pub use segments::{SYNC_FD_LIMIT, Segments};
pub use stat::SegmentStat;
pub use tiers::{HostSpace, TierInfo, TierState};
pub use tracking::DueSegment;

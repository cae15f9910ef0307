//! Looking at a pool from outside: what is in it, whether it is whole, and making it whole again.
//!
//! At the top of the tower: it compares what the other rooms say with each other.

mod checker;
mod closed;
mod committed;
mod in_use;
pub(crate) mod inspect;
mod repair;
mod report;
mod scrubbed;
mod verify;

pub use closed::{Depth, check};
pub use committed::Committed;
pub use in_use::{KeepStill, check_in_use};
pub use inspect::{Contents, Inspection, inspect, inspect_in_use, limit_of, was_closed};
pub use repair::{Repair, repair};
pub use report::{Finding, LastScrub, Progress, Report, Subject, segment_path};
pub use scrubbed::{DamagedFile, Scrubbed, Unfinished};
pub use verify::{Verdict, crc_of_run, fault_of_run, fault_of_size, is_hurt, other_checksum, verify_runs};

//! Looking at a pool from outside: what is in it, whether it is whole, and making it whole again.

pub(crate) mod checker;
pub(crate) mod closed;
pub(crate) mod in_use;
pub(crate) mod inspect;
pub(crate) mod repair;
pub(crate) mod report;
pub(crate) mod verify;

pub use closed::{Depth, check};
pub use in_use::{KeepStill, check_in_use};
pub use inspect::{Contents, Inspection, inspect};
pub use repair::{Repair, repair};
pub use report::{Finding, Progress, Report, Subject, segment_path};
pub use verify::{Verdict, fault_of_run, is_hurt, verify_runs};

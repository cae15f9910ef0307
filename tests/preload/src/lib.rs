//! To be preloaded into `tensorfs`: stands between it and libc, and delays or fails the calls that a test names.
//!
//! The rules are in memory that is shared with the test (`table.rs`; `TENSORFS_HOST_CALLS` names the file), so that
//! they can be changed while the server runs. A call that no rule is about costs one load. What libc calls within
//! itself, and what the kernel does for a program in passthrough, does not come by here. It also puts the clock of a
//! program forward or back (`clock.rs`; `TENSORFS_CLOCK_OFF`), or has time go by for one that is at work.

mod calls;
mod clock;
mod device;
mod judge;
mod place;
mod real;
// The harness has the same file, and uses the other half of it.
#[allow(dead_code)]
mod table;

//! The time of day, from the two clocks that matter.

use nix::time::{ClockId, clock_gettime};
use tensorfs_layout::Timestamp;

/// Now.
pub(crate) fn now() -> Timestamp {
    read(ClockId::CLOCK_REALTIME)
}

/// The clock the host stamps files with, which runs up to a tick behind: for times that a segment's own will follow,
/// so that they never seem to go back.
pub(crate) fn coarse() -> Timestamp {
    read(ClockId::CLOCK_REALTIME_COARSE)
}

fn read(clock: ClockId) -> Timestamp {
    // Neither clock can fail on Linux.
    let time = clock_gettime(clock).unwrap_or_else(|_| nix::sys::time::TimeSpec::new(0, 0));
    Timestamp::new(time.tv_sec(), time.tv_nsec() as u32)
}

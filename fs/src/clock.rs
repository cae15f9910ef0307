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

/// Two changes within one tick of the host's clock can leave the same time.
const TICK_NSEC: i64 = 20_000_000;

/// True if what is changed after `now` cannot have the change time `then` any more.
pub(crate) fn is_past_tick(then: Timestamp, now: Timestamp) -> bool {
    let age = (now.sec - then.sec).saturating_mul(1_000_000_000) + (i64::from(now.nsec) - i64::from(then.nsec));
    age >= TICK_NSEC
}

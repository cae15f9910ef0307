//! Points in time as records keep them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds since 1970-01-01 00:00 UTC, as in `struct timespec`: `nsec` counts forward also before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

impl Timestamp {
    /// A point in time from its two parts, as the kernel gives them.
    pub const fn new(sec: i64, nsec: u32) -> Self {
        Self { sec, nsec }
    }

    /// The next nanosecond.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.nsec {
            nsec if nsec < 999_999_999 => Self { sec: self.sec, nsec: nsec + 1 },
            _ => Self { sec: self.sec.saturating_add(1), nsec: 0 },
        }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self::new(i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
            Err(error) => {
                let before = error.duration();
                let sec = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => Self::new(-sec, 0),
                    nsec => Self::new(-sec - 1, 1_000_000_000 - nsec),
                }
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let nsec = Duration::from_nanos(u64::from(time.nsec));
        let whole = Duration::from_secs(time.sec.unsigned_abs());
        let base = if time.sec >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
        base.and_then(|base| base.checked_add(nsec)).unwrap_or(UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_nanosecond() {
        assert_eq!(Timestamp::new(7, 8).next(), Timestamp::new(7, 9));
        assert_eq!(Timestamp::new(7, 999_999_999).next(), Timestamp::new(8, 0));
        assert_eq!(Timestamp::new(-1, 999_999_999).next(), Timestamp::new(0, 0));
    }

    #[test]
    fn times_before_1970_round_trip() {
        for (sec, nsec) in [(0, 0), (-1, 999_999_999), (-2, 0), (-2, 1), (1_700_000_000, 5)] {
            let time = Timestamp::new(sec, nsec);
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }
}

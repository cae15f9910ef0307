//! How long requests took, by kind: counted by whoever has answered one, without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// A request is counted where it took at most so many nanoseconds, and no fewer than the number before.
const BOUNDS: [u64; 16] = [
    10 * US,
    25 * US,
    50 * US,
    100 * US,
    250 * US,
    500 * US,
    MS,
    2_500 * US,
    5 * MS,
    10 * MS,
    25 * MS,
    100 * MS,
    250 * MS,
    S,
    2_500 * MS,
    10 * S,
];

/// The requests of one kind.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    come: AtomicU64,
    nanoseconds: AtomicU64,
    /// The last one is for those that took longer than any bound.
    took: [AtomicU64; BOUNDS.len() + 1],
}

/// How long the requests of a kind took.
#[derive(Debug)]
pub(crate) struct Latencies {
    /// Together.
    pub seconds: f64,
    /// How many took at most so many seconds, and longer than those before.
    pub buckets: Vec<(f64, u64)>,
}

impl Requests {
    /// So many have come.
    pub fn add(&self, n: u64) {
        self.come.fetch_add(n, Relaxed);
    }

    /// How many have come.
    pub fn get(&self) -> u64 {
        self.come.load(Relaxed)
    }

    /// One was answered, after so long.
    pub fn answered(&self, after: Duration) {
        let nanoseconds = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.took[BOUNDS.partition_point(|bound| *bound < nanoseconds)].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    /// How long they took.
    pub fn latencies(&self) -> Latencies {
        let bounds = BOUNDS.iter().map(|bound| *bound as f64 / S as f64).chain([f64::INFINITY]);
        let buckets = bounds.zip(&self.took).map(|(bound, count)| (bound, count.load(Relaxed))).collect();
        Latencies { seconds: self.nanoseconds.load(Relaxed) as f64 / S as f64, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_where_it_belongs() {
        let requests = Requests::default();
        for nanoseconds in [0, 10 * US, 10 * US + 1, 10 * S, 10 * S + 1, u64::MAX / 4] {
            requests.answered(Duration::from_nanos(nanoseconds));
        }
        let counts: Vec<u64> = requests.latencies().buckets.into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert!(BOUNDS.is_sorted());
    }
}

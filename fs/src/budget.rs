//! What looking into files may take of the processors for one request.

use std::collections::HashMap;
use std::time::Duration;

/// A request has this, and one second more for so many bytes that the host has of a file.
pub(crate) const BUDGET: Duration = Duration::from_secs(20);
const BYTES_A_SECOND: u64 = 16 << 20;

/// What so many bytes may take.
pub(crate) fn for_bytes(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / BYTES_A_SECOND)
}

/// What one request has taken so far. What a file's bytes may take it may take once, however often it is asked about.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// Beyond that.
    spent: Duration,
    of_files: HashMap<u64, Duration>,
}

impl Allowance {
    /// What a question about so many bytes of a file may take for them, if the host has so many of all of it.
    pub fn for_bytes(&self, file: u64, asked: u64, allocated: u64) -> Duration {
        let taken = self.of_files.get(&file).copied().unwrap_or_default();
        for_bytes(asked.min(allocated)).min(for_bytes(allocated).saturating_sub(taken))
    }

    /// Notes what one has taken that may take so much for bytes.
    pub fn spend(&mut self, file: u64, for_bytes: Duration, time: Duration) {
        let of_file = time.min(for_bytes);
        if !of_file.is_zero() {
            *self.of_files.entry(file).or_default() += of_file;
        }
        self.spent = self.spent.saturating_add(time - of_file);
    }

    /// What was taken beyond what may be for bytes.
    pub fn spent(&self) -> Duration {
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_allowed_for_once() {
        let (second, mut one) = (Duration::from_secs(1), Allowance::default());
        // A file of four seconds, asked about in halves.
        let (half, all) = (32 << 20, 64 << 20);
        for (expected, spent) in [(2, 0), (2, 0), (0, 3), (0, 6)] {
            let allowed = one.for_bytes(7, half, all);
            assert_eq!(allowed, expected * second);
            one.spend(7, allowed, if expected > 0 { 2 } else { 3 } * second);
            assert_eq!(one.spent(), spent * second);
        }
        // What was not taken is there yet, and no more than the host has of it.
        assert_eq!(one.for_bytes(8, u64::MAX, half), 2 * second);
        one.spend(8, 2 * second, second);
        assert_eq!((one.for_bytes(8, u64::MAX, half), one.spent()), (second, 6 * second));
    }
}

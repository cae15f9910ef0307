//! What has come so far of a file whose bytes are away: it can be read before the rest of the file is here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use parking_lot::Mutex;
use tensorfs_layout::SegmentId;

/// Ranges of a file's bytes, each from its first byte to the one behind its last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(
    /// In their order, and none begins where another one ends.
    Vec<(u64, u64)>,
);

impl Ranges {
    /// A range more.
    pub fn add(&mut self, (start, end): (u64, u64)) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|(_, other)| *other < start);
        let behind = self.0.partition_point(|(other, _)| *other <= end);
        let joined = self.0[first..behind].iter().fold((start, end), |sum, one| (sum.0.min(one.0), sum.1.max(one.1)));
        self.0.splice(first..behind, [joined]);
    }

    /// Each of them, where none touches another one.
    pub fn each(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// True if all of a range is in there.
    pub fn cover(&self, range: (u64, u64)) -> bool {
        self.gap(range).is_none()
    }

    /// The first bytes of a range that are not in there, as many as there are in a row.
    pub fn gap(&self, (start, end): (u64, u64)) -> Option<(u64, u64)> {
        let next = self.0.partition_point(|(_, other)| *other <= start);
        let start = self.0.get(next).filter(|(first, _)| *first <= start).map_or(start, |(_, other)| *other);
        let next = self.0.partition_point(|(_, other)| *other <= start);
        let end = self.0.get(next).map_or(end, |(first, _)| end.min(*first));
        (start < end).then_some((start, end))
    }
}

/// The segment of a file that is on its way, and what of it is there: each byte of that has been compared with the
/// checksum of its part.
pub(crate) struct Pieces {
    segment: SegmentId,
    size: u64,
    /// Whoever reads through it has the same bytes later, as the segment becomes the file's own.
    fd: OwnedFd,
    here: Mutex<Ranges>,
    /// When somebody has read of it last.
    used: Mutex<Instant>,
}

impl Pieces {
    /// Nothing has come yet of a file of so many bytes, for which there is a segment.
    pub fn new((segment, fd): (SegmentId, OwnedFd), size: u64) -> Self {
        Self { segment, size, fd, here: Mutex::default(), used: Mutex::new(Instant::now()) }
    }

    /// The segment.
    pub fn segment(&self) -> SegmentId {
        self.segment
    }

    /// How many bytes the file has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Somebody reads of it.
    pub fn note_use(&self) {
        *self.used.lock() = Instant::now();
    }

    /// When somebody has read of it last.
    pub fn used(&self) -> Instant {
        *self.used.lock()
    }

    /// What is there.
    pub fn here(&self) -> Ranges {
        self.here.lock().clone()
    }

    /// These have come.
    pub fn add(&self, range: (u64, u64)) {
        self.here.lock().add(range);
    }

    /// True if these are there, as far as the file has them.
    pub fn have(&self, (start, end): (u64, u64)) -> bool {
        self.here.lock().cover((start, end.min(self.size)))
    }

    /// How many of these bytes are there, from the first one on.
    pub fn in_front(&self, (start, end): (u64, u64)) -> u64 {
        let end = end.min(self.size);
        let gap = self.here.lock().gap((start, end));
        gap.map_or(end, |(gap, _)| gap).saturating_sub(start)
    }

    /// True if all are.
    pub fn are_all(&self) -> bool {
        self.have((0, self.size))
    }
}

impl AsFd for Pieces {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u64, u64)]) -> Ranges {
        let mut all = Ranges::default();
        ranges.iter().for_each(|range| all.add(*range));
        all
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(of(&[(10, 20), (30, 40), (20, 30)]).0, [(10, 40)]);
        assert_eq!(of(&[(10, 20), (30, 40), (5, 50)]).0, [(5, 50)]);
        assert_eq!(of(&[(30, 40), (10, 20), (0, 5), (7, 7)]).0, [(0, 5), (10, 20), (30, 40)]);
        assert_eq!(of(&[(0, 5), (10, 20), (30, 40), (18, 31)]).0, [(0, 5), (10, 40)]);
    }

    #[test]
    fn a_gap_is_what_is_missing_first() {
        let all = of(&[(10, 20), (30, 40)]);
        assert_eq!(all.gap((0, 100)), Some((0, 10)));
        assert_eq!(all.gap((10, 100)), Some((20, 30)));
        assert_eq!(all.gap((15, 25)), Some((20, 25)));
        assert_eq!(all.gap((35, 100)), Some((40, 100)));
        assert_eq!((all.gap((12, 20)), all.gap((30, 40)), all.gap((50, 50))), (None, None, None));
        assert!(all.cover((15, 15)) && all.cover((10, 20)) && !all.cover((10, 21)));
    }

    /// Against a map of bytes.
    #[test]
    fn ranges_are_what_they_say() {
        let mut drawn = 7_u64;
        let mut draw = |below: u64| {
            drawn = drawn.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (drawn >> 33) % below
        };
        for _ in 0..200 {
            let (mut all, mut bytes) = (Ranges::default(), [false; 64]);
            for _ in 0..draw(12) {
                let start = draw(64);
                let end = start + draw(65 - start);
                all.add((start, end));
                bytes[start as usize..end as usize].fill(true);
            }
            assert!(all.0.is_sorted() && all.0.windows(2).all(|two| two[0].1 < two[1].0), "{all:?}");
            let start = draw(64);
            let end = start + draw(65 - start);
            let missing = (start..end).find(|at| !bytes[*at as usize]);
            let gap = missing.map(|from| (from, (from..end).find(|at| bytes[*at as usize]).unwrap_or(end)));
            assert_eq!(all.gap((start, end)), gap, "{all:?} {start} {end}");
        }
    }
}

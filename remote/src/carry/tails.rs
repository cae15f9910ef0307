//! What files that stay open have behind what is sealed of them: when it is told of, though nothing says that its bytes
//! belong together. A log that is open for days is in the remote so, as long as it is no longer than a tail may be.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The most bytes of a tail that is told of: of what is longer, and may be anything, only what is sealed.
const TAIL_MAX: u64 = 64 << 20;
/// Bytes of all tails that are read in one look at all files.
const LOOK_MAX: u64 = 256 << 20;
/// One that is written anew each time is told of more and more rarely: after so long at last.
const RARELY: Duration = Duration::from_secs(60 * 60);
/// A tail is cut at the multiples of it, so that little of one is put again where it has changed.
pub(super) const PIECE: u64 = 4 << 20;

/// Which tails are due.
#[derive(Debug, Default)]
pub struct Tails {
    /// So long a file has been open before its tail is read, and read again; `None` if none is.
    every: Option<Duration>,
    /// One that was not seen before is read at once.
    at_once: bool,
    /// The batch may be held back for files that come to rest.
    waits: bool,
    known: HashMap<u64, Tail>,
    /// What is left of the bytes of this look.
    left: u64,
    /// Where this look begins, and where the next one does if there was too much.
    from: u64,
    next: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Tail {
    /// When it was read, or first seen.
    since: Instant,
    is_read: bool,
    /// After so long it is read again.
    every: Duration,
}

impl Tails {
    /// Each is read when its file has been open for so long, and again after as long.
    pub fn every(time: Duration) -> Self {
        Self { every: Some(time), ..Self::default() }
    }

    /// As [`Tails::every`], and at once when a file is first seen.
    pub fn at_once(time: Duration) -> Self {
        Self { at_once: true, ..Self::every(time) }
    }

    /// Tails are told of by who looks once.
    pub(super) fn are_at_once(&self) -> bool {
        self.at_once
    }

    /// A look at all files, in the order of their numbers, behind which the batch may wait for those that come to rest.
    /// One that came to too many bytes is gone on with.
    pub(super) fn begin(&mut self, waits: bool) {
        self.waits = waits;
        // Who looks once has no other look for the rest.
        let left = if self.at_once { u64::MAX } else { LOOK_MAX };
        (self.left, self.from) = (left, self.next.take().unwrap_or(0));
    }

    /// True if the tail of this file, which is open, is to be read now: so many bytes behind what is sealed. One that
    /// was not open when the remote heard of it last is about to come to rest, and then cut otherwise: as long as the
    /// batch waits for it, its tail is not read.
    pub(super) fn is_due(&mut self, ino: u64, len: u64, was_open: bool) -> bool {
        let Some(every) = self.every else { return false };
        if len == 0 || len > TAIL_MAX {
            return false;
        }
        let tail = self.known.entry(ino).or_insert(Tail { since: Instant::now(), is_read: false, every });
        let is_due = tail.since.elapsed() >= tail.every || self.at_once && !tail.is_read && (was_open || !self.waits);
        if !is_due || ino < self.from || self.next.is_some() {
            return false;
        }
        if len > self.left {
            self.next = Some(ino);
            return false;
        }
        self.left -= len;
        true
    }

    /// It was, and more had to be put for it than it has grown by, or not.
    pub(super) fn was_read(&mut self, ino: u64, is_written_anew: bool) {
        let (Some(tail), Some(every)) = (self.known.get_mut(&ino), self.every) else { return };
        let every = if is_written_anew { (tail.every * 2).min(RARELY.max(every)) } else { every };
        *tail = Tail { since: Instant::now(), is_read: true, every };
    }

    /// It is gone, or at rest.
    pub(super) fn forget(&mut self, ino: u64) {
        self.known.remove(&ino);
    }
}

/// Where the parts of a file end whose tail begins at `from`, given where they would end if it were no tail.
pub(super) fn ends(mut ends: Vec<u64>, from: u64) -> Vec<u64> {
    let end = ends.last().copied().unwrap_or(0);
    let pieces = (from / PIECE + 1..).map(|piece| piece * PIECE).take_while(|place| *place < end);
    ends.extend(pieces);
    ends.sort_unstable();
    ends.dedup();
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Which of these files are due in one look.
    fn due(tails: &mut Tails, files: &[(u64, u64)]) -> Vec<u64> {
        tails.begin(false);
        let due: Vec<u64> =
            files.iter().filter(|(ino, len)| tails.is_due(*ino, *len, false)).map(|(ino, _)| *ino).collect();
        due.iter().for_each(|ino| tails.was_read(*ino, false));
        due
    }

    #[test]
    fn a_tail_that_is_written_anew_is_read_more_and_more_rarely() {
        let minute = Duration::from_secs(60);
        let mut tails = Tails::at_once(minute);
        assert_eq!(due(&mut tails, &[(1, 10)]), [1]);
        let mut after = |is_written_anew| {
            tails.was_read(1, is_written_anew);
            tails.known[&1].every.as_secs() / 60
        };
        assert_eq!([true; 8].map(&mut after), [2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!([false, true].map(after), [1, 2]);
    }

    #[test]
    fn who_looks_once_reads_all_tails() {
        let files: Vec<(u64, u64)> = (1..=10).map(|ino| (ino, 60 * MIB)).collect();
        assert_eq!(due(&mut Tails::at_once(Duration::from_secs(60)), &files).len(), 10);
    }

    #[test]
    fn a_tail_is_due_once_its_file_was_open_for_so_long() {
        let hour = Duration::from_secs(3600);
        let files = [(1, 10), (2, 0), (3, TAIL_MAX), (4, TAIL_MAX + 1)];
        assert_eq!(due(&mut Tails::default(), &files), [0_u64; 0]);
        assert_eq!(due(&mut Tails::every(hour), &files), [0_u64; 0]);
        let mut tails = Tails::at_once(hour);
        assert_eq!(due(&mut tails, &files), [1, 3]);
        assert_eq!(due(&mut tails, &files), [0_u64; 0]);
        tails.forget(3);
        assert_eq!(due(&mut tails, &files), [3]);
        let mut tails = Tails::every(Duration::ZERO);
        assert_eq!((due(&mut tails, &files), due(&mut tails, &files)), (vec![1, 3], vec![1, 3]));
    }

    #[test]
    fn a_look_that_came_to_too_much_is_gone_on_with() {
        let files: Vec<(u64, u64)> = (1..=10).map(|ino| (ino, 60 * MIB)).collect();
        let mut tails = Tails::every(Duration::ZERO);
        let looks: Vec<Vec<u64>> = (0..4).map(|_| due(&mut tails, &files)).collect();
        assert_eq!(looks, [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9, 10], vec![1, 2, 3, 4]]);
    }

    #[test]
    fn a_tail_is_cut_at_places_that_stay() {
        assert_eq!(ends(vec![MIB, 9 * MIB], MIB), [MIB, 4 * MIB, 8 * MIB, 9 * MIB]);
        assert_eq!(ends(vec![MIB, 9 * MIB], 8 * MIB), [MIB, 9 * MIB]);
        assert_eq!(ends(vec![10], 0), [10]);
    }
}

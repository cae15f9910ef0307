//! Spares: empty segments made in the background, so that making or replacing a file waits for no file to be made on
//! the host.
//!
//! A spare has the number and the name that it will have as a file's segment, and its directory is synced by the commit
//! of the first record of its bytes, as that of any new segment (rule 10: nothing is renamed). Until a transaction says
//! whose it is, it is nobody's: recovery removes what a killed server left. Few are made, once the first file is, and
//! more for who makes many files at once; what is left goes when the pool is closed.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::{SegmentId, Timestamp};

use super::backing::Backing;

/// So many are there at most, and never more than a part of what the process may open.
const MOST: usize = 128;
/// The part.
const PART: u64 = 128;
/// So many are kept for who makes a file now and then.
const FEW: usize = 4;
/// Who uses half of them up in this time gets twice as many.
const SOON: Duration = Duration::from_secs(1);
/// After a failure none are made for so long.
const PAUSE: Duration = Duration::from_secs(10);

/// An empty segment that is about to become a file's.
#[derive(Debug)]
pub(crate) struct NewSegment {
    pub segment: SegmentId,
    /// A descriptor that can sync it.
    pub fd: Arc<OwnedFd>,
    /// If it was given to the kernel already.
    pub backing: Option<Backing>,
    /// When it was made, as the host says it.
    pub since: Timestamp,
}

/// The spares of a mount.
pub(crate) struct Spares {
    stock: Mutex<Stock>,
    /// Some are wanted, or none any more.
    rung: Condvar,
    most: usize,
}

#[derive(Default)]
struct Stock {
    /// In the order of their numbers.
    ready: VecDeque<NewSegment>,
    wanted: bool,
    /// So many are made.
    goal: usize,
    /// When some were wanted the last time.
    asked: Option<Instant>,
    /// None are made until then.
    paused: Option<Instant>,
    stop: bool,
}

impl Spares {
    /// For a process that may have so many descriptors.
    pub fn new(descriptors: u64) -> Self {
        let part = usize::try_from(descriptors / PART).unwrap_or(MOST);
        Self { stock: Mutex::default(), rung: Condvar::new(), most: part.min(MOST) }
    }

    /// A spare, if there is one: the oldest, or where it is to replace a segment, the youngest, which must be younger
    /// than that (the log tells by their numbers which of two came later). Has more made when they run short.
    pub fn take(&self, replaced: Option<SegmentId>) -> Option<NewSegment> {
        let mut stock = self.stock.lock();
        let spare = match replaced {
            None => stock.ready.pop_front(),
            Some(old) => {
                let younger = stock.ready.back().is_some_and(|spare| spare.segment.serial() > old.serial());
                if younger { stock.ready.pop_back() } else { None }
            }
        };
        if stock.ready.len() <= stock.goal / 2 && !stock.wanted {
            // Who makes many files at once gets many spares.
            let now = Instant::now();
            let soon = stock.asked.replace(now).is_some_and(|before| now - before < SOON);
            stock.goal = if soon { stock.goal * 2 } else { stock.goal / 2 }.clamp(FEW.min(self.most), self.most);
            stock.wanted = stock.ready.len() < stock.goal;
            if stock.wanted {
                self.rung.notify_one();
            }
        }
        spare
    }

    /// Waits until some are wanted; false when there are to be none any more.
    pub fn wait(&self) -> bool {
        let mut stock = self.stock.lock();
        while !stock.stop {
            match (stock.wanted, stock.paused) {
                (false, _) => self.rung.wait(&mut stock),
                (true, None) => return true,
                (true, Some(until)) if until <= Instant::now() => stock.paused = None,
                (true, Some(until)) => drop(self.rung.wait_until(&mut stock, until)),
            }
        }
        false
    }

    /// Keeps a spare, or the word that none could be made; false if that is enough.
    pub fn put(&self, spare: Option<NewSegment>) -> bool {
        let mut stock = self.stock.lock();
        match spare {
            Some(spare) => stock.ready.push_back(spare),
            None => stock.paused = Some(Instant::now() + PAUSE),
        }
        stock.wanted = stock.ready.len() < stock.goal;
        stock.wanted && stock.paused.is_none() && !stock.stop
    }

    /// None are made for a while: making one failed.
    pub fn pause(&self) {
        self.put(None);
    }

    /// Takes all that there are.
    pub fn take_all(&self) -> VecDeque<NewSegment> {
        std::mem::take(&mut self.stock.lock().ready)
    }

    /// None are wanted any more.
    pub fn stop(&self) {
        self.stock.lock().stop = true;
        self.rung.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare(number: u64) -> NewSegment {
        let fd = Arc::new(tempfile::tempfile().unwrap().into());
        NewSegment { segment: SegmentId(number), fd, backing: None, since: Timestamp::default() }
    }

    fn fill(spares: &Spares) -> u64 {
        let mut made = 0;
        if spares.stock.lock().wanted {
            made = 1;
            while spares.put(Some(spare(made))) {
                made += 1;
            }
        }
        made
    }

    #[test]
    fn none_are_made_before_one_is_asked_for_then_few_and_for_many_files_many() {
        let spares = Spares::new(32 * PART);
        assert_eq!(fill(&spares), 0);
        assert!(spares.take(None).is_none());
        assert_eq!(fill(&spares), FEW as u64);
        let mut most = 0;
        for _ in 0..100 {
            assert!(spares.take(None).is_some());
            fill(&spares);
            most = most.max(spares.stock.lock().ready.len());
        }
        assert_eq!(most, 32);
        // A long time after.
        let mut stock = spares.stock.lock();
        stock.ready.truncate(2);
        stock.asked = None;
        drop(stock);
        assert!(spares.take(None).is_some());
        fill(&spares);
        assert_eq!(spares.stock.lock().ready.len(), 16);
    }

    #[test]
    fn a_segment_is_replaced_by_a_younger_one_or_by_no_spare() {
        let spares = Spares::new(8 * PART);
        assert!(spares.take(None).is_none());
        for number in [10, 11, 12] {
            spares.put(Some(spare(number)));
        }
        let replace = |old| spares.take(Some(SegmentId(old))).map(|spare| spare.segment.0);
        assert_eq!(replace(12), None);
        assert_eq!(replace(9), Some(12));
        assert_eq!(spares.take(None).map(|spare| spare.segment.0), Some(10));
        assert_eq!(replace(11), None);
        assert_eq!(replace(10), Some(11));
    }

    #[test]
    fn after_a_failure_none_are_made_for_a_while() {
        let spares = Spares::new(8 * PART);
        assert!(spares.take(None).is_none());
        assert!(!spares.put(None));
        assert!(spares.stock.lock().paused.is_some());
        spares.stop();
        assert!(!spares.wait());
    }
}

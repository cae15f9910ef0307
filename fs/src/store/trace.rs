//! The requests of a mount, for whoever looks. As long as nobody does, nothing is kept. Each who looks has a ring of
//! his own; what he does not take in time is lost, and counted.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::waits::{Looker, Notes};

/// So many requests are kept for each who looks.
const RING: usize = 8192;

/// So many may look at the same time.
const WATCHES: usize = 8;

/// A request that was answered.
#[derive(Clone, Debug)]
pub(crate) struct Traced {
    /// When it came.
    pub at: SystemTime,
    /// What was asked.
    pub kind: &'static str,
    /// The process that asked, and what it is called; none if the kernel asked of its own accord, or it is not seen.
    pub process: Option<(u32, Box<str>)>,
    /// The user.
    pub uid: u32,
    /// What it is about: a file, or a directory where a name is given.
    pub about: Ino,
    /// A name in that directory.
    pub name: Option<Box<[u8]>>,
    /// Until a thread had time for it.
    pub queued: Duration,
    /// Until it was answered.
    pub took: Duration,
    /// What it waited for, and what came of it.
    pub notes: Notes,
}

/// All who look.
#[derive(Default)]
pub(crate) struct Trace(Mutex<Vec<Weak<Watch>>>);

/// One who looks.
pub(crate) struct Watch {
    seen: Mutex<Seen>,
    _looker: Looker,
}

#[derive(Default)]
struct Seen {
    ring: VecDeque<Traced>,
    lost: u64,
}

impl Trace {
    /// Begins to look. None if too many do.
    pub fn watch(&self) -> Option<Arc<Watch>> {
        let mut all = self.0.lock();
        all.retain(|watch| watch.strong_count() > 0);
        if all.len() >= WATCHES {
            return None;
        }
        let watch = Arc::new(Watch { seen: Mutex::default(), _looker: Looker::begin() });
        all.push(Arc::downgrade(&watch));
        Some(watch)
    }

    /// A request was answered.
    pub fn saw(&self, traced: &Traced) {
        let all = self.0.lock();
        all.iter().filter_map(Weak::upgrade).for_each(|watch| watch.seen.lock().keep(traced.clone()));
    }
}

impl Seen {
    fn keep(&mut self, traced: Traced) {
        if self.ring.len() >= RING {
            self.ring.pop_front();
            self.lost += 1;
        }
        self.ring.push_back(traced);
    }
}

impl Watch {
    /// The oldest requests that were not taken yet, so many at most, and how many before them were lost since the last
    /// time.
    pub fn take(&self, most: usize) -> (u64, Vec<Traced>) {
        let mut seen = self.seen.lock();
        let count = seen.ring.len().min(most);
        (std::mem::take(&mut seen.lost), seen.ring.drain(..count).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(ino: u64) -> Traced {
        Traced {
            at: SystemTime::now(),
            kind: "open",
            process: None,
            uid: 0,
            about: Ino(ino),
            name: None,
            queued: Duration::ZERO,
            took: Duration::ZERO,
            notes: Notes::default(),
        }
    }

    #[test]
    fn each_who_looks_gets_all_but_what_is_more_than_is_kept() {
        let trace = Trace::default();
        trace.saw(&traced(0));
        let (one, other) = (trace.watch().unwrap(), trace.watch().unwrap());
        (1..=RING as u64 + 5).for_each(|ino| trace.saw(&traced(ino)));
        let (lost, some) = one.take(10);
        assert_eq!((lost, some.len(), some[0].about), (5, 10, Ino(6)));
        let (lost, rest) = one.take(usize::MAX);
        assert_eq!((lost, rest.len(), rest[0].about), (0, RING - 10, Ino(16)));
        assert_eq!(other.take(1).0, 5);
        let more: Vec<_> = std::iter::from_fn(|| trace.watch()).take(100).collect();
        assert_eq!(more.len(), WATCHES - 2);
        drop(more);
        assert!(trace.watch().is_some());
    }
}

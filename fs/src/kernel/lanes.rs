//! The threads on which requests are done, lane by lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tensorfs_layout::Ino;

use crate::lane::Lane;
use crate::shares::share;
use crate::workers::Workers;

/// Threads that have readers look into files, and wait for them. No user gets more than half of those that are free.
const READERS: usize = 12;
/// And beyond them those that are kept for users who have none.
const READERS_KEPT: usize = 12;

/// So many threads are left for requests that ask neither the host nor for the lock of a file, and so many for those
/// that hardly ever do.
const LEFT: usize = 8;

/// Files are counted by their numbers modulo this.
const SLOTS: usize = 1024;

/// The lanes of a mount.
pub(super) struct Lanes {
    here: Here,
    records: Here,
    workers: Workers,
    /// For what reads tensors, so that nothing else waits for that.
    readers: Workers,
    /// For what moves files to other tiers, which may take as long as it likes.
    movers: Workers,
}

/// What is being done on the threads that read requests, and may turn out to wait. As long as hardly anything waits,
/// nobody is refused.
struct Here {
    most: usize,
    all: AtomicUsize,
    about: Box<[AtomicUsize]>,
}

/// To be held while something is done that may turn out to wait.
pub(super) struct Admitted<'a>(&'a Here, usize);

impl Here {
    fn new(most: usize) -> Self {
        let about = (0..SLOTS).map(|_| AtomicUsize::new(0)).collect();
        Self { most, all: AtomicUsize::new(0), about }
    }

    fn admit(&self, about: Ino) -> Option<Admitted<'_>> {
        let slot = about.0 as usize % SLOTS;
        let share = share(self.most, self.all.fetch_add(1, Relaxed));
        let with = self.about[slot].fetch_add(1, Relaxed);
        let admitted = Admitted(self, slot);
        (with < share && self.all.load(Relaxed) <= self.most).then_some(admitted)
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.all.fetch_sub(1, Relaxed);
        self.0.about[self.1].fetch_sub(1, Relaxed);
    }
}

impl Lanes {
    /// The lanes beside so many threads that read requests. The lane of the movers is shared with moves that no request
    /// waits for.
    pub fn new(threads: usize, movers: Workers) -> Self {
        Self {
            here: Here::new(threads.saturating_sub(2 * LEFT).max(1)),
            records: Here::new(LEFT),
            workers: Workers::default(),
            readers: Workers::keeping(READERS, READERS_KEPT),
            movers,
        }
    }

    /// Leave to do something about a file on this thread, which reads requests, though it may turn out to wait.
    pub fn admit(&self, about: Ino) -> Option<Admitted<'_>> {
        self.here.admit(about)
    }

    /// Does the work in a lane. What is to be done here is done on a worker if too much waits here.
    pub fn run<T: Send + Sync + 'static>(
        &self,
        lane: Lane,
        about: Ino,
        on: &Arc<T>,
        work: impl FnOnce(&T) + Send + 'static,
    ) {
        let threads = match lane {
            Lane::Here => match self.admit(about) {
                Some(_admitted) => return work(on),
                None => &self.workers,
            },
            Lane::Records => match self.records.admit(about) {
                Some(_admitted) => return work(on),
                None => &self.workers,
            },
            Lane::Worker => &self.workers,
            Lane::Reader => &self.readers,
            Lane::Mover => &self.movers,
        };
        let on = on.clone();
        threads.run(about, move || work(&on));
    }

    /// True if nothing is queued or running on the workers.
    pub fn workers_are_idle(&self) -> bool {
        self.workers.is_idle()
    }

    /// Waits until nothing is queued or running on the readers.
    pub fn finish_readers(&self) {
        self.readers.finish();
    }

    /// Waits until nothing is queued or running on the workers.
    pub fn finish_workers(&self) {
        self.workers.finish();
    }

    /// Waits until nothing is queued or running on the movers.
    pub fn finish_movers(&self) {
        self.movers.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_slow_leaves_room_for_others_and_all_of_them_for_what_asks_no_file() {
        let lanes = Lanes::new(32, Workers::new(1));
        let one: Vec<_> = std::iter::from_fn(|| lanes.admit(Ino(1))).take(100).collect();
        assert!((2..12).contains(&one.len()));
        let others: Vec<_> = (2..200).filter_map(|ino| lanes.admit(Ino(ino))).collect();
        assert_eq!(one.len() + others.len(), 32 - 2 * LEFT);
        assert!(lanes.admit(Ino(200)).is_none());
        drop((one, others));
        assert!(lanes.admit(Ino(200)).is_some());
        assert_eq!(lanes.here.all.load(Relaxed), 0);
    }
}

//! The threads on which requests are done, lane by lane.

use std::sync::Arc;

use crate::lane::Lane;
use crate::workers::Workers;

/// Threads that read tensors. Each may take what recognising a file takes.
const READERS: usize = 4;

/// The lanes of a mount.
pub(super) struct Lanes {
    workers: Workers,
    /// For what reads tensors, so that nothing else waits for that.
    readers: Workers,
    /// For what moves files to other tiers, which may take as long as it likes.
    movers: Workers,
}

impl Lanes {
    /// The lanes, of which the movers' is shared with moves that no request waits for.
    pub fn new(movers: Workers) -> Self {
        Self { workers: Workers::default(), readers: Workers::new(READERS), movers }
    }

    /// Does the work in a lane.
    pub fn run<T: Send + Sync + 'static>(&self, lane: Lane, on: &Arc<T>, work: impl FnOnce(&T) + Send + 'static) {
        let threads = match lane {
            Lane::Here => return work(on),
            Lane::Worker => &self.workers,
            Lane::Reader => &self.readers,
            Lane::Mover => &self.movers,
        };
        let on = on.clone();
        threads.run(move || work(&on));
    }

    /// Waits until nothing is queued or running on the readers.
    pub fn finish_readers(&self) {
        self.readers.finish();
    }

    /// Waits until nothing is queued or running on the other lanes.
    pub fn finish(&self) {
        self.workers.finish();
        self.movers.finish();
    }
}

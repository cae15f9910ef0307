//! On which thread an operation is done.
//!
//! Which lane an operation takes is said beside the operation, by a method whose name ends in `_lane`; whoever
//! dispatches requests only asks. An operation without one is done [`Lane::Here`].
//!
//! The rule is that nothing which may wait for a disk, a lease, a network or another program keeps others from being
//! answered. What commits, or waits for other handles, takes a lane of its own. Of what asks the host about one file,
//! or takes its lock, nobody can say beforehand whether it waits: it is done here, and `kernel/crew.rs` sees to it that
//! others read requests meanwhile, `kernel/lanes.rs` that one file, or many slow ones, do not get all threads.
//! docs/ARCHITECTURE.md has the table.

/// Where an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// On the thread that has read the request: it waits for no commit and no other handle; if too much waits here, on
    /// a worker.
    Here,
    /// There, too, and less likely to wait: the pool's records say all, unless the file is in use.
    Records,
    /// On a worker: it may wait for a commit, for a lease or for other handles.
    Worker,
    /// On a reader: it may read any amount of any file.
    Reader,
    /// On a mover: it copies a whole file.
    Mover,
}

impl Lane {
    /// A worker for what waits, else no other thread.
    pub fn waiting(waits: bool) -> Self {
        if waits { Self::Worker } else { Self::Here }
    }
}

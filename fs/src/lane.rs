//! On which thread an operation is done.
//!
//! Nothing that may wait for a disk, a lease or another program is done on a thread that reads requests. Which lane an
//! operation takes is said beside the operation; whoever dispatches requests only asks.

/// Where an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// On the thread that has read the request: it waits for nothing.
    Here,
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

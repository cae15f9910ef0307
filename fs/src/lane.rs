//! On which thread an operation is done.
//!
//! Which lane an operation takes is said beside the operation, by a method whose name ends in `_lane`; whoever
//! dispatches requests only asks. An operation without one is done [`Lane::Here`].
//!
//! The rule is that nothing which may wait for a disk, a lease or another program is done on a thread that reads
//! requests. It is kept for everything that commits. It is not kept yet for what asks the host about one segment, or
//! reads and writes it: reads and writes in server mode, `lseek`, copies of up to 1 MiB, the first open of a file,
//! `stat` of a file in use, and what a rename or link records of a file first. docs/ARCHITECTURE.md has the table.

/// Where an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// On the thread that has read the request: it waits for no commit, no lease and no other handle.
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

//! Large files that the host is to write out, because every commit has to sync what is recorded: so a commit finds less
//! left to sync, and whoever waits for one waits less for somebody else's gigabytes.
//!
//! That begins as soon as a large file is closed, which is recorded at once: what is done after it is not durable
//! before it. A file that is still open is written out before a commit in the background records it; that waits for one
//! interval at most. Whatever needs the record sooner (`fsync`, a rename) makes it.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::{Ino, SegmentId};

/// Large files that are to be written out.
#[derive(Default)]
pub(crate) struct ToWriteOut {
    queue: Mutex<Queue>,
    rung: Condvar,
}

#[derive(Default)]
struct Queue {
    files: VecDeque<Part>,
    /// The file being written out.
    running: Option<Ino>,
    /// There is a thread for it.
    on: bool,
}

/// Bytes of a file that are to be written out.
#[derive(Clone)]
pub(crate) struct Part {
    pub ino: Ino,
    pub segment: SegmentId,
    pub bytes: Range<u64>,
}

impl ToWriteOut {
    /// What comes next; `None` when there is to be nothing any more.
    pub fn next(&self) -> Option<Part> {
        let mut queue = self.queue.lock();
        queue.running = None;
        loop {
            if !queue.on {
                return None;
            }
            match queue.files.pop_front() {
                Some(part) => {
                    queue.running = Some(part.ino);
                    return Some(part);
                }
                None => self.rung.wait(&mut queue),
            }
        }
    }

    /// The file comes last; false if its turn is still to come, or not over.
    pub fn add(&self, part: Part) -> bool {
        let mut queue = self.queue.lock();
        if !queue.on || queue.running == Some(part.ino) || queue.files.iter().any(|other| other.ino == part.ino) {
            return false;
        }
        queue.files.push_back(part);
        self.rung.notify_one();
        true
    }

    /// True if somebody writes out what comes.
    pub fn is_on(&self) -> bool {
        self.queue.lock().on
    }

    /// Somebody writes out what comes from now on, or nobody does.
    pub fn switch(&self, on: bool) {
        self.queue.lock().on = on;
        self.rung.notify_all();
    }
}

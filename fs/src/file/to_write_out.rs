//! Large files that the host is to write out, because every commit has to sync what is recorded: so a commit finds less
//! left to sync, and whoever waits for one waits less for somebody else's gigabytes.
//!
//! That begins as soon as a large file is closed, which is recorded at once: what is done after it is not durable before
//! it. A file that is still open is written out before a commit in the background records it; that waits for one interval
//! at most. Whatever needs the record sooner (`fsync`, a rename) makes it.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::medium::Domain;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, SegmentId};

use crate::options::Durability;
use crate::store::host;

use super::Files;
use super::learn::Switch;
use super::node::Locked;

/// What has grown by less is left to the commit.
const LARGE: u64 = 16 << 20;

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
    fn add(&self, part: Part) -> bool {
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

impl Locked<'_> {
    /// Up to where a file that is being closed is recorded, if what it has grown by since may be worth writing out.
    pub(super) fn recorded_end(&self) -> Option<u64> {
        let (store, segment) = (self.files.store(), self.segment()?);
        let fsync = store.durability() == Durability::Fsync;
        if store.pool().domain() != Domain::Cached || !fsync || !self.files.to_write_out().is_on() {
            return None;
        }
        let view = store.view();
        // A segment that replaces another is all new.
        let recorded = |object: &Object| if object.attributes.segment == Some(segment) { object.size() } else { 0 };
        view.object(self.ino()).filter(|object| object.names() > 0).map(recorded)
    }
}

impl Files {
    /// Has what a file has grown by written out once it is closed, if that is much.
    pub(super) fn write_out_closed(&self, ino: Ino, segment: SegmentId, bytes: Range<u64>) {
        if bytes.end.saturating_sub(bytes.start) >= LARGE {
            self.to_write_out().add(Part { ino, segment, bytes });
        }
    }

    /// Has the files that have grown much since they were recorded written out, and recorded then; returns which. Not among
    /// them are those that have waited for that since the last time.
    pub fn write_out_grown(&self) -> Vec<Ino> {
        let store = self.store();
        if store.pool().domain() != Domain::Cached || !self.to_write_out().is_on() {
            return Vec::new();
        }
        let mut large = Vec::new();
        for written in store.writers().all() {
            let (ino, segment) = (written.ino, written.segment);
            let size = host::stat(&*written.fd).map_or(0, |host| host.size);
            let view = store.view();
            // Of a segment that is to replace another nothing is recorded while it is open.
            let object = view.object(ino).filter(|object| object.attributes.segment == Some(segment));
            let Some(from) = object.map(Object::size) else { continue };
            drop(view);
            if size.saturating_sub(from) >= LARGE && self.to_write_out().add(Part { ino, segment, bytes: from..size }) {
                large.push(ino);
            }
        }
        large
    }

    /// Records what was written out of a file.
    pub fn learn_written_out(&self, ino: Ino) {
        let Some(node) = self.node_in_use(ino) else { return };
        let mut file = self.lock(&node);
        if let Err(fault) = file.learn(0, Switch::Leave) {
            // The background tries again.
            log::log!(fault.level, "inode {ino}: not recorded: {fault}");
        }
        if !file.is_open_to_write() {
            file.settle(0);
        }
        drop(file);
        self.store().forget_attributes(ino);
    }
}

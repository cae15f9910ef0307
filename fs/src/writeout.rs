//! Has the host write out what was written to large files, because every commit has to sync what is recorded: so a commit finds
//! less left to sync, and whoever waits for one waits less for somebody else's gigabytes.
//!
//! That begins as soon as a large file is closed, which is recorded at once: what is done after it is not durable before it. A
//! file that is still open is written out before a commit in the background records it; that waits for one interval at most.
//! Whatever needs the record sooner (`fsync`, a rename) makes it. That bytes are written out is no promise of anything: only
//! syncs are, and they report what failed.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::{Domain, Ino, Object, SegmentId};

use crate::filesystem::Filesystem;
use crate::host;
use crate::learn::Switch;
use crate::nodes::State;
use crate::options::Durability;

/// What has grown by less is left to the commit.
const LARGE: u64 = 16 << 20;
/// So many bytes are handed to the host at a time, and twice as many are under way at most: a small sync gets its turn.
const STEP: u64 = 8 << 20;

/// Large files that are to be written out.
#[derive(Default)]
pub(crate) struct WriteOuts {
    queue: Mutex<Queue>,
    rung: Condvar,
}

#[derive(Default)]
struct Queue {
    files: VecDeque<Task>,
    /// The file being written out.
    running: Option<Ino>,
    /// There is a thread for it.
    on: bool,
}

/// Bytes of a file that are to be written out.
#[derive(Clone)]
struct Task {
    ino: Ino,
    segment: SegmentId,
    bytes: Range<u64>,
}

impl WriteOuts {
    /// What comes next; `None` when there is to be nothing any more.
    fn next(&self) -> Option<Task> {
        let mut queue = self.queue.lock();
        queue.running = None;
        loop {
            if !queue.on {
                return None;
            }
            match queue.files.pop_front() {
                Some(task) => {
                    queue.running = Some(task.ino);
                    return Some(task);
                }
                None => self.rung.wait(&mut queue),
            }
        }
    }

    /// The file comes last; false if its turn is still to come, or not over.
    fn add(&self, task: Task) -> bool {
        let mut queue = self.queue.lock();
        if !queue.on || queue.running == Some(task.ino) || queue.files.iter().any(|other| other.ino == task.ino) {
            return false;
        }
        queue.files.push_back(task);
        self.rung.notify_one();
        true
    }

    fn is_on(&self) -> bool {
        self.queue.lock().on
    }

    fn switch(&self, on: bool) {
        self.queue.lock().on = on;
        self.rung.notify_all();
    }
}

/// The thread that has files written out; it ends when this is dropped.
pub(crate) struct OutWriter {
    fs: Arc<Filesystem>,
    thread: Option<JoinHandle<()>>,
}

impl OutWriter {
    /// Starts it.
    pub fn start(fs: Arc<Filesystem>) -> io::Result<Self> {
        fs.write_outs.switch(true);
        let served = fs.clone();
        let thread = thread::Builder::new().name("tensorfs-write".into()).spawn(move || {
            while let Some(Task { ino, segment, bytes }) = served.write_outs.next() {
                let done = catch_unwind(AssertUnwindSafe(|| {
                    served.write_out(segment, bytes, &|| served.write_outs.is_on());
                    served.learn_written_out(ino);
                }));
                if done.is_err() {
                    served.counters.panics.add(1);
                    log::error!("inode {ino}: writing it out panicked");
                }
            }
        })?;
        Ok(Self { fs, thread: Some(thread) })
    }
}

impl Drop for OutWriter {
    fn drop(&mut self) {
        self.fs.write_outs.switch(false);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            log::error!("writing out large files panicked");
        }
    }
}

impl Filesystem {
    /// Up to where a file that is being closed is recorded, if what it has grown by since may be worth writing out.
    pub fn recorded_end(&self, ino: Ino, state: &State) -> Option<u64> {
        if self.pool.domain() != Domain::Cached || self.durability != Durability::Fsync || !self.write_outs.is_on() {
            return None;
        }
        let view = self.pool.view();
        // A segment that replaces another is all new.
        let recorded = |object: &Object| if object.attributes.segment == state.segment { object.size() } else { 0 };
        view.object(ino).filter(|object| object.names() > 0).map(recorded)
    }

    /// Has what such a file has grown by written out, if that is much.
    pub fn write_out_closed(&self, ino: Ino, segment: SegmentId, bytes: Range<u64>) {
        if bytes.end.saturating_sub(bytes.start) >= LARGE {
            self.write_outs.add(Task { ino, segment, bytes });
        }
    }

    /// Has the files that have grown much since they were recorded written out, and recorded then; returns which. Not among
    /// them are those that have waited for that since the last time.
    pub fn write_out_grown(&self) -> Vec<Ino> {
        if self.pool.domain() != Domain::Cached || !self.write_outs.is_on() {
            return Vec::new();
        }
        let writers: Vec<_> =
            self.writers.lock().iter().map(|(ino, watched)| (*ino, watched.segment, watched.fd.clone())).collect();
        let mut large = Vec::new();
        for (ino, segment, fd) in writers {
            let size = host::stat(&*fd).map_or(0, |host| host.size);
            let view = self.pool.view();
            // Of a segment that is to replace another nothing is recorded while it is open.
            let object = view.object(ino).filter(|object| object.attributes.segment == Some(segment));
            let Some(from) = object.map(Object::size) else { continue };
            drop(view);
            if size.saturating_sub(from) >= LARGE && self.write_outs.add(Task { ino, segment, bytes: from..size }) {
                large.push(ino);
            }
        }
        large
    }

    fn learn_written_out(&self, ino: Ino) {
        let Some(node) = self.nodes.peek(ino) else { return };
        let mut state = node.lock();
        if let Err(fault) = self.learn(&node, &mut state, 0, Switch::Leave) {
            // The background tries again.
            log::log!(fault.level, "inode {ino}: not recorded: {fault}");
        }
        if state.writers == 0 {
            self.settle(&node, &mut state, 0);
        }
        drop(state);
        self.forget_attributes(ino);
    }

    /// Has the host write out what is dirty of some bytes of a segment, and waits for it, step by step.
    fn write_out(&self, segment: SegmentId, bytes: Range<u64>, go_on: &dyn Fn() -> bool) {
        let Range { start: from, end: size } = bytes;
        let mut at = from;
        while go_on() {
            // Opened anew for every step: whoever wants to know whether anything has it open waits for one at most. And not the
            // descriptor that will sync it, which is to hear of every failure.
            let Ok(reading) = self.readings.open(&self.pool, segment) else { return };
            if at < size {
                range(&reading, at, false);
            }
            if at > from {
                range(&reading, at - STEP, true);
            }
            if at >= size {
                return;
            }
            self.counters.written_out_bytes.add(STEP.min(size - at));
            at += STEP;
        }
    }
}

/// Has the host begin to write a step out, or finish it. That it fails means nothing: the sync will tell.
fn range(fd: impl AsFd, at: u64, finish: bool) {
    let begin = libc::SYNC_FILE_RANGE_WRITE;
    let flags =
        if finish { libc::SYNC_FILE_RANGE_WAIT_BEFORE | begin | libc::SYNC_FILE_RANGE_WAIT_AFTER } else { begin };
    // SAFETY: takes integers alone, and changes no byte.
    unsafe { libc::sync_file_range(fd.as_fd().as_raw_fd(), at as i64, STEP as i64, flags) };
}

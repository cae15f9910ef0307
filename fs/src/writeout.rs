//! Has the host write out what was written to large files before it is recorded, because from the record on every commit has
//! to sync the file: so a commit finds little left to sync, and whoever waits for one does not wait for somebody else's
//! gigabytes.
//!
//! That is done with every commit in the background, which leaves them out, and as soon as a large file is closed, which then
//! counts as one that can still be written until it is recorded. Whatever needs the record sooner (`fsync`, a rename) makes it. That bytes are
//! written out is no promise of anything: only syncs are, and they report what failed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::{Domain, Ino, SegmentId};

use crate::filesystem::Filesystem;
use crate::host::{self, HostStat};
use crate::learn::Switch;
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
    files: VecDeque<(Ino, SegmentId)>,
    /// The file being written out.
    running: Option<Ino>,
    /// There is a thread for it.
    on: bool,
}

impl WriteOuts {
    /// The next file and its segment; `None` when there is to be none any more.
    fn next(&self) -> Option<(Ino, SegmentId)> {
        let mut queue = self.queue.lock();
        queue.running = None;
        loop {
            if !queue.on {
                return None;
            }
            match queue.files.pop_front() {
                Some(file) => {
                    queue.running = Some(file.0);
                    return Some(file);
                }
                None => self.rung.wait(&mut queue),
            }
        }
    }

    /// The file comes last, if its turn is not yet to come.
    fn add(&self, ino: Ino, segment: SegmentId) {
        let mut queue = self.queue.lock();
        if queue.running != Some(ino) && !queue.files.iter().any(|(file, _)| *file == ino) {
            queue.files.push_back((ino, segment));
            self.rung.notify_one();
        }
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
            while let Some((ino, segment)) = served.write_outs.next() {
                // What was recorded before is with the commits.
                let from = served.pool.view().object(ino).map_or(0, tensorfs_layout::Object::size);
                served.write_out(segment, from, &|| served.write_outs.is_on());
                served.learn_written_out(ino);
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
    /// True if a file that was closed has grown so much since it was recorded that its record had better wait.
    pub fn is_better_written_out(&self, ino: Ino, host: &HostStat) -> bool {
        let fits = host.size >= LARGE && self.pool.domain() == Domain::Cached && self.durability == Durability::Fsync;
        if !fits || !self.write_outs.is_on() {
            return false;
        }
        let view = self.pool.view();
        view.object(ino).is_some_and(|object| object.names() > 0 && host.size.saturating_sub(object.size()) >= LARGE)
    }

    /// Has a large file that was closed written out, and recorded then.
    pub fn write_out_closed(&self, ino: Ino, segment: SegmentId) {
        self.write_outs.add(ino, segment);
    }

    /// Has the files that have grown much since they were recorded written out, and recorded then; returns which.
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
            if object.is_some_and(|object| size.saturating_sub(object.size()) >= LARGE) {
                drop(view);
                self.write_outs.add(ino, segment);
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

    /// Has the host write out what is dirty of a segment from some byte on, and waits for it, step by step.
    fn write_out(&self, segment: SegmentId, from: u64, go_on: &dyn Fn() -> bool) {
        let mut at = from;
        while go_on() {
            // Opened anew for every step: whoever wants to know whether anything has it open waits for one at most. And not the
            // descriptor that will sync it, which is to hear of every failure.
            let Ok(reading) = self.readings.open(&self.pool, segment) else { return };
            let size = host::stat(&reading).map_or(0, |host| host.size);
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

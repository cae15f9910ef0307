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

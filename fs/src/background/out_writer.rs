//! Having the host write out what was written to large files, so that a commit finds less left to sync.
//!
//! That bytes are written out is no promise of anything: only syncs are. But that the host cannot even begin is not
//! told to the sync as well, so it counts as a sync that failed.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use tensorfs_layout::SegmentId;

use crate::file::{Files, PartToWriteOut};

use super::task::{Running, Stopper, Task};

/// So many bytes are handed to the host at a time, and twice as many are under way at most: a small sync gets its turn.
const STEP: u64 = 8 << 20;

/// Has large files written out.
pub(super) struct OutWriter {
    files: Arc<Files>,
}

impl OutWriter {
    /// Starts it.
    pub fn start(files: &Arc<Files>) -> io::Result<Running> {
        files.to_write_out().switch(true);
        Running::start(files, Self { files: files.clone() })
    }

    /// Has the host write out what is dirty of some bytes of a segment, and waits for it, step by step.
    fn write_out(&self, segment: SegmentId, bytes: &Range<u64>) {
        let (store, from, size) = (self.files.store(), bytes.start, bytes.end);
        let mut at = from;
        while self.files.to_write_out().is_on() {
            // Opened anew for every step: whoever wants to know whether anything has it open waits for one at most.
            // And not the descriptor that will sync it, which is to hear of every failure.
            let Ok(reading) = self.files.readings().open(store.pool(), segment) else { return };
            let begun = if at < size { begin(&reading, at) } else { Ok(()) };
            let again = if at > from { begin(&reading, at - STEP) } else { Ok(()) };
            if let Err(error) = begun.and(again) {
                return store.segments().fail(segment, error);
            }
            if at > from {
                finish(&reading, at - STEP);
            }
            if at >= size {
                return;
            }
            store.counters().written_out_bytes.add(STEP.min(size - at));
            at += STEP;
        }
    }
}

impl Task for OutWriter {
    const NAME: &'static str = "tensorfs-write";
    type Piece = PartToWriteOut;

    fn next(&mut self) -> Option<PartToWriteOut> {
        self.files.to_write_out().next()
    }

    fn work(&mut self, part: &PartToWriteOut) {
        self.write_out(part.segment, &part.bytes);
        self.files.learn_written_out(part.ino);
    }

    fn name(part: &PartToWriteOut) -> String {
        format!("inode {}: writing it out", part.ino)
    }

    fn stopper(&self) -> Stopper {
        let files = self.files.clone();
        Box::new(move || files.to_write_out().switch(false))
    }
}

/// Has the host begin to write a step out.
fn begin(fd: impl AsFd, at: u64) -> io::Result<()> {
    range(fd, at, libc::SYNC_FILE_RANGE_WRITE)
}

/// Waits until what was begun of a step is written. That it fails means nothing: it is told to the sync, too.
fn finish(fd: impl AsFd, at: u64) {
    let _ = range(fd, at, libc::SYNC_FILE_RANGE_WAIT_BEFORE);
}

fn range(fd: impl AsFd, at: u64, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: takes integers alone, and changes no byte.
    let done = unsafe { libc::sync_file_range(fd.as_fd().as_raw_fd(), at as i64, STEP as i64, flags) };
    Ok(nix::errno::Errno::result(done).map(drop)?)
}

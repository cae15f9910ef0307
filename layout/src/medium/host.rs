//! What every medium asks of the host in the same way: its syncs, and a longer log file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::errno::Errno;
use nix::unistd::Whence;

use crate::reason;

pub(super) fn sync_segment(segment: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::unistd::fdatasync(segment)?)
}

pub(super) fn write_out(segment: BorrowedFd<'_>, wait: bool) -> io::Result<()> {
    let begin = libc::SYNC_FILE_RANGE_WRITE;
    let flags = if wait { libc::SYNC_FILE_RANGE_WAIT_BEFORE | begin | libc::SYNC_FILE_RANGE_WAIT_AFTER } else { begin };
    // SAFETY: takes integers alone, and changes no byte.
    let done = unsafe { libc::sync_file_range(segment.as_raw_fd(), 0, 0, flags) };
    Errno::result(done).map(drop).map_err(io::Error::from)
}

pub(super) fn sync_directory(directory: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::unistd::fsync(directory)?)
}

pub(super) fn sync_all(directory: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::unistd::syncfs(directory)?)
}

/// A log that is no longer is read, whatever of it is holes.
const SHORT: u64 = 1 << 30;

/// True if a log is long, takes less than half of that on the host, and was synced: of bytes that are not written out
/// yet, some hosts say that they are a hole. A server writes all of its log, so it is few logs that are asked about.
pub(super) fn is_sparse(log: &File) -> bool {
    let has_holes = log.metadata().is_ok_and(|found| found.len() > SHORT && found.blocks() * 512 < found.len() / 2);
    has_holes && nix::unistd::fdatasync(log).is_ok()
}

/// The first part of a range of a file that the host does not call a hole. What it cannot tell is none.
pub(super) fn data_of_file(log: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    let seek = |from: u64, whence| nix::unistd::lseek(log, from as i64, whence).map(|at| at as u64);
    let start = match seek(range.start, Whence::SeekData) {
        Ok(start) if start >= range.end => return Ok(None),
        Ok(start) => start.max(range.start),
        // All behind it is a hole, if it is there.
        Err(Errno::ENXIO) if log.metadata()?.len() >= range.end => return Ok(None),
        Err(Errno::ENXIO) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => return Ok(Some(range)),
    };
    // A hole that was made in between is read.
    let hole = seek(start, Whence::SeekHole).ok().filter(|hole| *hole > start);
    Ok(Some(start..hole.map_or(range.end, |hole| hole.min(range.end))))
}

/// Zeroes, allocates and syncs `from..len` of a file. Zeroes are written, not only reserved, so that later stores
/// change no host metadata and cannot fail for lack of space.
pub(super) fn grow_file(log: &File, from: u64, len: u64) -> io::Result<()> {
    let zeroes = vec![0; 1 << 20];
    let mut at = from;
    while at < len {
        let part = (len - at).min(zeroes.len() as u64) as usize;
        if let Err(error) = log.write_all_at(&zeroes[..part], at) {
            // On a full host, what did not suffice is left to others.
            let _ = log.set_len(from);
            return Err(error);
        }
        at += part as u64;
    }
    // Whatever a sync says, nobody knows what is durable: it is not that the host is full.
    log.sync_all().map_err(|error| io::Error::other(format!("syncing it: {}", reason(&error))))
}

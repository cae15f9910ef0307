//! Copying a segment's bytes to another one.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::unistd::Whence;

use crate::error::{Fault, Host, Result};
use crate::store::host;

/// So many bytes are copied at a time.
const STEP: u64 = 8 << 20;
/// So many are copied before they are synced.
const SYNC_STEP: u64 = 64 << 20;

/// Bytes that become those of another segment, of so many.
pub(super) struct Copying<'a> {
    to: &'a OwnedFd,
    size: u64,
    /// Copied, and not synced yet.
    unsynced: u64,
    buffer: Vec<u8>,
}

impl<'a> Copying<'a> {
    /// Begins with a hole.
    pub fn new(to: &'a OwnedFd, size: u64) -> Result<Self> {
        host::truncate(to, size).host("making a copy")?;
        Ok(Self { to, size, unsynced: 0, buffer: Vec::new() })
    }

    /// Copies what the host has allocated in a range, and leaves the holes. `report` hears how much is copied. False if
    /// `go_on` has said no: then the copy is not whole.
    pub fn copy(
        &mut self,
        from: &OwnedFd,
        range: Range<u64>,
        go_on: &dyn Fn() -> bool,
        report: &dyn Fn(u64, u64),
    ) -> Result<bool> {
        let Range { start: mut at, end: last } = range;
        while at < last {
            let data = match host::seek(from, at as i64, Whence::SeekData) {
                Ok(data) => (data as u64).min(last),
                Err(Errno::ENXIO) => last,
                Err(errno) => return Err(errno).host("making a copy"),
            };
            let end = match data {
                data if data >= last => break,
                data => host::seek(from, data as i64, Whence::SeekHole).host("making a copy")? as u64,
            };
            at = data;
            while at < end.min(last) {
                if !go_on() {
                    return Ok(false);
                }
                report(at, self.size);
                let copied = copy_some(from, self.to, at, (end.min(last) - at).min(STEP), &mut self.buffer)?;
                at += copied;
                self.unsynced += copied;
                // Whoever removes the file waits until the copy is given up, so there must never be much left to sync.
                if self.unsynced >= SYNC_STEP {
                    nix::unistd::fdatasync(self.to).host("syncing a copy")?;
                    self.unsynced = 0;
                }
            }
        }
        Ok(true)
    }
}

fn copy_some(from: &OwnedFd, to: &OwnedFd, at: u64, len: u64, buffer: &mut Vec<u8>) -> Result<u64> {
    match host::copy(from.as_fd(), at, to.as_fd(), at, len) {
        Ok(copied) if copied > 0 => return Ok(copied),
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => return Err(error).host("making a copy"),
        // Between filesystems that cannot.
        _ => {}
    }
    buffer.resize(len as usize, 0);
    let read = host::read_at(from, buffer, at).host("making a copy")?;
    let mut done = 0;
    while done < read {
        let written = host::write_at(to, &buffer[done..read], at + done as u64).host("making a copy")?;
        if written == 0 {
            return Err(Fault::new(libc::ENOSPC));
        }
        done += written;
    }
    if read == 0 { Err(Fault::warn(libc::EIO, "the segment is shorter than it was")) } else { Ok(read as u64) }
}

//! Copying a segment's bytes to another one.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::unistd::Whence;

use crate::error::{Fault, Host, Result};
use crate::store::host;

/// So many bytes are copied at a time.
const STEP: u64 = 8 << 20;
/// So many are copied before they are synced.
const SYNC_STEP: u64 = 64 << 20;

/// Copies what the host has allocated, and leaves the holes. `report` hears how much of it is copied. False if
/// `go_on` has said no: then the copy is not whole.
pub(super) fn copy_all(
    from: &OwnedFd,
    to: &OwnedFd,
    size: u64,
    go_on: &dyn Fn() -> bool,
    report: &dyn Fn(u64, u64),
) -> Result<bool> {
    host::truncate(to, size).host("making a copy")?;
    let mut buffer = Vec::new();
    let mut at = 0;
    let mut synced = 0;
    while at < size {
        let data = match host::seek(from, at as i64, Whence::SeekData) {
            Ok(data) => (data as u64).min(size),
            Err(Errno::ENXIO) => size,
            Err(errno) => return Err(errno).host("making a copy"),
        };
        let end = match data {
            data if data >= size => break,
            data => host::seek(from, data as i64, Whence::SeekHole).host("making a copy")? as u64,
        };
        at = data;
        while at < end.min(size) {
            if !go_on() {
                return Ok(false);
            }
            report(at, size);
            at += copy_some(from, to, at, (end.min(size) - at).min(STEP), &mut buffer)?;
            // Whoever removes the file waits until the copy is given up, so there must never be much left to sync.
            if at - synced >= SYNC_STEP {
                nix::unistd::fdatasync(to).host("syncing a copy")?;
                synced = at;
            }
        }
    }
    Ok(true)
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

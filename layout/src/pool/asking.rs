//! Questions to the server of a mount that are no requests for files: ioctl(2)s with a text in both directions.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Asks the server of the mount that a directory is in. The number says how long question and answer may be.
///
/// # Errors
/// What it says; `ENOTTY` of one that does not know this, and where there is none.
pub(super) fn ask<A: DeserializeOwned>(mount: &File, number: u32, question: &impl Serialize) -> io::Result<A> {
    // An ioctl is only for whom it is meant: another driver could take it for something else.
    if fstatfs(mount)?.filesystem_type() != FUSE_SUPER_MAGIC {
        return Err(io::Error::from_raw_os_error(libc::ENOTTY));
    }
    // `_IOC_SIZE` of the kernel's `asm-generic/ioctl.h`.
    let mut buffer = vec![0; (number >> 16 & 0x3fff) as usize];
    postcard::to_slice(question, &mut buffer).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    // SAFETY: the buffer has the size that the number of the ioctl says, which is what the kernel reads and writes.
    let answered = unsafe { libc::ioctl(mount.as_raw_fd(), number as libc::Ioctl, buffer.as_mut_ptr()) };
    let len = usize::try_from(answered).map_err(|_| io::Error::last_os_error())?;
    let answer = buffer.get(..len).and_then(|bytes| postcard::from_bytes(bytes).ok());
    answer.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its server speaks of something unknown here"))
}

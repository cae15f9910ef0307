//! What a file looks like as its server says it.

use std::io;
use std::path::Path;

use crate::children::c_path;

/// What a file looks like, asked of the server: what the kernel remembers of it does not count.
pub fn asked_anew(path: &Path) -> io::Result<libc::statx> {
    // SAFETY: any bytes are a valid one.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (path, flags, asked) = (c_path(path), libc::AT_STATX_FORCE_SYNC, libc::STATX_BASIC_STATS);
    // SAFETY: a path that ends with NUL, and a structure to fill.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, asked, &mut stat) };
    if done == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
}

//! The file that a pool's log is in.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::error::{Error, Result};
use crate::medium::boot::boot_id;
use crate::medium::dir::Dir;
use crate::medium::foreign::Foreign;

/// The name of the file.
pub(crate) const LOG: &str = "log";
/// A log that is being written anew.
pub(crate) const NEW_LOG: &str = "log.new";

/// Opens the directory of a pool that should be there.
pub(crate) fn open_pool(pool: &Path) -> Result<Dir> {
    let no_pool = |reason: &str| Error::NotAPool { pool: pool.into(), reason: reason.into() };
    Dir::open(pool).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => no_pool("no such directory"),
        Some(libc::ENOTDIR) => no_pool("not a directory"),
        _ => Error::io(pool, "open", error),
    })
}

/// Opens the log file of a pool that should be there.
pub(crate) fn open_log(pool: &Dir, write: bool) -> Result<File> {
    let no_pool = |reason: String| Error::NotAPool { pool: pool.path().into(), reason };
    match pool.open_only(LOG, if write { libc::O_RDWR } else { libc::O_RDONLY }) {
        Ok(log) => Ok(log),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(no_pool("it has no file \"log\"".into())),
        Err(error) if Foreign::of(&error).is_some() => Err(no_pool(format!("\"log\": {error}"))),
        Err(error) => Err(Error::io(pool.path_of(LOG), "open", error)),
    }
}

/// Which file a log is, in this boot of the machine: one that took its place, or a copy of it, is another, and gives
/// its numbers anew, as may one that was put back together with all its disk, or that has lost what was not on that.
///
/// # Errors
/// What cannot be told apart from others.
pub(crate) fn which(log: &File) -> io::Result<String> {
    let found = log.metadata()?;
    let born = found.created()?.duration_since(UNIX_EPOCH).map_err(|_| io::ErrorKind::InvalidData)?;
    let boot = u128::from_be_bytes(boot_id(None));
    if boot == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(format!("{:x}-{:x}-{boot:x}", found.ino(), born.as_nanos()))
}

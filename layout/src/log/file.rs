//! The file that a pool's log is in.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::medium::regular;

/// Opens the log file of a pool that should be there.
pub(crate) fn open_log(pool: &Path, write: bool) -> Result<File> {
    let path = pool.join("log");
    let no_pool = |reason: &str| Error::NotAPool { pool: pool.into(), reason: reason.into() };
    match fs::metadata(pool) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(no_pool("no such directory")),
        Err(error) => return Err(Error::io(pool, "open", error)),
        Ok(metadata) if !metadata.is_dir() => return Err(no_pool("not a directory")),
        Ok(_) => {}
    }
    match regular::open(&path, if write { libc::O_RDWR } else { libc::O_RDONLY }) {
        Ok(log) => Ok(log),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(no_pool("it has no file \"log\"")),
        Err(error) if error.raw_os_error().is_none() => Err(no_pool(&format!("\"log\": {error}"))),
        Err(error) => Err(Error::io(path, "open", error)),
    }
}

//! A question to the server of a mount, and what its errors mean.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tensorfs_fs::{Reply, Request};

use crate::show::failure::{self, At, Failure};

/// Asks the server, through a directory of its mount. That is not kept open, so that it can be unmounted meanwhile.
pub fn request(dir: &Path, request: &Request) -> Result<Reply, Failure> {
    request_about(dir, dir, request)
}

/// As [`request`], about a file: it is the file that a failure names.
pub fn request_about(file: &Path, dir: &Path, request: &Request) -> Result<Reply, Failure> {
    let root = File::open(dir).at(dir)?;
    tensorfs_fs::ask(&root, request).map_err(|error| reason(file, &error))
}

/// As [`request_about`], about work that a server has begun; none if the one that answers knows of none: another one
/// has taken its place.
pub fn request_about_work(file: &Path, dir: &Path, request: &Request) -> Result<Option<Reply>, Failure> {
    let root = File::open(dir).at(dir)?;
    match tensorfs_fs::ask(&root, request) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        answer => answer.map(Some).map_err(|error| reason(file, &error)),
    }
}

/// What an error of such a question means.
fn reason(path: &Path, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EPERM) => Failure::at(path, "only root, or who runs the server, may ask for this"),
        Some(libc::ENOTTY) => Failure::at(path, "not on a tensorfs mount, or on one of another version"),
        Some(libc::EBUSY) => Failure::at(path, "it is being scrubbed or checked already; try again later"),
        _ => Failure::at(path, failure::reason(error)),
    }
}

/// An answer to another question than the one that was asked: the server is of another version.
pub fn unknown(path: &Path) -> Failure {
    Failure::at(path, "its server speaks of something unknown here")
}

/// The directory of a file. The server is asked through it, so that the file is not open, which could be in somebody's
/// way.
pub fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

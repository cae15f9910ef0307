//! Whether a program could take the place of a server, asked of it while that one still serves.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tensorfs_fs::Options;
use tensorfs_layout::pool::{OpenOptions, Pool};

use crate::mounting::request::MountRequest;
use crate::show::failure::{Failure, reason};

/// That this program could take the place of the server of a pool. What that one leaves is standard input; from a
/// keeper of an older program nothing comes.
pub fn would_serve(request: &MountRequest) -> Result<(), Failure> {
    let uuid = could_open(request)?;
    let left = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    match left {
        Ok(left) if left.metadata().is_ok_and(|found| found.is_file()) => go_on(request, left, &uuid),
        _ => Ok(()),
    }
}

/// That this program could go on with what a server leaves.
pub fn could_take_over(request: &MountRequest, handover: impl Into<OwnedFd>) -> Result<(), Failure> {
    go_on(request, handover, &could_open(request)?)
}

/// That a program like this one finds what it has to open, as long as somebody else serves the pool; and its number.
pub fn could_open(request: &MountRequest) -> Result<String, Failure> {
    let options = OpenOptions {
        layout: request.options.layout.clone(),
        may_be_read_only: request.options.flags.read_only,
        ..OpenOptions::default()
    };
    Ok(Pool::could_open(&request.pool, &options)?)
}

fn go_on(request: &MountRequest, handover: impl Into<OwnedFd>, uuid: &str) -> Result<(), Failure> {
    let passthrough = request.options.server.passthrough.unwrap_or(Options::default().passthrough);
    tensorfs_fs::could_take_over(handover, passthrough, request.options.follow().is_some(), uuid)
        .map_err(|error| Failure::at(&request.pool, format!("cannot take over: {}", reason(&error))))
}

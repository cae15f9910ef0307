//! What a program may expect of a directory tree.

mod attributes;
mod bytes;
mod listing;
mod locks;
mod modes;
mod names;
mod opening;
mod removed;
mod rename;
mod space;
mod times;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use nix::errno::Errno;

fn errno(result: libc::c_int) -> Result<(), Errno> {
    Errno::result(result).map(drop)
}

#[track_caller]
fn kind<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_raw(result.expect_err("an error").raw_os_error().unwrap())
}

fn names(directory: &Path) -> BTreeSet<OsString> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

//! Which file of the host a call is about.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The paths that a call is about: as a rule one, of a rename two, of what is no file none.
pub type Places = [Option<PathBuf>; 2];

/// The file that a descriptor is of, as it is called now. It is asked for each time: descriptors are used again, and
/// files are renamed.
pub fn of(fd: c_int) -> Places {
    [link(fd), None]
}

/// A path that is relative to a directory, as the functions with `at` take it.
pub fn at(directory: c_int, path: *const c_char) -> Places {
    [named(directory, path), None]
}

/// A path.
pub fn path(path: *const c_char) -> Places {
    at(libc::AT_FDCWD, path)
}

/// Both paths of a call that takes two.
pub fn both(first: Places, second: Places) -> Places {
    [first.into_iter().next().flatten(), second.into_iter().next().flatten()]
}

fn link(fd: c_int) -> Option<PathBuf> {
    // Of Rust's library this calls readlink alone, which is none of the functions that we stand before.
    std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()
}

fn named(directory: c_int, path: *const c_char) -> Option<PathBuf> {
    if path.is_null() {
        return link(directory);
    }
    // SAFETY: whoever calls a function of libc gives it a path that ends with NUL.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    if path.starts_with("/proc/self/fd") {
        return std::fs::read_link(path).ok();
    }
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let directory = match directory {
        libc::AT_FDCWD => std::env::current_dir().ok()?,
        fd => link(fd)?,
    };
    Some(if path.as_os_str().is_empty() { directory } else { directory.join(path) })
}

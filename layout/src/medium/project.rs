//! Projects of the host's filesystem: what its quotas of directories stand on. A file belongs to one, by number, and
//! what it takes counts there.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The kernel's `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copied_extent_size: u32,
    padding: [u8; 8],
}

mod ioctl {
    use super::Attributes;

    nix::ioctl_read!(get, b'X', 31, Attributes);
    nix::ioctl_write_ptr!(set, b'X', 32, Attributes);
}

/// The project of an open file or directory; 0 is that of whatever was given none.
///
/// # Errors
/// `ENOTTY` where the filesystem knows no projects.
pub fn project(file: impl AsFd) -> io::Result<u32> {
    attributes(file).map(|found| found.project)
}

/// Gives an open file to a project, with what it takes.
///
/// # Errors
/// The host's: `EDQUOT` if the project has no room for it; others where its filesystem has no projects.
pub fn set_project(file: impl AsFd, number: u32) -> io::Result<()> {
    let found = attributes(&file)?;
    if found.project == number {
        return Ok(());
    }
    let wanted = Attributes { project: number, ..found };
    // SAFETY: the descriptor is open, and the structure is the kernel's, which it only reads.
    unsafe { ioctl::set(file.as_fd().as_raw_fd(), &raw const wanted) }?;
    Ok(())
}

fn attributes(file: impl AsFd) -> io::Result<Attributes> {
    let mut found = Attributes::default();
    // SAFETY: the descriptor is open, and the structure is the kernel's, and lives through the call.
    unsafe { ioctl::get(file.as_fd().as_raw_fd(), &raw mut found) }?;
    Ok(found)
}

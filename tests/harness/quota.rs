//! Quotas of a host's filesystem: of a user, or of a project, to which all that is made in a directory belongs.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaOf {
    /// A user's, by number.
    User(u32),
    /// A project's.
    Project(u32),
}

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

    nix::ioctl_read!(
        /// `FS_IOC_FSGETXATTR`.
        attributes, b'X', 31, Attributes
    );
    nix::ioctl_write_ptr!(
        /// `FS_IOC_FSSETXATTR`.
        set_attributes, b'X', 32, Attributes
    );
}

/// Limits what may be on the filesystem of a block device.
pub fn set_quota(of: QuotaOf, device: &Path, bytes: u64) -> io::Result<()> {
    // `PRJQUOTA`, which libc lacks.
    const PROJECTS: libc::c_int = 2;
    let (kind, number) = match of {
        QuotaOf::User(uid) => (libc::USRQUOTA, uid),
        QuotaOf::Project(number) => (PROJECTS, number),
    };
    // SAFETY: all bytes zero are a value of it.
    let mut quota: libc::dqblk = unsafe { std::mem::zeroed() };
    quota.dqb_bhardlimit = bytes / 1024;
    quota.dqb_valid = libc::QIF_BLIMITS;
    let device = CString::new(device.as_os_str().as_bytes())?;
    let command = libc::QCMD(libc::Q_SETQUOTA, kind);
    // SAFETY: a path that ends with NUL, and a structure that the kernel only reads.
    match unsafe { libc::quotactl(command, device.as_ptr(), number.cast_signed(), (&raw mut quota).cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// From now on what is made in a directory, and below it, belongs to a project.
pub fn put_in_project(directory: &Path, number: u32) -> io::Result<()> {
    // `FS_XFLAG_PROJINHERIT`.
    const INHERITED: u32 = 0x200;
    let opened = File::open(directory)?;
    let mut found = Attributes::default();
    // SAFETY: the structure is the kernel's, and lives through the call.
    unsafe { ioctl::attributes(opened.as_raw_fd(), &raw mut found) }?;
    let ours = Attributes { project: number, flags: found.flags | INHERITED, ..found };
    // SAFETY: as above.
    unsafe { ioctl::set_attributes(opened.as_raw_fd(), &raw const ours) }?;
    Ok(())
}

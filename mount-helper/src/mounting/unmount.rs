//! Taking a mount away.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::unistd::geteuid;

use crate::mounting::fusermount;

/// Detaches what is mounted at `mountpoint`. Busy: EBUSY, unless `lazy`; then it is out of sight, and goes on for those
/// who have files open in it.
pub fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let mut flags = MntFlags::UMOUNT_NOFOLLOW;
    flags.set(MntFlags::MNT_DETACH, lazy);
    match umount2(mountpoint, flags) {
        Err(Errno::EPERM) if !geteuid().is_root() => fusermount::unmount(mountpoint, lazy),
        result => result.map_err(io::Error::from),
    }
}

/// Whether an unmount was refused because of open files.
pub fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

//! Taking a mount away.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::unistd::geteuid;

use crate::mounting::fusermount;

/// How long to try to unmount what is busy.
const A_MOMENT: Duration = Duration::from_millis(500);

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

/// As [`unmount`], but tries for a while what is busy, for a moment at least: `df` and its like look into every mount,
/// for a moment each.
pub fn patiently(mountpoint: &Path, lazy: bool, patience: Option<Duration>) -> io::Result<()> {
    let (start, patience) = (Instant::now(), patience.unwrap_or_default().max(A_MOMENT));
    loop {
        match unmount(mountpoint, lazy) {
            Err(error) if is_busy(&error) && start.elapsed() < patience => {
                thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// Whether an unmount was refused because of open files.
pub fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

//! A `/dev/fuse` that somebody else has opened and mounted, handed over as the mount point `/dev/fd/N`: the server
//! needs no privilege. Drivers of Kubernetes (CSI) do this, and mount.fuse3(8) with `drop_privileges`; libfuse takes
//! such a mount point, too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::stat::{SFlag, fstat, major, minor};

use crate::mounting::mountinfo::{Mount, Table};
use crate::show::failure::{Failure, reason};

/// The number of `/dev/fuse`, major and minor (`Documentation/admin-guide/devices.txt` of the kernel).
const DEVICE: (u64, u64) = (10, 229);

/// The descriptor that a mount point stands for: of `/dev/fd/N` that is N.
pub fn number(mountpoint: &Path) -> Option<RawFd> {
    mountpoint.to_str()?.strip_prefix("/dev/fd/")?.parse().ok()
}

/// That the descriptor is one of `/dev/fuse`.
pub fn check(number: RawFd) -> Result<(), Failure> {
    let fail = |why: &str| Failure::new(format!("/dev/fd/{number}: {why}"));
    if number <= 2 {
        return Err(fail("the standard descriptors are in use; hand over another one"));
    }
    // SAFETY: only looked at. If it is not open, the calls say so.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let found = fstat(descriptor).map_err(|_| fail("not open here; the descriptor has to be inherited"))?;
    let is_device = SFlag::from_bits_truncate(found.st_mode & libc::S_IFMT) == SFlag::S_IFCHR;
    if !is_device || (major(found.st_rdev), minor(found.st_rdev)) != DEVICE {
        return Err(fail("not a descriptor of /dev/fuse"));
    }
    Ok(())
}

/// Takes the descriptor over. Programs that this one starts do not get it.
pub fn take(number: RawFd) -> Result<OwnedFd, Failure> {
    check(number)?;
    // SAFETY: it is open, whoever started this program has handed it over, and nothing here has it.
    let device = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&device, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
        .map_err(|errno| Failure::new(format!("/dev/fd/{number}: {}", errno.desc())))?;
    Ok(device)
}

/// The mount that is served through a descriptor, as far as this kernel tells and this process sees it.
pub fn mount_of(device: impl AsFd) -> Option<Mount> {
    let minor = connection(&device)?;
    Table::read().ok()?.latest_first().find(|mount| mount.device() == (0, minor)).cloned()
}

/// The number of the connection (Linux 6.18 and newer): that of its filesystem's device.
fn connection(device: &impl AsFd) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_fd().as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// Ends the connection of a mount: it is dead then, until whoever made it unmounts it.
pub fn abort(mount: &Mount) -> Result<(), String> {
    let path = format!("/sys/fs/fuse/connections/{}/abort", mount.device().1);
    std::fs::write(&path, "1").map_err(|error: io::Error| format!("{path}: {}", reason(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_may_be_a_descriptor() {
        assert_eq!(number(Path::new("/dev/fd/7")), Some(7));
        for other in ["/dev/fd/", "/dev/fd/7/x", "/dev/fd/x", "/dev/fd", "dev/fd/7", "/mnt/tensors"] {
            assert_eq!(number(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn what_is_not_dev_fuse_is_refused() {
        let said = |number| check(number).unwrap_err().to_string();
        assert!(said(1).contains("standard"), "{}", said(1));
        assert!(said(9999).contains("not open here"), "{}", said(9999));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(said(null.as_raw_fd()).contains("not a descriptor of /dev/fuse"));
    }
}

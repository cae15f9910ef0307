//! What takes rights that a server need not have. Whoever has them does it: this process, or its keeper.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::holder::has_open_to_write;

/// `struct fuse_backing_map` of `include/uapi/linux/fuse.h`.
#[repr(C)]
pub struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

nix::ioctl_write_ptr!(backing_open, 229, 1, BackingMap);
nix::ioctl_write_ptr!(backing_close, 229, 2, u32);

/// Does what takes rights.
pub trait Privileged: Send + Sync {
    /// Has the kernel read, write and map a segment itself (passthrough): the number that it is known by on this
    /// connection. Takes `CAP_SYS_ADMIN`.
    fn give_segment(&self, fuse: BorrowedFd<'_>, segment: BorrowedFd<'_>) -> io::Result<u32>;

    /// Has the kernel let go of a segment. Takes `CAP_SYS_ADMIN`.
    fn take_back(&self, fuse: BorrowedFd<'_>, number: u32) -> io::Result<()>;

    /// True if a process, maybe another user's, is seen to have a file open to write: the one of this number on the
    /// filesystem of this device. If the device is not known, any without a disk of its own may be it. An error if that
    /// is not seen.
    fn has_open_to_write(&self, pid: u32, device: Option<(u32, u32)>, ino: u64) -> io::Result<bool>;

    /// The signal that kills a process, maybe another user's, that has given up its memory; none if it ends of itself.
    /// An error if that is not seen.
    fn exit_signal(&self, pid: u32) -> io::Result<Option<i32>>;
}

/// This process does it, with the rights that it has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own;

impl Privileged for Own {
    fn give_segment(&self, fuse: BorrowedFd<'_>, segment: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { fd: segment.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: both descriptors are open, and the kernel only reads the map.
        let number = unsafe { backing_open(fuse.as_raw_fd(), &map) }?;
        Ok(number as u32)
    }

    fn take_back(&self, fuse: BorrowedFd<'_>, number: u32) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the kernel only reads the number.
        unsafe { backing_close(fuse.as_raw_fd(), &number) }?;
        Ok(())
    }

    fn has_open_to_write(&self, pid: u32, device: Option<(u32, u32)>, ino: u64) -> io::Result<bool> {
        has_open_to_write(pid, device, ino)
    }

    fn exit_signal(&self, pid: u32) -> io::Result<Option<i32>> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        if let Some(signal) = exit_signal(&stat) {
            return Ok(Some(signal));
        }
        // Who may not look reads that it has no exit code.
        match fs::read_link(Path::new(&format!("/proc/{pid}/exe"))) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
            _ if stat.is_empty() => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(None),
        }
    }
}

/// The signal in the exit code, the 52nd field of `/proc/PID/stat`, while its process exits.
fn exit_signal(stat: &str) -> Option<i32> {
    // The second field is the program's name, which may hold blanks and brackets.
    let rest = &stat[stat.rfind(')')? + 1..];
    let code: i32 = rest.split_whitespace().nth(49)?.parse().ok()?;
    Some(code & 0x7f).filter(|signal| *signal != 0)
}

/// Who does it for this process, if it gave up its rights.
static OTHER: OnceLock<Arc<dyn Privileged>> = OnceLock::new();

/// From now on somebody else does what takes rights. Said once, before they are given up.
pub fn leave_privileged_to(other: Arc<dyn Privileged>) {
    let _ = OTHER.set(other);
}

/// Who does what takes rights.
pub(crate) fn privileged() -> &'static dyn Privileged {
    OTHER.get().map_or(&Own, |other| &**other)
}

/// Has the kernel forget the number of a segment.
pub(crate) fn take_back(fuse: impl AsFd, number: u32) {
    if let Err(error) = privileged().take_back(fuse.as_fd(), number) {
        log::debug!("backing {number}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_signal_of_an_exiting_process() {
        let stat = |code: i32| {
            let mut fields = vec!["0".to_owned(); 49];
            fields[0] = "X".into();
            format!("7 (a) b (c)) {} {code}\n", fields.join(" "))
        };
        assert_eq!(exit_signal(&stat(9)), Some(9));
        assert_eq!(exit_signal(&stat(0x80 | 11)), Some(11));
        assert_eq!(exit_signal(&stat(0)), None);
        assert_eq!(exit_signal(&stat(3 << 8)), None);
        assert_eq!(exit_signal("nonsense"), None);
        assert_eq!(exit_signal("1 (x) R 1"), None);
    }
}

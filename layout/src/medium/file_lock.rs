//! Locks on files of the host.

use std::fs::File;
use std::os::fd::AsRawFd;

/// An exclusive lock on the whole file. It belongs to the open file, not to the process, and asking who holds one does
/// not get in anybody's way.
pub(crate) fn exclusive() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

/// As [`exclusive`], but others may have one, too. It needs no file that can be written.
pub(crate) fn shared() -> libc::flock {
    libc::flock { l_type: libc::F_RDLCK as _, ..exclusive() }
}

/// As another lock, but on one byte of the file, which need not be there.
pub(crate) fn of_byte(at: i64, lock: libc::flock) -> libc::flock {
    libc::flock { l_start: at as _, l_len: 1, ..lock }
}

/// True if somebody else has the file open, by which a server is known whose lock is not there any more.
pub(crate) fn is_open_elsewhere(file: &File) -> bool {
    // SAFETY: F_SETLEASE takes an integer and touches no memory of ours.
    let lease = |kind: libc::c_int| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    let taken = lease(libc::F_WRLCK) == -1 && nix::errno::Errno::last() == nix::errno::Errno::EAGAIN;
    lease(libc::F_UNLCK);
    taken
}

//! Locks on files of the host.

/// An exclusive lock on the whole file. It belongs to the open file, not to the process, and asking who holds one does
/// not get in anybody's way.
pub(crate) fn exclusive() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

//! Whether a host's filesystem can still be believed.
//!
//! ext4 alone needs this. Once its journal was given up, a sync of a file whose last transaction was lost in it reports
//! success, until some other change finds out; and the errors that it meets while it writes files on its own are
//! counted, but not told to whoever syncs them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// True if an error of the host is about a segment, and not about what the server lacks: then its file fails, and no
/// other.
pub(crate) fn is_of_segment(error: &io::Error) -> bool {
    let errno = Unreadable::of(error).map_or_else(|| error.raw_os_error(), |Unreadable(why)| why.raw_os_error());
    matches!(errno, Some(libc::EIO | libc::EUCLEAN | libc::EBADMSG | libc::ENODATA | libc::EREMOTEIO | libc::EILSEQ))
}

/// What the host says where it cannot give a segment's bytes, which it may find out only as they are read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unreadable(io::Error);

impl Unreadable {
    /// Marks what reading a segment gave, if it is about the segment.
    pub fn mark(error: io::Error) -> io::Error {
        if is_of_segment(&error) { io::Error::new(error.kind(), Self(error)) } else { error }
    }

    /// What was marked so.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// The errors of the filesystem that a directory is on.
#[derive(Debug)]
pub(super) struct HostErrors {
    /// Where the kernel counts them.
    count: Option<PathBuf>,
    seen: AtomicU64,
    is_ext4: bool,
}

impl HostErrors {
    pub fn of(dir: impl AsFd) -> Self {
        let is_ext4 = nix::sys::statfs::fstatfs(&dir)
            .is_ok_and(|host| host.filesystem_type() == nix::sys::statfs::EXT4_SUPER_MAGIC);
        let count = if is_ext4 { counter(&dir) } else { None };
        let seen = AtomicU64::new(count.as_ref().map_or(0, read));
        Self { count, seen, is_ext4 }
    }

    /// True if there were errors since the last time this was asked. An error says that the filesystem takes no changes
    /// any more.
    pub fn are_new(&self, dir: impl AsFd) -> io::Result<bool> {
        if self.is_ext4 {
            // A change of the directory's access time: begun, it meets a journal that was given up.
            let times = [nix::sys::time::TimeSpec::UTIME_NOW, nix::sys::time::TimeSpec::UTIME_OMIT];
            // SAFETY: a descriptor that is open, no path, and two times that live for the call.
            let done = unsafe {
                let times = [*times[0].as_ref(), *times[1].as_ref()];
                libc::futimens(dir.as_fd().as_raw_fd(), times.as_ptr())
            };
            // Others, such as that there is no right to do it, say nothing.
            if let Err(errno @ (nix::errno::Errno::EROFS | nix::errno::Errno::EIO)) = nix::errno::Errno::result(done) {
                return Err(errno.into());
            }
        }
        let Some(count) = self.count.as_ref().map(read) else { return Ok(false) };
        Ok(self.seen.swap(count, Ordering::Relaxed) < count)
    }
}

/// Where the kernel counts the errors of an ext4.
fn counter(dir: impl AsFd) -> Option<PathBuf> {
    let device = nix::sys::stat::fstat(dir).ok()?.st_dev;
    let link = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    let name = fs::canonicalize(link).ok()?.file_name()?.to_owned();
    let count = PathBuf::from("/sys/fs/ext4").join(name).join("errors_count");
    count.exists().then_some(count)
}

fn read(count: &PathBuf) -> u64 {
    fs::read_to_string(count).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default()
}

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
    /// So many there were when everything that they may have hurt was known to have failed.
    heeded: AtomicU64,
    is_ext4: bool,
}

/// How many errors there were, as it is kept for the next server; zero where that is not known.
pub(crate) type Mark = u16;

fn mark(errors: u64) -> Mark {
    1 + (errors % u64::from(Mark::MAX)) as Mark
}

impl HostErrors {
    pub fn of(dir: impl AsFd) -> Self {
        let is_ext4 = nix::sys::statfs::fstatfs(&dir)
            .is_ok_and(|host| host.filesystem_type() == nix::sys::statfs::EXT4_SUPER_MAGIC);
        let count = if is_ext4 { counter(&dir) } else { None };
        let heeded = AtomicU64::new(count.as_ref().map_or(0, read));
        Self { count, heeded, is_ext4 }
    }

    /// How many there are, if some are not [`HostErrors::heed`]ed yet: whoever asks sees to that. Two may do it at the
    /// same time; neither goes on as if there were none while the other is at it. An error says that the filesystem
    /// takes no changes any more.
    pub fn new_ones(&self, dir: impl AsFd) -> io::Result<Option<u64>> {
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
        let Some(count) = self.count.as_ref().map(read) else { return Ok(None) };
        Ok((self.heeded.load(Ordering::Acquire) < count).then_some(count))
    }

    /// True if a sync may succeed although bytes were dropped ([`crate::segment::lost`]).
    pub fn may_drop_bytes(&self) -> bool {
        self.is_ext4
    }

    /// Everything that so many errors may have hurt is known to have failed.
    pub fn heed(&self, count: u64) {
        self.heeded.fetch_max(count, Ordering::AcqRel);
    }

    /// What the next server is to know, where the kernel counts them.
    pub fn heeded(&self) -> Option<Mark> {
        self.count.as_ref().map(|_| mark(self.heeded.load(Ordering::Acquire)))
    }

    /// Has the errors counted as new that were met since a server before left this mark.
    pub fn recall(&self, left: Mark) {
        let heeded = self.heeded.load(Ordering::Acquire);
        if left != 0 && left != mark(heeded) {
            self.heeded.store(heeded.saturating_sub(1), Ordering::Release);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_were_met_while_no_server_ran_are_new_to_the_next() {
        let room = tempfile::tempdir().unwrap();
        let dir = fs::File::open(room.path()).unwrap();
        let path = room.path().join("errors_count");
        let server = |count: &str, left: Mark| {
            fs::write(&path, count).unwrap();
            let count = Some(path.clone());
            let heeded = AtomicU64::new(read(&path));
            let errors = HostErrors { count, heeded, is_ext4: false };
            errors.recall(left);
            errors
        };
        let first = server("3\n", 0);
        assert_eq!(first.new_ones(&dir).unwrap(), None, "of a server before nothing is known");
        fs::write(&path, "5\n").unwrap();
        let left = first.heeded().unwrap();
        assert_eq!(first.new_ones(&dir).unwrap(), Some(5));
        assert_eq!(first.heeded(), Some(left), "they were seen, and nobody has heeded them");
        let second = server("5\n", left);
        assert_eq!(second.new_ones(&dir).unwrap(), Some(5));
        assert_eq!(second.new_ones(&dir).unwrap(), Some(5), "whoever looked first may still be at it");
        second.heed(5);
        assert_eq!(second.new_ones(&dir).unwrap(), None);
        let third = server("5\n", second.heeded().unwrap());
        assert_eq!(third.new_ones(&dir).unwrap(), None);
        assert_eq!(server("6\n", third.heeded().unwrap()).new_ones(&dir).unwrap(), Some(6));
        assert_eq!(HostErrors { count: None, ..third }.heeded(), None);
    }

    #[test]
    fn a_mark_tells_any_number_of_errors_from_none_known() {
        assert_eq!([0, 1, 65_534, 65_535, u64::MAX].map(mark), [1, 2, 65_535, 1, 1]);
    }
}

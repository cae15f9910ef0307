//! This crate's terms in fuser's, and back.

use std::time::SystemTime;

use fuser::{FileAttr, FileType, FopenFlags, INodeNo, Request};
use tensorfs_layout::{Ino, Timestamp};

use crate::caller::Caller;
use crate::file::{Manner, Stat};

/// In the number of a request that the kernel sends again: `FUSE_UNIQUE_RESEND` of `include/uapi/linux/fuse.h`.
const AGAIN: u64 = 1 << 63;

/// Who sends a request.
pub(super) fn caller(req: &Request) -> Caller {
    let unique = req.unique().0;
    Caller { unique: unique & !AGAIN, again: unique & AGAIN != 0, uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

/// The inode that a request is about.
pub(super) fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

/// What an inode looks like.
pub(super) fn file_attr(stat: &Stat) -> FileAttr {
    let a = &stat.attributes;
    FileAttr {
        ino: INodeNo(stat.ino.0),
        size: stat.size,
        blocks: stat.allocated / 512,
        atime: a.atime.into(),
        mtime: a.mtime.into(),
        ctime: a.ctime.into(),
        crtime: a.btime.into(),
        kind: file_type(a.mode),
        perm: (a.mode & 0o7777) as u16,
        nlink: stat.links,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// Attributes of nothing, for the answer that a name does not exist.
pub(super) fn nothing() -> FileAttr {
    let never = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The flags that say how the kernel treats an open. `FOPEN_PASSTHROUGH` itself goes with the backing id.
pub(super) fn fopen_flags(manner: Manner) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_DIRECT_IO, manner.direct_io);
    flags.set(FopenFlags::FOPEN_NOFLUSH, manner.no_flush);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, manner.keep_cache);
    flags
}

/// The type that a mode names.
pub(super) fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// A time as the client gave it. fuser 0.18 turns seconds before 1970 into a distance to the epoch and then takes the
/// nanoseconds away too, where they count forward; this puts them back.
pub(super) fn client_time(time: SystemTime) -> Timestamp {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(_) => Timestamp::from(time),
        Err(before) => {
            let distance = before.duration();
            Timestamp::new((distance.as_secs() as i64).wrapping_neg(), distance.subsec_nanos())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// What fuser 0.18 makes of a `struct timespec`.
    fn as_fuser_decodes(sec: i64, nsec: u32) -> SystemTime {
        if sec >= 0 {
            SystemTime::UNIX_EPOCH + Duration::new(sec as u64, nsec)
        } else {
            SystemTime::UNIX_EPOCH - Duration::new(sec.unsigned_abs(), nsec)
        }
    }

    #[test]
    fn times_before_1970_survive_fuser() {
        for (sec, nsec) in [(0, 0), (5, 1), (-1, 0), (-1, 1), (-1, 999_999_999), (-86_400, 500_000_000)] {
            assert_eq!(client_time(as_fuser_decodes(sec, nsec)), Timestamp::new(sec, nsec));
        }
    }
}

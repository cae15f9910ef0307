//! Calls on segments' descriptors, in the types the rest of the crate speaks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate as nix_fallocate};
use nix::sys::stat::{fstat, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{Whence, lseek};
use tensorfs_layout::Timestamp;

use crate::clock;

/// What the host says about a segment.
pub(crate) use tensorfs_layout::segment::SegmentStat as HostStat;

/// Asks the host about an open segment.
pub(crate) fn stat(fd: impl AsFd) -> nix::Result<HostStat> {
    Ok(fstat(fd)?.into())
}

/// Sets a segment's times; `None` leaves one as it is.
pub(crate) fn set_times(fd: impl AsFd, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> nix::Result<()> {
    let spec = |time: Option<Timestamp>| {
        time.map_or(TimeSpec::UTIME_OMIT, |time| TimeSpec::new(time.sec, i64::from(time.nsec)))
    };
    futimens(fd, &spec(atime), &spec(mtime))
}

/// So many times two changes are tried, until so many pairs fell into one tick of the host's clock.
const TRIES: usize = 64;
const PAIRS: usize = 8;

/// True if a file of the host that was looked at has another change time after its next change, however soon that is:
/// since Linux 6.13 ext4, XFS, btrfs and tmpfs stamp the first change behind a look by a clock that has no ticks. Found
/// by trying it with a file, whose modification time is set to what it is.
pub(crate) fn tells_each_change(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    let change = || -> nix::Result<Timestamp> {
        set_times(fd, None, Some(stat(fd)?.mtime))?;
        Ok(stat(fd)?.ctime)
    };
    let (mut pairs, mut is_fine) = (0, false);
    for _ in 0..TRIES {
        let tick = clock::coarse();
        let (Ok(first), Ok(second)) = (change(), change()) else { return false };
        if first == second {
            return false;
        }
        // Else a clock with ticks can have told them apart.
        if clock::coarse() == tick {
            pairs += 1;
            // One of microseconds could leave the same time for two changes.
            is_fine |= second.nsec % 1000 != 0;
        }
        if pairs == PAIRS {
            return is_fine;
        }
    }
    false
}

/// Reads until `buffer` is full or the segment ends. Less than was asked for means nothing else: for the kernel it is
/// the end of the file, and its cache has zeroes from there on.
pub(crate) fn read_at(fd: impl AsFd, mut buffer: &mut [u8], mut offset: u64) -> nix::Result<usize> {
    let fd = fd.as_fd();
    let mut read = 0;
    while !buffer.is_empty() {
        match nix::sys::uio::pread(fd, buffer, offset as i64) {
            Ok(0) => break,
            Ok(n) => {
                read += n;
                offset += n as u64;
                buffer = &mut buffer[n..];
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(read)
}

/// Writes as much of `data` as the host takes; an error only if it takes nothing.
pub(crate) fn write_at(fd: impl AsFd, mut data: &[u8], mut offset: u64) -> nix::Result<usize> {
    let fd = fd.as_fd();
    let mut written = 0;
    while !data.is_empty() {
        match nix::sys::uio::pwrite(fd, data, offset as i64) {
            Ok(0) => break,
            Ok(n) => {
                written += n;
                offset += n as u64;
                data = &data[n..];
            }
            Err(Errno::EINTR) => {}
            Err(_) if written > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(written)
}

/// Sets a segment's size.
pub(crate) fn truncate(fd: impl AsFd, size: u64) -> nix::Result<()> {
    let size = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
    retry(|| nix::unistd::ftruncate(fd.as_fd(), size))
}

/// `fallocate(2)`.
pub(crate) fn fallocate(fd: impl AsFd, mode: FallocateFlags, offset: u64, len: u64) -> nix::Result<()> {
    let (offset, len) = (offset as i64, len as i64);
    retry(|| nix_fallocate(fd.as_fd(), mode, offset, len))
}

/// `lseek(2)` with `SEEK_DATA` or `SEEK_HOLE`.
pub(crate) fn seek(fd: impl AsFd, offset: i64, whence: Whence) -> nix::Result<i64> {
    lseek(fd, offset, whence)
}

/// How many of the bytes of a range the host would have to allocate to write it, in whole blocks.
pub(crate) fn unallocated(fd: impl AsFd, offset: u64, len: u64, block: u64) -> nix::Result<u64> {
    let fd = fd.as_fd();
    let end = offset.saturating_add(len).div_ceil(block).saturating_mul(block);
    let mut at = offset / block * block;
    let mut missing = 0;
    while at < end {
        let data = match lseek(fd, at as i64, Whence::SeekData) {
            Ok(data) => (data as u64).min(end),
            Err(Errno::ENXIO) => end,
            Err(errno) => return Err(errno),
        };
        missing += (data - at).next_multiple_of(block).min(end - at);
        if data >= end {
            break;
        }
        at = match lseek(fd, data as i64, Whence::SeekHole) {
            Ok(hole) => (hole as u64).next_multiple_of(block),
            Err(Errno::ENXIO) => end,
            Err(errno) => return Err(errno),
        };
    }
    Ok(missing)
}

/// `FS_IOC_FIEMAP` and what goes with it, of the kernel's `include/uapi/linux/fiemap.h`.
const FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
const LAST_EXTENT: u32 = 1;
/// The host has found no place for it yet, and gives it back if it is not written.
const NOT_YET_PLACED: u32 = 4;
/// So many extents are asked for at a time, and so often.
const EXTENTS: usize = 32;
const TIMES: usize = 32;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    at: u64,
    physical: u64,
    len: u64,
    reserved: [u64; 2],
    flags: u32,
    more: [u32; 3],
}

#[repr(C)]
struct Extents {
    start: u64,
    len: u64,
    flags: u32,
    found: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// How much a segment has from a place on, which is not in front of its end, and up to where. Nothing where the host
/// does not say; of very many extents all that it has at all.
pub(crate) fn behind(fd: impl AsFd, end: u64, allocated: u64) -> (u64, u64) {
    let (mut bytes, mut reach, mut start) = (0_u64, 0, end);
    for _ in 0..TIMES {
        let extents = [Extent::default(); EXTENTS];
        let room = EXTENTS as u32;
        let mut asked = Extents { start, len: u64::MAX - start, flags: 0, found: 0, room, reserved: 0, extents };
        // SAFETY: the descriptor is open for the call, which writes into the struct what fits there: `room` says how
        // many extents that are.
        let done = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), FIEMAP, &raw mut asked) };
        let found = &asked.extents[..(asked.found as usize).min(EXTENTS)];
        if done != 0 || found.is_empty() {
            return (bytes, reach);
        }
        for extent in found {
            let until = extent.at.saturating_add(extent.len);
            if extent.flags & NOT_YET_PLACED == 0 {
                bytes = bytes.saturating_add(until.saturating_sub(extent.at.max(start)));
                reach = until;
            }
            start = start.max(until);
            if extent.flags & LAST_EXTENT != 0 {
                return (bytes, reach);
            }
        }
    }
    (allocated, u64::MAX)
}

/// Copies a range between segments, by sharing it where the host can; returns what was copied, which may be less.
pub(crate) fn copy(
    from: BorrowedFd<'_>,
    from_offset: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
    len: u64,
) -> io::Result<u64> {
    let (mut from_offset, mut to_offset) = (from_offset as i64, to_offset as i64);
    let mut copied = 0;
    while copied < len {
        let want = usize::try_from(len - copied).unwrap_or(usize::MAX);
        match nix::fcntl::copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), want) {
            Ok(0) => break,
            Ok(n) => copied += n as u64,
            Err(Errno::EINTR) => {}
            Err(_) if copied > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(copied)
}

/// Shares a range between two segments without copying it (`FICLONERANGE`). A `len` of 0 means up to the end.
pub(crate) fn clone_range(
    from: BorrowedFd<'_>,
    from_offset: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
    len: u64,
) -> io::Result<()> {
    let range = libc::file_clone_range {
        src_fd: i64::from(from.as_raw_fd()),
        src_offset: from_offset,
        src_length: len,
        dest_offset: to_offset,
    };
    // SAFETY: both descriptors are open for the call, and FICLONERANGE only reads the struct, which outlives it.
    let done = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &range) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn retry(mut call: impl FnMut() -> nix::Result<()>) -> nix::Result<()> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_a_write_would_allocate() {
        let file = tempfile::tempfile().unwrap();
        let block = 4096;
        assert_eq!(unallocated(&file, 0, 1, block).unwrap(), block);
        assert_eq!(unallocated(&file, 4095, 2, block).unwrap(), 2 * block);
        write_at(&file, &[1; 4096], 8192).unwrap();
        assert_eq!(unallocated(&file, 0, 16384, block).unwrap(), 3 * block);
        assert_eq!(unallocated(&file, 8192, 4096, block).unwrap(), 0);
        assert_eq!(unallocated(&file, 9000, 10, block).unwrap(), 0);
        assert_eq!(unallocated(&file, 12000, 1000, block).unwrap(), block);
    }

    #[test]
    fn finds_what_is_behind_the_end() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        write_at(&file, &[1; 8192], 0).unwrap();
        file.as_file().sync_all().unwrap();
        let at = |place| behind(&file, place, 1 << 40);
        if at(0) != (8192, 8192) || fallocate(&file, keep, 1 << 20, 65536).is_err() {
            // The host does not say.
            return;
        }
        assert_eq!(at(8192), (65536, (1 << 20) + 65536));
        assert_eq!(at((1 << 20) + 4096), (61440, (1 << 20) + 65536));
        for n in 0..3 * (TIMES * EXTENTS) as i64 {
            nix_fallocate(&file, keep, (2 << 20) + 8192 * n, 4096).unwrap();
        }
        assert_eq!(at(8192), (1 << 40, u64::MAX));
    }

    #[test]
    fn times_before_1970_reach_the_host() {
        let file = tempfile::tempfile().unwrap();
        let time = Timestamp::new(-2, 500_000_000);
        set_times(&file, None, Some(time)).unwrap();
        assert_eq!(stat(&file).unwrap().mtime, time);
    }
}

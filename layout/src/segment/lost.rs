//! Bytes that a host has dropped without a word.
//!
//! ext4 finds a place for a file's bytes when it writes them. Where it finds none, because the tables that say what is
//! free cannot be read, it may drop the bytes and report success to whoever syncs. What is left is a hole.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::errno::Errno;

use crate::time::Timestamp;

/// True if a file has a hole where a value has other bytes than zeroes, or ends before it.
pub(super) fn lost_in(fd: impl AsFd, value: &[u8]) -> io::Result<bool> {
    let mut at = 0;
    while at < value.len() {
        let Some(hole) = seek(&fd, at, libc::SEEK_HOLE)? else { return Ok(true) };
        if hole >= value.len() {
            return Ok(false);
        }
        let data = seek(&fd, hole, libc::SEEK_DATA)?.unwrap_or(value.len()).min(value.len());
        if value[hole..data].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        at = data;
    }
    Ok(false)
}

/// True if a file has these bytes and no others.
pub(super) fn holds(file: &File, value: &[u8]) -> io::Result<bool> {
    let mut bytes = vec![0; value.len()];
    Ok(file.metadata()?.len() == value.len() as u64 && file.read_exact_at(&mut bytes, 0).is_ok() && bytes == value)
}

/// True if a copy has a hole where the file that it is of has bytes. It may be of a part, or the file may have grown.
pub(super) fn lost_in_copy(of: impl AsFd, copy: impl AsFd) -> io::Result<bool> {
    let len = nix::sys::stat::fstat(&copy)?.st_size as usize;
    let mut at = 0;
    while let Some(data) = seek(&of, at, libc::SEEK_DATA)?.filter(|data| *data < len) {
        let Some(hole) = seek(&of, data, libc::SEEK_HOLE)? else { break };
        if seek(&copy, data, libc::SEEK_HOLE)?.is_none_or(|lost| lost < hole.min(len)) {
            return Ok(true);
        }
        at = hole;
    }
    Ok(false)
}

/// True if some part of a file is a hole.
pub(super) fn has_hole(fd: impl AsFd) -> bool {
    let size = nix::sys::stat::fstat(&fd).map(|stat| stat.st_size as usize);
    size.is_ok_and(|size| size > 0 && !matches!(seek(&fd, 0, libc::SEEK_HOLE), Ok(Some(hole)) if hole >= size))
}

/// True if a file was written since it was made, but for a last time of which the log knows. A host's clock for files
/// may be a little behind the one of which the log has the time, so that neither says which came first.
pub(super) fn is_written(fd: OwnedFd, known: Timestamp) -> bool {
    let Ok(found) = File::from(fd).metadata() else { return true };
    let last = Timestamp::new(found.mtime(), found.mtime_nsec() as u32);
    known != last && !matches!((found.created(), found.modified()), (Ok(made), Ok(last)) if made == last)
}

/// The next hole or data; none behind the end of the file.
fn seek(fd: impl AsFd, at: usize, what: libc::c_int) -> io::Result<Option<usize>> {
    // SAFETY: takes integers alone. Nobody uses the offset of a descriptor that syncs.
    match unsafe { libc::lseek(fd.as_fd().as_raw_fd(), at as i64, what) } {
        -1 if Errno::last() == Errno::ENXIO => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        found => Ok(Some(found as usize)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_a_copy_lacks_is_noticed_and_no_hole_of_the_file_itself() {
        const PART: usize = 64 << 10;
        let make = |parts: &[usize], len: usize| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len as u64).unwrap();
            for part in parts {
                file.write_all_at(&[1; PART], (part * PART) as u64).unwrap();
            }
            file
        };
        let of = make(&[1, 2, 5], 7 * PART);
        let lacks = |parts: &[usize], len| lost_in_copy(&of, make(parts, len)).unwrap();
        assert!(!lacks(&[1, 2, 5], 7 * PART));
        assert!(!lacks(&[0, 1, 2, 3, 5], 7 * PART), "more is no loss");
        assert!(!lacks(&[1], 2 * PART), "a part");
        for parts in [&[1, 5][..], &[2, 5], &[1, 2], &[]] {
            assert!(lacks(parts, 7 * PART), "{parts:?}");
        }
        assert!(lacks(&[1], 3 * PART));
        assert!(!lost_in_copy(make(&[], PART), make(&[], 0)).unwrap());
    }

    #[test]
    fn a_hole_is_lost_bytes_only_where_there_were_some() {
        let file = tempfile::tempfile().unwrap();
        let value = [vec![1; 4096], vec![0; 4096], vec![2; 100]].concat();
        assert!(lost_in(&file, &value).unwrap(), "it is empty");
        file.set_len(value.len() as u64).unwrap();
        assert!(lost_in(&file, &value).unwrap() && has_hole(&file));
        file.write_all_at(&[1; 4096], 0).unwrap();
        assert!(lost_in(&file, &value).unwrap());
        file.write_all_at(&[3; 100], 8192).unwrap();
        assert!(!lost_in(&file, &value).unwrap(), "other bytes were written");
        assert!(has_hole(&file));
        file.write_all_at(&value, 0).unwrap();
        assert!(!lost_in(&file, &value).unwrap() && !has_hole(&file));
    }

    #[test]
    fn what_was_written_is_known_by_its_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || OwnedFd::from(File::open(file.path()).unwrap());
        let found = || file.as_file().metadata().unwrap();
        let Ok(made) = found().created() else { return };
        assert!(!is_written(open(), Timestamp::default()));
        while found().modified().unwrap() == made {
            file.as_file().write_all_at(b"x", 0).unwrap();
        }
        let last = Timestamp::new(found().mtime(), found().mtime_nsec() as u32);
        assert!(is_written(open(), Timestamp::default()) && !is_written(open(), last));
    }
}

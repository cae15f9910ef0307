//! The persistence domain: how what is stored in a pool becomes durable, and the one seam through which it does.
//!
//! [`Medium`] is that seam. *Store* puts bytes where a killed server's successor finds them; *persist* makes everything
//! stored before it survive a power loss. Tests put simulated media behind it. A failed persist is final: whoever
//! gets one must not try again and believe the second answer (rule 9 of docs/FORMAT.md).

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::cacheline;

/// `RAMFS_MAGIC` of linux/magic.h.
const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

/// How stores to a pool become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// Mapped persistent memory: write-back of cache lines, then a fence.
    Dax,
    /// A file behind the page cache: `fdatasync`.
    Cached,
    /// Memory (tmpfs): nothing survives a power loss.
    Volatile,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dax => "dax",
            Self::Cached => "cached",
            Self::Volatile => "volatile",
        })
    }
}

/// What a log and its segments are kept on.
pub trait Medium: Send + Sync + fmt::Debug {
    /// How stores become durable here.
    fn domain(&self) -> Domain;
    /// Bytes of the log file.
    fn log_len(&self) -> io::Result<u64>;
    /// Fills `bytes` from the log file; `UnexpectedEof` behind its end.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Stores bytes in the log file, within its length.
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes all that was stored in the log file durable.
    fn persist(&self) -> io::Result<()>;
    /// Makes the log file `len` bytes long: allocated, zeroed from its old length on, and durable.
    fn grow(&self, from: u64, len: u64) -> io::Result<()>;
    /// Makes the log file shorter. Need not be durable.
    fn shrink(&self, len: u64) -> io::Result<()>;
    /// Makes a segment's bytes and size durable.
    fn sync_segment(&self, segment: BorrowedFd<'_>) -> io::Result<()>;
    /// Makes a directory's entries durable.
    fn sync_directory(&self, directory: BorrowedFd<'_>) -> io::Result<()>;
    /// Makes everything on the host filesystem that `directory` is on durable.
    fn sync_all(&self, directory: BorrowedFd<'_>) -> io::Result<()>;
}

/// Opens the medium of a log file: `dax` if it can be mapped synchronously, else `cached`, or `volatile` on tmpfs.
pub(crate) fn open(log: File) -> io::Result<Box<dyn Medium>> {
    Ok(match domain_of(&log)? {
        Domain::Dax => Box::new(DaxMedium::new(Mapped::new(log)?)),
        domain => Box::new(FileMedium { log, domain }),
    })
}

/// The same for a log file that was opened to be read only.
pub(crate) fn open_to_read(log: File) -> io::Result<Box<dyn Medium>> {
    let domain = domain_of(&log)?;
    Ok(Box::new(FileMedium { log, domain }))
}

/// True for a filesystem in memory: nothing on it survives the end of the machine's boot.
pub(crate) fn is_volatile(fs: nix::sys::statfs::FsType) -> bool {
    fs == nix::sys::statfs::TMPFS_MAGIC || fs == nix::sys::statfs::FsType(RAMFS_MAGIC)
}

/// How stores to a file become durable; the file need not be open for writing.
fn domain_of(log: &File) -> io::Result<Domain> {
    if is_volatile(nix::sys::statfs::fstatfs(log)?.filesystem_type()) {
        return Ok(Domain::Volatile);
    }
    Ok(if Mapped::probe(log) { Domain::Dax } else { Domain::Cached })
}

fn sync_segment(segment: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::unistd::fdatasync(segment)?)
}

fn sync_directory(directory: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::unistd::fsync(directory)?)
}

fn sync_all(directory: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::unistd::syncfs(directory)?)
}

/// Zeroes, allocates and syncs `from..len` of a file. Zeroes are written, not only reserved, so that later stores
/// change no host metadata and cannot fail for lack of space.
fn grow_file(log: &File, from: u64, len: u64) -> io::Result<()> {
    let zeroes = vec![0; 1 << 20];
    let mut at = from;
    while at < len {
        let part = (len - at).min(zeroes.len() as u64) as usize;
        if let Err(error) = log.write_all_at(&zeroes[..part], at) {
            // On a full host, what did not suffice is left to others.
            let _ = log.set_len(from);
            return Err(error);
        }
        at += part as u64;
    }
    log.sync_all()
}

/// A log file behind the page cache: `pwrite` and `fdatasync`.
#[derive(Debug)]
struct FileMedium {
    log: File,
    domain: Domain,
}

impl Medium for FileMedium {
    fn domain(&self) -> Domain {
        self.domain
    }
    fn log_len(&self) -> io::Result<u64> {
        Ok(self.log.metadata()?.len())
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.log.read_exact_at(bytes, offset)
    }
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.log.write_all_at(bytes, offset)
    }
    fn persist(&self) -> io::Result<()> {
        if self.domain == Domain::Volatile {
            return Ok(());
        }
        Ok(nix::unistd::fdatasync(&self.log)?)
    }
    fn grow(&self, from: u64, len: u64) -> io::Result<()> {
        grow_file(&self.log, from, len)
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        self.log.set_len(len)
    }
    fn sync_segment(&self, segment: BorrowedFd<'_>) -> io::Result<()> {
        if self.domain == Domain::Volatile { Ok(()) } else { sync_segment(segment) }
    }
    fn sync_directory(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        if self.domain == Domain::Volatile { Ok(()) } else { sync_directory(directory) }
    }
    fn sync_all(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        if self.domain == Domain::Volatile { Ok(()) } else { sync_all(directory) }
    }
}

/// Persistent memory that a log lies on, as the `dax` medium uses it. Tests put a simulated one behind it.
pub trait Memory: Send + Sync + fmt::Debug {
    /// Bytes of the log file.
    fn log_len(&self) -> io::Result<u64>;
    /// Fills `bytes` from the log file; `UnexpectedEof` behind its end.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Stores bytes within the file's length. They may become durable at any time from now on, in any order.
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Starts the write-back of every cache line that the range touches.
    fn write_back(&self, offset: u64, len: usize) -> io::Result<()>;
    /// Waits until the write-backs that were started before are done.
    fn fence(&self);
    /// Makes the file `len` bytes long: allocated, zeroed from its old length on, and durable.
    fn grow(&self, from: u64, len: u64) -> io::Result<()>;
    /// Makes the file shorter.
    fn shrink(&self, len: u64) -> io::Result<()>;
}

/// A log file on persistent memory: stores go to the memory, a persist writes back the cache lines stored to since the
/// last one, and then fences.
#[derive(Debug)]
pub(crate) struct DaxMedium<M> {
    memory: M,
    unflushed: Mutex<Vec<(u64, usize)>>,
    /// Held by a persist until it is done: another one that finds nothing left to flush must not return before it.
    flushing: Mutex<()>,
}

impl<M: Memory> DaxMedium<M> {
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, unflushed: Mutex::default(), flushing: Mutex::default() }
    }
}

impl<M: Memory> Medium for DaxMedium<M> {
    fn domain(&self) -> Domain {
        Domain::Dax
    }
    fn log_len(&self) -> io::Result<u64> {
        self.memory.log_len()
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read(offset, bytes)
    }
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.store(offset, bytes)?;
        self.unflushed.lock().push((offset, bytes.len()));
        Ok(())
    }
    fn persist(&self) -> io::Result<()> {
        let _flushing = self.flushing.lock();
        let ranges = std::mem::take(&mut *self.unflushed.lock());
        for (offset, len) in ranges {
            self.memory.write_back(offset, len)?;
        }
        self.memory.fence();
        Ok(())
    }
    fn grow(&self, from: u64, len: u64) -> io::Result<()> {
        self.memory.grow(from, len)
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        self.memory.shrink(len)
    }
    fn sync_segment(&self, segment: BorrowedFd<'_>) -> io::Result<()> {
        sync_segment(segment)
    }
    fn sync_directory(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        sync_directory(directory)
    }
    fn sync_all(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        sync_all(directory)
    }
}

/// A file mapped with `MAP_SYNC`: a cache line of it that was written back is durable.
#[derive(Debug)]
struct Mapped {
    log: File,
    map: RwLock<Map>,
}

#[derive(Debug)]
struct Map {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping is shared memory that lives as long as `Map`; `Mapped` bounds every access by `len`, and
// callers of `store` never write the same bytes from two threads (the log appends under its lock).
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(log: &File, len: u64, protection: libc::c_int, flags: libc::c_int) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: maps a file we own at an address the kernel chooses; the result is checked.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, log.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len })
    }

    fn range(&self, offset: u64, len: usize) -> io::Result<*mut u8> {
        let offset =
            usize::try_from(offset).ok().filter(|start| start.checked_add(len).is_some_and(|end| end <= self.len));
        match offset {
            // SAFETY: `offset..offset + len` was just checked to lie within the mapping.
            Some(offset) => Ok(unsafe { self.start.add(offset) }),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; nothing borrows from it beyond the methods above.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

const SYNC_FLAGS: libc::c_int = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

impl Mapped {
    /// True if the file's memory can be mapped so that a flushed cache line is durable.
    fn probe(log: &File) -> bool {
        cacheline::available() && Map::new(log, 4096, libc::PROT_READ, SYNC_FLAGS).is_ok()
    }

    fn new(log: File) -> io::Result<Self> {
        let map = Map::new(&log, log.metadata()?.len(), READ_WRITE, SYNC_FLAGS)?;
        Ok(Self { log, map: RwLock::new(map) })
    }
}

impl Memory for Mapped {
    fn log_len(&self) -> io::Result<u64> {
        Ok(self.log.metadata()?.len())
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        // Not through the mapping: a bad line of memory is an error here, and a signal there.
        self.log.read_exact_at(bytes, offset)
    }
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let map = self.map.read();
        let target = map.range(offset, bytes.len())?;
        // SAFETY: `target` has room for `bytes.len()` bytes, and `bytes` is ordinary memory outside the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }
    fn write_back(&self, offset: u64, len: usize) -> io::Result<()> {
        let map = self.map.read();
        let start = map.range(offset, len)?;
        // SAFETY: the range lies within the mapping.
        unsafe { cacheline::write_back(start, len) };
        Ok(())
    }
    fn fence(&self) {
        cacheline::fence();
    }
    fn grow(&self, from: u64, len: u64) -> io::Result<()> {
        grow_file(&self.log, from, len)?;
        *self.map.write() = Map::new(&self.log, len, READ_WRITE, SYNC_FLAGS)?;
        Ok(())
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        // The mapping first: a store behind the end of the file would be a signal.
        *self.map.write() = Map::new(&self.log, len, READ_WRITE, SYNC_FLAGS)?;
        self.log.set_len(len)
    }
}

/// Opens a file beside the log for the medium's syncs.
pub(crate) fn sync_dir_at(medium: &dyn Medium, path: &std::path::Path) -> io::Result<()> {
    medium.sync_directory(File::open(path)?.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `dax` medium's own logic, on ordinary shared memory: what is stored and persisted is in the file.
    #[test]
    fn dax_stores_and_persists_through_the_mapping() {
        if !cacheline::available() {
            eprintln!("SKIPPED: this processor has no cache line write-back");
            return;
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let map = Map::new(&file, 8192, READ_WRITE, libc::MAP_SHARED).unwrap();
        let medium = DaxMedium::new(Mapped { log: file, map: RwLock::new(map) });
        medium.store(4090, b"across a page").unwrap();
        assert_eq!(medium.unflushed.lock().len(), 1);
        medium.persist().unwrap();
        assert!(medium.unflushed.lock().is_empty());
        let mut bytes = [0; 13];
        medium.read(4090, &mut bytes).unwrap();
        assert_eq!(&bytes, b"across a page");
        assert!(medium.store(8190, b"past the end").is_err());
    }

    #[test]
    fn an_ordinary_file_is_cached_and_tmpfs_is_volatile() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("log")).unwrap();
        file.set_len(8192).unwrap();
        let domain = open(file).unwrap().domain();
        assert!(matches!(domain, Domain::Cached | Domain::Dax), "{domain}");
        if let Ok(dir) = tempfile::tempdir_in("/dev/shm") {
            let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("log")).unwrap();
            assert_eq!(open(file).unwrap().domain(), Domain::Volatile);
        }
    }
}

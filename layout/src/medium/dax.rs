//! A log file on persistent memory.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use parking_lot::{Mutex, RwLock};

use crate::medium::cacheline;
use crate::medium::domain::{Domain, Medium};
use crate::medium::host::{data_of_file, grow_file, is_sparse, sync_all, sync_directory, sync_segment, write_out};

/// Persistent memory that a log lies on, as the `dax` medium uses it. Tests put a simulated one behind it.
pub trait Memory: Send + Sync + fmt::Debug {
    /// Bytes of the log file.
    fn log_len(&self) -> io::Result<u64>;
    /// Fills `bytes` from the log file; `UnexpectedEof` behind its end.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// As [`Medium::is_sparse`].
    fn is_sparse(&self) -> bool {
        false
    }
    /// As [`Medium::data`].
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        Ok(Some(range).filter(|range| !range.is_empty()))
    }
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
    fn is_sparse(&self) -> bool {
        self.memory.is_sparse()
    }
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        self.memory.data(range)
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
    fn write_out(&self, segment: BorrowedFd<'_>, wait: bool) -> io::Result<()> {
        write_out(segment, wait)
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
pub(super) struct Mapped {
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

// SAFETY: `Mapped` bounds every access by `len`, and no two threads store to the same bytes, as for `Send`.
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

pub(super) const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

impl Mapped {
    /// True if the file's memory can be mapped so that a flushed cache line is durable.
    pub(super) fn probe(log: &File) -> bool {
        cacheline::available() && Map::new(log, 4096, libc::PROT_READ, SYNC_FLAGS).is_ok()
    }

    pub(super) fn new(log: File) -> io::Result<Self> {
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
    fn is_sparse(&self) -> bool {
        is_sparse(&self.log)
    }
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        data_of_file(&self.log, range)
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
}

//! A log file behind the page cache, or in memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use crate::medium::domain::{Domain, Medium};
use crate::medium::host::{data_of_file, grow_file, is_sparse, sync_all, sync_directory, sync_segment, write_out};

/// A log file behind the page cache: `pwrite` and `fdatasync`.
#[derive(Debug)]
pub(super) struct FileMedium {
    log: File,
    domain: Domain,
}

impl FileMedium {
    pub fn new(log: File, domain: Domain) -> Self {
        Self { log, domain }
    }
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
    fn is_sparse(&self) -> bool {
        is_sparse(&self.log)
    }
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        data_of_file(&self.log, range)
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
    fn write_out(&self, segment: BorrowedFd<'_>, wait: bool) -> io::Result<()> {
        if self.domain == Domain::Volatile { Ok(()) } else { write_out(segment, wait) }
    }
    fn sync_directory(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        if self.domain == Domain::Volatile { Ok(()) } else { sync_directory(directory) }
    }
    fn sync_all(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        if self.domain == Domain::Volatile { Ok(()) } else { sync_all(directory) }
    }
}

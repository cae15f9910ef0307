//! A medium to look at what is there, and to change nothing.

use std::ops::Range;

use crate::medium::domain::{Domain, Medium};

/// A medium that takes no stores: they are kept out of the pool, and nothing of them is read back.
#[derive(Debug)]
pub(crate) struct ReadOnly(pub Box<dyn Medium>);

impl Medium for ReadOnly {
    fn domain(&self) -> Domain {
        self.0.domain()
    }
    fn log_len(&self) -> std::io::Result<u64> {
        self.0.log_len()
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, bytes)
    }
    fn is_sparse(&self) -> bool {
        self.0.is_sparse()
    }
    fn data(&self, range: Range<u64>) -> std::io::Result<Option<Range<u64>>> {
        self.0.data(range)
    }
    fn store(&self, _offset: u64, _bytes: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
    fn persist(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn grow(&self, _from: u64, _len: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn shrink(&self, _len: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn sync_segment(&self, _segment: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(())
    }
    fn write_out(&self, _segment: std::os::fd::BorrowedFd<'_>, _wait: bool) -> std::io::Result<()> {
        Ok(())
    }
    fn write_anew(&self, _segment: &std::fs::File, _bytes: &[u8]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn sync_directory(&self, _directory: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(())
    }
    fn sync_all(&self, _directory: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(())
    }
}

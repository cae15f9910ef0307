//! How often a pool made its host flush: what durability costs is counted before it is timed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::medium::domain::{Domain, Medium};

/// Flushes since the pool was opened. On a `volatile` pool they are asked for, and cost nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flushes {
    /// Persists of the log.
    pub log: u64,
    /// Syncs of one segment.
    pub segments: u64,
    /// Syncs of a directory of segments.
    pub directories: u64,
    /// Syncs of the whole host filesystem.
    pub host: u64,
}

/// The live counters.
#[derive(Debug, Default)]
struct Counters {
    log: AtomicU64,
    segments: AtomicU64,
    directories: AtomicU64,
    host: AtomicU64,
}

impl Counters {
    fn read(&self) -> Flushes {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Flushes {
            log: get(&self.log),
            segments: get(&self.segments),
            directories: get(&self.directories),
            host: get(&self.host),
        }
    }
}

/// A medium whose flushes are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    medium: Arc<dyn Medium>,
    counters: Counters,
}

impl Counted {
    pub fn new(medium: Arc<dyn Medium>) -> Self {
        Self { medium, counters: Counters::default() }
    }

    /// How often the host was made to flush so far.
    pub fn flushes(&self) -> Flushes {
        self.counters.read()
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Medium for Counted {
    fn domain(&self) -> Domain {
        self.medium.domain()
    }
    fn log_len(&self) -> io::Result<u64> {
        self.medium.log_len()
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.medium.read(offset, bytes)
    }
    fn is_sparse(&self) -> bool {
        self.medium.is_sparse()
    }
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        self.medium.data(range)
    }
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.medium.store(offset, bytes)
    }
    fn persist(&self) -> io::Result<()> {
        count(&self.counters.log);
        self.medium.persist()
    }
    fn grow(&self, from: u64, len: u64) -> io::Result<()> {
        count(&self.counters.log);
        self.medium.grow(from, len)
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        self.medium.shrink(len)
    }
    fn sync_segment(&self, segment: BorrowedFd<'_>) -> io::Result<()> {
        count(&self.counters.segments);
        self.medium.sync_segment(segment)
    }
    fn write_out(&self, segment: BorrowedFd<'_>, wait: bool) -> io::Result<()> {
        self.medium.write_out(segment, wait)
    }
    fn write_anew(&self, segment: &File, bytes: &[u8]) -> io::Result<()> {
        self.medium.write_anew(segment, bytes)
    }
    fn sync_directory(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        count(&self.counters.directories);
        self.medium.sync_directory(directory)
    }
    fn sync_all(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        count(&self.counters.host);
        self.medium.sync_all(directory)
    }
}

//! The simulated media behind layout's persist seam.
//!
//! `cached` takes the seam's calls as they are. `dax` puts a simulated persistent memory behind the `dax` medium's own
//! code, so that the stores, write-backs and fences are those that a real pool makes, in their order.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_layout::medium::{Domain, Medium};
use tensorfs_layout::testing::{LARGEST_BLOCK, Memory, dax_medium, write_anew};

use crate::disk::{Disk, Event, FileId, Kind};
use crate::observer::Observer;

/// Which sync is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// One of a segment.
    Segment,
    /// One of the log.
    Log,
}

#[derive(Debug)]
struct Inner {
    disk: Disk,
    /// Everything that happened, if it is remembered.
    events: Option<Vec<Event>>,
    observer: Option<Observer>,
    failing: Option<Failing>,
}

impl Inner {
    fn happen(&mut self, event: Event) {
        match (&mut self.events, &event) {
            (Some(events), _) => {
                self.disk.apply(&event);
                events.push(event);
            }
            // Nobody is going to ask what was durable.
            (None, Event::Store(offset, bytes)) => self.disk.log.put(*offset as usize, bytes),
            (None, Event::Grow(..) | Event::Shrink(_)) => self.disk.apply(&event),
            (None, _) => {}
        }
    }

    fn look(&mut self) -> io::Result<()> {
        let Some(observer) = &mut self.observer else { return Ok(()) };
        for event in observer.look(&self.disk)? {
            self.happen(event);
        }
        Ok(())
    }

    fn fails(&mut self, what: Failing) -> bool {
        let fails = self.failing == Some(what);
        if fails {
            self.failing = None;
        }
        fails
    }
}

/// A medium, kept by whoever crashes it.
#[derive(Clone, Debug)]
pub struct Simulation(Arc<Mutex<Inner>>);

impl Simulation {
    /// A medium that remembers everything that happens to it and to the host's directory `pool`.
    pub fn watched(disk: Disk, pool: &Path, files: HashMap<u64, FileId>) -> Self {
        let observer = Some(Observer::new(pool, files));
        Self(Arc::new(Mutex::new(Inner { disk, events: Some(Vec::new()), observer, failing: None })))
    }

    /// A medium that is only recovered on.
    pub fn unwatched(disk: Disk) -> Self {
        Self(Arc::new(Mutex::new(Inner { disk, events: None, observer: None, failing: None })))
    }

    /// What a pool is opened on.
    pub fn medium(&self) -> Arc<dyn Medium> {
        let kind = self.0.lock().disk.kind;
        match kind {
            Kind::Cached => Arc::new(Cached(self.clone())),
            Kind::Dax => Arc::new(Dax { log: dax_medium(Lines(self.clone())), host: Cached(self.clone()) }),
        }
    }

    /// Fails the next sync of that kind, once.
    pub fn fail_next(&self, what: Failing) {
        self.0.lock().failing = Some(what);
    }

    /// Takes note of what was done to the host's files; returns how many events there are now.
    pub fn look(&self) -> usize {
        let mut inner = self.0.lock();
        inner.look().expect("the pool's directory can be read");
        inner.events.as_ref().map_or(0, Vec::len)
    }

    /// All that happened.
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().events.clone().unwrap_or_default()
    }

    /// The disk as it is now.
    pub fn disk(&self) -> Disk {
        self.0.lock().disk.clone()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let inner = self.0.lock();
        if offset + bytes.len() as u64 > *inner.disk.log.len.now() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        inner.disk.log.get(offset as usize, bytes);
        Ok(())
    }

    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let inner = self.0.lock();
        if range.end > *inner.disk.log.len.now() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(inner.disk.log.data(range))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock();
        if offset + bytes.len() as u64 > *inner.disk.log.len.now() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        inner.look()?;
        inner.happen(Event::Store(offset, bytes.to_vec()));
        Ok(())
    }

    fn happen(&self, event: Event) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.look()?;
        inner.happen(event);
        Ok(())
    }
}

#[derive(Debug)]
struct Cached(Simulation);

fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

fn number(fd: BorrowedFd<'_>) -> io::Result<u64> {
    use std::os::fd::AsRawFd;
    // SAFETY: all zeroes is a value of this plain struct, which the kernel fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the struct is there to be written.
    match unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } {
        0 => Ok(stat.st_ino),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Medium for Cached {
    fn domain(&self) -> Domain {
        Domain::Cached
    }
    fn log_len(&self) -> io::Result<u64> {
        Ok(*self.0.0.lock().disk.log.len.now())
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, bytes)
    }
    fn is_sparse(&self) -> bool {
        true
    }
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        self.0.data(range)
    }
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.store(offset, bytes)
    }
    fn persist(&self) -> io::Result<()> {
        let mut inner = self.0.0.lock();
        inner.look()?;
        let fails = inner.fails(Failing::Log);
        inner.happen(Event::SyncLog(!fails));
        if fails { Err(broken()) } else { Ok(()) }
    }
    fn grow(&self, from: u64, len: u64) -> io::Result<()> {
        self.0.happen(Event::Grow(from, len))
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        self.0.happen(Event::Shrink(len))
    }
    fn sync_segment(&self, segment: BorrowedFd<'_>) -> io::Result<()> {
        let number = number(segment)?;
        let mut inner = self.0.0.lock();
        inner.look()?;
        let fails = inner.fails(Failing::Segment);
        // A file without a name is not there after a crash, whatever is done to it.
        if let Some(id) = inner.observer.as_ref().and_then(|observer| observer.file(number))
            && inner.disk.files.contains_key(&id)
        {
            inner.happen(Event::SyncFile(id, !fails));
        }
        if fails { Err(broken()) } else { Ok(()) }
    }
    fn write_out(&self, _segment: BorrowedFd<'_>, _wait: bool) -> io::Result<()> {
        // Makes nothing durable, and fails where the sync that follows does.
        Ok(())
    }
    fn write_anew(&self, segment: &File, bytes: &[u8]) -> io::Result<()> {
        let number = number(segment.as_fd())?;
        let mut inner = self.0.0.lock();
        inner.look()?;
        write_anew(segment, bytes)?;
        inner.look()?;
        // Looking would not find bytes that are what they were.
        if let Some(id) = inner.observer.as_ref().and_then(|observer| observer.file(number)) {
            inner.happen(Event::Rewrite(id, bytes.len().next_multiple_of(LARGEST_BLOCK)));
        }
        Ok(())
    }
    fn sync_directory(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        let number = number(directory)?;
        let mut inner = self.0.0.lock();
        inner.look()?;
        if let Some(dir) = inner.observer.as_ref().and_then(|observer| observer.directory(number)).map(str::to_owned) {
            inner.happen(Event::SyncDirectory(dir, true));
        }
        Ok(())
    }
    fn sync_all(&self, _directory: BorrowedFd<'_>) -> io::Result<()> {
        self.0.happen(Event::SyncAll(true))
    }
}

/// The persistent memory behind the `dax` medium.
#[derive(Debug)]
struct Lines(Simulation);

impl Memory for Lines {
    fn log_len(&self) -> io::Result<u64> {
        Ok(*self.0.0.lock().disk.log.len.now())
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, bytes)
    }
    fn is_sparse(&self) -> bool {
        true
    }
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        self.0.data(range)
    }
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.store(offset, bytes)
    }
    fn write_back(&self, offset: u64, len: usize) -> io::Result<()> {
        self.0.happen(Event::WriteBack(offset, len))
    }
    fn fence(&self) {
        self.0.happen(Event::Fence).expect("the pool's directory can be read");
    }
    fn grow(&self, from: u64, len: u64) -> io::Result<()> {
        self.0.happen(Event::Grow(from, len))
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        self.0.happen(Event::Shrink(len))
    }
}

/// The `dax` medium's own code for the log; the syncs of segments and directories go to the simulated host.
#[derive(Debug)]
struct Dax {
    log: Box<dyn Medium>,
    host: Cached,
}

impl Medium for Dax {
    fn domain(&self) -> Domain {
        self.log.domain()
    }
    fn log_len(&self) -> io::Result<u64> {
        self.log.log_len()
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.log.read(offset, bytes)
    }
    fn is_sparse(&self) -> bool {
        self.log.is_sparse()
    }
    fn data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        self.log.data(range)
    }
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.log.store(offset, bytes)
    }
    fn persist(&self) -> io::Result<()> {
        self.log.persist()
    }
    fn grow(&self, from: u64, len: u64) -> io::Result<()> {
        self.log.grow(from, len)
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        self.log.shrink(len)
    }
    fn sync_segment(&self, segment: BorrowedFd<'_>) -> io::Result<()> {
        self.host.sync_segment(segment)
    }
    fn write_out(&self, segment: BorrowedFd<'_>, wait: bool) -> io::Result<()> {
        self.host.write_out(segment, wait)
    }
    fn write_anew(&self, segment: &File, bytes: &[u8]) -> io::Result<()> {
        self.host.write_anew(segment, bytes)
    }
    fn sync_directory(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        self.host.sync_directory(directory)
    }
    fn sync_all(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        self.host.sync_all(directory)
    }
}

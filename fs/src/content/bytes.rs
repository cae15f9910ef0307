//! The bytes of a file as the server itself reads them, and what readers say of them.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use tensorfs_formats::ocdbt::{Asked, Told};
use tensorfs_formats::{Block, Planned, Recognised, Sink, Source, Tensor, hole_of};
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, SegmentId};

use crate::budget::BUDGET;
use crate::caller::Asker;
use crate::error::{Fault, Host};
use crate::file::{Files, Reading, Version};
use crate::reader::{Ask, Decoder, Wanted};
use crate::store::{Had, host};

/// The bytes of a version of a file. The segment is opened when it is first read, and closed by
/// [`SegmentBytes::close`].
pub(super) struct SegmentBytes {
    files: Arc<Files>,
    ino: Ino,
    version: Version,
    open: Mutex<Option<Arc<Reading>>>,
    stop: Arc<AtomicBool>,
}

impl SegmentBytes {
    /// The bytes of a version.
    pub fn new(files: Arc<Files>, ino: Ino, version: &Version, stop: Arc<AtomicBool>) -> Self {
        Self { files, ino, version: *version, open: Mutex::default(), stop }
    }

    fn reading(&self) -> io::Result<Arc<Reading>> {
        let readings = self.files.readings();
        let mut open = self.open.lock();
        if readings.is_claimed(self.version.segment) {
            *open = None;
        }
        if let Some(reading) = &*open {
            return Ok(reading.clone());
        }
        let reading = Arc::new(readings.open(self.files.store().pool(), self.segment()?)?);
        *open = Some(reading.clone());
        Ok(reading)
    }

    /// Where the bytes are: in another segment, if they were away and have come since.
    fn segment(&self) -> io::Result<SegmentId> {
        if !self.files.is_of_remote(&self.version) {
            return Ok(self.version.segment);
        }
        let stale = || io::Error::from_raw_os_error(libc::ESTALE);
        let now = self.files.version(self.ino).map_err(|_| stale())?;
        if now.has_come_of(&self.version) { Ok(now.segment) } else { Err(stale()) }
    }

    /// Reads what has come of bytes that are away; none if they are here.
    fn read_away(&self, offset: u64, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        if !self.files.is_of_remote(&self.version) {
            return None;
        }
        let bytes = (offset, offset.saturating_add(buffer.len() as u64));
        match self.files.store().awaited().had(self.ino, bytes) {
            Had::Own => None,
            Had::Nothing => Some(Ok(0)),
            Had::Come(pieces) => Some(host::read_at(&*pieces, buffer, offset).map_err(Into::into)),
            // Whoever reads them has waited for them, unless they did not come.
            Had::Away(..) => Some(Err(io::Error::from_raw_os_error(libc::EIO))),
        }
    }

    /// Closes the segment until it is read again.
    pub fn close(&self) {
        let reading = self.open.lock().take();
        drop(reading);
    }

    /// Says what the file is, and gives each of its tensors to `sink`.
    pub fn recognise(&self, sink: &mut Sink<'_>) -> Recognised {
        self.recognise_what(Wanted::All, sink)
    }

    /// Says what the file is, and gives its first tensor to `sink`.
    pub fn recognise_first(&self, sink: &mut Sink<'_>) -> Recognised {
        self.recognise_what(Wanted::First, sink)
    }

    /// Goes on with an event file, up to so many tensors.
    pub fn resume(&self, from: u64, limit: u64, sink: &mut Sink<'_>) -> Recognised {
        self.recognise_what(Wanted::From { at: from, limit }, sink)
    }

    /// Says whether the file is whole JSON, and which parts of a checkpoint it names.
    pub fn shards(&self) -> Recognised {
        self.recognise_what(Wanted::Shards, &mut |_| ControlFlow::Break(()))
    }

    /// Says whether the file is the plan of a distributed checkpoint, which files it names, and how long each is.
    pub fn planned(&self) -> Recognised {
        self.recognise_what(Wanted::Plan, &mut |_| ControlFlow::Break(()))
    }

    /// Says whether the file may be a part of a distributed checkpoint, though nothing is recognised in it.
    pub fn part(&self) -> Recognised {
        self.recognise_what(Wanted::Part, &mut |_| ControlFlow::Break(()))
    }

    /// Where the elements of a block of n5's are, as one tensor of bytes. None if it is no such block.
    pub fn block(&self, asked: Block) -> io::Result<Option<Tensor>> {
        let mut found = None;
        let recognised = self.recognise_what(Wanted::Block(asked), &mut |tensor| {
            found = Some(tensor);
            ControlFlow::Continue(())
        });
        recognised.error.map_or(Ok(found), Err)
    }

    /// Gives all that the file says as the plan of a checkpoint, or its index, to `sink`.
    pub fn pieces(&self, sink: &mut dyn FnMut(Planned) -> ControlFlow<()>) -> io::Result<Recognised> {
        self.asking(false, u64::MAX, |ask| self.files.readers().pieces(ask, sink))
    }

    /// Gives all that is told at a place of a file of a database to `sink`.
    pub fn tree(&self, asked: Asked, sink: &mut dyn FnMut(Told) -> ControlFlow<()>) -> io::Result<Recognised> {
        self.asking(false, asked.bytes(), |ask| self.files.readers().tree(ask, asked, sink))
    }

    fn recognise_what(&self, wanted: Wanted, sink: &mut Sink<'_>) -> Recognised {
        self.asking(false, u64::MAX, |ask| self.files.readers().recognise(ask, wanted, sink))
    }

    /// Has bytes of a tensor decoded.
    pub fn decode(&self, decoder: &mut Decoder, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.asking(true, u64::MAX, |ask| decoder.read_at(ask, offset, buffer))
    }

    /// Asks readers about so many bytes of this file, for whoever waits for this thread. Ends when the file is removed;
    /// if `named`, it does not begin after that either.
    fn asking<T>(&self, named: bool, asked: u64, question: impl FnOnce(&Ask<'_>) -> T) -> T {
        let store = self.files.store();
        let (named, owner) = {
            let view = store.view();
            let object = view.object(self.ino);
            (named || object.is_some_and(has_name), object.map_or(0, |object| object.attributes.uid))
        };
        let asker = Asker::of_this_thread();
        let gone = |errno| Err(io::Error::from_raw_os_error(errno));
        let name = || {
            let path = store.path_to_show(&store.view(), self.ino);
            path.map_or_else(|| format!("inode {}", self.ino), |path| String::from_utf8_lossy(&path).into_owned())
        };
        let tell = |what: &str| log::warn!("{}: {what}", name());
        let wanted = || {
            if self.stop.load(Relaxed) {
                return gone(libc::ESHUTDOWN);
            }
            if has_spent_all() {
                tell("not looked into, as looking into others took as long as one request may take");
                return Err(io::Error::other("a request that took more than it may"));
            }
            if asker.is_some_and(Asker::is_gone) {
                return gone(libc::EINTR);
            }
            if named && !store.view().object(self.ino).is_some_and(has_name) {
                return gone(libc::ESTALE);
            }
            Ok(())
        };
        let pause = || {
            if self.files.readings().is_claimed(self.version.segment) {
                self.close();
            }
        };
        let version = self.version.mark();
        let allocated = self.reading().and_then(|open| Ok(host::stat(&*open)?.allocated)).unwrap_or(0);
        let (tell, pause, wanted, file) = (&tell, &pause, &wanted, self.version.segment.0);
        let for_bytes = Asker::for_bytes(file, asked, allocated);
        question(&Ask {
            source: self,
            version,
            owner,
            for_bytes,
            tell,
            at_leisure: false,
            pause,
            wanted,
            took: &|time| Asker::spend(file, for_bytes, time),
        })
    }
}

impl Source for SegmentBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.version.size)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.version.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        if let Some(read) = self.read_away(offset, &mut buffer[..want]) {
            return read;
        }
        Ok(host::read_at(&*self.reading()?, &mut buffer[..want], offset)?)
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        if self.files.is_of_remote(&self.version) {
            return Ok(0);
        }
        Ok(hole_of(&*self.reading()?, offset).min(self.version.size.saturating_sub(offset)))
    }
}

fn has_name(object: &Object) -> bool {
    object.names() > 0
}

/// True if readers have taken as much of the processors for whoever waits for this thread as they may for one request,
/// however many files it is about.
pub(super) fn has_spent_all() -> bool {
    Asker::spent() > BUDGET
}

/// What a client gets for it. What is wrong with the bytes of a file is no fault of the host.
pub(super) fn fault(error: io::Error) -> Fault {
    match error.raw_os_error() {
        None => Fault::new(libc::EIO),
        Some(errno @ (libc::ESTALE | libc::EINTR | libc::ESHUTDOWN)) => Fault::new(errno),
        Some(_) => Err::<(), _>(error).host("reading a segment").err().unwrap_or(Fault::new(libc::EIO)),
    }
}

//! A reader, from its own side.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::FromRawFd;
use std::rc::Rc;

use serde::Serialize;
use tensorfs_formats::{self as formats, Reader, Recognised, Source, Tensor};

use super::jail;
use super::protocol::{Answer, DECODE_MAX, LOT_BYTES, LOT_MAX, Order, READ_MAX, Wanted, Wire};

/// The name that the program is called by to be a reader.
pub const READER: &str = "tensorfs-reader";

/// Is a reader: locks this process in, and says what is in files for as long as the server wants to know. Descriptor 0
/// is a socket to the server.
pub fn serve_reader() -> ! {
    let missing = jail::lock_in();
    // SAFETY: descriptor 0 belongs to this process, and nothing else in it uses it.
    let socket = unsafe { File::from_raw_fd(0) };
    let done = serve(socket, missing);
    // Also when the server has gone, which is how most readers end. Nothing is to be cleaned up, and the calls that
    // would do it are forbidden.
    // SAFETY: it takes any number, and does not return.
    unsafe { libc::_exit(done.is_err().into()) }
}

/// The server as a reader sees it.
struct Server {
    wire: RefCell<Wire<File>>,
}

/// The file that the server has open for this reader.
#[derive(Clone)]
struct Remote {
    server: Rc<Server>,
    size: u64,
    /// Bytes that came with the question, from a place on.
    head: Rc<[u8]>,
    head_at: u64,
}

type Decoder = Reader<Remote, Box<Tensor>>;

/// Does what the server says, until it has gone.
pub(super) fn serve(socket: File, missing: Vec<String>) -> io::Result<()> {
    let server = Rc::new(Server { wire: RefCell::new(Wire::new(socket)) });
    server.wire.borrow_mut().send(&Answer::Ready(missing), &[])?;
    let mut decoder: Option<Decoder> = None;
    loop {
        let (order, head): (Order, Rc<[u8]>) = {
            let mut wire = server.wire.borrow_mut();
            let (order, bytes) = wire.receive()?;
            (order, bytes.into())
        };
        let remote = |size, head_at| Remote { server: server.clone(), size, head: head.clone(), head_at };
        match order {
            Order::Recognise { size, wanted } => recognise(&remote(size, wanted.start()), wanted)?,
            Order::Decode { size, tensor, offset, len } => {
                let decoded = decode(&mut decoder, tensor.map(|tensor| (remote(size, 0), tensor)), offset, len);
                let (answer, bytes) = match decoded {
                    Ok(bytes) => (Answer::Decoded, bytes),
                    Err(error) => (Answer::Failed(error.raw_os_error(), error.to_string()), Vec::new()),
                };
                server.wire.borrow_mut().send(&answer, &bytes)?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn decode(
    decoder: &mut Option<Decoder>,
    tensor: Option<(Remote, Box<Tensor>)>,
    offset: u64,
    len: u32,
) -> io::Result<Vec<u8>> {
    if let Some((remote, tensor)) = tensor {
        *decoder = Some(Reader::new(remote, tensor)?);
    }
    let decoder = decoder.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
    let mut bytes = vec![0; (len as usize).min(DECODE_MAX)];
    let count = decoder.read_at(offset, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn recognise(remote: &Remote, wanted: Wanted) -> io::Result<()> {
    let first = wanted == Wanted::First;
    let of = match wanted {
        Wanted::Pieces => Answer::Pieces,
        Wanted::Nodes(_) => Answer::Nodes,
        Wanted::Tree(_) => Answer::Told,
        _ => Answer::Tensors,
    };
    let mut lot = Lot { remote, of, bytes: Vec::new(), count: 0, most: 1, first, failed: None };
    if wanted == Wanted::Pieces {
        let found = formats::pieces(remote, &mut |piece| lot.add(&piece));
        return lot.end(found);
    }
    if let Wanted::Nodes(metadata) = wanted {
        let found = formats::nodes(remote, metadata, &mut |node| lot.add(&node));
        return lot.end(found);
    }
    if let Wanted::Tree(asked) = wanted {
        let found = formats::tree(remote, asked, &mut |told| lot.add(&told));
        return lot.end(found);
    }
    let mut sink = |tensor: Tensor| lot.add(&tensor);
    let found = match wanted {
        Wanted::All | Wanted::First => formats::recognise(remote, &mut sink),
        Wanted::Shards => formats::shards(remote),
        Wanted::Plan | Wanted::Pieces | Wanted::Nodes(_) | Wanted::Tree(_) => formats::planned(remote),
        Wanted::Block(asked) => formats::block(remote, asked, &mut sink),
        Wanted::Part => formats::part(remote),
        Wanted::From { at, limit } => formats::resume_some(remote, at, limit, &mut sink),
        Wanted::Behind { at, front } => formats::resume_behind(remote, at, front, &mut sink),
    };
    lot.end(found)
}

/// Tensors, or pieces of a plan, that are to be sent. The first comes alone, as it may be all that is wanted; more
/// and more come together.
struct Lot<'a> {
    remote: &'a Remote,
    /// The answer with so many of them.
    of: fn(u32) -> Answer,
    bytes: Vec<u8>,
    count: u32,
    most: u32,
    /// No more than one is wanted.
    first: bool,
    failed: Option<io::Error>,
}

impl Lot<'_> {
    /// Sends what is left, and what came of all.
    fn end(mut self, found: Recognised) -> io::Result<()> {
        if self.count > 0 {
            let _ = self.send();
        }
        self.failed.map_or(Ok(()), Err)?;
        self.remote.server.wire.borrow_mut().send(&Answer::Recognised(found.into()), &[])
    }

    fn add(&mut self, one: &impl Serialize) -> ControlFlow<()> {
        match postcard::to_extend(one, std::mem::take(&mut self.bytes)) {
            Ok(bytes) => self.bytes = bytes,
            Err(_) => {
                self.failed = Some(io::ErrorKind::InvalidData.into());
                return ControlFlow::Break(());
            }
        }
        self.count += 1;
        if self.count < self.most && self.bytes.len() < LOT_BYTES { ControlFlow::Continue(()) } else { self.send() }
    }

    fn send(&mut self) -> ControlFlow<()> {
        let mut wire = self.remote.server.wire.borrow_mut();
        let sent = wire.send(&(self.of)(self.count), &self.bytes);
        let answer = match sent {
            Ok(()) if self.first => Ok(Order::Enough),
            sent => sent.and_then(|()| Ok(wire.receive::<Order>()?.0)),
        };
        (self.count, self.most) = (0, (self.most * 2).min(LOT_MAX));
        self.bytes.clear();
        match answer {
            Ok(Order::More) => ControlFlow::Continue(()),
            Ok(_) => ControlFlow::Break(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

impl Source for Remote {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let want =
            buffer.len().min(READ_MAX).min(usize::try_from(self.size.saturating_sub(offset)).unwrap_or(READ_MAX));
        if want == 0 {
            return Ok(0);
        }
        let known = offset.checked_sub(self.head_at).and_then(|at| self.head.get(usize::try_from(at).ok()?..));
        if let Some(known) = known.filter(|known| !known.is_empty()) {
            let count = known.len().min(want);
            buffer[..count].copy_from_slice(&known[..count]);
            return Ok(count);
        }
        let mut wire = self.server.wire.borrow_mut();
        wire.send(&Answer::Read { offset, len: want as u32 }, &[])?;
        match wire.receive::<Order>()? {
            (Order::Bytes, bytes) => {
                let count = bytes.len().min(want);
                buffer[..count].copy_from_slice(&bytes[..count]);
                Ok(count)
            }
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        let mut wire = self.server.wire.borrow_mut();
        wire.send(&Answer::Hole { offset }, &[])?;
        match wire.receive::<Order>()?.0 {
            Order::Hole(len) => Ok(len),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
}

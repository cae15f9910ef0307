//! A conversation with a reader, from the server's side: what it may ask for, and what is made of what it says.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;

use tensorfs_formats::ocdbt::Told;
use tensorfs_formats::{Node, Planned, Recognised, Sink, Source};

use super::check::{self, nonsense};
use super::protocol::{Answer, HEAD, Order, READ_MAX, Wanted, Wire};

/// What is done with what a reader says. An answer ends the request.
pub(super) type Hear<'a, T> = &'a mut dyn FnMut(Answer, &[u8]) -> io::Result<Next<T>>;

/// Takes what is said of what is no tensor; returns how much that was, and whether more is wanted.
pub(super) type Take<'a> = &'a mut dyn FnMut(Answer, &[u8]) -> io::Result<(u64, bool)>;

pub(super) enum Next<T> {
    Say(Order),
    Listen,
    Done(T),
}

/// The bytes that a reader will want first. None if they cannot be read: it will ask for them.
pub(super) fn head(source: &dyn Source, from: u64, size: u64) -> Vec<u8> {
    let len = usize::try_from(size.saturating_sub(from)).unwrap_or(HEAD).min(HEAD);
    let mut head = vec![0; len];
    let read = source.read_at(from, &mut head).unwrap_or(0);
    head.truncate(read);
    head
}

/// Says what is wanted, reads for the reader, and hands everything else on.
pub(super) fn converse<T, S: Read + Write>(
    source: &dyn Source,
    reader: &mut Wire<S>,
    (order, head): (Order, Vec<u8>),
    hear: Hear<'_, T>,
    unreadable: &mut Option<io::Error>,
) -> io::Result<T> {
    reader.send(&order, &head)?;
    let mut buffer = head;
    loop {
        let (answer, bytes) = reader.receive()?;
        match answer {
            Answer::Read { offset, len } => {
                buffer.resize((len as usize).min(READ_MAX), 0);
                match source.read_at(offset, &mut buffer) {
                    Ok(count) => reader.send(&Order::Bytes, &buffer[..count])?,
                    Err(error) => {
                        *unreadable = Some(error);
                        reader.send(&Order::Unreadable, &[])?;
                    }
                }
            }
            Answer::Hole { offset } => {
                let hole = source.hole(offset).unwrap_or(0);
                reader.send(&Order::Hole(hole), &[])?;
            }
            answer => match hear(answer, bytes)? {
                Next::Say(order) => reader.send(&order, &[])?,
                Next::Listen => {}
                Next::Done(done) => return Ok(done),
            },
        }
    }
}

/// Gives the tensors that are said to be in a file of this size to `sink`, and counts them.
pub(super) fn of_tensors(
    size: u64,
    wanted: Wanted,
    tensors: &mut u64,
    sink: &mut Sink<'_>,
) -> impl FnMut(Answer, &[u8]) -> io::Result<Next<Recognised>> {
    let mut enough = false;
    move |answer, bytes| match answer {
        Answer::Tensors(count) if !enough => {
            let mut each = |tensor| sink(tensor).is_continue();
            let (given, more) = check::tensors(count, bytes, size, &mut each)?;
            *tensors += given;
            enough = !more || wanted == Wanted::First;
            Ok(match wanted {
                Wanted::First => Next::Listen,
                _ if more => Next::Say(Order::More),
                _ => Next::Say(Order::Enough),
            })
        }
        Answer::Recognised(summary) => {
            let mut found = check::summary(summary, size, wanted.start(), *tensors)?;
            found.stopped |= enough;
            Ok(Next::Done(found))
        }
        _ => Err(nonsense("an answer to another question")),
    }
}

/// Hands on what else than tensors is said to be in a file of this size.
pub(super) fn of_others(size: u64, take: Take<'_>) -> impl FnMut(Answer, &[u8]) -> io::Result<Next<Recognised>> {
    move |answer, bytes| match answer {
        Answer::Recognised(summary) => Ok(Next::Done(check::summary(summary, size, 0, 0)?)),
        answer => {
            let (_, more) = take(answer, bytes)?;
            Ok(Next::Say(if more { Order::More } else { Order::Enough }))
        }
    }
}

/// Gives pieces of a plan to `sink`.
pub(super) fn taking_pieces(
    sink: &mut dyn FnMut(Planned) -> ControlFlow<()>,
) -> impl FnMut(Answer, &[u8]) -> io::Result<(u64, bool)> {
    move |answer, bytes| match answer {
        Answer::Pieces(count) => check::pieces(count, bytes, &mut |piece| sink(piece).is_continue()),
        _ => Err(nonsense("an answer to another question")),
    }
}

/// Gives directories of a hierarchy of arrays to `sink`.
pub(super) fn taking_nodes(
    sink: &mut dyn FnMut(Node) -> ControlFlow<()>,
) -> impl FnMut(Answer, &[u8]) -> io::Result<(u64, bool)> {
    move |answer, bytes| match answer {
        Answer::Nodes(count) => check::nodes(count, bytes, &mut |node| sink(node).is_continue()),
        _ => Err(nonsense("an answer to another question")),
    }
}

/// Gives what is told of a database to `sink`.
pub(super) fn taking_told(
    sink: &mut dyn FnMut(Told) -> ControlFlow<()>,
) -> impl FnMut(Answer, &[u8]) -> io::Result<(u64, bool)> {
    move |answer, bytes| match answer {
        Answer::Told(count) => check::told(count, bytes, &mut |told| sink(told).is_continue()),
        _ => Err(nonsense("an answer to another question")),
    }
}

/// Puts decoded bytes into `buffer`, as far as there are any. Says how many.
pub(super) fn of_bytes(buffer: &mut [u8]) -> impl FnMut(Answer, &[u8]) -> io::Result<Next<io::Result<usize>>> {
    move |answer, bytes| match answer {
        Answer::Decoded if bytes.len() <= buffer.len() => {
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok(Next::Done(Ok(bytes.len())))
        }
        Answer::Failed(_, why) => Ok(Next::Done(Err(io::Error::other(why)))),
        _ => Err(nonsense("an answer to another question")),
    }
}

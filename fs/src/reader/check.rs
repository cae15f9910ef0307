//! What a reader says is checked as if the writer of the file had said it.

use std::io;

use serde::de::DeserializeOwned;
use tensorfs_formats::ocdbt::Told;
use tensorfs_formats::{Node, Planned, Recognised, Tensor};

use super::protocol::{LOT_MAX, Summary};

/// The longest reason, and the most that a file may say about itself.
const REASON_MAX: usize = 64 << 10;
const METADATA_MAX: usize = 2 << 20;
/// The longest of the calls that it has made.
const CALL_MAX: usize = 64 << 10;

pub(super) fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Gives the tensors of a lot to `each`, which says whether it wants more. Returns how many it was given, and whether
/// it wanted more.
pub(super) fn tensors(
    count: u32,
    bytes: &[u8],
    size: u64,
    each: &mut dyn FnMut(Tensor) -> bool,
) -> io::Result<(u64, bool)> {
    lot(count, bytes, &|tensor: &Tensor| tensor.fault(size), each)
}

/// As [`tensors`], of the pieces of a plan.
pub(super) fn pieces(count: u32, bytes: &[u8], each: &mut dyn FnMut(Planned) -> bool) -> io::Result<(u64, bool)> {
    lot(count, bytes, &Planned::fault, each)
}

/// As [`tensors`], of the directories of a hierarchy of arrays.
pub(super) fn nodes(count: u32, bytes: &[u8], each: &mut dyn FnMut(Node) -> bool) -> io::Result<(u64, bool)> {
    lot(count, bytes, &Node::fault, each)
}

/// As [`tensors`], of what is told of a database.
pub(super) fn told(count: u32, bytes: &[u8], each: &mut dyn FnMut(Told) -> bool) -> io::Result<(u64, bool)> {
    lot(count, bytes, &Told::fault, each)
}

fn lot<T: DeserializeOwned>(
    count: u32,
    mut bytes: &[u8],
    fault: &dyn Fn(&T) -> Option<&'static str>,
    each: &mut dyn FnMut(T) -> bool,
) -> io::Result<(u64, bool)> {
    if count > LOT_MAX || count == 0 {
        return Err(nonsense("a lot of nothing, or of too many"));
    }
    for n in 1..=u64::from(count) {
        let (one, rest) = postcard::take_from_bytes::<T>(bytes).map_err(|_| nonsense("no tensor"))?;
        bytes = rest;
        if let Some(fault) = fault(&one) {
            return Err(nonsense(fault));
        }
        if !each(one) {
            return Ok((n, false));
        }
    }
    Ok((count.into(), true))
}

/// What came of recognising a file of this size, after so many tensors.
pub(super) fn summary(summary: Summary, size: u64, from: u64, tensors: u64) -> io::Result<Recognised> {
    let Summary { format, frames, bad_frames, end, cut, reason, beyond, metadata, calls, stopped, failed } = summary;
    let said: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    let sound = end <= size.max(from)
        && frames <= size
        && bad_frames <= frames
        && reason.as_ref().is_none_or(|reason| reason.len() <= REASON_MAX)
        && said <= METADATA_MAX
        && calls.iter().all(|call| call.len() <= CALL_MAX);
    if !sound {
        return Err(nonsense("a summary that cannot be"));
    }
    let error = failed.map(io::Error::other);
    Ok(Recognised { format, tensors, frames, bad_frames, end, cut, reason, beyond, metadata, calls, stopped, error })
}

//! Tells a file's format by its first bytes, and has the recogniser of that format look at it.

use std::ops::ControlFlow;

use crate::arrays::{Block, Metadata, Node, What};
use crate::fault::{Fault, Result, malformed, too_much};
use crate::format::Format;
use crate::found::{Out, Recognised, Sink};
use crate::front::{self, Front, HEAD};
use crate::ocdbt::{Asked, Told};
use crate::plan::Planned;
use crate::source::{Source, read_up_to};
use crate::{
    arrays, arrow, bare, ends, exported, gguf, hdf5, keras, npy, npz, ocdbt, plan, safetensors, shards as parts,
    tfrecord, torch, zip,
};

/// Says what the file is, and gives each of its tensors to `sink`.
pub fn recognise(source: &dyn Source, sink: &mut Sink<'_>) -> Recognised {
    run(source, sink, |source, out| {
        let mut head = [0; HEAD];
        let size = source.size()?;
        let len = read_up_to(source, 0, &mut head)?;
        let head = &head[..len];
        if head.starts_with(npy::MAGIC) {
            npy::recognise(source, out)
        } else if head.starts_with(zip::LOCAL_MAGIC) || head.starts_with(zip::END_MAGIC) {
            of_zip(source, out)
        } else if tfrecord::starts(head) {
            tfrecord::recognise(source, 0, u64::MAX, out)
        } else if safetensors::starts(head, size) {
            safetensors::recognise(source, out)
        } else if safetensors::ends_in_header(head, size) {
            out.found.cut = true;
            malformed("a safetensors file that ends inside its header")
        } else if gguf::starts(head) {
            gguf::recognise(source, out)
        } else if let Some(at) = hdf5::find(source, size)? {
            hdf5::recognise(source, at, out)
        } else if head.starts_with(torch::LEGACY_START) {
            torch::recognise_legacy(source, out)
        } else if head.starts_with(arrow::MAGIC) {
            arrow::recognise(source, out)
        } else if arrow::stream::starts(head) {
            arrow::stream::recognise(source, out)
        } else if head.starts_with(ends::PARQUET) {
            out.found.cut = !ends::is_there(source, size)?;
            malformed(if out.found.cut {
                "a Parquet file that does not end as one"
            } else {
                "Parquet is not looked into"
            })
        } else if bare::starts(head) {
            bare::recognise(source, out)
        } else if arrow::stream::starts_old(head) {
            arrow::stream::recognise(source, out)
        } else {
            malformed("no format that is recognised")
        }
    })
}

/// Goes on with an event file that has grown, at the [`Recognised::end`] of the last time.
pub fn resume(source: &dyn Source, from: u64, sink: &mut Sink<'_>) -> Recognised {
    resume_some(source, from, u64::MAX, sink)
}

/// Goes on with an event file that has grown, as [`resume`] does, and stops behind the frame that makes it `limit`
/// tensors or more. [`Recognised::stopped`] says whether it did.
pub fn resume_some(source: &dyn Source, from: u64, limit: u64, sink: &mut Sink<'_>) -> Recognised {
    run(source, sink, |source, out| tfrecord::recognise(source, from, limit, out))
}

/// Goes on with a file that has only grown at a place, of what is in front of which so much is known. Gives what
/// recognising it as a whole does from there on; [`Recognised::stopped`] if that cannot be said without.
pub fn resume_behind(source: &dyn Source, from: u64, front: Front, sink: &mut Sink<'_>) -> Recognised {
    run(source, sink, |source, out| front::resume(source, from, front, out))
}

/// Reads JSON that stands beside a checkpoint: whether it is whole, and which files it names as parts of it, each with
/// how many tensors (values and keys in [`Recognised::metadata`]). Behind them is what has to be there by what Orbax
/// says: `item` with a name is a directory with something in it, `tree` is one with `_METADATA` (without a name the
/// file's own directory), and `database` says that arrays are in one.
pub fn shards(source: &dyn Source) -> Recognised {
    let mut found = run(source, &mut |_| ControlFlow::Break(()), |source, out| parts::read(source, out));
    found.stopped = false;
    found
}

/// Reads the plan of a distributed checkpoint: whether it is whole, which files it names, and the end of the last item
/// in each (names and numbers in [`Recognised::metadata`]).
pub fn planned(source: &dyn Source) -> Recognised {
    let mut found = run(source, &mut |_| ControlFlow::Break(()), |source, out| plan::read(source, out));
    found.stopped = false;
    found
}

/// Reads the plan of a distributed checkpoint, or the index of a checkpoint in parts, and gives all that it says to
/// `sink`: of each tensor first its parts, then itself, and at last where everything is.
pub fn pieces(source: &dyn Source, sink: &mut dyn FnMut(Planned) -> ControlFlow<()>) -> Recognised {
    run(source, &mut |_| ControlFlow::Break(()), |source, out| plan::read_in_full(source, out, sink))
}

/// Reads the metadata of a hierarchy of arrays, and gives what it says of each directory to `sink`: of those below it,
/// then of the one that it is in. Nothing, if it is a file of that name and no such metadata.
pub fn nodes(source: &dyn Source, metadata: Metadata, sink: &mut dyn FnMut(Node) -> ControlFlow<()>) -> Recognised {
    run(source, &mut |_| ControlFlow::Break(()), |source, out| {
        if metadata != Metadata::Ocdbt {
            return arrays::read(source, metadata, out, sink);
        }
        let is_whole = ocdbt::check(source);
        out.found.cut = matches!(is_whole, Err(Fault::Short(_)));
        is_whole?;
        out.found.end = source.size()?;
        let _ = sink(Node { path: String::new(), what: What::Database });
        Ok(())
    })
}

/// Says how large a block of n5's is, and where its elements are: they are given to `sink` as one tensor of bytes, in
/// whose last dimension are those of an element, and in the others the block's own, of which the first one ran fastest.
pub fn block(source: &dyn Source, asked: Block, sink: &mut Sink<'_>) -> Recognised {
    run(source, sink, |source, out| arrays::block(source, asked, out))
}

/// Reads what is at a place of a file of an OCDBT database, and gives all that it says to `sink`.
pub fn tree(source: &dyn Source, asked: Asked, sink: &mut dyn FnMut(Told) -> ControlFlow<()>) -> Recognised {
    run(source, &mut |_| ControlFlow::Break(()), |source, out| ocdbt::read(source, asked, out, sink))
}

/// Says whether a file in which nothing is recognised may be a part of a distributed checkpoint all the same: objects
/// without tensors, or items that torch was told to write in a way of its own, which begin neither as a zip nor with
/// zeroes. If not, [`Recognised::reason`] says why.
pub fn part(source: &dyn Source) -> Recognised {
    let found = recognise(source, &mut |_| ControlFlow::Continue(()));
    if !found.calls.is_empty() {
        return Recognised { reason: None, ..found };
    }
    if found.beyond {
        return found;
    }
    run(source, &mut |_| ControlFlow::Break(()), |source, _| {
        let mut head = [0; 512];
        let len = read_up_to(source, 0, &mut head)?;
        let is_foreign = head.iter().any(|&byte| byte != 0) && !head[..len].starts_with(zip::LOCAL_MAGIC);
        if is_foreign { Ok(()) } else { malformed("no part of a checkpoint") }
    })
}

fn of_zip(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let archives = match zip::Directory::find(source) {
        Err(fault) => {
            // The directory is written last.
            out.found.cut = !zip::Directory::is_at_end(source)?;
            return Err(fault);
        }
        Ok(archives) => archives,
    };
    let Some(last) = archives.last() else { return malformed("a zip without its directory") };
    // Of several archives, readers of arrays see the last one.
    if torch::prefix(source, last)?.is_some() {
        if archives.first().is_some_and(zip::Directory::is_behind_another) {
            return too_much(format!("more than {} checkpoints in one file", zip::ARCHIVES_MAX));
        }
        torch::recognise(source, &archives, out)?;
    } else if let Some(weights) = keras::weights(source, last)? {
        keras::recognise(source, weights, out)?;
    } else if let Some(weights) = exported::weights(source, last)? {
        exported::recognise(source, last, &weights, out)?;
    } else {
        npz::recognise(source, last, out)?;
    }
    // Neither library minds.
    let behind = source.size()?.saturating_sub(last.closed);
    if behind > 0 {
        let why = format!("{behind} bytes behind the zip are no part of it");
        out.found.reason = Some(out.found.reason.take().map_or(why.clone(), |first| format!("{why}; {first}")));
    }
    Ok(())
}

fn run(
    source: &dyn Source,
    sink: &mut Sink<'_>,
    recogniser: impl FnOnce(&dyn Source, &mut Out<'_, '_>) -> Result<()>,
) -> Recognised {
    let mut out = Out { found: Recognised::new(Format::Opaque), sink };
    let result = recogniser(source, &mut out);
    let mut found = out.found;
    match result {
        Ok(()) => {}
        Err(Fault::Stopped) => found.stopped = true,
        Err(fault @ (Fault::Malformed(_) | Fault::Short(_) | Fault::TooMuch(_))) => {
            found.beyond = matches!(fault, Fault::TooMuch(_));
            found.reason = fault.why();
            // A recogniser sets the format when it is sure; what then fails is damage behind good tensors.
            if found.tensors == 0 && !matches!(found.format, Format::TfRecord | Format::Hdf5) {
                found.format = Format::Opaque;
                found.metadata.clear();
            }
        }
        Err(Fault::Io(error)) => {
            found.reason = Some(error.to_string());
            found.error = Some(error);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_opaque_files() {
        for (bytes, reason) in [
            (&b""[..], "no format"),
            (b"hello", "no format"),
            (&[0; 4096], "no format"),
            (torch::LEGACY_START, "cut short"),
            (b"PK\x03\x04", "zip"),
        ] {
            let found = recognise(&bytes, &mut |_| panic!("a tensor"));
            assert_eq!(found.format, Format::Opaque);
            assert!(found.reason.as_ref().unwrap().contains(reason), "{:?}", found.reason);
        }
        let mut hdf5 = vec![0; 4096];
        hdf5[1024..1032].copy_from_slice(b"\x89HDF\r\n\x1a\n");
        assert_eq!(recognise(&&hdf5[..], &mut |_| panic!("a tensor")).format, Format::Hdf5);
    }
}

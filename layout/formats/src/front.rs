//! What is known of the bytes in front of a place where a file is gone on with that has only grown.

use serde::{Deserialize, Serialize};

use crate::fault::{Fault, Result};
use crate::found::Out;
use crate::source::{Source, read_up_to};
use crate::{arrow, bare, ends, exported, gguf, hdf5, keras, npy, npz, safetensors, tfrecord, torch, zip};

/// What all bytes in front of a place were recognised as, when the file ended there or a little behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Front {
    /// So many arrays of NumPy's, the last of which ends there, and none of objects.
    Arrays(u64),
    /// Checkpoints of torch with so many tensors, the last of which is at a place in the file, and has a number in
    /// brackets at the end of its name, or not.
    Checkpoints {
        /// How many tensors.
        tensors: u64,
        /// Where the last one is.
        last: u64,
        /// The number.
        number: Option<u32>,
    },
    /// Zips, the last of which, which ends there, is one of arrays.
    Zips,
    /// Nothing, and nothing that ends too early.
    Nothing,
}

/// Goes on with a file at a place. [`Fault::Stopped`] where that can be said only of the whole file.
pub(crate) fn resume(source: &dyn Source, from: u64, front: Front, out: &mut Out<'_, '_>) -> Result<()> {
    match front {
        Front::Arrays(count) => npy::resume(source, from, count, out),
        Front::Checkpoints { tensors, last, number } => {
            if_sound(torch::resume(source, from, (tensors, last, number), out))
        }
        Front::Zips => if_sound(zips(source, from, out)),
        Front::Nothing => {
            let mut head = [0; HEAD];
            let size = source.size()?;
            let len = read_up_to(source, 0, &mut head)?;
            let head = &head[..len];
            // A header that was there, and does not go with what follows, will not with more.
            let never = from >= HEAD as u64 && safetensors::starts(head, from);
            if !never && (may_begin(head, size) || hdf5::find(source, size)?.is_some()) {
                return Err(Fault::Stopped);
            }
            // Nor is that news: there is no reason to give.
            Ok(())
        }
    }
}

/// What is wrong behind is so of the whole.
fn if_sound(done: Result<()>) -> Result<()> {
    match done {
        Err(Fault::Malformed(_) | Fault::Short(_) | Fault::TooMuch(_)) => Err(Fault::Stopped),
        done => done,
    }
}

/// Of zips the last one counts, whatever is in front of it.
fn zips(source: &dyn Source, from: u64, out: &mut Out<'_, '_>) -> Result<()> {
    out.found.end = from;
    let archives = zip::Directory::find_behind(source, from)?;
    match archives.as_ref().and_then(|(_, archives)| archives.last()) {
        Some(last)
            if torch::prefix(source, last)?.is_none()
                && keras::weights(source, last)?.is_none()
                && exported::weights(source, last)?.is_none() =>
        {
            npz::recognise(source, last, out)
        }
        _ => Err(Fault::Stopped),
    }
}

/// What is enough of a file to tell its format, but for one that begins later.
pub(crate) const HEAD: usize = 32;

/// True if a file of any format that is told by its first bytes may begin so.
fn may_begin(head: &[u8], size: u64) -> bool {
    head.len() < HEAD
        || [npy::MAGIC, zip::LOCAL_MAGIC, zip::END_MAGIC, torch::LEGACY_START, arrow::MAGIC, ends::PARQUET]
            .iter()
            .any(|magic| head.starts_with(magic))
        || tfrecord::starts(head)
        || safetensors::starts(head, size)
        || safetensors::ends_in_header(head, size)
        || gguf::starts(head)
        || arrow::stream::starts(head)
        || arrow::stream::starts_old(head)
        || bare::starts(head)
}

//! Keras' `.keras`: a zip of the model's description and of an HDF5 file with its weights.

use std::io;

use crate::fault::{Result, malformed};
use crate::format::Format;
use crate::found::{Out, Recognised};
use crate::hdf5;
use crate::source::Source;
use crate::tensor::{Location, Tensor};
use crate::zip::{Directory, Method};

/// What the member with the weights is called.
const WEIGHTS: &[u8] = b"model.weights.h5";

/// Where the weights are, if there are some.
pub(crate) fn weights(source: &dyn Source, directory: &Directory) -> Result<Option<Slice>> {
    let mut found = None;
    directory.each(source, &mut |member| {
        if member.name != WEIGHTS {
            return Ok(());
        }
        if member.encrypted || member.method != Method::Stored {
            return malformed("a model of Keras' whose weights are compressed");
        }
        let at = directory.data(source, member.header, member.stored)?;
        found = Some(Slice { at, len: member.stored });
        Ok(())
    })?;
    Ok(found)
}

/// What the HDF5 file says that is there.
pub(crate) fn recognise(source: &dyn Source, weights: Slice, out: &mut Out<'_, '_>) -> Result<()> {
    let inner = Inner { source, weights };
    let Some(at) = hdf5::find(&inner, weights.len)? else {
        return malformed("a model of Keras' without weights");
    };
    let sink = &mut *out.sink;
    let mut shifted = |tensor| sink(weights.shifted(tensor));
    let mut there = Out { found: Recognised::new(Format::Hdf5), sink: &mut shifted };
    let result = hdf5::recognise(&inner, at, &mut there);
    out.found = there.found;
    out.found.end = source.size()?;
    result
}

/// Bytes of a file.
#[derive(Clone, Copy)]
pub(crate) struct Slice {
    at: u64,
    len: u64,
}

impl Slice {
    /// A tensor of the file that these bytes are, as one of the file that they are in.
    fn shifted(self, mut tensor: Tensor) -> Tensor {
        match &mut tensor.location {
            Location::Raw { offset, .. }
            | Location::Inline { offset, .. }
            | Location::Deflated { offset, .. }
            | Location::Encoded { offset, .. }
            | Location::Negated { offset, .. } => *offset += self.at,
        }
        tensor
    }
}

/// Those bytes by themselves.
struct Inner<'a> {
    source: &'a dyn Source,
    weights: Slice,
}

impl Source for Inner<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.weights.len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.weights.len.saturating_sub(offset);
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        self.source.read_at(self.weights.at.saturating_add(offset), &mut buffer[..want])
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        let left = self.weights.len.saturating_sub(offset);
        Ok(self.source.hole(self.weights.at.saturating_add(offset))?.min(left))
    }
}

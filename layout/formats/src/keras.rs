//! Keras' `.keras`: a zip of the model's description and of an HDF5 file with its weights.

use crate::fault::{Result, malformed};
use crate::found::Out;
use crate::hdf5;
use crate::source::Source;
use crate::within::Slice;
use crate::zip::Directory;

/// What the member with the weights is called.
const WEIGHTS: &[u8] = b"model.weights.h5";

/// Where the weights are, if there are some.
pub(crate) fn weights(source: &dyn Source, directory: &Directory) -> Result<Option<Slice>> {
    let mut found = None;
    directory.each(source, &mut |member| {
        if member.name == WEIGHTS {
            let why = "a model of Keras' whose weights are compressed";
            found = Some(Slice::of(source, directory, &member, why)?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// What the HDF5 file says that is there.
pub(crate) fn recognise(source: &dyn Source, weights: Slice, out: &mut Out<'_, '_>) -> Result<()> {
    weights.recognise(source, out, |inner, out| match hdf5::find(inner, inner.size()?)? {
        Some(at) => hdf5::recognise(inner, at, out),
        None => malformed("a model of Keras' without weights"),
    })
}

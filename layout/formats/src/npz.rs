//! NumPy's `.npz`: a zip whose members are `.npy` files.

use crate::fault::{Result, malformed};
use crate::format::Format;
use crate::found::Out;
use crate::npy;
use crate::read::inflate;
use crate::source::{Part, Source};
use crate::tensor::{Location, Tensor};
use crate::zip::{Directory, Member, Method};

pub(crate) fn recognise(source: &dyn Source, directory: &Directory, out: &mut Out<'_, '_>) -> Result<()> {
    // Twice: nothing is given out before all of it is known to be sound.
    let mut arrays = 0_u64;
    directory.each(source, &mut |member| {
        arrays += u64::from(array(source, directory, member)?.is_some());
        Ok(())
    })?;
    if arrays == 0 {
        return malformed("a zip without arrays or a torch checkpoint");
    }
    out.found.format = Format::Npz;
    out.found.end = source.size()?;
    directory.each(source, &mut |member| match array(source, directory, member)? {
        Some(tensor) => out.tensor(tensor),
        None => Ok(()),
    })
}

/// The member as a tensor, if its name says that it is one. NumPy takes the suffix off names, too.
fn array(source: &dyn Source, directory: &Directory, member: Member<'_>) -> Result<Option<Tensor>> {
    let Some(name) = member.name.strip_suffix(b".npy") else { return Ok(None) };
    if member.encrypted {
        return malformed("an encrypted member");
    }
    let data = directory.data(source, member.header, member.stored)?;
    let end = data + member.stored;
    let (header, len) = match member.method {
        Method::Stored => (npy::read_header(&mut Part { source, at: data, end })?, member.stored),
        Method::Deflated => (npy::read_header(&mut inflate(source, data, member.stored))?, member.size),
        Method::Other => return malformed("a member compressed in an unknown way"),
    };
    header
        .tensor(name.to_vec(), len, |skip, len| match member.method {
            Method::Stored => Location::Raw { offset: data + skip, len },
            _ => Location::Deflated { offset: data, len: member.stored, skip },
        })
        .map(Some)
}

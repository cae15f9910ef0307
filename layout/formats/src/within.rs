//! A file that lies within another one, as a member of a zip does that is stored.

use std::io;

use crate::fault::{Result, malformed};
use crate::format::Format;
use crate::found::{Out, Recognised};
use crate::source::Source;
use crate::tensor::{Location, Tensor};
use crate::zip::{Directory, Member, Method};

/// Bytes of a file.
#[derive(Clone, Copy)]
pub(crate) struct Slice {
    at: u64,
    len: u64,
}

impl Slice {
    /// Those of a member, which has to be stored; else `why` says what cannot be read.
    pub fn of(source: &dyn Source, directory: &Directory, member: &Member<'_>, why: &'static str) -> Result<Self> {
        if member.encrypted || member.method != Method::Stored {
            return malformed(why);
        }
        let at = directory.data(source, member.header, member.stored)?;
        Ok(Self { at, len: member.stored })
    }

    /// These bytes by themselves.
    pub fn inner(self, source: &dyn Source) -> Inner<'_> {
        Inner { source, slice: self }
    }

    /// Where the first of them is, and how many there are.
    pub fn place(self) -> (u64, u64) {
        (self.at, self.len)
    }

    /// What is recognised in these bytes by themselves, as what is in the file that they are in.
    pub fn recognise(
        self,
        source: &dyn Source,
        out: &mut Out<'_, '_>,
        recogniser: impl FnOnce(&dyn Source, &mut Out<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let inner = self.inner(source);
        let sink = &mut *out.sink;
        let mut shifted = |tensor| sink(self.shifted(tensor));
        let mut there = Out { found: Recognised::new(Format::Opaque), sink: &mut shifted };
        let result = recogniser(&inner, &mut there);
        out.found = there.found;
        out.found.end = source.size()?;
        result
    }

    /// A tensor of the file that these bytes are, as one of the file that they are in.
    fn shifted(self, mut tensor: Tensor) -> Tensor {
        match &mut tensor.location {
            Location::Raw { offset, .. }
            | Location::Inline { offset, .. }
            | Location::Deflated { offset, .. }
            | Location::Encoded { offset, .. }
            | Location::Negated { offset, .. } => *offset += self.at,
        }
        if let Some(storage) = &mut tensor.storage {
            storage.offset += self.at;
        }
        tensor
    }
}

/// Those bytes by themselves.
pub(crate) struct Inner<'a> {
    source: &'a dyn Source,
    slice: Slice,
}

impl Source for Inner<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.slice.len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.slice.len.saturating_sub(offset);
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        self.source.read_at(self.slice.at.saturating_add(offset), &mut buffer[..want])
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        let left = self.slice.len.saturating_sub(offset);
        Ok(self.source.hole(self.slice.at.saturating_add(offset))?.min(left))
    }
}

//! A tensor opened as a `.npy` file: a header, and its bytes from the segment.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorfs_formats::{Format, Source, Tensor, copy_stored, is_stored_as_read, npy_header, npy_len};
use tensorfs_layout::{Ino, Timestamp};

use crate::error::{Fault, Result};
use crate::file::Version;
use crate::store::{Bytes, Had, Ranges};

use super::Content;
use super::bytes::{SegmentBytes, fault};
use super::decoders::{Decoding, Held};

/// So many bytes in front of a tensor must still be there when its event file has grown.
const GUARD: u64 = 256;

/// An open tensor. It shows one version of its file: when that has changed, reading fails with `ESTALE`.
pub(super) struct OpenTensor {
    file: Ino,
    format: Format,
    version: Version,
    header: Vec<u8>,
    tensor: Arc<Tensor>,
    source: Arc<SegmentBytes>,
    /// Event files, which may grow: the bytes in front of the tensor.
    guard: Vec<u8>,
    decoding: Held,
}

/// What tells whether another server has the same tensor of a segment open: the file's version, and of event files,
/// which may have grown, the bytes in front of the tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TensorMark {
    pub size: u64,
    pub mtime: Timestamp,
    /// Their checksum.
    pub guard: u32,
}

impl OpenTensor {
    /// A tensor of that version of a file.
    pub fn new(
        file: Ino,
        format: Format,
        version: Version,
        tensor: Tensor,
        source: Arc<SegmentBytes>,
    ) -> io::Result<Self> {
        let header = npy_header(&tensor).ok_or(io::ErrorKind::Unsupported)?;
        let guard = if format == Format::TfRecord { guard(&source, &tensor)? } else { Vec::new() };
        let (tensor, decoding) = (Arc::new(tensor), Arc::default());
        Ok(Self { file, format, version, header, tensor, source, guard, decoding })
    }

    /// How many bytes it has, with its header.
    pub fn len(&self) -> u64 {
        npy_len(&self.tensor).unwrap_or(0)
    }

    /// What tells whether another server has the same tensor open.
    pub fn mark(&self) -> TensorMark {
        TensorMark { size: self.version.size, mtime: self.version.mtime, guard: crc32c::crc32c(&self.guard) }
    }

    /// True if this is the tensor that had that mark when it was opened.
    pub fn has_mark(&self, mark: &TensorMark) -> bool {
        let now = self.mark();
        let grown = self.format == Format::TfRecord && now.size > mark.size && now.guard == mark.guard;
        now == *mark || grown
    }

    /// Reads, the header first.
    pub fn read(&self, content: &Content, offset: u64, size: u32) -> Result<Vec<u8>> {
        let mut buffer = vec![0; size as usize];
        let header = usize::try_from(offset).ok().and_then(|offset| self.header.get(offset..)).unwrap_or_default();
        let from_header = header.len().min(buffer.len());
        buffer[..from_header].copy_from_slice(&header[..from_header]);
        let at = (offset + from_header as u64).saturating_sub(self.header.len() as u64);
        let read = self.read_bytes(content, at, &mut buffer[from_header..]);
        // Looked at after reading: what has changed before shows now.
        let checked = self.check(content);
        self.source.close();
        checked?;
        let read = match read {
            // The host no longer has the segment: the file was removed or replaced.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(Fault::new(libc::ESTALE)),
            other => other.map_err(fault)?,
        };
        buffer.truncate(from_header + read);
        content.files.store().counters().read_bytes.add(buffer.len() as u64);
        Ok(buffer)
    }

    /// Bytes of the file that a read needs, and that are away; those that come first.
    pub fn lacks(&self, content: &Content, offset: u64, size: u32) -> Option<(Ino, Bytes)> {
        let awaited = content.files.store().awaited();
        if !awaited.is_away(self.file) || !is_stored_as_read(&self.tensor) {
            return None;
        }
        let header = (self.header.len() as u64).saturating_sub(offset).min(size.into());
        let at = (offset + header).saturating_sub(self.header.len() as u64);
        let (needed, mut buffer) = (Needed::default(), vec![0; size as usize - header as usize]);
        let _ = copy_stored(&needed, &self.tensor, at, &mut buffer);
        let needed = needed.0.into_inner();
        let lacked = needed.each().find(|bytes| matches!(awaited.had(self.file, *bytes), Had::Away(..)));
        lacked.map(|bytes| (self.file, bytes))
    }

    fn read_bytes(&self, content: &Content, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if is_stored_as_read(&self.tensor) {
            // They are copied from their place, which needs no reader.
            return copy_stored(&*self.source, &self.tensor, offset, buffer);
        }
        let new = || Decoding::new(content.files.readers().decoder(self.tensor.clone()));
        content.decoders.with(&self.decoding, new, |decoding| decoding.read(&self.source, offset, buffer))
    }

    /// Fails if the file's bytes are not those that were there when the tensor was opened. A file that is gone, or has
    /// another segment by now, is no longer written here.
    fn check(&self, content: &Content) -> Result<()> {
        let Some(now) = changed(content, self.file, &self.version) else { return Ok(()) };
        let grown = self.format == Format::TfRecord && now.size > self.version.size;
        if grown && guard(&self.source, &self.tensor).map_err(fault)? == self.guard {
            return Ok(());
        }
        Err(Fault::new(libc::ESTALE))
    }
}

/// Notes what is read, and has nothing.
#[derive(Default)]
struct Needed(Mutex<Ranges>);

impl Source for Needed {
    fn size(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.lock().add((offset, offset.saturating_add(buffer.len() as u64)));
        buffer.fill(0);
        Ok(buffer.len())
    }
}

/// What a file is now, if it has another version's bytes in the same segment, or if that one's were away and have not
/// come as they were.
pub(super) fn changed(content: &Content, file: Ino, version: &Version) -> Option<Version> {
    let now = content.files.version(file).ok()?;
    if now.segment != version.segment && content.files.is_of_remote(version) {
        return (!now.has_come_of(version)).then_some(now);
    }
    (now.segment == version.segment && !now.has_bytes_of(version)).then_some(now)
}

/// The bytes in front of a tensor. In an event file they hold its step and the time it was written.
fn guard(source: &SegmentBytes, tensor: &Tensor) -> io::Result<Vec<u8>> {
    let start = tensor.range().0;
    let mut bytes = vec![0; start.min(GUARD) as usize];
    let read = source.read_at(start - bytes.len() as u64, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

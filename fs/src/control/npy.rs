//! A tensor opened as a `.npy` file: a header, and its bytes from the segment.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tensorfs_formats::{Format, Location, Order, Reader, Source, Tensor, npy_header};
use tensorfs_layout::Ino;

use crate::error::{Fault, Result};
use crate::filesystem::Filesystem;
use crate::tensors::{SegmentBytes, Version, fault};

/// What has to be decoded is decoded in blocks of this size, so that requests that arrive out of order do not start
/// the decoder anew.
const BLOCK: usize = 1 << 20;
/// The last blocks that are kept.
const BLOCKS: usize = 4;
/// So many bytes in front of a tensor must still be there when its event file has grown.
const GUARD: u64 = 256;
/// Decoders that are kept for open files nobody reads from right now. A further one has to begin again.
const IDLE: usize = 8;

type Decoder = Reader<Arc<SegmentBytes>, Arc<Tensor>>;

/// An open tensor. It shows one version of its file: when that has changed, reading fails with `ESTALE`.
pub(crate) struct OpenTensor {
    file: Ino,
    format: Format,
    version: Version,
    header: Vec<u8>,
    tensor: Arc<Tensor>,
    source: Arc<SegmentBytes>,
    /// Event files, which may grow: the bytes in front of the tensor.
    guard: Vec<u8>,
    /// Held while one request is decoding.
    decoding: Arc<Mutex<Option<Decoding>>>,
}

/// A decoder, and the blocks that it gave last.
struct Decoding {
    decoder: Decoder,
    blocks: VecDeque<(u64, Vec<u8>)>,
}

/// Who has a decoder, the newest last.
#[derive(Default)]
pub(crate) struct Decoders(Mutex<VecDeque<Weak<Mutex<Option<Decoding>>>>>);

impl Decoders {
    /// Notes that a tensor has a decoder, and takes the oldest ones away if there are too many.
    fn note(&self, decoding: &Arc<Mutex<Option<Decoding>>>) {
        let mut all = self.0.lock();
        let this = Arc::downgrade(decoding);
        all.retain(|other| !other.ptr_eq(&this) && other.strong_count() > 0);
        all.push_back(this);
        let oldest = if all.len() > IDLE { all.pop_front().and_then(|oldest| oldest.upgrade()) } else { None };
        drop(all);
        // One that is decoding right now notes itself again.
        if let Some(mut held) = oldest.as_ref().and_then(|oldest| oldest.try_lock()) {
            *held = None;
        }
    }
}

impl Decoding {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let start = at / BLOCK as u64 * BLOCK as u64;
            let block = self.block(start)?;
            let rest = block.get((at - start) as usize..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let count = rest.len().min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        Ok(done)
    }

    fn block(&mut self, start: u64) -> io::Result<&[u8]> {
        if let Some(at) = self.blocks.iter().position(|(known, _)| *known == start) {
            return Ok(&self.blocks[at].1);
        }
        let mut block = if self.blocks.len() == BLOCKS { self.blocks.pop_front() } else { None }.unwrap_or_default().1;
        block.resize(BLOCK, 0);
        let count = self.decoder.read_at(start, &mut block)?;
        block.truncate(count);
        self.blocks.push_back((start, block));
        Ok(self.blocks.back().map_or(&[], |(_, block)| block))
    }
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

    /// Reads, the header first.
    pub fn read(&self, fs: &Filesystem, offset: u64, size: u32) -> Result<Vec<u8>> {
        let mut buffer = vec![0; size as usize];
        let header = usize::try_from(offset).ok().and_then(|offset| self.header.get(offset..)).unwrap_or_default();
        let from_header = header.len().min(buffer.len());
        buffer[..from_header].copy_from_slice(&header[..from_header]);
        let at = (offset + from_header as u64).saturating_sub(self.header.len() as u64);
        let read = self.read_bytes(fs, at, &mut buffer[from_header..]);
        // Looked at after reading: what has changed before shows now.
        let checked = self.check(fs);
        self.source.close();
        checked?;
        let read = match read {
            // The host no longer has the segment: the file was removed or replaced.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(Fault::new(libc::ESTALE)),
            other => other.map_err(fault)?,
        };
        buffer.truncate(from_header + read);
        fs.counters.read_bytes.add(buffer.len() as u64);
        Ok(buffer)
    }

    fn read_bytes(&self, fs: &Filesystem, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let decoder = || Reader::new(self.source.clone(), self.tensor.clone());
        let strided = matches!(self.tensor.order, Order::Strides(_));
        if !strided && !matches!(self.tensor.location, Location::Deflated { .. }) {
            return decoder()?.read_at(offset, buffer);
        }
        fs.decoders.note(&self.decoding);
        let mut held = self.decoding.lock();
        let mut decoding = match held.take() {
            Some(decoding) => decoding,
            None => Decoding { decoder: decoder()?, blocks: VecDeque::new() },
        };
        let read = decoding.read(offset, buffer)?;
        *held = Some(decoding);
        Ok(read)
    }

    /// Fails if the file's bytes are not those that were there when the tensor was opened. A file that is gone, or has
    /// another segment by now, is no longer written here.
    fn check(&self, fs: &Filesystem) -> Result<()> {
        let Ok(now) = fs.file_version(self.file) else { return Ok(()) };
        if now.segment != self.version.segment || now.has_bytes_of(&self.version) {
            return Ok(());
        }
        let grown = self.format == Format::TfRecord && now.size > self.version.size;
        if grown && guard(&self.source, &self.tensor).map_err(fault)? == self.guard {
            return Ok(());
        }
        Err(Fault::new(libc::ESTALE))
    }
}

/// The bytes in front of a tensor. In an event file they hold its step and the time it was written.
fn guard(source: &SegmentBytes, tensor: &Tensor) -> io::Result<Vec<u8>> {
    let start = tensor.range().0;
    let mut bytes = vec![0; start.min(GUARD) as usize];
    let read = source.read_at(start - bytes.len() as u64, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

//! A tensor of a checkpoint in parts, opened as a `.npy` file: a header, and its bytes from the files that have them.

use std::io;
use std::sync::Arc;

use tensorfs_formats::{Array, Dtype, Format, Location, Order, Source, Tensor, npy_header, npy_len, read_exact};
use tensorfs_layout::Ino;

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::file::Version;
use crate::shares::Share;

use super::Content;
use super::boxes::{Part, are_apart, place_of};
use super::bytes::fault;
use super::checkpoint::Checkpoint;
use super::checkpoints::Parts;
use super::decoders::{Decoding, Held};
use super::npy::changed;
use super::plan::{Found, Place};
use super::reach::There;

/// What the pieces of an open tensor take is counted in lots of this size.
const LOT: usize = 4 << 10;
/// What stands between two runs of elements of a chunk is read with them if it is no more than that, and so much is
/// read at once.
const NEAR: u64 = 512;
const WINDOW: usize = 64 << 10;

/// An open tensor of several pieces. Of each it shows one version of its file: when that has changed, reading fails
/// with `ESTALE`.
pub(super) struct Assembled {
    /// What it is in words, for the log.
    name: String,
    header: Vec<u8>,
    shape: Vec<u64>,
    /// Bytes of an element, and elements.
    item: u64,
    count: u64,
    pieces: Vec<Piece>,
    _room: Vec<Share>,
}

/// A piece: which elements of the whole it has, and where they are: in a file, or nowhere, of which the directory
/// and the plan's version stand in the place of those.
struct Piece {
    file: Ino,
    version: Version,
    numbers: Box<[u64]>,
    stored: Stored,
}

/// How the elements of a piece are stored.
enum Stored {
    /// As they are to be read, from a place on.
    At(u64),
    /// As they are to be read, but for what stands between: they are the first ones of a chunk in each dimension, which
    /// begins at a place and has so many there.
    Within(u64, Arc<[u64]>),
    /// In another way.
    Decoded(Box<(Arc<Tensor>, Held)>),
    /// Nowhere: the chunk is smaller than others, and each element that it lacks is that.
    Lacking(Arc<[u8]>),
    /// Nowhere: the chunk of that name is not there, and each of its elements is that.
    Nowhere(Box<(Box<str>, Box<[u8]>)>),
    /// Here, as the plan had it: in no file as they are to be read.
    Here(Box<[u8]>),
    /// Nowhere, by what the plan says: each of its elements is that.
    Absent(Arc<[u8]>),
}

/// Room for the pieces of a tensor that a user opens. Others have as much as they want.
struct Room {
    user: Option<u32>,
    taken: usize,
    shares: Vec<Share>,
}

impl Room {
    /// Takes some for another piece, before that is kept.
    fn take(&mut self, content: &Content, bytes: usize) -> Result<()> {
        self.taken += bytes;
        let Some(user) = self.user else { return Ok(()) };
        while self.shares.len() < self.taken / LOT {
            self.shares.push(content.pieces.take(user).ok_or(Fault::new(libc::ENFILE))?);
        }
        Ok(())
    }
}

/// Why a tensor cannot be put together.
enum Why {
    Fault(Fault),
    /// In words, of a part.
    Part(u32, &'static str),
    /// In words.
    Plan(&'static str),
}

impl From<Fault> for Why {
    fn from(fault: Fault) -> Self {
        Why::Fault(fault)
    }
}

impl Piece {
    fn part(&self) -> Part<'_> {
        let (starts, sizes) = self.numbers.split_at(self.numbers.len() / 2);
        Part { starts, sizes }
    }

    fn memory(&self) -> usize {
        let decoder = match &self.stored {
            Stored::At(_) | Stored::Within(..) | Stored::Lacking(_) | Stored::Absent(_) => 0,
            Stored::Here(bytes) => bytes.len(),
            Stored::Decoded(decoded) => 2 * size_of::<Tensor>() + 2 * size_of_val(&*decoded.0.shape),
            Stored::Nowhere(nowhere) => size_of_val(&**nowhere) + nowhere.0.len() + nowhere.1.len(),
        };
        size_of::<Piece>() + size_of_val(&*self.numbers) + decoder
    }

    /// Fills the buffer with its bytes from one on, which belong to whole elements of so many.
    fn read(&self, content: &Content, item: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match &self.stored {
            Stored::Nowhere(nowhere) => {
                let (name, value) = &**nowhere;
                fill(buffer, value);
                return if content.there(self.file, name) == There::Nothing { Ok(()) } else { Err(Fault::stale()) };
            }
            Stored::Here(bytes) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let bytes = bytes.get(from..).and_then(|bytes| bytes.get(..buffer.len()));
                buffer.copy_from_slice(bytes.ok_or(Fault::new(libc::EIO))?);
                return Ok(());
            }
            Stored::Absent(value) => {
                fill(buffer, value);
                return Ok(());
            }
            _ => {}
        }
        let source = content.bytes_of(self.file, &self.version);
        let read = match &self.stored {
            Stored::At(start) => read_exact(&*source, start + offset, buffer),
            Stored::Within(start, chunk) => {
                let sizes = self.part().sizes;
                let part = Part { starts: &vec![0; sizes.len()], sizes };
                read_within(&*source, (part, chunk), (item, *start), offset / item, buffer)
            }
            Stored::Lacking(value) => {
                fill(buffer, value);
                Ok(())
            }
            Stored::Decoded(decoded) => {
                let (tensor, held) = &**decoded;
                let new = || Decoding::new(content.files.readers().decoder(tensor.clone()));
                let read = content.decoders.with(held, new, |decoding| decoding.read(&source, offset, buffer));
                read.and_then(|count| if count == buffer.len() { Ok(()) } else { Err(short()) })
            }
            Stored::Nowhere(_) | Stored::Here(_) | Stored::Absent(_) => Ok(()),
        };
        // Looked at after reading: what has changed before shows now.
        let is_stale = changed(content, self.file, &self.version).is_some();
        source.close();
        match read {
            _ if is_stale => Err(Fault::stale()),
            // The host no longer has the segment: the file was removed or replaced.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Err(Fault::stale()),
            read => read.map_err(fault),
        }
    }
}

/// Makes each element that.
fn fill(buffer: &mut [u8], value: &[u8]) {
    buffer.chunks_exact_mut(value.len()).for_each(|element| element.copy_from_slice(value));
}

fn short() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

impl Assembled {
    /// Opens a tensor of a checkpoint, for whoever wants it open. None for who asks for one that was open before.
    pub fn open(
        content: &Content,
        caller: Option<Caller>,
        checkpoint: &Checkpoint,
        nth: u32,
        parts: &mut Parts<'_>,
    ) -> Result<Self> {
        let planned = checkpoint.tensor(nth).ok_or(Fault::stale())?;
        let name = format!("{}: {}", content.path_of(checkpoint.dir), planned.name_text());
        let warn = |why: std::fmt::Arguments<'_>| Fault::warn(libc::EIO, format!("{name}: {why}"));
        let user = caller.filter(|caller| !caller.is_trusted()).map(|caller| caller.uid);
        let mut room = Room { user, taken: 0, shares: Vec::new() };
        let put_together = Self::put_together(content, checkpoint, nth, planned, parts, &mut room);
        let (whole, pieces) = put_together.map_err(|why| match why {
            Why::Fault(fault) => fault,
            Why::Part(file, why) => warn(format_args!("its part {} {why}", checkpoint.name_of(file))),
            Why::Plan(why) => warn(format_args!("{why}")),
        })?;
        let header = npy_header(&whole).ok_or_else(|| warn(format_args!("its elements are no plain bytes")))?;
        let (shape, item) = match checkpoint.plan.says_shape(nth as usize) {
            // The dimension that runs fastest is the last.
            true if whole.order == Order::ColumnMajor => (whole.shape.iter().rev().copied().collect(), whole.item_size),
            true => (whole.shape.clone(), whole.item_size),
            // All of it is in one piece, and what its elements are does not matter.
            false => (vec![whole.bytes()], 1),
        };
        Ok(Self { name, header, shape, item, count: whole.bytes() / item, pieces, _room: room.shares })
    }

    /// What a tensor of a checkpoint is, as a whole. None if a part that has to say it does not.
    pub fn describe(
        content: &Content,
        checkpoint: &Checkpoint,
        nth: u32,
        parts: &mut Parts<'_>,
    ) -> Result<Option<Tensor>> {
        let (plan, planned) = (&checkpoint.plan, checkpoint.tensor(nth));
        if plan.says_shape(nth as usize) {
            return Ok(planned);
        }
        let (Some(planned), Some((_, place))) = (planned, plan.pieces(nth as usize).next()) else { return Ok(None) };
        let Some((file, tensors)) = parts.tensors(place.file)? else { return Ok(None) };
        let name = plan.name_in_part(nth as usize);
        let Ok(found) = content.among(&tensors, file, name, place)? else { return Ok(None) };
        Ok(as_whole(&planned, &found.tensor).filter(|whole| npy_len(whole).is_some()))
    }

    fn put_together(
        content: &Content,
        checkpoint: &Checkpoint,
        nth: u32,
        planned: Tensor,
        parts: &mut Parts<'_>,
        room: &mut Room,
    ) -> std::result::Result<(Tensor, Vec<Piece>), Why> {
        if let Some(array) = checkpoint.plan.array(nth as usize) {
            let pieces = Self::of_chunks(content, checkpoint, (nth as usize, array), parts, room)?;
            return Ok((planned, pieces));
        }
        let (plan, nth) = (&checkpoint.plan, nth as usize);
        let (mut whole, mut pieces) = (planned, Vec::new());
        for (part, place) in plan.pieces(nth) {
            let because = |why| Why::Part(place.file, why);
            let (file, version) = parts.get(place.file).ok_or(because("is not there"))?;
            let found = content.in_part((file, version), plan.name_in_part(nth), place)?.map_err(because)?;
            let (tensor, format) = (found.tensor, found.format);
            if format == Format::TfRecord {
                return Err(because("is an event file"));
            }
            let numbers = if plan.says_shape(nth) {
                let is_alike = tensor.dtype == whole.dtype && tensor.shape == part.sizes && tensor.descr.is_none();
                if !is_alike || !pieces.is_empty() && tensor.big_endian != whole.big_endian {
                    return Err(because("is of another shape or type than the plan says"));
                }
                whole.big_endian = tensor.big_endian;
                [part.starts, part.sizes].concat()
            } else {
                whole = as_whole(&whole, &tensor).ok_or(because("has no plain bytes for it"))?;
                vec![0, whole.bytes()]
            };
            let stored = stored(tensor).ok_or(because("stores it in a way that cannot be put together"))?;
            let piece = Piece { file, version, numbers: numbers.into(), stored };
            room.take(content, piece.memory())?;
            pieces.push(piece);
        }
        let boxes: Vec<_> = pieces.iter().map(Piece::part).collect();
        if !are_apart(&boxes) {
            return Err(Why::Plan("parts of it overlap, and others are missing"));
        }
        drop(boxes);
        Ok((whole, pieces))
    }

    /// The pieces of an array: what its chunks have of it, and the fill value for those that are not there.
    fn of_chunks(
        content: &Content,
        checkpoint: &Checkpoint,
        (nth, array): (usize, &Array),
        parts: &mut Parts<'_>,
        room: &mut Room,
    ) -> std::result::Result<Vec<Piece>, Why> {
        let chunk: Arc<[u64]> = array.as_stored(array.chunk.clone().unwrap_or_default()).into();
        let lacking: Arc<[u8]> = array.fill.as_deref().unwrap_or_default().into();
        let (plan, mut pieces) = (&checkpoint.plan, Vec::new());
        for (part, place) in plan.pieces(nth) {
            if plan.is_in_database(nth) {
                let piece = Self::of_value(checkpoint, (array, &chunk, &lacking), (part, place), parts)?;
                room.take(content, piece.memory())?;
                pieces.push(piece);
                continue;
            }
            let because = |why| Why::Part(place.file, why);
            let numbers = [part.starts, part.sizes].concat().into();
            let piece = match (parts.get(place.file), array.block()) {
                (Some((file, version)), Some(asked)) => {
                    let source = content.bytes_of(file, &version);
                    let block = source.block(asked);
                    source.close();
                    let block = block.map_err(fault)?.ok_or(because("is no block that can be read"))?;
                    let Some(found) = of_block(&block, &chunk, part, &lacking) else {
                        return Err(because("is a block that is larger than its array says"));
                    };
                    for (numbers, stored) in found {
                        let piece = Piece { file, version, numbers, stored };
                        room.take(content, piece.memory())?;
                        pieces.push(piece);
                    }
                    continue;
                }
                (Some((_, version)), None) if version.size != place.len => {
                    return Err(because("is not as long as its elements are"));
                }
                (Some((file, version)), None) => {
                    Piece { file, version, numbers, stored: in_chunk(0, &chunk, part.sizes) }
                }
                (None, _) => {
                    let name = checkpoint.name_of(place.file);
                    if content.there(checkpoint.dir, name) != There::Nothing {
                        return Err(because("is no file that can be read, or not reached by directories alone"));
                    }
                    let fill = array.fill.as_deref().ok_or(because("is not there, and its fill value is not known"))?;
                    let stored = Stored::Nowhere(Box::new((name.into(), fill.into())));
                    let version = checkpoint.plans.first().ok_or(Fault::stale())?.1;
                    Piece { file: checkpoint.dir, version, numbers, stored }
                }
            };
            room.take(content, piece.memory())?;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// A piece of an array in a database: what a value of that has of it, or the fill value if there is none.
    fn of_value(
        checkpoint: &Checkpoint,
        (array, chunk, lacking): (&Array, &Arc<[u64]>, &Arc<[u8]>),
        (part, place): (Part<'_>, Place),
        parts: &mut Parts<'_>,
    ) -> std::result::Result<Piece, Why> {
        const ODD: &str = "a chunk of it is not as long as its elements are";
        let len = array.plain_chunk().ok_or(Fault::stale())?;
        // What is in no file is as the plan had it, whatever becomes of that.
        let of_plan = (checkpoint.dir, checkpoint.plans.first().ok_or(Fault::stale())?.1);
        let ((file, version), stored) = match checkpoint.plan.find(place) {
            Found::Nowhere if array.fill.is_none() => {
                return Err(Why::Plan("a chunk of it is not there, and its fill value is not known"));
            }
            Found::Nowhere => (of_plan, Stored::Absent(lacking.clone())),
            Found::Here(bytes) if bytes.len() as u64 != len => return Err(Why::Plan(ODD)),
            Found::Here(bytes) => {
                let mut own = vec![0; (part.volume() * array.item_size) as usize];
                let wanted = Part { starts: &vec![0; part.sizes.len()], sizes: part.sizes };
                read_within(&bytes, (wanted, chunk), (array.item_size, 0), 0, &mut own).map_err(fault)?;
                (of_plan, Stored::Here(own.into()))
            }
            Found::There => {
                let because = |why| Why::Part(place.file, why);
                let (file, version) = parts.get(place.file).ok_or(because("is not there"))?;
                if place.len != len {
                    return Err(Why::Plan(ODD));
                }
                if place.offset.checked_add(place.len).is_none_or(|end| end > version.size) {
                    return Err(because("is cut short"));
                }
                ((file, version), in_chunk(place.offset, chunk, part.sizes))
            }
        };
        Ok(Piece { file, version, numbers: [part.starts, part.sizes].concat().into(), stored })
    }

    /// The files that have something of it.
    pub fn files(&self) -> impl Iterator<Item = Ino> {
        let is_in_one =
            |piece: &&Piece| !matches!(piece.stored, Stored::Nowhere(_) | Stored::Here(_) | Stored::Absent(_));
        self.pieces.iter().filter(is_in_one).map(|piece| piece.file)
    }

    /// How many bytes it has, with its header.
    pub fn len(&self) -> u64 {
        self.header.len() as u64 + self.count * self.item
    }

    /// Reads, the header first.
    pub fn read(&self, content: &Content, offset: u64, size: u32) -> Result<Vec<u8>> {
        let header = usize::try_from(offset).ok().and_then(|offset| self.header.get(offset..)).unwrap_or_default();
        let mut buffer = header[..header.len().min(size as usize)].to_vec();
        let from = (offset + buffer.len() as u64).saturating_sub(self.header.len() as u64);
        let to = from.saturating_add(u64::from(size) - buffer.len() as u64).min(self.count * self.item);
        if from < to {
            // Whole elements are read, and what is too much of the first and the last is left out.
            let (first, end) = (from / self.item, to.div_ceil(self.item));
            let elements = self.elements(content, first, end)?;
            let start = (from - first * self.item) as usize;
            buffer.extend_from_slice(&elements[start..][..(to - from) as usize]);
        }
        content.files.store().counters().read_bytes.add(buffer.len() as u64);
        Ok(buffer)
    }

    fn elements(&self, content: &Content, first: u64, end: u64) -> Result<Vec<u8>> {
        let bytes = |elements: u64| (elements * self.item) as usize;
        let (mut all, mut filled, mut read) = (vec![0; bytes(end - first)], 0, Vec::new());
        let bounds = [first, end].map(|at| (at < self.count).then(|| place_of(&self.shape, at)));
        for piece in &self.pieces {
            let part = piece.part();
            let [from, to] = [0, 1].map(|n| bounds[n].as_ref().map_or_else(|| part.volume(), |at| part.before(at)));
            if from == to {
                continue;
            }
            read.resize(bytes(to - from), 0);
            piece.read(content, self.item, from * self.item, &mut read)?;
            let mut rest = &read[..];
            part.runs(&self.shape, from, to, |at, count| {
                let (run, behind) = rest.split_at(bytes(count));
                all[bytes(at - first)..][..run.len()].copy_from_slice(run);
                rest = behind;
            });
            filled += read.len();
        }
        if filled != all.len() {
            return Err(Fault::warn(libc::EIO, format!("{}: no part has some of its elements", self.name)));
        }
        Ok(all)
    }
}

/// The whole of which a tensor of a part is all, if it has plain bytes. Row by row, as its bytes are put together.
fn as_whole(planned: &Tensor, tensor: &Tensor) -> Option<Tensor> {
    let is_plain = tensor.dtype != Dtype::Object && tensor.item_size > 0 && npy_len(tensor).is_some();
    let has_whole_bytes = tensor.dtype.bits().is_none_or(|bits| bits % 8 == 0);
    let len = tensor.elements().checked_mul(tensor.item_size).filter(|_| is_plain && has_whole_bytes)?;
    Some(Tensor {
        name: planned.name.clone(),
        order: Order::RowMajor,
        location: Location::Raw { offset: 0, len },
        step: None,
        mode: None,
        storage: None,
        ..tensor.clone()
    })
}

/// How what a chunk has of its array is read, which is all of it but at the array's end.
fn in_chunk(start: u64, chunk: &Arc<[u64]>, sizes: &[u64]) -> Stored {
    // As long as only the first dimension is shorter, it is the beginning of the chunk.
    if sizes.iter().skip(1).eq(chunk.iter().skip(1)) { Stored::At(start) } else { Stored::Within(start, chunk.clone()) }
}

/// Pieces without their file: which elements they have, and how those are stored.
type Pieces = Vec<(Box<[u64]>, Stored)>;

/// What a block has of its array, and what it lacks of that, being smaller than others: which elements, and how they
/// are stored. None if it is larger than a chunk.
fn of_block(block: &Tensor, chunk: &[u64], part: Part<'_>, fill: &Arc<[u8]>) -> Option<Pieces> {
    let (_, own) = block.shape.split_last()?;
    if own.len() != chunk.len() || own.iter().zip(chunk).any(|(own, most)| own > most) || fill.is_empty() {
        return None;
    }
    let (start, own): (u64, Arc<[u64]>) = (block.range().0, own.into());
    let has: Vec<u64> = own.iter().zip(part.sizes).map(|(own, size)| *own.min(size)).collect();
    let mut found = Vec::new();
    if !has.contains(&0) {
        found.push(([part.starts, &has].concat().into(), in_chunk(start, &own, &has)));
    }
    // What it lacks of each dimension, of what is not told of yet.
    for (dim, (has_here, wanted)) in has.iter().zip(part.sizes).enumerate() {
        let (mut starts, mut sizes) = (part.starts.to_vec(), part.sizes.to_vec());
        sizes[..dim].copy_from_slice(&has[..dim]);
        starts[dim] += has_here;
        sizes[dim] = wanted - has_here;
        if !sizes.contains(&0) {
            found.push(([starts, sizes].concat().into(), Stored::Lacking(fill.clone())));
        }
    }
    Some(found)
}

/// Fills the buffer with elements of a part of a chunk that begins at a place, from one of them on. What lies close
/// together is read at once.
fn read_within(
    source: &dyn Source,
    (part, chunk): (Part<'_>, &[u64]),
    (item, start): (u64, u64),
    from: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let to = from + buffer.len() as u64 / item;
    let (mut rest, mut read, mut end) = (buffer, Ok(()), 0);
    if to > from {
        part.runs(chunk, to - 1, to, |at, count| end = start + (at + count) * item);
    }
    // What was read last, from where on, and where the run before this one ends.
    let (mut window, mut begin, mut before) = (Vec::new(), 0, None::<u64>);
    part.runs(chunk, from, to, |at, count| {
        let (at, len) = (start + at * item, (count * item) as usize);
        let (run, behind) = std::mem::take(&mut rest).split_at_mut(len);
        rest = behind;
        if read.is_err() {
            return;
        }
        let has = |window: &[u8], begin: u64| at >= begin && at + len as u64 <= begin + window.len() as u64;
        let is_near = before.replace(at + len as u64).is_some_and(|before| at - before <= NEAR);
        if !has(&window, begin) && is_near && len < WINDOW {
            window.resize(usize::try_from(end - at).unwrap_or(WINDOW).min(WINDOW), 0);
            begin = at;
            read = read_exact(source, begin, &mut window);
        }
        match has(&window, begin) {
            true => run.copy_from_slice(&window[(at - begin) as usize..][..len]),
            false => read = read_exact(source, at, run),
        }
    });
    read
}

/// How a tensor of a part is read row by row, if it can be.
fn stored(mut tensor: Tensor) -> Option<Stored> {
    let is_raw = matches!(tensor.location, Location::Raw { .. });
    match tensor.order {
        Order::RowMajor if is_raw => return Some(Stored::At(tensor.range().0)),
        Order::ColumnMajor if tensor.is_laid_out() => {
            let steps = tensor.shape.iter().scan(1_u64, |stride, &size| {
                let this = *stride;
                *stride = stride.saturating_mul(size);
                Some(this)
            });
            tensor.order = Order::Strides(steps.collect());
        }
        Order::ColumnMajor => return None,
        Order::RowMajor | Order::Strides(_) => {}
    }
    tensor.name.clear();
    Some(Stored::Decoded(Box::new((Arc::new(tensor), Held::default()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks of which all dimensions are cut, with little and much between what is wanted.
    #[test]
    fn elements_at_the_end_of_an_array_are_read_as_they_stand() {
        for (chunk, sizes, item) in [
            (vec![4, 6], vec![3, 5], 2),
            (vec![70, 3000], vec![60, 2], 1),
            (vec![40, 300], vec![40, 299], 8),
            (vec![3, 4, 5], vec![2, 4, 3], 4),
            (vec![3, 4, 5], vec![3, 2, 5], 1),
            (vec![2, 20_000], vec![2, 19_000], 8),
        ] {
            let bytes: Vec<u8> = (0..chunk.iter().product::<u64>() * item).map(|n| (n % 251) as u8).collect();
            let mut want = Vec::new();
            let part = Part { starts: &vec![0; sizes.len()], sizes: &sizes };
            for flat in 0..part.volume() {
                let (mut rest, mut place, mut step) = (flat, 0, 1);
                for (size, whole) in sizes.iter().zip(&chunk).rev() {
                    (place, rest, step) = (place + rest % size * step, rest / size, step * whole);
                }
                want.extend_from_slice(&bytes[(place * item) as usize..][..item as usize]);
            }
            let count = part.volume();
            for (from, to) in
                [(0, count), (1, count - 1), (count / 2, count / 2), (count / 3, count / 2), (count - 1, count)]
            {
                let mut read = vec![0; ((to - from) * item) as usize];
                read_within(&&bytes[..], (part, &chunk), (item, 0), from, &mut read).unwrap();
                assert!(read == want[(from * item) as usize..(to * item) as usize], "{chunk:?} {sizes:?} {from}..{to}");
            }
            let cut = &bytes[..bytes.len() / 2];
            assert!(read_within(&cut, (part, &chunk), (item, 0), 0, &mut vec![0; want.len()]).is_err());
        }
    }
}

//! A tensor's bytes, in the order of its `.npy` header, wherever and however they lie in the file.

use std::borrow::Borrow;
use std::io::{self, ErrorKind, Read};
use std::ops::ControlFlow;

use crate::dtype::Dtype;
use crate::npy;
use crate::source::{Part, Source, read_exact, read_up_to};
use crate::tensor::{Location, Order, Tensor};

/// What [`read_tensor`] gives at a time.
const CHUNK: usize = 1 << 20;
/// What is read of the file at a time to gather a strided tensor, and the smallest tile.
const BLOCK: u64 = 64 << 10;
/// The largest tile.
const TILE: u64 = 16 << 20;

/// The `.npy` header of a tensor: with the bytes of [`read_tensor`] behind it, it is what `numpy.load` opens. None if
/// the tensor's elements are no plain bytes. bfloat16 and the 8-bit floats, which NumPy has no types for, are `V2`
/// and `V1` (as `ml_dtypes` saves them: `.view("bfloat16")` brings them back), complex32 is `V4`, and floats of 4 and
/// 6 bits are a line of packed `u1`.
pub fn npy_header(tensor: &Tensor) -> Option<Vec<u8>> {
    let len = tensor_len(tensor)?;
    if tensor.dtype.bits().is_some_and(|bits| bits % 8 != 0) {
        return Some(npy::write_header("'|u1'", false, &[len]));
    }
    let descr = match (&tensor.descr, tensor.dtype.numpy()) {
        (Some(descr), _) => descr.clone(),
        (None, Some(code)) => {
            let order = match (tensor.item_size, tensor.big_endian) {
                _ if code.starts_with('V') => '|',
                (1, _) => '|',
                (_, true) => '>',
                (_, false) => '<',
            };
            format!("'{order}{code}'")
        }
        (None, None) if tensor.dtype == Dtype::String => format!("'|S{}'", tensor.item_size),
        _ => return None,
    };
    Some(npy::write_header(&descr, tensor.order == Order::ColumnMajor, &tensor.shape))
}

/// Bytes that reading the whole tensor gives; none if its elements are no plain bytes.
pub fn tensor_len(tensor: &Tensor) -> Option<u64> {
    let plain = match tensor.location {
        Location::Encoded { .. } => false,
        Location::Negated { .. } => tensor.signs().is_some(),
        _ => tensor.dtype != Dtype::Object,
    };
    plain.then(|| tensor.bytes())
}

/// Bytes of the header and of what follows it: the size of the `.npy` file. None if there can be none.
pub fn npy_len(tensor: &Tensor) -> Option<u64> {
    let header = npy_header(tensor)?.len() as u64;
    tensor_len(tensor)?.checked_add(header).filter(|&len| len <= i64::MAX as u64)
}

/// True if a tensor's bytes stand in the file, or were found with it, as they are to be read: reading them is copying,
/// and nothing of the file is taken apart for it.
pub fn is_stored_as_read(tensor: &Tensor) -> bool {
    match tensor.location {
        Location::Raw { .. } => !matches!(tensor.order, Order::Strides(_)),
        Location::Inline { .. } => true,
        Location::Deflated { .. } | Location::Encoded { .. } | Location::Negated { .. } => false,
    }
}

/// Copies bytes of a tensor that [`is_stored_as_read`] from an offset on, as far as there are any.
pub fn copy_stored(source: &dyn Source, tensor: &Tensor, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let len = tensor_len(tensor).filter(|_| is_stored_as_read(tensor)).ok_or_else(unreadable)?;
    copy(source, tensor, len, offset, buffer)
}

/// Copies bytes that lie in the order in which they are read.
fn copy(source: &dyn Source, tensor: &Tensor, len: u64, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let want = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
    match &tensor.location {
        _ if want == 0 => {}
        Location::Inline { bytes, .. } => read_exact(&&bytes[..], offset, &mut buffer[..want])?,
        _ => read_exact(source, tensor.range().0.saturating_add(offset), &mut buffer[..want])?,
    }
    Ok(want)
}

fn unreadable() -> io::Error {
    io::Error::new(ErrorKind::Unsupported, "its elements are not stored as plain bytes")
}

/// Gives a tensor's bytes to `sink`, piece by piece, in the order and byte order of [`npy_header`].
pub fn read_tensor(
    source: &dyn Source,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut reader = TensorReader::new(source, tensor)?;
    let mut buffer = vec![0; usize::try_from(reader.len()).unwrap_or(CHUNK).min(CHUNK)];
    let mut at = 0;
    while at < reader.len() {
        let count = reader.read_at(at, &mut buffer)?;
        if sink(&buffer[..count]).is_break() {
            break;
        }
        at += count as u64;
    }
    Ok(())
}

/// A [`Reader`] that borrows what it reads.
pub type TensorReader<'a> = Reader<&'a dyn Source, &'a Tensor>;

/// Reads any part of a tensor's bytes, in the order and byte order of [`npy_header`].
pub struct Reader<S, T> {
    source: S,
    tensor: T,
    len: u64,
    way: Way<S>,
    /// What to change of the bytes of each element.
    signs: Option<Vec<u8>>,
}

enum Way<S> {
    Stored,
    Strided(Gather<S>),
    Inflated(Box<Inflate<S>>),
}

impl<S: Source + Clone, T: Borrow<Tensor>> Reader<S, T> {
    /// Fails if the tensor's elements are no plain bytes.
    pub fn new(source: S, tensor: T) -> io::Result<Self> {
        let what = tensor.borrow();
        let len = tensor_len(what).ok_or_else(unreadable)?;
        let way = match (&what.location, &what.order) {
            (Location::Raw { offset, .. } | Location::Negated { offset, .. }, Order::Strides(strides)) => {
                Way::Strided(Gather::new(source.clone(), *offset, what, strides))
            }
            (Location::Raw { .. } | Location::Negated { .. } | Location::Inline { .. }, _) => Way::Stored,
            (&Location::Deflated { offset, len, skip }, _) => {
                Way::Inflated(Box::new(Inflate::new(source.clone(), offset, len, skip)))
            }
            (Location::Encoded { .. }, _) => return Err(unreadable()),
        };
        let signs = what.signs();
        Ok(Reader { source, tensor, len, way, signs })
    }

    /// Bytes of the whole tensor.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The tensor that is read.
    pub fn tensor(&self) -> &Tensor {
        self.tensor.borrow()
    }

    /// Fills `buffer` with the bytes from `offset` on, as far as there are any. What lies compressed is fast to read
    /// only from front to back.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..want];
        if want > 0 {
            match &mut self.way {
                Way::Stored => {
                    copy(&self.source, self.tensor.borrow(), self.len, offset, buffer)?;
                }
                Way::Strided(gather) => gather.read(offset, buffer)?,
                Way::Inflated(inflate) => inflate.read(offset, buffer)?,
            }
            if let Some(signs) = &self.signs {
                let of_first = (offset % signs.len() as u64) as usize;
                buffer.iter_mut().zip(signs.iter().cycle().skip(of_first)).for_each(|(byte, sign)| *byte ^= sign);
            }
        }
        Ok(want)
    }
}

/// Reads elements that lie in strides, in row-major order.
///
/// Going through the file in the order of the elements would jump to and fro in it, once for each element in the worst
/// case (a transposed matrix). So elements are gathered in tiles, which are as large a part of the row-major order as
/// is held in memory, and each tile is filled in the order of the file.
struct Gather<S> {
    source: S,
    offset: u64,
    /// Size and stride (in bytes) of each dimension, those aside whose elements lie together.
    outer: Vec<(u64, u64)>,
    /// Bytes that lie together.
    run: u64,
    /// Bytes of the row-major order, from `tile_at` on.
    tile: Vec<u8>,
    tile_at: u64,
    /// How large the next tile may be: small after a jump, larger as reading goes on.
    ahead: u64,
    /// Bytes of the file, from `window_at` on.
    window: Vec<u8>,
    window_at: u64,
}

/// A dimension of a tile.
#[derive(Clone, Copy)]
struct Side {
    size: u64,
    /// Bytes from one index to the next, in the file and in the tile.
    stride: u64,
    step: usize,
}

impl<S: Source> Gather<S> {
    fn new(source: S, offset: u64, tensor: &Tensor, strides: &[u64]) -> Self {
        let bytes = |stride: &u64| stride.saturating_mul(tensor.item_size);
        let mut outer: Vec<_> = tensor.shape.iter().copied().zip(strides.iter().map(bytes)).collect();
        let mut run = tensor.item_size;
        while let Some(&(size, stride)) = outer.last()
            && (stride == run || size == 1)
        {
            run = run.saturating_mul(size);
            outer.pop();
        }
        let none = Vec::new;
        Gather { source, offset, outer, run, tile: none(), tile_at: 0, ahead: 0, window: none(), window_at: 0 }
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (mut at, mut buffer) = (offset, buffer);
        while !buffer.is_empty() {
            let inside = at.wrapping_sub(self.tile_at);
            let count = if self.run >= BLOCK {
                // Long runs need no tile.
                let count = (self.run - at % self.run).min(buffer.len() as u64) as usize;
                let place = self.place(at / self.run, self.outer.len()).0;
                read_exact(&self.source, self.offset + place + at % self.run, &mut buffer[..count])?;
                count
            } else if inside < self.tile.len() as u64 {
                let tile = &self.tile[inside as usize..];
                let count = tile.len().min(buffer.len());
                buffer[..count].copy_from_slice(&tile[..count]);
                count
            } else {
                self.fill(at)?;
                continue;
            };
            (at, buffer) = (at + count as u64, &mut buffer[count..]);
        }
        Ok(())
    }

    /// Where the run is that has this number among the first `dims` dimensions, and its index in the last of them.
    fn place(&self, number: u64, dims: usize) -> (u64, u64) {
        let (mut rest, mut place, mut last) = (number, 0, None);
        for (size, stride) in self.outer[..dims].iter().rev() {
            let index = rest % size;
            last.get_or_insert(index);
            place += index * stride;
            rest /= size;
        }
        (place, last.unwrap_or(0))
    }

    /// Makes the tile that begins with the row that `at` is in, or with its run.
    fn fill(&mut self, at: u64) -> io::Result<()> {
        let follows = at == self.tile_at.wrapping_add(self.tile.len() as u64);
        self.ahead = if follows { (self.ahead * 2).clamp(BLOCK, TILE) } else { BLOCK };
        // The tile is some of the indices of one dimension, with all of what is inside of them.
        let (mut dim, mut inside) = (self.outer.len(), self.run);
        while let Some(&(size, _)) = self.outer[..dim].last()
            && dim > 1
            && inside.saturating_mul(size) <= self.ahead
        {
            inside *= size;
            dim -= 1;
        }
        let size = self.outer[..dim].last().map_or(1, |&(size, _)| size);
        let (place, index) = self.place(at / inside, dim);
        let count = (self.ahead / inside).clamp(1, size - index);
        self.tile.clear();
        self.tile.resize((count * inside) as usize, 0);
        self.tile_at = at - at % inside;

        let mut sides = Vec::new();
        let mut step = self.run as usize;
        for (number, &(size, stride)) in self.outer.iter().enumerate().skip(dim.saturating_sub(1)).rev() {
            let size = if number + 1 == dim { count } else { size };
            if size > 1 {
                sides.push(Side { size, stride, step });
            }
            step *= size as usize;
        }
        // The file's own order; what is repeated comes last.
        sides.sort_by_key(|side| if side.stride == 0 { u64::MAX } else { side.stride });
        let mut tile = std::mem::take(&mut self.tile);
        let result = self.scatter(&sides, self.offset + place, &mut tile);
        self.tile = tile;
        if result.is_err() {
            self.tile.clear();
        }
        result
    }

    /// Copies every run of a tile from the file to its place. The first side is the one to go along.
    fn scatter(&mut self, sides: &[Side], start: u64, tile: &mut [u8]) -> io::Result<()> {
        let run = self.run as usize;
        let (first, rest) = match sides.split_first() {
            Some((first, rest)) => (*first, rest),
            None => (Side { size: 1, stride: 0, step: 0 }, sides),
        };
        let piece = (BLOCK / first.stride.max(1)).max(1);
        let mut indices = vec![0; rest.len()];
        let (mut from, mut to) = (start, 0);
        loop {
            let mut index = 0;
            while index < first.size {
                let count = piece.min(first.size - index);
                let span = (count - 1) * first.stride + self.run;
                let bytes = self.fetch(from + index * first.stride, span as usize)?;
                for n in 0..count as usize {
                    let (source, target) = (n * first.stride as usize, to + (index as usize + n) * first.step);
                    tile[target..target + run].copy_from_slice(&bytes[source..source + run]);
                }
                index += count;
            }
            let mut sides = rest.iter().zip(&mut indices);
            loop {
                let Some((side, index)) = sides.next() else { return Ok(()) };
                *index += 1;
                if *index < side.size {
                    (from, to) = (from + side.stride, to + side.step);
                    break;
                }
                *index = 0;
                (from, to) = (from - (side.size - 1) * side.stride, to - (side.size as usize - 1) * side.step);
            }
        }
    }

    /// Bytes of the file, with more of them ahead where reading goes on in sequence.
    fn fetch(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let inside = at.wrapping_sub(self.window_at);
        if inside.saturating_add(len as u64) > self.window.len() as u64 {
            let follows = inside <= self.window.len() as u64;
            let want = if follows { len.max(BLOCK as usize) } else { len };
            self.window.resize(want, 0);
            self.window_at = at;
            let got = read_up_to(&self.source, at, &mut self.window);
            self.window.truncate(*got.as_ref().unwrap_or(&0));
            if got? < len {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file ends before the tensor does"));
            }
        }
        let inside = (at - self.window_at) as usize;
        Ok(&self.window[inside..inside + len])
    }
}

/// Reads what is compressed: forward from where it is, or from the start again.
struct Inflate<S> {
    source: S,
    offset: u64,
    len: u64,
    skip: u64,
    /// Bytes that `decoder` has given; more than there are after an error.
    at: u64,
    decoder: flate2::bufread::DeflateDecoder<io::BufReader<Part<S>>>,
}

/// A decoder of the deflated bytes of a file.
pub(crate) fn inflate<S: Source>(
    source: S,
    offset: u64,
    len: u64,
) -> flate2::bufread::DeflateDecoder<io::BufReader<Part<S>>> {
    let part = Part { source, at: offset, end: offset.saturating_add(len) };
    flate2::bufread::DeflateDecoder::new(io::BufReader::with_capacity(8 << 10, part))
}

impl<S: Source + Clone> Inflate<S> {
    fn new(source: S, offset: u64, len: u64, skip: u64) -> Self {
        let decoder = inflate(source.clone(), offset, len);
        Inflate { source, offset, len, skip, at: 0, decoder }
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let wanted = offset.saturating_add(self.skip);
        if wanted < self.at {
            self.decoder = inflate(self.source.clone(), self.offset, self.len);
            self.at = 0;
        }
        let ahead = wanted - self.at;
        self.at = u64::MAX;
        if io::copy(&mut (&mut self.decoder).take(ahead), &mut io::sink())? < ahead {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the compressed bytes end before the tensor does"));
        }
        self.decoder.read_exact(buffer)?;
        self.at = wanted + buffer.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &[u8], tensor: &Tensor) -> Vec<u8> {
        let mut all = Vec::new();
        read_tensor(&source, tensor, &mut |bytes| {
            all.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })
        .unwrap();
        all
    }

    fn strided(shape: &[u64], strides: &[u64], offset: u64) -> Tensor {
        let mut tensor = Tensor::new(b"t".to_vec(), Dtype::U16, shape.to_vec(), Location::Raw { offset, len: 0 });
        tensor.order = Order::Strides(strides.to_vec());
        tensor
    }

    #[test]
    fn gathers_strides() {
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(|n| (n as u16).to_le_bytes()).collect();
        for (shape, strides) in [
            (vec![3, 4], vec![1, 3]),
            (vec![2, 3, 4], vec![1, 100, 7]),
            (vec![5, 6], vec![10, 1]),
            (vec![5, 6], vec![0, 1]),
            (vec![7], vec![2]),
            (vec![1, 7, 1], vec![9, 1, 9]),
            (vec![300, 400], vec![1, 700]),
            (vec![2, 40_000], vec![100_000, 1]),
            (vec![4, 5, 6, 7], vec![1, 28, 140, 4]),
            (vec![3, 0, 2], vec![1, 1, 9]),
            (vec![50, 3, 40], vec![0, 7, 100]),
            (vec![2, 3, 40_000], vec![1, 2, 6]),
            (vec![100_000], vec![2]),
            (vec![9, 9], vec![0, 0]),
        ] {
            let tensor = strided(&shape, &strides, 10);
            let mut want = Vec::new();
            for flat in 0..tensor.elements() {
                let (mut rest, mut place) = (flat, 5);
                for (size, stride) in shape.iter().zip(&strides).rev() {
                    place += rest % size * stride;
                    rest /= size;
                }
                want.extend_from_slice(&(place as u16).to_le_bytes());
            }
            assert_eq!(read(&bytes, &tensor), want, "{shape:?} {strides:?}");
            // Any part of it, too.
            let source = &bytes[..];
            let mut reader = TensorReader::new(&source, &tensor).unwrap();
            for (at, len) in [(0, 1), (1, 3), (3, 5), (7, 7)] {
                let mut part = vec![0; len];
                let count = reader.read_at(at, &mut part).unwrap();
                assert_eq!(
                    part[..count],
                    *want.get(at as usize..(at as usize + len).min(want.len())).unwrap_or_default()
                );
            }
            assert_eq!(reader.read_at(u64::MAX, &mut [0; 4]).unwrap(), 0);
        }
    }

    #[test]
    fn says_that_the_file_is_short() {
        let source: &[u8] = &[0; 64];
        for tensor in [strided(&[40], &[2], 0), strided(&[4, 40], &[1, 1], 0)] {
            let error = read_tensor(&source, &tensor, &mut |_| ControlFlow::Continue(())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
        let raw = Tensor::new(b"t".to_vec(), Dtype::U16, vec![40], Location::Raw { offset: 0, len: 80 });
        assert!(read_tensor(&source, &raw, &mut |_| ControlFlow::Continue(())).is_err());
    }

    #[test]
    fn heads_are_numpys() {
        let mut tensor = strided(&[2, 3], &[9, 1], 0);
        let text = |tensor: &Tensor| String::from_utf8_lossy(&npy_header(tensor).unwrap()[10..]).trim_end().to_owned();
        assert_eq!(text(&tensor), "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }");
        tensor.order = Order::ColumnMajor;
        tensor.big_endian = true;
        assert_eq!(text(&tensor), "{'descr': '>u2', 'fortran_order': True, 'shape': (2, 3), }");
        let brain = Tensor::new(b"t".to_vec(), Dtype::Bf16, vec![5], Location::Raw { offset: 0, len: 10 });
        assert_eq!(text(&brain), "{'descr': '|V2', 'fortran_order': False, 'shape': (5,), }");
        let four = Tensor::new(b"t".to_vec(), Dtype::F4, vec![2, 5], Location::Raw { offset: 0, len: 5 });
        assert_eq!(text(&four), "{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }");
        let encoded = Tensor::new(b"t".to_vec(), Dtype::String, vec![5], Location::Encoded { offset: 0, len: 10 });
        assert_eq!(npy_header(&encoded), None);
    }
}

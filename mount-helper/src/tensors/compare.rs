//! How two tensors differ, and by how much.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use tensorfs_formats::{Array, Order, Tensor, crc32c_append};

use crate::show::failure::{At, Failure, reason};
use crate::show::text;
use crate::tensors::account::Account;
use crate::tensors::assembled::by_rows;
use crate::tensors::chunks::{ChunkBytes, Chunks};
use crate::tensors::listed::{Bytes, Listed};
use crate::tensors::numbers::{Decoder, Number};
use crate::tensors::tensor_file::TensorFile;

/// What is compared at a time, in bytes. All sizes of elements that are numbers divide it.
const PIECE: usize = 1 << 20;

/// How a tensor of one file is in the other.
#[derive(Debug, PartialEq)]
pub enum Change {
    Same,
    Added,
    Removed,
    /// Another type or shape.
    Kind {
        from: String,
        to: String,
    },
    /// Other numbers, in a tensor of equal type and shape.
    Values(Distance),
    /// Other bytes, of elements that are no numbers; or bytes that cannot be compared.
    Bytes,
}

/// How far two tensors are from each other.
#[derive(Debug, Default, PartialEq)]
pub struct Distance {
    /// Elements that differ. NaN is the same as NaN.
    elements: u64,
    /// The largest difference of finite elements.
    absolute: f64,
    /// The largest difference, relative to the larger one of both elements.
    relative: f64,
    /// Elements that are NaN, in either tensor.
    nan: [u64; 2],
    /// Elements that are infinite, in either tensor.
    infinite: [u64; 2],
}

impl Distance {
    /// Elements that differ. NaN is the same as NaN.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The largest difference of finite elements.
    pub fn absolute(&self) -> f64 {
        self.absolute
    }

    /// The largest difference, relative to the larger one of both elements.
    pub fn relative(&self) -> f64 {
        self.relative
    }

    /// Elements that are NaN, in either tensor.
    pub fn nan(&self) -> [u64; 2] {
        self.nan
    }

    /// Elements that are infinite, in either tensor.
    pub fn infinite(&self) -> [u64; 2] {
        self.infinite
    }

    fn add(&mut self, a: Number, b: Number) {
        for (side, number) in [a, b].into_iter().enumerate() {
            self.nan[side] += u64::from(number.is_nan());
            self.infinite[side] += u64::from(number.is_infinite());
        }
        if a == b || a.is_nan() && b.is_nan() {
            return;
        }
        self.elements += 1;
        if a.is_finite() && b.is_finite() {
            let distance = a.distance(b);
            self.absolute = self.absolute.max(distance);
            let scale = a.real().abs().max(b.real().abs());
            if scale > 0.0 {
                self.relative = self.relative.max(distance / scale);
            }
        }
    }
}

/// A tensor, with the file that it is in.
pub type Part<'a> = (&'a TensorFile, &'a Listed);

/// Reads both tensors, as far as that is needed to tell how they differ.
pub fn compare(a: Part<'_>, b: Part<'_>) -> Result<Change, Failure> {
    let (from, to) = (kind(&a.1.tensor), kind(&b.1.tensor));
    if from != to {
        return Ok(Change::Kind { from, to });
    }
    let ((file_a, _), (file_b, _)) = (a, b);
    let (path_a, path_b) = (file_a.path(), file_b.path());
    let (mut listed_a, mut listed_b) = (a.1.clone(), b.1.clone());
    if !readable_order(&listed_a.tensor, &listed_b.tensor) {
        for listed in [&mut listed_a, &mut listed_b] {
            if let Some(tensor) = by_rows(&listed.tensor) {
                listed.tensor = tensor;
            }
        }
    }
    let (tensor_a, tensor_b) = (&listed_a.tensor, &listed_b.tensor);
    let comparable = readable_order(tensor_a, tensor_b);
    let chunks = file_a.chunks(a.1).zip(file_b.chunks(b.1));
    let have_same_chunks = match chunks {
        Some(chunks) => have_same_chunks(chunks, &file_a.account_of_array(a.1))?,
        None => None,
    };
    if have_same_chunks == Some(true) {
        return Ok(Change::Same);
    }
    let (mut reader_a, mut reader_b) = match (file_a.bytes_within(&listed_a), file_b.bytes_within(&listed_b)) {
        (Ok(a), Ok(b)) => (a, b),
        // A part of it is not there.
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => return Err(error).at(path_a),
        (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => return Err(error).at(path_b),
        // What is not plain bytes is the same if its encoding is.
        _ if chunks.is_some() => return Ok(Change::Bytes),
        _ => return encoded(a, b),
    };
    if !comparable || reader_a.0.len() != reader_b.0.len() {
        return Ok(Change::Bytes);
    }
    // First the bytes, up to the first that differs, but of chunks that are known to differ; then, if there is one,
    // what they mean.
    let decoders = Decoder::of(tensor_a).zip(Decoder::of(tensor_b));
    let is_known_to_differ = have_same_chunks == Some(false) && decoders.is_some();
    let mut equal = tensor_a.big_endian == tensor_b.big_endian && !is_known_to_differ;
    let mut pieces = Pieces::default();
    while equal && pieces.next((path_a, &mut reader_a), (path_b, &mut reader_b))? {
        equal = pieces.a == pieces.b;
    }
    if equal {
        return Ok(Change::Same);
    }
    let Some((decoder_a, decoder_b)) = decoders else { return Ok(Change::Bytes) };
    let mut distance = Distance::default();
    let mut numbers = Vec::new();
    pieces = Pieces::default();
    while pieces.next((path_a, &mut reader_a), (path_b, &mut reader_b))? {
        let mut decode = || {
            numbers.clear();
            decoder_a.each(&pieces.a, |number| numbers.push(number));
            let mut others = numbers.iter();
            decoder_b.each(&pieces.b, |number| {
                if let Some(&other) = others.next() {
                    distance.add(other, number);
                }
            });
            Ok(())
        };
        // That counts for the one of which there is more.
        let (account, path) =
            if reader_a.1.left() > reader_b.1.left() { (&reader_a.1, path_a) } else { (&reader_b.1, path_b) };
        account.during(&mut decode).at(path)?;
    }
    // Other bytes for the same numbers: byte order, the sign of a zero, another NaN.
    Ok(if distance.elements == 0 { Change::Same } else { Change::Values(distance) })
}

/// A piece of two tensors, from one place in both.
#[derive(Default)]
struct Pieces {
    at: u64,
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Pieces {
    /// Reads the next piece, if there is one.
    fn next(&mut self, a: (&Path, &mut Within), b: (&Path, &mut Within)) -> Result<bool, Failure> {
        fill(a, self.at, &mut self.a)?;
        fill(b, self.at, &mut self.b)?;
        self.at += self.a.len() as u64;
        Ok(!self.a.is_empty())
    }
}

/// The bytes of a tensor, and what they may take.
type Within = (Bytes, Rc<Account>);

fn fill((path, (reader, account)): (&Path, &mut Within), at: u64, piece: &mut Vec<u8>) -> Result<(), Failure> {
    piece.resize(PIECE, 0);
    let count = account.during(|| reader.read_at(at, piece)).at(path)?;
    piece.truncate(count);
    Ok(())
}

/// Whether readers give the elements of both in the same order.
fn readable_order(a: &Tensor, b: &Tensor) -> bool {
    (a.order == Order::ColumnMajor) == (b.order == Order::ColumnMajor)
}

/// What is not plain bytes is the same if its encoding is.
fn encoded(a: Part<'_>, b: Part<'_>) -> Result<Change, Failure> {
    let bytes = |(file, listed): Part<'_>| -> Result<_, Failure> {
        let Some((opened, offset, len)) = file.encoded(listed)? else { return Ok(None) };
        let account = file.account_of(&opened).at(file.path())?;
        Ok(Some((len, sum_up((&opened, &account), (offset, len), 0).at(file.path())?)))
    };
    Ok(match (bytes(a)?, bytes(b)?) {
        (Some(a), Some(b)) if a == b => Change::Same,
        _ => Change::Bytes,
    })
}

/// The chunks of two arrays, with what is said of what those mean.
type Both<'a> = ((&'a Array, &'a Chunks), (&'a Array, &'a Chunks));

/// Whether two arrays have the same chunks, byte by byte. None if something else is said of what those mean, or others
/// are there.
fn have_same_chunks(both: Both<'_>, account: &Account) -> Result<Option<bool>, Failure> {
    let ((array_a, chunks_a), (array_b, chunks_b)) = both;
    if array_a != array_b || chunks_a.numbers() != chunks_b.numbers() {
        return Ok(None);
    }
    let mut pieces = (vec![0; PIECE], vec![0; PIECE]);
    for number in chunks_a.numbers() {
        let (Some(file_a), Some(file_b)) = (chunks_a.open(*number)?, chunks_b.open(*number)?) else {
            return Ok(None);
        };
        for bytes in [&file_a, &file_b] {
            if let ChunkBytes::File { file, .. } = bytes {
                account.count(file).map_err(|error| Failure::new(reason(&error)))?;
            }
        }
        if !have_same_bytes((&file_a, &file_b), account, &mut pieces).map_err(|error| Failure::new(reason(&error)))? {
            return Ok(Some(false));
        }
    }
    Ok(Some(true))
}

fn have_same_bytes(
    (a, b): (&ChunkBytes, &ChunkBytes),
    account: &Account,
    pieces: &mut (Vec<u8>, Vec<u8>),
) -> io::Result<bool> {
    let len = a.len();
    if b.len() != len {
        return Ok(false);
    }
    let mut at = 0;
    while at < len {
        let count = usize::try_from(len - at).unwrap_or(PIECE).min(PIECE);
        let (piece_a, piece_b) = (&mut pieces.0[..count], &mut pieces.1[..count]);
        let is_same = account.during(|| {
            a.read_exact_at(piece_a, at)?;
            b.read_exact_at(piece_b, at)?;
            Ok(piece_a == piece_b)
        })?;
        if !is_same {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

/// The checksum of bytes of a file, behind others.
fn sum_up((file, account): (&File, &Account), (offset, len): (u64, u64), mut crc: u32) -> io::Result<u32> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        let count = usize::try_from(len - at).unwrap_or(PIECE).min(PIECE);
        account.during(|| file.read_exact_at(&mut piece[..count], offset + at))?;
        crc = crc32c_append(crc, &piece[..count]);
        at += count as u64;
    }
    Ok(crc)
}

fn kind(tensor: &Tensor) -> String {
    format!("{} {}", text::plain(&tensor.dtype_text()), text::shape(tensor))
}

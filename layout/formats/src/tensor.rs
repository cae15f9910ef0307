//! One tensor of a file: what it is called, what it is, and where its bytes are.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::fault::{Result, too_much};
use crate::limits::{DIMENSIONS_MAX, NAME_MAX};

/// The most bytes that a tensor has with it, and the longest description of a type.
const INLINE_MAX: usize = 1 << 20;
const DESCR_MAX: usize = 1 << 20;

/// One tensor of a file.
///
/// Seals hold tensors in the pool's log (docs/FORMAT.md): of these types, fields and variants may be added only behind
/// the last one, and never change places.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name as the file has it: bytes, mostly UTF-8. docs/TENSORS.md says how nested names are joined.
    pub name: Vec<u8>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Bytes of an element; 0 where elements share bytes or differ in size.
    pub item_size: u64,
    /// NumPy's description of the type, where [`dtype`](Self::dtype) does not say it all.
    pub descr: Option<String>,
    /// Whether elements are stored most significant byte first.
    pub big_endian: bool,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// How elements follow each other.
    pub order: Order,
    /// What it is in its file.
    pub kind: Kind,
    /// The step it was written at, where the format knows steps.
    pub step: Option<i64>,
    /// smdebug's mode.
    pub mode: Option<Mode>,
    /// smdebug's step within the mode.
    pub mode_step: Option<i64>,
    /// Where its bytes are.
    pub location: Location,
    /// torch: the storage that it is a view of. Tensors with the same storage share bytes.
    pub storage: Option<Storage>,
}

/// What a tensor is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// An array of elements.
    Tensor,
    /// One number at one step.
    Scalar,
    /// A histogram: a row of upper limit and count for each bucket.
    Histogram,
}

impl Kind {
    /// Its name in print.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tensor => "tensor",
            Kind::Scalar => "scalar",
            Kind::Histogram => "histogram",
        }
    }
}

/// What the training job was doing, as smdebug tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Training.
    Train,
    /// Evaluation.
    Eval,
    /// Prediction.
    Predict,
    /// Outside of the others.
    Global,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [Mode::Train, Mode::Eval, Mode::Predict, Mode::Global];

    /// smdebug's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Train => "TRAIN",
            Mode::Eval => "EVAL",
            Mode::Predict => "PREDICT",
            Mode::Global => "GLOBAL",
        }
    }
}

/// How elements follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The last index runs fastest (C).
    RowMajor,
    /// The first index runs fastest (Fortran).
    ColumnMajor,
    /// For each dimension, how many elements further on the next index is.
    Strides(Vec<u64>),
}

/// Where a tensor's bytes are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Location {
    /// In the file, as they are in memory: they can be mapped.
    Raw {
        /// First byte.
        offset: u64,
        /// Bytes from the first to the last that belongs to it.
        len: u64,
    },
    /// In the file, but encoded among other things.
    Inline {
        /// First byte of the encoding.
        offset: u64,
        /// Bytes of the encoding.
        len: u64,
        /// The elements, little-endian.
        bytes: Vec<u8>,
    },
    /// In the file, compressed with deflate.
    Deflated {
        /// First compressed byte.
        offset: u64,
        /// Compressed bytes.
        len: u64,
        /// Bytes in front of the tensor's when decompressed.
        skip: u64,
    },
    /// In the file, but not as elements of a fixed size: pickled objects, lists of strings.
    Encoded {
        /// First byte.
        offset: u64,
        /// Bytes of the encoding.
        len: u64,
    },
    /// In the file as in memory, but for signs: torch keeps a conjugate, or what is negated, as what it is of.
    Negated {
        /// First byte.
        offset: u64,
        /// Bytes from the first to the last that belongs to it.
        len: u64,
        /// Whose signs are others: 1 the numbers', or the real parts', 2 the imaginary parts', 3 both.
        parts: u8,
    },
}

/// A storage of torch: bytes that tensors are views of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// Its key, which is the name of its member in the zip.
    pub key: String,
    /// First byte in the file.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

impl Tensor {
    /// A tensor without step, mode or storage, little-endian and in row-major order.
    pub fn new(name: Vec<u8>, dtype: Dtype, shape: Vec<u64>, location: Location) -> Self {
        Tensor {
            name,
            dtype,
            item_size: dtype.size().unwrap_or(0),
            descr: None,
            big_endian: false,
            shape,
            order: Order::RowMajor,
            kind: Kind::Tensor,
            step: None,
            mode: None,
            mode_step: None,
            location,
            storage: None,
        }
    }

    /// The name as text; bytes that are no UTF-8 are replaced.
    pub fn name_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    /// The name and what tells tensors of that name apart, in print: `NAME@STEP`.
    pub fn label(&self) -> String {
        match self.step {
            Some(step) => format!("{}@{step}", self.name_text()),
            None => self.name_text().into_owned(),
        }
    }

    /// The type in print: NumPy's description where the name of the type does not say it.
    pub fn dtype_text(&self) -> Cow<'_, str> {
        match &self.descr {
            Some(descr) => Cow::Borrowed(descr.trim_matches('\'')),
            None => Cow::Borrowed(self.dtype.name()),
        }
    }

    /// Elements in it.
    pub fn elements(&self) -> u64 {
        elements(&self.shape).unwrap_or(0)
    }

    /// Bytes of its elements, each counted once; for what is encoded, of the encoding.
    pub fn bytes(&self) -> u64 {
        match (&self.location, self.dtype.bits()) {
            (Location::Encoded { len, .. }, _) => *len,
            (_, Some(bits)) if bits % 8 != 0 => packed_bytes(self.elements(), bits).unwrap_or(0),
            _ => self.elements().saturating_mul(self.item_size),
        }
    }

    /// First byte and number of the bytes of the file that it is made of.
    pub fn range(&self) -> (u64, u64) {
        match self.location {
            Location::Raw { offset, len }
            | Location::Inline { offset, len, .. }
            | Location::Deflated { offset, len, .. }
            | Location::Encoded { offset, len }
            | Location::Negated { offset, len, .. } => (offset, len),
        }
    }

    /// Of bytes that are to be read with other signs than they have, what to change of each element's. The sign of a
    /// number is its first bit.
    pub(crate) fn signs(&self) -> Option<Vec<u8>> {
        let Location::Negated { parts, .. } = self.location else { return None };
        let size = self.dtype.size()? as usize;
        let numbers = match self.dtype {
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 if parts == 1 => 1,
            Dtype::C32 | Dtype::C64 | Dtype::C128 if (1..=3).contains(&parts) => 2,
            _ => return None,
        };
        let (mut signs, each) = (vec![0; size], size / numbers);
        for number in (0..numbers).filter(|number| parts >> number & 1 == 1) {
            signs[number * each + if self.big_endian { 0 } else { each - 1 }] = 0x80;
        }
        Some(signs)
    }

    /// What cannot be true of a tensor in a file of this size, if anything. Recognisers find none with a fault; this is
    /// for whoever does not trust them.
    pub fn fault(&self, size: u64) -> Option<&'static str> {
        let within = |offset: u64, len: u64| offset.checked_add(len).is_some_and(|end| end <= size);
        let (offset, len) = self.range();
        let Some(elements) = elements(&self.shape) else { return Some("a tensor of too many elements") };
        let bytes = match self.dtype.bits() {
            Some(bits) if bits % 8 != 0 => packed_bytes(elements, bits),
            _ => elements.checked_mul(self.item_size),
        };
        let Some(bytes) = bytes else { return Some("a tensor of too many bytes") };
        let held = match (&self.location, &self.order) {
            (Location::Negated { .. }, _) if self.signs().is_none() => false,
            (Location::Raw { .. } | Location::Negated { .. }, Order::Strides(strides)) => {
                let bytes = span(&self.shape, strides).and_then(|span| span.checked_mul(self.item_size));
                strides.len() == self.shape.len() && bytes.is_some_and(|bytes| bytes <= len)
            }
            (Location::Raw { .. } | Location::Negated { .. }, _) => bytes <= len,
            (Location::Inline { bytes, .. }, _) => bytes.len() <= INLINE_MAX,
            (Location::Deflated { .. } | Location::Encoded { .. }, _) => true,
        };
        if self.name.len() > NAME_MAX || self.descr.as_ref().is_some_and(|descr| descr.len() > DESCR_MAX) {
            Some("a tensor whose name is too long")
        } else if self.shape.len() > DIMENSIONS_MAX {
            Some("a tensor of too many dimensions")
        } else if self.dtype.size().is_some_and(|size| size != self.item_size) {
            Some("a tensor whose elements have not the size of their type")
        } else if !within(offset, len) {
            Some("a tensor that is not in the file")
        } else if !held {
            Some("a tensor whose bytes are not where it is")
        } else if self.storage.as_ref().is_some_and(|of| !within(of.offset, of.len) || of.key.len() > NAME_MAX) {
            Some("a storage that is not in the file")
        } else {
            None
        }
    }

    /// The number in brackets at the end of its name, as tensors of a further part of a file have.
    pub fn number(&self) -> Option<u32> {
        let digits = self.name.strip_suffix(b"]")?.rsplit(|byte| *byte == b'[').next()?;
        let is_plain = digits.len() + 2 <= self.name.len() && digits.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()
    }

    /// Whether any of its elements can be read for itself, as none can that is compressed.
    pub fn is_laid_out(&self) -> bool {
        matches!(self.location, Location::Raw { .. } | Location::Negated { .. })
    }

    /// Whether its bytes lie in the file exactly as a reader that maps it wants them.
    pub fn is_mappable(&self) -> bool {
        matches!(self.location, Location::Raw { .. }) && !matches!(self.order, Order::Strides(_))
    }
}

/// What the tensor of that name is called in the part of a file with that number: `NAME[1]` in the second one. In the
/// first it has its name, so that it keeps it when more is appended.
pub(crate) fn numbered(name: &[u8], part: usize) -> Result<Vec<u8>> {
    let name = [name, format!("[{part}]").as_bytes()].concat();
    if name.len() > NAME_MAX { too_much("a name that is too long") } else { Ok(name) }
}

/// Bytes of `elements` whose bits are packed; none unless they fill their bytes.
pub(crate) fn packed_bytes(elements: u64, bits: u32) -> Option<u64> {
    let total = elements.checked_mul(bits.into())?;
    (total % 8 == 0).then_some(total / 8)
}

/// The order that strides mean: the plain ones by their names.
pub(crate) fn order_of(shape: &[u64], strides: &[u64]) -> Order {
    fn dense<'a>(mut dims: impl Iterator<Item = (&'a u64, &'a u64)>) -> bool {
        let mut expected = 1_u64;
        dims.all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected = expected.saturating_mul(size);
            fits
        })
    }
    let dims = || shape.iter().zip(strides);
    if shape.contains(&0) || dense(dims().rev()) {
        Order::RowMajor
    } else if dense(dims()) {
        Order::ColumnMajor
    } else {
        Order::Strides(strides.to_vec())
    }
}

/// Elements from the first to the last that a view touches.
pub(crate) fn span(shape: &[u64], strides: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .zip(strides)
        .try_fold(1_u64, |span, (&size, &stride)| span.checked_add((size - 1).checked_mul(stride)?))
}

/// Elements of a shape, if they can be counted in 63 bits.
pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        // A dimension beside a 0 may be anything, but must not overflow what others compute from it.
        return shape.iter().all(|&n| n <= i64::MAX as u64).then_some(0);
    }
    let count = shape.iter().try_fold(1_u64, |count, &n| count.checked_mul(n))?;
    (count <= i64::MAX as u64).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_orders() {
        assert_eq!(order_of(&[], &[]), Order::RowMajor);
        assert_eq!(order_of(&[2, 3], &[3, 1]), Order::RowMajor);
        assert_eq!(order_of(&[2, 3], &[1, 2]), Order::ColumnMajor);
        assert_eq!(order_of(&[1, 3], &[77, 1]), Order::RowMajor);
        assert_eq!(order_of(&[2, 0], &[7, 7]), Order::RowMajor);
        assert_eq!(order_of(&[2, 3], &[4, 1]), Order::Strides(vec![4, 1]));
        assert_eq!(order_of(&[2, 3], &[0, 1]), Order::Strides(vec![0, 1]));
    }

    #[test]
    fn spans() {
        assert_eq!(span(&[], &[]), Some(1));
        assert_eq!(span(&[2, 3], &[3, 1]), Some(6));
        assert_eq!(span(&[2, 3], &[10, 2]), Some(15));
        assert_eq!(span(&[0, 3], &[u64::MAX, 1]), Some(0));
        assert_eq!(span(&[3, 3], &[u64::MAX, 1]), None);
    }

    #[test]
    fn packs_bits() {
        assert_eq!(packed_bytes(4, 6), Some(3));
        assert_eq!(packed_bytes(3, 4), None);
        assert_eq!(packed_bytes(u64::MAX, 4), None);
    }

    #[test]
    fn counts_elements() {
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[2, 3]), Some(6));
        assert_eq!(elements(&[u64::MAX, 0]), None);
        assert_eq!(elements(&[i64::MAX as u64, 0]), Some(0));
        assert_eq!(elements(&[1 << 32, 1 << 32]), None);
        assert_eq!(elements(&[1 << 63]), None);
    }
}

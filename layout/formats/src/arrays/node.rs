//! What the metadata of a hierarchy of arrays says of one of its directories.

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::limits::{DIMENSIONS_MAX, NAME_MAX};
use crate::names::is_below;
use crate::tensor::{Location, Order, Tensor, elements};

use super::block::Block;
use super::codecs::RAW;

/// The longest text that describes something.
const TEXT_MAX: usize = 4096;
/// The most chunks of an array that is put together from them.
const CHUNKS_MAX: u64 = 4096;
/// The longest element that chunks may be full of that are not there.
const FILL_MAX: usize = 16;

/// A file that says what the directory is that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metadata {
    /// `zarr.json`: an array or a group of zarr 3, and possibly all that is below.
    Zarr3,
    /// `.zarray`: an array of zarr 2.
    Zarr2Array,
    /// `.zgroup`: a group of zarr 2.
    Zarr2Group,
    /// `.zmetadata`: all that is below a group of zarr 2.
    Zarr2All,
    /// `attributes.json`: an array of n5, the root of a hierarchy, or what users say of a group.
    N5,
    /// `manifest.ocdbt`: a database of TensorStore's.
    Ocdbt,
}

impl Metadata {
    /// All of them. What comes first counts, if a directory has several.
    pub const ALL: [Metadata; 6] = [
        Metadata::Zarr3,
        Metadata::Zarr2Array,
        Metadata::Zarr2Group,
        Metadata::Zarr2All,
        Metadata::N5,
        Metadata::Ocdbt,
    ];

    /// What the file is called.
    pub fn name(self) -> &'static str {
        match self {
            Metadata::Zarr3 => "zarr.json",
            Metadata::Zarr2Array => ".zarray",
            Metadata::Zarr2Group => ".zgroup",
            Metadata::Zarr2All => ".zmetadata",
            Metadata::N5 => "attributes.json",
            Metadata::Ocdbt => "manifest.ocdbt",
        }
    }

    /// The name of the format in print.
    pub fn format(self) -> &'static str {
        match self {
            Metadata::Zarr3 => "zarr 3",
            Metadata::Zarr2Array | Metadata::Zarr2Group | Metadata::Zarr2All => "zarr 2",
            Metadata::N5 => "n5",
            Metadata::Ocdbt => "OCDBT",
        }
    }
}

/// A directory of a hierarchy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The way to it from the directory of the metadata, names joined by `/`. Empty: that directory itself.
    pub path: String,
    /// What it is.
    pub what: What,
}

/// What a directory is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// One that has others in it.
    Group,
    /// An array.
    Array(Array),
    /// A database, whose arrays its own library knows.
    Database,
    /// An array, or something else that is not understood: why.
    Unknown(String),
}

/// An array whose elements are in chunks, each in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Array {
    /// The type of its elements.
    pub dtype: Dtype,
    /// The type as the format calls it, if that of the elements does not say it.
    pub descr: Option<String>,
    /// Bytes of an element. 0 if elements are of no fixed size, or that is not known.
    pub item_size: u64,
    /// Byte order in a chunk.
    pub big_endian: bool,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// The order of elements in a chunk: column by column, or row by row.
    pub column_major: bool,
    /// Elements of a chunk in each dimension. None if they are in no regular grid.
    pub chunk: Option<Vec<u64>>,
    /// What is done with a chunk before it is stored, in this order. Empty: nothing.
    pub codecs: Vec<String>,
    /// A chunk is a block of n5's: it begins by saying how large it is, which may be less than others are.
    pub blocks: bool,
    /// How the files of chunks are called. None if that is not known.
    pub keys: Option<Keys>,
    /// An element as it stands in chunks that are not there, if that is known.
    pub fill: Option<Vec<u8>>,
    /// What of it is not understood.
    pub odd: Option<String>,
}

/// How the file of a chunk is called, by its numbers in each dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// `c` comes before the numbers.
    pub has_prefix: bool,
    /// Each number but the last is a directory; else dots are between them.
    pub is_nested: bool,
}

impl Keys {
    /// The name of the chunk of those numbers, or the way to it from the array's directory, names joined by `/`.
    pub fn path(self, numbers: &[u64]) -> String {
        let prefix = self.has_prefix.then(|| "c".to_owned());
        match numbers {
            [] => prefix.unwrap_or_else(|| "0".to_owned()),
            numbers => {
                let names: Vec<String> = prefix.into_iter().chain(numbers.iter().map(u64::to_string)).collect();
                names.join(if self.is_nested { "/" } else { "." })
            }
        }
    }
}

impl Array {
    /// It as a tensor, of a name. No bytes of any one file are its own.
    pub fn tensor(&self, name: Vec<u8>) -> Tensor {
        let mut tensor = Tensor::new(name, self.dtype, self.shape.clone(), Location::Encoded { offset: 0, len: 0 });
        tensor.item_size = self.item_size;
        tensor.descr.clone_from(&self.descr);
        tensor.big_endian = self.big_endian;
        tensor.order = if self.column_major { Order::ColumnMajor } else { Order::RowMajor };
        tensor
    }

    /// How many chunks there are in each dimension, if they are in a regular grid.
    pub fn grid(&self) -> Option<Vec<u64>> {
        let chunk = self.chunk.as_ref()?;
        Some(self.shape.iter().zip(chunk).map(|(size, chunk)| size.div_ceil((*chunk).max(1))).collect())
    }

    /// Bytes of its elements, if they are of a fixed size.
    pub fn bytes(&self) -> Option<u64> {
        elements(&self.shape)?.checked_mul(self.item_size).filter(|_| self.item_size > 0)
    }

    /// Bytes of the elements of a chunk that are stored as they are. None if they are not.
    pub fn plain_elements(&self) -> Option<u64> {
        let is_raw = if self.blocks { self.codecs == [RAW] } else { self.codecs.is_empty() };
        // A block says how many dimensions it has, and elements have one more.
        let is_plain = is_raw && self.odd.is_none() && self.shape.len() < DIMENSIONS_MAX;
        let chunk = self.chunk.as_ref().filter(|_| is_plain && self.dtype.size() == Some(self.item_size))?;
        elements(chunk)?.checked_mul(self.item_size)
    }

    /// Bytes of a chunk that is its elements and nothing else. None if chunks are not.
    pub fn plain_chunk(&self) -> Option<u64> {
        self.plain_elements().filter(|_| !self.blocks)
    }

    /// Whether it can be put together from its chunks: they are elements as they are to be read, it is known how they
    /// are called, and they are no more than are looked at.
    pub fn is_put_together(&self) -> bool {
        let chunks = || self.grid()?.iter().try_fold(1_u64, |count, one| count.checked_mul(*one));
        let is_few = || chunks().is_some_and(|count| count <= CHUNKS_MAX);
        self.keys.is_some() && self.plain_elements().is_some() && is_few()
    }

    /// Numbers of its dimensions, so that the last one runs fastest in the file, and the same backwards.
    pub fn as_stored(&self, mut numbers: Vec<u64>) -> Vec<u64> {
        if self.column_major {
            numbers.reverse();
        }
        numbers
    }

    /// How to ask what is in one of its blocks. None if chunks are none.
    pub fn block(&self) -> Option<Block> {
        let dims = u8::try_from(self.shape.len()).ok()?;
        Some(Block { dims, item: self.item_size }).filter(|_| self.blocks)
    }

    /// What cannot be true of it, if anything.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let texts = self.codecs.iter().chain(&self.descr).chain(&self.odd);
        let is_other = |numbers: &Vec<u64>| numbers.len() != self.shape.len();
        let lacks = |chunk: &Vec<u64>| chunk.iter().zip(&self.shape).any(|(chunk, size)| *chunk == 0 && *size > 0);
        if self.shape.len() > DIMENSIONS_MAX || self.chunk.as_ref().is_some_and(is_other) {
            Some("an array of too many dimensions, or with chunks of others")
        } else if self.chunk.as_ref().is_some_and(lacks) {
            Some("chunks without elements")
        } else if elements(&self.shape).and_then(|count| count.checked_mul(self.item_size.max(1))).is_none()
            || self.chunk.as_ref().is_some_and(|chunk| {
                elements(chunk).and_then(|count| count.checked_mul(self.item_size.max(1))).is_none()
            })
        {
            Some("an array of too many bytes")
        } else if self.codecs.len() > TEXT_MAX || texts.map(String::len).sum::<usize>() > 4 * TEXT_MAX {
            Some("an array that is described at too great length")
        } else if self.dtype.size().is_some_and(|size| size != self.item_size)
            || self.fill.as_ref().is_some_and(|fill| fill.len() > FILL_MAX || fill.len() as u64 != self.item_size)
        {
            Some("an array whose elements have not the size of their type")
        } else {
            None
        }
    }
}

impl Node {
    /// What cannot be true of it, if anything. What reads metadata finds none with a fault; this is for whoever does
    /// not trust it.
    pub fn fault(&self) -> Option<&'static str> {
        if !self.path.is_empty() && !is_below(&self.path) || self.path.len() > NAME_MAX {
            return Some("a directory that cannot be below");
        }
        match &self.what {
            What::Array(array) => array.fault(),
            What::Unknown(why) if why.len() > TEXT_MAX => Some("a reason that is too long"),
            What::Group | What::Database | What::Unknown(_) => None,
        }
    }

    /// An array; or that it is none, if it cannot be.
    pub(super) fn of(path: &str, what: Result<What, String>) -> Node {
        let what = what.unwrap_or_else(What::Unknown);
        let node = Node { path: path.to_owned(), what };
        match (&node.what, node.fault()) {
            (What::Array(_), Some(fault)) => Node { what: What::Unknown(fault.to_owned()), ..node },
            _ => node,
        }
    }
}

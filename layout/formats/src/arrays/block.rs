//! A block of n5's: in front of its elements it says how large it is, which may be less than others of its array are.

use serde::{Deserialize, Serialize};

use crate::cursor::Cursor;
use crate::dtype::Dtype;
use crate::fault::{Result, malformed};
use crate::found::Out;
use crate::source::Source;
use crate::tensor::{Location, Tensor, elements};

/// What is in a block: as many elements as it says, or, as it says too, of another number, which is for those of no
/// fixed size.
const ELEMENTS: u16 = 0;
const COUNTED: u16 = 1;

/// What is known of a block from its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// How many dimensions it has.
    pub dims: u8,
    /// Bytes of an element.
    pub item: u64,
}

/// Gives the elements as one tensor of bytes.
pub(crate) fn read(source: &dyn Source, Block { dims, item }: Block, out: &mut Out<'_, '_>) -> Result<()> {
    let size = source.size()?;
    let mut cursor = Cursor::new(source, 0, size)?;
    let mode = cursor.array().map(u16::from_be_bytes)?;
    if mode != ELEMENTS && mode != COUNTED {
        return malformed("a block of another kind");
    }
    if cursor.array().map(u16::from_be_bytes)? != u16::from(dims) {
        return malformed("a block of other dimensions than its array");
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        shape.push(u64::from(cursor.array().map(u32::from_be_bytes)?));
    }
    let count = if mode == COUNTED { Some(u64::from(cursor.array().map(u32::from_be_bytes)?)) } else { None };
    if count.is_some_and(|count| elements(&shape) != Some(count)) {
        return malformed("a block of another number of elements than it says");
    }
    shape.reverse();
    shape.push(item);
    let Some(len) = elements(&shape) else { return malformed("a block of more elements than can be") };
    let offset = cursor.at();
    cursor.skip(len)?;
    if cursor.at() < size {
        return malformed("a block with more than its elements");
    }
    out.found.end = cursor.at();
    out.tensor(Tensor::new(b"block".to_vec(), Dtype::U8, shape, Location::Raw { offset, len }))
}

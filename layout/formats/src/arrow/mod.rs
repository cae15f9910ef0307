//! Arrow's file format, which is Feather's of version 2, too: columns in batches of rows, and a footer that says where.
//!
//! <https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format>, and the schemas of its FlatBuffers there.
//!
//! A column of plain elements, none of which is missing, is a tensor in each batch. Streams are in [`stream`].

mod schema;
pub(crate) mod stream;

use crate::fault::{Fault, Result, malformed, too_much};
use crate::flatbuffer::Table;
use crate::format::Format;
use crate::found::Out;
use crate::limits::TENSORS_MAX;
use crate::source::{Source, read_exact};
use crate::tensor::{Location, Tensor, elements, numbered};
use schema::{Column, Schema};

pub(crate) const MAGIC: &[u8] = b"ARROW1\0\0";
const END: &[u8] = b"ARROW1";

/// The longest footer, and description of a batch.
const FOOTER_MAX: u64 = 12 << 20;
const BATCH_MAX: u64 = 8 << 20;
/// Bytes of what the footer says of a batch, and of what a batch says of a column and of a buffer.
const BLOCK: usize = 24;
const NODE: usize = 16;
const BUFFER: usize = 16;
/// A message that is a batch of rows.
const RECORD_BATCH: u8 = 3;

pub(crate) fn recognise(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let size = source.size()?;
    let bytes = footer(source, size, out)?;
    let footer = Table::root(&bytes)?;
    let version = footer.i16(0, 0)?;
    let Some(schema) = footer.table(1)? else { return malformed("an Arrow file without a schema") };
    let schema = schema::read(schema, version)?;
    let blocks = footer.bytes(3, BLOCK)?;
    if (blocks.len() / BLOCK).saturating_mul(schema.columns.len()) > TENSORS_MAX {
        return too_much(format!("an Arrow file of more than {TENSORS_MAX} columns in batches"));
    }
    out.found.format = Format::Arrow;
    let mut end = MAGIC.len() as u64;
    for (number, block) in blocks.chunks_exact(BLOCK).enumerate() {
        let block = Block::read(block);
        // One behind the other, so that nothing is read twice.
        match block.end().filter(|&last| last <= size - bytes.len() as u64) {
            Some(last) if block.at >= end => end = last,
            _ => return malformed("an Arrow file with batches that overlap, or are not there"),
        }
        out.found.frames += 1;
        let read = batch(source, &schema, &block, number, out);
        if let Err(Fault::Malformed(_) | Fault::Short(_)) = read {
            // What is in front of it is listed, and the file is not whole.
            out.found.bad_frames += 1;
        }
        read?;
    }
    out.found.end = size;
    Ok(())
}

/// The footer, which is the last thing but its length and six bytes.
fn footer(source: &dyn Source, size: u64, out: &mut Out<'_, '_>) -> Result<Vec<u8>> {
    let mut last = [0; 4 + END.len()];
    let is_ended = size >= (MAGIC.len() + last.len()) as u64 && {
        read_exact(source, size - last.len() as u64, &mut last)?;
        last.ends_with(END)
    };
    if !is_ended {
        out.found.cut = true;
        return malformed("an Arrow file that does not end as one");
    }
    let len = u64::from(u32::from_le_bytes([last[0], last[1], last[2], last[3]]));
    let what = || format!("an Arrow file with a footer of {len} bytes");
    if len > size - (MAGIC.len() + last.len()) as u64 {
        return malformed(what());
    }
    if len > FOOTER_MAX {
        return too_much(what());
    }
    let mut footer = vec![0; len as usize];
    read_exact(source, size - last.len() as u64 - len, &mut footer)?;
    Ok(footer)
}

/// Where a batch is.
struct Block {
    at: u64,
    /// Bytes of what it says of itself, and of the columns behind that.
    head: u64,
    body: u64,
}

impl Block {
    fn read(bytes: &[u8]) -> Self {
        let number =
            |at: usize, width: usize| bytes[at..at + width].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        Block { at: number(0, 8), head: number(8, 4), body: number(16, 8) }
    }

    fn body(&self) -> Option<u64> {
        self.at.checked_add(self.head)
    }

    fn end(&self) -> Option<u64> {
        self.body()?.checked_add(self.body)
    }
}

/// The numbers in lists of pairs of them.
fn pairs(bytes: &[u8]) -> impl Iterator<Item = (i64, i64)> {
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap_or_default());
    bytes.chunks_exact(16).map(move |pair| (number(&pair[..8]), number(&pair[8..])))
}

fn batch(source: &dyn Source, schema: &Schema, block: &Block, number: usize, out: &mut Out<'_, '_>) -> Result<()> {
    let what = || format!("a batch that takes {} bytes to describe", block.head);
    if block.head < 8 {
        return malformed(what());
    }
    if block.head > BATCH_MAX {
        return too_much(what());
    }
    let mut bytes = vec![0; block.head as usize];
    read_exact(source, block.at, &mut bytes)?;
    // Before version 0.15 the length came first.
    let start = if bytes.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = Table::root(&bytes[start..])?;
    let batch = match (message.u8(1)?, message.table(2)?) {
        (RECORD_BATCH, Some(batch)) => batch,
        _ => return malformed("a batch that is none"),
    };
    let Some(body) = block.body() else { return malformed("a batch beyond all files") };
    columns(batch, schema, (body, block.body), number, out)
}

/// Gives the columns of a batch, whose bytes are at a place, and so many.
fn columns(
    batch: Table<'_>,
    schema: &Schema,
    (body, len): (u64, u64),
    number: usize,
    out: &mut Out<'_, '_>,
) -> Result<()> {
    let Ok(rows) = u64::try_from(batch.i64(0)?) else { return malformed("a batch of less than nothing") };
    let mut rest = Rest {
        nodes: &mut pairs(batch.bytes(1, NODE)?),
        buffers: &mut pairs(batch.bytes(2, BUFFER)?),
        more: &mut batch.bytes(4, 8)?.chunks_exact(8),
        body,
        len,
        end: body,
    };
    let is_compressed = batch.has(3);
    for column in &schema.columns {
        let place = rest.take(column, rows)?;
        let tensor = tensor(column, rows, place, number, schema.is_big, is_compressed)?;
        out.tensor(tensor)?;
    }
    match (rest.nodes.next(), rest.buffers.next()) {
        (None, None) => Ok(()),
        _ => malformed("a batch of more columns than there are"),
    }
}

/// What a batch says of columns that were not looked at yet.
struct Rest<'b> {
    nodes: &'b mut dyn Iterator<Item = (i64, i64)>,
    buffers: &'b mut dyn Iterator<Item = (i64, i64)>,
    more: &'b mut dyn Iterator<Item = &'b [u8]>,
    /// Where the columns are, and how many bytes they take.
    body: u64,
    len: u64,
    /// Where the last of those that were looked at ends.
    end: u64,
}

/// Where a column of a batch is.
struct Place {
    /// Its buffers, from the first to the last.
    all: (u64, u64),
    /// The last of them.
    last: (u64, u64),
    /// Every element is there.
    is_full: bool,
}

impl Rest<'_> {
    fn take(&mut self, column: &Column, rows: u64) -> Result<Place> {
        let body = self.body;
        let mut place = Place { all: (u64::MAX, 0), last: (self.end, 0), is_full: true };
        let mut expected = Some(rows);
        for n in 0..column.nodes {
            let Some((length, missing)) = self.nodes.next() else { return malformed("a batch of too few columns") };
            // Of lists of one length, each has as many as the one that it is in.
            let size = column.of.dimensions.get(n.wrapping_sub(1)).copied();
            expected =
                if n == 0 { expected } else { expected.zip(size).and_then(|(rows, size)| rows.checked_mul(size)) };
            place.is_full &= missing == 0 && u64::try_from(length).ok() == expected;
        }
        let mut count = column.buffers;
        for _ in 0..column.variadic {
            let more = self.more.next().and_then(|bytes| bytes.try_into().ok()).map_or(-1, i64::from_le_bytes);
            count = match usize::try_from(more).ok().and_then(|more| count.checked_add(more)) {
                Some(count) => count,
                None => return malformed("a batch of an unknown number of buffers"),
            };
        }
        for _ in 0..count {
            let Some((offset, len)) = self.buffers.next() else { return malformed("a batch of too few buffers") };
            let (Ok(offset), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
                return malformed("a buffer where none can be");
            };
            match offset.checked_add(len) {
                Some(end) if end <= self.len => {
                    place.last = (body + offset, len);
                    place.all = (place.all.0.min(body + offset), place.all.1.max(body + end));
                }
                _ => return malformed("a buffer that is not in its batch"),
            }
        }
        if place.all.0 > place.all.1 {
            place.all = (self.end, self.end);
        }
        self.end = place.all.1;
        Ok(place)
    }
}

fn tensor(
    column: &Column,
    rows: u64,
    place: Place,
    number: usize,
    is_big: bool,
    is_compressed: bool,
) -> Result<Tensor> {
    let name = if number == 0 { column.name.clone() } else { numbered(&column.name, number)? };
    let of = &column.of;
    let shape = [&[rows][..], &of.dimensions].concat();
    let Some(len) = elements(&shape).and_then(|count| count.checked_mul(of.size)) else {
        return malformed("a column of more elements than there can be");
    };
    let is_there = of.is_plain && place.is_full && !is_compressed;
    if is_there && len > place.last.1 {
        return malformed("a column of more elements than are there");
    }
    let location = match is_there {
        true => Location::Raw { offset: place.last.0, len },
        false => Location::Encoded { offset: place.all.0, len: place.all.1 - place.all.0 },
    };
    let mut tensor = Tensor::new(name, of.dtype, shape, location);
    tensor.item_size = of.dtype.size().unwrap_or(of.size);
    // NumPy's descriptions name the order.
    tensor.descr = of.descr.clone().map(|descr| if is_big { descr.replacen('<', ">", 1) } else { descr });
    tensor.big_endian = is_big && of.descr.is_none() && tensor.item_size > 1;
    Ok(tensor)
}

//! The columns of an Arrow file: what their elements are, and how many buffers they have in each batch.
//!
//! <https://github.com/apache/arrow/blob/main/format/Schema.fbs>

use crate::dtype::Dtype;
use crate::fault::{Result, malformed, too_much};
use crate::flatbuffer::Table;
use crate::limits::{DIMENSIONS_MAX, push};

/// The most fields, those in other fields among them; fields in fields; the longest name of a column, and all of them.
const FIELDS_MAX: usize = 32_768;
const DEPTH_MAX: usize = 32;
const NAME_MAX: usize = 4096;
const NAMES_MAX: usize = 8 << 20;

/// A column.
pub(crate) struct Column {
    pub name: Vec<u8>,
    pub of: Element,
    /// What a batch has of it: nodes, buffers, and fields that have a number of buffers more which the batch tells.
    pub nodes: usize,
    pub buffers: usize,
    pub variadic: usize,
}

/// The elements of a column.
pub(crate) struct Element {
    pub dtype: Dtype,
    /// Bytes of one.
    pub size: u64,
    /// NumPy's description, where the type alone does not say it; or what it is that cannot be read.
    pub descr: Option<String>,
    /// Dimensions, if elements are lists of one length.
    pub dimensions: Vec<u64>,
    /// Elements are plain bytes, in the last of the buffers.
    pub is_plain: bool,
}

impl Element {
    fn plain(dtype: Dtype) -> Self {
        let size = dtype.size().unwrap_or(0);
        Element { dtype, size, descr: None, dimensions: Vec::new(), is_plain: true }
    }

    fn described(descr: String, size: u64) -> Self {
        Element { size, descr: Some(descr), ..Self::plain(Dtype::Other) }
    }

    fn opaque(dtype: Dtype, what: &str) -> Self {
        Element { descr: Some(what.to_owned()), is_plain: false, ..Self::plain(dtype) }
    }
}

pub(crate) struct Schema {
    pub columns: Vec<Column>,
    pub is_big: bool,
}

/// Reads the schema of a file whose metadata have this version.
pub(crate) fn read(table: Table<'_>, version: i16) -> Result<Schema> {
    let (mut columns, mut fields, mut names) = (Vec::new(), 0, 0);
    for field in table.tables(1)? {
        let field = field?;
        let name = field.bytes(0, 1)?;
        if name.len() > NAME_MAX {
            return too_much(format!("a column with a name longer than {NAME_MAX} bytes"));
        }
        names += name.len();
        if names > NAMES_MAX {
            return too_much(format!("columns with names of more than {NAMES_MAX} bytes"));
        }
        let mut column =
            Column { name: name.to_vec(), of: Element::plain(Dtype::U8), nodes: 0, buffers: 0, variadic: 0 };
        column.of = element(field, &mut column, version, &mut fields, 0)?;
        push(&mut columns, column);
    }
    Ok(Schema { columns, is_big: table.i16(0, 0)? == 1 })
}

/// The elements of a field, whose nodes and buffers, with those of the fields in it, are added to the column's.
fn element(field: Table<'_>, column: &mut Column, version: i16, fields: &mut usize, depth: usize) -> Result<Element> {
    *fields += 1;
    if *fields > FIELDS_MAX || depth > DEPTH_MAX {
        return too_much("too many columns, or columns nested too deep");
    }
    column.nodes += 1;
    if let Some(dictionary) = field.table(4)? {
        // The indices are here, what they stand for is elsewhere.
        let _ = dictionary;
        column.buffers += 2;
        return Ok(Element::opaque(Dtype::Other, "dictionary"));
    }
    let Some(of) = field.table(3)? else { return malformed("a column without a type") };
    let (found, buffers) = kind(field.u8(2)?, of, version)?;
    column.buffers += buffers;
    column.variadic += usize::from(matches!(field.u8(2)?, 23 | 24));
    let mut children = Vec::new();
    for child in field.tables(5)? {
        children.push(element(child?, column, version, fields, depth + 1)?);
    }
    match (field.u8(2)?, children.len()) {
        (16, 1) => {}
        (16, _) => return malformed("a list of other than one thing"),
        _ => return Ok(found),
    }
    let (Some(mut inner), Ok(size)) = (children.pop(), u64::try_from(of.i32(0)?)) else {
        return malformed("lists of less than nothing");
    };
    inner.dimensions.insert(0, size);
    if inner.dimensions.len() >= DIMENSIONS_MAX {
        return too_much("a column of too many dimensions");
    }
    Ok(inner)
}

/// What elements of a type are, without those in them, and how many buffers they have.
fn kind(number: u8, of: Table<'_>, version: i16) -> Result<(Element, usize)> {
    let opaque = |what: &str, buffers| (Element::opaque(Dtype::Other, what), buffers);
    let text = |what: &str, buffers| (Element::opaque(Dtype::String, what), buffers);
    Ok(match number {
        1 => opaque("null", 0),
        2 => (integer(of.i32(0)?, of.u8(1)? != 0)?, 2),
        3 => match of.i16(0, 0)? {
            0 => (Element::plain(Dtype::F16), 2),
            1 => (Element::plain(Dtype::F32), 2),
            2 => (Element::plain(Dtype::F64), 2),
            _ => return malformed("floats of an unknown precision"),
        },
        4 => text("binary", 3),
        5 => text("text", 3),
        6 => opaque("bits", 2),
        7 => opaque("decimal", 2),
        8 => opaque("date", 2),
        9 => opaque("time", 2),
        10 => (time('M', of.i16(0, 0)?)?, 2),
        11 => opaque("interval", 2),
        12 | 17 | 21 => opaque("list", 2),
        13 => opaque("struct", 1),
        // Before version 5 (numbered 4) it said which elements there are.
        14 => opaque("union", 1 + usize::from(of.i16(0, 0)? == 1) + usize::from(version < 4)),
        15 => match u64::try_from(of.i32(0)?) {
            Ok(size @ 1..) => (Element::described(format!("'|V{size}'"), size), 2),
            _ => opaque("binary", 2),
        },
        16 => opaque("list", 1),
        // The unit of a duration is milliseconds unless it says another.
        18 => (time('m', of.i16(0, 1)?)?, 2),
        19 => text("binary", 3),
        20 => text("text", 3),
        22 => opaque("runs", 0),
        23 => text("binary", 2),
        24 => text("text", 2),
        25 | 26 => opaque("list", 3),
        _ => return malformed(format!("a column of the unknown type {number}")),
    })
}

fn integer(bits: i32, is_signed: bool) -> Result<Element> {
    Ok(Element::plain(match (bits, is_signed) {
        (8, false) => Dtype::U8,
        (8, true) => Dtype::I8,
        (16, false) => Dtype::U16,
        (16, true) => Dtype::I16,
        (32, false) => Dtype::U32,
        (32, true) => Dtype::I32,
        (64, false) => Dtype::U64,
        (64, true) => Dtype::I64,
        _ => return malformed(format!("integers of {bits} bits")),
    }))
}

/// Points in time (M) and spans of it (m), as NumPy has them.
fn time(code: char, unit: i16) -> Result<Element> {
    let unit = match unit {
        0 => "s",
        1 => "ms",
        2 => "us",
        3 => "ns",
        _ => return malformed("times of an unknown unit"),
    };
    Ok(Element::described(format!("'<{code}8[{unit}]'"), 8))
}

//! Types of elements, as data sets have them.
//!
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>, IV.A.2.d

use crate::dtype::Dtype;
use crate::fault::{Result, malformed, too_much};
use crate::hdf5::file::File;
use crate::limits::DIMENSIONS_MAX;

/// Types in types.
const DEPTH_MAX: usize = 4;
/// The longest name of a member that matters, and that there may be.
const NAME_MAX: usize = 8;
const TEXT_MAX: u64 = 65_536;

/// What the elements of a data set are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Type {
    pub dtype: Dtype,
    /// Bytes of an element.
    pub size: u64,
    pub is_big: bool,
    /// NumPy's description, where the type alone does not say it; or what it is that cannot be read.
    pub descr: Option<String>,
    /// Elements are plain bytes.
    pub is_plain: bool,
    /// Dimensions of an element that is an array itself.
    pub dimensions: Vec<u64>,
}

impl Type {
    fn plain(dtype: Dtype, is_big: bool) -> Self {
        let size = dtype.size().unwrap_or(0);
        // NumPy takes them for bytes, and nothing would say the order of those.
        if is_big && size > 1 && dtype.numpy().is_some_and(|code| code.starts_with('V')) {
            return Type::opaque(dtype, size, "big-endian numbers that NumPy has no type for");
        }
        Type { dtype, size, is_big: is_big && size > 1, descr: None, is_plain: true, dimensions: Vec::new() }
    }

    fn opaque(dtype: Dtype, size: u64, what: &str) -> Self {
        let descr = Some(what.to_owned());
        Type { dtype, size, is_big: false, descr, is_plain: false, dimensions: Vec::new() }
    }
}

/// Reads the type that is described here.
pub(crate) fn read(file: &mut File<'_>, depth: usize) -> Result<Type> {
    if depth > DEPTH_MAX {
        return too_much("types nested too deep");
    }
    let head = file.u8()?;
    let (version, class) = (head >> 4, head & 15);
    let [low, middle, _] = file.cursor.array()?;
    let size = u64::from(file.u32()?);
    let is_big = low & 1 != 0;
    Ok(match class {
        0 => integer(file, size, is_big, low & 8 != 0)?,
        1 => float(file, size, low, middle)?,
        3 if size > 0 => {
            let descr = Some(format!("'|S{size}'"));
            Type { size, descr, ..Type::plain(Dtype::String, false) }
        }
        5 if size > 0 => {
            let tag = file.cursor.take(low.into())?;
            let descr = Some(time(tag).filter(|_| size == 8).unwrap_or_else(|| format!("'|V{size}'")));
            Type { size, descr, ..Type::plain(Dtype::Other, false) }
        }
        6 => compound(file, size, version, u64::from(low) | u64::from(middle) << 8, depth)?,
        8 => enumeration(file, version, u16::from(low) | u16::from(middle) << 8, depth)?,
        9 if low & 15 == 1 => Type::opaque(Dtype::String, size, "text of variable length"),
        10 => array(file, version, depth)?,
        11 => complex(read(file, depth + 1)?, size),
        2 => Type::opaque(Dtype::Other, size, "time"),
        4 => Type::opaque(Dtype::Other, size, "bits"),
        7 => Type::opaque(Dtype::Other, size, "reference"),
        9 => Type::opaque(Dtype::Other, size, "lists of variable length"),
        _ => return malformed(format!("a type of the unknown class {class}")),
    })
}

/// NumPy's description of a time, which h5py keeps in the tag of bytes that mean nothing to HDF5.
fn time(tag: &[u8]) -> Option<String> {
    let tag = std::str::from_utf8(tag).ok()?.trim_end_matches('\0').strip_prefix("NUMPY:")?;
    let unit = ["<M8[", "<m8[", ">M8[", ">m8["].iter().find_map(|start| tag.strip_prefix(start)?.strip_suffix(']'))?;
    let is_unit = !unit.is_empty() && unit.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_unit.then(|| format!("'{tag}'"))
}

fn integer(file: &mut File<'_>, size: u64, is_big: bool, is_signed: bool) -> Result<Type> {
    let (offset, precision) = (file.u16()?, file.u16()?);
    let dtype = match (size, is_signed) {
        (1, false) => Dtype::U8,
        (1, true) => Dtype::I8,
        (2, false) => Dtype::U16,
        (2, true) => Dtype::I16,
        (4, false) => Dtype::U32,
        (4, true) => Dtype::I32,
        (8, false) => Dtype::U64,
        (8, true) => Dtype::I64,
        _ => return Ok(Type::opaque(Dtype::Other, size, "integers of another size")),
    };
    if offset != 0 || u64::from(precision) != size * 8 {
        return Ok(Type::opaque(Dtype::Other, size, "integers of some bits"));
    }
    Ok(Type::plain(dtype, is_big))
}

fn float(file: &mut File<'_>, size: u64, low: u8, sign: u8) -> Result<Type> {
    let (offset, precision) = (file.u16()?, file.u16()?);
    let fields: [u8; 4] = file.cursor.array()?;
    let bias = file.u32()?;
    // Where the exponent is and how many bits it has; the same of the mantissa, which begins with a bit that is not
    // there.
    let dtype = match (size, fields, bias) {
        (1, [3, 4, 0, 3], 7) => Dtype::F8E4M3,
        (1, [2, 5, 0, 2], 15) => Dtype::F8E5M2,
        (2, [10, 5, 0, 10], 15) => Dtype::F16,
        (2, [7, 8, 0, 7], 127) => Dtype::Bf16,
        (4, [23, 8, 0, 23], 127) => Dtype::F32,
        (8, [52, 11, 0, 52], 1023) => Dtype::F64,
        _ => return Ok(Type::opaque(Dtype::Other, size, "floats of another size")),
    };
    // Neither in two halves of their own order (VAX), nor padded, nor with the sign elsewhere.
    let is_plain = low & 0x40 == 0 && offset == 0 && u64::from(precision) == size * 8;
    if !is_plain || u64::from(sign) != size * 8 - 1 || low >> 4 & 3 != 2 {
        return Ok(Type::opaque(Dtype::Other, size, "floats of another kind"));
    }
    Ok(Type::plain(dtype, low & 1 != 0))
}

/// Two floats.
fn complex(part: Type, size: u64) -> Type {
    let dtype = match part.dtype {
        Dtype::F16 => Dtype::C32,
        Dtype::F32 => Dtype::C64,
        Dtype::F64 => Dtype::C128,
        _ => return Type::opaque(Dtype::Other, size, "complex numbers of another kind"),
    };
    if !part.dimensions.is_empty() || dtype.size() != Some(size) {
        return Type::opaque(Dtype::Other, size, "complex numbers of another kind");
    }
    Type::plain(dtype, part.is_big)
}

/// Records: complex numbers, if they are of a real and an imaginary part, as h5py writes them.
fn compound(file: &mut File<'_>, size: u64, version: u8, members: u64, depth: usize) -> Result<Type> {
    let records = Type::opaque(Dtype::Structured, size, "records");
    if members != 2 {
        return Ok(records);
    }
    let mut parts = Vec::new();
    for (name, expected) in [(b"r", 0), (b"i", size / 2)] {
        let is_named = text(file, version)? == name;
        let width = (1..8).find(|width| size < 1 << (8 * width)).unwrap_or(8);
        let offset = if version < 3 { u64::from(file.u32()?) } else { file.number(width)? };
        if version == 1 {
            // Dimensions, which nobody writes any more.
            let rank = file.u8()?;
            file.skip(27)?;
            if rank != 0 {
                return Ok(records);
            }
        }
        let part = read(file, depth + 1)?;
        if !is_named || offset != expected {
            return Ok(records);
        }
        parts.push(part);
    }
    let second = parts.pop();
    Ok(match (parts.pop(), second) {
        (Some(first), Some(second)) if first == second => match complex(first, size) {
            complex if complex.is_plain => complex,
            _ => records,
        },
        _ => records,
    })
}

/// Numbers with names: truth values, if they are called FALSE and TRUE, as h5py writes them; else the numbers.
fn enumeration(file: &mut File<'_>, version: u8, members: u16, depth: usize) -> Result<Type> {
    let base = read(file, depth + 1)?;
    if base.dtype != Dtype::I8 || members != 2 {
        return Ok(base);
    }
    let names = [text(file, version)?, text(file, version)?];
    let values: [u8; 2] = file.cursor.array()?;
    let is_truth = names == [&b"FALSE"[..], b"TRUE"] && values == [0, 1];
    Ok(if is_truth { Type::plain(Dtype::Bool, false) } else { base })
}

fn array(file: &mut File<'_>, version: u8, depth: usize) -> Result<Type> {
    let rank = usize::from(file.u8()?);
    if rank > DIMENSIONS_MAX {
        return malformed(format!("an array of {rank} dimensions"));
    }
    file.skip(if version < 3 { 3 } else { 0 })?;
    let mut dimensions = Vec::new();
    for _ in 0..rank {
        dimensions.push(u64::from(file.u32()?));
    }
    file.skip(if version < 3 { 4 * rank as u64 } else { 0 })?;
    let base = read(file, depth + 1)?;
    dimensions.extend(&base.dimensions);
    Ok(Type { dimensions, ..base })
}

/// A name that ends with a zero, and in older versions is filled up to eight bytes. Of a longer one than matters, the
/// beginning.
fn text(file: &mut File<'_>, version: u8) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut count = 0_u64;
    loop {
        count += 1;
        if count > TEXT_MAX {
            return malformed("a name in a type that does not end");
        }
        match file.u8()? {
            0 => break,
            byte if text.len() <= NAME_MAX => text.push(byte),
            _ => {}
        }
    }
    file.skip(if version < 3 { count.next_multiple_of(8) - count } else { 0 })?;
    Ok(text)
}

//! NumPy's `.npy`: a magic, a version, and a Python dictionary that says what the bytes behind it are.

use std::io::Read;

use crate::cursor::Cursor;
use crate::dtype::Dtype;
use crate::fault::{Fault, Result, malformed, short, too_much};
use crate::format::Format;
use crate::found::Out;
use crate::limits::{DIMENSIONS_MAX, TENSORS_MAX, excerpt};
use crate::pickle;
use crate::pyliteral::{self, Literal};
use crate::source::Source;
use crate::tensor::{Location, Order, Tensor, elements, numbered};

pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read. NumPy itself refuses more than 10,000 bytes unless told otherwise.
const HEADER_MAX: usize = 1 << 20;
/// What a lone array is called.
const NAME: &[u8] = b"array";

/// What a header says.
#[derive(Debug)]
pub(crate) struct Header {
    /// Where the elements begin.
    pub len: u64,
    kind: Element,
    column_major: bool,
    shape: Vec<u64>,
}

/// A type of elements, as a header has it.
#[derive(Debug)]
pub(crate) struct Element {
    pub dtype: Dtype,
    pub size: u64,
    pub big_endian: bool,
    /// Where the type does not say it all.
    pub descr: Option<String>,
}

/// The arrays of the file, one behind the other: `np.save` to an open file appends.
///
/// They are given out up to the first bytes that are no whole array: `np.load` reads them up to there, too.
pub(crate) fn recognise(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    arrays(source, (0, 0), out)
}

/// Those from a place on, in front of which there are so many whole ones, at least one, and none of objects: what reads
/// pickles has a budget for the whole file.
pub(crate) fn resume(source: &dyn Source, from: u64, count: u64, out: &mut Out<'_, '_>) -> Result<()> {
    let Ok(first) = usize::try_from(count) else { return Err(Fault::Stopped) };
    out.found.format = Format::Npy;
    out.found.end = from;
    arrays(source, (from, first.max(1)), out)
}

fn arrays(source: &dyn Source, (from, first): (u64, usize), out: &mut Out<'_, '_>) -> Result<()> {
    let size = source.size()?;
    // One for all headers: where arrays are small, what is read for one has the next ones in it.
    let mut cursor = Cursor::new(source, from, size)?;
    let mut budget = pickle::BUDGET;
    for index in first.. {
        let at = cursor.at();
        let behind = size - at;
        if index > 0 && (behind == 0 || cursor.peek(MAGIC.len()).map_or(true, |start| start != MAGIC)) {
            if behind > 0 {
                let what = if index > 1 { "the last array" } else { "the array" };
                out.found.reason = Some(format!("{behind} bytes follow {what}"));
                // Another one that has just begun.
                let start = behind.min(MAGIC.len() as u64) as usize;
                out.found.cut = cursor.peek(start).is_ok_and(|start| MAGIC.starts_with(start));
            }
            break;
        }
        if index >= TENSORS_MAX {
            out.found.reason = Some(format!("more than {TENSORS_MAX} arrays"));
            break;
        }
        let (tensor, end, cut) = match array(&mut cursor, index, size, &mut budget) {
            Ok(found) => found,
            Err(fault) => {
                out.found.cut = matches!(fault, Fault::Short(_));
                match fault {
                    Fault::Malformed(why) | Fault::Short(why) | Fault::TooMuch(why) if index > 0 => {
                        out.found.reason = Some(format!("{behind} bytes follow the last whole array: {why}"));
                        break;
                    }
                    fault => return Err(fault),
                }
            }
        };
        out.found.format = Format::Npy;
        out.found.end = end;
        if cut {
            out.found.cut = true;
            out.found.reason = Some("the array's pickle is cut short".to_owned());
        }
        out.tensor(tensor)?;
        cursor.seek(end);
    }
    Ok(())
}

/// The array at the cursor, where it ends, and whether the file ends before it does. Pickles are read within a budget.
fn array(cursor: &mut Cursor<'_>, index: usize, size: u64, budget: &mut usize) -> Result<(Tensor, u64, bool)> {
    let at = cursor.at();
    let header = read_header(cursor)?;
    let data = at + header.len;
    let name = if index == 0 { NAME.to_vec() } else { numbered(NAME, index)? };
    let mut tensor = header.tensor(name, size - at, |offset, len| Location::Raw { offset: at + offset, len })?;
    let mut cut = false;
    let end = match &mut tensor.location {
        Location::Raw { offset, len } => *offset + *len,
        // Objects are a pickle, which is read here only for where it ends. One that is too large goes on to the end.
        Location::Encoded { offset, len } => {
            cursor.seek(data);
            match pickle::read(cursor) {
                Ok(pickle) if pickle.spend(budget).is_ok() => *len = cursor.at() - *offset,
                Err(Fault::Short(_)) => cut = true,
                Ok(_) | Err(Fault::Malformed(_) | Fault::TooMuch(_)) => {}
                Err(fault) => return Err(fault),
            }
            *offset + *len
        }
        _ => size,
    };
    Ok((tensor, end, cut))
}

/// Reads a header, which takes at most 1 MiB.
pub(crate) fn read_header(reader: &mut dyn Read) -> Result<Header> {
    let mut start = [0; 8];
    reader.read_exact(&mut start)?;
    if !start.starts_with(MAGIC) {
        return malformed("no .npy file");
    }
    let version = start[6];
    let (len, prefix) = match version {
        1 => {
            let mut len = [0; 2];
            reader.read_exact(&mut len)?;
            (u16::from_le_bytes(len) as usize, 10)
        }
        2 | 3 => {
            let mut len = [0; 4];
            reader.read_exact(&mut len)?;
            (u32::from_le_bytes(len) as usize, 12)
        }
        _ => return malformed(format!(".npy of unknown version {version}")),
    };
    if len > HEADER_MAX {
        return too_much(format!("a .npy header of {len} bytes"));
    }
    let mut text = vec![0; len];
    reader.read_exact(&mut text)?;
    let text = match version {
        3 => String::from_utf8(text).or_else(|_| malformed("a .npy header that is no UTF-8"))?,
        _ => text.into_iter().map(char::from).collect(),
    };
    parse(&text, prefix + len as u64)
}

fn parse(text: &str, len: u64) -> Result<Header> {
    let Literal::Dictionary(items) = pyliteral::parse(text)? else { return malformed("the header is no dictionary") };
    let (mut kind, mut column_major, mut shape) = (None, None, None);
    for (key, value, source) in items {
        let again = match (key.as_str(), value) {
            ("descr", value) => kind.replace(element(&value, source)?).is_some(),
            ("fortran_order", Literal::Bool(value)) => column_major.replace(value).is_some(),
            ("shape", Literal::Sequence(items)) => shape.replace(dimensions(&items)?).is_some(),
            _ => return malformed(format!("the header's {:?} is unknown or no such thing", excerpt(&key))),
        };
        if again {
            return malformed("the header says something twice");
        }
    }
    match (kind, column_major, shape) {
        (Some(kind), Some(column_major), Some(shape)) => Ok(Header { len, kind, column_major, shape }),
        _ => malformed("the header lacks descr, fortran_order or shape"),
    }
}

fn dimensions(items: &[Literal]) -> Result<Vec<u64>> {
    if items.len() > DIMENSIONS_MAX {
        return too_much(format!("more than {DIMENSIONS_MAX} dimensions"));
    }
    let dimension = |item: &Literal| match item {
        Literal::Integer(size) => Ok(*size),
        _ => malformed("a dimension that is no number"),
    };
    items.iter().map(dimension).collect()
}

impl Header {
    /// The tensor, whose header begins at 0 and whose elements end at `size` or before. `at` says where they are,
    /// given their offset from the header's start and their length.
    pub fn tensor(self, name: Vec<u8>, size: u64, at: impl FnOnce(u64, u64) -> Location) -> Result<Tensor> {
        let Header { len: start, kind, column_major, shape } = self;
        let Some(room) = size.checked_sub(start) else { return short("cut short") };
        let Some(count) = elements(&shape) else { return malformed("more elements than can be") };
        let location = if kind.dtype == Dtype::Object {
            if count.checked_mul(kind.size).is_none_or(|len| len > i64::MAX as u64) {
                return malformed("more elements than can be");
            }
            match at(start, room) {
                Location::Raw { offset, len } => Location::Encoded { offset, len },
                Location::Deflated { offset, len, .. } => Location::Encoded { offset, len },
                other => other,
            }
        } else {
            match count.checked_mul(kind.size) {
                Some(len) if len <= room => at(start, len),
                Some(len) if len <= i64::MAX as u64 => return short("the array is larger than the file"),
                _ => return malformed("the array is larger than the file"),
            }
        };
        let mut tensor = Tensor::new(name, kind.dtype, shape, location);
        tensor.item_size = kind.size;
        tensor.big_endian = kind.big_endian;
        tensor.descr = kind.descr;
        // Where both orders are the same, NumPy says C.
        let is_line = tensor.shape.iter().filter(|&&size| size != 1).count() <= 1;
        tensor.order = if column_major && !is_line { Order::ColumnMajor } else { Order::RowMajor };
        Ok(tensor)
    }
}

fn element(descr: &Literal, source: String) -> Result<Element> {
    match descr {
        Literal::Text(code) => simple(code, source),
        Literal::Sequence(fields) => {
            let (size, objects) = structured(fields)?;
            let dtype = if objects { Dtype::Object } else { Dtype::Structured };
            Ok(Element { dtype, size, big_endian: false, descr: Some(source) })
        }
        _ => malformed("a descr that is no type"),
    }
}

/// A type with a code, like `<f4`. The sizes are those of NumPy on every 64-bit machine.
pub(crate) fn simple(code: &str, source: String) -> Result<Element> {
    let unknown = || malformed(format!("the type {:?} is unknown", excerpt(code)));
    let (order, rest) = match code.chars().next() {
        Some(order @ ('<' | '>' | '|' | '=')) => (order, &code[1..]),
        _ => ('=', code),
    };
    let Some(letter) = rest.chars().next().filter(char::is_ascii) else { return unknown() };
    let (number, unit) = match rest[1..].split_once('[') {
        Some((number, unit)) if matches!(letter, 'M' | 'm') && unit.ends_with(']') => (number, true),
        Some(_) => return unknown(),
        None => (&rest[1..], matches!(letter, 'M' | 'm')),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let Some(size) =
        number.parse::<u64>().ok().filter(|_| is_number).or((number.is_empty() && letter == 'O').then_some(8))
    else {
        return unknown();
    };
    let (dtype, size) = match letter {
        'S' | 'a' => (Dtype::String, size),
        'U' => match size.checked_mul(4) {
            Some(size) => (Dtype::String, size),
            None => return unknown(),
        },
        'V' => (Dtype::Other, size),
        'O' => (Dtype::Object, 8),
        'M' | 'm' if size == 8 && unit => (Dtype::Other, 8),
        // What C calls long double: 80 bits in 12 or 16 bytes, and two of them.
        'f' if matches!(size, 12 | 16) => (Dtype::Other, size),
        'c' if matches!(size, 24 | 32) => (Dtype::Other, size),
        _ => match Dtype::of_numpy(rest) {
            Some(dtype) => (dtype, size),
            None => return unknown(),
        },
    };
    let plain = dtype.size().is_some();
    Ok(Element { dtype, size, big_endian: order == '>' && size > 1 && plain, descr: (!plain).then_some(source) })
}

/// Bytes of a structured type, and whether objects are among its fields. The literal's depth is bounded.
fn structured(fields: &[Literal]) -> Result<(u64, bool)> {
    let (mut total, mut objects) = (0_u64, false);
    for field in fields {
        let (kind, repeat) = match field {
            Literal::Sequence(parts) => match parts.as_slice() {
                [_, kind] => (kind, 1),
                [_, kind, Literal::Integer(count)] => (kind, *count),
                [_, kind, Literal::Sequence(shape)] => match elements(&dimensions(shape)?) {
                    Some(count) => (kind, count),
                    None => return malformed("a field with too many elements"),
                },
                _ => return malformed("a field that is no field"),
            },
            _ => return malformed("a field that is no field"),
        };
        let (size, object) = match kind {
            Literal::Text(code) => {
                let element = simple(code, String::new())?;
                (element.size, element.dtype == Dtype::Object)
            }
            Literal::Sequence(fields) => structured(fields)?,
            _ => return malformed("a field without a type"),
        };
        let end = size.checked_mul(repeat).and_then(|size| size.checked_add(total)).filter(|&n| n <= i64::MAX as u64);
        total = end.map_or_else(|| malformed("a type that is too large"), Ok)?;
        objects |= object;
    }
    Ok((total, objects))
}

/// A `.npy` header for such an array, a multiple of 64 bytes long as NumPy wants it. `descr` is a Python literal.
pub(crate) fn write_header(descr: &str, column_major: bool, shape: &[u64]) -> Vec<u8> {
    use std::fmt::Write;
    let mut text = format!("{{'descr': {descr}, 'fortran_order': ");
    text += if column_major { "True" } else { "False" };
    text += ", 'shape': (";
    for (index, size) in shape.iter().enumerate() {
        let _ = write!(
            text,
            "{}{size}{}",
            if index > 0 { " " } else { "" },
            if index + 1 < shape.len() { "," } else { "" }
        );
    }
    text += if shape.len() == 1 { ",), }" } else { "), }" };
    // Version 1 has two bytes for the length, version 2 four, version 3 is 2 in UTF-8.
    let padded = |prefix: usize| (prefix + text.len() + 1).next_multiple_of(64) - prefix;
    let (version, prefix) = match text.is_ascii() {
        true if padded(10) <= usize::from(u16::MAX) => (1, 10),
        true => (2, 12),
        false => (3, 12),
    };
    let len = padded(prefix);
    let mut header = MAGIC.to_vec();
    header.extend([version, 0]);
    if prefix == 10 {
        header.extend((len as u16).to_le_bytes());
    } else {
        header.extend((len as u32).to_le_bytes());
    }
    header.extend(text.bytes());
    header.resize(prefix + len - 1, b' ');
    header.push(b'\n');
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(descr: &str) -> Option<(Dtype, u64, bool)> {
        let header = parse(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ()}}"), 0).ok()?;
        Some((header.kind.dtype, header.kind.size, header.kind.big_endian))
    }

    #[test]
    fn knows_types() {
        assert_eq!(kind("'<f4'"), Some((Dtype::F32, 4, false)));
        assert_eq!(kind("'>i8'"), Some((Dtype::I64, 8, true)));
        assert_eq!(kind("'|b1'"), Some((Dtype::Bool, 1, false)));
        assert_eq!(kind("'>u1'"), Some((Dtype::U8, 1, false)));
        assert_eq!(kind("'<c16'"), Some((Dtype::C128, 16, false)));
        assert_eq!(kind("'<f16'"), Some((Dtype::Other, 16, false)));
        assert_eq!(kind("'<U5'"), Some((Dtype::String, 20, false)));
        assert_eq!(kind("'|S0'"), Some((Dtype::String, 0, false)));
        assert_eq!(kind("'|O'"), Some((Dtype::Object, 8, false)));
        assert_eq!(kind("'<M8[ns]'"), Some((Dtype::Other, 8, false)));
        assert_eq!(
            kind("[('a', '<i4'), ('b', '<f4', (2, 3)), (('t', 'n'), [('x', '|u1')])]"),
            Some((Dtype::Structured, 29, false))
        );
        assert_eq!(kind("[('a', '|O')]"), Some((Dtype::Object, 8, false)));
        for bad in [
            "''",
            "'<'",
            "'<f3'",
            "'<f-4'",
            "'<f+4'",
            "'<é4'",
            "'<U9999999999999999999'",
            "4",
            "[('a',)]",
            "['a']",
            "'<i4[ns]'",
            "[('a', '<i8', 9223372036854775807)]",
            "[('a', '<f4', (9223372036854775807, 9))]",
        ] {
            assert_eq!(kind(bad), None, "{bad}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for (descr, column_major, shape) in [
            ("'<f4'", false, vec![]),
            ("'>f8'", true, vec![2, 3]),
            ("[('é', '<i4')]", false, vec![7]),
            ("'|V2'", false, vec![0, 1, 2]),
        ] {
            let bytes = write_header(descr, column_major, &shape);
            assert_eq!(bytes.len() % 64, 0);
            let header = read_header(&mut &bytes[..]).unwrap();
            assert_eq!((header.len, header.column_major, &header.shape), (bytes.len() as u64, column_major, &shape));
        }
        let long = format!("[{}]", "('a', '<i4'), ".repeat(10_000));
        let bytes = write_header(&long, false, &[1]);
        assert_eq!((bytes[6], bytes.len() % 64), (2, 0));
        assert_eq!(read_header(&mut &bytes[..]).unwrap().kind.size, 40_000);
    }
}

//! TensorFlow's Event message: a step, and a summary of named values. TensorBoard's writers and smdebug make them.

use crate::cursor::{Cursor, WINDOW};
use crate::dtype::Dtype;
use crate::fault::{Result, malformed, too_much};
use crate::found::Out;
use crate::limits::{DIMENSIONS_MAX, NAME_MAX};
use crate::protobuf::{Field, Fields, Range, varint};
use crate::tensor::{Kind, Location, Mode, Tensor, elements};

/// The longest value that is held in memory, in bytes, rather than left where it is.
const INLINE_MAX: u64 = 64 << 10;
/// A message that comes in more parts than this is none.
const PARTS_MAX: usize = 16;
/// A plugin's name or content, where it matters.
const PLUGIN_MAX: u64 = 64;

const MODE_PLUGIN: &[u8] = b"mode";
const MODE_STEP_PLUGIN: &[u8] = b"mode_step";

/// An event with a summary.
pub(crate) struct Event {
    step: i64,
    /// Protocol buffers may hold a message in parts.
    summaries: Vec<Range>,
}

/// The event at `range`, if it is one and has a summary.
pub(crate) fn open(cursor: &mut Cursor<'_>, range: Range) -> Result<Option<Event>> {
    let mut event = Event { step: 0, summaries: Vec::new() };
    let mut fields = Fields::new(cursor, range);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Fixed64(_)) => {}
            (2, Field::Varint(step)) => event.step = step as i64,
            (5, Field::Bytes(range)) if event.summaries.len() < PARTS_MAX => event.summaries.push(range),
            (1 | 2 | 5, _) => return Ok(None),
            _ => {}
        }
    }
    Ok((!event.summaries.is_empty()).then_some(event))
}

/// Gives out the tensors of an event.
pub(crate) fn tensors(cursor: &mut Cursor<'_>, event: &Event, out: &mut Out<'_, '_>) -> Result<()> {
    for &summary in &event.summaries {
        let mut at = summary;
        loop {
            let mut fields = Fields::new(cursor, at);
            let Some(field) = fields.next()? else { break };
            at.start = cursor.at();
            if let (1, Field::Bytes(range)) = field
                && let Some(tensor) = value(cursor, range, event.step)?
            {
                out.tensor(tensor)?;
            }
        }
    }
    Ok(())
}

/// One value of a summary. Images, audio and other things that are no tensors are none.
fn value(cursor: &mut Cursor<'_>, range: Range, step: i64) -> Result<Option<Tensor>> {
    let (mut tag, mut metadata, mut found) = (None, None, None);
    let mut fields = Fields::new(cursor, range);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(range)) => tag = Some(range),
            (9, Field::Bytes(range)) => metadata = Some(range),
            (2 | 5 | 8, _) => found = Some(field),
            // The other members of the same choice: the last one counts.
            (3 | 4 | 6, _) => found = None,
            _ => {}
        }
    }
    let (Some(tag), Some(found)) = (tag, found) else { return Ok(None) };
    if tag.len() > NAME_MAX as u64 {
        return too_much(format!("a name longer than {NAME_MAX} bytes"));
    }
    let name = fields.bytes(tag)?.to_vec();
    let tensor = match found {
        (2, Field::Fixed32(bits)) => {
            let mut tensor = Tensor::new(name, Dtype::F32, Vec::new(), inline(bits.to_le_bytes().to_vec()));
            tensor.kind = Kind::Scalar;
            Some(tensor)
        }
        (5, Field::Bytes(range)) => Some(histogram(cursor, range, name)?),
        (8, Field::Bytes(range)) => array(cursor, range, name)?,
        _ => return malformed("a value that is none"),
    };
    let Some(mut tensor) = tensor else { return Ok(None) };
    if let Location::Inline { offset, len, .. } = &mut tensor.location {
        (*offset, *len) = (range.start, range.len());
    }
    tensor.step = Some(step);
    if let Some(range) = metadata {
        plugins(cursor, range, &mut tensor)?;
    }
    Ok(Some(tensor))
}

/// Elements of a value that were decoded from it.
fn inline(bytes: Vec<u8>) -> Location {
    Location::Inline { offset: 0, len: 0, bytes }
}

/// smdebug's mode and its step, which it keeps where TensorBoard keeps what plugins know of a value.
fn plugins(cursor: &mut Cursor<'_>, range: Range, tensor: &mut Tensor) -> Result<()> {
    let mut fields = Fields::new(cursor, range);
    while let Some(field) = fields.next()? {
        let (1, Field::Bytes(plugin)) = field else { continue };
        let (mut name, mut content) = (None, None);
        let mut inner = Fields::new(fields.cursor(), plugin);
        while let Some(field) = inner.next()? {
            match field {
                (1, Field::Bytes(range)) => name = Some(range),
                (2, Field::Bytes(range)) => content = Some(range),
                _ => {}
            }
        }
        let (Some(name), Some(content)) = (name, content) else { continue };
        if name.len() > PLUGIN_MAX || content.len() > PLUGIN_MAX {
            continue;
        }
        let is_mode = match inner.bytes(name)? {
            MODE_PLUGIN => true,
            MODE_STEP_PLUGIN => false,
            _ => continue,
        };
        let text = inner.bytes(content)?;
        let Some(number) = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()) else { continue };
        if !is_mode {
            tensor.mode_step = Some(number);
        } else if let Some(mode) = usize::try_from(number - 1).ok().and_then(|index| Mode::ALL.get(index)) {
            tensor.mode = Some(*mode);
        }
    }
    Ok(())
}

/// A HistogramProto, as rows of upper limit and count.
fn histogram(cursor: &mut Cursor<'_>, range: Range, name: Vec<u8>) -> Result<Tensor> {
    let (mut limits, mut counts) = (Doubles::default(), Doubles::default());
    let mut fields = Fields::new(cursor, range);
    while let Some((number, field)) = fields.next()? {
        match number {
            6 => limits.add(&mut fields, field)?,
            7 => counts.add(&mut fields, field)?,
            _ => {}
        }
    }
    if limits.count != counts.count {
        return malformed("a histogram whose limits and counts differ in number");
    }
    let location = if limits.bytes.len() as u64 == limits.count * 8 && counts.bytes.len() as u64 == counts.count * 8 {
        let rows = limits.bytes.chunks_exact(8).zip(counts.bytes.chunks_exact(8));
        inline(rows.flat_map(|(limit, count)| limit.iter().chain(count)).copied().collect())
    } else {
        Location::Encoded { offset: range.start, len: range.len() }
    };
    let mut tensor = Tensor::new(name, Dtype::F64, vec![limits.count, 2], location);
    tensor.kind = Kind::Histogram;
    Ok(tensor)
}

/// A list of doubles: counted, and held as far as they fit.
#[derive(Default)]
struct Doubles {
    count: u64,
    bytes: Vec<u8>,
}

impl Doubles {
    fn add(&mut self, fields: &mut Fields<'_, '_>, field: Field) -> Result<()> {
        match field {
            Field::Fixed64(bits) => {
                self.count += 1;
                if self.bytes.len() as u64 + 8 <= INLINE_MAX {
                    self.bytes.extend(bits.to_le_bytes());
                }
            }
            Field::Bytes(range) if range.len().is_multiple_of(8) => {
                self.count += range.len() / 8;
                if self.bytes.len() as u64 + range.len() <= INLINE_MAX {
                    self.bytes.extend_from_slice(fields.bytes(range)?);
                }
            }
            _ => return malformed("a histogram of other things than doubles"),
        }
        Ok(())
    }
}

/// A TensorProto.
pub(crate) fn array(cursor: &mut Cursor<'_>, range: Range, name: Vec<u8>) -> Result<Option<Tensor>> {
    let (mut number, mut content, mut values) = (0, None, Values::default());
    let mut shapes = Vec::new();
    let mut fields = Fields::new(cursor, range);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Varint(value)) => number = value,
            (2, Field::Bytes(range)) if shapes.len() < PARTS_MAX => shapes.push(range),
            (4, Field::Bytes(range)) => content = Some(range),
            (1 | 2 | 4, _) => return malformed("a tensor that is none"),
            (which @ (5..=13 | 16..=18), field) => values.add(which, field)?,
            _ => {}
        }
    }
    let shape = shape(cursor, &shapes)?;
    let Some(count) = elements(&shape) else { return malformed("more elements than can be") };
    // smdebug says no type when it writes strings.
    let dtype = match number {
        0 if values.strings > 0 || count == 0 => Some(Dtype::String),
        number => Dtype::of_tensorflow(number),
    };
    let Some(dtype) = dtype else { return Ok(None) };
    let encoded = Location::Encoded { offset: range.start, len: range.len() };
    let Some(size) = dtype.size() else {
        return Ok(Some(strings(name, shape, count, &values, encoded)));
    };
    let Some(len) = count.checked_mul(size) else { return malformed("more elements than can be") };
    let location = match content {
        Some(range) if range.len() == len => Location::Raw { offset: range.start, len },
        Some(range) if range.len() > 0 => return malformed("a tensor whose shape does not take its bytes"),
        _ => values.location(cursor, dtype, size, count, encoded)?,
    };
    Ok(Some(Tensor::new(name, dtype, shape, location)))
}

/// One string is plain bytes; several are a list of strings, each with its length.
fn strings(name: Vec<u8>, shape: Vec<u64>, count: u64, values: &Values, encoded: Location) -> Tensor {
    let (location, size) = match values.last {
        Some(range) if count == 1 && values.strings == 1 && range.len() > 0 => {
            (Location::Raw { offset: range.start, len: range.len() }, range.len())
        }
        _ => (encoded, 0),
    };
    let mut tensor = Tensor::new(name, Dtype::String, shape, location);
    tensor.item_size = size;
    tensor
}

fn shape(cursor: &mut Cursor<'_>, parts: &[Range]) -> Result<Vec<u64>> {
    let mut shape = Vec::new();
    for &part in parts {
        let mut fields = Fields::new(cursor, part);
        while let Some(field) = fields.next()? {
            match field {
                (2, Field::Bytes(dimension)) => {
                    let mut size = 0;
                    let mut inner = Fields::new(fields.cursor(), dimension);
                    while let Some(field) = inner.next()? {
                        if let (1, Field::Varint(value)) = field {
                            size = value;
                        }
                    }
                    if size > i64::MAX as u64 {
                        return malformed("a shape that cannot be");
                    }
                    if shape.len() == DIMENSIONS_MAX {
                        return too_much(format!("more than {DIMENSIONS_MAX} dimensions"));
                    }
                    shape.push(size);
                }
                (3, Field::Varint(1)) => return malformed("a tensor of unknown rank"),
                _ => {}
            }
        }
    }
    Ok(shape)
}

/// Elements that are listed as numbers, in the field for their type, rather than as bytes.
#[derive(Default)]
struct Values {
    /// Which field, and all of its parts, as far as they are few.
    which: u64,
    parts: Vec<Field>,
    too_many: bool,
    strings: u64,
    last: Option<Range>,
}

impl Values {
    fn add(&mut self, which: u64, field: Field) -> Result<()> {
        if let (8, Field::Bytes(range)) = (which, field) {
            self.strings += 1;
            self.last = Some(range);
            return Ok(());
        }
        if self.which != 0 && self.which != which {
            return malformed("a tensor with elements of two types");
        }
        self.which = which;
        if (self.parts.len() as u64) < INLINE_MAX / 16 {
            self.parts.push(field);
        } else {
            self.too_many = true;
        }
        Ok(())
    }

    /// Where the elements are: a tensor has them all, or the last one stands for the rest.
    fn location(
        &self,
        cursor: &mut Cursor<'_>,
        dtype: Dtype,
        size: u64,
        count: u64,
        encoded: Location,
    ) -> Result<Location> {
        // What is packed with a fixed size lies as in memory.
        let fixed =
            matches!((self.which, dtype), (5 | 9, Dtype::F32 | Dtype::C64) | (6 | 12, Dtype::F64 | Dtype::C128));
        if let (true, [Field::Bytes(range)]) = (fixed, self.parts.as_slice())
            && range.len() == count * size
        {
            return Ok(Location::Raw { offset: range.start, len: range.len() });
        }
        if self.too_many || count * size > INLINE_MAX {
            return Ok(encoded);
        }
        // Complex numbers are two numbers each.
        let (number_size, per) = match dtype {
            Dtype::C64 => (4, 2),
            Dtype::C128 => (8, 2),
            _ => (size as usize, 1),
        };
        let wanted = (count * size) as usize;
        let mut bytes = Vec::with_capacity(wanted);
        let mut put = |number: u64| {
            if bytes.len() < wanted {
                bytes.extend_from_slice(&number.to_le_bytes()[..number_size]);
            }
        };
        let floats = matches!(self.which, 5 | 6 | 9 | 12);
        for &part in &self.parts {
            match part {
                Field::Fixed32(bits) if floats => put(bits.into()),
                Field::Fixed64(bits) if floats => put(bits),
                Field::Varint(number) if !floats => put(number),
                Field::Bytes(range) if range.len() <= WINDOW as u64 => {
                    cursor.seek(range.start);
                    while cursor.at() < range.end {
                        match self.which {
                            5 | 9 => put(cursor.u32()?.into()),
                            6 | 12 => put(cursor.u64()?),
                            18 => put(cursor.u8()?.into()),
                            _ => put(varint(cursor)?),
                        }
                    }
                }
                Field::Bytes(_) => return Ok(encoded),
                _ => return malformed("an element of another type than its tensor"),
            }
        }
        // Nothing given means zeroes.
        let one = number_size * per;
        let last = bytes.len().checked_sub(one).map_or(vec![0; one], |at| bytes[at..].to_vec());
        while bytes.len() < wanted {
            let missing = (wanted - bytes.len()).min(one);
            bytes.extend_from_slice(&last[..missing]);
        }
        Ok(inline(bytes))
    }
}

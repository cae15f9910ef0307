//! Protocol buffers that stand in a file as they are, without frames around them: a TensorProto, or Events one behind
//! the other.
//!
//! They have no mark by which to know them. So a file is one only if all of it is: each byte belongs to fields that
//! follow each other in order, and each tensor has just the bytes that its shape takes.

use std::ops::ControlFlow;

use crate::cursor::Cursor;
use crate::event;
use crate::fault::{Result, malformed};
use crate::format::Format;
use crate::found::{Out, Recognised};
use crate::protobuf::{Field, Fields, Range};
use crate::source::Source;
use crate::tensor::Location;

/// What the fields begin with: the type of a TensorProto, the time of an Event.
const DTYPE: u8 = 1 << 3;
const WALL_TIME: u8 = 1 << 3 | 1;
/// Bytes of a time with its key.
const TIME: usize = 9;

/// Whether a file may be one of these.
pub(crate) fn starts(head: &[u8]) -> bool {
    match head {
        // A type, and a shape behind it.
        [DTYPE, 1..=26, 0x12, ..] => true,
        // A time, and a step or a summary behind it.
        [WALL_TIME, rest @ ..] => matches!(rest.get(TIME - 1), Some(0x10 | 0x2a)),
        _ => false,
    }
}

pub(crate) fn recognise(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let size = source.size()?;
    let mut cursor = Cursor::new(source, 0, size)?;
    let all = Range { start: 0, end: size };
    if cursor.peek(1)? == [DTYPE] {
        tensor(&mut cursor, all, out)?;
    } else {
        // Nothing is given out before it is sure that all of it is right.
        let mut count = |_| ControlFlow::Continue(());
        let mut unseen = Out { found: Recognised::new(Format::Opaque), sink: &mut count };
        events(&mut cursor, all, &mut unseen, true)?;
        out.found.format = Format::Protobuf;
        events(&mut cursor, all, out, false)?;
    }
    out.found.end = size;
    Ok(())
}

fn none<T>() -> Result<T> {
    malformed("no format that is recognised")
}

fn tensor(cursor: &mut Cursor<'_>, all: Range, out: &mut Out<'_, '_>) -> Result<()> {
    let mut last = 0;
    let mut fields = Fields::new(cursor, all);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1 | 3, Field::Varint(_)) | (4, Field::Bytes(_)) if number > last => last = number,
            (2, Field::Bytes(shape)) if number > last && is_shape(fields.cursor(), shape)? => last = number,
            _ => return none(),
        }
    }
    match event::array(cursor, all, b"tensor".to_vec())? {
        Some(tensor) if last == 4 && matches!(tensor.location, Location::Raw { len: 1.., .. }) => {
            out.found.format = Format::Protobuf;
            out.tensor(tensor)
        }
        _ => none(),
    }
}

/// True if there are dimensions and nothing else, each with its size, and perhaps a name.
fn is_shape(cursor: &mut Cursor<'_>, shape: Range) -> Result<bool> {
    let mut dimensions = Fields::new(cursor, shape);
    let mut count = 0;
    while let Some(field) = dimensions.next()? {
        let (2, Field::Bytes(dimension)) = field else { return Ok(false) };
        count += 1;
        let mut fields = Fields::new(dimensions.cursor(), dimension);
        while let Some(field) = fields.next()? {
            if !matches!(field, (1, Field::Varint(_)) | (2, Field::Bytes(_))) {
                return Ok(false);
            }
        }
    }
    Ok(count > 0)
}

/// Gives out the tensors of each event.
fn events(cursor: &mut Cursor<'_>, all: Range, out: &mut Out<'_, '_>, is_first: bool) -> Result<()> {
    let mut start = all.start;
    while start < all.end {
        let end = event_end(cursor, Range { start, end: all.end })?;
        let range = Range { start, end };
        let Some(event) = event::open(cursor, range)? else { return none() };
        let before = out.found.tensors;
        event::tensors(cursor, &event, out)?;
        if is_first && out.found.tensors - before != values(cursor, range)? {
            return none();
        }
        start = end;
    }
    Ok(())
}

/// Where the event that begins here ends: behind its time, its step if it has one, and its summary.
fn event_end(cursor: &mut Cursor<'_>, range: Range) -> Result<u64> {
    let mut last = 0;
    let mut fields = Fields::new(cursor, range);
    while let Some((number, field)) = fields.next()? {
        match (last, number, field) {
            (0, 1, Field::Fixed64(time)) if f64::from_bits(time) > 0.0 && f64::from_bits(time).is_finite() => last = 1,
            (1, 2, Field::Varint(_)) => last = 2,
            (1 | 2, 5, Field::Bytes(summary)) if summary.len() > 0 => return Ok(summary.end),
            _ => return none(),
        }
    }
    none()
}

/// How many values the summary of an event has, if it has nothing else.
fn values(cursor: &mut Cursor<'_>, range: Range) -> Result<u64> {
    let mut count = 0;
    let mut fields = Fields::new(cursor, range);
    while let Some(field) = fields.next()? {
        let (5, Field::Bytes(summary)) = field else { continue };
        let mut inner = Fields::new(fields.cursor(), summary);
        while let Some(field) = inner.next()? {
            match field {
                (1, Field::Bytes(_)) => count += 1,
                _ => return none(),
            }
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recognise::recognise;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat()
    }

    /// Two by two floats.
    fn proto() -> Vec<u8> {
        let shape = [field(2, &[8, 2]), field(2, &[8, 2])].concat();
        [&[8, 1][..], &field(2, &shape), &field(4, &[7; 16])].concat()
    }

    fn event(step: u8) -> Vec<u8> {
        let value = [field(1, b"loss"), field(8, &proto())].concat();
        [&[9][..], &1.5e9_f64.to_le_bytes(), &[16, step], &field(5, &field(1, &value))].concat()
    }

    fn found(bytes: &[u8]) -> (Format, u64, Vec<(String, Option<i64>)>) {
        let mut all = Vec::new();
        let found = recognise(&bytes, &mut |tensor| {
            all.push((tensor.name_text().into_owned(), tensor.step));
            ControlFlow::Continue(())
        });
        assert!(!found.cut);
        (found.format, found.end, all)
    }

    #[test]
    fn what_is_all_of_it_is_recognised() {
        let one = proto();
        assert_eq!(found(&one), (Format::Protobuf, one.len() as u64, vec![("tensor".into(), None)]));
        let two = [event(3), event(4)].concat();
        let all = vec![("loss".into(), Some(3)), ("loss".into(), Some(4))];
        assert_eq!(found(&two), (Format::Protobuf, two.len() as u64, all));
    }

    #[test]
    fn what_is_not_is_opaque() {
        let opaque = |bytes: &[u8]| assert_eq!(found(bytes).0, Format::Opaque, "{bytes:?}");
        for whole in [proto(), event(3)] {
            (0..whole.len()).for_each(|len| opaque(&whole[..len]));
            for more in [&[0][..], b"\n", &[8, 1], &field(4, &[7; 16]), &field(99, b""), &[0x18, 1]] {
                opaque(&[&whole[..], more].concat());
            }
        }
        // Of a type that there is not; of another length; in another order; without a shape, or content.
        opaque(&[&[8, 27][..], &proto()[2..]].concat());
        opaque(&[&[8, 2][..], &proto()[2..]].concat());
        opaque(&[&proto()[2..], &[8, 1]].concat());
        opaque(&[&[8, 1][..], &field(4, &[7; 4])].concat());
        opaque(&[&[8, 1][..], &field(2, &field(2, &[8, 0]))].concat());
        // An event of another thing, and one from before there was time.
        let text = [&[9][..], &1.5e9_f64.to_le_bytes(), &field(5, &field(1, &field(1, b"loss")))].concat();
        opaque(&text);
        opaque(&[&[9][..], &[0; 8], &event(3)[9..]].concat());
        opaque(&[event(3), text].concat());
        opaque(&[&b"\t"[..], b"indent, * and then some text"].concat());
    }
}

//! Arrow's streams, as `datasets` keeps them in files: a schema, then batches, and no footer. Behind the end of one
//! there may be another.
//!
//! <https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format>

use super::schema::{self, Schema};
use super::{FOOTER_MAX, RECORD_BATCH, columns};
use crate::fault::{Fault, Result, malformed, short, too_much};
use crate::flatbuffer::Table;
use crate::format::Format;
use crate::found::Out;
use crate::limits::TENSORS_MAX;
use crate::source::{Source, read_exact, read_up_to};

/// What a message begins with since version 0.15; its length is behind it. Before that it was the length alone.
const MARK: [u8; 4] = [0xff; 4];
const PREFIX: u64 = 8;
const OLD_PREFIX: u64 = 4;
/// The most of what a message says of itself.
const MESSAGE_MAX: u32 = FOOTER_MAX as u32;
/// Messages by their numbers.
const SCHEMA: u8 = 1;
const DICTIONARY: u8 = 2;

/// True if a message may begin so: its mark, a length in steps of eight bytes, and a table that is within it.
pub(crate) fn starts(head: &[u8]) -> bool {
    let number = |at: usize| head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let len = number(4).filter(|len| head.starts_with(&MARK) && len % 8 == 0 && *len <= MESSAGE_MAX);
    len.zip(number(8)).is_some_and(|(len, root)| root % 4 == 0 && (4..len).contains(&root))
}

/// True if a message of before version 0.15 may begin so. Its table, too, begins at a multiple of eight bytes.
pub(crate) fn starts_old(head: &[u8]) -> bool {
    let number = |at: usize| head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let len = number(0).filter(|len| len % 8 == 4 && *len <= MESSAGE_MAX);
    len.zip(number(4)).is_some_and(|(len, root)| root % 4 == 0 && (4..len).contains(&root))
}

/// What is at a place of a stream.
enum Next {
    /// A message of which so many bytes are its prefix, and that says so many of itself.
    Message(u64, u32),
    /// The end of the stream, in so many bytes.
    End(u64),
    /// The end of the file within either.
    Cut,
    Other,
}

/// `is_old`: messages need no mark.
fn next(source: &dyn Source, at: u64, is_old: bool) -> Result<Next> {
    let mut prefix = [0; PREFIX as usize];
    let len = read_up_to(source, at, &mut prefix)?;
    let (mark, number) = prefix.split_at(MARK.len());
    let old = mark.try_into().map(u32::from_le_bytes).unwrap_or_default();
    Ok(match u32::from_le_bytes(number.try_into().unwrap_or_default()) {
        // As it was before the mark.
        _ if len >= mark.len() && mark == [0; 4] => Next::End(mark.len() as u64),
        _ if len < prefix.len() && MARK.starts_with(&mark[..len.min(mark.len())]) => Next::Cut,
        _ if is_old && len < mark.len() => Next::Cut,
        _ if is_old && mark != MARK && old % 8 == 4 && i32::try_from(old).is_ok() => Next::Message(OLD_PREFIX, old),
        _ if mark != MARK => Next::Other,
        0 => Next::End(PREFIX),
        len if i32::try_from(len).is_ok() => Next::Message(PREFIX, len),
        _ => Next::Other,
    })
}

pub(crate) fn recognise(source: &dyn Source, out: &mut Out<'_, '_>) -> Result<()> {
    let size = source.size()?;
    let (mut at, mut schema, mut messages) = (0, None::<Schema>, 0);
    // Of this stream.
    let mut is_old = false;
    while at < size {
        // Those without columns give nothing, so that nobody else counts them.
        messages += 1;
        if messages > TENSORS_MAX {
            return too_much(format!("an Arrow stream of more than {TENSORS_MAX} messages"));
        }
        if schema.is_none() {
            let mut head = [0; PREFIX as usize];
            let len = read_up_to(source, at, &mut head)?;
            is_old = starts_old(&head[..len]);
        }
        let (prefix, len) = match (next(source, at, is_old)?, &schema) {
            (Next::Message(prefix, len), _) => (prefix, len),
            (Next::End(more), Some(_)) => {
                (at, schema) = (at + more, None);
                out.found.end = at;
                continue;
            }
            (Next::Cut, Some(_)) => return cut(out),
            (Next::Other, Some(_)) => return wrong(out, "an Arrow stream with something else between its batches"),
            _ => return behind(at, size, out),
        };
        let end = (at + prefix).saturating_add(len.into());
        if end > size {
            return if schema.is_some() { cut(out) } else { behind(at, size, out) };
        }
        if len > MESSAGE_MAX {
            return too_much(format!("an Arrow stream with a message that says {len} bytes of itself"));
        }
        let mut bytes = vec![0; len as usize];
        read_exact(source, at + prefix, &mut bytes)?;
        at = match &schema {
            Some(schema) => match message(&bytes, schema, end, size, out) {
                Err(Fault::Malformed(why)) => return wrong(out, why),
                end => end?,
            },
            None => match first(&bytes) {
                Ok(found) => {
                    schema = Some(found);
                    out.found.format = Format::Arrow;
                    end
                }
                Err(Fault::TooMuch(what)) => return too_much(what),
                Err(_) => return behind(at, size, out),
            },
        };
        out.found.end = at;
    }
    Ok(())
}

/// The schema that a stream begins with, of which nothing is behind it.
fn first(bytes: &[u8]) -> Result<Schema> {
    let message = Table::root(bytes)?;
    match (message.u8(1)?, message.table(2)?, message.i64(3)?) {
        (SCHEMA, Some(table), 0) => schema::read(table, message.i16(0, 0)?),
        _ => malformed("a message that is no schema"),
    }
}

/// Gives the columns of a message whose body begins at a place. Returns where that ends.
fn message(bytes: &[u8], schema: &Schema, body: u64, size: u64, out: &mut Out<'_, '_>) -> Result<u64> {
    let message = Table::root(bytes)?;
    let Ok(len) = u64::try_from(message.i64(3)?) else { return malformed("a message of less than nothing") };
    match (message.u8(1)?, message.table(2)?) {
        (DICTIONARY | RECORD_BATCH, Some(_)) if body.checked_add(len).is_none_or(|end| end > size) => cut(out)?,
        (DICTIONARY, Some(_)) => {}
        (RECORD_BATCH, Some(batch)) => {
            if out.found.tensors as usize + schema.columns.len() > TENSORS_MAX {
                return too_much(format!("an Arrow stream of more than {TENSORS_MAX} columns in batches"));
            }
            columns(batch, schema, (body, len), out.found.frames as usize, out)?;
            out.found.frames += 1;
        }
        _ => return malformed("a message that is no batch"),
    }
    Ok(body + len)
}

/// Where no stream begins.
fn behind(at: u64, size: u64, out: &mut Out<'_, '_>) -> Result<()> {
    if at == 0 {
        return malformed("no format that is recognised");
    }
    out.found.reason = Some(format!("{} bytes behind the stream are no part of it", size - at));
    Ok(())
}

fn cut(out: &mut Out<'_, '_>) -> Result<()> {
    out.found.cut = true;
    short("an Arrow stream that ends inside a batch")
}

/// What is in front of it is listed, and the stream is not whole.
fn wrong(out: &mut Out<'_, '_>, why: impl Into<std::borrow::Cow<'static, str>>) -> Result<()> {
    out.found.frames += 1;
    out.found.bad_frames += 1;
    malformed(why)
}

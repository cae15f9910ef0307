//! Object headers: what is said about a group or a data set, message by message.
//!
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>, IV.A

use crate::fault::{Result, malformed, too_much};
use crate::hdf5::file::File;
use crate::limits::push;

/// The most messages of an object, of which some are kept.
const MESSAGES_MAX: usize = 65_536;

/// Messages that matter, by their numbers.
pub(crate) mod kind {
    pub const DATASPACE: u16 = 0x01;
    pub const LINK_INFO: u16 = 0x02;
    pub const DATATYPE: u16 = 0x03;
    pub const LINK: u16 = 0x06;
    pub const EXTERNAL_FILES: u16 = 0x07;
    pub const LAYOUT: u16 = 0x08;
    pub const FILTERS: u16 = 0x0b;
    pub const CONTINUATION: u16 = 0x10;
    pub const SYMBOL_TABLE: u16 = 0x11;

    pub const KEPT: [u16; 8] = [DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL_FILES, LAYOUT, FILTERS, SYMBOL_TABLE];
}

/// A message: its kind, and where its bytes are.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub kind: u16,
    /// Its bytes say where they are.
    pub is_shared: bool,
    pub at: u64,
    pub end: u64,
}

/// Bytes of messages.
struct Block {
    at: u64,
    end: u64,
}

/// How messages are laid out.
#[derive(Clone, Copy)]
enum Version {
    One,
    /// Whether messages are numbered.
    Two(bool),
}

/// The messages of the object header there that matter, and how many bytes its first block takes.
pub(crate) fn messages(file: &mut File<'_>, at: u64) -> Result<(Vec<Message>, u64)> {
    file.seek(at);
    let (version, first) = match file.cursor.peek(4)? {
        b"OHDR" => second(file)?,
        [1, ..] => first(file)?,
        _ => return malformed("an object without a header"),
    };
    let len = first.end - at;
    let (mut blocks, mut kept, mut count) = (vec![first], Vec::new(), 0);
    let mut next = 0;
    while let Some(block) = blocks.get(next) {
        next += 1;
        let end = block.end;
        file.seek(block.at);
        while let Some(message) = message(file, version, end)? {
            count += 1;
            if count > MESSAGES_MAX {
                return too_much(format!("more than {MESSAGES_MAX} messages of an object"));
            }
            if message.kind == kind::CONTINUATION {
                file.seek(message.at);
                let block = continuation(file, version)?;
                push(&mut blocks, block);
            } else if kind::KEPT.contains(&message.kind) {
                push(&mut kept, message);
            }
            file.seek(message.end);
        }
    }
    Ok((kept, len))
}

fn first(file: &mut File<'_>) -> Result<(Version, Block)> {
    // Version, number of messages, and of references to the object.
    file.skip(8)?;
    let len = u64::from(file.u32()?);
    file.skip(4)?;
    Ok((Version::One, Block { at: file.at(), end: file.at() + len }))
}

fn second(file: &mut File<'_>) -> Result<(Version, Block)> {
    file.skip(4)?;
    let version = file.u8()?;
    if version != 2 {
        return malformed(format!("an object header of the unknown version {version}"));
    }
    let flags = file.u8()?;
    // Times; when links are kept elsewhere.
    file.skip(if flags & 0x20 != 0 { 16 } else { 0 } + if flags & 0x10 != 0 { 4 } else { 0 })?;
    let len = file.number(1 << (flags & 3))?;
    match file.at().checked_add(len) {
        Some(end) => Ok((Version::Two(flags & 4 != 0), Block { at: file.at(), end })),
        None => malformed("an object header beyond all files"),
    }
}

fn continuation(file: &mut File<'_>, version: Version) -> Result<Block> {
    let (at, len) = (file.address()?, file.length()?);
    let Some(at) = at else { return malformed("an object header that goes on nowhere") };
    let Some(end) = at.checked_add(len) else { return malformed("an object header beyond all files") };
    match version {
        Version::One => file.open(at, b"")?,
        Version::Two(_) => file.open(at, b"OCHK")?,
    }
    // A checksum ends it.
    let end = if matches!(version, Version::One) { end } else { end.saturating_sub(4) };
    Ok(Block { at: file.at(), end })
}

/// The message that begins here, if one does.
fn message(file: &mut File<'_>, version: Version, end: u64) -> Result<Option<Message>> {
    let head = match version {
        Version::One => 8,
        Version::Two(false) => 4,
        Version::Two(true) => 6,
    };
    if end.saturating_sub(file.at()) < head {
        return Ok(None);
    }
    let kind = if head == 8 { file.u16()? } else { u16::from(file.u8()?) };
    let len = u64::from(file.u16()?);
    let flags = file.u8()?;
    file.skip(if head == 4 { 0 } else { head - if head == 8 { 5 } else { 4 } })?;
    let at = file.at();
    if len > end - at {
        return malformed("a message that is longer than its object's header");
    }
    Ok(Some(Message { kind, is_shared: flags & 2 != 0, at, end: at + len }))
}

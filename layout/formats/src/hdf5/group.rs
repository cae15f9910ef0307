//! Groups: which objects they name, and where these are.
//!
//! <https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html>, III.A, III.B, III.D, IV.A.2.g

use crate::fault::{Result, malformed};
use crate::hdf5::dataset::Object;
use crate::hdf5::dense;
use crate::hdf5::file::File;
use crate::hdf5::header::{Message, kind};
use crate::hdf5::link::{Links, link};
use crate::limits::NAME_MAX;

/// Levels of a tree: each has as many children as there are entries in a node, 32 if nobody wants more.
const LEVELS_MAX: u8 = 16;
/// What is looked at at a time for the end of a name.
const PIECE: usize = 64;

/// The links of a group. There are none in what is no group.
pub(crate) fn links(file: &mut File<'_>, object: &Object<'_>, links: &mut Links) -> Result<()> {
    for message in object.messages {
        file.seek(message.at);
        match message.kind {
            kind::LINK => link(file, message.end, links)?,
            kind::SYMBOL_TABLE => symbols(file, links)?,
            kind::LINK_INFO => kept_elsewhere(file, message, links)?,
            _ => {}
        }
    }
    Ok(())
}

fn kept_elsewhere(file: &mut File<'_>, message: &Message, links: &mut Links) -> Result<()> {
    file.seek(message.at);
    let (version, flags) = (file.u8()?, file.u8()?);
    if version != 0 {
        return malformed(format!("links of the unknown version {version}"));
    }
    file.skip(if flags & 1 != 0 { 8 } else { 0 })?;
    match (file.address()?, file.address()?) {
        (Some(heap), Some(names)) => dense::links(file, heap, names, links),
        _ => Ok(()),
    }
}

/// Names of a group that is a symbol table.
struct Heap {
    at: u64,
    end: u64,
}

fn symbols(file: &mut File<'_>, links: &mut Links) -> Result<()> {
    let (Some(tree), Some(heap)) = (file.address()?, file.address()?) else {
        return malformed("a group without its tree, or its names");
    };
    file.open(heap, b"HEAP")?;
    file.skip(4)?;
    let len = file.length()?;
    file.length()?;
    let Some(at) = file.address()? else { return malformed("names that are nowhere") };
    match at.checked_add(len) {
        Some(end) => node(file, tree, &Heap { at, end }, None, links),
        None => malformed("names beyond all files"),
    }
}

/// A node of the tree, and those below it, from left to right.
fn node(file: &mut File<'_>, at: u64, heap: &Heap, above: Option<u8>, links: &mut Links) -> Result<()> {
    file.open(at, b"TREE")?;
    let (kind, level, count) = (file.u8()?, file.u8()?, file.u16()?);
    if kind != 0 || level > LEVELS_MAX || above.is_some_and(|above| level + 1 != above) {
        return malformed("a tree of a group that cannot be");
    }
    let (address, length) = file.widths();
    // Behind the addresses of the nodes beside it. Between children are the names that divide them.
    let first = file.at() + 2 * address as u64 + length as u64;
    for n in 0..u64::from(count) {
        file.seek(first + n * (address + length) as u64);
        let Some(child) = file.address()? else { return malformed("a tree of a group without a branch") };
        if level > 0 {
            node(file, child, heap, Some(level), links)?;
        } else {
            entries(file, child, heap, links)?;
        }
    }
    Ok(())
}

fn entries(file: &mut File<'_>, at: u64, heap: &Heap, links: &mut Links) -> Result<()> {
    file.open(at, b"SNOD")?;
    file.skip(2)?;
    let count = file.u16()?;
    let first = file.at();
    let (address, _) = file.widths();
    let width = (2 * address + 24) as u64;
    for n in 0..u64::from(count) {
        file.seek(first + n * width);
        let name = file.number(address)?;
        let object = file.address()?;
        let Some(at) = heap.at.checked_add(name) else { return malformed("a name beyond all files") };
        let name = text(file, at, heap.end)?;
        links.add(&name, object)?;
    }
    Ok(())
}

/// The text there, up to the zero that ends it.
fn text(file: &mut File<'_>, at: u64, end: u64) -> Result<Vec<u8>> {
    file.seek(at);
    let mut text = Vec::new();
    while text.len() <= NAME_MAX {
        let count = end.saturating_sub(file.at()).min(file.cursor.left()).min(PIECE as u64) as usize;
        let piece = file.cursor.take(count)?;
        match piece.iter().position(|byte| *byte == 0) {
            Some(len) => {
                text.extend_from_slice(&piece[..len]);
                return Ok(text);
            }
            None if count == 0 => return malformed("a name that does not end where it should"),
            None => text.extend_from_slice(piece),
        }
    }
    malformed("a name that is too long")
}

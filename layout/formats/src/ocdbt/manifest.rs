//! Manifests, and the nodes in which versions are that are too old to be in one.

use crate::fault::{Result, malformed};

use super::columns::Columns;
use super::told::{Give, Told};

/// There are so many versions in a node at most, times two so often.
const ARITY_LOG2_MAX: u8 = 16;
/// Versions of versions, at most so deep.
const HEIGHT_MAX: u8 = 64;
/// Versions stand in the manifest itself; or in manifests that have their numbers.
const SINGLE: u8 = 0;
const NUMBERED: u8 = 1;

/// What a manifest leads to: the newest version of the tree, and the nodes of older ones.
pub(super) fn read(columns: &mut Columns<'_>, give: &mut Give<'_>) -> Result<()> {
    columns.bytes(16)?;
    let kind = columns.byte()?;
    if kind > NUMBERED {
        return give(Told::Unknown(format!("a manifest of a kind that is not known: {kind}")));
    }
    columns.number()?;
    columns.number()?;
    let arity = arity(columns)?;
    match columns.number()? {
        0 => {}
        1 => drop(columns.bytes(4)?),
        // What is behind it would be told by that.
        other => return give(Told::Unknown(format!("compressed in a way that is not known: {other}"))),
    }
    if kind != SINGLE {
        columns.end()?;
        return give(Told::Numbered);
    }
    let files = columns.table(give)?;
    let newest = newest(columns, arity, files)?;
    older(columns, arity, files, None, give)?;
    columns.end()?;
    give(newest)
}

/// What a node of versions leads to: older ones.
pub(super) fn versions(columns: &mut Columns<'_>, expected: u8, give: &mut Give<'_>) -> Result<()> {
    let arity = arity(columns)?;
    let height = columns.byte()?;
    if height != expected {
        return malformed("a node of versions of another height than it should be");
    }
    let files = columns.table(give)?;
    match height {
        0 => drop(newest(columns, arity, files)?),
        _ => older(columns, arity, files, Some(height - 1), give)?,
    }
    columns.end()
}

fn arity(columns: &mut Columns<'_>) -> Result<u8> {
    let arity = columns.byte()?;
    if (1..=ARITY_LOG2_MAX).contains(&arity) {
        Ok(arity)
    } else {
        malformed("versions in nodes of a size that cannot be")
    }
}

fn in_order(numbers: &[u64]) -> Result<()> {
    let is_one = numbers.first().is_none_or(|first| *first > 0) && numbers.is_sorted_by(|a, b| a < b);
    if is_one { Ok(()) } else { malformed("versions that are not in order") }
}

/// The newest of versions.
fn newest(columns: &mut Columns<'_>, arity: u8, files: u32) -> Result<Told> {
    let count = columns.count(1 << arity, "versions in one node")?;
    let generations = columns.numbers(count)?;
    in_order(&generations)?;
    let heights = columns.bytes(count)?;
    let roots = columns.places(count, files)?;
    for _ in 0..3 * count {
        columns.number()?;
    }
    columns.bytes(8 * count)?;
    match (generations.last(), heights.last(), roots.last()) {
        (Some(generation), Some(height), Some(root)) => {
            Ok(Told::Version { generation: *generation, height: *height, root: *root })
        }
        _ => malformed("no version"),
    }
}

/// Gives the nodes that versions are in, of a height that is known, or else said.
fn older(columns: &mut Columns<'_>, arity: u8, files: u32, height: Option<u8>, give: &mut Give<'_>) -> Result<()> {
    let count = columns.count(1 << arity, "nodes of versions in one node")?;
    in_order(&columns.numbers(count)?)?;
    let places = columns.places(count, files)?;
    columns.numbers(count)?;
    columns.bytes(8 * count)?;
    let heights = match height {
        Some(height) => vec![height; count],
        None => columns.bytes(count)?,
    };
    for (at, height) in places.into_iter().zip(heights) {
        match at {
            Some(at) if height < HEIGHT_MAX => give(Told::Versions { at, height })?,
            _ => return malformed("a node of versions that cannot be"),
        }
    }
    Ok(())
}

//! Nodes of the tree: with children, or with keys and values.

use crate::arrays::What;
use crate::fault::{Result, malformed};

use super::columns::Columns;
use super::told::{At, Give, Told, Value};

/// The most children or keys of a node.
const ENTRIES_MAX: usize = 1 << 19;
/// The longest value that stands beside its key.
const INLINE_MAX: u64 = 1 << 20;
const INLINE: u8 = 0;
const INDIRECT: u8 = 1;

/// What a value says that an array is, if its key is called so.
pub(super) type Recognise<'a> = dyn FnMut(&[u8], &[u8]) -> Option<What> + 'a;

/// Gives what is in a node. Values that stand beside their keys come along, if they are wanted.
pub(super) fn read(
    columns: &mut Columns<'_>,
    expected: u8,
    with_values: bool,
    what: &mut Recognise<'_>,
    give: &mut Give<'_>,
) -> Result<()> {
    let height = columns.byte()?;
    if height != expected {
        return malformed("a node of another height than it should be");
    }
    let files = columns.table(give)?;
    let count = columns.few(ENTRIES_MAX, "entries of one node")?;
    if count == 0 {
        return malformed("a node without entries");
    }
    if height > 0 {
        return children(columns, count, files, give);
    }
    let mut keys = columns.keys(count, false)?;
    let lens = columns.numbers(count)?;
    let kinds = columns.bytes(count)?;
    if kinds.iter().any(|kind| *kind > INDIRECT) {
        return malformed("a value that is nowhere");
    }
    let indirect = kinds.iter().filter(|kind| **kind == INDIRECT).count();
    let mut files = columns.files(indirect, files)?.into_iter();
    let mut offsets = columns.numbers(indirect)?.into_iter();
    for (kind, len) in kinds.into_iter().zip(lens) {
        let (key, _) = keys.next()?;
        let value = match kind {
            INLINE if len > INLINE_MAX => return malformed("a value that is too long to stand beside its key"),
            INLINE => {
                let value = columns.bytes(usize::try_from(len).unwrap_or_default())?;
                let what = what(key, &value);
                Value::Here { what, bytes: if with_values { value } else { Vec::new() }, len }
            }
            _ => {
                let (Some(file), Some(offset)) = (files.next(), offsets.next()) else { return malformed("no place") };
                if offset.checked_add(len).is_none() {
                    return malformed("a place that cannot be");
                }
                Value::At(At { file, offset, len })
            }
        };
        give(Told::Key { key: key.to_vec(), value })?;
    }
    columns.end()
}

fn children(columns: &mut Columns<'_>, count: usize, files: u32, give: &mut Give<'_>) -> Result<()> {
    let mut keys = columns.keys(count, true)?;
    let places = columns.places(count, files)?;
    for _ in 0..3 * count {
        columns.number()?;
    }
    columns.end()?;
    for at in places {
        let Some(at) = at else { return malformed("a child that is nowhere") };
        let (key, common) = keys.next()?;
        give(Told::Child { key: key[..usize::from(common)].to_vec(), at })?;
    }
    Ok(())
}

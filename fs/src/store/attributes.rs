//! How much there may be of extended attributes: all of them are in memory.

use tensorfs_layout::Ino;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::tree::View;

use crate::error::{Fault, Result};

/// What the names and values of one object have together: the largest value, and three times as much.
const OBJECT: usize = 256 << 10;
/// What its names have together, each with a byte behind it: `listxattr` cannot return more.
const NAMES: usize = 64 << 10;
/// What is counted for one owner ([`View::xattrs_of`]).
const OWNER: u64 = 256 << 20;

/// True if a value takes no more room than the one that it takes the place of.
pub(crate) fn frees(view: &View, ino: Ino, name: &[u8], value: &[u8]) -> bool {
    view.object(ino).and_then(|object| object.xattr(name)).is_some_and(|old| value.len() <= old.len())
}

/// Objections to the attributes that a transaction sets. What is there already, and was made when there was no bound,
/// may become less.
pub(crate) fn check_attributes(view: &View, tx: &Transaction) -> Result<()> {
    let of = |record: &Record| if let Record::Xattr { ino, .. } = record { Some(*ino) } else { None };
    let Some(ino) = tx.records().iter().find_map(of) else { return Ok(()) };
    let set = || {
        tx.records().iter().filter_map(move |record| match record {
            Record::Xattr { ino: of, name, value } if *of == ino => Some((&**name, &**value)),
            _ => None,
        })
    };
    let object = view.object(ino);
    if set().all(|(name, value)| frees(view, ino, name, value)) {
        return Ok(());
    }
    let (mut names, mut bytes) = (0, 0);
    let kept = object.into_iter().flat_map(|object| object.xattrs());
    let kept = kept.filter(|(name, _)| set().all(|(other, _)| other != *name));
    for (name, value) in kept.chain(set()) {
        names += name.len() + 1;
        bytes += name.len() + value.len();
    }
    if names > NAMES || bytes > OBJECT {
        return Err(Fault::bound(libc::ENOSPC));
    }
    let owner = tx.records().iter().find_map(|record| match record {
        Record::Attributes { ino: of, attributes } if *of == ino => Some(attributes.uid),
        _ => None,
    });
    // Root can use up the machine as it likes.
    let owner = owner.or(object.map(|object| object.attributes.uid)).filter(|uid| *uid != 0);
    if let Some(uid) = owner
        && let growth @ 1.. = view.xattr_growth(ino, set())
        && view.xattrs_of(uid).saturating_add(growth) > OWNER
    {
        return Err(Fault::bound(libc::EDQUOT));
    }
    Ok(())
}

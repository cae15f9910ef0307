//! Records that several operations store beside their own.

use tensorfs_layout::log::{Attributes, Record, Transaction};
use tensorfs_layout::pool::Edit;
use tensorfs_layout::{Ino, Timestamp};

/// The record that a directory's content changed.
pub(crate) fn touched(edit: &Edit<'_>, dir: Ino, now: Timestamp) -> Option<Record> {
    let attributes = Attributes { mtime: now, ctime: now, ..edit.object(dir)?.attributes.clone() };
    Some(Record::Attributes { ino: dir, attributes })
}

/// The record that an object changed, but not its content.
pub(crate) fn changed(edit: &Edit<'_>, ino: Ino, now: Timestamp) -> Option<Record> {
    let attributes = Attributes { ctime: now, ..edit.object(ino)?.attributes.clone() };
    Some(Record::Attributes { ino, attributes })
}

/// Adds what there is of records.
pub(crate) fn with(mut tx: Transaction, records: impl IntoIterator<Item = Record>) -> Transaction {
    for record in records {
        tx.push(record);
    }
    tx
}

//! Which objects were touched lately, and by which transaction: of what was not, a second copy that is as new as the
//! log was then has all.
//!
//! It is filled as transactions are stored, under the lock of the pool's view: whoever holds that, sees of both the
//! same. Its memory is bounded: where it would grow beyond that, everything counts as touched.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tensorfs_layout::log::{Attributes, Record};
use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, TxId};

use super::reserved::REMOTE;

/// So many objects are kept in mind.
const MOST: usize = 1 << 14;

/// The transactions that an object was touched by last.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    /// What it is, what it holds, or a name in it.
    changed: TxId,
    /// A name was given to it, or something said whether what is below it is carried.
    named: TxId,
}

#[derive(Default)]
struct Table {
    /// Everything counts as touched by this one.
    floor: TxId,
    lasts: FxHashMap<Ino, Last>,
}

/// The table.
#[derive(Default)]
pub(crate) struct Touched {
    /// Somebody may ask. A pool without a second copy has nobody who does.
    is_kept: AtomicBool,
    table: Mutex<Table>,
}

/// What was touched behind a transaction.
pub(crate) struct Newer<'a> {
    table: MutexGuard<'a, Table>,
    than: TxId,
}

impl Touched {
    /// From now on it is kept, if it was not: all that was done up to this transaction, which is the newest one, counts
    /// as done by it. To be called where nobody changes the view.
    pub fn keep(&self, newest: TxId) {
        let mut table = self.table.lock();
        if !self.is_kept.swap(true, Ordering::Relaxed) {
            table.floor = table.floor.max(newest);
        }
    }

    /// Of what was done up to this transaction, or will be, nothing is known.
    pub fn doubt(&self, up_to: TxId) {
        let mut table = self.table.lock();
        table.floor = table.floor.max(TxId(up_to.0.saturating_add(1)));
    }

    /// A transaction is about to become part of the view.
    pub fn hear(&self, view: &View, records: &[Record], id: TxId) {
        if !self.is_kept.load(Ordering::Relaxed) {
            return;
        }
        let mut table = self.table.lock();
        for record in records.iter().filter(|record| !is_access(view, record)) {
            table.last(record.ino()).changed = id;
            match record {
                Record::Name { ino, .. } => table.last(*ino).named = id,
                Record::Xattr { ino, name, .. } | Record::XattrRemoval { ino, name } if **name == *REMOTE => {
                    table.last(*ino).named = id;
                }
                _ => {}
            }
        }
        if table.lasts.len() > MOST {
            table.lasts.clear();
            table.floor = id;
        }
    }

    /// What was touched behind a transaction; nothing if that is not known. What was touched up to it is forgotten, so
    /// that nothing is known of what is older.
    pub fn newer(&self, than: TxId) -> Option<Newer<'_>> {
        let mut table = self.table.lock();
        if table.floor > than || !self.is_kept.load(Ordering::Relaxed) {
            return None;
        }
        if table.floor < than {
            table.floor = than;
            table.lasts.retain(|_, last| last.changed.max(last.named) > than);
        }
        Some(Newer { table, than })
    }
}

impl Table {
    fn last(&mut self, ino: Ino) -> &mut Last {
        self.lasts.entry(ino).or_default()
    }
}

impl Newer<'_> {
    /// True of an object that was changed, or that a name was given or taken in.
    pub fn is_changed(&self, ino: Ino) -> bool {
        self.table.lasts.get(&ino).is_some_and(|last| last.changed > self.than)
    }

    /// True of an object that was given a name.
    pub fn is_named(&self, ino: Ino) -> bool {
        self.table.lasts.get(&ino).is_some_and(|last| last.named > self.than)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Ino> {
        self.table.lasts.keys().copied()
    }
}

/// True of a record that says no more than that something was read: a second copy need not know.
fn is_access(view: &View, record: &Record) -> bool {
    let Record::Attributes { ino, attributes } = record else { return false };
    let Some(object) = view.object(*ino) else { return false };
    *attributes == Attributes { atime: attributes.atime, ..object.attributes.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(dir: u64, ino: u64) -> Record {
        Record::Name { dir: Ino(dir), name: b"n".as_slice().into(), ino: Ino(ino) }
    }

    fn hear(touched: &Touched, record: Record, id: u64) {
        touched.hear(&View::default(), &[record], TxId(id));
    }

    #[test]
    fn what_was_touched_behind_a_transaction_is_known() {
        let touched = Touched::default();
        assert!(touched.newer(TxId(100)).is_none());
        hear(&touched, named(2, 3), 9);
        touched.keep(TxId(10));
        hear(&touched, named(2, 4), 11);
        hear(&touched, Record::XattrRemoval { ino: Ino(5), name: REMOTE.into() }, 12);
        touched.keep(TxId(12));
        assert!(touched.newer(TxId(9)).is_none(), "what was done before it was kept is not known");
        {
            let newer = touched.newer(TxId(10)).unwrap();
            assert_eq!([2, 3, 4, 5].map(|ino| newer.is_changed(Ino(ino))), [true, false, false, true]);
            assert_eq!([2, 3, 4, 5].map(|ino| newer.is_named(Ino(ino))), [false, false, true, true]);
        }
        assert_eq!(touched.newer(TxId(11)).unwrap().all().collect::<Vec<_>>(), [Ino(5)]);
        assert!(touched.newer(TxId(10)).is_none(), "what was touched by 11 is forgotten");
    }

    #[test]
    fn where_too_much_is_touched_everything_is() {
        let touched = Touched::default();
        touched.keep(TxId(1));
        for id in 2..3 + MOST as u64 {
            hear(&touched, Record::XattrRemoval { ino: Ino(id), name: b"user.x".as_slice().into() }, id);
        }
        let newest = 2 + MOST as u64;
        assert!(touched.newer(TxId(newest - 1)).is_none());
        assert_eq!(touched.newer(TxId(newest)).unwrap().all().count(), 0);
    }
}

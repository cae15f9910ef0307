//! What cleaning asks of the view: which records are live, and where they are now.

use crate::ids::TxId;
use crate::log::ledger::{Placed, Tomb};
use crate::log::length;
use crate::log::record::Record;
use crate::tree::object::Content;
use crate::tree::view::View;

impl View {
    /// The record that says `first..=last` is retired, merged with what borders on it or overlaps it: what a server
    /// that was killed before its last commit had cleaned is cleaned again.
    pub(crate) fn retire(&self, first: TxId, last: TxId) -> Record {
        let before = self.retired.range(..first).next_back().filter(|(_, (end, _))| end.0 + 1 >= first.0);
        let (first, mut last) = before.map_or((first, last), |(start, (end, _))| (*start, last.max(*end)));
        while let Some((_, (end, _))) = self.retired.range(first..=TxId(last.0 + 1)).find(|(_, (end, _))| *end > last) {
            last = *end;
        }
        Record::Retired { first, last }
    }

    /// True if a record at `placed` is one that the view rests on, so that cleaning must carry it to another block.
    /// `needed` says whether a block of these incarnations (first included, last not) is still in the log.
    pub(crate) fn is_live(&self, record: &Record, placed: Placed, needed: impl Fn(u64, u64) -> bool) -> bool {
        let tomb_live = |tomb: Option<&Tomb>| {
            tomb.is_some_and(|tomb| tomb.placed == placed && needed(tomb.since, placed.incarnation))
        };
        if let Record::Retired { first, last } = record {
            return self.retired.get(first).is_some_and(|(end, at)| end == last && *at == placed);
        }
        if let Record::Tier { number, .. } = record {
            return self.tiers.get(number).is_some_and(|(_, at, _)| *at == placed);
        }
        if let Record::Placement { .. } = record {
            return self.placement.as_ref().is_some_and(|(_, at, _)| *at == placed);
        }
        let Some(object) = self.objects.get(&record.ino()) else { return false };
        match (record, &object.content) {
            (Record::Attributes { .. }, _) => object.placed == placed,
            (Record::Name { name, .. }, Content::Directory(dir)) => {
                dir.entries.get(&**name).is_some_and(|entry| entry.placed == placed)
            }
            (Record::Removal { name, .. }, Content::Directory(dir)) => tomb_live(dir.removed.get(name)),
            (Record::Target { .. }, Content::Symlink(target)) => {
                target.as_ref().is_some_and(|target| target.placed == placed)
            }
            (
                Record::Data { offset, .. } | Record::Truncation { offset, .. } | Record::Sealed { offset, .. },
                Content::File(chain),
            ) => chain.has_run(*offset, placed),
            (Record::Value { .. }, Content::File(chain)) => chain.value_placed() == Some(placed),
            (Record::Thaw { .. }, Content::File(chain)) => chain.is_thawed_at(placed),
            (Record::Provisional { .. }, Content::File(chain)) => chain.is_provisional_at(placed),
            (Record::Replace { .. }, Content::File(chain)) => chain.replacing_placed() == Some(placed),
            (Record::Xattr { name, .. }, _) => object.xattrs.is_set_at(name, placed),
            (Record::XattrRemoval { name, .. }, _) => tomb_live(object.xattrs.tomb(name)),
            _ => false,
        }
    }

    /// Cleaning copied a live record to another block.
    pub(crate) fn relocate(&mut self, record: &Record, from: Placed, to: Placed) {
        let ledger = &mut self.ledger;
        let mut carry = |at: &mut Placed, len: usize| {
            ledger.sub(*at, len);
            ledger.add(to, len);
            *at = to;
        };
        if let Record::Retired { first, .. } = record {
            if let Some((_, at)) = self.retired.get_mut(first).filter(|(_, at)| *at == from) {
                carry(at, length::RETIRED);
            }
            return;
        }
        if let Record::Tier { number, .. } = record {
            if let Some((_, at, len)) = self.tiers.get_mut(number).filter(|(_, at, _)| *at == from) {
                carry(at, *len);
            }
            return;
        }
        if let Record::Placement { .. } = record {
            if let Some((_, at, len)) = self.placement.as_mut().filter(|(_, at, _)| *at == from) {
                carry(at, *len);
            }
            return;
        }
        let Some(object) = self.objects.get_mut(&record.ino()) else { return };
        match (record, &mut object.content) {
            (Record::Attributes { .. }, _) => carry(&mut object.placed, length::ATTRIBUTES),
            (Record::Name { name, .. }, Content::Directory(dir)) => {
                if let Some(entry) = dir.entries.get_mut(&**name) {
                    carry(&mut entry.placed, length::name(name.len()));
                }
            }
            (Record::Target { .. }, Content::Symlink(Some(target))) => {
                carry(&mut target.placed, length::target(target.path.len()));
            }
            (
                Record::Data { offset, .. } | Record::Truncation { offset, .. } | Record::Sealed { offset, .. },
                Content::File(chain),
            ) => chain.relocate_run(ledger, *offset, from, to),
            (Record::Value { .. }, Content::File(chain)) => chain.relocate_value(ledger, from, to),
            (Record::Thaw { .. } | Record::Provisional { .. } | Record::Replace { .. }, Content::File(chain)) => {
                chain.relocate_state(ledger, from, to);
            }
            (Record::Xattr { name, .. }, _) => object.xattrs.relocate(ledger, name, to),
            (Record::Removal { name, .. }, Content::Directory(dir)) => {
                if let Some(tomb) = dir.removed.get_mut(name) {
                    ledger.sub_tomb(tomb, length::removal(name.len()));
                    tomb.placed = to;
                    ledger.add_tomb(tomb, length::removal(name.len()));
                }
            }
            (Record::XattrRemoval { name, .. }, _) => object.xattrs.relocate_tomb(ledger, name, to),
            _ => {}
        }
    }

    /// A removal that cleaning did not carry on: nothing in the log contradicts it any more.
    pub(crate) fn drop_tomb(&mut self, record: &Record, placed: Placed) {
        let Some(object) = self.objects.get_mut(&record.ino()) else { return };
        match (record, &mut object.content) {
            (Record::Removal { name, .. }, Content::Directory(dir)) => {
                if let Some(tomb) = dir.removed.get(name).filter(|tomb| tomb.placed == placed) {
                    self.ledger.sub_tomb(tomb, length::removal(name.len()));
                    dir.removed.remove(name);
                }
            }
            (Record::XattrRemoval { name, .. }, _) => object.xattrs.drop_tomb(&mut self.ledger, name, placed),
            _ => {}
        }
    }
}

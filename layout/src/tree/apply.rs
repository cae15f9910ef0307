//! What each record means to the view.

use std::sync::Arc;

use crate::ids::{Ino, POOL, SegmentId, TxId};
use crate::log::Origin;
use crate::log::ledger::{Placed, Tomb};
use crate::log::length;
use crate::log::record::{Attributes, Record};
use crate::log::tier::PM;
use crate::tree::directory::{Directory, Entry};
use crate::tree::object::{Content, Object, Target};
use crate::tree::run::Run;
use crate::tree::view::View;
use crate::tree::xattrs::Xattrs;

/// What is counted of an object.
#[derive(Clone, Copy, Default)]
struct Counted {
    /// Of a file: the tier that counts it, and the bytes that it counts, as the host has them and as it has them.
    in_tier: Option<(u8, u64, u64)>,
    /// Its owner, and the memory that it counts.
    owned: Option<(u32, u64)>,
}

impl View {
    /// Why a record cannot be stored now, if it cannot.
    pub(crate) fn objection(&self, record: &Record) -> Option<String> {
        let ino = record.ino();
        let fits = match record {
            Record::Retired { .. } | Record::Tier { .. } | Record::Placement { .. } => return None,
            Record::Attributes { attributes, .. } => {
                let kind = self.objects.get(&ino).map(Object::kind);
                kind.is_none_or(|kind| kind == attributes.mode & libc::S_IFMT) && ino != POOL
            }
            Record::Name { .. } | Record::Removal { .. } => {
                self.objects.get(&ino).is_some_and(|object| matches!(object.content, Content::Directory(_)))
            }
            Record::Target { .. } => {
                self.objects.get(&ino).is_some_and(|object| matches!(object.content, Content::Symlink(_)))
            }
            Record::Data { .. }
            | Record::Truncation { .. }
            | Record::Sealed { .. }
            | Record::Value { .. }
            | Record::Thaw { .. }
            | Record::Provisional { .. }
            | Record::Replace { .. } => self.objects.get(&ino).is_some_and(Object::is_file),
            Record::Xattr { .. } | Record::XattrRemoval { .. } => self.objects.contains_key(&ino),
        };
        (!fits).then(|| format!("record does not fit object {ino}: {record:?}"))
    }

    /// Gives a record its meaning. Records of one chain come in the order of their sequence numbers.
    pub(crate) fn apply(&mut self, record: Record, placed: Placed) {
        let record_len = record.encoded_len();
        match record {
            Record::Attributes { ino, attributes } => self.apply_attributes(ino, attributes, placed),
            Record::Name { dir, name, ino } => self.apply_name(dir, &name, ino, placed),
            Record::Removal { dir, name } => self.apply_removal(dir, name, placed),
            Record::Target { ino, target } => self.apply_target(ino, target, placed),
            Record::Data { ino, segment, offset, len, allocated, origin } => {
                let run = Run {
                    offset,
                    len,
                    seal: None,
                    provisional: false,
                    origin,
                    placed,
                    record_len,
                    cut_from: None,
                    said: 0,
                };
                self.apply_run(ino, segment, run, allocated);
            }
            Record::Truncation { ino, segment, offset, len, allocated, cut_from } => {
                let origin = Origin::default();
                let run = Run {
                    offset,
                    len,
                    seal: None,
                    provisional: false,
                    origin,
                    placed,
                    record_len,
                    cut_from: Some(cut_from),
                    said: 0,
                };
                self.apply_run(ino, segment, run, allocated);
            }
            Record::Sealed { ino, segment, offset, len, allocated, seal, origin } => {
                let run = Run {
                    offset,
                    len,
                    seal: Some(seal),
                    provisional: false,
                    origin,
                    placed,
                    record_len,
                    cut_from: None,
                    said: 0,
                };
                self.apply_run(ino, segment, run, allocated);
            }
            Record::Value { ino, segment, bytes } => self.apply_value(ino, segment, bytes, placed, record_len),
            Record::Thaw { ino, segment, .. } => self.apply_thaw(ino, segment, placed),
            Record::Provisional { ino, segment, from } => self.apply_provisional(ino, segment, from, placed),
            Record::Replace { ino, segment } => self.apply_replace(ino, segment, placed),
            Record::Xattr { ino, name, value } => self.apply_xattr(ino, &name, Some(value), placed),
            Record::XattrRemoval { ino, name } => self.apply_xattr(ino, &name, None, placed),
            Record::Retired { first, last } => self.apply_retired(first, last, placed),
            Record::Tier { number, tier } => {
                self.pool_seq = self.pool_seq.max(placed.seq);
                if self.tiers.get(&number).is_none_or(|(_, old, _)| old.seq <= placed.seq) {
                    let old = self.tiers.insert(number, (tier, placed, record_len));
                    self.replace_state(old.map(|(_, placed, len)| (placed, len)), placed, record_len);
                }
            }
            Record::Placement { text } => {
                self.pool_seq = self.pool_seq.max(placed.seq);
                if self.placement.as_ref().is_none_or(|(_, old, _)| old.seq <= placed.seq) {
                    let old = self.placement.replace((text, placed, record_len));
                    self.replace_state(old.map(|(_, placed, len)| (placed, len)), placed, record_len);
                }
            }
        }
    }

    fn replace_state(&mut self, old: Option<(Placed, usize)>, placed: Placed, len: usize) {
        if let Some((old, len)) = old {
            self.ledger.sub(old, len);
        }
        self.ledger.add(placed, len);
    }

    /// An object was as `before` says, and is as it is now.
    fn count_again(&mut self, ino: Ino, before: Counted) {
        let now = self.counted(ino);
        self.owned.change(before.owned, now.owned);
        if let Some((tier, allocated, size)) = before.in_tier {
            let totals = self.by_tier.entry(tier).or_default();
            totals.files -= 1;
            totals.allocated = totals.allocated.saturating_sub(allocated);
            totals.bytes = totals.bytes.saturating_sub(size);
        }
        if let Some((tier, allocated, size)) = now.in_tier {
            let totals = self.by_tier.entry(tier).or_default();
            totals.files += 1;
            totals.allocated = totals.allocated.saturating_add(allocated);
            totals.bytes = totals.bytes.saturating_add(size);
        }
    }

    fn counted(&self, ino: Ino) -> Counted {
        let Some(object) = self.objects.get(&ino) else { return Counted::default() };
        let tier = || object.attributes.segment.map_or(PM, SegmentId::tier);
        let in_tier = || (tier(), object.allocated(), object.size());
        Counted {
            in_tier: (object.is_file() && object.names > 0).then(in_tier),
            owned: Some((object.attributes.uid, object.taken())),
        }
    }

    pub(super) fn apply_attributes(&mut self, ino: Ino, attributes: Attributes, placed: Placed) {
        let counted = self.counted(ino);
        self.set_attributes(ino, attributes, placed);
        self.count_again(ino, counted);
        if self.objects.get(&ino).is_some_and(|object| object.attributes.damaged) {
            self.damaged.insert(ino);
        } else {
            self.damaged.remove(&ino);
        }
    }

    fn set_attributes(&mut self, ino: Ino, attributes: Attributes, placed: Placed) {
        let Some(object) = self.objects.get_mut(&ino) else {
            let content = match attributes.mode & libc::S_IFMT {
                libc::S_IFREG => Content::File(Box::default()),
                libc::S_IFDIR => Content::Directory(Box::<Directory>::default()),
                libc::S_IFLNK => Content::Symlink(None),
                _ => Content::Other,
            };
            self.totals.objects += 1;
            self.totals.files += u64::from(matches!(content, Content::File(_)));
            self.totals.directories += u64::from(matches!(content, Content::Directory(_)));
            self.ledger.add(placed, length::ATTRIBUTES);
            let xattrs = Xattrs::default();
            let (last_seq, names, places) = (placed.seq, 0, 0);
            self.objects.insert(ino, Object { attributes, placed, last_seq, names, places, content, xattrs });
            return;
        };
        object.last_seq = object.last_seq.max(placed.seq);
        if placed.seq < object.placed.seq {
            return;
        }
        self.ledger.sub(object.placed, length::ATTRIBUTES);
        self.ledger.add(placed, length::ATTRIBUTES);
        object.placed = placed;
        if let Content::File(chain) = &mut object.content
            && attributes.segment != object.attributes.segment
        {
            // A replacement that became the file's own, or gave way to a later segment.
            let own = attributes.segment.map(SegmentId::serial);
            let replacing = chain.replacing().filter(|replacing| Some(replacing.serial()) <= own);
            if let Some(old) = object.attributes.segment {
                self.freed.push((old, chain.allocated()));
            }
            self.totals.allocated = self.totals.allocated.saturating_sub(chain.allocated());
            chain.clear(&mut self.ledger);
            if replacing.is_some() {
                let other = replacing.filter(|replacing| Some(*replacing) != attributes.segment);
                self.freed.extend(other.map(|other| (other, 0)));
                chain.set_replacing(&mut self.ledger, None);
            }
        }
        let (old, new, counted) = (object.attributes.uid, attributes.uid, object.xattrs.counted());
        object.attributes = attributes;
        if old != new {
            self.count_xattrs(old, counted, 0);
            self.count_xattrs(new, 0, counted);
        }
    }

    fn apply_name(&mut self, dir_ino: Ino, name: &[u8], ino: Ino, placed: Placed) {
        let Some(Object { content: Content::Directory(dir), last_seq, .. }) = self.objects.get_mut(&dir_ino) else {
            return;
        };
        *last_seq = (*last_seq).max(placed.seq);
        let mut since = placed.incarnation;
        if let Some(tomb) = dir.removed.remove(name) {
            since = since.min(tomb.since);
            self.ledger.sub_tomb(&tomb, length::removal(name.len()));
        }
        let mut replaced = None;
        let cookie = if let Some(old) = dir.entries.get_mut(name) {
            since = since.min(old.since);
            self.ledger.sub(old.placed, length::name(name.len()));
            replaced = Some(old.ino);
            *old = Entry { ino, placed, since, cookie: old.cookie };
            old.cookie
        } else {
            let key: Arc<[u8]> = name.into();
            let cookie = dir.cookie(name);
            dir.insert(key, Entry { ino, placed, since, cookie });
            cookie
        };
        self.ledger.add(placed, length::name(name.len()));
        if let Some(old) = replaced {
            self.unlink(dir_ino, old);
        }
        let counted = self.counted(ino);
        let Some(child) = self.objects.get_mut(&ino) else { return };
        (child.names, child.places) = (child.names + 1, child.places.wrapping_add(dir_ino.0));
        if let Content::Directory(child) = &mut child.content {
            (child.parent, child.place) = (Some(dir_ino), cookie);
            self.count_subdirectory(dir_ino, 1);
        }
        self.count_again(ino, counted);
    }

    /// A name in `dir` no longer points to `ino`.
    fn unlink(&mut self, dir: Ino, ino: Ino) {
        let counted = self.counted(ino);
        let Some(child) = self.objects.get_mut(&ino) else { return };
        (child.names, child.places) = (child.names.saturating_sub(1), child.places.wrapping_sub(dir.0));
        if child.is_dir() {
            self.count_subdirectory(dir, -1);
        }
        self.count_again(ino, counted);
    }

    fn count_subdirectory(&mut self, dir: Ino, by: i32) {
        if let Some(Object { content: Content::Directory(dir), .. }) = self.objects.get_mut(&dir) {
            dir.subdirectories = dir.subdirectories.saturating_add_signed(by);
        }
    }

    fn apply_removal(&mut self, dir_ino: Ino, name: Box<[u8]>, placed: Placed) {
        let Some(Object { content: Content::Directory(dir), last_seq, .. }) = self.objects.get_mut(&dir_ino) else {
            return;
        };
        *last_seq = (*last_seq).max(placed.seq);
        let len = length::removal(name.len());
        let mut since = placed.incarnation;
        let mut removed = None;
        if let Some(old) = dir.remove(&name) {
            since = since.min(old.since);
            self.ledger.sub(old.placed, length::name(name.len()));
            removed = Some(old.ino);
        }
        if let Some(tomb) = dir.removed.remove(&name) {
            since = since.min(tomb.since);
            self.ledger.sub_tomb(&tomb, len);
        }
        if since < placed.incarnation {
            let tomb = Tomb { placed, since };
            self.ledger.add_tomb(&tomb, len);
            dir.removed.insert(name, tomb);
        }
        if let Some(ino) = removed {
            self.unlink(dir_ino, ino);
        }
    }

    fn apply_target(&mut self, ino: Ino, path: Box<[u8]>, placed: Placed) {
        let counted = self.counted(ino);
        self.set_target(ino, path, placed);
        self.count_again(ino, counted);
    }

    fn set_target(&mut self, ino: Ino, path: Box<[u8]>, placed: Placed) {
        let Some(Object { content: Content::Symlink(current), last_seq, .. }) = self.objects.get_mut(&ino) else {
            return;
        };
        *last_seq = (*last_seq).max(placed.seq);
        if let Some(old) = current.take() {
            self.ledger.sub(old.placed, length::target(old.path.len()));
        }
        self.ledger.add(placed, length::target(path.len()));
        *current = Some(Box::new(Target { path, placed }));
    }

    fn apply_run(&mut self, ino: Ino, segment: SegmentId, run: Run, allocated: u64) {
        let counted = self.counted(ino);
        self.append_run(ino, segment, run, allocated);
        self.count_again(ino, counted);
    }

    fn append_run(&mut self, ino: Ino, segment: SegmentId, run: Run, allocated: u64) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(run.placed.seq);
        // A run of a segment that the file no longer has, or does not have yet, says nothing about what it holds.
        if object.attributes.segment != Some(segment) {
            if let Content::File(chain) = &mut object.content {
                chain.set_stands(&mut self.ledger, segment, &run, allocated);
            }
            return;
        }
        if let Content::File(chain) = &mut object.content {
            self.totals.allocated = self.totals.allocated.saturating_sub(chain.allocated()).saturating_add(allocated);
            chain.append(&mut self.ledger, run, allocated);
        }
    }

    fn apply_value(&mut self, ino: Ino, segment: SegmentId, bytes: Box<[u8]>, placed: Placed, record_len: usize) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(placed.seq);
        if let Content::File(chain) = &mut object.content
            && object.attributes.segment == Some(segment)
        {
            chain.set_value(&mut self.ledger, bytes, placed, record_len);
        }
    }

    fn apply_thaw(&mut self, ino: Ino, segment: SegmentId, placed: Placed) {
        let counted = self.counted(ino);
        self.thaw(ino, segment, placed);
        self.count_again(ino, counted);
    }

    fn thaw(&mut self, ino: Ino, segment: SegmentId, placed: Placed) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(placed.seq);
        if let Content::File(chain) = &mut object.content
            && object.attributes.segment == Some(segment)
        {
            chain.thaw(&mut self.ledger, placed);
        }
    }

    fn apply_provisional(&mut self, ino: Ino, segment: SegmentId, from: u64, placed: Placed) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(placed.seq);
        if let Content::File(chain) = &mut object.content
            && object.attributes.segment == Some(segment)
        {
            chain.set_provisional(&mut self.ledger, from, placed);
        }
    }

    fn apply_replace(&mut self, ino: Ino, segment: SegmentId, placed: Placed) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(placed.seq);
        // Segment numbers only grow: a replacement older than the file's own segment was completed or given up.
        let pending = object.attributes.segment.map(SegmentId::serial) < Some(segment.serial());
        if let Content::File(chain) = &mut object.content {
            let replacing = pending.then_some((segment, placed));
            self.freed.extend(chain.replacing().filter(|other| *other != segment).map(|other| (other, 0)));
            chain.set_replacing(&mut self.ledger, replacing);
        }
    }

    fn apply_xattr(&mut self, ino: Ino, name: &[u8], value: Option<Box<[u8]>>, placed: Placed) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(placed.seq);
        let name = self.xattr_names.share(name);
        let before = object.xattrs.counted();
        match value {
            Some(value) => object.xattrs.set(&mut self.ledger, name, value, placed),
            None => object.xattrs.remove(&mut self.ledger, name, placed),
        }
        let (uid, after) = (object.attributes.uid, object.xattrs.counted());
        self.count_xattrs(uid, before, after);
    }

    /// What is counted of an object's attributes for its owner has changed.
    fn count_xattrs(&mut self, uid: u32, before: u64, after: u64) {
        if before == after {
            return;
        }
        let all = self.by_owner.entry(uid).or_default();
        *all = (*all + after).saturating_sub(before);
        if *all == 0 {
            self.by_owner.remove(&uid);
        }
    }

    fn apply_retired(&mut self, first: TxId, last: TxId, placed: Placed) {
        self.pool_seq = self.pool_seq.max(placed.seq);
        // What says more than this one stays, be it older: this one may be of a cleaning that was done a second time.
        let covers = |(start, (end, old)): (&TxId, &(TxId, Placed))| {
            (*start, *end) != (first, last) && *end >= last || *end == last && old.seq > placed.seq
        };
        if self.retired.range(..=first).next_back().is_some_and(covers) {
            return;
        }
        let within: Vec<TxId> =
            self.retired.range(first..=last).filter(|(_, (end, _))| *end <= last).map(|(start, _)| *start).collect();
        for start in within {
            if let Some((_, old)) = self.retired.remove(&start) {
                self.ledger.sub(old, length::RETIRED);
            }
        }
        self.ledger.add(placed, length::RETIRED);
        self.retired.insert(first, (last, placed));
    }

    /// Drops an object that has no names left. Its segments go to `freed`.
    pub(crate) fn drop_object(&mut self, ino: Ino) {
        let counted = self.counted(ino);
        let Some(mut object) = self.objects.remove(&ino) else { return };
        self.count_again(ino, counted);
        self.damaged.remove(&ino);
        self.totals.objects -= 1;
        self.ledger.sub(object.placed, length::ATTRIBUTES);
        match &mut object.content {
            Content::File(chain) => {
                self.totals.files -= 1;
                self.totals.allocated = self.totals.allocated.saturating_sub(chain.allocated());
                self.freed.extend(object.attributes.segment.map(|own| (own, chain.allocated())));
                self.freed.extend(chain.replacing().map(|other| (other, 0)));
                chain.clear(&mut self.ledger);
                chain.set_replacing(&mut self.ledger, None);
            }
            Content::Directory(dir) => {
                self.totals.directories -= 1;
                for (name, tomb) in &dir.removed {
                    self.ledger.sub_tomb(tomb, length::removal(name.len()));
                }
                let children: Vec<(usize, Placed, Ino)> =
                    dir.entries.iter().map(|(name, entry)| (name.len(), entry.placed, entry.ino)).collect();
                for (name, placed, child) in children {
                    self.ledger.sub(placed, length::name(name));
                    self.unlink(ino, child);
                }
            }
            Content::Symlink(target) => {
                if let Some(target) = target {
                    self.ledger.sub(target.placed, length::target(target.path.len()));
                }
            }
            Content::Other => {}
        }
        object.xattrs.leave(&mut self.ledger);
        self.count_xattrs(object.attributes.uid, object.xattrs.counted(), 0);
    }

    /// The segment of a file holds the bytes of its value with this sequence number durably.
    pub(crate) fn settle_value(&mut self, ino: Ino, seq: u64) {
        if let Some(Object { content: Content::File(chain), .. }) = self.objects.get_mut(&ino) {
            chain.settle_value(&mut self.ledger, seq);
        }
    }

    /// The segments of all files that `holds` says it of hold the bytes of their values durably.
    pub(crate) fn settle_values(&mut self, holds: impl Fn(&Object) -> bool) {
        let settled = |object: &Object| object.has_value() && holds(object);
        let inos: Vec<Ino> = self.objects().filter(|(_, object)| settled(object)).map(|(ino, _)| ino).collect();
        inos.into_iter().for_each(|ino| self.settle_value(ino, u64::MAX));
    }
}

//! The live view: what all kept records together say, in memory.
//!
//! One function, `View::apply`, gives records their meaning, both when a transaction is stored and when the pool is
//! opened again. It therefore accepts what only a reopened log holds: copies of a record in several blocks, and
//! records whose successors or whose object are gone. Applied in the order of their chains, any set of records that
//! contains all live ones gives the same view.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::chain::Run;
use crate::codec::padded;
use crate::ids::{FIRST_ID, Ino, POOL, ROOT, SegmentId, TxId};
use crate::ledger::{Ledger, Placed, Tomb};
use crate::object::{Content, Directory, Entry, FIRST_SEQ, Object, Target};
use crate::objects::Objects;
use crate::record::{ATTRIBUTES_BODY, Attributes, HEADER, RETIRED_BODY, Record, name_body, removal_body, target_body};
use crate::tier::{PM, PM_NAME, Tier};
use crate::xattrs::{Names, Xattrs};

const ATTRIBUTES_LEN: usize = HEADER + padded(ATTRIBUTES_BODY);
const RETIRED_LEN: usize = HEADER + padded(RETIRED_BODY);
const fn name_len(name: usize) -> usize {
    HEADER + padded(name_body(name))
}
const fn removal_len(name: usize) -> usize {
    HEADER + padded(removal_body(name))
}
const fn target_len(target: usize) -> usize {
    HEADER + padded(target_body(target))
}

/// The tree and the files as all stored transactions made them.
#[derive(Debug)]
pub struct View {
    objects: Objects,
    xattr_names: Names,
    pub(crate) next_id: u64,
    pub(crate) ledger: Ledger,
    retired: BTreeMap<TxId, (TxId, Placed)>,
    /// By number; those that were removed are among them. With the length of each record.
    tiers: BTreeMap<u8, (Tier, Placed, usize)>,
    placement: Option<(Box<str>, Placed, usize)>,
    pool_seq: u64,
    totals: Totals,
    /// Segments that an applied record took from their file; whoever applied it queues them for removal.
    pub(crate) freed: Vec<SegmentId>,
}

/// Counts over the whole view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// All objects.
    pub objects: u64,
    /// Bytes that the host has allocated to recorded segments.
    pub allocated: u64,
}

impl Default for View {
    fn default() -> Self {
        Self {
            objects: Objects::default(),
            xattr_names: Names::default(),
            next_id: FIRST_ID,
            ledger: Ledger::default(),
            retired: BTreeMap::new(),
            tiers: BTreeMap::new(),
            placement: None,
            pool_seq: 0,
            totals: Totals::default(),
            freed: Vec::new(),
        }
    }
}

impl View {
    /// The object of that number, if it exists.
    pub fn object(&self, ino: Ino) -> Option<&Object> {
        self.objects.get(&ino)
    }

    /// All objects, in no order.
    pub fn objects(&self) -> impl Iterator<Item = (Ino, &Object)> {
        self.objects.iter()
    }

    /// What a name in a directory points to.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        match &self.objects.get(&dir)?.content {
            Content::Directory(dir) => dir.entries.get(name).map(|entry| entry.ino),
            _ => None,
        }
    }

    /// The names in a directory whose cookie is above `cookie`, in the order of their cookies: cookie, name, object.
    /// A name keeps its cookie, which is 16 or more, for as long as it exists.
    pub fn entries_after(&self, dir: Ino, cookie: u64) -> impl Iterator<Item = (u64, &[u8], Ino)> {
        let dir = match self.objects.get(&dir).map(|object| &object.content) {
            Some(Content::Directory(dir)) => Some(dir),
            _ => None,
        };
        dir.into_iter().flat_map(move |dir| {
            dir.order
                .range(cookie.saturating_add(1)..)
                .filter_map(|(seq, name)| Some((*seq, &**name, dir.entries.get(name)?.ino)))
        })
    }

    /// Counts over the whole view.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Live records.
    pub fn records(&self) -> u64 {
        self.ledger.records()
    }

    /// The path of an object from the root, by the first name found for each step; for messages, as it searches.
    pub fn path_of(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut parts: Vec<Arc<[u8]>> = Vec::new();
        let mut at = ino;
        for _ in 0..4096 {
            if at == ROOT {
                let mut path = Vec::new();
                for part in parts.iter().rev() {
                    path.push(b'/');
                    path.extend_from_slice(part);
                }
                return Some(if path.is_empty() { b"/".to_vec() } else { path });
            }
            let (dir, name) = self.name_of(at)?;
            parts.push(name);
            at = dir;
        }
        None
    }

    /// What lies below a directory, in the order of their paths: path from it, object. A hard link comes under each name.
    pub fn below(&self, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
        let mut found = Vec::new();
        let mut left = vec![(dir, Vec::new())];
        // In a damaged tree a directory could be below itself.
        let mut entered = std::collections::HashSet::from([dir]);
        while let Some((dir, path)) = left.pop() {
            for (_, name, ino) in self.entries_after(dir, 0) {
                let path = if path.is_empty() { name.to_vec() } else { [&path[..], b"/", name].concat() };
                if self.object(ino).is_some_and(Object::is_dir) && entered.insert(ino) {
                    left.push((ino, path.clone()));
                }
                found.push((path, ino));
            }
        }
        found.sort();
        found
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Arc<[u8]>)> {
        let named = |dir: Ino, object: &Object| match &object.content {
            Content::Directory(content) => {
                content.entries.iter().find(|(_, e)| e.ino == ino).map(|(name, _)| (dir, name.clone()))
            }
            _ => None,
        };
        match self.objects.get(&ino)?.parent() {
            Some(parent) => named(parent, self.objects.get(&parent)?),
            None => self.objects.iter().find_map(|(dir, object)| named(dir, object)),
        }
    }

    /// The sequence number for the next record of a chain.
    pub(crate) fn next_seq(&self, ino: Ino) -> u64 {
        if ino == POOL {
            return self.pool_seq + 1;
        }
        self.objects.get(&ino).map_or(FIRST_SEQ, |object| object.last_seq + 1)
    }

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
            Record::Data { ino, segment, offset, len, allocated } => {
                let run = Run { offset, len, seal: None, placed, record_len, cut_from: None };
                self.apply_run(ino, segment, run, allocated);
            }
            Record::Truncation { ino, segment, offset, len, allocated, cut_from } => {
                let run = Run { offset, len, seal: None, placed, record_len, cut_from: Some(cut_from) };
                self.apply_run(ino, segment, run, allocated);
            }
            Record::Sealed { ino, segment, offset, len, allocated, seal } => {
                let run = Run { offset, len, seal: Some(seal), placed, record_len, cut_from: None };
                self.apply_run(ino, segment, run, allocated);
            }
            Record::Value { ino, segment, bytes } => self.apply_value(ino, segment, bytes, placed, record_len),
            Record::Thaw { ino, segment, .. } => self.apply_thaw(ino, segment, placed),
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

    /// The tiers of the pool beside its own directory, by number.
    pub fn tiers(&self) -> impl Iterator<Item = (u8, &Tier)> {
        self.tiers.iter().filter(|(_, (tier, ..))| !tier.is_removed()).map(|(number, (tier, ..))| (*number, tier))
    }

    /// A tier by its number.
    pub fn tier(&self, number: u8) -> Option<&Tier> {
        self.tiers.get(&number).map(|(tier, ..)| tier).filter(|tier| !tier.is_removed())
    }

    /// The number of a tier, which may be [`PM`].
    pub fn tier_named(&self, name: &str) -> Option<u8> {
        if name == PM_NAME {
            return Some(PM);
        }
        self.tiers().find(|(_, tier)| *tier.name == *name).map(|(number, _)| number)
    }

    /// The name of a tier, also of one that is none.
    pub fn tier_name(&self, number: u8) -> String {
        match number {
            PM => PM_NAME.to_owned(),
            _ => self.tier(number).map_or_else(|| format!("number {number}"), |tier| tier.name.to_string()),
        }
    }

    /// The placement map as its user wrote it.
    pub fn placement(&self) -> &str {
        self.placement.as_ref().map_or("", |(text, ..)| text)
    }

    /// The live records of the pool's own chain that say something about the pool, not about its log.
    pub(crate) fn export_pool(&self, records: &mut Vec<(Record, u64)>) {
        for (number, (tier, placed, _)) in &self.tiers {
            records.push((Record::Tier { number: *number, tier: tier.clone() }, placed.seq));
        }
        if let Some((text, placed, _)) = &self.placement {
            records.push((Record::Placement { text: text.clone() }, placed.seq));
        }
    }

    fn apply_attributes(&mut self, ino: Ino, attributes: Attributes, placed: Placed) {
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
            self.ledger.add(placed, ATTRIBUTES_LEN);
            let xattrs = Xattrs::default();
            self.objects.insert(ino, Object { attributes, placed, last_seq: placed.seq, names: 0, content, xattrs });
            return;
        };
        object.last_seq = object.last_seq.max(placed.seq);
        if placed.seq < object.placed.seq {
            return;
        }
        self.ledger.sub(object.placed, ATTRIBUTES_LEN);
        self.ledger.add(placed, ATTRIBUTES_LEN);
        object.placed = placed;
        if let Content::File(chain) = &mut object.content
            && attributes.segment != object.attributes.segment
        {
            // A replacement that became the file's own, or gave way to a later segment.
            let own = attributes.segment.map(SegmentId::serial);
            let replacing = chain.replacing().filter(|replacing| Some(replacing.serial()) <= own);
            if let Some(old) = object.attributes.segment {
                self.freed.push(old);
            }
            self.totals.allocated = self.totals.allocated.saturating_sub(chain.allocated());
            chain.clear(&mut self.ledger);
            if replacing.is_some() {
                self.freed.extend(replacing.filter(|replacing| Some(*replacing) != attributes.segment));
                chain.set_replacing(&mut self.ledger, None);
            }
        }
        object.attributes = attributes;
    }

    fn apply_name(&mut self, dir_ino: Ino, name: &[u8], ino: Ino, placed: Placed) {
        let Some(Object { content: Content::Directory(dir), last_seq, .. }) = self.objects.get_mut(&dir_ino) else {
            return;
        };
        *last_seq = (*last_seq).max(placed.seq);
        let mut since = placed.incarnation;
        if let Some(tomb) = dir.removed.remove(name) {
            since = since.min(tomb.since);
            self.ledger.sub_tomb(&tomb, removal_len(name.len()));
        }
        let mut replaced = None;
        if let Some(old) = dir.entries.get_mut(name) {
            since = since.min(old.since);
            self.ledger.sub(old.placed, name_len(name.len()));
            replaced = Some(old.ino);
            *old = Entry { ino, placed, since, cookie: old.cookie };
        } else {
            let key: Arc<[u8]> = name.into();
            let cookie = dir.cookie(name);
            dir.order.insert(cookie, key.clone());
            dir.entries.insert(key, Entry { ino, placed, since, cookie });
        }
        self.ledger.add(placed, name_len(name.len()));
        if let Some(old) = replaced {
            self.unlink(dir_ino, old);
        }
        let Some(child) = self.objects.get_mut(&ino) else { return };
        child.names += 1;
        if let Content::Directory(child) = &mut child.content {
            child.parent = Some(dir_ino);
            self.count_subdirectory(dir_ino, 1);
        }
    }

    /// A name in `dir` no longer points to `ino`.
    fn unlink(&mut self, dir: Ino, ino: Ino) {
        let Some(child) = self.objects.get_mut(&ino) else { return };
        child.names = child.names.saturating_sub(1);
        if child.is_dir() {
            self.count_subdirectory(dir, -1);
        }
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
        let len = removal_len(name.len());
        let mut since = placed.incarnation;
        let mut removed = None;
        if let Some(old) = dir.entries.remove(&*name) {
            since = since.min(old.since);
            dir.order.remove(&old.cookie);
            self.ledger.sub(old.placed, name_len(name.len()));
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
        let Some(Object { content: Content::Symlink(current), last_seq, .. }) = self.objects.get_mut(&ino) else {
            return;
        };
        *last_seq = (*last_seq).max(placed.seq);
        if let Some(old) = current.take() {
            self.ledger.sub(old.placed, target_len(old.path.len()));
        }
        self.ledger.add(placed, target_len(path.len()));
        *current = Some(Box::new(Target { path, placed }));
    }

    fn apply_run(&mut self, ino: Ino, segment: SegmentId, run: Run, allocated: u64) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(run.placed.seq);
        // A run of a segment that the file no longer has, or does not have yet, says nothing about it.
        if object.attributes.segment != Some(segment) {
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

    /// The segment of a file holds the bytes of its value with this sequence number durably.
    pub(crate) fn settle_value(&mut self, ino: Ino, seq: u64) {
        if let Some(Object { content: Content::File(chain), .. }) = self.objects.get_mut(&ino) {
            chain.settle_value(&mut self.ledger, seq);
        }
    }

    /// The same for all files that `holds` says it of.
    pub(crate) fn settle_values(&mut self, holds: impl Fn(&Object) -> bool) {
        let settled = |object: &Object| object.has_value() && holds(object);
        let inos: Vec<Ino> = self.objects().filter(|(_, object)| settled(object)).map(|(ino, _)| ino).collect();
        inos.into_iter().for_each(|ino| self.settle_value(ino, u64::MAX));
    }

    fn apply_thaw(&mut self, ino: Ino, segment: SegmentId, placed: Placed) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(placed.seq);
        if let Content::File(chain) = &mut object.content
            && object.attributes.segment == Some(segment)
        {
            chain.thaw(&mut self.ledger, placed);
        }
    }

    fn apply_replace(&mut self, ino: Ino, segment: SegmentId, placed: Placed) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(placed.seq);
        // Segment numbers only grow: a replacement older than the file's own segment was completed or given up.
        let pending = object.attributes.segment.map(SegmentId::serial) < Some(segment.serial());
        if let Content::File(chain) = &mut object.content {
            let replacing = pending.then_some((segment, placed));
            self.freed.extend(chain.replacing().filter(|other| *other != segment));
            chain.set_replacing(&mut self.ledger, replacing);
        }
    }

    fn apply_xattr(&mut self, ino: Ino, name: &[u8], value: Option<Box<[u8]>>, placed: Placed) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        object.last_seq = object.last_seq.max(placed.seq);
        let name = self.xattr_names.share(name);
        match value {
            Some(value) => object.xattrs.set(&mut self.ledger, name, value, placed),
            None => object.xattrs.remove(&mut self.ledger, name, placed),
        }
    }

    fn apply_retired(&mut self, first: TxId, last: TxId, placed: Placed) {
        self.pool_seq = self.pool_seq.max(placed.seq);
        if self.retired.range(..=first).next_back().is_some_and(|(_, (end, old))| *end >= last && old.seq > placed.seq)
        {
            return;
        }
        let within: Vec<TxId> =
            self.retired.range(first..=last).filter(|(_, (end, _))| *end <= last).map(|(start, _)| *start).collect();
        for start in within {
            if let Some((_, old)) = self.retired.remove(&start) {
                self.ledger.sub(old, RETIRED_LEN);
            }
        }
        self.ledger.add(placed, RETIRED_LEN);
        self.retired.insert(first, (last, placed));
    }

    /// The record that says `first..=last` is retired, merged with what borders on it.
    pub(crate) fn retire(&self, first: TxId, last: TxId) -> Record {
        let before = self.retired.range(..first).next_back().filter(|(_, (end, _))| end.0 + 1 >= first.0);
        let behind = self.retired.range(first..).find(|(start, _)| start.0 <= last.0 + 1);
        Record::Retired {
            first: before.map_or(first, |(start, _)| *start),
            last: behind.map_or(last, |(_, (end, _))| (*end).max(last)),
        }
    }

    /// Drops an object that has no names left. Its segments go to `freed`.
    pub(crate) fn drop_object(&mut self, ino: Ino) {
        let Some(mut object) = self.objects.remove(&ino) else { return };
        self.totals.objects -= 1;
        self.ledger.sub(object.placed, ATTRIBUTES_LEN);
        match &mut object.content {
            Content::File(chain) => {
                self.totals.files -= 1;
                self.totals.allocated = self.totals.allocated.saturating_sub(chain.allocated());
                self.freed.extend(object.attributes.segment);
                self.freed.extend(chain.replacing());
                chain.clear(&mut self.ledger);
                chain.set_replacing(&mut self.ledger, None);
            }
            Content::Directory(dir) => {
                self.totals.directories -= 1;
                for (name, tomb) in &dir.removed {
                    self.ledger.sub_tomb(tomb, removal_len(name.len()));
                }
                let children: Vec<(usize, Placed, Ino)> =
                    dir.entries.iter().map(|(name, entry)| (name.len(), entry.placed, entry.ino)).collect();
                for (name, placed, child) in children {
                    self.ledger.sub(placed, name_len(name));
                    self.unlink(ino, child);
                }
            }
            Content::Symlink(target) => {
                if let Some(target) = target {
                    self.ledger.sub(target.placed, target_len(target.path.len()));
                }
            }
            Content::Other => {}
        }
        object.xattrs.leave(&mut self.ledger);
    }

    /// Sets the parent of every directory that a path from the root leads to. Records of several chains that were applied
    /// chain by chain leave the last one applied, not the newest one; and what is left of a removed directory may still
    /// name one that was moved out of it.
    pub(crate) fn settle_parents(&mut self) {
        let mut reached = FxHashSet::from_iter([ROOT]);
        let mut queue = vec![ROOT];
        while let Some(dir) = queue.pop() {
            let Some(Object { content: Content::Directory(content), .. }) = self.objects.get(&dir) else { continue };
            let children: Vec<Ino> = content.entries.values().map(|entry| entry.ino).collect();
            for ino in children {
                if let Some(Object { content: Content::Directory(child), .. }) = self.objects.get_mut(&ino)
                    && reached.insert(ino)
                {
                    child.parent = Some(dir);
                    queue.push(ino);
                }
            }
        }
    }

    /// A root directory, if there is none left: what is found below it by other names is set aside by whoever asks.
    pub(crate) fn ensure_root(&mut self) {
        if self.objects.get(&ROOT).is_some_and(Object::is_dir) {
            return;
        }
        self.drop_object(ROOT);
        let zero = crate::time::Timestamp::default();
        let attributes = Attributes {
            mode: libc::S_IFDIR | 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            segment: None,
            damaged: false,
        };
        self.apply_attributes(ROOT, attributes, Placed { seq: FIRST_SEQ, incarnation: 0 });
    }

    /// Removes names that lead to no object, and all but one name of a directory; returns how many.
    pub(crate) fn drop_dangling_names(&mut self) -> usize {
        let mut named = std::collections::HashSet::from([ROOT]);
        let mut dangling = Vec::new();
        let mut queue = vec![ROOT];
        while let Some(dir) = queue.pop() {
            for (_, name, ino) in self.entries_after(dir, 0) {
                match self.objects.get(&ino) {
                    Some(object) if !object.is_dir() => {}
                    Some(_) if named.insert(ino) => queue.push(ino),
                    _ => dangling.push((dir, Box::<[u8]>::from(name))),
                }
            }
        }
        for (dir, name) in &dangling {
            if let Some(Object { content: Content::Directory(content), .. }) = self.objects.get_mut(dir)
                && let Some(entry) = content.entries.remove(&**name)
            {
                content.order.remove(&entry.cookie);
            }
        }
        dangling.len()
    }

    /// The objects that no path from the root leads to.
    pub(crate) fn unreachable(&self) -> Vec<Ino> {
        let mut reached = FxHashSet::default();
        let mut queue = vec![ROOT];
        while let Some(ino) = queue.pop() {
            if let Some(Object { content: Content::Directory(dir), .. }) = self.objects.get(&ino)
                && reached.insert(ino)
            {
                let is_dir = |ino: &Ino| self.objects.get(ino).is_some_and(Object::is_dir);
                queue.extend(dir.entries.values().map(|entry| entry.ino).filter(is_dir));
            }
        }
        // Mostly every directory can be reached and every object has a name, and there is nothing more to do.
        let lost = |object: &Object, ino| object.names() == 0 || object.is_dir() && !reached.contains(&ino);
        if !self.objects.iter().any(|(ino, object)| ino != ROOT && lost(object, ino)) {
            return Vec::new();
        }
        let names = reached.iter().filter_map(|ino| match &self.objects.get(ino)?.content {
            Content::Directory(dir) => Some(dir.entries.values().map(|entry| entry.ino)),
            _ => None,
        });
        let named: FxHashSet<Ino> = names.flatten().chain([ROOT]).collect();
        self.objects.iter().map(|(ino, _)| ino).filter(|ino| !named.contains(ino)).collect()
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
                carry(at, RETIRED_LEN);
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
            (Record::Attributes { .. }, _) => carry(&mut object.placed, ATTRIBUTES_LEN),
            (Record::Name { name, .. }, Content::Directory(dir)) => {
                if let Some(entry) = dir.entries.get_mut(&**name) {
                    carry(&mut entry.placed, name_len(name.len()));
                }
            }
            (Record::Target { .. }, Content::Symlink(Some(target))) => {
                carry(&mut target.placed, target_len(target.path.len()));
            }
            (
                Record::Data { offset, .. } | Record::Truncation { offset, .. } | Record::Sealed { offset, .. },
                Content::File(chain),
            ) => chain.relocate_run(ledger, *offset, from, to),
            (Record::Value { .. }, Content::File(chain)) => chain.relocate_value(ledger, from, to),
            (Record::Thaw { .. } | Record::Replace { .. }, Content::File(chain)) => {
                chain.relocate_state(ledger, from, to);
            }
            (Record::Xattr { name, .. }, _) => object.xattrs.relocate(ledger, name, to),
            (Record::Removal { name, .. }, Content::Directory(dir)) => {
                if let Some(tomb) = dir.removed.get_mut(name) {
                    ledger.sub_tomb(tomb, removal_len(name.len()));
                    tomb.placed = to;
                    ledger.add_tomb(tomb, removal_len(name.len()));
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
                    self.ledger.sub_tomb(tomb, removal_len(name.len()));
                    dir.removed.remove(name);
                }
            }
            (Record::XattrRemoval { name, .. }, _) => object.xattrs.drop_tomb(&mut self.ledger, name, placed),
            _ => {}
        }
    }
}

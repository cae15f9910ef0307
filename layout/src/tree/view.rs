//! The live view: what all kept records together say, in memory.
//!
//! One function, `View::apply`, gives records their meaning, both when a transaction is stored and when the pool is
//! opened again. It therefore accepts what only a reopened log holds: copies of a record in several blocks, and
//! records whose successors or whose object are gone. Applied in the order of their chains, any set of records that
//! contains all live ones gives the same view.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::sync::Arc;

use crate::ids::{FIRST_ID, Ino, POOL, ROOT, SegmentId, TxId};
use crate::log::ledger::{Ledger, Placed};
use crate::log::record::Record;
use crate::log::tier::{PM, PM_NAME, Tier};
use crate::tree::object::{Content, FIRST_SEQ, Object};
use crate::tree::objects::Objects;
use crate::tree::owned::Owned;
use crate::tree::xattrs::{Names, Xattrs};

/// The longest path that a call takes.
pub(super) const PATH_MAX: usize = 4095;

/// The tree and the files as all stored transactions made them.
#[derive(Debug)]
pub struct View {
    pub(super) objects: Objects,
    pub(super) xattr_names: Names,
    next_id: u64,
    pub(super) ledger: Ledger,
    pub(super) retired: BTreeMap<TxId, (TxId, Placed)>,
    /// By number; those that were removed are among them. With the length of each record.
    pub(super) tiers: BTreeMap<u8, (Tier, Placed, usize)>,
    pub(super) placement: Option<(Box<str>, Placed, usize)>,
    pub(super) pool_seq: u64,
    pub(super) totals: Totals,
    /// What the named files of each tier have together.
    pub(super) by_tier: BTreeMap<u8, TierTotals>,
    /// What is counted of extended attributes for each owner who has some.
    pub(super) by_owner: BTreeMap<u32, u64>,
    /// What is counted of objects for their owners.
    pub(super) owned: Owned,
    /// Files that are marked as damaged.
    pub(super) damaged: BTreeSet<Ino>,
    /// Segments that an applied record took from their file; whoever applied it queues them for removal.
    pub(super) freed: Vec<(SegmentId, u64)>,
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

impl Totals {
    /// Those of one object.
    pub fn of(object: &Object) -> Self {
        Self {
            files: object.is_file().into(),
            directories: object.is_dir().into(),
            objects: 1,
            allocated: object.allocated(),
        }
    }
}

impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            directories: self.directories + other.directories,
            objects: self.objects + other.objects,
            allocated: self.allocated.saturating_add(other.allocated),
        }
    }
}

/// Counts over the files of a tier that have a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierTotals {
    /// How many there are. One without a segment counts as one of the pool's own directory.
    pub files: u64,
    /// Bytes that the host has allocated to them, as last recorded.
    pub allocated: u64,
    /// Their sizes together.
    pub bytes: u64,
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
            by_tier: BTreeMap::new(),
            by_owner: BTreeMap::new(),
            owned: Owned::default(),
            damaged: BTreeSet::new(),
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
        #[cfg(test)]
        walks::COUNT.set(walks::COUNT.get() + 1);
        self.objects.iter()
    }

    /// What a name in a directory points to.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        match &self.objects.get(&dir)?.content {
            Content::Directory(dir) => dir.entries.get(name).map(|entry| entry.ino),
            _ => None,
        }
    }

    /// What a directory is called in its own; `None` of the root, and of one that has no name any more.
    pub fn name_of_directory(&self, dir: Ino) -> Option<&[u8]> {
        let Content::Directory(own) = &self.objects.get(&dir)?.content else { return None };
        let Content::Directory(parent) = &self.objects.get(&own.parent?)?.content else { return None };
        let name = parent.order.get(&own.place)?;
        parent.entries.get(name).filter(|entry| entry.ino == dir).map(|_| &**name)
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

    /// Of the names in a directory those that are called as plans of checkpoints, in their order, and what has them.
    pub fn plans_in(&self, dir: Ino) -> impl Iterator<Item = (&[u8], Ino)> {
        let dir = match self.objects.get(&dir).map(|object| &object.content) {
            Some(Content::Directory(dir)) => Some(dir),
            _ => None,
        };
        dir.into_iter().flat_map(|dir| dir.plans.iter().filter_map(|name| Some((&**name, dir.entries.get(name)?.ino))))
    }

    /// Counts over the whole view.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Counts over the named files of a tier.
    pub fn tier_totals(&self, tier: u8) -> TierTotals {
        self.by_tier.get(&tier).copied().unwrap_or_default()
    }

    /// The memory that the extended attributes of an owner's objects take, but for the first KiB of each object.
    pub fn xattrs_of(&self, uid: u32) -> u64 {
        self.by_owner.get(&uid).copied().unwrap_or(0)
    }

    /// The memory that is counted of an owner's objects, and of those of all owners but root
    /// ([`Object::taken`]).
    pub fn taken_by(&self, uid: u32) -> (u64, u64) {
        (self.owned.of(uid), self.owned.of_users())
    }

    /// By how much more that would be if these attributes of an object, which need not be there yet, were set.
    pub fn xattr_growth<'a>(&self, ino: Ino, set: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> u64 {
        match self.object(ino) {
            Some(object) => object.xattrs.growth(set),
            None => Xattrs::default().growth(set),
        }
    }

    /// The files that are marked as damaged.
    pub fn damaged(&self) -> impl Iterator<Item = Ino> {
        self.damaged.iter().copied()
    }

    /// What a path from the root leads to; no link is followed.
    pub fn resolve(&self, path: &[u8]) -> Option<Ino> {
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.try_fold(ROOT, |dir, part| self.lookup(dir, part))
    }

    /// Live records.
    pub fn records(&self) -> u64 {
        self.ledger.records()
    }

    /// The path of an object from the root, by the first name found for each step; for messages, as it searches. `None`
    /// of one that is longer than any call takes.
    pub fn path_of(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut parts: Vec<Arc<[u8]>> = Vec::new();
        let (mut at, mut len) = (ino, 0);
        while len <= PATH_MAX {
            if at == ROOT {
                let mut path = Vec::new();
                for part in parts.iter().rev() {
                    path.push(b'/');
                    path.extend_from_slice(part);
                }
                return Some(if path.is_empty() { b"/".to_vec() } else { path });
            }
            let (dir, name) = self.name_of(at)?;
            len += 1 + name.len();
            parts.push(name);
            at = dir;
        }
        None
    }

    /// All names, in no order: directory, name, and what has it.
    pub(super) fn names(&self) -> impl Iterator<Item = (Ino, &Arc<[u8]>, Ino)> {
        let directories = self.objects.iter().filter_map(|(dir, object)| match &object.content {
            Content::Directory(content) => Some((dir, content)),
            _ => None,
        });
        directories.flat_map(|(dir, content)| content.entries.iter().map(move |(name, entry)| (dir, name, entry.ino)))
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Arc<[u8]>)> {
        let named = |dir: Ino, object: &Object| match &object.content {
            Content::Directory(content) => {
                content.entries.iter().find(|(_, e)| e.ino == ino).map(|(name, _)| (dir, name.clone()))
            }
            _ => None,
        };
        let object = self.objects.get(&ino)?;
        if object.names() == 0 {
            return None;
        }
        match object.parent() {
            Some(parent) => named(parent, self.objects.get(&parent)?),
            None => self.objects.iter().find_map(|(dir, object)| named(dir, object)),
        }
    }

    /// The next number of the counter that objects and segments share.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Draws from the counter that objects and segments share.
    pub(crate) fn draw_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// The next number of the counter that objects and segments share is `at_least` this one.
    pub(crate) fn raise_next_id(&mut self, at_least: u64) {
        self.next_id = self.next_id.max(at_least);
    }

    /// Where the live records are.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The log block of that incarnation is no longer in the log.
    pub(crate) fn forget_block(&mut self, incarnation: u64) {
        self.ledger.forget_block(incarnation);
    }

    /// Segments that applied records took from their files since this was called last, and what was recorded of each:
    /// they are to be removed.
    pub(crate) fn take_freed(&mut self) -> Vec<(SegmentId, u64)> {
        std::mem::take(&mut self.freed)
    }

    /// The sequence number for the next record of a chain.
    pub(crate) fn next_seq(&self, ino: Ino) -> u64 {
        if ino == POOL {
            return self.pool_seq + 1;
        }
        self.objects.get(&ino).map_or(FIRST_SEQ, |object| object.last_seq + 1)
    }

    /// The tiers of the pool beside its own directory, by number.
    pub fn tiers(&self) -> impl Iterator<Item = (u8, &Tier)> {
        self.tiers.iter().filter(|(_, (tier, ..))| !tier.is_removed()).map(|(number, (tier, ..))| (*number, tier))
    }

    /// What stands for a remote among the tiers, if files are away, or were.
    pub fn remote(&self) -> Option<(u8, &Tier)> {
        self.tiers().find(|(_, tier)| tier.remote)
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
}

/// How often this thread went through all objects of a view.
#[cfg(test)]
pub(crate) mod walks {
    thread_local! {
        pub static COUNT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
}

//! Which segments may have bytes, or a name, that are not durable.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::ids::{Ino, SegmentId};
use crate::segment::home::shard;

/// What is not known to be durable, and what a sync of it said.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    pub tracked: Mutex<Tracking>,
    /// The directories of these segments may not have been synced since they were created, by tier.
    pub grown: Mutex<BTreeMap<u8, Grown>>,
    pub failed: Mutex<Failures>,
    /// Held while a segment is synced: one at a time, and until a failure is kept in mind.
    pub turns: Mutex<FxHashMap<SegmentId, Arc<Mutex<()>>>>,
    /// How often a segment became due without a record that says so.
    pub touches: AtomicU64,
    /// When failures were told of last, and how many at that time.
    pub told: Mutex<Option<(Instant, usize)>>,
}

/// So many failures are told of, each with its segment, ...
const TOLD: usize = 3;

/// ... in so long a time: where a directory is gone, all that is in it fails.
const TOLD_IN: Duration = Duration::from_secs(10);

impl Unsynced {
    /// Tells that a segment could not be synced, unless that was told of many just now.
    pub fn tell(&self, segment: impl Display, why: impl Display) {
        let mut told = self.told.lock();
        let (since, count) = told.filter(|(since, _)| since.elapsed() < TOLD_IN).unwrap_or((Instant::now(), 0));
        *told = Some((since, count + 1));
        drop(told);
        match count {
            ..TOLD => log::error!("{segment}: sync failed: {why}"),
            TOLD => log::error!("{segment}: sync failed, and that of more: `tensorfs check` has them all"),
            _ => log::debug!("{segment}: sync failed: {why}"),
        }
    }

    /// The segment is about to be removed.
    pub fn forget(&self, id: SegmentId) {
        let gone = self.tracked.lock().remove(id);
        // The descriptor is closed without the lock.
        drop(gone);
        self.failed.lock().forget(id);
    }

    /// Every segment that may have bytes that are not durable, and its descriptor.
    pub fn descriptors(&self) -> Vec<(SegmentId, Arc<OwnedFd>)> {
        self.tracked.lock().all.iter().map(|(id, entry)| (*id, entry.fd.clone())).collect()
    }

    /// The descriptor that is held to sync the segment.
    pub fn descriptor(&self, id: SegmentId) -> Option<Arc<OwnedFd>> {
        self.tracked.lock().get(id).map(|entry| entry.fd.clone())
    }

    /// A sync of the segment failed.
    pub fn fail(&self, id: SegmentId) {
        let owner = self.tracked.lock().get(id).and_then(|entry| entry.owner.or(entry.ino));
        self.failed.lock().add(id, owner);
    }
}

/// A segment that may have bytes that are not durable.
#[derive(Debug)]
pub(super) struct Tracked {
    pub fd: Arc<OwnedFd>,
    /// See [`crate::segment::collisions`].
    pub witness: Option<Arc<OwnedFd>>,
    /// Somebody has had it open since before this server, who may write it directly.
    pub unsaid: bool,
    pub writers: u32,
    /// The next commit must sync it.
    pub due: bool,
    /// May have been written since the last sync.
    pub dirty: bool,
    /// Counts how often it became due.
    pub calls: u64,
    /// The file that has it, once a record says so.
    pub ino: Option<Ino>,
    /// The file that it is for, whether a record says so or not.
    pub owner: Option<Ino>,
    /// Some record speaks of bytes in it.
    pub mentioned: bool,
    /// The log holds the file's bytes: the number of the value's record, while the segment may not hold them durably.
    pub value: Option<u64>,
    /// Nothing was recorded since the value, so that no commit need sync the segment.
    pub covered: bool,
}

impl Tracked {
    fn new(fd: Arc<OwnedFd>) -> Self {
        Self {
            fd,
            witness: None,
            unsaid: false,
            writers: 0,
            due: false,
            dirty: false,
            calls: 0,
            ino: None,
            owner: None,
            mentioned: false,
            value: None,
            covered: false,
        }
    }

    pub fn call(&mut self) {
        self.due = true;
        self.dirty = true;
        self.covered = false;
        self.calls += 1;
    }

    /// True if its name has to be durable: of one that no record speaks of, or whose bytes the log holds, recovery can
    /// create the segment again.
    fn needs_name(&self) -> bool {
        self.mentioned && !self.covered
    }
}

/// The segments that may have bytes that are not durable. What a commit or an fsync looks for among them is listed, so
/// that it takes no longer because many files are open.
#[derive(Debug, Default)]
pub(super) struct Tracking {
    all: FxHashMap<SegmentId, Tracked>,
    due: BTreeSet<SegmentId>,
    covered: BTreeSet<SegmentId>,
    /// Changed since a commit looked last, and in need of a durable name.
    named: BTreeSet<SegmentId>,
    /// So many have a witness.
    witnesses: usize,
}

fn list(set: &mut BTreeSet<SegmentId>, id: SegmentId, is_in: bool) {
    if is_in {
        set.insert(id);
    } else {
        set.remove(&id);
    }
}

impl Tracking {
    /// The descriptors that are held.
    pub fn descriptors(&self) -> usize {
        self.all.len() + self.witnesses
    }

    pub fn get(&self, id: SegmentId) -> Option<&Tracked> {
        self.all.get(&id)
    }

    /// Changes an entry, if it is there: the only way to do so.
    pub fn change<T>(&mut self, id: SegmentId, change: impl FnOnce(&mut Tracked) -> T) -> Option<T> {
        let entry = self.all.get_mut(&id)?;
        self.witnesses -= usize::from(entry.witness.is_some());
        let result = change(entry);
        self.witnesses += usize::from(entry.witness.is_some());
        list(&mut self.due, id, entry.due);
        list(&mut self.covered, id, entry.covered);
        list(&mut self.named, id, entry.needs_name());
        Some(result)
    }

    /// Has an entry from now on. Returns the descriptor if it has one already.
    pub fn add(&mut self, id: SegmentId, fd: Arc<OwnedFd>) -> Option<Arc<OwnedFd>> {
        match self.all.entry(id) {
            std::collections::hash_map::Entry::Occupied(_) => Some(fd),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Tracked::new(fd));
                None
            }
        }
    }

    pub fn remove(&mut self, id: SegmentId) -> Option<Tracked> {
        self.due.remove(&id);
        self.covered.remove(&id);
        self.named.remove(&id);
        let gone = self.all.remove(&id)?;
        self.witnesses -= usize::from(gone.witness.is_some());
        Some(gone)
    }

    /// Those that the next commit must sync.
    pub fn due(&self) -> impl Iterator<Item = (SegmentId, &Tracked)> {
        self.due.iter().filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    /// Those whose bytes the log holds alone.
    pub fn covered(&self) -> impl Iterator<Item = (SegmentId, &Tracked)> {
        self.covered.iter().filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    /// Those whose names a commit that begins now has to make durable, if they are not so yet.
    pub fn take_named(&mut self) -> BTreeSet<SegmentId> {
        std::mem::take(&mut self.named)
    }

    pub fn ids(&self) -> Vec<SegmentId> {
        self.all.keys().copied().collect()
    }
}

/// Names in a directory of segments that may not be durable.
#[derive(Debug, Default)]
pub(super) struct Grown {
    /// The directory of the directories.
    pub top: bool,
    pub shards: FxHashSet<u8>,
    /// So many are making directories: who finds one that is there may find it before its name is durable.
    pub making: u32,
    segments: FxHashMap<u8, FxHashSet<SegmentId>>,
}

impl Grown {
    /// These directories, and perhaps the directory of the directories.
    pub fn of(top: bool, shards: FxHashSet<u8>) -> Self {
        Self { top, shards, ..Self::default() }
    }

    /// The segment was created.
    pub fn add(&mut self, id: SegmentId) {
        self.top |= self.making > 0;
        self.segments.entry(shard(id)).or_default().insert(id);
    }

    pub fn has(&self, id: SegmentId) -> bool {
        self.segments.get(&shard(id)).is_some_and(|segments| segments.contains(&id))
    }

    /// Its name is durable, or gone.
    pub fn forget(&mut self, id: SegmentId) {
        if let Some(segments) = self.segments.get_mut(&shard(id)) {
            segments.remove(&id);
        }
    }

    /// Every name has to be durable.
    pub fn take_all(&mut self) {
        self.shards.extend(self.segments.drain().map(|(shard, _)| shard));
    }

    /// What is to be synced, if these names have to be durable.
    pub fn take(&mut self, named: impl Iterator<Item = SegmentId>) -> Self {
        let mut shards = std::mem::take(&mut self.shards);
        shards.extend(named.filter(|id| self.has(*id)).map(shard));
        shards.iter().for_each(|shard| drop(self.segments.remove(shard)));
        let top = !shards.is_empty() && std::mem::take(&mut self.top);
        Self::of(top, shards)
    }
}

/// Segments with a failed sync.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// And the file that they are for, as far as it is known.
    all: FxHashMap<SegmentId, Option<Ino>>,
    /// Those of them whose file is not marked as damaged yet.
    unmarked: BTreeSet<SegmentId>,
    /// Those of them whose file was looked for everywhere.
    searched: FxHashSet<SegmentId>,
}

impl Failures {
    fn add(&mut self, id: SegmentId, owner: Option<Ino>) {
        let known = self.all.entry(id).or_default();
        *known = known.or(owner);
        self.unmarked.insert(id);
    }

    /// One whose file is marked.
    pub fn add_marked(&mut self, id: SegmentId, ino: Ino) {
        self.all.insert(id, Some(ino));
    }

    pub fn forget(&mut self, id: SegmentId) {
        self.all.remove(&id);
        self.unmarked.remove(&id);
        self.searched.remove(&id);
    }

    pub fn has(&self, id: SegmentId) -> bool {
        self.all.contains_key(&id)
    }

    /// A record is about to say whose it is.
    pub fn belongs(&mut self, id: SegmentId, ino: Ino) {
        if let Some(owner) = self.all.get_mut(&id) {
            *owner = Some(ino);
        }
    }

    /// Those whose file is not marked yet, with the file.
    pub fn unmarked(&self) -> Vec<(SegmentId, Option<Ino>)> {
        self.unmarked.iter().map(|id| (*id, self.all.get(id).copied().flatten())).collect()
    }

    /// True once for each: its file is looked for everywhere.
    pub fn search(&mut self, id: SegmentId) -> bool {
        self.searched.insert(id)
    }

    pub fn set_marked(&mut self, id: SegmentId) {
        self.unmarked.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracking(ids: impl Iterator<Item = u64>) -> Tracking {
        let mut tracking = Tracking::default();
        for id in ids {
            assert!(tracking.add(SegmentId(id), Arc::new(tempfile::tempfile().unwrap().into())).is_none());
        }
        tracking
    }

    #[test]
    fn what_a_commit_looks_for_is_listed() {
        let mut tracking = tracking(0..100);
        let due = |tracking: &Tracking| tracking.due().map(|(id, _)| id.0).collect::<Vec<_>>();
        assert!(due(&tracking).is_empty());
        for id in [7, 3] {
            tracking.change(SegmentId(id), Tracked::call);
        }
        assert_eq!(due(&tracking), [3, 7]);
        tracking.change(SegmentId(3), |entry| (entry.due, entry.covered, entry.mentioned) = (false, true, true));
        assert_eq!(due(&tracking), [7]);
        assert_eq!(tracking.covered().map(|(id, _)| id.0).collect::<Vec<_>>(), [3]);
        assert!(tracking.take_named().is_empty());
        tracking.change(SegmentId(3), Tracked::call);
        assert_eq!(tracking.covered().count(), 0);
        assert_eq!(tracking.take_named().into_iter().collect::<Vec<_>>(), [SegmentId(3)]);
        tracking.remove(SegmentId(3));
        assert_eq!((due(&tracking), tracking.descriptors()), (vec![7], 99));
    }

    #[test]
    fn names_are_synced_once_and_only_where_they_have_to_be() {
        let mut grown = Grown { top: true, ..Grown::default() };
        (0..1000).for_each(|id| grown.add(SegmentId(id)));
        assert!(!grown.take(std::iter::empty()).top);
        let due = grown.take([SegmentId(5), SegmentId(300), SegmentId(7)].into_iter());
        assert_eq!((due.top, due.shards.len()), (true, 2));
        assert!(grown.take([SegmentId(5)].into_iter()).shards.is_empty());
        assert!(grown.has(SegmentId(600)) && !grown.has(SegmentId(6)));
    }

    #[test]
    fn the_file_of_a_failed_segment_is_kept_with_it() {
        let (mut failures, one) = (Failures::default(), SegmentId(1));
        failures.add(one, None);
        assert_eq!(failures.unmarked(), [(one, None)]);
        assert!(failures.search(one) && !failures.search(one));
        failures.belongs(one, Ino(7));
        failures.add(one, None);
        assert_eq!(failures.unmarked(), [(one, Some(Ino(7)))]);
        failures.set_marked(one);
        assert!(failures.unmarked().is_empty() && failures.has(one));
    }
}

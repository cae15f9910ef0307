//! Which segments may have bytes that are not durable.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::ids::{Ino, SegmentId};
use crate::segment::home::shard;
use crate::segment::segments::Segments;
use crate::segment::unsynced::{Grown, Tracked, Tracking};

/// What a segment that a commit has to sync is known for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueSegment {
    /// The segment.
    pub segment: SegmentId,
    /// The file that has it, if that is recorded.
    pub ino: Option<Ino>,
}

/// What one commit has to sync.
#[derive(Debug)]
pub(crate) struct Due {
    pub(super) segments: Vec<(SegmentId, Arc<OwnedFd>)>,
    pub(super) grown: BTreeMap<u8, Grown>,
    /// Values of the log that are not needed any more once the segments are synced.
    pub(super) values: Vec<(SegmentId, Ino, u64)>,
    pub touches: u64,
}

impl Segments {
    /// Must be called before anything can write to the segment. Returns the read-only descriptor that will sync it,
    /// held until a commit has synced it after the matching [`Segments::end_write`].
    pub fn begin_write(&self, id: SegmentId) -> io::Result<Arc<OwnedFd>> {
        self.track(id, |entry| {
            entry.writers += 1;
            entry.dirty = true;
            entry.fd.clone()
        })
    }

    /// As [`Segments::begin_write`], with a descriptor that [`Segments::create`] returned.
    pub fn begin_first_write(&self, id: SegmentId, fd: Arc<OwnedFd>) -> Arc<OwnedFd> {
        let mut tracked = self.unsynced.tracked.lock();
        let spare = tracked.add(id, fd.clone());
        let begun = tracked.change(id, |entry| {
            entry.writers += 1;
            entry.dirty = true;
            entry.fd.clone()
        });
        drop(tracked);
        drop(spare);
        begun.unwrap_or(fd)
    }

    /// What is written to the segment is the file's, whether that is recorded or not.
    pub fn belongs(&self, id: SegmentId, ino: Ino) {
        self.unsynced.tracked.lock().change(id, |entry| entry.owner = Some(ino));
    }

    /// One writer less.
    pub fn end_write(&self, id: SegmentId) {
        self.unsynced.tracked.lock().change(id, |entry| {
            entry.writers = entry.writers.saturating_sub(1);
            if entry.dirty && !entry.due && !entry.covered {
                entry.call();
                self.unsynced.touches.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// The segment's bytes may have changed: the next commit syncs it.
    pub fn touch(&self, id: SegmentId) -> io::Result<()> {
        self.track(id, |entry| {
            entry.call();
            self.unsynced.touches.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// A record that is about to be stored speaks of bytes in the segment, which may be `new`, or were durable before.
    /// On an error it must not be stored. Unless they are `durable` the next commit syncs it.
    ///
    /// The pool's state is locked, so that nothing here may wait for the host: whoever has a record of new bytes stored
    /// has announced writes to the segment. Only in recovery, where nobody waits, it is opened here.
    pub(crate) fn mention(&self, id: SegmentId, ino: Ino, new: bool, durable: bool) -> io::Result<()> {
        self.unsynced.failed.lock().belongs(id, ino);
        if !new && self.unsynced.tracked.lock().get(id).is_none() {
            // There is nothing to sync but its name, which a commit that forgot the segment did not know to be needed.
            if let Some(grown) = self.unsynced.grown.lock().get_mut(&id.tier()).filter(|grown| grown.has(id)) {
                grown.shards.insert(shard(id));
            }
            return Ok(());
        }
        self.track(id, |entry| {
            // A commit that is under way forgets what has nothing to sync, though the record that covers it comes next.
            entry.dirty |= new;
            // What ends a value has the segment synced in any case: bytes that came after the sync that made others
            // durable may be durable by the value alone.
            if !durable || entry.covered {
                entry.call();
            }
            (entry.ino, entry.mentioned) = (Some(ino), true);
        })
    }

    /// The file's bytes were stored in the log, in a record with this sequence number that counts: no commit need sync
    /// the segment, until more is recorded of it.
    pub(crate) fn cover(&self, id: SegmentId, ino: Ino, seq: u64) {
        self.unsynced.tracked.lock().change(id, |entry| {
            (entry.due, entry.covered, entry.value) = (false, true, Some(seq));
            (entry.ino, entry.mentioned) = (Some(ino), true);
        });
    }

    /// Somebody relies once more on the value that holds the bytes of the segment: what is being synced may not be
    /// these bytes. False if they are not to be found in the log alone.
    pub fn hold_value(&self, id: SegmentId) -> bool {
        let held = self.unsynced.tracked.lock().change(id, |entry| {
            entry.calls += u64::from(entry.covered);
            entry.covered
        });
        held.unwrap_or(false)
    }

    /// The log does not hold the bytes of the segment after all: the next commit syncs it.
    pub(crate) fn recall(&self, id: SegmentId) {
        self.unsynced.tracked.lock().change(id, Tracked::call);
    }

    /// What a commit has to sync now, if that is no more than `most`.
    pub fn due(&self, most: usize) -> Option<Vec<DueSegment>> {
        let tracked = self.unsynced.tracked.lock();
        let due = tracked.due().map(|(segment, entry)| DueSegment { segment, ino: entry.ino });
        let due: Vec<DueSegment> = due.take(most + 1).collect();
        Some(due).filter(|due| due.len() <= most)
    }

    /// Recovery is about to write what the log has as a file's bytes, in the record with that sequence number. The
    /// segment's name may not be durable either.
    pub(crate) fn begin_restore(&self, id: SegmentId, ino: Ino, seq: u64) -> io::Result<()> {
        let mut grown = self.unsynced.grown.lock();
        let home = grown.entry(id.tier()).or_default();
        home.top = true;
        home.shards.insert(shard(id));
        drop(grown);
        // All that could not be written is written again.
        self.unsynced.failed.lock().forget(id);
        self.track(id, |entry| {
            (entry.ino, entry.value) = (Some(ino), Some(seq));
            entry.call();
            self.unsynced.touches.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Everything that may have bytes that are not durable is due, whether it is still open for writing or not.
    pub(crate) fn touch_all(&self) {
        for grown in self.unsynced.grown.lock().values_mut() {
            grown.take_all();
        }
        let mut tracked = self.unsynced.tracked.lock();
        for id in tracked.ids() {
            tracked.change(id, Tracked::call);
        }
        drop(tracked);
        self.unsynced.touches.fetch_add(1, Ordering::Relaxed);
    }

    /// The files whose bytes the log holds, while their segments may not hold them durably.
    pub fn covered(&self) -> Vec<Ino> {
        let tracked = self.unsynced.tracked.lock();
        tracked.covered().filter_map(|(_, entry)| entry.ino).collect()
    }

    /// True if the log holds bytes of some file that its segment may not hold durably.
    pub(crate) fn any_covered(&self) -> bool {
        self.unsynced.tracked.lock().covered().next().is_some()
    }

    /// Changes what is known of a segment, which is tracked from now on. The host is asked without any lock.
    fn track<T>(&self, id: SegmentId, change: impl FnOnce(&mut Tracked) -> T) -> io::Result<T> {
        let mut tracked = self.unsynced.tracked.lock();
        let mut spare = None;
        if tracked.get(id).is_none() {
            drop(tracked);
            let fd = Arc::new(self.open(id, libc::O_RDONLY)?);
            tracked = self.unsynced.tracked.lock();
            // Somebody else may have been faster.
            spare = tracked.add(id, fd);
        }
        let changed = tracked.change(id, change);
        drop(tracked);
        drop(spare);
        changed.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// How often a segment became due without a record that says so.
    pub(crate) fn touches(&self) -> u64 {
        self.unsynced.touches.load(Ordering::Relaxed)
    }

    /// What a commit that starts now has to sync.
    pub(crate) fn take_due(&self) -> Due {
        let mut grown = self.unsynced.grown.lock();
        let mut tracked = self.unsynced.tracked.lock();
        let touches = self.touches();
        let (mut segments, mut values) = (Vec::new(), Vec::new());
        let first = |tracked: &Tracking| tracked.due().next().map(|(id, _)| id);
        while let Some(id) = first(&tracked) {
            tracked.change(id, |entry| {
                entry.due = false;
                entry.dirty = entry.writers > 0;
                values.extend(entry.value.take().and_then(|seq| Some((id, entry.ino?, seq))));
                segments.push((id, entry.fd.clone()));
            });
        }
        let named = tracked.take_named();
        // As a rule there is nothing.
        let mut names = BTreeMap::new();
        for (tier, grown) in grown.iter_mut() {
            let new = grown.take(named.iter().copied().filter(|id| id.tier() == *tier));
            if new.top || !new.shards.is_empty() {
                names.insert(*tier, new);
            }
        }
        Due { grown: names, segments, values, touches }
    }

    /// The values of the log that are not needed any more, once what was due is synced.
    pub(crate) fn settled(&self, due: &Due) -> Vec<(Ino, u64)> {
        let failed = self.unsynced.failed.lock();
        let settled = due.values.iter().filter(|(segment, ..)| !failed.has(*segment));
        settled.map(|(_, ino, seq)| (*ino, *seq)).collect()
    }

    /// Segments with a failed sync whose file is not marked as damaged yet, and the file, where it is known.
    pub(crate) fn unmarked(&self) -> Vec<(SegmentId, Option<Ino>)> {
        self.unsynced.failed.lock().unmarked()
    }

    /// True once for each of these: all files are looked at for the one that has it.
    pub(crate) fn search(&self, id: SegmentId) -> bool {
        self.unsynced.failed.lock().search(id)
    }

    /// A sync of the segment had failed before an earlier server died, and its file is marked as damaged.
    pub(crate) fn failed_before(&self, id: SegmentId, ino: Ino) {
        self.unsynced.failed.lock().add_marked(id, ino);
    }

    /// The file that has the segment is marked as damaged, in a record that was stored.
    pub(crate) fn set_marked(&self, id: SegmentId) {
        self.unsynced.failed.lock().set_marked(id);
    }

    /// Descriptors held for syncing.
    pub fn dirty_count(&self) -> usize {
        self.unsynced.tracked.lock().descriptors()
    }

    /// True if the segment may have bytes that the next commit, or the one under way, makes durable.
    pub fn is_pending(&self, id: SegmentId) -> bool {
        self.unsynced.tracked.lock().get(id).is_some_and(|entry| entry.writers > 0 || !entry.covered)
    }

    /// True if a sync of the segment failed, so that what it holds may not be what was written.
    pub fn failed(&self, id: SegmentId) -> bool {
        self.unsynced.failed.lock().has(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium;
    use crate::medium::dir::Dir;

    fn segments(pool: &std::path::Path) -> Segments {
        std::fs::create_dir(pool.join("segments")).unwrap();
        let log = std::fs::File::create_new(pool.join("log")).unwrap();
        Segments::open_all(&Dir::open(pool).unwrap(), medium::open(log).unwrap().into()).unwrap()
    }

    fn written(segments: &Segments, id: SegmentId) {
        segments.create(id).unwrap();
        segments.begin_write(id).unwrap();
        segments.end_write(id);
    }

    /// A commit that began before ends in the middle of a change.
    #[test]
    fn a_segment_whose_value_is_being_stored_is_not_forgotten_by_a_commit() {
        let dir = tempfile::tempdir().unwrap();
        let (segments, id, ino) = (segments(dir.path()), SegmentId(3), Ino(4));
        written(&segments, id);
        let due = segments.take_due();
        segments.mention(id, ino, true, true).unwrap();
        segments.sync(&due, |_, _| None).unwrap();
        segments.cover(id, ino, 1);
        assert_eq!(segments.covered(), [ino]);
        assert!(!segments.take_due().grown.values().any(|grown| !grown.shards.is_empty()), "the log holds it");
    }

    #[test]
    fn a_witness_counts_among_the_descriptors_for_as_long_as_it_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let (segments, id) = (segments(dir.path()), SegmentId(3));
        segments.create(id).unwrap();
        segments.begin_write(id).unwrap();
        assert_eq!(segments.dirty_count(), 1);
        (0..2).for_each(|_| segments.expect_collisions(id));
        assert_eq!(segments.dirty_count(), 2);
        segments.end_write(id);
        segments.sync(&segments.take_due(), |_, _| None).unwrap();
        assert_eq!(segments.dirty_count(), 0);
    }

    #[test]
    fn a_commit_that_forgot_a_segment_leaves_its_name_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (segments, id) = (segments(dir.path()), SegmentId(3));
        written(&segments, id);
        segments.sync(&segments.take_due(), |_, _| None).unwrap();
        assert_eq!(segments.dirty_count(), 0);
        segments.mention(id, Ino(4), false, true).unwrap();
        assert!(segments.take_due().grown.values().any(|grown| grown.shards.contains(&shard(id))));
    }
}

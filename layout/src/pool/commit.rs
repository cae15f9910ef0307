//! Commits: what was stored becomes durable, in order.

use std::collections::HashSet;
use std::io;

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId, TxId};
use crate::log::blocks::Reserve;
use crate::log::draft::Draft;
use crate::log::record::{Attributes, Record};
use crate::log::superblock::Superblock;
use crate::log::transaction::Transaction;
use crate::medium::domain::Medium;
use crate::pool::commits::BeforeMoves;
use crate::pool::edit::Edit;
use crate::pool::opened::Pool;
use crate::tree::object::Object;

/// A commit that has taken what is due to be synced. If it panics, nobody knows what of that is durable.
struct UnderWay<'a>(&'a Pool);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("committing", &io::Error::other("it panicked, see the log"));
        }
    }
}

impl Pool {
    /// Returns once everything up to `upto`, and every segment touched before the call, is durable. Concurrent callers
    /// share the work. Whether the sync of a particular segment failed,
    /// [`Segments::failed`](crate::segment::Segments::failed) tells.
    pub fn commit(&self, upto: TxId) -> Result<()> {
        let touches = self.segments.touches();
        let done = || self.horizon() >= upto && self.commits.touches() >= touches;
        self.commits.wait(done, || self.commit_or_note())
    }

    /// Makes durable what was written to a segment before the call, beside whatever commit goes on: who waits for one
    /// file does its sync itself, as on any filesystem, and the commit behind it finds only the log left to flush.
    /// False if the segment is not open for writing, or if the sync failed, which is recorded at once.
    pub fn sync_early(&self, segment: SegmentId) -> Result<bool> {
        let done = self.segments.sync_early(segment);
        if !done {
            self.mark_damaged()?;
        }
        Ok(done)
    }

    /// A segment's bytes may have changed: the next commit syncs it.
    pub fn touch(&self, segment: SegmentId) -> Result<()> {
        let touched = self.segments.touch(segment);
        touched.map_err(|error| Error::io(self.segments.path_of(segment), "open to sync", error))
    }

    /// Has `before` called before a commit passes transactions that moved directories, with those directories: it
    /// records what is to be durable as soon as their new names are. Whoever commits waits for it.
    pub fn before_moves(&self, before: BeforeMoves) {
        self.commits.before_moves(before);
    }

    /// As [`Pool::commit`], for whoever stored a transaction and touched nothing beyond it.
    pub fn commit_stored(&self, upto: TxId) -> Result<()> {
        self.commits.wait(|| self.horizon() >= upto, || self.commit_or_note())
    }

    fn commit_or_note(&self) -> Result<()> {
        self.commit_now().inspect_err(|_| self.note_untold())
    }

    /// Rule 3: N is the newest transaction; sync every segment that data records up to N speak of; then let a frame
    /// carry horizon N, and persist it together with all frames before it.
    fn commit_now(&self) -> Result<()> {
        self.check_writable()?;
        let _commit = UnderWay(self);
        // What they may have hurt is recorded by this commit, or was by an earlier one.
        let errors = self.segments.host_errors();
        let (mut settled, mut said) = (Vec::new(), 0);
        let (upto, touches) = loop {
            // What lies below a directory counts from its new name on.
            self.commits.settle_moves()?;
            let (upto, due) = {
                // With nobody in the middle of a change: what it mentions of segments belongs to its transaction.
                let state = self.live_unchanging();
                (self.commits.passable(state.log.newest()), self.segments.take_due())
            };
            self.segments
                .sync(&due, |ino, seq| self.value(ino, seq))
                .map_err(|error| self.fail("syncing the segments", &error))?;
            settled.extend(self.segments.settled(&due));
            // The horizon may pass damaged files only together with the word that they are; what was stored meanwhile
            // has to be synced for that, too.
            if self.mark_damaged()? {
                said = self.newest().0;
            } else if upto >= said {
                break (upto, due.touches);
            }
        };
        let mut draft = Draft::new(0);
        draft.propose(upto);
        let mut state = self.state_for_commit(&draft);
        if !settled.is_empty() {
            state.with_upgraded(|live| settled.into_iter().for_each(|(ino, seq)| live.view.settle_value(ino, seq)));
        }
        if state.log.horizon() < upto {
            let covered = if upto == state.log.newest() { upto + 1 } else { upto };
            self.append(&mut state, draft, Reserve::Cleaning, |_, _| ())?;
            drop(state);
            self.medium.persist().map_err(|error| self.fail("persisting the log", &error))?;
            let mut state = self.state.write();
            state.log.raise_horizon(covered);
            drop(state);
            self.commits.durable(covered);
        }
        self.commits.touched(touches);
        self.note_host_errors(&errors)
    }

    /// The next server need not heed again what is recorded.
    fn note_host_errors(&self, errors: &[(u8, u16)]) -> Result<()> {
        let known = |superblock: &Superblock| errors.iter().all(|(tier, mark)| superblock.host_errors(*tier) == *mark);
        if self.superblock.of(known) {
            return Ok(());
        }
        let written = self.superblock.change(&*self.medium, |superblock| superblock.set_host_errors(errors));
        written.map_err(|error| self.fail("writing the superblock", &error))
    }

    /// Records which files have a segment whose sync failed; true if there is one of which that was not recorded yet. A
    /// segment that no file has, as one that is to replace another, is kept in mind until a file has it.
    pub(super) fn mark_damaged(&self) -> Result<bool> {
        self.mark_unmarked().inspect_err(|_| self.note_untold())
    }

    fn mark_unmarked(&self) -> Result<bool> {
        let failed = self.segments.unmarked();
        if failed.is_empty() {
            return Ok(false);
        }
        // A segment that nobody said the file of is looked for among all files, but not again at every commit: whatever
        // record gives it to a file says so.
        let lost: Vec<SegmentId> =
            failed.iter().filter(|(id, ino)| ino.is_none() && self.segments.search(*id)).map(|(id, _)| *id).collect();
        let mut stored = false;
        let marked = match self.mark_files(self.edit_with_any_room(), (&failed, &lost), &mut stored) {
            // Cleaning may be what commits: only where nothing at all is left, room is waited for.
            Err(Error::NoSpace { .. }) => self.mark_files(self.edit(), (&failed, &lost), &mut stored),
            marked => marked,
        };
        match marked {
            // Without the word there can be no horizon any more.
            Err(Error::NoSpace { .. }) => Err(self.fail("recording a failed sync", &io::ErrorKind::StorageFull.into())),
            marked => marked.map(|()| stored),
        }
    }

    /// Records of files whose segments have `failed`, and of those that have one that is `lost`, that they are damaged.
    fn mark_files(
        &self,
        mut edit: Edit<'_>,
        (failed, lost): (&[(SegmentId, Option<Ino>)], &[SegmentId]),
        stored: &mut bool,
    ) -> Result<()> {
        let attributes = |ino: Ino, segment: SegmentId, object: &Object| {
            let attributes = &object.attributes;
            (attributes.segment == Some(segment)).then(|| (ino, segment, attributes.clone()))
        };
        let known = failed.iter().filter_map(|(segment, ino)| attributes((*ino)?, *segment, edit.object((*ino)?)?));
        let mut files: Vec<(Ino, SegmentId, Attributes)> = known.collect();
        if !lost.is_empty() {
            let found = |(ino, object): (Ino, &Object)| {
                attributes(ino, object.attributes.segment.filter(|segment| lost.contains(segment))?, object)
            };
            files.extend(edit.objects().filter_map(found));
        }
        for (ino, segment, attributes) in files {
            if !attributes.damaged {
                let attributes = Attributes { damaged: true, ..attributes };
                let word = Transaction::new(0).with(Record::Attributes { ino, attributes });
                edit.store_for_commit(word)?;
                self.commits.failures.add(ino);
                *stored = true;
            }
            self.segments.set_marked(segment);
        }
        Ok(())
    }

    /// Files of which a sync failed, and of which that is not recorded, as the pool may take no more changes; and those
    /// that a recovery has left.
    pub fn unrecorded_failures(&self) -> Vec<Ino> {
        let failed = self.segments.unmarked().into_iter().filter_map(|(_, ino)| ino);
        failed.chain(self.segments.left_files()).collect()
    }

    /// How many files were marked as damaged since the pool was opened, because a sync of theirs failed.
    pub fn failed_syncs(&self) -> u64 {
        self.commits.failures.count()
    }

    /// What could not be synced stays so for whoever has it open, when a server takes the place of another. Nobody may
    /// have heard of a file that was not damaged `before` their mount began.
    pub(super) fn inherit_failures(&self, before: &HashSet<Ino>) {
        let view = self.view();
        for ino in view.damaged() {
            if let Some(segment) = view.object(ino).and_then(|object| object.attributes.segment) {
                self.segments.failed_before(segment, ino);
            }
            if !before.contains(&ino) {
                self.commits.failures.add_untold(ino);
            }
        }
    }

    /// Somebody has heard that this file could not be synced.
    pub fn failure_told(&self, ino: Ino) {
        self.commits.failures.told(ino);
    }

    /// How many files could not be synced of which nobody had heard so far.
    pub fn tell_failures(&self) -> usize {
        self.commits.failures.tell_all()
    }

    /// The pool is quiet: writes the horizon in its two fixed places too, so that damage to the log's last frames
    /// cannot pass for an earlier end of it. Does nothing if that is done already.
    pub fn idle(&self) -> Result<()> {
        self.check_writable()?;
        self.commit(self.newest())?;
        self.mark_horizon()
    }

    pub(super) fn mark_horizon(&self) -> Result<()> {
        let mut marked = self.commits.marked();
        let horizon = self.horizon().0;
        if *marked != horizon {
            let stored = self.superblock.get().store_mark(&*self.medium, horizon);
            let stored = stored.and_then(|()| self.medium.persist());
            stored.map_err(|error| self.fail("persisting the horizon", &error))?;
            *marked = horizon;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ROOT;
    use crate::pool::create::CreateOptions;
    use crate::pool::open::OpenOptions;
    use crate::time::Timestamp;
    use crate::tree::view::walks;

    /// A new name, and a commit of it. How often all objects were looked at for that.
    fn commit_something(pool: &Pool, name: &str) -> u64 {
        let ino = Ino(pool.edit().next_id());
        let now = Timestamp::default();
        let times = (now, now, now, now);
        let (mode, uid, gid, rdev, segment, damaged) = (libc::S_IFREG | 0o644, 0, 0, 0, None, false);
        let (atime, mtime, ctime, btime) = times;
        let attributes = Attributes { mode, uid, gid, rdev, atime, mtime, ctime, btime, segment, damaged };
        let named = Record::Name { dir: ROOT, name: name.as_bytes().into(), ino };
        let made = Transaction::new(0).with(Record::Attributes { ino, attributes }).with(named);
        let newest = pool.edit().store(made).unwrap();
        let before = walks::COUNT.get();
        pool.commit(newest).unwrap();
        walks::COUNT.get() - before
    }

    #[test]
    fn a_failed_segment_that_is_no_files_is_looked_for_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(commit_something(&pool, "before"), 0);
        for n in 0..2 {
            let segment = SegmentId(pool.edit().next_id());
            pool.segments.create(segment).unwrap();
            pool.segments.fail(segment, "a test has it so");
            assert_eq!(commit_something(&pool, &format!("first {n}")), 1);
            for later in 0..5 {
                assert_eq!(commit_something(&pool, &format!("{later} after {n}")), 0);
            }
        }
    }
}

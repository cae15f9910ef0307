//! Syncing segments and their directories.
//!
//! The host tells of a failure once, and often only the call that met it: beginning to write a file, when there is no
//! place for its bytes to be found on the disk; finishing that; or the sync. So whatever begins or waits for writing
//! counts as much as the sync does, and nothing that syncs more than one segment, and cannot say which of them failed,
//! comes before each was asked itself.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;

use crate::ids::{Ino, SegmentId};
use crate::log::tier::PM;
use crate::medium::domain::Medium;
use crate::parallel::overlapping;
use crate::segment::home::{Home, shard};
use crate::segment::host_errors::Mark;
use crate::segment::lost::{has_hole, holds, is_written, lost_in, lost_in_copy};
use crate::segment::segments::Segments;
use crate::segment::tracking::Due;
use crate::segment::unsynced::{Grown, Tracked};
use crate::time::Timestamp;

/// So many segments are worth a thread that syncs them beside others: syncs that wait together share the disk's flush.
const SEGMENTS_PER_THREAD: usize = 8;

/// A segment of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSegment {
    pub id: SegmentId,
    /// So many bytes it has if nobody has written it since all of the file was sealed.
    pub sealed: Option<u64>,
    /// When it was last written, as far as the log knows, where that is to be looked at: what the host drops of a file
    /// whose inode a descriptor holds leaves a hole, and what the log has of a small file is compared by itself.
    pub written: Option<Timestamp>,
}

impl Segments {
    /// Syncs the segments whose bytes only the log holds durably, and their names, beside whatever commit goes on.
    /// `value` gives what the log holds of a file. Returns the values that are not needed any more; an error is one of
    /// a directory.
    pub(crate) fn sync_covered(
        &self,
        value: impl Fn(Ino, u64) -> Option<Box<[u8]>> + Sync,
    ) -> io::Result<Vec<(Ino, u64)>> {
        let covered: Vec<_> = {
            let tracked = self.unsynced.tracked.lock();
            let known = |(id, entry): (SegmentId, &Tracked)| {
                Some((id, entry.fd.clone(), entry.calls, entry.ino?, entry.value?))
            };
            tracked.covered().filter_map(known).collect()
        };
        let (mut settled, mut gone) = (Vec::new(), Vec::new());
        for (tier, home) in self.homes.iter().filter(|(_, home)| !home.is_volatile()) {
            let ours: Vec<_> = covered.iter().filter(|(id, ..)| id.tier() == *tier).collect();
            if ours.is_empty() {
                continue;
            }
            let (names, top) = {
                let grown = self.unsynced.grown.lock();
                let named = |grown: &Grown| {
                    let new = ours.iter().map(|(id, ..)| *id).filter(|id| grown.has(*id));
                    (new.collect::<Vec<_>>(), grown.top)
                };
                grown.get(tier).map(named).unwrap_or_default()
            };
            let shards = names.iter().map(|id| shard(*id)).collect();
            let segments: Vec<_> = ours.iter().map(|(id, fd, ..)| (*id, fd.as_fd())).collect();
            let synced = self.sync_together(home, &segments, &Grown::of(top, shards));
            // Also where no more can be recorded: whoever reads such a file is to know.
            for (id, fd, _, ino, seq) in &ours {
                self.check_value(*id, fd.as_fd(), value(*ino, *seq).as_deref());
            }
            synced?;
            self.look_at_host(home)?;
            if let Some(grown) = self.unsynced.grown.lock().get_mut(tier) {
                names.iter().for_each(|id| grown.forget(*id));
            }
            let mut tracked = self.unsynced.tracked.lock();
            for (id, _, calls, ino, seq) in ours {
                let over = tracked.change(*id, |entry| {
                    // A sync that succeeds after one that failed says nothing of what was written before.
                    if self.failed(*id) {
                        entry.call();
                        self.unsynced.touches.fetch_add(1, Ordering::Relaxed);
                        return false;
                    }
                    if entry.covered && entry.calls != *calls {
                        return false;
                    }
                    settled.push((*ino, *seq));
                    // Unless more was recorded of it meanwhile.
                    let over = entry.covered && entry.value == Some(*seq);
                    if over {
                        (entry.covered, entry.value) = (false, None);
                    }
                    over && entry.writers == 0
                });
                if over == Some(true) {
                    gone.extend(tracked.remove(*id));
                }
            }
        }
        Ok(settled)
    }

    /// Syncs a segment outside any commit. False if it is not open for writing, or the sync failed.
    pub(crate) fn sync_early(&self, id: SegmentId) -> bool {
        let Some((fd, calls)) = self.unsynced.tracked.lock().get(id).map(|entry| (entry.fd.clone(), entry.calls))
        else {
            return false;
        };
        let done = self.sync_one(id, fd.as_fd());
        self.unsynced.tracked.lock().change(id, |entry| match done {
            // Not if it became due again meanwhile.
            true => entry.due &= entry.calls != calls,
            false => {
                entry.call();
                self.unsynced.touches.fetch_add(1, Ordering::Relaxed);
            }
        });
        done
    }

    /// False if it failed, which is kept in mind.
    fn sync_one(&self, id: SegmentId, fd: BorrowedFd<'_>) -> bool {
        self.ask_host(id, |_| self.sync_witnessed(id, fd))
    }

    /// Has the host begin to write a segment's bytes, or wait for that. False if it failed, which is kept in mind.
    fn write_out(&self, id: SegmentId, fd: BorrowedFd<'_>, wait: bool) -> bool {
        self.ask_host(id, |medium| medium.write_out(fd, wait))
    }

    fn ask_host(&self, id: SegmentId, call: impl FnOnce(&dyn Medium) -> io::Result<()>) -> bool {
        let asked = || call(&*self.medium).inspect_err(|error| self.fail(id, error)).is_ok();
        self.is_volatile(id.tier()) || self.in_turn(id, asked)
    }

    /// A failure is told to one of two who sync a segment at the same time. The other must not go on before it is kept
    /// in mind.
    fn in_turn<T>(&self, id: SegmentId, call: impl FnOnce() -> T) -> T {
        let turn = self.unsynced.turns.lock().entry(id).or_default().clone();
        let mine = turn.lock();
        let done = call();
        drop(mine);
        let mut turns = self.unsynced.turns.lock();
        if Arc::strong_count(&turn) == 2 {
            turns.remove(&id);
        }
        done
    }

    /// Bytes of the segment did not get to the disk: this was told to whoever began to write them, or synced them.
    pub fn fail(&self, id: SegmentId, why: impl Display) {
        self.unsynced.fail(id);
        self.unsynced.tell(self.path_of(id).display(), why);
        // Of one that was removed meanwhile nobody asks any more.
        let home = self.homes.get(&id.tier());
        if home.is_some_and(|home| home.look(id).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)) {
            self.unsynced.failed.lock().forget(id);
        }
    }

    /// After a sync that succeeded: whether the segment holds what the log holds of the file. A host that found no
    /// place on the disk may have dropped the bytes without a word to whoever syncs.
    pub(crate) fn check_value(&self, id: SegmentId, fd: BorrowedFd<'_>, value: Option<&[u8]>) {
        if let Some(value) = value
            && !self.failed(id)
            && lost_in(fd, value).unwrap_or(true)
        {
            self.fail(id, "the host has dropped bytes");
        }
    }

    /// True if a segment has lost bytes of its value, as far as can be seen.
    pub(crate) fn has_lost(&self, id: SegmentId, value: &[u8]) -> bool {
        self.open(id, libc::O_RDONLY).and_then(|fd| lost_in(fd, value)).unwrap_or(true)
    }

    /// Syncs a segment. False if it does not hold its value durably, as far as the host says.
    pub fn keeps(&self, id: SegmentId, value: &[u8]) -> bool {
        // What is told to one that is opened here, the one that is held would hear later, and its witness would not.
        let held = self.unsynced.descriptor(id);
        let synced = |fd: Arc<OwnedFd>| {
            self.in_turn(id, || self.sync_witnessed(id, fd.as_fd()))?;
            lost_in(&*fd, value)
        };
        // A sync that succeeds after one that failed says nothing.
        let lost = || held.map_or_else(|| self.open(id, libc::O_RDONLY).map(Arc::new), Ok).and_then(synced);
        self.is_volatile(id.tier()) || (!self.failed(id) && !lost().unwrap_or(true))
    }

    /// Has a segment that does not keep its value hold it durably.
    pub fn put_back(&self, id: SegmentId, value: &[u8]) -> io::Result<()> {
        let written = |fd: OwnedFd| {
            let file = File::from(fd);
            self.medium.write_anew(&file, value)?;
            self.medium.sync_segment(file.as_fd())
        };
        // The next sync of what the host has not taken would succeed.
        self.open(id, libc::O_RDWR).and_then(written).inspect_err(|error| self.fail(id, error))
    }

    /// True if a segment holds these bytes and no others.
    pub(crate) fn holds(&self, id: SegmentId, value: &[u8]) -> bool {
        self.open(id, libc::O_RDONLY).and_then(|fd| holds(&fd.into(), value)).unwrap_or(false)
    }

    /// Syncs what is due. `value` is as for [`Segments::sync_covered`]. An error is one of a directory; segments that
    /// failed are [`Segments::unmarked`] afterwards.
    pub(crate) fn sync(&self, due: &Due, value: impl Fn(Ino, u64) -> Option<Box<[u8]>>) -> io::Result<()> {
        let mut by_tier: BTreeMap<u8, Vec<(SegmentId, BorrowedFd<'_>)>> = BTreeMap::new();
        for (id, fd) in &due.segments {
            by_tier.entry(id.tier()).or_default().push((*id, fd.as_fd()));
        }
        let none = Grown::default();
        let mut homes = self.homes.iter().filter(|(_, home)| !home.is_volatile());
        let synced: io::Result<()> = homes.try_for_each(|(tier, home)| {
            let segments = by_tier.remove(tier).unwrap_or_default();
            let grown = due.grown.get(tier).unwrap_or(&none);
            if *tier != PM && segments.is_empty() && !grown.top && grown.shards.is_empty() {
                return Ok(());
            }
            self.sync_together(home, &segments, grown)?;
            match self.look_at_host(home) {
                Err(error) if *tier != PM => self.fail_tier(*tier, home, &error),
                looked => drop(looked?),
            }
            Ok(())
        });
        let held: FxHashMap<_, _> = due.values.iter().map(|(id, ino, seq)| (*id, (*ino, *seq))).collect();
        for (id, fd) in due.segments.iter().filter(|_| !held.is_empty()) {
            let value = held.get(id).and_then(|(ino, seq)| value(*ino, *seq));
            self.check_value(*id, fd.as_fd(), value.as_deref());
        }
        synced?;
        let mut gone = Vec::new();
        let mut tracked = self.unsynced.tracked.lock();
        for (id, ..) in &due.segments {
            let done = |entry: &Tracked| entry.writers == 0 && !entry.due && !entry.dirty && !entry.covered;
            if tracked.get(*id).is_some_and(done) {
                gone.extend(tracked.remove(*id));
            }
        }
        // Descriptors are closed without the lock.
        drop(tracked);
        drop(gone);
        Ok(())
    }

    /// Syncs segments and directories. An error is one of a directory.
    fn sync_together(&self, home: &Home, segments: &[(SegmentId, BorrowedFd<'_>)], grown: &Grown) -> io::Result<()> {
        if segments.len() + grown.shards.len() > 1 {
            // Begun for all, so that the host can write their bytes and its own tables together.
            for (id, fd) in segments {
                self.write_out(*id, *fd, false);
            }
        }
        self.sync_directories(home, grown)?;
        let one = |at: usize| Ok(self.sync_one(segments[at].0, segments[at].1));
        overlapping(segments.len(), SEGMENTS_PER_THREAD, one).map(drop)
    }

    fn sync_directories(&self, home: &Home, grown: &Grown) -> io::Result<()> {
        if grown.top {
            self.medium.sync_directory(home.dir())?;
        }
        let shards: Vec<u8> = grown.shards.iter().copied().collect();
        let synced = overlapping(shards.len(), SEGMENTS_PER_THREAD, |at| match home.open_shard(shards[at]) {
            Ok(dir) => self.medium.sync_directory(dir.as_fd()).map(|()| None),
            // Such as no descriptor left, which is no failed sync.
            Err(error) => Ok(Some(error)),
        })?;
        if let Some(error) = synced.into_iter().flatten().next() {
            // A sync of the whole host needs no descriptor; but it cannot tell whose bytes it failed to write, so
            // whoever may have any is asked first.
            log::debug!("{}: syncing the whole host instead: {error}", home.path().display());
            for (id, fd) in self.unsynced.descriptors() {
                self.write_out(id, fd.as_fd(), true);
            }
            self.sync_whole(home)?;
        }
        Ok(())
    }

    /// The host of a tier takes no changes any more: what may have bytes there has failed, and nothing else.
    fn fail_tier(&self, tier: u8, home: &Home, error: &io::Error) {
        home.doubt();
        for (id, _) in self.unsynced.descriptors() {
            if id.tier() == tier {
                self.fail(id, error);
            }
        }
    }

    /// Syncs everything on the filesystem of a home.
    pub(super) fn sync_whole(&self, home: &Home) -> io::Result<()> {
        self.medium.sync_all(home.dir()).inspect_err(|_| home.doubt())
    }

    /// After syncs that succeeded: true if the host met errors meanwhile, so that they need not be believed. An error
    /// says that it takes no changes any more.
    pub(super) fn look_at_host(&self, home: &Home) -> io::Result<bool> {
        let Some(errors) = home.new_errors()? else { return Ok(false) };
        home.doubt();
        log::error!("{}: the host's filesystem met errors", home.path().display());
        for (id, fd) in self.unsynced.descriptors() {
            if self.homes.get(&id.tier()).is_some_and(|of| std::ptr::eq(of, home)) && has_hole(fd.as_fd()) {
                self.fail(id, "it has holes, and the host may have dropped bytes");
            }
        }
        home.heed_errors(errors);
        Ok(true)
    }

    /// What the next server is to know of the errors of the hosts, by tier. Every file that one of them may have hurt
    /// [failed](Segments::failed) before.
    pub(crate) fn host_errors(&self) -> Vec<(u8, Mark)> {
        self.homes.iter().filter_map(|(tier, home)| Some((*tier, home.heeded_errors()?))).collect()
    }

    /// Has what the hosts met since a server before had this to say counted as new.
    pub(crate) fn recall_host_errors(&self, left: impl Fn(u8) -> Mark) {
        self.homes.iter().for_each(|(tier, home)| home.recall_errors(left(*tier)));
    }

    /// Makes the bytes of a segment durable now, and its name: it is a copy of one that is about to go, `of` which it
    /// has the bytes, unless they are from elsewhere.
    ///
    /// # Errors
    /// Also if the host has dropped some of them without a word.
    pub fn sync_copy(&self, id: SegmentId, of: Option<SegmentId>) -> io::Result<()> {
        let home = self.home(id.tier())?;
        if home.is_volatile() {
            return Ok(());
        }
        let copy = self.open(id, libc::O_RDONLY)?;
        self.medium.sync_segment(copy.as_fd())?;
        if let Some(of) = of.filter(|_| home.may_drop_bytes())
            && lost_in_copy(self.open(of, libc::O_RDONLY)?, &copy)?
        {
            home.doubt();
            return Err(io::Error::other("the host has dropped bytes of it"));
        }
        self.medium.sync_directory(home.open_shard(shard(id))?.as_fd())?;
        self.medium.sync_directory(home.dir())
    }

    /// Syncs everything on the host filesystem: after a server was killed nobody knows what it had not synced. Each
    /// segment is asked first, as the host tells of a failure that nobody has heard of; one that failed is
    /// [`Segments::failed`] afterwards.
    /// As the host may not tell of a failure at all, where it met errors meanwhile, or since a server before looked
    /// ([`Segments::recall_host_errors`]), each that was not sealed counts as failed if it has holes, or was written
    /// otherwise than recorded: how long it was nobody knows then.
    pub(crate) fn sync_host(&self, segments: &[FileSegment]) -> io::Result<()> {
        overlapping(segments.len(), 64, |at| {
            let id = segments[at].id;
            match self.open(id, libc::O_RDONLY) {
                Ok(fd) => {
                    self.write_out(id, fd.as_fd(), true);
                }
                // One that is not there is for whoever settles its file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Without a descriptor or memory to ask with nobody knows; a later mount may have them.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                    return Err(error);
                }
                Err(error) => self.fail(id, &error),
            }
            Ok(())
        })?;
        for (tier, home) in self.homes.iter().filter(|(_, home)| !home.is_volatile()) {
            let shards = home.shards()?;
            let mut grown = self.unsynced.grown.lock();
            let grown = grown.entry(*tier).or_default();
            grown.top = true;
            grown.shards.extend(shards);
            if let Err(error) = self.sync_whole(home) {
                // It may be an old failure, or somebody else's: those of segments were just told.
                log::warn!("{}: a sync of the whole host failed: {error}", home.path().display());
                self.sync_whole(home)?;
            }
            let unwritten = |FileSegment { id, sealed, .. }: &FileSegment| {
                sealed.is_some_and(|size| self.stat(*id).is_ok_and(|stat| stat.size == size))
            };
            let written = segments.iter().filter(|segment| segment.id.tier() == *tier && !unwritten(segment));
            match home.new_errors() {
                Ok(None) => {}
                Ok(Some(errors)) => {
                    home.doubt();
                    log::error!("{}: the host's filesystem met errors", home.path().display());
                    for FileSegment { id, written, .. } in written {
                        let Ok(fd) = self.open(*id, libc::O_RDONLY) else { continue };
                        if has_hole(fd.as_fd()) {
                            self.fail(*id, "it has holes, and the host may have dropped bytes");
                        } else if written.is_some_and(|written| is_written(fd, written)) {
                            self.fail(*id, "it was being written, and the host may have dropped bytes");
                        }
                    }
                    home.heed_errors(errors);
                }
                // It takes no changes any more.
                Err(error) if *tier != PM => {
                    home.doubt();
                    written.for_each(|segment| self.fail(segment.id, &error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

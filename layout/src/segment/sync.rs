//! Syncing segments and their directories.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::ids::{Ino, SegmentId};
use crate::segment::home::{Home, shard};
use crate::segment::segments::Segments;
use crate::segment::tracking::Due;
use crate::segment::unsynced::{Grown, Tracked};

/// From this many segments on, one sync of the host filesystem is cheaper than one each.
const SYNC_ALL_FROM: usize = 64;

/// Has the host begin to write a file's bytes, and does not wait for it.
fn start_writing(fd: BorrowedFd<'_>) {
    // SAFETY: takes integers alone. That it fails means nothing: the sync that follows tells.
    unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

impl Segments {
    /// Syncs the segments whose bytes only the log holds durably, and their names, beside whatever commit goes on.
    /// Returns the values that are not needed any more; an error is one of a directory.
    pub(crate) fn sync_covered(&self) -> io::Result<Vec<(Ino, u64)>> {
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
            let mut failed = Vec::new();
            if !self.sync_at_once(home, ours.len()) {
                ours.iter().for_each(|(_, fd, ..)| start_writing(fd.as_fd()));
                let shards = names.iter().map(|id| shard(*id)).collect();
                self.sync_directories(home, &Grown::of(top, shards))?;
                let unsynced = ours.iter().filter(|(id, fd, ..)| !self.sync_one(*id, fd.as_fd()));
                failed.extend(unsynced.map(|(id, ..)| *id));
            }
            if let Some(grown) = self.unsynced.grown.lock().get_mut(tier) {
                names.iter().for_each(|id| grown.forget(*id));
            }
            let mut tracked = self.unsynced.tracked.lock();
            for (id, _, calls, ino, seq) in ours {
                let over = tracked.change(*id, |entry| {
                    // A sync that succeeds after one that failed says nothing of what was written before.
                    if failed.contains(id) || self.failed(*id) {
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
        if self.is_volatile(id.tier()) {
            return true;
        }
        // A failure is told to one of two who sync at the same time. The other must not go on before it is kept in
        // mind.
        let turn = self.unsynced.turns.lock().entry(id).or_default().clone();
        let mine = turn.lock();
        let synced = self.medium.sync_segment(fd);
        if let Err(error) = &synced {
            self.unsynced.fail(id);
            log::error!("{}: sync failed: {error}", self.path_of(id).display());
        }
        drop(mine);
        let mut turns = self.unsynced.turns.lock();
        if Arc::strong_count(&turn) == 2 {
            turns.remove(&id);
        }
        synced.is_ok()
    }

    /// Syncs what is due. An error is one of a directory; segments that failed are [`Segments::unmarked`] afterwards.
    pub(crate) fn sync(&self, due: &Due) -> io::Result<()> {
        let mut by_tier: BTreeMap<u8, Vec<&(SegmentId, Arc<OwnedFd>)>> = BTreeMap::new();
        for one in &due.segments {
            by_tier.entry(one.0.tier()).or_default().push(one);
        }
        let none = Grown::default();
        for (tier, home) in self.homes.iter().filter(|(_, home)| !home.is_volatile()) {
            let segments = by_tier.remove(tier).unwrap_or_default();
            let grown = due.grown.get(tier).unwrap_or(&none);
            if self.sync_at_once(home, segments.len()) {
                continue;
            }
            if segments.len() + grown.shards.len() > 1 {
                // Begun for all, so that the host can write their bytes and its own tables together.
                segments.iter().for_each(|(_, fd)| start_writing(fd.as_fd()));
            }
            self.sync_directories(home, grown)?;
            for (id, fd) in segments {
                self.sync_one(*id, fd.as_fd());
            }
        }
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

    fn sync_directories(&self, home: &Home, grown: &Grown) -> io::Result<()> {
        if grown.top {
            self.medium.sync_directory(home.dir())?;
        }
        for shard in &grown.shards {
            match home.open_shard(*shard) {
                Ok(dir) => self.medium.sync_directory(dir.as_fd())?,
                // Such as no descriptor left, which is no failed sync. A sync of the whole host needs none.
                Err(error) => {
                    log::debug!("{}: syncing the whole host instead: {error}", home.path().display());
                    self.medium.sync_all(home.dir())?;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Syncs the whole host filesystem, directories included, if that is cheaper for so many segments; true if it
    /// reported no failure.
    fn sync_at_once(&self, home: &Home, segments: usize) -> bool {
        if segments < SYNC_ALL_FROM || self.unsynced.suspicious.load(Ordering::Relaxed) {
            return false;
        }
        let result = self.medium.sync_all(home.dir());
        self.unsynced.suspicious.fetch_or(result.is_err(), Ordering::Relaxed);
        result.is_ok()
    }

    /// Makes the bytes of a segment durable now, and its name: it is a copy of one that is about to go.
    pub fn sync_copy(&self, id: SegmentId) -> io::Result<()> {
        let home = self.home(id.tier())?;
        if home.is_volatile() {
            return Ok(());
        }
        self.medium.sync_segment(self.open(id, libc::O_RDONLY)?.as_fd())?;
        self.medium.sync_directory(home.open_shard(shard(id))?.as_fd())?;
        self.medium.sync_directory(home.dir())
    }

    /// Syncs everything on the host filesystem: after a server was killed nobody knows what it had not synced.
    pub(crate) fn sync_host(&self) -> io::Result<()> {
        for (tier, home) in self.homes.iter().filter(|(_, home)| !home.is_volatile()) {
            let shards = home.shards()?;
            let mut grown = self.unsynced.grown.lock();
            let grown = grown.entry(*tier).or_default();
            grown.top = true;
            grown.shards.extend(shards);
            self.medium.sync_all(home.dir())?;
        }
        Ok(())
    }
}

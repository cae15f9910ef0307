//! Making room: what the store lacks for a change, some of it is held by files that nobody needs any more.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use tensorfs_layout::pool::Edit;
use tensorfs_layout::segment::SYNC_FD_LIMIT;
use tensorfs_layout::{Ino, SegmentId};

use crate::error::{Fault, Result};
use crate::store::{Admitted, Bell, NewSegment, Space};

use super::Files;
use super::learn::Switch;
use super::locked::Locked;

/// If more segments than this wait to be removed from the host, whoever deletes files removes some as well.
const UNLINKS: usize = 64 << 10;
/// So many for each file.
const UNLINKS_EACH: usize = 4;
/// So often at most, for each write.
const ROUNDS: usize = 256;
/// So long is waited for who reads a file that was removed, where space is short: he is in the middle of one read.
const CLOSING: Duration = Duration::from_secs(1);
/// So long who syncs all waits for what is to be removed from the host; and if nothing of it goes on.
const UNLINKED_AT_SYNC: Duration = Duration::from_secs(1);
const NO_PROGRESS: Duration = Duration::from_millis(40);

impl Files {
    /// True if deleted files wait in such number for their segments to be removed that who deletes more has to help.
    pub fn owes_unlinks(&self) -> bool {
        self.store().pool().freed() > UNLINKS
    }

    /// Helps, if that is so. Waits for the host, and if nothing of it is durable yet, for a commit.
    pub fn pay_unlinks(&self) {
        let store = self.store();
        if self.owes_unlinks() && store.pool().unlink_some(UNLINKS_EACH) == 0 {
            // Whether the removal itself can be done, is said of that.
            if let Err(fault) = store.commit() {
                log::debug!("committing to remove segments: {fault}");
            }
            store.pool().unlink_some(UNLINKS_EACH);
        }
    }

    /// What is deleted counts as free before the host has its space back. Whoever writes so many bytes removes some of
    /// it himself where that comes to very much, and waits for a commit if nothing of it is durable yet. False if
    /// nothing more can be removed.
    ///
    /// Not to be called with an inode locked.
    pub(super) fn wait_for_removals(&self, bytes: u64) -> bool {
        let store = self.store();
        self.hurry_removals(bytes);
        // Others may go on deleting.
        for _ in 0..ROUNDS {
            if !store.stands_beside_too_much(bytes) {
                return true;
            }
            if store.pool().unlink_some(UNLINKS_EACH) > 0 {
                continue;
            }
            if !store.pool().has_freed() {
                self.reap_removed();
            }
            if store.commit().is_err() || store.pool().unlink_some(UNLINKS_EACH) == 0 {
                // Others may have removed it just now.
                return !store.stands_beside_too_much(bytes);
            }
        }
        false
    }

    /// Calls those who remove, long before anybody has to wait for them.
    fn hurry_removals(&self, bytes: u64) {
        let store = self.store();
        if !store.stands_beside_much(bytes) {
            return;
        }
        let (pool, bells) = (store.pool(), store.bells());
        let waits_for_commit = pool.has_freed() && pool.next_freed(pool.horizon()).is_none();
        if waits_for_commit { bells.commit() } else { bells.unlink() }.ring();
    }

    /// Has the segments removed that may be, and waits for that as long as it goes on: a host that is late with one
    /// keeps nobody who does not need its space, and what others delete meanwhile is theirs.
    pub(super) fn let_unlink(&self) {
        let (bells, pool) = (self.store().bells(), self.store().pool());
        let horizon = pool.horizon();
        let begun = Instant::now();
        let (mut next, mut since) = (pool.next_freed(horizon), begun);
        if next.is_some() {
            bells.unlink().ring();
        }
        while next.is_some() && since.elapsed() < NO_PROGRESS && begun.elapsed() < UNLINKED_AT_SYNC {
            let seen = bells.unlinked().done();
            let now = pool.next_freed(horizon);
            if now != next {
                (next, since) = (now, Instant::now());
                continue;
            }
            // Others remove some, too, and say nothing.
            bells.unlinked().wait_beyond(seen, Duration::from_millis(1));
        }
    }

    /// Runs a change of the pool. Where space runs out, what is already deleted is made free and the change is tried
    /// once more.
    pub fn edit<T>(&self, mut change: impl FnMut(&mut Edit<'_>) -> Result<T>) -> Result<T> {
        match self.store().edit(&mut change) {
            Err(fault) if fault.wants_space() && self.relieve() => self.store().edit(&mut change),
            result => result,
        }
    }

    /// As [`Files::edit`], for a record of what a file has become. Who commits in the background makes no room himself,
    /// as that may wait for whoever reads the log.
    pub(super) fn edit_for<T>(&self, switch: Switch, mut change: impl FnMut(&mut Edit<'_>) -> Result<T>) -> Result<T> {
        if switch != Switch::Background {
            return self.edit(change);
        }
        let changed = self.store().edit(&mut change);
        if changed.as_ref().is_err_and(Fault::wants_space) {
            let bells = self.store().bells();
            [bells.unlink(), bells.clean()].into_iter().for_each(Bell::ring);
        }
        changed
    }

    /// A new, empty segment in a tier, for a project or for none, made in the same way. If it is to replace another
    /// one, it is younger than that.
    pub fn new_segment(&self, tier: u8, project: u32, replaced: Option<SegmentId>) -> Result<NewSegment> {
        match self.store().new_segment(tier, project, replaced) {
            Err(fault) if fault.wants_space() && self.relieve() => self.store().new_segment(tier, project, replaced),
            result => result,
        }
    }

    /// A new, empty segment for a file that is there, which takes the place of its segment if it has one.
    pub fn another_segment(&self, ino: Ino, tier: u8, replaced: Option<SegmentId>) -> Result<NewSegment> {
        self.new_segment(tier, self.store().project_of(ino), replaced)
    }

    /// How much of `len` bytes at `offset` of a file may be written, until what is returned is let go of. Waits until
    /// enough of what is removed is gone from the host; and where it is not all, for the background. Not to be called
    /// with an inode locked.
    pub(super) fn admit(&self, ino: Ino, fd: impl AsFd, offset: u64, len: u64) -> Result<Admitted<'_>> {
        let admitted = self.admit_beside_removals(ino, &fd, offset, len)?;
        if admitted.fits() == len || !self.may_let_go() {
            return Ok(admitted);
        }
        // What was admitted keeps others from having it, who need not wait.
        drop(admitted);
        self.let_go_for_space();
        self.admit_beside_removals(ino, fd, offset, len)
    }

    fn admit_beside_removals(&self, ino: Ino, fd: impl AsFd, offset: u64, len: u64) -> Result<Admitted<'_>> {
        let store = self.store();
        let (mut rounds, mut more) = (0..ROUNDS, len);
        while rounds.next().is_some() {
            self.hurry_removals(more);
            if store.stands_beside_too_much(more) {
                if store.are_there(ino, &fd, offset, len)? {
                    break;
                }
                if !self.wait_for_removals(more) {
                    break;
                }
            }
            let admitted = self.admit_at_once(ino, &fd, offset, len)?;
            // Those who looked at the same time did not see each other; now whoever has looked last sees all.
            if !store.stands_beside_too_much(0) {
                return Ok(admitted);
            }
            // With what lies in front of it in a file that can be mapped.
            more = admitted.counted();
        }
        self.admit_at_once(ino, fd, offset, len)
    }

    /// As [`Files::admit`], waiting for nobody.
    pub(super) fn admit_at_once(&self, ino: Ino, fd: impl AsFd, offset: u64, len: u64) -> Result<Admitted<'_>> {
        let store = self.store();
        // What is removed counts as free: it must be so before its space is used again.
        if store.removed().held() > 0 && store.holds_too_much(len) {
            self.reap_removed();
        }
        store.admit(ino, fd, offset, len)
    }

    /// As [`Files::admit_at_once`], to allocate a range, with the file's size `kept` or not.
    pub(super) fn admit_range(&self, ino: Ino, fd: impl AsFd, range: (u64, u64), kept: bool) -> Result<Admitted<'_>> {
        let store = self.store();
        if store.removed().held() > 0 && store.holds_too_much(range.1) {
            self.reap_removed();
        }
        if kept { store.admit_kept(ino, fd, range) } else { store.admit(ino, fd, range.0, range.1) }
    }

    /// Sees to it that there is room for the holes of a file that is about to be mapped for writing, which fills them
    /// unasked. False if there is none.
    pub(super) fn reserve_holes(&self, ino: Ino) -> Result<bool> {
        let store = self.store();
        let fits = store.reserve_holes(ino)?;
        if fits && store.removed().held() > 0 && store.holds_too_much(0) {
            self.reap_removed();
        }
        Ok(fits)
    }

    /// Gives back to the host what deleted files and records still hold. True if what was refused for lack of space is
    /// worth one more try: the background may have made room just before.
    pub fn relieve(&self) -> bool {
        self.reap_for_space();
        self.wait_for_given_up(CLOSING);
        let done = self.store().pool().reclaim().is_ok();
        if done {
            self.store().has_given_back();
        }
        done
    }

    /// Makes room for who was refused some. At a limit that is what was mapped; what else is deleted does not count.
    pub(super) fn makes_room(&self) -> bool {
        if self.store().is_limited() { self.let_go_for_space() } else { self.relieve() }
    }

    /// The space of the pool, in bytes and objects.
    pub fn space(&self) -> Result<Space> {
        if self.store().is_tight() {
            self.relieve();
        }
        self.store().space()
    }

    /// True if there is no descriptor left to sync one more segment. A commit closes those that nobody writes any more.
    /// What is left must leave room for the server's own needs.
    ///
    /// Long before, the commit in the background is called: whoever makes a file need not wait for it, and for the
    /// disk, until there is very much to sync.
    fn lacks_room_to_sync(&self) -> bool {
        let store = self.store();
        let most = store.descriptors().for_syncing();
        let held = store.segments().dirty_count();
        let closed = held.saturating_sub(store.writers().len());
        if closed > SYNC_FD_LIMIT.min(most / 2) {
            store.bells().commit().ring();
        }
        closed > (4 * SYNC_FD_LIMIT).min(most / 4 * 3) || held >= most
    }

    /// Sees to it that there is a descriptor left to sync one more segment.
    pub(super) fn make_room_to_sync(&self) -> Result<()> {
        if !self.lacks_room_to_sync() {
            return Ok(());
        }
        let store = self.store();
        let most = store.descriptors().for_syncing();
        if store.segments().dirty_count() >= most {
            self.settle_closed();
        }
        store.pool().settle_values()?;
        store.commit()?;
        if store.segments().dirty_count() >= most {
            return Err(Fault::warn(libc::ENFILE, "too many files are open for writing"));
        }
        Ok(())
    }
}

impl Locked<'_> {
    /// As [`Files::make_room_to_sync`], with the lock let go of if it takes a commit.
    pub(super) fn make_room_to_sync(&mut self) -> Result<()> {
        let files = self.files;
        if files.lacks_room_to_sync() { self.unlocked_in_use(|| files.make_room_to_sync()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tensorfs_layout::ROOT;
    use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};

    use super::*;
    use crate::options::{Durability, Options};
    use crate::store::Store;
    use crate::testing::Direct;

    /// To make room is to commit, to remove segments and to clean, which waits for whoever reads the log.
    #[test]
    fn who_commits_in_the_background_makes_no_room_and_calls_those_who_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let direct = Direct::new(pool.clone(), Durability::Fsync);
        direct.make(ROOT, "dir", libc::S_IFDIR | 0o755).unwrap();
        let files = Files::new(Arc::new(Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024)));
        let bells = files.store().bells();
        let refused = |switch| {
            let mut tries = 0;
            let changed: Result<()> = files.edit_for(switch, |_| {
                tries += 1;
                Err(Fault::new(libc::ENOSPC))
            });
            assert_eq!(changed.unwrap_err().errno, libc::ENOSPC);
            tries
        };
        assert_eq!(refused(Switch::Background), 1);
        assert!(pool.horizon() < pool.newest(), "it has waited for a commit");
        for bell in [bells.unlink(), bells.clean()] {
            let begun = Instant::now();
            assert!(bell.wait(Duration::from_secs(60)) && begun.elapsed() < Duration::from_secs(30), "not rung");
        }
        assert_eq!(refused(Switch::Leave), 2);
        assert_eq!(pool.horizon(), pool.newest());
        drop(files);
        drop(direct);
        pool.close().unwrap();
    }
}

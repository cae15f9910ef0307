//! An open pool: transactions in, commits out.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{MappedRwLockReadGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard};

use crate::error::{Error, Result, reason};
use crate::ids::{SegmentId, TxId};
use crate::log::blocks::Log;
use crate::log::file::{LOG, open_log, which};
use crate::log::superblock::{PoolState, Superblock};
use crate::medium::Acting;
use crate::medium::dir::Dir;
use crate::medium::domain::{Domain, Medium};
use crate::medium::flushes::{Counted, Flushes};
use crate::pool::budget::Budget;
use crate::pool::carrying::{Carried, carried_in};
use crate::pool::commits::Commits;
use crate::pool::current::Current;
use crate::pool::ending::Ending;
use crate::pool::lock::PoolLock;
use crate::pool::patience::Patience;
use crate::pool::recovery::Recovery;
use crate::pool::removals::Removals;
use crate::pool::usage::{Usage, usage};
use crate::segment::quarantine::Quarantine;
use crate::segment::segments::Segments;
use crate::tree::view::View;

/// A pool, opened for use. All methods may be called from several threads.
#[derive(Debug)]
pub struct Pool {
    pub(super) path: PathBuf,
    /// Keeps others from opening the pool.
    pub(super) lock: PoolLock,
    pub(super) medium: Arc<Counted>,
    pub(super) state: RwLock<Live>,
    pub(super) segments: Segments,
    pub(super) quarantine: Quarantine,
    pub(super) superblock: Current,
    pub(super) boot_id: [u8; 16],
    pub(super) upkeep: Upkeep,
    pub(super) commits: Commits,
    /// What it may take beyond what is recorded.
    pub(super) budget: Budget,
    /// Why the pool takes no more changes.
    pub(super) failed: RwLock<Option<String>>,
    pub(super) removals: Removals,
    pub(super) recovery: Recovery,
}

/// What keeping the log in order takes.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    /// Held while a block is cleaned, and by whoever wants blocks to stay as they are.
    pub cleaning: Mutex<()>,
    /// Held while the log gets longer or shorter.
    pub growing: Mutex<()>,
    /// Held by whoever shortens the log for want of space.
    pub shortening: Mutex<Shortening>,
    /// The log should get longer.
    pub short: AtomicBool,
    /// It could not, and nothing has changed since that might let it.
    pub refused: AtomicBool,
    /// When that is worth finding out again.
    pub patience: Patience,
    /// When there was no room for more of it than somebody needs, and for how long that is not tried again.
    pub no_room_ahead: Mutex<Option<(Instant, Duration)>>,
    /// How the pool is to be left.
    pub ending: Mutex<Ending>,
    /// What the next mount is told by where the log takes nothing ([`Pool::hold_note`]).
    pub note: OnceLock<File>,
}

/// When the log was shortened last for who found no space, and when that was of no use.
#[derive(Debug, Default)]
pub(super) struct Shortening {
    pub done: Option<Instant>,
    pub futile: Option<Instant>,
}

/// What changes together under one lock.
#[derive(Debug)]
pub(crate) struct Live {
    pub(super) view: View,
    pub(super) log: Log,
}

/// The state, held by the one who is about to change it. Others read it until he does.
pub(crate) type Changing<'a> = RwLockUpgradableReadGuard<'a, Live>;

impl Live {
    /// The view.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The log.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }
}

impl Pool {
    /// The pool's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pool's directory, opened.
    pub(crate) fn dir(&self) -> &Arc<Dir> {
        self.lock.dir()
    }

    /// The directories of the pool and of its tiers that are there, for a process that is to reach nothing else.
    pub fn directories(&self) -> io::Result<Vec<OwnedFd>> {
        let tiers = self.segments().tier_directories().map(|(_, above)| (*above).as_fd().try_clone_to_owned());
        std::iter::once((**self.dir()).as_fd().try_clone_to_owned()).chain(tiers).collect()
    }

    /// Whose the pool is: user and group.
    pub fn owner(&self) -> io::Result<(u32, u32)> {
        let found = self.dir().stat_self()?;
        Ok((found.st_uid, found.st_gid))
    }

    /// The pool's lock, for whoever is to hold on to it when this process has died.
    pub fn share_lock(&self) -> io::Result<OwnedFd> {
        self.lock.share()
    }

    /// Others may have the pool from now on, and whoever has this touches it no more. It happens by itself when the
    /// process ends, unless the lock was shared.
    pub fn release_lock(&self) -> io::Result<()> {
        self.lock.release()
    }

    /// Until what this returns is dropped, this thread asks the host as the pool's owner, if it may.
    pub fn act_as_owner(&self) -> Acting {
        self.dir().owner().act()
    }

    /// The space of the filesystem that the pool's directory is on.
    pub fn host_space(&self) -> io::Result<nix::sys::statvfs::Statvfs> {
        self.dir().space()
    }

    /// A file on the filesystem that the pool's directory is on, to find out what can be done with such.
    pub fn host_file(&self) -> Result<File> {
        open_log(self.dir(), false)
    }

    /// Which file the log is, of all that have been in its place: of one that was copied, or written anew by a repair,
    /// numbers of transactions say nothing to another.
    pub fn log_file(&self) -> Result<String> {
        which(&self.host_file()?).map_err(|error| Error::in_pool(&self.path, LOG, "look at", error))
    }

    /// The live view, to read.
    pub fn view(&self) -> MappedRwLockReadGuard<'_, View> {
        RwLockReadGuard::map(self.state.read(), |state| &state.view)
    }

    /// The newest stored transaction.
    pub fn newest(&self) -> TxId {
        self.commits.newest()
    }

    /// The newest transaction up to which everything is durable.
    pub fn horizon(&self) -> TxId {
        self.commits.horizon()
    }

    /// What the pool's carrier has noted, if there is something.
    pub fn carried(&self) -> Result<Option<Carried>> {
        carried_in(self.dir())
    }

    /// The pool's segments.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Removes segments from the host whose removal the horizon covers; returns how many.
    pub fn unlink_covered(&self) -> usize {
        self.unlink_some(usize::MAX)
    }

    /// As [`Pool::unlink_covered`], but so many at most: others who want to remove some wait no longer than that.
    pub fn unlink_some(&self, most: usize) -> usize {
        let removed = self.removals.remove(&self.segments, most, || self.horizon());
        if removed > 0 && self.upkeep.patience.is_over(removed, self.removals.is_empty()) {
            self.may_grow();
        }
        removed
    }

    /// How many segments the host still holds that no file has any more.
    pub fn freed(&self) -> usize {
        self.removals.len()
    }

    /// The one of them that is removed next, if it was freed up to that transaction.
    pub fn next_freed(&self, horizon: TxId) -> Option<SegmentId> {
        self.removals.next_until(horizon)
    }

    /// What is recorded of their bytes.
    pub fn freed_bytes(&self) -> u64 {
        self.removals.bytes()
    }

    /// A segment that is about to be no file's is to stay on the host until it is let go of: a program has it mapped.
    pub fn keep_segment(&self, segment: SegmentId) {
        self.removals.keep(segment);
    }

    /// It may be removed.
    pub fn let_go_of_segment(&self, segment: SegmentId) {
        self.removals.let_go(segment);
    }

    /// Those that are kept and no file's any more.
    pub fn kept_segments(&self) -> Vec<SegmentId> {
        self.removals.kept()
    }

    /// What is recorded of their bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.removals.kept_bytes()
    }

    /// How many segments that no file has the host would not remove.
    pub fn unremoved(&self) -> usize {
        self.removals.refused()
    }

    /// Tries some of them again.
    pub fn unlink_again(&self) {
        self.removals.retry(&self.segments);
    }

    /// True if this segment is to be removed from the host.
    pub(crate) fn is_freed(&self, segment: SegmentId) -> bool {
        self.removals.contains(segment)
    }

    /// True if the host still holds segments that no file has any more.
    pub fn has_freed(&self) -> bool {
        !self.removals.is_empty()
    }

    /// Has a segment removed from the host once everything stored so far is durable.
    pub fn discard_segment(&self, segment: SegmentId) {
        self.removals.add(|| self.newest(), [(segment, 0)]);
    }

    /// What was set aside.
    pub fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// How stores to this pool become durable.
    pub fn domain(&self) -> Domain {
        self.medium.domain()
    }

    /// How often the host was made to flush since the pool was opened.
    pub fn flushes(&self) -> Flushes {
        self.medium.flushes()
    }

    /// Why the pool takes no changes, if it does not.
    pub fn is_read_only(&self) -> Option<String> {
        self.failed.read().clone()
    }

    /// What the superblock says now.
    pub fn superblock(&self) -> Superblock {
        self.superblock.get()
    }

    /// What opening the pool found and did.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// What the pool holds and uses.
    pub fn usage(&self) -> Usage {
        self.usage_and(|_| ()).0
    }

    /// What the pool holds and uses, and what there is to see in the view at the same time.
    pub fn usage_and<T>(&self, look: impl FnOnce(&View) -> T) -> (Usage, T) {
        let superblock = self.superblock();
        let state = self.state.read();
        (usage(&state.view, &state.log, &superblock, self.quarantine.allocated()), look(&state.view))
    }

    /// What the log and its segments are kept on.
    pub(crate) fn medium(&self) -> Arc<dyn Medium> {
        self.medium.clone()
    }

    /// The live view and the log, to read.
    pub(crate) fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.state.read()
    }

    /// As [`Pool::live`], with nobody in the middle of a change: waits for whoever is.
    pub(crate) fn live_unchanging(&self) -> Changing<'_> {
        self.state.upgradable_read()
    }

    /// Nobody writes a superblock while this is held.
    pub(crate) fn keep_superblock(&self) -> MutexGuard<'_, ()> {
        self.superblock.keep()
    }

    /// No block is cleaned while this is held.
    pub(crate) fn keep_blocks(&self) -> MutexGuard<'_, ()> {
        self.upkeep.cleaning.lock()
    }

    fn read_only_error(&self, reason: String) -> Error {
        Error::ReadOnly { pool: self.path.clone(), reason }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        self.is_read_only().map_or(Ok(()), |reason| Err(self.read_only_error(reason)))
    }

    /// Rule 9: after a failed sync of the log nothing may rest on it any more.
    pub(crate) fn fail(&self, what: &str, error: &io::Error) -> Error {
        let reason = format!("{what} failed: {}; what was committed before is safe", reason(error));
        log::error!("{}: read-only from now on: {reason}", self.path.display());
        self.failed.write().get_or_insert(reason.clone());
        self.read_only_error(reason)
    }

    /// Whoever opens the pool next finds that it was not closed, unless it is from now on.
    pub(crate) fn set_open(&self) -> Result<()> {
        self.set_open_after(0)
    }

    /// As [`Pool::set_open`], and counts so many more servers that did not close the pool.
    pub(super) fn set_open_after(&self, unsafe_shutdowns: u64) -> Result<()> {
        let errors = self.segments.host_errors();
        let written = self.superblock.change(&*self.medium, |superblock| {
            superblock.state = PoolState::Dirty;
            superblock.boot_id = self.boot_id;
            superblock.unsafe_shutdowns = superblock.unsafe_shutdowns.saturating_add(unsafe_shutdowns);
            superblock.set_host_errors(&errors);
        });
        written.map_err(|error| Error::in_pool(&self.path, LOG, "write the superblock", error))
    }
}

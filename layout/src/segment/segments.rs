//! Segments: the host files that hold the bytes of regular files, offset for offset.
//!
//! A segment is created under its final name, which is never reused; no host rename is relied on (rule 10). The
//! descriptor that will sync a segment is opened before its first possible write and closed only after the sync, and a
//! sync that failed is never tried again (rule 9). Names are made of numbers only, so nothing a user chooses becomes
//! part of a path of the host.
//!
//! Segments are in the pool's own directory or in one of its tiers; their numbers say in which. Those of a volatile
//! tier are never synced. A tier that is not there gives an I/O error for each of its segments, and nothing of it is
//! changed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use parking_lot::{Mutex, RwLock};

use crate::ids::{Ino, SegmentId};
use crate::log::tier::{PM, REMOTE_NAME};
use crate::medium::dir::Dir;
use crate::medium::domain::Medium;
use crate::medium::foreign::Foreign;
use crate::medium::owner::Owner;
use crate::segment::apart::ask_apart;
use crate::segment::gone::Gone;
use crate::segment::home::{Home, SEGMENTS, Scanned, Stray, path_within, shard};
use crate::segment::host_errors::{Unreadable, is_of_segment};
use crate::segment::place::identity;
use crate::segment::stat::SegmentStat;
use crate::segment::tier::{self, Opened, Whose};
use crate::segment::unsynced::{Tracked, Unsynced};
use crate::tree::view::View;

/// Above this many descriptors held for syncing it is time to commit.
pub const SYNC_FD_LIMIT: usize = 4096;

/// All segments of a pool.
#[derive(Debug)]
pub struct Segments {
    /// The pool's own directory and its tiers, those that are there.
    pub(super) homes: BTreeMap<u8, Home>,
    /// The directories of those tiers that are there.
    above: BTreeMap<u8, Arc<Dir>>,
    /// The tiers that are not.
    away: BTreeMap<u8, Gone>,
    /// One that stands for a remote, and came to be since the pool was opened.
    remote: OnceLock<(u8, Gone)>,
    owner: Owner,
    pub(super) medium: Arc<dyn Medium>,
    pub(super) unsynced: Unsynced,
    /// Segments of files whose bytes did not survive, because their tier was volatile.
    lost: Mutex<HashMap<u8, HashMap<SegmentId, Gone>>>,
    /// Segments that are as a crash left them, and stay so until the pool is opened again: nobody opens them.
    left: RwLock<HashMap<SegmentId, Left>>,
    /// Hosts take no more for new ones than their bytes need.
    sparing: AtomicBool,
    /// Empty segments that no file has yet.
    spares: Mutex<HashSet<SegmentId>>,
}

/// A segment that is as a crash left it.
#[derive(Debug)]
struct Left {
    /// The file that is left with it, if it is one's own.
    file: Option<Ino>,
    reason: Box<str>,
}

fn unknown(tier: u8) -> Gone {
    Gone::Missing { tier: format!("number {tier}"), reason: "the pool has no such tier".into() }
}

impl Segments {
    pub(crate) fn open_all(pool: &Dir, medium: Arc<dyn Medium>) -> io::Result<Self> {
        let own = Home::new(pool.below(SEGMENTS)?, SEGMENTS.into(), false, None);
        Ok(Self {
            owner: pool.owner(),
            homes: BTreeMap::from([(PM, own)]),
            above: BTreeMap::new(),
            away: BTreeMap::new(),
            remote: OnceLock::new(),
            lost: Mutex::default(),
            left: RwLock::default(),
            medium,
            unsynced: Unsynced::default(),
            sparing: AtomicBool::default(),
            spares: Mutex::default(),
        })
    }

    /// Opens the tiers that a pool has beside its own directory, and finds out which files they have lost. To `write`,
    /// a volatile one that did not survive is made anew. One that cannot be used is done without.
    pub(crate) fn open_tiers(&mut self, view: &View, whose: Whose, write: bool) -> io::Result<()> {
        for (number, tier) in view.tiers() {
            if tier.remote {
                self.away.insert(number, Gone::Away { tier: tier.name.to_string() });
                continue;
            }
            let opened = tier::open(whose, number, tier, self.owner, write).map(|opened| match opened {
                Opened::Ready(directory) => {
                    let called = directory.segments.path().display().to_string();
                    let home = Home::new(directory.segments, called, tier.volatile, directory.lock);
                    Some((home, directory.above))
                }
                Opened::Lost => None,
            });
            let name = tier.name.to_string();
            match opened {
                Ok(Some((home, above))) => {
                    self.homes.insert(number, home);
                    self.above.insert(number, Arc::new(above));
                }
                Ok(None) => drop(self.away.insert(number, Gone::Lost { tier: name })),
                Err(reason) => {
                    if write {
                        let place = tier.path().display();
                        log::error!("tier {name}, {place}: missing, its files give errors: {reason}");
                    }
                    self.away.insert(number, Gone::Missing { tier: name, reason });
                }
            }
        }
        if self.homes.values().any(|home| home.is_volatile()) { self.find_lost(view, write) } else { Ok(()) }
    }

    /// Which files have no segment any more, because their tier was volatile. To `write`, an empty file gets one again:
    /// nothing of it is lost.
    fn find_lost(&self, view: &View, write: bool) -> io::Result<()> {
        let (present, _) = self.scan_homes(|home| home.is_volatile(), |_| Ok(()))?;
        for (_, object) in view.objects() {
            let Some(id) = object.attributes.segment else { continue };
            if !self.is_volatile(id.tier()) || present.contains_key(&id) {
                continue;
            }
            if object.size() > 0 {
                let tier = view.tier_name(id.tier());
                self.lost.lock().entry(id.tier()).or_default().insert(id, Gone::Lost { tier });
            } else if write {
                match self.create(id) {
                    // Something that is no segment stands there.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        log::error!("{}: cannot be made: {error}", self.path_of(id).display());
                    }
                    made => drop(made?),
                }
            }
        }
        Ok(())
    }

    /// Why the bytes of a segment cannot be had, if that is so.
    pub fn gone(&self, id: SegmentId) -> Option<Gone> {
        if let Some(left) = self.left.read().get(&id) {
            return Some(Gone::Left { reason: left.reason.clone() });
        }
        match id.tier() {
            PM => None,
            tier if self.is_there(tier) => self.lost.lock().get(&tier)?.get(&id).cloned(),
            tier => Some(self.away(tier).cloned().unwrap_or_else(|| unknown(tier))),
        }
    }

    /// From now on a segment stays as it is, for whoever opens the pool next: nobody can open it.
    pub(crate) fn leave(&self, id: SegmentId, file: Option<Ino>, reason: &str) {
        self.left.write().insert(id, Left { file, reason: reason.into() });
    }

    /// Those that are left so.
    pub(crate) fn left(&self) -> Vec<SegmentId> {
        self.left.read().keys().copied().collect()
    }

    /// The files that are left with them.
    pub(crate) fn left_files(&self) -> BTreeSet<Ino> {
        self.left.read().values().filter_map(|left| left.file).collect()
    }

    /// How many files of a tier have no segment any more, because it was volatile.
    pub(crate) fn lost(&self, tier: u8) -> u64 {
        self.lost.lock().get(&tier).map_or(0, |lost| lost.len() as u64)
    }

    /// No file has the segment any more.
    pub(crate) fn not_lost(&self, id: SegmentId) {
        self.left.write().remove(&id);
        if let Some(lost) = self.lost.lock().get_mut(&id.tier()) {
            lost.remove(&id);
        }
    }

    /// True if a tier's directory is there.
    pub fn is_there(&self, tier: u8) -> bool {
        self.homes.contains_key(&tier)
    }

    /// Why a tier is not there.
    pub(crate) fn away(&self, tier: u8) -> Option<&Gone> {
        let remote = self.remote.get().filter(|(number, _)| *number == tier).map(|(_, gone)| gone);
        self.away.get(&tier).or(remote)
    }

    /// From now on files of a tier are in a remote.
    pub(crate) fn stand_for_remote(&self, tier: u8) {
        if !self.has_remote() {
            let _ = self.remote.set((tier, Gone::Away { tier: REMOTE_NAME.into() }));
        }
    }

    /// True if files may be in a remote.
    pub fn has_remote(&self) -> bool {
        self.remote.get().is_some() || self.away.values().any(|gone| matches!(gone, Gone::Away { .. }))
    }

    /// True for a tier that does not survive the end of the machine's boot.
    pub fn is_volatile(&self, tier: u8) -> bool {
        self.homes.get(&tier).is_some_and(|home| home.is_volatile())
    }

    /// The directories of segments that are there, by tier.
    pub fn directories(&self) -> impl Iterator<Item = (u8, BorrowedFd<'_>)> {
        self.homes.iter().map(|(tier, home)| (*tier, home.dir()))
    }

    /// The directories of the tiers that are there, but for the pool's own.
    pub(crate) fn tier_directories(&self) -> impl Iterator<Item = (u8, Arc<Dir>)> {
        self.above.iter().map(|(tier, above)| (*tier, above.clone()))
    }

    /// A file on the filesystem that a tier beside the pool's own directory is on, to find out what can be done with
    /// such.
    pub fn host_file(&self, tier: u8) -> Option<&File> {
        self.homes.get(&tier)?.lock()
    }

    /// The space of the filesystem that a tier is on, if it is there.
    pub fn host_space(&self, tier: u8) -> Option<io::Result<nix::sys::statvfs::Statvfs>> {
        self.homes.get(&tier).map(Home::space)
    }

    pub(super) fn home(&self, tier: u8) -> io::Result<&Home> {
        self.homes.get(&tier).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }

    /// Calls back with each directory that segments are in, and before that with the one that these are in.
    pub(crate) fn each_directory(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        for home in self.homes.values() {
            home.each_directory(each);
        }
    }

    /// Whether hosts are to take no more for new segments than their bytes need, as that counts.
    pub(crate) fn be_sparing(&self, sparing: bool) {
        self.sparing.store(sparing, Relaxed);
    }

    /// Creates an empty segment, and returns a descriptor that can sync it.
    pub fn create(&self, id: SegmentId) -> io::Result<OwnedFd> {
        let create = || self.open(id, libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL);
        let made = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_shard(id.tier(), shard(id))?;
                create()?
            }
            other => other?,
        };
        self.owner.give(&made)?;
        if self.sparing.load(Relaxed)
            && let Err(error) = self.home(id.tier())?.take_blocks_alone(&made)
        {
            log::debug!("{}: what its host sets aside ahead of appends: {error}", self.path_of(id).display());
        }
        self.unsynced.grown.lock().entry(id.tier()).or_default().add(id);
        Ok(made)
    }

    fn create_shard(&self, tier: u8, shard: u8) -> io::Result<()> {
        let home = self.home(tier)?;
        // Noted first and last: whoever creates a segment in the new directory meanwhile has its name synced, too.
        self.unsynced.grown.lock().entry(tier).or_default().making += 1;
        let made = home.create_shard(shard);
        let mut grown = self.unsynced.grown.lock();
        let grown = grown.entry(tier).or_default();
        grown.making -= 1;
        grown.top = true;
        made
    }

    /// Creates a spare: a segment that is no file's yet.
    pub fn create_spare(&self, id: SegmentId) -> io::Result<OwnedFd> {
        // Noted first: whoever finds it on the host shall know what it is.
        self.spares.lock().insert(id);
        self.create(id).inspect_err(|_| self.no_spare(id))
    }

    /// A spare is about to become a file's segment.
    pub fn no_spare(&self, id: SegmentId) {
        self.spares.lock().remove(&id);
    }

    /// Removes a spare that is not wanted any more.
    pub fn remove_spare(&self, id: SegmentId) -> io::Result<()> {
        let removed = self.unlink(id);
        self.no_spare(id);
        removed
    }

    /// True for a segment that waits for its file.
    pub(crate) fn is_spare(&self, id: SegmentId) -> bool {
        self.spares.lock().contains(&id)
    }

    /// Opens a segment with the given access mode.
    pub fn open(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        if self.left.read().contains_key(&id) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.home(id.tier())?.open_segment(id, flags)
    }

    /// Whether an error of a call on a segment says that there is none, or none within reach: nothing can be done then.
    pub fn is_not_there(&self, id: SegmentId, error: &io::Error) -> bool {
        let is_gone = || self.stat(id).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        self.gone(id).is_some() || (error.kind() == io::ErrorKind::NotFound && is_gone())
    }

    /// True if the host fails over a segment itself, whatever is to be done with it, after an error of doing so.
    pub(crate) fn fails(&self, id: SegmentId, error: &io::Error) -> bool {
        if Unreadable::of(error).is_some() {
            return true;
        }
        let asked = self.stat(id).and_then(|_| self.open(id, libc::O_RDONLY));
        asked.is_err_and(|error| is_of_segment(&error))
    }

    /// The host path of a segment, for messages.
    pub fn path_of(&self, id: SegmentId) -> PathBuf {
        match self.homes.get(&id.tier()) {
            Some(home) => home.path_of(id),
            None => PathBuf::from(format!("(tier {})/{}", id.tier(), path_within(id))),
        }
    }

    /// What the host says about a segment.
    pub fn stat(&self, id: SegmentId) -> io::Result<SegmentStat> {
        match self.unsynced.descriptor(id) {
            Some(fd) => Ok(nix::sys::stat::fstat(&*fd)?.into()),
            None => self.home(id.tier())?.stat(id),
        }
    }

    /// Gives a segment that was opened as `file` a second name in another directory of the pool.
    pub(super) fn link(&self, id: SegmentId, file: impl AsFd, to: &Dir, name: &str) -> io::Result<()> {
        self.home(id.tier())?.link(id, file, to, name)
    }

    /// What has a segment's name and is none of the pool's, in words.
    pub(crate) fn stranger(&self, id: SegmentId) -> Option<String> {
        let found = self.home(id.tier()).ok()?.look(id).err()?;
        Foreign::of(&found).map(Foreign::to_string)
    }

    /// What makes a segment's file that one and no other on the host.
    pub(super) fn identity(&self, id: SegmentId) -> io::Result<(u64, u64)> {
        Ok(identity(&self.home(id.tier())?.look(id)?))
    }

    /// True if no other descriptor and no mapping of the segment lives: a write lease would be granted.
    pub fn exclusive(&self, id: SegmentId) -> bool {
        self.lease(id, libc::F_WRLCK)
    }

    /// True if nothing can write the segment: a read lease would be granted.
    pub fn quiescent(&self, id: SegmentId) -> bool {
        self.lease(id, libc::F_RDLCK)
    }

    /// What the host says about a segment, and whether something may still write it. If nothing can, that is the last
    /// word: the host is asked behind the proof.
    pub(crate) fn look(&self, id: SegmentId) -> io::Result<(SegmentStat, bool)> {
        let fd = match self.open(id, libc::O_RDONLY | libc::O_NONBLOCK) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            // Nothing is proved of one that cannot be opened.
            Err(_) => return Ok((self.stat(id)?, true)),
        };
        let writable = try_lease(fd.as_fd(), libc::F_RDLCK).is_err();
        Ok((nix::sys::stat::fstat(&fd)?.into(), writable))
    }

    /// True if the host says that something else has the segment open or mapped, or only if it does so `to_write`.
    /// False where it does not say, as the segment is not there, or cannot be opened, or leases cannot be had.
    pub fn is_held(&self, id: SegmentId, to_write: bool) -> bool {
        let kind = if to_write { libc::F_RDLCK } else { libc::F_WRLCK };
        self.to_lease(id).is_some_and(|fd| try_lease(fd.as_fd(), kind) == Err(Errno::EAGAIN))
    }

    /// Takes a lease and gives it back.
    fn lease(&self, id: SegmentId, kind: libc::c_int) -> bool {
        self.to_lease(id).is_some_and(|fd| try_lease(fd.as_fd(), kind).is_ok())
    }

    /// A descriptor to take leases by. A second one of ours would stand in the way of a write lease, so the one that is
    /// held for syncing is used if there is one.
    fn to_lease(&self, id: SegmentId) -> Option<Arc<OwnedFd>> {
        // Nor may a witness stand in the way, once nothing is open that it is for.
        let take = |entry: &mut Tracked| if entry.writers == 0 { entry.witness.take() } else { None };
        let witness = self.unsynced.tracked.lock().change(id, take);
        drop(witness);
        let tracked = self.unsynced.descriptor(id);
        tracked.or_else(|| self.open(id, libc::O_RDONLY).ok().map(Arc::new))
    }

    /// Removes a segment from the host. One that is not there is fine: it was removed before. One in a tier that is
    /// away is removed when that is back.
    pub(crate) fn unlink(&self, id: SegmentId) -> io::Result<()> {
        self.unsynced.forget(id);
        self.not_lost(id);
        if let Some(grown) = self.unsynced.grown.lock().get_mut(&id.tier()) {
            grown.forget(id);
        }
        let removed = self.homes.get(&id.tier()).map_or(Ok(()), |home| home.unlink(id));
        // A sync of it may have failed meanwhile.
        self.unsynced.failed.lock().forget(id);
        removed
    }

    /// Everything in the segment directories: segments with what the host says of them, and what is
    /// none.
    pub(crate) fn scan(&self) -> io::Result<(HashMap<SegmentId, SegmentStat>, Vec<Stray>)> {
        self.scan_homes(|_| true, |id| self.stat(id))
    }

    /// As [`Segments::scan`], but the host is not asked about the segments.
    pub(crate) fn names(&self) -> io::Result<(HashMap<SegmentId, ()>, Vec<Stray>)> {
        self.scan_homes(|_| true, |_| Ok(()))
    }

    /// True if a tier holds no segment.
    pub(crate) fn is_empty(&self, tier: u8) -> io::Result<bool> {
        let Some(home) = self.homes.get(&tier) else { return Ok(true) };
        let mut found = Scanned::default();
        home.scan(tier, |_| Ok(()), &mut found)?;
        Ok(found.0.is_empty() && found.1.is_empty())
    }

    fn scan_homes<T>(
        &self,
        wanted: impl Fn(&Home) -> bool,
        ask: impl Fn(SegmentId) -> io::Result<T>,
    ) -> io::Result<Scanned<T>> {
        let mut found = (HashMap::new(), Vec::new());
        for (tier, home) in self.homes.iter().filter(|(_, home)| wanted(home)) {
            home.scan(*tier, &ask, &mut found)?;
        }
        Ok(found)
    }
}

/// Asks for a lease of this kind, which is given back at once.
fn try_lease(fd: BorrowedFd<'_>, kind: libc::c_int) -> nix::Result<()> {
    let said = Cell::new(Ok(()));
    ask_apart(|| {
        // SAFETY: F_SETLEASE takes an integer and touches no memory of ours.
        said.set(Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) }).map(drop));
        said.get().is_ok()
    });
    if said.get().is_ok() {
        // SAFETY: F_SETLEASE takes an integer and touches no memory of ours.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
    said.get()
}

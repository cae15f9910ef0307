//! Segments: the host files that hold the bytes of regular files, offset for offset.
//!
//! A segment is created under its final name, which is never reused; no host rename is relied on (rule 10). The descriptor
//! that will sync a segment is opened before its first possible write and closed only after the sync, and a sync
//! that failed is never tried again (rule 9). Names are made of numbers only, so nothing a user chooses becomes part
//! of a path of the host.
//!
//! Segments are in the pool's own directory or in one of its tiers; their numbers say in which. Those of a volatile tier are
//! never synced. A tier that is not there gives an I/O error for each of its segments, and nothing of it is changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::{FileStat, Mode};
use parking_lot::Mutex;

use crate::domain::Medium;
use crate::ids::{Ino, NUMBER_LIMIT, SegmentId};
use crate::owner::Owner;
use crate::tier::{self, Gone, Opened, PM, Whose};
use crate::time::Timestamp;
use crate::view::View;

/// Above this many descriptors held for syncing, commit before opening more files for writing.
pub const SYNC_FD_LIMIT: usize = 4096;
/// From this many segments on, one sync of the host filesystem is cheaper than one each.
const SYNC_ALL_FROM: usize = 64;

/// What the host says about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStat {
    /// Bytes.
    pub size: u64,
    /// Bytes allocated on the host.
    pub allocated: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
}

impl From<FileStat> for SegmentStat {
    fn from(stat: FileStat) -> Self {
        Self {
            size: stat.st_size as u64,
            allocated: stat.st_blocks as u64 * 512,
            atime: Timestamp::new(stat.st_atime, stat.st_atime_nsec as u32),
            mtime: Timestamp::new(stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: Timestamp::new(stat.st_ctime, stat.st_ctime_nsec as u32),
        }
    }
}

/// A directory of segments.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    dir: OwnedFd,
    /// Nothing in it is worth a sync.
    volatile: bool,
    _lock: Option<std::fs::File>,
}

impl Home {
    fn open(path: PathBuf, volatile: bool, lock: Option<std::fs::File>) -> io::Result<Self> {
        let dir = std::fs::File::open(&path)?.into();
        Ok(Self { path, dir, volatile, _lock: lock })
    }
}

/// All segments of a pool.
#[derive(Debug)]
pub struct Segments {
    /// The pool's own directory and its tiers, those that are there.
    homes: BTreeMap<u8, Home>,
    /// The tiers that are not.
    away: BTreeMap<u8, Gone>,
    owner: Owner,
    medium: Arc<dyn Medium>,
    tracked: Mutex<HashMap<SegmentId, Tracked>>,
    /// The directories of these segments may not have been synced since they were created, by tier.
    grown: Mutex<BTreeMap<u8, Grown>>,
    /// Segments of files whose bytes did not survive, because their tier was volatile.
    lost: Mutex<HashMap<SegmentId, Gone>>,
    /// Segments with a failed sync, and whether the file that has it is marked as damaged.
    failed: Mutex<HashMap<SegmentId, bool>>,
    /// Held while a segment is synced: one at a time, and until a failure is kept in mind.
    turns: Mutex<HashMap<SegmentId, Arc<Mutex<()>>>>,
    /// A sync of the whole host failed once. It reports a failure only once, and that may have been the failure of a
    /// segment that was not due: from then on each segment is asked itself.
    suspicious: AtomicBool,
    touches: AtomicU64,
    /// Empty segments that no file has yet.
    spares: Mutex<HashSet<SegmentId>>,
}

/// A segment that may have bytes that are not durable.
#[derive(Debug)]
struct Tracked {
    fd: Arc<OwnedFd>,
    writers: u32,
    /// The next commit must sync it.
    due: bool,
    /// May have been written since the last sync.
    dirty: bool,
    /// Counts how often it became due.
    calls: u64,
    /// The file that has it, once a record says so.
    ino: Option<Ino>,
    /// Some record speaks of bytes in it.
    mentioned: bool,
    /// The log holds the file's bytes: the number of the value's record, while the segment may not hold them durably.
    value: Option<u64>,
    /// Nothing was recorded since the value, so that no commit need sync the segment.
    covered: bool,
}

impl Tracked {
    fn new(fd: Arc<OwnedFd>) -> Self {
        Self {
            fd,
            writers: 0,
            due: false,
            dirty: false,
            calls: 0,
            ino: None,
            mentioned: false,
            value: None,
            covered: false,
        }
    }

    fn call(&mut self) {
        self.due = true;
        self.dirty = true;
        self.covered = false;
        self.calls += 1;
    }
}

/// What a segment that a commit has to sync is known for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueSegment {
    /// The segment.
    pub segment: SegmentId,
    /// The file that has it, if that is recorded.
    pub ino: Option<Ino>,
}

#[derive(Debug, Default)]
struct Grown {
    /// The directory of the directories.
    top: bool,
    segments: HashSet<SegmentId>,
    shards: HashSet<u8>,
}

/// What one commit has to sync.
#[derive(Debug)]
pub(crate) struct Due {
    segments: Vec<(SegmentId, Arc<OwnedFd>)>,
    grown: BTreeMap<u8, Grown>,
    /// Values of the log that are not needed any more once the segments are synced.
    values: Vec<(SegmentId, Ino, u64)>,
    pub touches: u64,
}

/// Has the host begin to write a file's bytes, and does not wait for it.
fn start_writing(fd: BorrowedFd<'_>) {
    // SAFETY: takes integers alone. That it fails means nothing: the sync that follows tells.
    unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

pub(crate) fn shard(id: SegmentId) -> u8 {
    (id.0 >> 8) as u8
}

fn shard_name(shard: u8) -> CString {
    CString::new(format!("{shard:02x}")).unwrap_or_default()
}

fn name(id: SegmentId) -> CString {
    // Hexadecimal digits and a slash: there is no NUL in it.
    CString::new(format!("{:02x}/{id}", shard(id))).unwrap_or_default()
}

fn open_shard(home: &Home, shard: u8) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    Ok(nix::fcntl::openat(&home.dir, shard_name(shard).as_c_str(), flags, Mode::empty())?)
}

fn unknown(tier: u8) -> Gone {
    Gone::Missing { tier: format!("number {tier}"), reason: "the pool has no such tier".into() }
}

impl Segments {
    pub(crate) fn open_all(pool: &Path, medium: Arc<dyn Medium>) -> io::Result<Self> {
        let path = pool.join("segments");
        Ok(Self {
            owner: Owner::of(&path)?,
            homes: BTreeMap::from([(PM, Home::open(path, false, None)?)]),
            away: BTreeMap::new(),
            lost: Mutex::default(),
            medium,
            tracked: Mutex::default(),
            grown: Mutex::default(),
            failed: Mutex::default(),
            turns: Mutex::default(),
            suspicious: AtomicBool::new(false),
            touches: AtomicU64::new(0),
            spares: Mutex::default(),
        })
    }

    /// Opens the tiers that a pool has beside its own directory, and finds out which files they have lost. To `write`, a
    /// volatile one that did not survive is made anew. One that cannot be used is done without.
    pub(crate) fn open_tiers(&mut self, view: &View, whose: Whose, write: bool) -> io::Result<()> {
        for (number, tier) in view.tiers() {
            let opened = tier::open(whose, number, tier, self.owner, write).and_then(|opened| match opened {
                Opened::Ready(directory) => {
                    let home = Home::open(directory.segments, tier.volatile, directory.lock);
                    home.map(Some).map_err(|error| format!("its segments cannot be opened: {error}"))
                }
                Opened::Lost => Ok(None),
            });
            let name = tier.name.to_string();
            match opened {
                Ok(Some(home)) => drop(self.homes.insert(number, home)),
                Ok(None) => drop(self.away.insert(number, Gone::Lost { tier: name })),
                Err(reason) => {
                    if write {
                        log::error!("tier {name}: missing, its files give errors: {reason}");
                    }
                    self.away.insert(number, Gone::Missing { tier: name, reason });
                }
            }
        }
        if self.homes.values().any(|home| home.volatile) { self.find_lost(view, write) } else { Ok(()) }
    }

    /// Which files have no segment any more, because their tier was volatile. To `write`, an empty file gets one again: nothing
    /// of it is lost.
    fn find_lost(&self, view: &View, write: bool) -> io::Result<()> {
        let (present, _) = self.scan_homes(|home| home.volatile)?;
        for (_, object) in view.objects() {
            let Some(id) = object.attributes.segment else { continue };
            if !self.is_volatile(id.tier()) || present.contains_key(&id) {
                continue;
            }
            if object.size() > 0 {
                let tier = view.tier_name(id.tier());
                self.lost.lock().insert(id, Gone::Lost { tier });
            } else if write {
                self.create(id)?;
            }
        }
        Ok(())
    }

    /// Why the bytes of a segment cannot be had, if that is so.
    pub fn gone(&self, id: SegmentId) -> Option<Gone> {
        match id.tier() {
            PM => None,
            tier if self.is_there(tier) => self.lost.lock().get(&id).cloned(),
            tier => Some(self.away.get(&tier).cloned().unwrap_or_else(|| unknown(tier))),
        }
    }

    /// True if a tier's directory is there.
    pub fn is_there(&self, tier: u8) -> bool {
        self.homes.contains_key(&tier)
    }

    /// Why a tier is not there.
    pub(crate) fn away(&self, tier: u8) -> Option<&Gone> {
        self.away.get(&tier)
    }

    /// True for a tier that does not survive the end of the machine's boot.
    pub fn is_volatile(&self, tier: u8) -> bool {
        self.homes.get(&tier).is_some_and(|home| home.volatile)
    }

    /// The directories of segments that are there, by tier.
    pub fn directories(&self) -> impl Iterator<Item = (u8, &Path)> {
        self.homes.iter().map(|(tier, home)| (*tier, &*home.path))
    }

    fn home(&self, tier: u8) -> io::Result<&Home> {
        self.homes.get(&tier).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }

    /// No link is followed on the way: in a pool that is somebody else's, it could lead anywhere.
    fn open_with(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        let home = self.home(id.tier())?;
        let name = name(id);
        let flags = OFlag::from_bits_retain(flags | libc::O_CLOEXEC | libc::O_NOFOLLOW);
        let mode = if flags.contains(OFlag::O_CREAT) { Mode::S_IRUSR | Mode::S_IWUSR } else { Mode::empty() };
        let how = OpenHow::new().flags(flags).mode(mode).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        match nix::fcntl::openat2(&home.dir, name.as_c_str(), how) {
            // A kernel or a container that lacks the call: the directory is checked before the file is opened in it.
            Err(Errno::ENOSYS | Errno::EPERM) => {
                let shard = open_shard(home, shard(id))?;
                Ok(nix::fcntl::openat(&shard, id.to_string().as_str(), flags, mode)?)
            }
            opened => Ok(opened?),
        }
    }

    /// Creates an empty segment, and returns a descriptor that can sync it.
    pub fn create(&self, id: SegmentId) -> io::Result<OwnedFd> {
        let create = || self.open_with(id, libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL);
        let made = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_shard(id.tier(), shard(id))?;
                create()?
            }
            other => other?,
        };
        self.owner.give(&made)?;
        self.grown.lock().entry(id.tier()).or_default().segments.insert(id);
        Ok(made)
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

    fn create_shard(&self, tier: u8, shard: u8) -> io::Result<()> {
        let home = self.home(tier)?;
        // Held so that whoever creates a segment in the new directory finds it noted for the next commit.
        let mut grown = self.grown.lock();
        match nix::sys::stat::mkdirat(&home.dir, shard_name(shard).as_c_str(), Mode::S_IRWXU) {
            Ok(()) if !self.owner.is_self() => self.owner.give(open_shard(home, shard)?)?,
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        grown.entry(tier).or_default().top = true;
        Ok(())
    }

    /// Opens a segment with the given access mode.
    pub fn open(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        self.open_with(id, flags)
    }

    /// The host path of a segment, for messages.
    pub fn path_of(&self, id: SegmentId) -> PathBuf {
        let name = format!("{:02x}/{id}", shard(id));
        match self.homes.get(&id.tier()) {
            Some(home) => home.path.join(name),
            None => Path::new(&format!("(tier {})", id.tier())).join(name),
        }
    }

    /// Must be called before anything can write to the segment. Returns the read-only descriptor that will sync it, held
    /// until a commit has synced it after the matching [`Segments::end_write`].
    pub fn begin_write(&self, id: SegmentId) -> io::Result<Arc<OwnedFd>> {
        let mut tracked = self.tracked.lock();
        let entry = self.track(&mut tracked, id)?;
        entry.writers += 1;
        entry.dirty = true;
        Ok(entry.fd.clone())
    }

    /// The same with a descriptor that [`Segments::create`] returned.
    pub fn begin_first_write(&self, id: SegmentId, fd: Arc<OwnedFd>) -> Arc<OwnedFd> {
        let mut tracked = self.tracked.lock();
        let entry = tracked.entry(id).or_insert_with(|| Tracked::new(fd));
        entry.writers += 1;
        entry.dirty = true;
        entry.fd.clone()
    }

    /// One writer less.
    pub fn end_write(&self, id: SegmentId) {
        if let Some(entry) = self.tracked.lock().get_mut(&id) {
            entry.writers = entry.writers.saturating_sub(1);
            if entry.dirty && !entry.due && !entry.covered {
                entry.call();
                self.touches.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The segment's bytes may have changed: the next commit syncs it.
    pub fn touch(&self, id: SegmentId) -> io::Result<()> {
        let mut tracked = self.tracked.lock();
        self.track(&mut tracked, id)?.call();
        self.touches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A record that is about to be stored speaks of bytes in the segment. On an error it must not be stored. Unless they
    /// are `durable` the next commit syncs it.
    pub(crate) fn mention(&self, id: SegmentId, ino: Ino, durable: bool) -> io::Result<()> {
        let mut tracked = self.tracked.lock();
        let entry = self.track(&mut tracked, id)?;
        // What ends a value has the segment synced in any case: bytes that came after the sync that made others durable may be
        // durable by the value alone.
        if !durable || entry.covered {
            entry.call();
        }
        (entry.ino, entry.mentioned) = (Some(ino), true);
        Ok(())
    }

    /// The file's bytes were stored in the log, in a record with this sequence number that counts: no commit need sync the
    /// segment, until more is recorded of it.
    pub(crate) fn cover(&self, id: SegmentId, ino: Ino, seq: u64) {
        if let Some(entry) = self.tracked.lock().get_mut(&id) {
            (entry.due, entry.covered, entry.value) = (false, true, Some(seq));
            (entry.ino, entry.mentioned) = (Some(ino), true);
        }
    }

    /// Somebody relies once more on the value that holds the bytes of the segment: what is being synced may not be these bytes.
    /// False if they are not to be found in the log alone.
    pub fn hold_value(&self, id: SegmentId) -> bool {
        let mut tracked = self.tracked.lock();
        let held = tracked.get_mut(&id).filter(|entry| entry.covered);
        held.map(|entry| entry.calls += 1).is_some()
    }

    /// The log does not hold the bytes of the segment after all: the next commit syncs it.
    pub(crate) fn recall(&self, id: SegmentId) {
        if let Some(entry) = self.tracked.lock().get_mut(&id) {
            entry.call();
        }
    }

    /// What a commit has to sync now, if that is no more than `most`.
    pub fn due(&self, most: usize) -> Option<Vec<DueSegment>> {
        let tracked = self.tracked.lock();
        let due = tracked.iter().filter(|(_, entry)| entry.due);
        let due = due.map(|(id, entry)| DueSegment { segment: *id, ino: entry.ino });
        let due: Vec<DueSegment> = due.take(most + 1).collect();
        Some(due).filter(|due| due.len() <= most)
    }

    /// Syncs the segments whose bytes only the log holds durably, and their names, beside whatever commit goes on. Returns the
    /// values that are not needed any more; an error is one of a directory.
    pub(crate) fn sync_covered(&self) -> io::Result<Vec<(Ino, u64)>> {
        let covered: Vec<_> = {
            let tracked = self.tracked.lock();
            let covered = tracked.iter().filter(|(_, entry)| entry.covered);
            covered
                .filter_map(|(id, entry)| Some((*id, entry.fd.clone(), entry.calls, entry.ino?, entry.value?)))
                .collect()
        };
        let mut settled = Vec::new();
        for (tier, home) in self.homes.iter().filter(|(_, home)| !home.volatile) {
            let ours: Vec<_> = covered.iter().filter(|(id, ..)| id.tier() == *tier).collect();
            if ours.is_empty() {
                continue;
            }
            let (names, top) = {
                let grown = self.grown.lock();
                let named = |grown: &Grown| {
                    let new = ours.iter().map(|(id, ..)| *id).filter(|id| grown.segments.contains(id));
                    (new.collect::<Vec<_>>(), grown.top)
                };
                grown.get(tier).map(named).unwrap_or_default()
            };
            let mut failed = Vec::new();
            if !self.sync_at_once(home, ours.len()) {
                ours.iter().for_each(|(_, fd, ..)| start_writing(fd.as_fd()));
                let shards = names.iter().map(|id| shard(*id)).collect();
                self.sync_directories(home, &Grown { top, shards, segments: HashSet::new() })?;
                let unsynced = ours.iter().filter(|(id, fd, ..)| !self.sync_one(*id, fd.as_fd()));
                failed.extend(unsynced.map(|(id, ..)| *id));
            }
            if let Some(grown) = self.grown.lock().get_mut(tier) {
                grown.segments.retain(|id| !names.contains(id));
            }
            let mut tracked = self.tracked.lock();
            for (id, _, calls, ino, seq) in ours {
                let Some(entry) = tracked.get_mut(id) else { continue };
                // A sync that succeeds after one that failed says nothing of what was written before.
                if failed.contains(id) || self.failed(*id) {
                    entry.call();
                    self.touches.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                if entry.covered && entry.calls != *calls {
                    continue;
                }
                settled.push((*ino, *seq));
                // Unless more was recorded of it meanwhile.
                if entry.covered && entry.value == Some(*seq) {
                    (entry.covered, entry.value) = (false, None);
                    if entry.writers == 0 {
                        tracked.remove(id);
                    }
                }
            }
        }
        Ok(settled)
    }

    /// Recovery is about to write what the log has as a file's bytes, in the record with that sequence number. The segment's
    /// name may not be durable either.
    pub(crate) fn begin_restore(&self, id: SegmentId, ino: Ino, seq: u64) -> io::Result<()> {
        let mut grown = self.grown.lock();
        let home = grown.entry(id.tier()).or_default();
        home.top = true;
        home.shards.insert(shard(id));
        drop(grown);
        let mut tracked = self.tracked.lock();
        let entry = self.track(&mut tracked, id)?;
        (entry.ino, entry.value) = (Some(ino), Some(seq));
        entry.call();
        self.touches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Everything that may have bytes that are not durable is due, whether it is still open for writing or not.
    pub(crate) fn touch_all(&self) {
        for grown in self.grown.lock().values_mut() {
            let Grown { segments, shards, .. } = grown;
            shards.extend(segments.drain().map(shard));
        }
        self.tracked.lock().values_mut().for_each(Tracked::call);
        self.touches.fetch_add(1, Ordering::Relaxed);
    }

    /// True if the log holds bytes of some file that its segment may not hold durably.
    pub(crate) fn any_covered(&self) -> bool {
        self.tracked.lock().values().any(|entry| entry.covered)
    }

    fn track<'a>(&self, tracked: &'a mut HashMap<SegmentId, Tracked>, id: SegmentId) -> io::Result<&'a mut Tracked> {
        Ok(match tracked.entry(id) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let fd = Arc::new(self.open_with(id, libc::O_RDONLY)?);
                entry.insert(Tracked::new(fd))
            }
        })
    }

    /// How often a segment became due without a record that says so.
    pub(crate) fn touches(&self) -> u64 {
        self.touches.load(Ordering::Relaxed)
    }

    /// What a commit that starts now has to sync.
    pub(crate) fn take_due(&self) -> Due {
        let mut grown = self.grown.lock();
        let mut tracked = self.tracked.lock();
        let touches = self.touches();
        let (mut segments, mut values) = (Vec::new(), Vec::new());
        for (id, entry) in tracked.iter_mut().filter(|(_, entry)| entry.due) {
            entry.due = false;
            entry.dirty = entry.writers > 0;
            values.extend(entry.value.take().and_then(|seq| Some((*id, entry.ino?, seq))));
            segments.push((*id, entry.fd.clone()));
        }
        // A segment that no record speaks of, or whose bytes the log holds, recovery can create again.
        let spared = |id: &SegmentId| tracked.get(id).is_none_or(|entry| entry.covered || !entry.mentioned);
        let take = |(tier, grown): (&u8, &mut Grown)| {
            let mut shards = std::mem::take(&mut grown.shards);
            shards.extend(grown.segments.iter().filter(|id| !spared(id)).map(|id| shard(*id)));
            grown.segments.retain(|id| !shards.contains(&shard(*id)));
            let top = !shards.is_empty() && std::mem::take(&mut grown.top);
            (*tier, Grown { top, shards, segments: HashSet::new() })
        };
        Due { grown: grown.iter_mut().map(take).collect(), segments, values, touches }
    }

    /// Syncs a segment outside any commit. False if it is not open for writing, or the sync failed.
    pub(crate) fn sync_early(&self, id: SegmentId) -> bool {
        let Some((fd, calls)) = self.tracked.lock().get(&id).map(|entry| (entry.fd.clone(), entry.calls)) else {
            return false;
        };
        let done = self.sync_one(id, fd.as_fd());
        if let Some(entry) = self.tracked.lock().get_mut(&id) {
            match done {
                // Not if it became due again meanwhile.
                true => entry.due &= entry.calls != calls,
                false => {
                    entry.call();
                    self.touches.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        done
    }

    /// False if it failed, which is kept in mind.
    fn sync_one(&self, id: SegmentId, fd: BorrowedFd<'_>) -> bool {
        if self.is_volatile(id.tier()) {
            return true;
        }
        // A failure is told to one of two who sync at the same time. The other must not go on before it is kept in mind.
        let turn = self.turns.lock().entry(id).or_default().clone();
        let mine = turn.lock();
        let synced = self.medium.sync_segment(fd);
        if let Err(error) = &synced {
            self.failed.lock().insert(id, false);
            log::error!("{}: sync failed: {error}", self.path_of(id).display());
        }
        drop(mine);
        let mut turns = self.turns.lock();
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
        for (tier, home) in self.homes.iter().filter(|(_, home)| !home.volatile) {
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
        let mut tracked = self.tracked.lock();
        for (id, ..) in &due.segments {
            let done = |entry: &Tracked| entry.writers == 0 && !entry.due && !entry.dirty && !entry.covered;
            if tracked.get(id).is_some_and(done) {
                tracked.remove(id);
            }
        }
        Ok(())
    }

    fn sync_directories(&self, home: &Home, grown: &Grown) -> io::Result<()> {
        if grown.top {
            self.medium.sync_directory(home.dir.as_fd())?;
        }
        for shard in &grown.shards {
            match open_shard(home, *shard) {
                Ok(dir) => self.medium.sync_directory(dir.as_fd())?,
                // Such as no descriptor left, which is no failed sync. A sync of the whole host needs none.
                Err(error) => {
                    log::debug!("{}: syncing the whole host instead: {error}", home.path.display());
                    self.medium.sync_all(home.dir.as_fd())?;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Syncs the whole host filesystem, directories included, if that is cheaper for so many segments; true if it reported no
    /// failure.
    fn sync_at_once(&self, home: &Home, segments: usize) -> bool {
        if segments < SYNC_ALL_FROM || self.suspicious.load(Ordering::Relaxed) {
            return false;
        }
        let result = self.medium.sync_all(home.dir.as_fd());
        self.suspicious.fetch_or(result.is_err(), Ordering::Relaxed);
        result.is_ok()
    }

    /// Makes the bytes of a segment durable now, and its name: it is a copy of one that is about to go.
    pub fn sync_copy(&self, id: SegmentId) -> io::Result<()> {
        let home = self.home(id.tier())?;
        if home.volatile {
            return Ok(());
        }
        self.medium.sync_segment(self.open_with(id, libc::O_RDONLY)?.as_fd())?;
        self.medium.sync_directory(open_shard(home, shard(id))?.as_fd())?;
        self.medium.sync_directory(home.dir.as_fd())
    }

    /// The values of the log that are not needed any more, once what was due is synced.
    pub(crate) fn settled<'a>(&self, due: &'a Due) -> impl Iterator<Item = (Ino, u64)> + 'a {
        let failed = self.failed.lock().keys().copied().collect::<HashSet<_>>();
        let settled = due.values.iter().filter(move |(segment, ..)| !failed.contains(segment));
        settled.map(|(_, ino, seq)| (*ino, *seq))
    }

    /// Segments with a failed sync whose file is not marked as damaged yet.
    pub(crate) fn unmarked(&self) -> HashSet<SegmentId> {
        self.failed.lock().iter().filter(|(_, marked)| !**marked).map(|(id, _)| *id).collect()
    }

    /// The file that has the segment is marked as damaged, in a record that was stored.
    pub(crate) fn set_marked(&self, id: SegmentId) {
        if let Some(marked) = self.failed.lock().get_mut(&id) {
            *marked = true;
        }
    }

    /// Syncs everything on the host filesystem: after a server was killed nobody knows what it had not synced.
    pub(crate) fn sync_host(&self) -> io::Result<()> {
        for (tier, home) in self.homes.iter().filter(|(_, home)| !home.volatile) {
            let shards = shards(home)?;
            let mut grown = self.grown.lock();
            let grown = grown.entry(*tier).or_default();
            grown.top = true;
            grown.shards.extend(shards);
            self.medium.sync_all(home.dir.as_fd())?;
        }
        Ok(())
    }

    /// Descriptors held for syncing.
    pub fn dirty_count(&self) -> usize {
        self.tracked.lock().len()
    }

    /// True if the segment may have bytes that the next commit, or the one under way, makes durable.
    pub fn is_pending(&self, id: SegmentId) -> bool {
        self.tracked.lock().get(&id).is_some_and(|entry| entry.writers > 0 || !entry.covered)
    }

    /// True if a sync of the segment failed, so that what it holds may not be what was written.
    pub fn failed(&self, id: SegmentId) -> bool {
        self.failed.lock().contains_key(&id)
    }

    /// What the host says about a segment.
    pub fn stat(&self, id: SegmentId) -> io::Result<SegmentStat> {
        let held = self.tracked.lock().get(&id).map(|entry| entry.fd.clone());
        if let Some(fd) = held {
            return Ok(nix::sys::stat::fstat(&*fd)?.into());
        }
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        Ok(nix::sys::stat::fstatat(&self.home(id.tier())?.dir, name(id).as_c_str(), flags)?.into())
    }

    /// True if no other descriptor and no mapping of the segment lives: a write lease would be granted.
    pub fn exclusive(&self, id: SegmentId) -> bool {
        self.lease(id, libc::F_WRLCK)
    }

    /// True if nothing can write the segment: a read lease would be granted.
    pub fn quiescent(&self, id: SegmentId) -> bool {
        self.lease(id, libc::F_RDLCK)
    }

    /// Takes a lease and gives it back. A second descriptor of ours would stand in the way of a write lease, so the one
    /// that is held for syncing is used if there is one.
    fn lease(&self, id: SegmentId, kind: libc::c_int) -> bool {
        let tracked = self.tracked.lock();
        let opened;
        let fd: BorrowedFd<'_> = match tracked.get(&id) {
            Some(entry) => entry.fd.as_fd(),
            None => match self.open_with(id, libc::O_RDONLY) {
                Ok(fd) => {
                    opened = fd;
                    opened.as_fd()
                }
                Err(_) => return false,
            },
        };
        // SAFETY: F_SETLEASE takes an integer and touches no memory of ours.
        let granted = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) } == 0;
        if granted {
            // SAFETY: as above.
            unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
        }
        granted
    }

    /// Removes a segment from the host. One that is not there is fine: it was removed before. One in a tier that is away is
    /// removed when that is back.
    pub(crate) fn unlink(&self, id: SegmentId) -> io::Result<()> {
        self.tracked.lock().remove(&id);
        self.failed.lock().remove(&id);
        self.lost.lock().remove(&id);
        if let Some(grown) = self.grown.lock().get_mut(&id.tier()) {
            grown.segments.remove(&id);
        }
        let Some(home) = self.homes.get(&id.tier()) else { return Ok(()) };
        let removed = open_shard(home, shard(id)).and_then(|shard| {
            Ok(nix::unistd::unlinkat(&shard, id.to_string().as_str(), nix::unistd::UnlinkatFlags::NoRemoveDir)?)
        });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Everything in the segment directories: segments with what the host says of them, and paths that are none.
    pub(crate) fn scan(&self) -> io::Result<(HashMap<SegmentId, SegmentStat>, Vec<PathBuf>)> {
        self.scan_homes(|_| true)
    }

    /// True if a tier holds no segment.
    pub(crate) fn is_empty(&self, tier: u8) -> io::Result<bool> {
        let Some(home) = self.homes.get(&tier) else { return Ok(true) };
        let mut segments = HashMap::new();
        let mut foreign = Vec::new();
        self.scan_home(tier, home, &mut segments, &mut foreign)?;
        Ok(segments.is_empty() && foreign.is_empty())
    }

    fn scan_homes(
        &self,
        wanted: impl Fn(&Home) -> bool,
    ) -> io::Result<(HashMap<SegmentId, SegmentStat>, Vec<PathBuf>)> {
        let mut segments = HashMap::new();
        let mut foreign = Vec::new();
        for (tier, home) in self.homes.iter().filter(|(_, home)| wanted(home)) {
            self.scan_home(*tier, home, &mut segments, &mut foreign)?;
        }
        Ok((segments, foreign))
    }

    fn scan_home(
        &self,
        tier: u8,
        home: &Home,
        segments: &mut HashMap<SegmentId, SegmentStat>,
        foreign: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        for shard in shards(home)? {
            let path = home.path.join(format!("{shard:02x}"));
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                let id = entry.file_name().to_str().and_then(|name| {
                    let id = SegmentId(u64::from_str_radix(name, 16).ok()?);
                    let ours = id.to_string() == name && self::shard(id) == shard && id.0 < NUMBER_LIMIT;
                    (ours && id.tier() == tier).then_some(id)
                });
                match id {
                    Some(id) if entry.file_type()?.is_file() => match self.stat(id) {
                        Ok(stat) => drop(segments.insert(id, stat)),
                        // Removed meanwhile.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(error),
                    },
                    _ => foreign.push(entry.path()),
                }
            }
        }
        Ok(())
    }
}

fn shards(home: &Home) -> io::Result<Vec<u8>> {
    let mut shards = Vec::new();
    for entry in std::fs::read_dir(&home.path)? {
        let entry = entry?;
        let name = entry.file_name();
        let shard = name.to_str().and_then(|name| u8::from_str_radix(name, 16).ok());
        let ours = |shard: &u8| name.to_str() == Some(&format!("{shard:02x}"));
        if entry.file_type()?.is_dir() {
            shards.extend(shard.filter(ours));
        }
    }
    Ok(shards)
}

//! Segments: the host files that hold the bytes of regular files, offset for offset.
//!
//! A segment is created under its final name, which is never reused; no host rename is relied on (rule 10). The descriptor
//! that will sync a segment is opened before its first possible write and closed only after the sync, and a sync
//! that failed is never tried again (rule 9). Names are made of numbers only, so nothing a user chooses becomes part
//! of a path of the host.

use std::collections::{HashMap, HashSet};
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
use crate::ids::{NUMBER_LIMIT, SegmentId};
use crate::owner::Owner;
use crate::time::Timestamp;

/// Above this many descriptors held for syncing, commit before opening more files for writing.
pub const SYNC_FD_LIMIT: usize = 4096;
/// From this many segments on, one sync of the host filesystem is cheaper than one each.
const SYNC_ALL_FROM: usize = 128;

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

/// All segments of a pool.
#[derive(Debug)]
pub struct Segments {
    path: PathBuf,
    dir: OwnedFd,
    owner: Owner,
    medium: Arc<dyn Medium>,
    tracked: Mutex<HashMap<SegmentId, Tracked>>,
    /// Directories that got new names since they were last synced.
    grown: Mutex<Grown>,
    /// Segments with a failed sync, and whether the file that has it is marked as damaged.
    failed: Mutex<HashMap<SegmentId, bool>>,
    /// A sync of the whole host failed once. It reports a failure only once, and that may have been the failure of a
    /// segment that was not due: from then on each segment is asked itself.
    suspicious: AtomicBool,
    touches: AtomicU64,
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
}

#[derive(Debug, Default)]
struct Grown {
    /// The directory of the directories.
    top: bool,
    shards: HashSet<u8>,
}

/// What one commit has to sync.
#[derive(Debug)]
pub(crate) struct Due {
    segments: Vec<(SegmentId, Arc<OwnedFd>)>,
    grown: Grown,
    pub touches: u64,
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

impl Segments {
    pub(crate) fn open_all(pool: &Path, medium: Arc<dyn Medium>) -> io::Result<Self> {
        let path = pool.join("segments");
        let dir = std::fs::File::open(&path)?.into();
        Ok(Self {
            owner: Owner::of(&path)?,
            path,
            dir,
            medium,
            tracked: Mutex::default(),
            grown: Mutex::default(),
            failed: Mutex::default(),
            suspicious: AtomicBool::new(false),
            touches: AtomicU64::new(0),
        })
    }

    /// No link is followed on the way: in a pool that is somebody else's, it could lead anywhere.
    fn open_with(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        let name = name(id);
        let flags = OFlag::from_bits_retain(flags | libc::O_CLOEXEC | libc::O_NOFOLLOW);
        let mode = if flags.contains(OFlag::O_CREAT) { Mode::S_IRUSR | Mode::S_IWUSR } else { Mode::empty() };
        let how = OpenHow::new().flags(flags).mode(mode).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        match nix::fcntl::openat2(&self.dir, name.as_c_str(), how) {
            // A kernel or a container that lacks the call: the directory is checked before the file is opened in it.
            Err(Errno::ENOSYS | Errno::EPERM) => {
                let shard = self.open_shard(shard(id))?;
                Ok(nix::fcntl::openat(&shard, id.to_string().as_str(), flags, mode)?)
            }
            opened => Ok(opened?),
        }
    }

    /// Creates an empty segment.
    pub fn create(&self, id: SegmentId) -> io::Result<()> {
        let create = || self.open_with(id, libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL);
        let made = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_shard(shard(id))?;
                create()?
            }
            other => other?,
        };
        self.owner.give(&made)?;
        self.grown.lock().shards.insert(shard(id));
        Ok(())
    }

    fn create_shard(&self, shard: u8) -> io::Result<()> {
        // Held so that whoever creates a segment in the new directory finds it noted for the next commit.
        let mut grown = self.grown.lock();
        match nix::sys::stat::mkdirat(&self.dir, shard_name(shard).as_c_str(), Mode::S_IRWXU) {
            Ok(()) if !self.owner.is_self() => self.owner.give(self.open_shard(shard)?)?,
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        grown.top = true;
        Ok(())
    }

    fn open_shard(&self, shard: u8) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        Ok(nix::fcntl::openat(&self.dir, shard_name(shard).as_c_str(), flags, Mode::empty())?)
    }

    /// Opens a segment with the given access mode.
    pub fn open(&self, id: SegmentId, flags: libc::c_int) -> io::Result<OwnedFd> {
        self.open_with(id, flags)
    }

    /// The host path of a segment, for messages.
    pub fn path_of(&self, id: SegmentId) -> PathBuf {
        self.path.join(format!("{:02x}/{id}", shard(id)))
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

    /// One writer less.
    pub fn end_write(&self, id: SegmentId) {
        if let Some(entry) = self.tracked.lock().get_mut(&id) {
            entry.writers = entry.writers.saturating_sub(1);
            if entry.dirty && !entry.due {
                entry.due = true;
                self.touches.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The segment's bytes may have changed: the next commit syncs it.
    pub fn touch(&self, id: SegmentId) -> io::Result<()> {
        let mut tracked = self.tracked.lock();
        let entry = self.track(&mut tracked, id)?;
        entry.due = true;
        entry.dirty = true;
        self.touches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A record that is about to be stored speaks of bytes in the segment. On an error it must not be stored.
    pub(crate) fn mention(&self, id: SegmentId) -> io::Result<()> {
        let mut tracked = self.tracked.lock();
        let entry = self.track(&mut tracked, id)?;
        entry.due = true;
        entry.dirty = true;
        Ok(())
    }

    /// Everything that may have bytes that are not durable is due, whether it is still open for writing or not.
    pub(crate) fn touch_all(&self) {
        for entry in self.tracked.lock().values_mut() {
            entry.due = true;
        }
        self.touches.fetch_add(1, Ordering::Relaxed);
    }

    fn track<'a>(&self, tracked: &'a mut HashMap<SegmentId, Tracked>, id: SegmentId) -> io::Result<&'a mut Tracked> {
        Ok(match tracked.entry(id) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let fd = Arc::new(self.open_with(id, libc::O_RDONLY)?);
                entry.insert(Tracked { fd, writers: 0, due: false, dirty: false })
            }
        })
    }

    /// How often a segment became due without a record that says so.
    pub(crate) fn touches(&self) -> u64 {
        self.touches.load(Ordering::Relaxed)
    }

    /// What a commit that starts now has to sync.
    pub(crate) fn take_due(&self) -> Due {
        let grown = std::mem::take(&mut *self.grown.lock());
        let mut tracked = self.tracked.lock();
        let touches = self.touches();
        let mut segments = Vec::new();
        for (id, entry) in tracked.iter_mut().filter(|(_, entry)| entry.due) {
            entry.due = false;
            entry.dirty = entry.writers > 0;
            segments.push((*id, entry.fd.clone()));
        }
        Due { segments, grown, touches }
    }

    /// Syncs what is due. An error is one of a directory; segments that failed are [`Segments::unmarked`] afterwards.
    pub(crate) fn sync(&self, due: &Due) -> io::Result<()> {
        if due.grown.top {
            self.medium.sync_directory(self.dir.as_fd())?;
        }
        for shard in &due.grown.shards {
            match self.open_shard(*shard) {
                Ok(dir) => self.medium.sync_directory(dir.as_fd())?,
                // Such as no descriptor left, which is no failed sync. A sync of the whole host needs none.
                Err(error) => {
                    log::debug!("{}: syncing the whole host instead: {error}", self.path.display());
                    self.medium.sync_all(self.dir.as_fd())?;
                    break;
                }
            }
        }
        if !self.sync_at_once(due) {
            for (id, fd) in &due.segments {
                if let Err(error) = self.medium.sync_segment(fd.as_fd()) {
                    log::error!("{}: sync failed: {error}", self.path_of(*id).display());
                    self.failed.lock().insert(*id, false);
                }
            }
        }
        let mut tracked = self.tracked.lock();
        for (id, ..) in &due.segments {
            let done = |entry: &Tracked| entry.writers == 0 && !entry.due && !entry.dirty;
            if tracked.get(id).is_some_and(done) {
                tracked.remove(id);
            }
        }
        Ok(())
    }

    /// Syncs the whole host filesystem if that is cheaper; true if it reported no failure.
    fn sync_at_once(&self, due: &Due) -> bool {
        if due.segments.len() < SYNC_ALL_FROM || self.suspicious.load(Ordering::Relaxed) {
            return false;
        }
        let result = self.medium.sync_all(self.dir.as_fd());
        self.suspicious.fetch_or(result.is_err(), Ordering::Relaxed);
        result.is_ok()
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
        let mut grown = self.grown.lock();
        grown.top = true;
        grown.shards.extend(self.shards()?);
        drop(grown);
        self.medium.sync_all(self.dir.as_fd())
    }

    /// Descriptors held for syncing.
    pub fn dirty_count(&self) -> usize {
        self.tracked.lock().len()
    }

    /// True if the segment may have bytes that the next commit, or the one under way, makes durable.
    pub fn is_pending(&self, id: SegmentId) -> bool {
        self.tracked.lock().contains_key(&id)
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
        Ok(nix::sys::stat::fstatat(&self.dir, name(id).as_c_str(), flags)?.into())
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

    /// Removes a segment from the host. One that is not there is fine: it was removed before.
    pub(crate) fn unlink(&self, id: SegmentId) -> io::Result<()> {
        self.tracked.lock().remove(&id);
        self.failed.lock().remove(&id);
        let removed = self.open_shard(shard(id)).and_then(|shard| {
            Ok(nix::unistd::unlinkat(&shard, id.to_string().as_str(), nix::unistd::UnlinkatFlags::NoRemoveDir)?)
        });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn shards(&self) -> io::Result<Vec<u8>> {
        let mut shards = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
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

    /// Everything in the segment directories: segments with what the host says of them, and paths that are none.
    pub(crate) fn scan(&self) -> io::Result<(HashMap<SegmentId, SegmentStat>, Vec<PathBuf>)> {
        let mut segments = HashMap::new();
        let mut foreign = Vec::new();
        for shard in self.shards()? {
            let path = self.path.join(format!("{shard:02x}"));
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                let id = entry.file_name().to_str().and_then(|name| {
                    let id = SegmentId(u64::from_str_radix(name, 16).ok()?);
                    (id.to_string() == name && self::shard(id) == shard && id.0 < NUMBER_LIMIT).then_some(id)
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
        Ok((segments, foreign))
    }
}

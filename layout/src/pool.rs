//! An open pool: transactions in, commits out.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde::{Deserialize, Serialize};

use crate::domain::{self, Domain, Medium};
use crate::error::{Error, Result};
use crate::flushes::{Counted, Counters, Flushes};
use crate::frame;
use crate::group::Group;
use crate::ids::{Ino, POOL, ROOT, SegmentId, TxId};
use crate::ledger::Placed;
use crate::lock::{Holder, PoolLock};
use crate::log::{Draft, Full, Log, Proposal, Reserve};
use crate::quarantine::Quarantine;
use crate::record::{Attributes, Record, Transaction, VALUE_MAX};
use crate::recover::{self, Recovery};
use crate::seal::SealedRun;
use crate::segments::Segments;
use crate::superblock::{
    self, BLOCKS_MAX, BLOCKS_OFFSET, INCOMPAT_VALUES, LAYOUT_NAME_MAX, OFFSETS, State as PoolState, Superblock,
    valid_block_size,
};
use crate::tier::Whose;
use crate::tiers;
use crate::time::Timestamp;
use crate::view::View;

/// Why a pool takes no more changes once it is closed.
const CLOSED: &str = "the pool is closed";
/// Log blocks of a new pool.
pub(crate) const INITIAL_BLOCKS: u32 = 4;
/// The most bytes of one seal's description.
const DESCRIPTION_MAX: usize = 16 << 10;
/// Seals are stored in frames of about this size, so that others need not wait long for their turn.
const SEAL_FRAME: usize = 256 << 10;
/// Room for the data record behind the seals of a frame.
const SEAL_REST: usize = 64;
/// So many bytes of files the log may get between two rounds of housekeeping, which clean it of those before.
const VALUES_PER_ROUND: i64 = 16 << 20;
/// A smaller part of a pool with a size limit, whose users want the space.
const VALUES_PART: u64 = 32;
/// The smallest size limit: room for the log to grow a little, and for some bytes.
pub const LIMIT_MIN: u64 = 16 << 20;

/// How to make a pool.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The layout name, checked when the pool is opened: at most 63 bytes.
    pub layout: String,
    /// Bytes that the pool may use on its host; no limit but the host's if `None`.
    pub limit: Option<u64>,
    /// Destroy a pool that is there.
    pub force: bool,
    /// Bytes of a log block: a power of two.
    pub block_size: u32,
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// The time of creation.
    pub now: Timestamp,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            layout: "tensorfs".into(),
            limit: None,
            force: false,
            block_size: 1 << 20,
            owner: (0, 0),
            root_mode: 0o755,
            now: Timestamp::default(),
        }
    }
}

/// How to open a pool.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The layout name that the pool must have.
    pub layout: Option<String>,
    /// This boot of the machine; the kernel's own number if `None`.
    pub boot_id: Option<[u8; 16]>,
    /// The time, for what recovery writes.
    pub now: Timestamp,
    /// Where the pool is going to be mounted, for others to read.
    pub mountpoint: Option<PathBuf>,
}

/// What a pool holds and uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of the log file.
    pub log_bytes: u64,
    /// Bytes allocated to segments, as last recorded.
    pub segment_bytes: u64,
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// All objects.
    pub objects: u64,
    /// Live records.
    pub records: u64,
    /// Log blocks.
    pub log_blocks: u64,
    /// Log blocks that hold nothing.
    pub free_blocks: u64,
    /// The size limit.
    pub limit: Option<u64>,
}

/// A pool, opened for use. All methods may be called from several threads.
#[derive(Debug)]
pub struct Pool {
    pub(crate) path: PathBuf,
    lock: PoolLock,
    pub(crate) medium: Arc<dyn Medium>,
    flushes: Arc<Counters>,
    pub(crate) state: RwLock<State>,
    pub(crate) segments: Segments,
    quarantine: Quarantine,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) boot_id: [u8; 16],
    committers: Group,
    pub(crate) cleaner: Mutex<()>,
    newest: AtomicU64,
    horizon: AtomicU64,
    touches_synced: AtomicU64,
    /// Bytes that may be committed by value before the next round of housekeeping.
    values_left: AtomicI64,
    /// The horizon that stands in the fixed places too. Locked while it is written there.
    marked: Mutex<u64>,
    /// Why the pool takes no more changes.
    failed: RwLock<Option<String>>,
    /// Segments to remove from the host once the horizon reaches the transaction that freed them.
    freed: Mutex<VecDeque<(TxId, SegmentId)>>,
    /// Held while they are removed.
    unlinking: Mutex<()>,
    recovery: Recovery,
}

/// What changes together under one lock.
#[derive(Debug)]
pub(crate) struct State {
    pub view: View,
    pub log: Log,
}

/// This boot of the machine; zeroes, which no recovery takes for the same boot, if it cannot be known.
pub(crate) fn boot_id(given: Option<[u8; 16]>) -> [u8; 16] {
    given.unwrap_or_else(|| {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: Vec<u8> = text.bytes().filter_map(|c| (c as char).to_digit(16).map(|d| d as u8)).collect();
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        id
    })
}

/// Opens the log file of a pool that should be there.
pub(crate) fn open_log(pool: &Path, write: bool) -> Result<File> {
    let path = pool.join("log");
    let no_pool = |reason: &str| Error::NotAPool { pool: pool.into(), reason: reason.into() };
    match fs::metadata(pool) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(no_pool("no such directory")),
        Err(error) => return Err(Error::io(pool, "open", error)),
        Ok(metadata) if !metadata.is_dir() => return Err(no_pool("not a directory")),
        Ok(_) => {}
    }
    let log = match File::options().read(true).write(write).open(&path) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(no_pool("it has no file \"log\"")),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            return Err(no_pool("\"log\" is not a regular file"));
        }
        Err(error) => return Err(Error::io(path, "open", error)),
    };
    match log.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(log),
        Ok(_) => Err(no_pool("\"log\" is not a regular file")),
        Err(error) => Err(Error::io(path, "stat", error)),
    }
}

impl Pool {
    /// Makes a pool in `dir`, which is created if need be and must be empty unless a pool is to be destroyed.
    pub fn create(dir: &Path, options: &CreateOptions) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid { pool: dir.into(), what });
        let name = &options.layout;
        if name.is_empty() || name.len() > LAYOUT_NAME_MAX || name.contains(char::is_control) {
            return invalid(format!("a layout name has 1 to {LAYOUT_NAME_MAX} bytes of text"));
        }
        if options.limit.is_some_and(|limit| limit < LIMIT_MIN) {
            return invalid(small_limit());
        }
        if !valid_block_size(options.block_size) {
            return invalid("a log block is a power of two from 4 KiB to 16 MiB".into());
        }
        let parent = prepare_directory(dir, options.force)?;
        let io = |what| move |error| Error::io(dir, what, error);
        let lock = PoolLock::take(dir, true, &Holder { pid: std::process::id(), mountpoint: None })?;
        // Asked again: until the lock was ours, somebody else could make one.
        if options.force || is_unfinished(dir).map_err(io("read"))? {
            remove_pool(dir).map_err(io("remove the old pool"))?;
        } else {
            return Err(Error::Exists { pool: dir.into(), what: "there is a pool already".into() });
        }
        for part in ["segments", "quarantine"] {
            fs::DirBuilder::new().mode(0o700).create(dir.join(part)).map_err(io("create"))?;
        }
        let log = File::options().read(true).write(true).create_new(true).mode(0o600).open(dir.join("log"));
        let medium = log.and_then(|log| {
            // The domain is probed on a file with some length; the blocks follow.
            log.set_len(BLOCKS_OFFSET)?;
            domain::open(log)
        });
        let medium: Arc<dyn Medium> = medium.map_err(io("create the log"))?.into();
        Self::format(&medium, options).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSPC) => Error::NoSpace { pool: dir.into(), what: "the host is full".into() },
            _ => Error::io(dir, "write the log", error),
        })?;
        for path in [dir.join("segments"), dir.to_owned()].into_iter().chain(parent) {
            domain::sync_dir_at(&*medium, &path).map_err(io("sync"))?;
        }
        drop(lock);
        Ok(())
    }

    /// Writes a log with a root directory. The superblocks come last: a pool is one once it is whole.
    fn format(medium: &Arc<dyn Medium>, options: &CreateOptions) -> io::Result<()> {
        let mut superblock =
            Superblock::new(options.layout.clone(), options.block_size, INITIAL_BLOCKS, options.limit)?;
        medium.grow(0, superblock.log_len())?;
        let blocks = vec![crate::log::Block::Free; INITIAL_BLOCKS as usize];
        let mut log = Log::new(medium.clone(), &superblock, blocks, 0, 0);
        let attributes = Attributes {
            mode: libc::S_IFDIR | (options.root_mode & 0o7777),
            uid: options.owner.0,
            gid: options.owner.1,
            rdev: 0,
            atime: options.now,
            mtime: options.now,
            ctime: options.now,
            btime: options.now,
            segment: None,
            damaged: false,
        };
        let mut draft = Draft::new(0);
        draft.push(&Record::Attributes { ino: ROOT, attributes }, crate::object::FIRST_SEQ);
        draft.proposal = Proposal::UpTo(0);
        if log.reserve(draft.len(), Reserve::Cleaning)? == Err(Full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        log.append(draft, crate::ids::FIRST_ID)?;
        superblock.store_mark(&**medium, 1)?;
        medium.persist()?;
        superblock.write(&**medium)
    }

    /// Opens a pool for use: takes its lock, recovers it if it was not closed, and marks it in use.
    pub fn open(dir: &Path, options: &OpenOptions) -> Result<Self> {
        open_log(dir, true)?;
        let holder = Holder { pid: std::process::id(), mountpoint: options.mountpoint.clone() };
        let lock = PoolLock::take(dir, false, &holder)?;
        // Opened again: until the lock was ours, the pool could be made anew.
        let log = open_log(dir, true)?;
        let medium: Arc<dyn Medium> =
            domain::open(log).map_err(|error| Error::io(dir.join("log"), "open", error))?.into();
        Self::open_on(dir, options, lock, medium)
    }

    /// As [`Pool::open`], on a medium of the caller's, which stands for the pool's log and for syncs of its segments.
    pub fn open_with_medium(dir: &Path, options: &OpenOptions, medium: Arc<dyn Medium>) -> Result<Self> {
        let holder = Holder { pid: std::process::id(), mountpoint: options.mountpoint.clone() };
        Self::open_on(dir, options, PoolLock::take(dir, false, &holder)?, medium)
    }

    fn open_on(dir: &Path, options: &OpenOptions, lock: PoolLock, medium: Arc<dyn Medium>) -> Result<Self> {
        let counted = Counted::new(medium);
        let flushes = counted.counters.clone();
        let medium: Arc<dyn Medium> = Arc::new(counted);
        let (superblock, one_damaged) = Superblock::read(dir, &*medium)?;
        if one_damaged {
            log::warn!("{}: one of the two superblocks is damaged; the other one is used", dir.display());
        }
        if let Some(wanted) = &options.layout
            && *wanted != superblock.layout
        {
            let (found, wanted) = (superblock.layout, wanted.clone());
            return Err(Error::LayoutName { pool: dir.into(), found, wanted });
        }
        let boot_id = boot_id(options.boot_id);
        let found = recover::read(dir, &medium, &superblock, boot_id)?;
        if let Some(mountpoint) = &options.mountpoint {
            tiers::check_mountpoint(dir, &found.view, mountpoint)?;
        }
        let segments = Segments::open_all(dir, medium.clone());
        let mut segments = segments.map_err(|error| Error::io(dir.join("segments"), "open", error))?;
        let mut failed = found.damage.clone();
        if failed.is_none() && superblock.read_only_features() != 0 {
            failed = Some("it uses features that this tensorfs can only read".into());
        }
        if failed.is_none() {
            recover::cut_off(&found, &*medium, &superblock)
                .map_err(|error| Error::io(dir.join("log"), "write", error))?;
        }
        let whose = Whose { pool: superblock.uuid, boot: boot_id };
        segments
            .open_tiers(&found.view, whose, failed.is_none())
            .map_err(|error| Error::io(dir.join("segments"), "look into the tiers", error))?;
        let (newest, horizon) = (found.log.newest, found.log.horizon);
        let values_left = values_per_round(superblock.limit).into();
        let mut pool = Self {
            boot_id,
            path: dir.into(),
            lock,
            quarantine: Quarantine::new(dir, medium.clone()),
            medium,
            flushes,
            segments,
            state: RwLock::new(State { view: found.view, log: found.log }),
            superblock: Mutex::new(superblock),
            committers: Group::default(),
            cleaner: Mutex::default(),
            newest: newest.into(),
            horizon: horizon.into(),
            touches_synced: 0.into(),
            values_left,
            marked: Mutex::default(),
            failed: RwLock::new(failed),
            freed: Mutex::default(),
            unlinking: Mutex::default(),
            recovery: Recovery::default(),
        };
        let mut recovery = found.recovery;
        if pool.is_read_only().is_none() {
            recover::settle(&pool, &mut recovery, &found.owned, options.now)?;
            // Rule 8: that recovery is over is its last persist.
            let unsafe_shutdown = u64::from(recovery.unsafe_shutdown());
            let mut superblock = pool.superblock.lock();
            superblock.unsafe_shutdowns = superblock.unsafe_shutdowns.saturating_add(unsafe_shutdown);
            drop(superblock);
            pool.set_open()?;
        } else if let Some(reason) = pool.is_read_only() {
            log::error!("{}: opened read-only: {reason}", dir.display());
        }
        pool.recovery = recovery;
        Ok(pool)
    }

    /// The pool's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells others, through the lock file, where the pool is mounted.
    pub fn set_mountpoint(&self, mountpoint: &Path) -> io::Result<()> {
        self.lock.announce(&Holder { pid: std::process::id(), mountpoint: Some(mountpoint.into()) })
    }

    /// The live view, to read.
    pub fn view(&self) -> MappedRwLockReadGuard<'_, View> {
        RwLockReadGuard::map(self.state.read(), |state| &state.view)
    }

    /// The live view, to read and to change by transactions. Nobody else reads or changes it meanwhile: never sync or
    /// commit while holding this.
    pub fn edit(&self) -> Edit<'_> {
        Edit { pool: self, state: self.state.write() }
    }

    /// The newest stored transaction.
    pub fn newest(&self) -> TxId {
        TxId(self.newest.load(Ordering::Acquire))
    }

    /// The newest transaction up to which everything is durable.
    pub fn horizon(&self) -> TxId {
        TxId(self.horizon.load(Ordering::Acquire))
    }

    /// The pool's segments.
    pub fn segments(&self) -> &Segments {
        &self.segments
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
        self.flushes.read()
    }

    /// Why the pool takes no changes, if it does not.
    pub fn is_read_only(&self) -> Option<String> {
        self.failed.read().clone()
    }

    /// What the superblock says now.
    pub fn superblock(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    /// What opening the pool found and did.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// What the pool holds and uses.
    pub fn usage(&self) -> Usage {
        let superblock = self.superblock();
        let state = self.state.read();
        usage(&state.view, &state.log, &superblock)
    }

    fn read_only_error(&self, reason: String) -> Error {
        Error::ReadOnly { pool: self.path.clone(), reason }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        self.is_read_only().map_or(Ok(()), |reason| Err(self.read_only_error(reason)))
    }

    /// Rule 9: after a failed sync of the log nothing may rest on it any more.
    pub(crate) fn fail(&self, what: &str, error: &io::Error) -> Error {
        let reason = format!("{what} failed: {error}; what was committed before is safe");
        log::error!("{}: read-only from now on: {reason}", self.path.display());
        self.failed.write().get_or_insert(reason.clone());
        self.read_only_error(reason)
    }

    /// The most bytes that a file may have to be committed by value now; none where that saves no flush, or where the log got
    /// so many of late that it should not get more.
    pub fn value_room(&self) -> Option<usize> {
        let wanted = self.domain() == Domain::Cached && self.values_left.load(Ordering::Relaxed) > 0;
        wanted.then(|| (self.state.read().log.largest_frame() / 2).min(VALUE_MAX))
    }

    /// Whoever opens the pool next finds that it was not closed, unless it is from now on.
    pub(crate) fn set_open(&self) -> Result<()> {
        let mut superblock = self.superblock.lock();
        superblock.state = PoolState::Dirty;
        superblock.boot_id = self.boot_id;
        let written = superblock.write(&*self.medium);
        written.map_err(|error| Error::io(self.path.join("log"), "write the superblock", error))
    }

    /// Has programs that know nothing of values refuse the pool: to be called before the first one is stored.
    pub fn allow_values(&self) -> Result<()> {
        let mut superblock = self.superblock.lock();
        if superblock.features.incompat & INCOMPAT_VALUES != 0 {
            return Ok(());
        }
        superblock.features.incompat |= INCOMPAT_VALUES;
        superblock.write(&*self.medium).map_err(|error| self.fail("writing the superblock", &error))
    }

    /// Makes durable in their segments what only the log holds, so that it need not be kept there. No commit waits for it.
    pub fn settle_values(&self) -> Result<()> {
        let settled = self.segments.sync_covered().map_err(|error| self.fail("syncing the segments", &error))?;
        self.mark_damaged()?;
        if !settled.is_empty() {
            let mut state = self.state.write();
            settled.into_iter().for_each(|(ino, seq)| state.view.settle_value(ino, seq));
        }
        Ok(())
    }

    /// The log may get as many values as it may in one round of housekeeping.
    pub(crate) fn refill_values(&self) {
        let limit = self.superblock.lock().limit;
        self.values_left.store(values_per_round(limit), Ordering::Relaxed);
    }

    /// The most bytes that the description of a seal may have, so that its record fits in a frame.
    pub fn description_room(&self) -> usize {
        (self.state.read().log.largest_frame() / 2).min(DESCRIPTION_MAX)
    }

    /// Stores the seals of a file, which cover it from its first byte to its last; the caller sees to it that nothing can
    /// write the file meanwhile. False if the file is not as it was any more: it has another size or segment, no name,
    /// or is damaged. Long lists take several transactions; a crash between them leaves the rest of the file unsealed.
    pub fn seal(&self, ino: Ino, segment: SegmentId, allocated: u64, runs: Vec<SealedRun>) -> Result<bool> {
        let size = runs.last().map_or(0, |run| run.offset + run.len);
        let mut runs = runs.into_iter().peekable();
        while runs.peek().is_some() {
            let mut edit = self.edit();
            let as_it_was = edit.object(ino).is_some_and(|object| {
                object.names() > 0
                    && object.attributes.segment == Some(segment)
                    && !object.attributes.damaged
                    && object.size() == size
            });
            if !as_it_was {
                return Ok(false);
            }
            let room = edit.state.log.largest_frame().min(SEAL_FRAME) - frame::HEADER - SEAL_REST;
            let mut tx = Transaction::new(0);
            let (mut used, mut end) = (0, 0);
            while let Some(run) = runs.next_if(|run| {
                used += Record::sealed_len(run.seal.description.len());
                used <= room || tx.is_empty()
            }) {
                end = run.offset + run.len;
                let SealedRun { offset, len, seal } = run;
                tx.push(Record::Sealed { ino, segment, offset, len, allocated, seal });
            }
            // A data record ends the chain before it: what is not sealed yet stays part of the file.
            if end < size {
                tx.push(Record::Data { ino, segment, offset: end, len: size - end, allocated });
            }
            edit.store(tx)?;
        }
        Ok(true)
    }

    /// Returns once everything up to `upto`, and every segment touched before the call, is durable. Concurrent callers
    /// share the work. Whether the sync of a particular segment failed, [`Segments::failed`] tells.
    pub fn commit(&self, upto: TxId) -> Result<()> {
        let touches = self.segments.touches();
        let done = || self.horizon() >= upto && self.touches_synced.load(Ordering::Acquire) >= touches;
        self.committers.wait(done, || self.commit_now())
    }

    /// Makes durable what was written to a segment before the call, beside whatever commit goes on: who waits for one file does
    /// its sync itself, as on any filesystem, and the commit behind it finds only the log left to flush. False if the segment
    /// is not open for writing, or if the sync failed, which is recorded at once.
    pub fn sync_early(&self, segment: SegmentId) -> Result<bool> {
        let done = self.segments.sync_early(segment);
        if !done {
            self.mark_damaged()?;
        }
        Ok(done)
    }

    /// As [`Pool::commit`], for whoever stored a transaction and touched nothing beyond it.
    pub fn commit_stored(&self, upto: TxId) -> Result<()> {
        self.committers.wait(|| self.horizon() >= upto, || self.commit_now())
    }

    /// Rule 3: N is the newest transaction; sync every segment that data records up to N speak of; then let a frame carry
    /// horizon N, and persist it together with all frames before it.
    fn commit_now(&self) -> Result<()> {
        self.check_writable()?;
        let mut settled = Vec::new();
        let (upto, due) = loop {
            let (newest, due) = {
                let state = self.state.read();
                (state.log.newest, self.segments.take_due())
            };
            self.segments.sync(&due).map_err(|error| self.fail("syncing the segments", &error))?;
            settled.extend(self.segments.settled(&due));
            // The horizon may pass damaged files only together with the word that they are; what was stored meanwhile
            // has to be synced for that, too.
            if !self.mark_damaged()? {
                break (newest, due);
            }
        };
        let mut state = self.state.write();
        for (ino, seq) in settled {
            state.view.settle_value(ino, seq);
        }
        if state.log.horizon < state.log.newest {
            let mut draft = Draft::new(0);
            draft.proposal = Proposal::UpTo(upto);
            let covered = if upto == state.log.newest { upto + 1 } else { upto };
            self.append(&mut state, draft, Reserve::Cleaning)?;
            drop(state);
            self.medium.persist().map_err(|error| self.fail("persisting the log", &error))?;
            let mut state = self.state.write();
            state.log.horizon = covered;
            drop(state);
            self.horizon.store(covered, Ordering::Release);
        }
        self.touches_synced.store(due.touches, Ordering::Release);
        Ok(())
    }

    /// Records which files have a segment whose sync failed; true if there is one of which that was not recorded yet. A
    /// segment that no file has, as one that is to replace another, is kept in mind until a file has it.
    fn mark_damaged(&self) -> Result<bool> {
        let failed = self.segments.unmarked();
        if failed.is_empty() {
            return Ok(false);
        }
        let mut edit = self.edit();
        let owned = |(ino, object): (Ino, &crate::object::Object)| {
            let segment = object.attributes.segment.filter(|segment| failed.contains(segment))?;
            Some((ino, segment, object.attributes.clone()))
        };
        let files: Vec<(Ino, SegmentId, Attributes)> = edit.objects().filter_map(owned).collect();
        let mut stored = false;
        for (ino, segment, attributes) in files {
            if !attributes.damaged {
                let attributes = Attributes { damaged: true, ..attributes };
                let word = Transaction::new(0).with(Record::Attributes { ino, attributes });
                match edit.store_with(word, Reserve::Cleaning) {
                    // Without the word there can be no horizon any more.
                    Err(Error::NoSpace { .. }) => {
                        return Err(self.fail("recording a failed sync", &io::ErrorKind::StorageFull.into()));
                    }
                    other => drop(other?),
                }
                stored = true;
            }
            self.segments.set_marked(segment);
        }
        Ok(stored)
    }

    /// Makes room and appends a frame.
    pub(crate) fn append(&self, state: &mut State, draft: Draft, reserve: Reserve) -> Result<TxId> {
        self.check_writable()?;
        if draft.len() > state.log.largest_frame() {
            return Err(Error::TooLarge { pool: self.path.clone(), bytes: draft.len() });
        }
        let io = |error| Error::io(self.path.join("log"), "write", error);
        if state.log.reserve(draft.len(), reserve).map_err(io)? == Err(Full) {
            self.grow(state)?;
            if state.log.reserve(draft.len(), reserve).map_err(io)? == Err(Full) {
                return Err(Error::NoSpace { pool: self.path.clone(), what: "the log is full".into() });
            }
        }
        let next_id = state.view.next_id;
        // A frame that could not be stored leaves nothing behind that counts, but a medium that refuses a store to
        // blocks that were written before is broken.
        let id = state.log.append(draft, next_id).map_err(|error| self.fail("writing the log", &error))?;
        self.newest.store(id.0, Ordering::Release);
        Ok(id)
    }

    /// Rule 7: more blocks, written with zeroes and synced before they are used.
    pub(crate) fn grow(&self, state: &mut State) -> Result<()> {
        self.check_writable()?;
        let full = |what: &str| Error::NoSpace { pool: self.path.clone(), what: what.into() };
        let mut superblock = self.superblock.lock();
        let more = (superblock.blocks / 8).clamp(1, 64).min(BLOCKS_MAX.saturating_sub(superblock.blocks));
        if more == 0 {
            return Err(full("the log has as many blocks as it can have"));
        }
        let grown = Superblock { blocks: superblock.blocks + more, ..superblock.clone() };
        if let Some(limit) = superblock.limit
            && grown.log_len().saturating_add(state.view.totals().allocated) > limit
        {
            return Err(full("the pool's size limit is reached"));
        }
        match self.medium.grow(superblock.log_len(), grown.log_len()) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
                return Err(full("the host is full"));
            }
            Err(error) => return Err(self.fail("growing the log", &error)),
        }
        *superblock = grown;
        superblock.write(&*self.medium).map_err(|error| self.fail("writing the superblock", &error))?;
        state.log.blocks.resize(superblock.blocks as usize, crate::log::Block::Free);
        Ok(())
    }

    /// Sets or lifts the size limit, durably. `used` is what the pool uses on its host as far as the caller knows, open files
    /// included; `removed` are the bytes recorded of files that are removed, but still known to somebody, which do not count.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the limit is below what is used, or below [`LIMIT_MIN`].
    pub fn resize(&self, limit: Option<u64>, used: u64, removed: u64) -> Result<()> {
        self.check_writable()?;
        // No transaction is stored meanwhile, so that the log cannot grow past the new limit.
        let state = self.state.write();
        let mut superblock = self.superblock.lock();
        let recorded = state.view.totals().allocated.saturating_sub(removed);
        let used = used.max(superblock.log_len().saturating_add(recorded));
        let too_small = |what| Err(Error::Invalid { pool: self.path.clone(), what });
        match limit {
            Some(limit) if limit < LIMIT_MIN => return too_small(small_limit()),
            Some(limit) if limit < used => {
                return too_small(format!(
                    "{used} bytes are in use, which is more than the {limit} that it is to be limited to"
                ));
            }
            _ => {}
        }
        let mut resized = Superblock { limit, ..superblock.clone() };
        resized.write(&*self.medium).map_err(|error| self.fail("writing the superblock", &error))?;
        *superblock = resized;
        Ok(())
    }

    /// Removes segments from the host whose removal the horizon covers; returns how many.
    pub fn unlink_covered(&self) -> usize {
        // One at a time: who waits for space finds either something to remove, or that it is removed.
        let _unlinking = self.unlinking.lock();
        let horizon = self.horizon();
        let mut count = 0;
        loop {
            let next = self.freed.lock().front().copied().filter(|(id, _)| *id <= horizon);
            let Some((_, segment)) = next else { return count };
            match self.segments.unlink(segment) {
                Ok(()) => count += 1,
                Err(error) => log::error!("{}: unlink: {error}", self.segments.path_of(segment).display()),
            }
            self.freed.lock().pop_front();
        }
    }

    /// True if this segment is to be removed from the host.
    pub(crate) fn is_freed(&self, segment: SegmentId) -> bool {
        self.freed.lock().iter().any(|(_, freed)| *freed == segment)
    }

    /// True if the host still holds segments that no file has any more.
    pub fn has_freed(&self) -> bool {
        !self.freed.lock().is_empty()
    }

    /// Has a segment removed from the host once everything stored so far is durable.
    pub fn discard_segment(&self, segment: SegmentId) {
        self.freed.lock().push_back((self.newest(), segment));
    }

    /// The pool is quiet: writes the horizon in its two fixed places too, so that damage to the log's last frames cannot
    /// pass for an earlier end of it. Does nothing if that is done already.
    pub fn idle(&self) -> Result<()> {
        self.check_writable()?;
        self.commit(self.newest())?;
        self.mark_horizon()
    }

    fn mark_horizon(&self) -> Result<()> {
        let mut marked = self.marked.lock();
        let horizon = self.horizon().0;
        if *marked != horizon {
            let stored = self.superblock.lock().store_mark(&*self.medium, horizon);
            let stored = stored.and_then(|()| self.medium.persist());
            stored.map_err(|error| self.fail("persisting the horizon", &error))?;
            *marked = horizon;
        }
        Ok(())
    }

    /// Makes room after an operation was refused for lack of it: commits, removes what is free, and cleans the log. True if
    /// it is worth trying again.
    pub fn reclaim(&self) -> Result<bool> {
        self.commit(self.newest())?;
        let unlinked = self.unlink_covered();
        Ok(self.clean_for_room()? || unlinked > 0)
    }

    /// Commits everything, and marks the pool as closed. Further changes are refused. May be called again.
    pub fn close(&self) -> Result<()> {
        // No cleaning goes on beside this, nor another close.
        let _cleaner = self.cleaner.lock();
        if self.superblock.lock().state == PoolState::Clean && self.is_read_only().as_deref() == Some(CLOSED) {
            return Ok(());
        }
        self.check_writable()?;
        loop {
            self.segments.touch_all();
            self.commit(self.newest())?;
            let state = self.state.write();
            // Values are stored under this lock, too.
            if state.log.horizon == state.log.newest && !self.segments.any_covered() {
                // Under the lock that every change needs: what was stored is durable, and nothing more will be.
                self.failed.write().get_or_insert(CLOSED.into());
                break;
            }
        }
        self.unlink_covered();
        self.mark_horizon()?;
        let mut superblock = self.superblock.lock();
        superblock.state = PoolState::Clean;
        let written = superblock.write(&*self.medium);
        written.map_err(|error| Error::io(self.path.join("log"), "write the superblock", error))
    }
}

pub(crate) fn usage(view: &View, log: &Log, superblock: &Superblock) -> Usage {
    let totals = view.totals();
    Usage {
        log_bytes: superblock.log_len(),
        segment_bytes: totals.allocated,
        files: totals.files,
        directories: totals.directories,
        objects: totals.objects,
        records: view.records(),
        log_blocks: log.blocks.len() as u64,
        free_blocks: log.free_blocks() as u64,
        limit: superblock.limit,
    }
}

fn values_per_round(limit: Option<u64>) -> i64 {
    limit.map_or(VALUES_PER_ROUND, |limit| VALUES_PER_ROUND.min((limit / VALUES_PART).cast_signed()))
}

fn small_limit() -> String {
    format!("the smallest size of a pool is {} MiB", LIMIT_MIN >> 20)
}

/// What stands in the way of a new pool in a directory, which is made if it is not there. Then its parent is returned, to
/// be synced.
fn prepare_directory(dir: &Path, force: bool) -> Result<Option<PathBuf>> {
    let io = |error| Error::io(dir, "create", error);
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
            return Ok(dir.canonicalize().map_err(io)?.parent().map(Path::to_owned));
        }
        Err(error) => return Err(Error::io(dir, "open", error)),
        Ok(mut entries) => {
            if entries.next().is_none() {
                return Ok(None);
            }
        }
    }
    if !holds_only_a_pool(dir).map_err(|error| Error::io(dir, "read", error))? {
        let what = "the directory is not empty, and holds other things than a pool; choose another one".into();
        return Err(Error::Invalid { pool: dir.into(), what });
    }
    if !force && !is_unfinished(dir).map_err(|error| Error::io(dir, "read", error))? {
        return Err(Error::Exists { pool: dir.into(), what: "there is a pool already".into() });
    }
    Ok(None)
}

/// True if every name in the directory is one that a pool has, so that a pool, or what is left of one, is all that
/// `--force` can destroy.
fn holds_only_a_pool(dir: &Path) -> io::Result<bool> {
    // The last one is what an interrupted repair leaves.
    const PARTS: [&str; 5] = ["lock", "log", "quarantine", "segments", "log.new"];
    for entry in fs::read_dir(dir)? {
        if !PARTS.iter().any(|part| entry.as_ref().is_ok_and(|entry| entry.file_name() == *part)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True if a directory holds nothing, or no more than what is left of making a pool that was interrupted: the superblocks
/// are written last, and no file was ever in it.
pub fn is_unfinished(dir: &Path) -> io::Result<bool> {
    let is_empty = |part: &str| match fs::read_dir(dir.join(part)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        entries => entries.map(|mut entries| entries.next().is_none()),
    };
    Ok(holds_only_a_pool(dir)?
        && is_empty("segments")?
        && is_empty("quarantine")?
        && !has_superblock(&dir.join("log"))?)
}

/// True if anything stands where superblocks are.
fn has_superblock(log: &Path) -> io::Result<bool> {
    let log = match File::open(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        log => log?,
    };
    for offset in OFFSETS {
        let mut bytes = [0; superblock::SIZE];
        let mut at = 0;
        while at < bytes.len() {
            match log.read_at(&mut bytes[at..], offset + at as u64)? {
                0 => break,
                read => at += read,
            }
        }
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes what a pool is made of, and nothing else. The log goes first: without it nothing is a pool.
fn remove_pool(dir: &Path) -> io::Result<()> {
    let absent_is_fine = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    absent_is_fine(fs::remove_file(dir.join("log")))?;
    absent_is_fine(fs::remove_file(dir.join("log.new")))?;
    absent_is_fine(fs::remove_dir_all(dir.join("segments")))?;
    absent_is_fine(fs::remove_dir_all(dir.join("quarantine")))
}

/// Exclusive access to the view: read it, and store transactions.
#[derive(Debug)]
pub struct Edit<'a> {
    pool: &'a Pool,
    state: RwLockWriteGuard<'a, State>,
}

impl Deref for Edit<'_> {
    type Target = View;
    fn deref(&self) -> &View {
        &self.state.view
    }
}

impl Edit<'_> {
    /// A number for a new object or segment. A number that no stored transaction uses is lost, not given out again.
    pub fn next_id(&mut self) -> u64 {
        let id = self.state.view.next_id;
        self.state.view.next_id += 1;
        id
    }

    /// Stores a transaction and makes it part of the view. After `Ok` its operation may be answered; after an error
    /// nothing has changed. On [`Error::NoSpace`] let go of this, call [`Pool::reclaim`], and try once more.
    pub fn store(&mut self, transaction: Transaction) -> Result<TxId> {
        self.store_with(transaction, Reserve::Untouched)
    }

    /// As [`Edit::store`], for deletion and for what completes an operation: may use space that others may not.
    pub fn store_from_reserve(&mut self, transaction: Transaction) -> Result<TxId> {
        self.store_with(transaction, Reserve::Deletion)
    }

    pub(crate) fn store_with(&mut self, transaction: Transaction, reserve: Reserve) -> Result<TxId> {
        self.pool.check_writable()?;
        if transaction.records.len() > usize::from(u16::MAX) {
            let bytes = transaction.records.iter().map(Record::encoded_len).sum();
            return Err(Error::TooLarge { pool: self.pool.path.clone(), bytes });
        }
        let state = &mut *self.state;
        let mut draft = Draft::new(transaction.unique);
        let mut chains: Vec<(Ino, u64)> = Vec::new();
        let mut numbers = Vec::with_capacity(transaction.records.len());
        for record in &transaction.records {
            let ino = record.ino();
            if let Some(flaw) = record.flaw() {
                return Err(Error::Invalid { pool: self.pool.path.clone(), what: flaw.into() });
            }
            let seq = match chains.iter_mut().find(|(chain, _)| *chain == ino) {
                Some((_, seq)) => {
                    *seq += 1;
                    *seq
                }
                None => {
                    if let Some(what) = state.view.objection(record) {
                        return Err(Error::Invalid { pool: self.pool.path.clone(), what });
                    }
                    let seq = state.view.next_seq(ino);
                    chains.push((ino, seq));
                    seq
                }
            };
            if ino == POOL {
                draft.flags |= frame::FLAG_POOL;
            }
            draft.push(record, seq);
            numbers.push(seq);
        }
        for record in &transaction.records {
            let speaks = match record {
                Record::Data { segment, .. } | Record::Truncation { segment, .. } => Some(segment),
                // They end what the log's own copy of the bytes counts for.
                Record::Thaw { ino, segment, .. } | Record::Sealed { ino, segment, .. } => {
                    let chain = state.view.object(*ino).and_then(|object| object.chain());
                    chain.is_some_and(|chain| chain.value().is_some()).then_some(segment)
                }
                _ => None,
            };
            if let Some(segment) = speaks {
                let segments = &self.pool.segments;
                let durable = transaction.durable == Some(*segment);
                let mentioned = segments.mention(*segment, record.ino(), durable);
                mentioned.map_err(|error| Error::io(segments.path_of(*segment), "open to sync", error))?;
            }
        }
        let id = self.pool.append(state, draft, reserve)?;
        // Rule 2: the frame is stored. Should anything panic from here on, memory and log would differ.
        let guard = AbortOnPanic;
        let incarnation = state.log.head_incarnation();
        for (record, seq) in transaction.records.into_iter().zip(numbers) {
            let value = match &record {
                Record::Value { ino, segment, bytes } => Some((*ino, *segment, bytes.len())),
                _ => None,
            };
            let placed = Placed { seq, incarnation };
            state.view.apply(record, placed);
            let Some((ino, segment, len)) = value else { continue };
            self.pool.values_left.fetch_sub(len as i64, Ordering::Relaxed);
            let chain = state.view.object(ino).and_then(|object| object.chain());
            if chain.is_some_and(|chain| chain.value_placed() == Some(placed)) {
                self.pool.segments.cover(segment, ino, seq);
            } else {
                self.pool.segments.recall(segment);
            }
        }
        self.queue_freed(id);
        std::mem::forget(guard);
        Ok(id)
    }

    fn queue_freed(&mut self, id: TxId) {
        let freed = std::mem::take(&mut self.state.view.freed);
        self.pool.freed.lock().extend(freed.into_iter().map(|segment| (id, segment)));
    }

    /// Drops an object that has no name left and that nothing holds. Its segments are removed from the host once the horizon
    /// covers what was stored so far.
    pub fn reap(&mut self, ino: Ino) {
        if self.object(ino).is_some_and(|object| object.names() == 0) && ino != ROOT {
            self.state.view.drop_object(ino);
            let newest = self.pool.newest();
            self.queue_freed(newest);
        }
    }

    /// Drops an object that no path leads to, whatever names point to it.
    pub(crate) fn drop_unreachable(&mut self, ino: Ino) {
        self.state.view.drop_object(ino);
        let newest = self.pool.newest();
        self.queue_freed(newest);
    }
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!(
                "a stored transaction could not be applied: the server ends, and recovers when it is started again"
            );
            std::process::abort();
        }
    }
}

const _: () = assert!(OFFSETS[1] < BLOCKS_OFFSET);

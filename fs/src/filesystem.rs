//! What all operations share: the pool, the files in use, and how a request changes the pool.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::Notifier;
use parking_lot::{Mutex, RwLock};
use tensorfs_layout::{
    Attributes, Edit, Ino, PM, Pool, Record, SYNC_FD_LIMIT, SegmentId, Timestamp, Transaction, Usage,
};

use crate::accesses::Accesses;
use crate::backing::Backing;
use crate::capacity::Capacity;
use crate::clock;
use crate::committer::Bell;
use crate::control::{Decoders, Numbers};
use crate::counters::Counters;
use crate::damage::Damage;
use crate::error::{Fault, Host, Result, is_no_space};
use crate::fds::SegmentFds;
use crate::ghosts::Ghosts;
use crate::handles::Handles;
use crate::host;
use crate::jobs::Jobs;
use crate::latency::Latency;
use crate::linger::Linger;
use crate::nodes::{NodeRef, Nodes};
use crate::options::{Durability, Options};
use crate::placement::Placement;
use crate::readings::Readings;
use crate::relocate::Moves;
use crate::removed::Removed;
use crate::seal::SealQueue;
use crate::spares::Spares;
use crate::tensors::TensorCache;
use crate::tiers::Tiers;
use crate::workers::Workers;
use crate::writeout::WriteOuts;

/// Threads that read tensors. Each may take what recognising a file takes.
const READERS: usize = 4;

/// Threads that move files to other tiers.
const MOVERS: usize = 2;

/// Who asks, and under which number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub unique: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// A file that something may still write.
pub(crate) struct Watched {
    pub node: NodeRef,
    pub segment: SegmentId,
    /// The descriptor that will sync the segment.
    pub fd: Arc<OwnedFd>,
}

/// An empty segment that is about to become a file's.
#[derive(Debug)]
pub(crate) struct NewSegment {
    pub segment: SegmentId,
    /// A descriptor that can sync it.
    pub fd: Arc<OwnedFd>,
    /// If it was given to the kernel already.
    pub backing: Option<Backing>,
}

/// A mounted pool.
pub(crate) struct Filesystem {
    pub pool: Arc<Pool>,
    pub options: Options,
    pub durability: Durability,
    /// `Ok` if the kernel grants passthrough, else why not. Set once, before the first request.
    pub passthrough: OnceLock<std::result::Result<(), String>>,
    pub notifier: OnceLock<Notifier>,
    /// The connection to the kernel, while it is served.
    pub device: RwLock<Option<Arc<OwnedFd>>>,
    pub spares: Spares,
    pub write_outs: WriteOuts,
    pub latency: Arc<Latency>,
    pub linger: Linger,
    pub nodes: Nodes,
    pub handles: Handles,
    pub fds: SegmentFds,
    pub ghosts: Ghosts,
    pub counters: Counters,
    pub capacity: Capacity,
    pub tiers: Tiers,
    pub placement: Placement,
    pub accesses: Accesses,
    pub moves: Moves,
    pub workers: Workers,
    /// For what moves files to other tiers, which may take as long as it likes.
    pub movers: Workers,
    /// For what reads tensors, so that nothing else waits for that.
    pub readers: Workers,
    pub readings: Readings,
    pub tensors: TensorCache,
    /// What the kernel knows of the control tree.
    pub numbers: Numbers,
    pub decoders: Decoders,
    pub bell: Bell,
    pub sealing: SealQueue,
    pub damage: Damage,
    pub jobs: Jobs,
    /// The files that something may still write: open for writing, or mapped since.
    pub writers: Mutex<HashMap<Ino, Watched>>,
    /// The host turned down sharing bytes between segments; not asked again.
    pub no_clone: AtomicBool,
    pub removed: Removed,
}

impl Filesystem {
    pub fn new(pool: Arc<Pool>, options: Options, durability: Durability, fd_limit: u64) -> Self {
        let capacity = Capacity::new(&pool);
        let (tiers, placement) = (Tiers::new(&pool), Placement::new(&pool));
        Self {
            pool,
            tiers,
            placement,
            accesses: Accesses::default(),
            moves: Moves::default(),
            durability,
            passthrough: OnceLock::new(),
            notifier: OnceLock::new(),
            device: RwLock::default(),
            spares: Spares::new(fd_limit),
            write_outs: WriteOuts::default(),
            latency: Arc::new(Latency::new(options.latency)),
            linger: Linger::default(),
            options,
            nodes: Nodes::default(),
            handles: Handles::default(),
            fds: SegmentFds::new(fd_limit),
            ghosts: Ghosts::default(),
            counters: Counters::default(),
            capacity,
            workers: Workers::default(),
            movers: Workers::new(MOVERS),
            readers: Workers::new(READERS),
            readings: Readings::default(),
            tensors: TensorCache::default(),
            numbers: Numbers::default(),
            decoders: Decoders::default(),
            bell: Bell::default(),
            sealing: SealQueue::default(),
            damage: Damage::default(),
            jobs: Jobs::default(),
            writers: Mutex::default(),
            no_clone: AtomicBool::new(false),
            removed: Removed::default(),
        }
    }

    /// Gives a segment to the kernel.
    pub fn register(&self, segment: impl AsFd) -> io::Result<Backing> {
        let device = self.device.read().clone();
        Backing::register(&device.ok_or(io::ErrorKind::NotConnected)?, segment)
    }

    /// True if open files are given to the kernel on this mount.
    pub fn has_passthrough(&self) -> bool {
        matches!(self.passthrough.get(), Some(Ok(())))
    }

    /// Runs a change of the pool. Where space runs out, what is already deleted is made free and the change is tried
    /// once more.
    pub fn edit<T>(&self, mut change: impl FnMut(&mut Edit<'_>) -> Result<T>) -> Result<T> {
        let first = change(&mut self.pool.edit());
        match first {
            Err(fault) if is_no_space(fault.errno) && self.relieve() => change(&mut self.pool.edit()),
            result => result,
        }
    }

    /// Gives back to the host what deleted files and records still hold. True if what was refused for lack of space is
    /// worth one more try: the background may have made room just before.
    pub fn relieve(&self) -> bool {
        self.reap_removed();
        let done = self.pool.reclaim().is_ok();
        if done {
            self.has_given_back();
        }
        done
    }

    /// What the pool holds and uses, without what is only still known to the kernel.
    pub fn usage(&self) -> Usage {
        self.removed.discount(self.pool.usage())
    }

    /// Makes everything stored so far durable.
    pub fn commit(&self) -> Result<()> {
        self.commit_by(|pool| pool.commit(pool.newest()))
    }

    /// A commit that a client waits for.
    pub fn commit_for_client(&self) -> Result<()> {
        self.counters.commits_waited.add(1);
        self.cover_small();
        self.commit()
    }

    /// The same where every segment that the client waits for was synced before.
    pub fn commit_stored_for_client(&self) -> Result<()> {
        self.counters.commits_waited.add(1);
        self.cover_small();
        self.commit_by(|pool| pool.commit_stored(pool.newest()))
    }

    fn commit_by(&self, commit: impl FnOnce(&Pool) -> tensorfs_layout::Result<()>) -> Result<()> {
        commit(&self.pool).map_err(|error| {
            self.counters.commits_failed.add(1);
            Fault { errno: libc::EIO, ..Fault::from(error) }
        })
    }

    /// `Err` if the pool takes no more changes.
    pub fn check_writable(&self) -> Result<()> {
        match self.pool.is_read_only() {
            Some(_) => Err(Fault::new(libc::EROFS)),
            None => Ok(()),
        }
    }

    /// A new, empty segment in a tier. If it is to replace another one, it is younger than that.
    pub fn new_segment_in(&self, tier: u8, replaced: Option<SegmentId>) -> Result<NewSegment> {
        if tier == PM {
            return self.new_segment(replaced);
        }
        self.make_segment(|serial| SegmentId::in_tier(tier, serial))
    }

    /// A new, empty segment in the pool's own directory, where the spare ones are.
    fn new_segment(&self, replaced: Option<SegmentId>) -> Result<NewSegment> {
        if let Some(spare) = self.spares.take(replaced) {
            self.counters.spares_used.add(1);
            // It has the times at which it was made.
            let now = clock::coarse();
            let timed = host::set_times(&*spare.fd, Some(now), Some(now)).host("setting a segment's times");
            self.pool.segments().no_spare(spare.segment);
            if timed.is_err() {
                self.pool.discard_segment(spare.segment);
            }
            return timed.map(|()| spare);
        }
        self.make_segment(|serial| SegmentId::in_tier(PM, serial))
    }

    fn make_segment(&self, number: impl Fn(u64) -> Option<SegmentId>) -> Result<NewSegment> {
        // A number can only be taken if a crash kept a segment but not the record that counted it.
        let mut relieved = false;
        for _ in 0..16 {
            let next = self.pool.edit().next_id();
            let segment = number(next).ok_or(Fault::warn(libc::EIO, "no segment numbers are left"))?;
            match self.pool.segments().create(segment) {
                Ok(fd) => return Ok(NewSegment { segment, fd: Arc::new(fd), backing: None }),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) if error.raw_os_error().is_some_and(is_no_space) && !relieved => relieved = self.relieve(),
                Err(error) => return Err(error).host("creating a segment"),
            }
        }
        Err(Fault::warn(libc::EIO, "no free segment number"))
    }

    /// Announces writes to a segment.
    pub fn begin_write(&self, segment: SegmentId) -> Result<Arc<OwnedFd>> {
        self.make_room_to_sync()?;
        self.pool.segments().begin_write(segment).host("opening a segment to sync it")
    }

    /// The same for a new segment.
    pub fn begin_first_write(&self, new: &NewSegment) -> Result<Arc<OwnedFd>> {
        self.make_room_to_sync()?;
        Ok(self.pool.segments().begin_first_write(new.segment, new.fd.clone()))
    }

    fn make_room_to_sync(&self) -> Result<()> {
        // A commit closes those that nobody writes any more. What is left must leave room for the server's own needs.
        let held = self.pool.segments().dirty_count();
        let written = self.writers.lock().len();
        if held.saturating_sub(written) > SYNC_FD_LIMIT.min(self.fds.for_syncing / 2) || held >= self.fds.for_syncing {
            if held >= self.fds.for_syncing {
                self.settle_closed();
            }
            self.pool.settle_values()?;
            self.commit()?;
            if self.pool.segments().dirty_count() >= self.fds.for_syncing {
                return Err(Fault::warn(libc::ENFILE, "too many files are open for writing"));
            }
        }
        Ok(())
    }

    /// Tells the kernel that it no longer knows an inode's attributes.
    pub fn forget_attributes(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            // A negative offset means the attributes alone, which waits for nothing. Fails only for unknown inodes.
            let _ = notifier.inval_inode(fuser::INodeNo(ino.0), -1, 0);
        }
    }

    /// The host cannot share bytes between segments.
    pub fn give_up_cloning(&self) {
        if !self.no_clone.swap(true, Ordering::Relaxed) {
            log::debug!("the host cannot share bytes between files; copying them instead");
        }
    }
}

/// The record that a directory's content changed.
pub(crate) fn touched(edit: &Edit<'_>, dir: Ino, now: Timestamp) -> Option<Record> {
    let attributes = Attributes { mtime: now, ctime: now, ..edit.object(dir)?.attributes.clone() };
    Some(Record::Attributes { ino: dir, attributes })
}

/// The record that an object changed, but not its content.
pub(crate) fn changed(edit: &Edit<'_>, ino: Ino, now: Timestamp) -> Option<Record> {
    let attributes = Attributes { ctime: now, ..edit.object(ino)?.attributes.clone() };
    Some(Record::Attributes { ino, attributes })
}

/// Adds what there is of records.
pub(crate) fn with(mut tx: Transaction, records: impl IntoIterator<Item = Record>) -> Transaction {
    for record in records {
        tx.push(record);
    }
    tx
}

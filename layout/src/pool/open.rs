//! Opening a pool.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::{Error, Result};
use crate::ids::{Ino, TxId};
use crate::log::file::{LOG, open_log, open_pool};
use crate::log::shutdown::Shutdown;
use crate::log::superblock::{PoolState, Superblock};
use crate::log::tier::Tier;
use crate::medium;
use crate::medium::boot::boot_id;
use crate::medium::dir::Dir;
use crate::medium::domain::Medium;
use crate::medium::flushes::Counted;
use crate::medium::read_only::ReadOnly;
use crate::pool::budget::Budget;
use crate::pool::commits::Commits;
use crate::pool::current::Current;
use crate::pool::lock::{Holder, LOCK, PoolLock, holder_of};
use crate::pool::opened::{Live, Pool, Upkeep};
use crate::pool::recover::reading;
use crate::pool::recover::settling;
use crate::pool::recovery::Recovery;
use crate::pool::removals::Removals;
use crate::pool::untold;
use crate::pool::values::values_per_round;
use crate::segment::home::SEGMENTS;
use crate::segment::place::QUARANTINE;
use crate::segment::quarantine::Quarantine;
use crate::segment::segments::Segments;
use crate::segment::tier::Whose;
use crate::time::Timestamp;
use crate::tree::paths::Paths;
use crate::tree::view::View;

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
    /// If the pool's filesystem is read-only, it is opened all the same, and takes no changes.
    pub may_be_read_only: bool,
    /// What is taken over from a server that has died, whose clients wait.
    pub inherited: Option<Inherited>,
}

/// Why a pool takes no changes whose filesystem takes none. It is no fault.
pub const READ_ONLY_HOST: &str = "its filesystem is read-only";

/// What a server leaves to the one that takes its place, while the kernel and the clients wait.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// The lock of the pool, which somebody has held on to: nobody else came between.
    pub lock: Arc<OwnedFd>,
    /// Files that are open: they stay, also those that have no name.
    pub open: HashSet<Ino>,
    /// The newest transaction when the mount began: what requests of it did comes behind that.
    pub since: TxId,
    /// Files that were damaged already when the mount began. Of the others nobody may have heard yet.
    pub damaged: HashSet<Ino>,
}

impl Pool {
    /// That this program could serve a pool that somebody serves now, and which one that is. Changes nothing.
    pub fn could_open(dir: &Path, options: &OpenOptions) -> Result<String> {
        let pool = open_pool(dir)?;
        let log = match open_log(&pool, true) {
            Err(error) if error.errno() == libc::EROFS && options.may_be_read_only => open_log(&pool, false),
            log => log,
        };
        let log = medium::open_to_read(log?).map_err(|error| Error::in_pool(dir, LOG, "open", error))?;
        let (superblock, _) = Superblock::read(dir, &*log)?;
        check_layout(dir, options, &superblock)?;
        // Who serves has all of it open, whatever has the names now. The next one, and one as before, finds what has
        // them.
        let find = |name| pool.below(name).and_then(|found| found.entries()).map(drop);
        for name in [SEGMENTS, QUARANTINE] {
            find(name).map_err(|error| Error::in_pool(dir, name, "open", error))?;
        }
        pool.open_only(LOCK, libc::O_RDONLY).map_err(|error| Error::in_pool(dir, LOCK, "open", error))?;
        match holder_of(&pool)? {
            Some(_) => Ok(superblock.uuid_text()),
            None => {
                Err(Error::Invalid { pool: dir.into(), what: "its lock is not the one that its server has".into() })
            }
        }
    }

    /// Opens a pool for use: takes its lock, recovers it if it was not closed, and marks it in use.
    pub fn open(dir: &Path, options: &OpenOptions) -> Result<Self> {
        let io = |error| Error::in_pool(dir, LOG, "open", error);
        let pool = open_pool(dir)?;
        // The lock says who has it: nothing is written before it is known to be a pool.
        let found = match open_log(&pool, true) {
            Err(error) if error.errno() == libc::EROFS => return Self::open_to_read(dir, options, pool),
            log => medium::open_to_read(log?).map_err(io)?,
        };
        Superblock::read(dir, &*found)?;
        let holder = Holder { pid: std::process::id(), mountpoint: options.mountpoint.clone() };
        let lock = match &options.inherited {
            Some(inherited) => PoolLock::inherit(pool, &inherited.lock, &holder)?,
            None => PoolLock::take(pool, &holder)?,
        };
        // Opened again: until the lock was ours, the pool could be made anew.
        let log = open_log(lock.dir(), true)?;
        let medium: Arc<dyn Medium> = medium::open(log).map_err(io)?.into();
        Self::open_on(dir, options, lock, medium)
    }

    /// Opens a pool on a read-only filesystem. Nothing is written, so it must have been closed.
    fn open_to_read(dir: &Path, options: &OpenOptions, pool: Dir) -> Result<Self> {
        let read_only = |reason: &str| Error::ReadOnly { pool: dir.into(), reason: reason.into() };
        if !options.may_be_read_only {
            return Err(read_only(READ_ONLY_HOST));
        }
        let log = open_log(&pool, false)?;
        let medium = medium::open_to_read(log).map_err(|error| Error::in_pool(dir, LOG, "open", error))?;
        let lock = match &options.inherited {
            Some(inherited) => PoolLock::inherit(pool, &inherited.lock, &Holder::default())?,
            None => PoolLock::take_to_read(pool)?,
        };
        if Superblock::read(dir, &*medium)?.0.state != PoolState::Clean {
            return Err(read_only(
                "its filesystem is, and it was not closed; mount it once where it can be written, to recover it",
            ));
        }
        Self::open_on(dir, options, lock, Arc::new(ReadOnly(medium)))
    }

    /// As [`Pool::open`], on a medium of the caller's, which stands for the pool's log and for syncs of its segments.
    pub fn open_with_medium(dir: &Path, options: &OpenOptions, medium: Arc<dyn Medium>) -> Result<Self> {
        Superblock::read(dir, &*medium)?;
        let holder = Holder { pid: std::process::id(), mountpoint: options.mountpoint.clone() };
        Self::open_on(dir, options, PoolLock::take(open_pool(dir)?, &holder)?, medium)
    }

    fn open_on(dir: &Path, options: &OpenOptions, lock: PoolLock, medium: Arc<dyn Medium>) -> Result<Self> {
        let counted = Arc::new(Counted::new(medium));
        let medium: Arc<dyn Medium> = counted.clone();
        let (superblock, one_damaged) = Superblock::read(dir, &*medium)?;
        if one_damaged {
            log::warn!("{}: one of the two superblocks is damaged; the other one is used", dir.display());
        }
        check_layout(dir, options, &superblock)?;
        let boot_id = boot_id(options.boot_id);
        let since = options.inherited.as_ref().map(|inherited| inherited.since);
        let found = reading::read(dir, &medium, &superblock, boot_id, since)?;
        if let Some(mountpoint) = &options.mountpoint {
            check_mountpoint(dir, &found.view, mountpoint)?;
        }
        let segments = Segments::open_all(lock.dir(), medium.clone());
        let mut segments = segments.map_err(|error| Error::in_pool(dir, SEGMENTS, "open", error))?;
        let mut failed = found.damage.clone();
        if failed.is_none() && lock.is_read_only() {
            failed = Some(READ_ONLY_HOST.into());
        }
        if failed.is_none() && superblock.read_only_features() != 0 {
            failed = Some("it uses features that this tensorfs can only read".into());
        }
        if failed.is_none() {
            reading::cut_off(&found, &*medium, &superblock)
                .and_then(|()| reading::store_again(&found, &*medium, &superblock))
                .map_err(|error| Error::in_pool(dir, LOG, "write", error))?;
        }
        let whose = Whose { pool: superblock.uuid, boot: boot_id };
        segments
            .open_tiers(&found.view, whose, failed.is_none())
            .map_err(|error| Error::in_pool(dir, SEGMENTS, "look into the tiers", error))?;
        let (newest, horizon) = (found.log.newest(), found.log.horizon());
        let budget = Budget::of(values_per_round(superblock.limit));
        segments.be_sparing(superblock.limit.is_some());
        let mut pool = Self {
            boot_id,
            path: dir.into(),
            quarantine: Quarantine::new(lock.dir().clone(), &segments, medium),
            lock,
            medium: counted,
            segments,
            state: RwLock::new(Live { view: found.view, log: found.log }),
            superblock: Current::new(superblock),
            upkeep: Upkeep::default(),
            commits: Commits::new(newest, horizon),
            budget,
            failed: RwLock::new(failed),
            removals: Removals::default(),
            recovery: Recovery::default(),
        };
        let mut recovery = found.recovery;
        if pool.is_read_only().is_none() {
            if recovery.kind == Shutdown::ServerKilled {
                pool.superblock.of(|superblock| pool.segments.recall_host_errors(|tier| superblock.host_errors(tier)));
                recovery.unwritten = untold::hear(pool.lock.dir(), &pool.superblock(), boot_id, &pool.segments);
            }
            let paths = Paths::default();
            if let Err(error) = pool.quarantine.owe_notes(|ino| paths.bytes_of(&pool.view(), ino)) {
                log::warn!("{}: quarantine: {error}", dir.display());
            }
            let nothing = HashSet::new();
            let open = options.inherited.as_ref().map_or(&nothing, |inherited| &inherited.open);
            settling::settle(&pool, &mut recovery, &found.owned, open, &paths, options.now)?;
            if let Some(inherited) = &options.inherited {
                pool.inherit_failures(&inherited.damaged);
            }
            // Rule 8: that recovery is over is its last persist.
            let unsafe_shutdown = u64::from(recovery.unsafe_shutdown());
            pool.set_open_after(unsafe_shutdown)?;
            pool.told();
        } else if let Some(reason) = pool.is_read_only().filter(|reason| reason != READ_ONLY_HOST) {
            log::error!("{}: opened read-only: {reason}", dir.display());
        } else {
            // What is left of objects that were removed before it was closed: nothing has their segments any more.
            let view = &mut pool.state.write().view;
            view.unreachable().into_iter().for_each(|ino| view.drop_object(ino));
        }
        pool.recovery = recovery;
        Ok(pool)
    }
}

fn check_layout(dir: &Path, options: &OpenOptions, superblock: &Superblock) -> Result<()> {
    match &options.layout {
        Some(wanted) if *wanted != superblock.layout => {
            let (found, wanted) = (superblock.layout.clone(), wanted.clone());
            Err(Error::LayoutName { pool: dir.into(), found, wanted })
        }
        _ => Ok(()),
    }
}

/// That a pool is not going to be mounted over one of its tiers, or in one.
pub(crate) fn check_mountpoint(pool: &Path, view: &View, mountpoint: &Path) -> Result<()> {
    let within = |tier: &Tier| mountpoint.starts_with(tier.path()) || tier.path().starts_with(mountpoint);
    match view.tiers().find(|(_, tier)| within(tier)) {
        Some((_, tier)) => {
            let (name, path) = (&tier.name, tier.path().display());
            let what = format!("its tier {name} is in {path}, which the mount point would hide or be in");
            Err(Error::Invalid { pool: pool.into(), what })
        }
        None => Ok(()),
    }
}

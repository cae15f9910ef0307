//! What of a pool is durable, whoever uses it: for a process that has no part in its mount.
//!
//! The log is read while somebody may be appending to it and cleaning it. Transactions are numbered without gaps and an
//! incarnation of a block is never used again: so whoever finds all transactions up to a horizon in blocks, and finds
//! these blocks unchanged afterwards, has seen what the next mount would find after a power loss at that moment.
//! Whoever proposes a horizon has synced the segments before and is about to flush the log; this flushes it, too, and
//! so need not wait until it is told that this was done.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{ROOT, SegmentId, TxId};
use crate::log::blocks::Log;
use crate::log::census::{Census, decide_blocks};
use crate::log::file::{LOG, open_log, open_pool, which};
use crate::log::scan::{self, ScannedBlock};
use crate::log::superblock::{PoolState, Superblock};
use crate::medium;
use crate::medium::boot::boot_id;
use crate::medium::dir::Dir;
use crate::medium::domain::Medium;
use crate::medium::read_only::ReadOnly;
use crate::pool::lock::holder_of;
use crate::segment::gone::Gone;
use crate::segment::home::SEGMENTS;
use crate::segment::segments::Segments;
use crate::segment::stat::SegmentStat;
use crate::segment::tier::Whose;
use crate::tree::load;
use crate::tree::object::Object;
use crate::tree::view::View;

/// So often the log of a pool in use is read anew because it was cleaned meanwhile.
const ATTEMPTS: usize = 16;

/// The tree as it was after the newest transaction that is durable, and the segments of its files.
#[derive(Debug)]
pub struct Committed {
    dir: Arc<Dir>,
    medium: Arc<dyn Medium>,
    superblock: Superblock,
    view: View,
    transaction: TxId,
    segments: Segments,
    in_use: bool,
    log: String,
}

impl Committed {
    /// Reads the log of a pool, mounted or closed. One that is neither, as its server was killed, has to be mounted
    /// first: only a recovery knows what its segments hold.
    pub fn read(dir: &Path) -> Result<Self> {
        let pool = Arc::new(open_pool(dir)?);
        let io = |error| Error::in_pool(dir, LOG, "read", error);
        let log = open_log(&pool, false)?;
        let own = which(&log).map_err(io)?;
        let medium = log.try_clone().and_then(medium::open_to_read);
        let medium: Arc<dyn Medium> = Arc::new(ReadOnly(medium.map_err(io)?));
        for _ in 0..ATTEMPTS {
            let (superblock, _) = Superblock::read(dir, &*medium)?;
            let in_use = holder_of(&pool)?.is_some();
            if !in_use && superblock.state != PoolState::Clean {
                let what = "it was not closed; mount it once, so that it is recovered".into();
                return Err(Error::Invalid { pool: dir.into(), what });
            }
            let Some((view, transaction)) = load(&medium, &superblock).map_err(io)? else { continue };
            if view.object(ROOT).is_none_or(|root| !root.is_dir()) {
                return Err(Error::NotAPool { pool: dir.into(), reason: "its log holds no root directory".into() });
            }
            log.sync_data().map_err(|error| Error::in_pool(dir, LOG, "sync", error))?;
            let failed = |error| Error::in_pool(dir, SEGMENTS, "open", error);
            let mut segments = Segments::open_all(&pool, medium.clone()).map_err(failed)?;
            let whose = Whose { pool: superblock.uuid, boot: boot_id(None) };
            segments.open_tiers(&view, whose, false).map_err(failed)?;
            return Ok(Self { dir: pool, medium, superblock, view, transaction, segments, in_use, log: own });
        }
        let what = "transactions of its log cannot be found; `tensorfs check` says whether it is damaged".into();
        Err(Error::Invalid { pool: dir.into(), what })
    }

    /// The pool's directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Calls back with the directories that its segments are in, of tiers that are here as well: of each the one on
    /// top, where others may be made, and then those. A file there is called as [`SegmentId::of_name`] takes it.
    pub fn each_directory(&self, mut each: impl FnMut(BorrowedFd<'_>)) {
        self.segments.each_directory(&mut each);
    }

    /// What the pool is, apart from its content.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The tree. Every object in it can be reached.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The newest transaction that the tree is of.
    pub fn transaction(&self) -> TxId {
        self.transaction
    }

    /// Which log that is a transaction of ([`Pool::log_file`](crate::pool::Pool::log_file)).
    pub fn log_file(&self) -> &str {
        &self.log
    }

    /// True if the pool was in use when it was read: then only what is sealed of a file is known to stay as it is.
    pub fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Opens the segment of a file to read.
    pub fn open(&self, segment: SegmentId) -> io::Result<File> {
        // Looking at a file is no access to it.
        self.segments.open(segment, libc::O_RDONLY | libc::O_NOATIME).map(File::from)
    }

    /// What the host says of a segment, which is not opened for that.
    pub fn stat(&self, segment: SegmentId) -> io::Result<SegmentStat> {
        self.segments.stat(segment)
    }

    /// Why the bytes of a segment cannot be had, if that is so.
    pub fn gone(&self, segment: SegmentId) -> Option<Gone> {
        self.segments.gone(segment)
    }

    /// True if the bytes of an object can be read as the tree has them: nothing may change them, but for a change that
    /// shows.
    pub fn is_settled(&self, object: &Object) -> bool {
        let Some(chain) = object.chain() else { return true };
        !object.attributes.damaged && !object.is_cut_unconfirmed() && (chain.is_sealed() || !self.in_use)
    }

    /// Fails if a pool that nobody used has been used since it was read: bytes that have no checksum may have changed.
    pub fn check_unchanged(&self) -> Result<()> {
        if self.in_use {
            return Ok(());
        }
        let (now, _) = Superblock::read(self.path(), &*self.medium)?;
        if now.sequence() != self.superblock.sequence() || holder_of(&self.dir)?.is_some() {
            return Err(Error::Invalid {
                pool: self.path().into(),
                what: "it came into use meanwhile; try again".into(),
            });
        }
        Ok(())
    }
}

/// The view up to the horizon; `None` if transactions of it are missing, or if blocks changed while they were read.
fn load(medium: &Arc<dyn Medium>, superblock: &Superblock) -> io::Result<Option<(View, TxId)>> {
    let blocks = match scan::scan(&**medium, superblock) {
        // It became shorter.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        blocks => blocks?,
    };
    let census = Census::new(&blocks);
    let horizon = census.horizon_after_power_loss(superblock.read_mark(&**medium));
    if horizon == 0 || !census.missing(horizon).is_empty() {
        return Ok(None);
    }
    let (uses, _) = decide_blocks(&blocks, &census.retired(horizon), horizon);
    let log = Log::new(medium.clone(), superblock, uses, horizon, horizon);
    let loaded = load::load(&**medium, superblock, &blocks, &log, 0, &mut HashSet::new());
    if !are_unchanged(medium, superblock, &blocks, horizon)? {
        return Ok(None);
    }
    let mut view = loaded?;
    for ino in view.unreachable() {
        view.drop_object(ino);
    }
    Ok(Some((view, TxId(horizon))))
}

/// True if every frame up to the horizon still stands where it was found.
fn are_unchanged(
    medium: &Arc<dyn Medium>,
    superblock: &Superblock,
    blocks: &[ScannedBlock],
    horizon: u64,
) -> io::Result<bool> {
    let again = match scan::scan(&**medium, superblock) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        again => again?,
    };
    let kept = |block: &ScannedBlock| -> Vec<(u64, usize)> {
        let frames = block.frames.iter().filter(|found| found.sound && found.header.id <= horizon);
        frames.map(|found| (found.header.id, found.offset)).collect()
    };
    let incarnation = |block: &ScannedBlock| block.header.map(|header| header.incarnation);
    Ok(blocks.iter().zip(&again).all(|(before, now)| {
        let kept_before = kept(before);
        kept_before.is_empty() || (incarnation(before) == incarnation(now) && kept_before == kept(now))
    }))
}

//! Making a pool.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{FIRST_ID, ROOT};
use crate::log::blocks::{Block, Full, Log, Reserve};
use crate::log::draft::Draft;
use crate::log::file::{LOG, NEW_LOG};
use crate::log::record::{Attributes, Record};
use crate::log::superblock::{self, BLOCKS_OFFSET, LAYOUT_NAME_MAX, OFFSETS, Superblock, valid_block_size};
use crate::medium;
use crate::medium::boot_note::{FAILED, NEW_FAILED};
use crate::medium::dir::Dir;
use crate::medium::domain::Medium;
use crate::medium::remote_note::{NEW_REMOTE, REMOTE, REMOTE_LOCK};
use crate::medium::scrub_note::{NEW_SCRUBBED, SCRUBBED};
use crate::pool::lock::{Holder, LOCK, PoolLock};
use crate::pool::opened::Pool;
use crate::segment::home::SEGMENTS;
use crate::segment::place::QUARANTINE;
use crate::time::Timestamp;
use crate::tree::object::FIRST_SEQ;

/// The smallest size limit: room for the log to grow a little, and for some bytes.
pub const LIMIT_MIN: u64 = 16 << 20;

/// Log blocks of a new pool.
pub(crate) const INITIAL_BLOCKS: u32 = 4;

/// What an interrupted repair, a server without a log, a scrub and a carrier leave beside the log.
pub(crate) const BESIDE: [&str; 8] =
    [NEW_LOG, FAILED, NEW_FAILED, SCRUBBED, NEW_SCRUBBED, REMOTE, NEW_REMOTE, REMOTE_LOCK];

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
        let io = |what| move |error| Error::io(dir, what, error);
        let place = prepare_directory(dir, options.force)?;
        let lock = PoolLock::make(place, &Holder { pid: std::process::id(), mountpoint: None })?;
        let place = lock.dir();
        // Asked again: until the lock was ours, somebody else could make one.
        if options.force || is_unfinished_in(place).map_err(io("read"))? {
            remove_pool(place).map_err(io("remove the old pool"))?;
        } else {
            return Err(Error::Exists { pool: dir.into(), what: "there is a pool already".into() });
        }
        for part in [SEGMENTS, QUARANTINE] {
            place.make_dir(part).map_err(io("create"))?;
        }
        let medium = place.create(LOG).and_then(|log| {
            // The domain is probed on a file with some length; the blocks follow.
            log.set_len(BLOCKS_OFFSET)?;
            medium::open(log)
        });
        let medium: Arc<dyn Medium> = medium.map_err(io("create the log"))?.into();
        Self::format(&medium, options).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSPC) => Error::NoSpace { pool: dir.into(), what: "the host is full".into() },
            _ => Error::io(dir, "write the log", error),
        })?;
        let segments = place.below(SEGMENTS).map_err(io("open"))?;
        for made in [segments.as_fd(), place.as_fd()] {
            medium.sync_directory(made).map_err(io("sync"))?;
        }
        drop(lock);
        Ok(())
    }

    /// Writes a log with a root directory. The superblocks come last: a pool is one once it is whole.
    fn format(medium: &Arc<dyn Medium>, options: &CreateOptions) -> io::Result<()> {
        let mut superblock =
            Superblock::new(options.layout.clone(), options.block_size, INITIAL_BLOCKS, options.limit)?;
        medium.grow(0, superblock.log_len())?;
        let blocks = vec![Block::Free; INITIAL_BLOCKS as usize];
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
        draft.push(&Record::Attributes { ino: ROOT, attributes }, FIRST_SEQ);
        draft.propose(0);
        if log.reserve(draft.len(), Reserve::Cleaning)? == Err(Full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        log.append(draft, FIRST_ID)?;
        superblock.store_mark(&**medium, 1)?;
        medium.persist()?;
        superblock.write(&**medium)
    }
}

pub(super) fn small_limit() -> String {
    format!("the smallest size of a pool is {} MiB", LIMIT_MIN >> 20)
}

/// The directory of a new pool, which is made if it is not there; an error says what stands in the way.
fn prepare_directory(dir: &Path, force: bool) -> Result<Dir> {
    let io = |what| move |error| Error::io(dir, what, error);
    let place = match Dir::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Dir::make_at(dir).map_err(io("create"));
        }
        place => place.map_err(io("open"))?,
    };
    if place.is_empty().map_err(io("read"))? {
        return Ok(place);
    }
    if !holds_only_a_pool(&place).map_err(io("read"))? {
        let what = "the directory is not empty, and holds other things than a pool; choose another one".into();
        return Err(Error::Invalid { pool: dir.into(), what });
    }
    if !force && !is_unfinished_in(&place).map_err(io("read"))? {
        return Err(Error::Exists { pool: dir.into(), what: "there is a pool already".into() });
    }
    Ok(place)
}

/// True if every name in the directory is one that a pool has, so that a pool, or what is left of one, is all that
/// `--force` can destroy.
fn holds_only_a_pool(dir: &Dir) -> io::Result<bool> {
    const PARTS: [&str; 4] = [LOCK, LOG, QUARANTINE, SEGMENTS];
    let is_part = |name: &str| PARTS.contains(&name) || BESIDE.contains(&name);
    Ok(dir.entries()?.iter().all(|entry| entry.text().is_some_and(is_part)))
}

/// True if a directory holds nothing, or no more than what is left of making a pool that was interrupted: the
/// superblocks are written last, and no file was ever in it.
pub fn is_unfinished(dir: &Path) -> io::Result<bool> {
    is_unfinished_in(&Dir::open(dir)?)
}

fn is_unfinished_in(dir: &Dir) -> io::Result<bool> {
    let is_empty = |part: &str| match dir.below(part) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        part => part?.is_empty(),
    };
    Ok(holds_only_a_pool(dir)? && is_empty(SEGMENTS)? && is_empty(QUARANTINE)? && !has_superblock(dir)?)
}

/// True for a directory that is a pool, as far as one sees from outside: it has the names of a pool's parts. Whether
/// they are what they should be whoever opens it finds out, and says of which they are not.
pub fn looks_like_pool(dir: &Path) -> bool {
    let Ok(dir) = Dir::open(dir) else { return false };
    let is_none = |kind| matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied);
    let has = |name| dir.stat(name).map_or_else(|error| !is_none(error.kind()), |_| true);
    [LOG, SEGMENTS, QUARANTINE].into_iter().all(has)
}

/// True if anything stands where superblocks are.
fn has_superblock(dir: &Dir) -> io::Result<bool> {
    let log = match dir.open_file(LOG, libc::O_RDONLY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        log => File::from(log?),
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
fn remove_pool(dir: &Dir) -> io::Result<()> {
    for part in [LOG].into_iter().chain(BESIDE) {
        dir.unlink_if_there(part)?;
    }
    dir.remove_all(SEGMENTS)?;
    dir.remove_all(QUARANTINE)
}

const _: () = assert!(OFFSETS[1] < BLOCKS_OFFSET);

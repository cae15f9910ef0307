//! A look at a pool that is not in use, which changes nothing.

use std::path::Path;
use std::sync::Arc;

use crate::check::scrubbed::Scrubbed;
use crate::error::{Error, Result};
use crate::ids::{Ino, ROOT, TxId};
use crate::log::file::{LOG, open_log, open_pool};
use crate::log::superblock::{INCOMPAT_GROWTH, PoolState, Superblock};
use crate::medium;
use crate::medium::boot::boot_id;
use crate::medium::dir::Dir;
use crate::medium::domain::{Domain, Medium};
use crate::medium::read_only::ReadOnly;
use crate::pool::carrying::{Carried, carried_in};
use crate::pool::lock::{check_unused, holder_of};
use crate::pool::recover::reading;
use crate::pool::usage::{Usage, usage};
use crate::segment::home::SEGMENTS;
use crate::segment::place::QUARANTINE;
use crate::segment::quarantine::{Quarantine, QuarantineEntry};
use crate::segment::segments::Segments;
use crate::segment::tier::Whose;
use crate::segment::tiers::{self, HostSpace, TierInfo};
use crate::tree::paths::Paths;
use crate::tree::view::{Totals, View};

/// What is in a pool.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// What the superblock says.
    pub superblock: Superblock,
    /// How stores to it would become durable.
    pub domain: Domain,
    /// Whether it was closed.
    pub state: PoolState,
    /// What it holds, as far as the log can be read.
    pub usage: Usage,
    /// What is set aside.
    pub quarantine: Vec<QuarantineEntry>,
    /// Files known to have lost bytes.
    pub damaged_files: Vec<Vec<u8>>,
    /// What is missing in the log, in words.
    pub damage: Option<String>,
    /// What the last scrub came to.
    pub scrubbed: Scrubbed,
    /// Its tiers, the pool's own directory first.
    pub tiers: Vec<TierInfo>,
    /// What the filesystems have that those of them are on which can be used.
    pub space: HostSpace,
    /// The newest transaction.
    pub transaction: TxId,
    /// What its carrier has noted, if there is something.
    pub carried: Option<Carried>,
}

/// Whether whoever used a pool last closed it, and left nothing to a recovery; nothing if somebody has it in use.
pub fn was_closed(dir: &Path) -> Result<Option<bool>> {
    let pool = open_pool(dir)?;
    let log = open_log(&pool, false)?;
    let medium = medium::open_to_read(log).map_err(|error| Error::in_pool(dir, LOG, "open", error))?;
    let (superblock, _) = Superblock::read(dir, &*medium)?;
    let closed = matches!(superblock.state, PoolState::Clean | PoolState::Outlived);
    Ok(holder_of(&pool)?.is_none().then_some(closed))
}

/// The limit of a pool, whoever uses it.
pub fn limit_of(dir: &Path) -> Result<Option<u64>> {
    let log = open_log(&open_pool(dir)?, false)?;
    let medium = medium::open_to_read(log).map_err(|error| Error::in_pool(dir, LOG, "open", error))?;
    Ok(Superblock::read(dir, &*medium)?.0.limit)
}

/// The tree and the segments of a pool that is not in use, to look at. Nothing is changed.
#[derive(Debug)]
pub struct Contents {
    dir: Dir,
    medium: Arc<dyn Medium>,
    superblock: Superblock,
    view: View,
    segments: Segments,
    damage: Option<String>,
    scrubbed: Scrubbed,
}

impl Contents {
    /// Reads the log, as opening the pool would find it. A pool that is in use gives [`Error::Busy`].
    pub fn read(dir: &Path) -> Result<Self> {
        let pool = open_pool(dir)?;
        let log = open_log(&pool, false)?;
        check_unused(&pool)?;
        let medium = medium::open(log).map_err(|error| Error::in_pool(dir, LOG, "open", error))?;
        let medium: Arc<dyn Medium> = Arc::new(ReadOnly(medium));
        let (superblock, _) = Superblock::read(dir, &*medium)?;
        let found = reading::read(dir, &medium, &superblock, boot_id(None), None)?;
        let segments = Segments::open_all(&pool, medium.clone());
        let mut segments = segments.map_err(|error| Error::in_pool(dir, SEGMENTS, "open", error))?;
        let whose = Whose { pool: superblock.uuid, boot: boot_id(None) };
        segments
            .open_tiers(&found.view, whose, false)
            .map_err(|error| Error::in_pool(dir, SEGMENTS, "look into the tiers", error))?;
        let scrubbed = Scrubbed::read_in(&pool, &superblock.uuid_text(), &found.view);
        Ok(Self { dir: pool, medium, superblock, view: found.view, segments, damage: found.damage, scrubbed })
    }

    /// The pool's directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// True if files may have grown behind their seals since they were recorded: the next mount learns it.
    pub fn may_have_grown(&self) -> bool {
        let closed = matches!(self.superblock.state, PoolState::Clean | PoolState::Outlived);
        !closed && self.superblock.features.incompat & INCOMPAT_GROWTH != 0
    }

    /// The tree.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The bytes of files.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// True if a scrub found a file damaged, and it was not written since.
    pub fn is_known_damaged(&self, ino: Ino) -> bool {
        self.scrubbed.is_damaged(ino)
    }

    /// What is missing in the log, in words.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Fails if the pool came into use after it was read: then what was read of its bytes may not fit what was read of
    /// its log.
    pub fn check_unused(&self) -> Result<()> {
        check_unused(&self.dir)?;
        let (now, _) = Superblock::read(self.path(), &*self.medium)?;
        if now.sequence() != self.superblock.sequence() {
            return Err(Error::Invalid { pool: self.path().into(), what: "it was in use meanwhile; try again".into() });
        }
        Ok(())
    }
}

/// Looks at a pool that is not in use. One that is gives [`Error::Busy`].
pub fn inspect(dir: &Path) -> Result<Inspection> {
    let pool = Arc::new(open_pool(dir)?);
    check_unused(&pool)?;
    look_at(dir, pool)
}

/// Looks at a pool that somebody has in use: what its log said at one moment, if it could be read while it changed.
pub fn inspect_in_use(dir: &Path) -> Result<Option<Inspection>> {
    let found = look_at(dir, Arc::new(open_pool(dir)?))?;
    Ok(Some(found).filter(|found| found.damage.is_none()))
}

fn look_at(dir: &Path, pool: Arc<Dir>) -> Result<Inspection> {
    let log = open_log(&pool, false)?;
    let medium = medium::open_to_read(log).map_err(|error| Error::in_pool(dir, LOG, "open", error))?;
    let medium: Arc<dyn Medium> = Arc::new(ReadOnly(medium));
    let (superblock, _) = Superblock::read(dir, &*medium)?;
    // What opening it now would find.
    let found = reading::read(dir, &medium, &superblock, boot_id(None), None)?;
    let paths = Paths::default();
    let damaged = found.view.objects().filter(|(_, object)| object.attributes.damaged);
    let path = |ino| paths.bytes_of(&found.view, ino).unwrap_or_else(|| format!("inode {ino}").into_bytes());
    let damaged_files = damaged.map(|(ino, _)| path(ino)).collect();
    let segments = Segments::open_all(&pool, medium.clone()).and_then(|mut segments| {
        segments.open_tiers(&found.view, Whose { pool: superblock.uuid, boot: boot_id(None) }, false)?;
        Ok(segments)
    });
    let segments = segments.map_err(|error| Error::in_pool(dir, SEGMENTS, "open", error))?;
    let quarantine = Quarantine::of(pool.clone()).with(&segments);
    Ok(Inspection {
        tiers: tiers::describe(&pool, &found.view, &segments),
        space: HostSpace::of(&segments),
        domain: medium.domain(),
        state: superblock.state,
        usage: usage(&found.view, &found.log, &superblock, quarantine.recount()).without(&unnamed(&found.view)),
        quarantine: quarantine.list().map_err(|error| Error::in_pool(dir, QUARANTINE, "read", error))?,
        damaged_files,
        damage: found.damage,
        scrubbed: Scrubbed::read_in(&pool, &superblock.uuid_text(), &found.view),
        transaction: TxId(found.log.newest()),
        carried: carried_in(&pool)?,
        superblock,
    })
}

/// What has no name any more: opening the pool gives it back.
fn unnamed(view: &View) -> Totals {
    let gone = view.objects().filter(|(ino, object)| object.names() == 0 && *ino != ROOT);
    gone.fold(Totals::default(), |sum, (_, object)| sum + Totals::of(object))
}

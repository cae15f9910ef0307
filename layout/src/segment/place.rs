//! Where quarantine is: a directory in the pool, and one in each tier, so that what is set aside stays on its own
//! filesystem. Each is opened whenever it is used, as operators may remove it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::stat::FileStat;

use crate::medium::dir::Dir;
use crate::medium::foreign::Foreign;

/// The directory.
pub(crate) const QUARANTINE: &str = "quarantine";

/// The clock by which the host dates changes of files does not stand still for longer.
const TICK: Duration = Duration::from_millis(50);

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The directory that it is in: the pool's, or a tier's.
    above: Arc<Dir>,
    /// That is a tier's.
    in_tier: bool,
}

impl Place {
    pub fn of_pool(above: Arc<Dir>) -> Self {
        Self { above, in_tier: false }
    }

    pub fn of_tier(above: Arc<Dir>) -> Self {
        Self { above, in_tier: true }
    }

    /// Opens it.
    pub fn open(&self) -> io::Result<Dir> {
        self.above.below(QUARANTINE)
    }

    /// As [`Place::open`]; nothing if there is none to look into. That of a pool has to be there.
    pub fn look(&self) -> io::Result<Option<Dir>> {
        match self.open() {
            Err(error) if self.in_tier && is_none(&error) => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// As [`Place::open`]; that of a tier is made if it is not there. `made` makes its name durable.
    pub fn open_to_fill(&self, made: impl FnOnce(&Dir) -> io::Result<()>) -> io::Result<Dir> {
        match self.open() {
            Err(error) if self.in_tier && error.kind() == io::ErrorKind::NotFound => {
                match self.above.make_dir(QUARANTINE) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => made(&self.above)?,
                }
                self.open()
            }
            opened => opened,
        }
    }

    /// What stands in its place and is none of the pool's.
    pub fn stranger(&self) -> Option<String> {
        let error = self.open().err()?;
        Foreign::of(&error).filter(|_| self.in_tier).map(Foreign::to_string)
    }

    /// How it is called in messages and findings: below the pool, or by its whole path in a tier.
    pub fn shown(&self) -> String {
        match self.in_tier {
            true => self.above.path_of(QUARANTINE).display().to_string(),
            false => QUARANTINE.into(),
        }
    }

    /// What the host says of the directory.
    pub fn stat(&self) -> io::Result<FileStat> {
        self.above.stat(QUARANTINE)
    }
}

/// True if there is nothing of the pool's.
fn is_none(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || Foreign::of(error).is_some()
}

/// What the files of one have of the host, and when that was counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub allocated: u64,
    /// The directory's change time then.
    changed: Option<SystemTime>,
    at: Option<SystemTime>,
}

impl Counted {
    /// Counts that anew, if the directory has changed: other processes remove entries, too. What cannot be read counts
    /// as it did.
    pub fn recount(&mut self, place: &Place) {
        let at = SystemTime::now();
        let changed = match place.stat() {
            Ok(found) => modified(&found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return *self = Self::default(),
            Err(_) => return,
        };
        if !self.is_of(changed)
            && let Ok(allocated) = place.open().and_then(|dir| allocated(&dir))
        {
            *self = Self { allocated, changed: Some(changed), at: Some(at) };
        }
    }

    /// True if a directory that changed last then is as it was: what changes within a tick of the host's clock for
    /// files does not show.
    fn is_of(&self, changed: SystemTime) -> bool {
        let late = |at: SystemTime| at.duration_since(changed).is_ok_and(|since| since > TICK);
        self.changed == Some(changed) && self.at.is_some_and(late)
    }
}

/// What makes a file of the host that one and no other.
pub(super) fn identity(found: &FileStat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

/// Blocks of the host that a directory's files have.
fn allocated(dir: &Dir) -> io::Result<u64> {
    let mut blocks = 0;
    for entry in dir.entries()? {
        // One that is removed meanwhile has none.
        blocks += dir.stat(entry.name.as_c_str()).map_or(0, |found| found.st_blocks as u64);
    }
    Ok(blocks * 512)
}

/// When a directory's names last changed.
fn modified(found: &FileStat) -> SystemTime {
    UNIX_EPOCH + Duration::new(found.st_mtime.max(0) as u64, found.st_mtime_nsec as u32)
}

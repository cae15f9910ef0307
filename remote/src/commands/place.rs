//! The remote that is meant: by its URL, or by the pool that has it.

use std::ffi::OsStr;
use std::path::Path;

use tensorfs_layout::check::Committed;

use crate::carry::Note;
use crate::commands::cli::Reach;
use crate::error::{Error, Result};
use crate::place::{Access, Place};
use crate::repository::Repository;

impl Reach {
    pub fn access(&self) -> Access {
        let (endpoint, region) = (self.endpoint.clone(), self.region.clone());
        Access { endpoint, region, ..Access::default() }
    }
}

pub fn repository(remote: impl AsRef<OsStr>, reach: &Reach) -> Result<Repository> {
    let remote = remote.as_ref();
    if let Some(url) = remote.to_str().filter(|text| text.contains("://")) {
        return Ok(Repository::new(Place::open(url, &reach.access())?));
    }
    let note = note_of(Path::new(remote))?;
    Ok(Repository::new(Place::open(&note.settings.url, &note.settings.access)?))
}

/// What the pool's carrier keeps.
pub fn note_of(pool: &Path) -> Result<Note> {
    let uuid = Committed::read(pool)?.superblock().uuid_text();
    let none = || Error::Refused(format!("{}: it has no remote; `tensorfs remote set` gives it one", pool.display()));
    Note::of(pool, &uuid)?.ok_or_else(none)
}

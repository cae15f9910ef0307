//! The remote that is meant: by its URL, or by the pool that has it.

use std::ffi::OsStr;
use std::path::Path;

use tensorfs_layout::check::Committed;

use crate::carry::{Note, Settings};
use crate::commands::cli::Reach;
use crate::error::{Error, Result};
use crate::place::Access;
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
        return Ok(Repository::new(settings(url, reach).open()?));
    }
    Ok(Repository::new(with_key(&note_of(Path::new(remote))?, reach).open()?))
}

/// A remote by its URL.
pub fn settings(url: &str, reach: &Reach) -> Settings {
    let (access, key_file, id) = (reach.access(), reach.key_file.clone(), reach.id);
    Settings { url: url.to_owned(), access, key_file, id, ..Settings::default() }
}

/// What a pool's remote was set to, but for the file of the key, and which remote it is, if others are named.
pub fn with_key(note: &Note, reach: &Reach) -> Settings {
    let key_file = reach.key_file.clone().or_else(|| note.settings.key_file.clone());
    Settings { key_file, id: reach.id.or(note.settings.id), ..note.settings.clone() }
}

/// What the pool's carrier keeps.
pub fn note_of(pool: &Path) -> Result<Note> {
    let uuid = Committed::read(pool)?.superblock().uuid_text();
    let none = || Error::Refused(format!("{}: it has no remote; `tensorfs remote set` gives it one", pool.display()));
    Note::of(pool, &uuid)?.ok_or_else(none)
}

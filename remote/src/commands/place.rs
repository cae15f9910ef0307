//! The remote that is meant, and which tree of it: by its URL, `URL[#POOL][@WHEN]`, or by the pool that has it.

use std::ffi::OsStr;
use std::path::Path;

use percent_encoding::percent_decode_str;
use tensorfs_layout::check::Committed;

use crate::carry::{Note, Settings};
use crate::commands::cli::Reach;
use crate::commands::mount::pool_of;
use crate::commands::when::{At, of_url};
use crate::error::{Error, Result};
use crate::origin::{self, Origin};
use crate::place::{Access, Place, is_name};
use crate::repository::Repository;

impl Reach {
    pub fn access(&self) -> Access {
        let (endpoint, region) = (self.endpoint.clone(), self.region.clone());
        Access { endpoint, region, ..Access::default() }
    }
}

/// The remote, and the tree of it that is meant: as its URL says, or beside that.
pub fn repository(remote: impl AsRef<OsStr>, reach: &Reach, at: Option<At>) -> Result<(Repository, Option<At>)> {
    let remote = remote.as_ref();
    if let Some(url) = remote.to_str().filter(|text| text.contains("://")) {
        let (settings, at) = named(url, reach, at)?;
        return match origin::open(settings)? {
            Origin::One(_, repository) => Ok((repository, at)),
            Origin::Several(settings, members) => {
                let names = members.iter().map(|(name, _)| name);
                Err(origin::several(&settings.url, names, "this is done of one pool"))
            }
        };
    }
    Ok((Repository::new(with_key(&note_of(&pool_of(Path::new(remote)))?, reach).open()?), at))
}

/// What a URL names. A place that is there has its whole name, whatever could be read into it.
pub fn named(url: &str, reach: &Reach, at: Option<At>) -> Result<(Settings, Option<At>)> {
    let is_remote = |url: &str| match Place::open(&plain(url)?, &reach.access()) {
        Ok(place) => Repository::is_there(&place),
        Err(Error::NotYet(_)) => Ok(false),
        Err(error) => Err(error),
    };
    let (plain_url, own) = of_url(url, is_remote)?;
    if own.is_some() && at.is_some() {
        return Err(Error::Refused(format!("{url}: it says itself which tree is meant; leave --at out")));
    }
    Ok((settings(&plain(&plain_url)?, reach), own.or(at)))
}

/// `URL#POOL` is the place `URL/POOL`.
fn plain(url: &str) -> Result<String> {
    let Some((above, pool)) = url.split_once('#') else { return Ok(url.to_owned()) };
    let decoded = percent_decode_str(pool).collect::<Vec<u8>>();
    let is_name = !pool.contains(['?', '#']) && std::str::from_utf8(&decoded).is_ok_and(is_name);
    if !is_name || above.contains('?') {
        return Err(Error::Refused(format!(
            "{url}: what is behind `#` is not the name of a pool's place below the URL"
        )));
    }
    Ok(format!("{}/{pool}", above.trim_end_matches('/')))
}

/// A remote by its URL.
fn settings(url: &str, reach: &Reach) -> Settings {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves E24.
    #[test]
    fn a_pool_is_below_the_url_and_nowhere_else() {
        assert_eq!(plain("file:///a").unwrap(), "file:///a");
        assert_eq!(plain("file:///a/#host 1").unwrap(), "file:///a/host 1");
        assert_eq!(plain("s3://b/run#host%231").unwrap(), "s3://b/run/host%231");
        for url in
            ["#", "#.", "#..", "#%2e%2e", "#.%2E", "#a/b", "#a%2fb", "#/a", "#a#b", "#a?b", "#%00", "#%ff", "?x#a"]
        {
            assert!(plain(&format!("file:///a{url}")).is_err(), "{url}");
        }
    }
}

//! `set` and `off`: whether a pool has a remote, and where.

use bytes::Bytes;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::Carrying;

use crate::carry::{Note, Settings};
use crate::commands::cli::{Pool, Set};
use crate::error::{Error, Result};
use crate::place::{Access, Place};
use crate::repository::Repository;

/// Says what a place is, and proves that puts there can be made conditional.
const MARK: &str = "tensorfs-remote";
const MARK_TEXT: &[u8] = b"{\"tensorfs_remote\":1}\n";

pub fn set(arguments: Set) -> Result<()> {
    let uuid = Committed::read(&arguments.pool)?.superblock().uuid_text();
    let carrying = take(&arguments.pool)?;
    let access = Access { bandwidth: arguments.bandwidth.map(|mib| mib << 20), ..arguments.reach.access() };
    let settings = Settings { url: arguments.url, access };
    let place = Place::make(&settings.url, &settings.access)?;
    mark(&place)?;
    let newest = Repository::new(place).newest()?;
    let before = Note::kept(&carrying, &uuid)?.filter(|note| note.settings.url == settings.url);
    let note = match (before, &newest.head) {
        (Some(before), _) => Note { settings, ..before },
        (None, Some(head)) if !arguments.take_over => {
            return Err(Error::Refused(format!(
                "{}: there is a copy of pool {} already; choose another place, or --take-over if that pool is gone",
                settings.url, head.pool
            )));
        }
        (None, _) => Note { settings, pool: uuid, number: newest.number(), hash: newest.hash, ..Note::default() },
    };
    let taken = Note { number: newest.number(), hash: newest.hash, intended: None, ..note.clone() };
    if arguments.take_over { taken.keep(&carrying) } else { note.keep(&carrying) }
}

pub fn off(arguments: &Pool) -> Result<()> {
    Ok(take(&arguments.pool)?.forget()?)
}

fn take(pool: &std::path::Path) -> Result<Carrying> {
    let busy = || Error::Refused(format!("{}: its carrier is at work; end that first", pool.display()));
    Carrying::take(pool)?.ok_or_else(busy)
}

/// The mark is put twice: a store that takes it both times does not heed conditions, and two pools could not be told
/// apart there.
fn mark(place: &Place) -> Result<()> {
    let put = || place.put_new(MARK, Bytes::from_static(MARK_TEXT));
    if put()? && put()? {
        return Err(Error::Refused(format!(
            "{}: this store does not heed conditions of puts, so that two pools could not be kept apart there",
            place.shown()
        )));
    }
    match place.get(MARK)?.as_deref() {
        Some(MARK_TEXT) => Ok(()),
        _ => Err(Error::Refused(format!("{}: what is there is not for this version of tensorfs", place.shown()))),
    }
}

//! Which mount of a pool somebody comes to who has the pool, or one of several mounts of it. It may be bound to other
//! places, whole or a directory of it; other filesystems may be mounted over it; an earlier server may have left one
//! behind; and the pool's directory may be called otherwise by now, and another one as it was.

use std::path::{Path, PathBuf};

use tensorfs_layout::pool::{Holder, holder};

use crate::mounting::busy::has_locked;
use crate::mounting::given;
use crate::mounting::mountinfo::{Mount, Table};
use crate::show::failure::Failure;

/// The mounts of a pool, as far as it can be told whose they are.
pub fn all<'a>(table: &'a Table, pool: &Path) -> Vec<&'a Mount> {
    // Of what is no pool, or not this user's, nobody knows.
    let by = holder(pool).ok();
    let found: Vec<_> = table.of_pool(pool).filter(|mount| !is_anothers(mount, pool, by.as_ref())).collect();
    let server = by.flatten().filter(|by| found.is_empty() && has_locked(by.pid, pool) == Some(true));
    match server {
        Some(by) => {
            let ours = |mount: &&Mount| mount.is_tensorfs() && !mount.is_foreign();
            table.latest_first().filter(ours).filter(|mount| given::is_served_by(mount, by.pid) == Some(true)).collect()
        }
        None => found,
    }
}

/// Whether a mount that names a pool is certainly none of its, given who has the pool, if anybody.
fn is_anothers(mount: &Mount, pool: &Path, by: Option<&Option<Holder>>) -> bool {
    match by {
        None => false,
        Some(None) => mount.is_in_sight() && !mount.is_dead(),
        // That it is the process of this number, and not one of another process namespace, its lock says.
        Some(Some(by)) => given::is_served_by(mount, by.pid) == Some(false) && has_locked(by.pid, pool) == Some(true),
    }
}

/// The mount of a pool through which most of it is reached. None: it is mounted nowhere in this namespace. An error:
/// something is mounted over it.
pub fn of_pool(pool: &Path) -> Result<Option<Mount>, Failure> {
    let table = Table::here()?;
    let found = all(&table, pool);
    let seen = found.iter().filter(|mount| mount.is_in_sight());
    // A dead mount of an earlier server may be left somewhere else.
    let best = seen.min_by_key(|mount| (mount.is_dead(), !mount.is_whole()));
    match (best, found.first()) {
        (Some(mount), _) => Ok(Some((*mount).clone())),
        (None, Some(hidden)) => Err(covered(&table, hidden)),
        (None, None) => Ok(None),
    }
}

/// That something is mounted over a mount of ours at this place (real), if so.
pub fn check_covered(path: &Path) -> Result<(), Failure> {
    let table = Table::here()?;
    let hidden = table.latest_first().find(|mount| {
        mount.mount_point() == path && mount.is_tensorfs() && !mount.is_foreign() && !mount.is_in_sight()
    });
    hidden.map_or(Ok(()), |hidden| Err(covered(&table, hidden)))
}

/// Why nobody comes to a mount.
fn covered(table: &Table, hidden: &Mount) -> Failure {
    let at = hidden.mount_point();
    let by = table.over(hidden).map_or_else(
        || "another filesystem is mounted over it".to_owned(),
        |over| {
            let (kind, source, place) = (over.fs_type().display(), over.source().display(), over.mount_point());
            let place = if place == at { String::new() } else { format!(" at {}", place.display()) };
            format!("another filesystem ({kind}, {source}) is mounted over it{place}")
        },
    );
    Failure::at(hidden.source(), format!("mounted at {}, but {by}; unmount that first", at.display()))
}

/// A mount of the same filesystem that shows its root: what is asked for below `.tensorfs` is there alone.
pub fn whole(mount: &Mount) -> Result<Mount, Failure> {
    if mount.is_whole() {
        return Ok(mount.clone());
    }
    let table = Table::here()?;
    let is_it = |other: &&Mount| other.device() == mount.device() && other.is_whole() && other.is_in_sight();
    table.latest_first().find(is_it).cloned().ok_or_else(|| {
        let (root, pool) = (mount.root().display(), mount.source().display());
        let why = format!(
            "only the directory {root} of {pool} is mounted here, and what is asked for is at its root, which is \
             mounted nowhere in sight; ask where that is, or unmount this and mount the pool again"
        );
        Failure::at(mount.mount_point(), why)
    })
}

/// Where something in a pool is to be found on a mount of it, given its path from the pool's root on.
pub fn path_on(mount: &Mount, inside: &Path) -> Result<PathBuf, Failure> {
    let inside = Path::new("/").join(inside);
    match inside.strip_prefix(mount.root()) {
        Ok(rest) if rest.as_os_str().is_empty() => Ok(mount.mount_point().to_owned()),
        Ok(rest) => Ok(mount.mount_point().join(rest)),
        Err(_) => whole(mount).and_then(|whole| path_on(&whole, &inside)),
    }
}

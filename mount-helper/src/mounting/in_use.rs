//! What is said of a pool that a process has in use.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tensorfs_layout::Error;

use crate::mounting::mountinfo::Table;
use crate::mounting::{apart, elsewhere, given, sight};
use crate::show::failure::Failure;
use crate::show::info::UNWATCHED;

/// Why a pool cannot be had, and where it is mounted: its server has said where that was to be.
pub fn in_use(pool: &Path, pid: u32, mountpoint: Option<PathBuf>) -> Failure {
    let Said { failure, place, .. } = said(pool, pid, mountpoint);
    match place {
        Some(place) if is_unwatched(&place) => Failure::new(format!("{failure}; {UNWATCHED}")),
        _ => failure,
    }
}

/// True if the server of a mount says that its keeper has died.
fn is_unwatched(place: &Path) -> bool {
    let arguments = ["health".as_ref(), "--ask".as_ref(), "--".as_ref(), place.as_os_str()];
    let said: Value = apart::ask(&arguments, apart::PATIENCE).unwrap_or_default();
    said["problems"].as_array().is_some_and(|problems| problems.iter().any(|problem| problem == UNWATCHED))
}

/// As [`in_use`], where it has to be unmounted.
pub fn to_be_unmounted(pool: &Path, pid: u32, mountpoint: Option<PathBuf>) -> Failure {
    match said(pool, pid, mountpoint) {
        Said { failure, is_mounted: true, .. } => Failure::new(format!("{failure}; unmount it first")),
        Said { failure, .. } => failure,
    }
}

struct Said {
    failure: Failure,
    /// It may be mounted.
    is_mounted: bool,
    /// Where this process sees it.
    place: Option<PathBuf>,
}

fn said(pool: &Path, pid: u32, mountpoint: Option<PathBuf>) -> Said {
    let busy = |place: Option<PathBuf>| Said {
        failure: Error::Busy { pool: pool.to_owned(), pid, mountpoint: place.clone() }.into(),
        is_mounted: true,
        place,
    };
    let Some(meant) = mountpoint.filter(|path| given::number(path).is_none()) else { return busy(None) };
    let table = Table::read().unwrap_or_default();
    let here = sight::all(&table, pool);
    // It may be bound to other places, and unmounted from the first one; and that may be called otherwise by now.
    let place = here.iter().find(|mount| mount.mount_point() == meant).or(here.first());
    if let Some(mount) = place {
        return busy(Some(mount.mount_point().to_owned()));
    }
    match &*elsewhere::places(pool, pid) {
        [] => {
            let why = "not mounted where this process can see it: that closes it, or serves programs that have its \
                       files open";
            let failure = Failure::at(pool, format!("already in use by process {pid}, and {why}"));
            Said { failure, is_mounted: false, place: None }
        }
        places => {
            let places = places.join(", ");
            let failure = Failure::at(pool, format!("already in use by process {pid}; it is mounted {places}"));
            Said { failure, is_mounted: true, place: None }
        }
    }
}

/// Any failure of a pool, with where it is mounted if that is why.
pub fn explained(error: Error) -> Failure {
    match error {
        Error::Busy { pool, pid, mountpoint } => in_use(&pool, pid, mountpoint),
        error => error.into(),
    }
}

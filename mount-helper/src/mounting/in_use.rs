//! What is said of a pool that a process has in use.

use std::path::{Path, PathBuf};

use tensorfs_layout::Error;

use crate::mounting::mountinfo::Table;
use crate::mounting::{elsewhere, given, sight};
use crate::show::failure::Failure;

/// Why a pool cannot be had, and where it is mounted: its server has said where that was to be.
pub fn in_use(pool: &Path, pid: u32, mountpoint: Option<PathBuf>) -> Failure {
    said(pool, pid, mountpoint).0
}

/// As [`in_use`], where it has to be unmounted.
pub fn to_be_unmounted(pool: &Path, pid: u32, mountpoint: Option<PathBuf>) -> Failure {
    match said(pool, pid, mountpoint) {
        (failure, true) => Failure::new(format!("{failure}; unmount it first")),
        (failure, false) => failure,
    }
}

/// Also whether it may be mounted.
fn said(pool: &Path, pid: u32, mountpoint: Option<PathBuf>) -> (Failure, bool) {
    let Some(meant) = mountpoint.filter(|path| given::number(path).is_none()) else {
        return (Error::Busy { pool: pool.to_owned(), pid, mountpoint: None }.into(), true);
    };
    let table = Table::read().unwrap_or_default();
    let here = sight::all(&table, pool);
    // It may be bound to other places, and unmounted from the first one; and that may be called otherwise by now.
    let place = here.iter().find(|mount| mount.mount_point() == meant).or(here.first());
    if let Some(mount) = place {
        let mountpoint = Some(mount.mount_point().to_owned());
        return (Error::Busy { pool: pool.to_owned(), pid, mountpoint }.into(), true);
    }
    match &*elsewhere::places(pool, pid) {
        [] => {
            let why = "not mounted where this process can see it: that closes it, or serves programs that have its \
                       files open";
            (Failure::at(pool, format!("already in use by process {pid}, and {why}")), false)
        }
        places => {
            let places = places.join(", ");
            (Failure::at(pool, format!("already in use by process {pid}; it is mounted {places}")), true)
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

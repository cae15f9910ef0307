//! Creating a pool, and opening one that is not mounted.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use nix::unistd::{getegid, geteuid};
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::{Error, Timestamp};

use crate::mounting::in_use::{explained, to_be_unmounted};
use crate::mounting::options::MountOptions;
use crate::mounting::paths;
use crate::show::failure::{At, Failure};
use crate::show::{output, size};

/// Mode of a new pool's root directory.
const ROOT_MODE: u32 = 0o755;

/// Opens a pool, as a mount would.
pub fn open(pool: &Path) -> Result<Pool, Error> {
    Pool::open(pool, &OpenOptions { now: Timestamp::from(SystemTime::now()), ..OpenOptions::default() })
}

/// Opens a pool that must not be mounted.
pub fn open_unmounted(pool: &Path) -> Result<Pool, Failure> {
    match open(pool) {
        Err(Error::Busy { pid, mountpoint, .. }) => Err(to_be_unmounted(pool, pid, mountpoint)),
        opened => Ok(opened?),
    }
}

/// Does something to a pool that is not mounted, and closes it in any case.
pub fn with_unmounted<T>(path: &Path, work: impl FnOnce(&Pool) -> Result<T, Failure>) -> Result<T, Failure> {
    let pool = open_unmounted(&paths::real(path)?)?;
    let done = work(&pool);
    let closed = pool.close();
    let done = done?;
    closed?;
    Ok(done)
}

/// For `mount --create`: a pool that is there is left alone.
pub fn create_if_missing(pool: &Path, options: &MountOptions) -> Result<(), Failure> {
    let missing = match tensorfs_layout::pool::is_unfinished(pool) {
        Ok(unfinished) => unfinished,
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        // not a directory, no permission: opening it will say so
        Err(_) => false,
    };
    if missing {
        create(pool, options.size, options.layout.clone(), false)?;
        tell_of_host(pool);
        log::info!("{}: created", pool.display());
    }
    Ok(())
}

/// Says if a size is wanted that the pool does not have: a mount gives it one only where it creates it.
pub fn tell_of_size(pool: &Path, wanted: u64) {
    // Whatever is wrong with it, opening it will say.
    let Ok(there) = tensorfs_layout::check::limit_of(pool) else { return };
    if there != Some(wanted) {
        let limit = there.map_or("no limit".to_owned(), |limit| format!("a limit of {}", size::humane(limit)));
        output::complain(format!(
            "{}: it has {limit}, and size={wanted} does not change that; tensorfs resize does",
            pool.display()
        ));
    }
}

/// Says if a pool that is not mounted has a limit that is more than there is room for at all.
pub fn tell_of_host(pool: &Path) {
    // Whatever is wrong with it, opening it will say.
    let Ok(found) = tensorfs_layout::check::inspect(pool) else { return };
    if let Some(limit) = found.usage.limit {
        tell_if_larger(pool, limit, found.space.total);
    }
}

/// As [`tell_of_host`], of a limit and what the filesystems have that the pool is on.
pub fn tell_if_larger(pool: &Path, limit: u64, there: u64) {
    if there > 0 && limit > there {
        let what = format!("{} of a limit of {}", size::humane(there), size::humane(limit));
        output::complain(format!("{}: the filesystem it is on has only {what}", pool.display()));
    }
}

/// Creates a pool, and the directories above it. With `force`, one that is there is destroyed.
pub fn create(pool: &Path, limit: Option<u64>, layout: Option<String>, force: bool) -> Result<(), Failure> {
    if let Some(parent) = pool.parent() {
        fs::create_dir_all(parent).at(parent)?;
    }
    let default = CreateOptions::default();
    let mut options = CreateOptions {
        layout: layout.unwrap_or(default.layout),
        limit,
        force: false,
        owner: (geteuid().as_raw(), getegid().as_raw()),
        root_mode: ROOT_MODE,
        now: Timestamp::from(SystemTime::now()),
        ..default
    };
    match Pool::create(pool, &options) {
        Err(Error::Exists { .. }) => {}
        result => return Ok(result?),
    }
    let what = what_is_there(pool)?;
    if !force {
        return Err(Failure::at(pool, format!("there is a pool already, {what}; --force destroys it")));
    }
    output::complain(format!("{}: destroying the pool {what}", pool.display()));
    options.force = true;
    Ok(Pool::create(pool, &options)?)
}

/// A pool in words. One that is in use is an error.
fn what_is_there(pool: &Path) -> Result<String, Failure> {
    match tensorfs_layout::check::inspect(pool) {
        Ok(found) => {
            let bytes = size::humane(found.usage.segment_bytes + found.usage.log_bytes);
            let (layout, files) = (found.superblock.layout, found.usage.files);
            Ok(format!("with layout \"{layout}\", {files} files, {bytes}"))
        }
        Err(error @ Error::Busy { .. }) => Err(explained(error)),
        Err(error) => Ok(format!("that cannot be read ({error})")),
    }
}

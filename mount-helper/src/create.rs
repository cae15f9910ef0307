//! `tensorfs create`, and `mount --create`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use nix::unistd::{getegid, geteuid};
use tensorfs_layout::{CreateOptions, Error, Pool, Timestamp};

use crate::failure::{At, Failure};
use crate::options::MountOptions;
use crate::{cli, output, paths, size};

/// Mode of a new pool's root directory.
const ROOT_MODE: u32 = 0o755;

/// The command.
pub fn run(arguments: &cli::Create) -> Result<(), Failure> {
    let pool = paths::future(&arguments.pool)?;
    create(&pool, arguments.size, arguments.layout.clone(), arguments.force)?;
    let limit = match arguments.size {
        Some(bytes) => format!("limit {}", size::humane(bytes)),
        None => "no size limit".to_owned(),
    };
    let inspection = tensorfs_layout::inspect(&pool)?;
    output::print(&format!(
        "created {}: layout \"{}\", {limit}, domain {}\n",
        pool.display(),
        inspection.superblock.layout,
        inspection.domain,
    ))
}

/// For `mount --create`: a pool that is there is left alone.
pub fn if_missing(pool: &Path, options: &MountOptions) -> Result<(), Failure> {
    let missing = match tensorfs_layout::is_unfinished(pool) {
        Ok(unfinished) => unfinished,
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        // not a directory, no permission: opening it will say so
        Err(_) => false,
    };
    if missing {
        create(pool, options.size, options.layout.clone(), false)?;
        log::info!("{}: created", pool.display());
    }
    Ok(())
}

fn create(pool: &Path, limit: Option<u64>, layout: Option<String>, force: bool) -> Result<(), Failure> {
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
    match tensorfs_layout::inspect(pool) {
        Ok(found) => {
            let bytes = size::humane(found.usage.segment_bytes + found.usage.log_bytes);
            let (layout, files) = (found.superblock.layout, found.usage.files);
            Ok(format!("with layout \"{layout}\", {files} files, {bytes}"))
        }
        Err(error @ Error::Busy { .. }) => Err(error.into()),
        Err(error) => Ok(format!("that cannot be read ({error})")),
    }
}

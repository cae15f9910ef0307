//! `tensorfs resize`: another size limit for a pool, mounted or not.

use std::path::Path;
use std::time::SystemTime;

use tensorfs_fs::{Reply, Request};
use tensorfs_layout::{Error, OpenOptions, Pool, Timestamp};

use crate::cli::Resize;
use crate::failure::Failure;
use crate::target::Target;
use crate::{job, output, size};

/// Runs the command.
pub fn run(arguments: &Resize) -> Result<(), Failure> {
    let limit = arguments.size.0;
    let target = Target::of(&arguments.target)?;
    let name = target.pool().display().to_string();
    match target {
        Target::Mount(mount) => on_mount(&mount.mount_point, limit)?,
        Target::Pool(pool) => match open(&pool) {
            Err(Error::Busy { .. }) => on_mount(&Target::Pool(pool).mount()?.mount_point, limit)?,
            Err(error) => return Err(error.into()),
            Ok(pool) => {
                pool.resize(limit, 0, 0)?;
                pool.close()?;
            }
        },
    }
    let now = limit.map_or("no size limit".to_owned(), |limit| format!("limit {}", size::humane(limit)));
    output::print(&format!("{name}: {now}\n"))
}

fn open(pool: &Path) -> Result<Pool, Error> {
    Pool::open(pool, &OpenOptions { now: Timestamp::from(SystemTime::now()), ..OpenOptions::default() })
}

fn on_mount(mount_point: &Path, limit: Option<u64>) -> Result<(), Failure> {
    match job::request(mount_point, &Request::Resize(limit))? {
        Reply::Resized(Ok(())) => Ok(()),
        Reply::Resized(Err(why)) => Err(Failure::new(why)),
        _ => Err(Failure::at(mount_point, "its server answers something else than it was asked")),
    }
}

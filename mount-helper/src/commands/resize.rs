//! `tensorfs resize`: another size limit for a pool, mounted or not.

use std::path::Path;

use tensorfs_fs::{Info, Reply, Request};
use tensorfs_layout::Error;

use crate::ask::{about, question};
use crate::cli::Resize;
use crate::mounting::pool;
use crate::mounting::target::Target;
use crate::show::failure::Failure;
use crate::show::{output, size};

/// Runs the command.
pub fn run(arguments: &Resize) -> Result<(), Failure> {
    let limit = arguments.size.bytes();
    let target = Target::of(&arguments.target)?;
    let name = target.pool().display().to_string();
    match target {
        Target::Mount(mount) => on_mount(mount.mount_point(), limit)?,
        Target::Pool(pool) => match pool::open(&pool) {
            Err(Error::Busy { .. }) => on_mount(Target::Pool(pool).mount()?.mount_point(), limit)?,
            Err(error) => return Err(error.into()),
            Ok(pool) => {
                pool.resize(limit, 0, 0)?;
                pool.close()?;
            }
        },
    }
    if let Some(limit) = limit {
        tell_of_host(&arguments.target, Path::new(&name), limit);
    }
    let now = limit.map_or("no size limit".to_owned(), |limit| format!("limit {}", size::humane(limit)));
    output::print(&format!("{name}: {now}\n"))
}

/// The limit is set: whatever is wrong with asking for more, somebody else will say.
fn tell_of_host(target: &Path, pool: &Path, limit: u64) {
    let info = about::json(target).ok().and_then(|about| serde_json::from_str::<Info>(&about.json).ok());
    if let Some(info) = info {
        pool::tell_if_larger(pool, limit, info.capacity);
    }
}

fn on_mount(mount_point: &Path, limit: Option<u64>) -> Result<(), Failure> {
    match question::request(mount_point, &Request::Resize(limit))? {
        Reply::Resized(Ok(())) => Ok(()),
        Reply::Resized(Err(why)) => Err(Failure::new(why)),
        _ => Err(Failure::at(mount_point, "its server answers something else than it was asked")),
    }
}

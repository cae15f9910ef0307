//! What a path on the command line stands for: a mount point or a pool.

use std::path::{Path, PathBuf};

use tensorfs_layout::Error;

use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::paths;
use crate::show::failure::Failure;

/// A pool, seen from one of its ends.
#[derive(Debug)]
pub enum Target {
    Mount(Mount),
    /// A directory that is not a mount point of ours; whether it is a pool is for the pool's code to say.
    Pool(PathBuf),
}

impl Target {
    /// What is at `path`. An error: it lies inside a mount of ours, and is not its root.
    pub fn of(path: &Path) -> Result<Target, Failure> {
        let path = paths::real(path)?;
        let table = Table::here()?;
        if let Some(mount) = table.top_at(&path).filter(|mount| mount.is_tensorfs()) {
            return Ok(Target::Mount(mount.clone()));
        }
        match table.around(&path).filter(|mount| mount.is_tensorfs()) {
            Some(mount) => {
                Err(Failure::at(&path, format!("inside a mount, not its root; say {}", mount.mount_point().display())))
            }
            None => Ok(Target::Pool(path)),
        }
    }

    /// The pool; for a mount, the one that is mounted.
    pub fn pool(&self) -> &Path {
        match self {
            Target::Mount(mount) => mount.source(),
            Target::Pool(pool) => pool,
        }
    }

    /// The mount; for a pool, where it is mounted.
    pub fn mount(self) -> Result<Mount, Failure> {
        let pool = match self {
            Target::Mount(mount) => return Ok(mount),
            Target::Pool(pool) => pool,
        };
        let table = Table::here()?;
        // A dead mount of an earlier server may be left somewhere else.
        let alive = table.of_pool(&pool).find(|mount| !mount.is_dead());
        match alive.or_else(|| table.of_pool(&pool).next()) {
            Some(mount) => Ok(mount.clone()),
            None => Err(not_mounted(&pool)),
        }
    }
}

fn not_mounted(path: &Path) -> Failure {
    match tensorfs_layout::check::inspect(path) {
        Ok(_) => Failure::at(path, "not mounted; mount it with: tensorfs mount POOL MOUNTPOINT"),
        Err(Error::Busy { pid, .. }) => out_of_sight(path, pid),
        Err(_) => Failure::at(path, "no tensorfs is mounted here"),
    }
}

/// A pool whose server mounted it in another mount namespace, or nowhere.
pub fn out_of_sight(pool: &Path, pid: u32) -> Failure {
    Failure::at(pool, format!("in use by process {pid}, but not mounted where this process can see it"))
}

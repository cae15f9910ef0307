//! What a path on the command line stands for: a mount point or a pool.

use std::path::{Path, PathBuf};

use tensorfs_layout::Error;

use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::{paths, sight};
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
        match table.around(&path).filter(|mount| mount.is_tensorfs()) {
            Some(mount) if mount.mount_point() == path => Ok(Target::Mount(mount.clone())),
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
        match self {
            Target::Mount(mount) => Ok(mount),
            Target::Pool(pool) => sight::of_pool(&pool)?.map_or_else(|| Err(not_mounted(&pool)), Ok),
        }
    }

    /// As [`Target::mount`], but one that shows the pool's root.
    pub fn whole(self) -> Result<Mount, Failure> {
        self.mount().and_then(|mount| sight::whole(&mount))
    }
}

fn not_mounted(path: &Path) -> Failure {
    if let Err(failure) = sight::check_covered(path) {
        return failure;
    }
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

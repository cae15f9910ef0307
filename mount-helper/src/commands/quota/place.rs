//! A directory of a mount, with what its quota stands on.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use tensorfs_layout::segment::{TierInfo, TierState};

use crate::ask::about;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::paths;
use crate::show::failure::Failure;
use crate::show::output;
use crate::show::progress::Bar;
use crate::show::text;

use super::hosts::Hosts;
use super::walk::Found;

pub struct Place {
    pub directory: Found,
    /// Where the mount is.
    pub root: PathBuf,
    pub hosts: Hosts,
}

impl Place {
    /// The directory at a path, for root alone.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        let path = paths::real(path)?;
        let table = Table::here()?;
        let Some(mount) = table.around(&path).filter(|mount| mount.is_tensorfs()) else {
            return Err(Failure::at(&path, "not a directory of a tensorfs mount"));
        };
        if !geteuid().is_root() {
            return Err(Failure::at(&path, "quotas are for root to see and to set"));
        }
        if mount.is_foreign() {
            return Err(Failure::at(&path, "another user's mount; its server is not root's to trust"));
        }
        let directory = Found::at(&path)?.filter(Found::is_dir);
        let directory = directory.ok_or_else(|| Failure::at(&path, "not a directory"))?;
        let hosts = Hosts::of(tiers(mount)?.iter().filter(|tier| tier.state == TierState::Ready).map(directory_of))?;
        Ok(Self { directory, root: mount.mount_point().to_owned(), hosts })
    }

    /// The project that what is around the directory counts for; 0 for none.
    pub fn around(&self) -> Result<u32, Failure> {
        let path = self.directory.path();
        match path.parent().filter(|_| path != self.root) {
            Some(above) => Found::at(above)?.map_or(Ok(0), |above| above.project()),
            None => Ok(0),
        }
    }

    /// Has what is below the directory, and counts for one of the given projects, count for another one.
    pub fn give_below(&self, from: &[u32], to: u32) -> Result<(), Failure> {
        let (bar, mut given, mut failed) = (Bar::new(false), 0_u64, 0_u64);
        let mut give = |found: &Found| {
            let counts_for = found.project()?;
            if counts_for != to && !from.contains(&counts_for) {
                // It has a quota of its own.
                return Ok(false);
            }
            if counts_for != to {
                found.set_project(to)?;
            }
            given += 1;
            bar.count("counted", given);
            Ok(true)
        };
        let mut trouble = |failure| {
            failed += 1;
            bar.aside(|| output::complain(failure));
        };
        self.directory.below(&self.root, &mut give, &mut trouble);
        bar.clear();
        match failed {
            0 => Ok(()),
            _ => {
                let what = text::count(failed, "thing in it is not counted", "things in it are not counted");
                Err(Failure::at(self.directory.path(), format!("{what} as it should be; try again")))
            }
        }
    }
}

fn directory_of(tier: &TierInfo) -> &Path {
    tier.directory.as_ref()
}

fn tiers(mount: &Mount) -> Result<Vec<TierInfo>, Failure> {
    let unknown =
        |error| Failure::at(mount.mount_point(), format!("its server speaks of something unknown here ({error})"));
    let info: serde_json::Value = serde_json::from_str(&about::of_live(mount)?).map_err(unknown)?;
    serde_json::from_value(info.get("tiers").cloned().unwrap_or_default()).map_err(unknown)
}

//! Other filesystems than tensorfs, mounted for the time of a test.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, umount2};

use crate::children::run;

/// A filesystem that is mounted until this is dropped. Whoever still has it open then goes on with it unseen; a loop
/// device below it goes with the last of them.
#[derive(Debug)]
pub struct Mounted(PathBuf);

impl Mounted {
    /// Runs a `mount` that lacks only the place where, or says why it failed.
    pub fn new(mount: &mut Command, at: &Path) -> Result<Mounted, String> {
        let output = run(mount.arg(at));
        match output.status.success() {
            true => Ok(Mounted(at.to_owned())),
            false => Err(format!("cannot be mounted: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// What somebody else has mounted there.
    pub fn adopt(at: &Path) -> Mounted {
        Mounted(at.to_owned())
    }

    /// A filesystem in memory, of so many mebibytes at the most.
    pub fn tmpfs(at: &Path, mebibytes: Option<u64>) -> Result<Mounted, String> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs"]);
        if let Some(mebibytes) = mebibytes {
            mount.args(["-o", &format!("size={mebibytes}M")]);
        }
        Mounted::new(mount.arg("tmpfs"), at)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Not umount(8): it looks into /proc/self/mountinfo, which misses entries while other tests mount and unmount.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

//! Opening `/dev/fuse` and mounting.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::mount;
use nix::unistd::{getegid, geteuid};

use crate::mounting::mountinfo::{FS_TYPE, Mount, Table};
use crate::mounting::options::MountOptions;
use crate::mounting::{busy, elsewhere, fusermount, unmount};
use crate::show::failure::{Failure, reason};

const DEVICE: &str = "/dev/fuse";

/// A mount of ours.
///
/// It is known by its device number and its pool: whatever else is mounted at the same place is left alone. A device
/// number is given out again as soon as its mount is gone, so this holds while the pool is locked, and no other server
/// can mount it.
#[derive(Debug, Clone)]
pub struct Mounted {
    mountpoint: PathBuf,
    mount: Mount,
}

/// Mounts, and returns the descriptor that the filesystem serves.
pub fn mount_pool(pool: &Path, mountpoint: &Path, options: &MountOptions) -> Result<(OwnedFd, Mounted), Failure> {
    let fuse = match mount_directly(pool, mountpoint, options) {
        Err(Refused::Privilege) if !geteuid().is_root() => fusermount::mount(pool, mountpoint, options)?,
        Err(Refused::Privilege) => {
            return Err(Failure::at(
                mountpoint,
                "mounting is not permitted here (it needs CAP_SYS_ADMIN; in a container: --cap-add SYS_ADMIN \
                 --device /dev/fuse)",
            ));
        }
        Err(Refused::Failed(failure)) => return Err(failure),
        Ok(fuse) => fuse,
    };
    match Mounted::find(mountpoint) {
        Ok(mounted) => Ok((fuse, mounted)),
        Err(failure) => {
            let _ = unmount::unmount(mountpoint, true);
            Err(failure)
        }
    }
}

enum Refused {
    Privilege,
    Failed(Failure),
}

fn mount_directly(pool: &Path, mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, Refused> {
    let device = open_device()?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        geteuid(),
        getegid()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = Some(data.as_str());
    mount(Some(pool), mountpoint, Some(FS_TYPE), options.flags.for_mount(), data).map_err(|errno| match errno {
        Errno::EPERM | Errno::EACCES => Refused::Privilege,
        Errno::ENODEV => Refused::Failed(Failure::at(mountpoint, "this kernel has no FUSE")),
        errno => Refused::Failed(Failure::at(mountpoint, format!("mount: {}", errno.desc()))),
    })?;
    Ok(device.into())
}

fn open_device() -> Result<File, Refused> {
    OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => Refused::Privilege,
        ErrorKind::NotFound => Refused::Failed(Failure::at(
            Path::new(DEVICE),
            "not there; load the module (modprobe fuse), in a container: --device /dev/fuse",
        )),
        _ => Refused::Failed(Failure::at(Path::new(DEVICE), reason(&error))),
    })
}

/// How a mount of ours went away.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing is left of it.
    Unmounted,
    /// Out of sight, but files are open.
    Detached,
}

impl Mounted {
    /// Where it was mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Its device number, major and minor.
    pub fn device(&self) -> (u32, u32) {
        self.mount.device()
    }

    /// The mount that was just made at `mountpoint`.
    fn find(mountpoint: &Path) -> Result<Mounted, Failure> {
        let table = Table::here()?;
        let mount = table
            .top_at(mountpoint)
            .filter(|mount| mount.is_tensorfs())
            .ok_or_else(|| Failure::at(mountpoint, "the new mount is not in /proc/self/mountinfo"))?;
        Ok(Mounted { mountpoint: mountpoint.to_owned(), mount: mount.clone() })
    }

    fn is(&self, mount: &Mount) -> bool {
        mount.is_tensorfs() && mount.device() == self.mount.device() && mount.source() == self.mount.source()
    }

    /// Unmounts it wherever it is mounted (bind mounts too); lazily where files are open. The pool must be locked.
    pub fn unmount(&self) -> io::Result<Ending> {
        let table = Table::read()?;
        let mut ending = Ending::Unmounted;
        for mount in table.latest_first().filter(|mount| self.is(mount)) {
            let path = mount.mount_point();
            if !table.top_at(path).is_some_and(|top| self.is(top)) {
                let reason = format!("something else is mounted on top of {}", path.display());
                return Err(io::Error::other(reason));
            }
            match unmount::unmount(path, false) {
                Err(error) if unmount::is_busy(&error) => {
                    log::warn!("{}: {}", path.display(), busy::reason(path));
                    unmount::unmount(path, true)?;
                    ending = Ending::Detached;
                }
                result => result?,
            }
        }
        Ok(ending)
    }

    /// Who has it, once it is unmounted here; nothing if nobody is seen.
    pub fn held(&self) -> Option<String> {
        elsewhere::holders(&self.mount)
    }

    /// Detaches it after a start that failed, when neither the pool is locked any more nor the device open.
    pub fn clean_up(&self) -> io::Result<()> {
        let table = Table::read()?;
        match table.top_at(&self.mountpoint) {
            Some(mount) if self.is(mount) && mount.is_dead() => unmount::unmount(&self.mountpoint, true),
            _ => Ok(()),
        }
    }
}

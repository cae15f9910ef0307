//! Opening `/dev/fuse` and mounting.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::mount;
use nix::unistd::{getegid, geteuid};

use crate::mounting::mountinfo::{FS_TYPE, Mount, Table};
use crate::mounting::options::MountOptions;
use crate::mounting::{busy, elsewhere, fusermount, given, unmount};
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
    /// Not known of some that others have made.
    mount: Option<Mount>,
    /// Whoever made it unmounts it.
    given: bool,
}

/// Takes over what somebody else has mounted, and returns the descriptor that the filesystem serves.
pub fn take_given(number: RawFd) -> Result<(OwnedFd, Mounted), Failure> {
    let fuse = given::take(number)?;
    let mounted = Mounted::given(&fuse, &PathBuf::from(format!("/dev/fd/{number}")));
    Ok((fuse, mounted))
}

/// Mounts, and returns the descriptor that the filesystem serves.
pub fn mount_pool(pool: &Path, mountpoint: &Path, options: &MountOptions) -> Result<(OwnedFd, Mounted), Failure> {
    let fuse = match mount_directly(pool, mountpoint, options) {
        Err(Refused::Privilege | Refused::Device) if !geteuid().is_root() => {
            fusermount::mount(pool, mountpoint, options)?
        }
        Err(Refused::Privilege) => {
            return Err(Failure::at(
                mountpoint,
                "mounting is not permitted here (it needs CAP_SYS_ADMIN; in a container: --cap-add SYS_ADMIN \
                 --device /dev/fuse)",
            ));
        }
        Err(Refused::Device) => {
            return Err(Failure::at(
                Path::new(DEVICE),
                "Permission denied (in a user namespace everybody has to be able to read and write it, chmod 666; in a \
                 container: --device /dev/fuse)",
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
    /// The device cannot be opened.
    Device,
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
        ErrorKind::PermissionDenied => Refused::Device,
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
    /// What somebody else has mounted, called so where it is not seen.
    fn given(fuse: &OwnedFd, called: &Path) -> Mounted {
        let mount = given::mount_of(fuse);
        let mountpoint = mount.as_ref().map_or(called, Mount::mount_point).to_owned();
        Mounted { mountpoint, mount, given: true }
    }

    /// The mount of a server that died, wherever it is to be seen. If nothing of it is, it was unmounted meanwhile.
    pub fn inherited(fuse: &OwnedFd, pool: &Path, mountpoint: &Path) -> Mounted {
        if given::number(mountpoint).is_some() {
            // By now the number may be anything's.
            return Self::given(fuse, mountpoint);
        }
        // Once it is gone, another pool's may have its number.
        let mount = given::mount_of(fuse).filter(|mount| mount.is_tensorfs() && mount.source() == pool).or_else(|| {
            // A kernel that does not tell which it is. The pool is locked: nobody else serves it.
            let table = Table::read().ok()?;
            let top = table.top_at(mountpoint).filter(|mount| mount.is_tensorfs() && mount.source() == pool);
            top.or_else(|| table.of_pool(pool).last()).cloned()
        });
        Mounted { mountpoint: mountpoint.to_owned(), mount, given: false }
    }

    /// Where it was mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Its device number, major and minor.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.mount.as_ref().map(Mount::device)
    }

    /// True if somebody else has made it.
    pub fn is_given(&self) -> bool {
        self.given
    }

    /// The mount whose pages the kernel would drop as the serving ends: one that somebody else has made, if it is seen.
    pub fn to_write_back(&self) -> Option<&Mount> {
        self.mount.as_ref().filter(|_| self.given)
    }

    /// Ends the serving of one that somebody else has made, if that can be done from here.
    pub fn abort(&self) -> Result<(), String> {
        self.mount.as_ref().ok_or_else(|| "it is not seen from here".to_owned()).and_then(given::abort)
    }

    /// The mount that was just made at `mountpoint`.
    fn find(mountpoint: &Path) -> Result<Mounted, Failure> {
        let table = Table::here()?;
        let mount = table
            .top_at(mountpoint)
            .filter(|mount| mount.is_tensorfs())
            .ok_or_else(|| Failure::at(mountpoint, "the new mount is not in /proc/self/mountinfo"))?;
        Ok(Mounted { mountpoint: mountpoint.to_owned(), mount: Some(mount.clone()), given: false })
    }

    fn is(&self, mount: &Mount) -> bool {
        let same = |own: &Mount| mount.device() == own.device() && mount.source() == own.source();
        !self.given && mount.is_tensorfs() && self.mount.as_ref().is_some_and(same)
    }

    /// Unmounts it wherever it is mounted (bind mounts too), unless somebody else made it; lazily where files are open.
    /// The pool must be locked.
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

    /// As [`Mounted::unmount`], where nobody but the log can be told how it went.
    pub fn stop(&self) {
        let path = self.mountpoint().display();
        let ended = self.unmount();
        if let (Ok(_), Some(why)) = (&ended, self.held()) {
            log::warn!("{path}: serving on: {why}");
        }
        match ended {
            Ok(Ending::Unmounted) => {}
            Ok(Ending::Detached) => log::warn!("{path}: detached; serving until the last open file is closed"),
            Err(error) => self.cannot_unmount(&error),
        }
    }

    /// Tells the log.
    pub fn cannot_unmount(&self, error: &io::Error) {
        log::error!("{}: cannot unmount: {}", self.mountpoint.display(), reason(error));
    }

    /// Who has it, once it is unmounted here; nothing if nobody is seen.
    pub fn held(&self) -> Option<String> {
        elsewhere::holders(self.mount.as_ref()?)
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

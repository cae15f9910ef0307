//! `mount -o remount`: what can be changed of a pool while it is mounted, which is what the kernel alone decides.

use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use crate::failure::{At, Failure};
use crate::mount::Request;
use crate::options::MountOptions;
use crate::target::Target;
use crate::{output, paths};

/// Changes a mount between `ro` and `rw`, `exec` and `noexec`, `symfollow` and `nosymfollow`. Everything else stays as
/// it was mounted, and is named if it was given: mount(8) gives what is in /etc/fstab.
pub fn run(request: &Request) -> Result<(), Failure> {
    let mountpoint = paths::real(&request.mountpoint)?;
    let found = match Target::of(&mountpoint)? {
        Target::Mount(mount) => mount,
        Target::Pool(_) => return Err(Failure::at(&mountpoint, "no tensorfs is mounted here")),
    };
    if request.pool != found.source && paths::real(&request.pool)? != found.source {
        return Err(Failure::at(&mountpoint, format!("{} is mounted here", found.source.display())));
    }
    let stays = request.options.of_the_server();
    if !stays.is_empty() {
        output::complain(format!("{}: not changed by a remount: {}", mountpoint.display(), stays.join(", ")));
    }
    change(&mountpoint, &request.options)
}

fn change(mountpoint: &Path, options: &MountOptions) -> Result<(), Failure> {
    // The kernel leaves alone what a remount says nothing of: access times.
    let flags = options.flags().difference(MsFlags::MS_NOATIME | MsFlags::MS_NODIRATIME) | MsFlags::MS_REMOUNT;
    match mount(None::<&str>, mountpoint, None::<&str>, flags, None::<&str>) {
        Err(Errno::EBUSY) => Err(Failure::at(mountpoint, "files are open for writing")),
        Err(Errno::EPERM) => Err(Failure::at(mountpoint, "only root can change how it is mounted")),
        done => done.at(mountpoint),
    }
}

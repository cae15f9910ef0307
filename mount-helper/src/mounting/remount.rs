//! `mount -o remount`: what can be changed of a pool while it is mounted, which is what the kernel alone decides; and
//! if the server has a keeper, most of what a server is started with.

use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::mounting::keeper::exchange::{self, Watch};
use crate::mounting::mountinfo::Mount;
use crate::mounting::options::{Flags, MountOptions};
use crate::mounting::paths;
use crate::mounting::request::MountRequest;
use crate::mounting::target::Target;
use crate::show::failure::{At, Failure};
use crate::show::output;

/// Of the kernel's `include/linux/statfs.h`.
const ST_NOSYMFOLLOW: libc::c_ulong = 0x2000;

/// Changes a mount between `ro` and `rw`, `exec` and `noexec`, `symfollow` and `nosymfollow`, as `lists` say. If its
/// server has a keeper, another one serves it with what was asked for of the rest.
///
/// Everything else stays as it is: if something else of it was asked for, that is refused before anything is changed.
/// What it is already may be asked for, as mount(8) does, which asks for all that is in /etc/fstab.
pub fn run(request: &MountRequest, lists: &[String]) -> Result<(), Failure> {
    let mountpoint = paths::real(&request.mountpoint)?;
    let found = match Target::of(&mountpoint)? {
        Target::Mount(mount) => mount,
        Target::Pool(_) => return Err(Failure::at(&mountpoint, "no tensorfs is mounted here")),
    };
    if request.pool != found.source() && paths::real(&request.pool)? != found.source() {
        return Err(Failure::at(&mountpoint, format!("{} is mounted here", found.source().display())));
    }
    if found.is_dead() {
        return Err(Failure::at(&mountpoint, "its server is gone; mount it again"));
    }
    let now = running(&found)?;
    let mut asked = MountOptions::default();
    asked.flags.read_only = true;
    for list in lists {
        asked.apply(list, true).map_err(|reason| Failure::at(&mountpoint, reason))?;
    }
    if now.follow().is_some() && !asked.flags.read_only {
        return Err(Failure::at(&mountpoint, "it follows a remote, and cannot be written"));
    }
    let kept = match Watch::over(&found)? {
        Watch::By(keeper) => Some(keeper),
        _ => None,
    };
    let mut options = request.options.clone();
    options.make_absolute()?;
    let wanted = now.exchanged(&options);
    let mut stays = options.of_the_server(if kept.is_some() { &wanted } else { &now });
    stays.extend(MountOptions::taken_away(lists, &now).map_err(|reason| Failure::at(&mountpoint, reason))?);
    let (told, refused): (Vec<_>, Vec<_>) = stays.into_iter().partition(|name| is_only_told(name, &now));
    if !refused.is_empty() {
        return Err(Failure::at(&mountpoint, cannot(&refused)));
    }
    if !told.is_empty() {
        output::complain(format!("{}: not changed by a remount: {}", mountpoint.display(), told.join(", ")));
    }
    if let Some(keeper) = kept.filter(|_| wanted != now) {
        exchange::ask(keeper, None, Some(&wanted.to_list())).map_err(|why| Failure::at(&mountpoint, why))?;
    }
    let mut options = current(&mountpoint)?;
    for list in lists {
        options.apply(list, true).map_err(|reason| Failure::at(&mountpoint, reason))?;
    }
    change(&mountpoint, &options)
}

/// What is said of options that stay as they are.
fn cannot(stays: &[&str]) -> String {
    format!("a remount cannot change: {}; unmount it, and mount it again", stays.join(", "))
}

/// Whether an option stays as it is without a refusal: `size`, which is of new pools and changed by `tensorfs resize`,
/// and what a server was not told as it was started, so that nobody knows whether this is another value.
fn is_only_told(name: &str, running: &MountOptions) -> bool {
    match name {
        "size" => true,
        "durability" => running.server.durability.is_none(),
        "names" => running.server.names.is_none(),
        _ => false,
    }
}

/// The options that the server was started with, as far as they can be seen.
fn running(mount: &Mount) -> Result<MountOptions, Failure> {
    let server = exchange::server_of(mount).ok();
    let line = server.and_then(|server| std::fs::read(format!("/proc/{server}/cmdline")).ok()).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let mut options = MountOptions::of_command_line(&words.collect::<Vec<_>>());
    let found = statvfs(mount.mount_point()).at(mount.mount_point())?;
    options.flags.noatime = found.flags().contains(FsFlags::ST_NOATIME);
    options.flags.nodiratime = found.flags().contains(FsFlags::ST_NODIRATIME);
    options.size = tensorfs_layout::check::limit_of(mount.source()).ok().flatten();
    Ok(options)
}

/// What can be changed, as it is.
fn current(mountpoint: &Path) -> Result<MountOptions, Failure> {
    let flags = statvfs(mountpoint).at(mountpoint)?.flags();
    let flags = Flags {
        read_only: flags.contains(FsFlags::ST_RDONLY),
        noexec: flags.contains(FsFlags::ST_NOEXEC),
        nosymfollow: flags.bits() & ST_NOSYMFOLLOW != 0,
        ..Flags::default()
    };
    let mut options = MountOptions::default();
    options.flags = flags;
    Ok(options)
}

fn change(mountpoint: &Path, options: &MountOptions) -> Result<(), Failure> {
    // The kernel leaves alone what a remount says nothing of: access times.
    let flags =
        options.flags.for_mount().difference(MsFlags::MS_NOATIME | MsFlags::MS_NODIRATIME) | MsFlags::MS_REMOUNT;
    match mount(None::<&str>, mountpoint, None::<&str>, flags, None::<&str>) {
        Err(Errno::EBUSY) => Err(Failure::at(mountpoint, "files are open for writing, or removed and in use")),
        Err(Errno::EPERM) => Err(Failure::at(mountpoint, "only root can change how it is mounted")),
        done => done.at(mountpoint),
    }
}

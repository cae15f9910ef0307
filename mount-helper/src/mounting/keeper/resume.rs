//! A keeper that goes on where one before has ended, and its server with it: what it needs, the service manager has
//! kept. None of it is believed: what is not the device, the lock and the memory of the mount that was asked for, or
//! not to be mounted as that is, is let go of, and the pool mounted anew.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tensorfs_layout::pool::{could_inherit, holder, lock_of};

use crate::mounting::busy::has_locked;
use crate::mounting::keeper::adoption::{is_file, is_memory};
use crate::mounting::keeper::alone::{Alone, Serving};
use crate::mounting::keeper::stored::{self, Name, Stored};
use crate::mounting::kept::{WOULD_SERVE, own};
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::paths::{self, Leads};
use crate::mounting::process::{Process, is_ending};
use crate::mounting::request::{MountRequest, PROGRAM};
use crate::mounting::{given, notify};
use crate::show::failure::{Failure, reason};

/// So long a server may take to end whose keeper has ended.
const TO_END: Duration = Duration::from_secs(10);

/// What a keeper goes on with.
pub struct Resumed {
    pub handover: OwnedFd,
    pub fuse: OwnedFd,
    pub lock: OwnedFd,
    /// No other keeper is one of this mount.
    pub alone: Alone,
    /// What it is called by who keeps it.
    pub name: Name,
}

/// Why it is not gone on with.
enum Refused {
    /// It is mounted anew.
    Anew(String),
    /// Nor may it be.
    Not(Failure),
}

fn anew(why: impl Into<String>) -> Refused {
    Refused::Anew(why.into())
}

/// What a mount needs that is there, of what the manager has kept; and how that is to be served. Of the mount itself
/// nothing is asked: nobody would answer. What is of no use the manager keeps no longer when this returns.
pub fn take(request: &MountRequest, stored: &Stored) -> Result<Option<(MountRequest, Resumed)>, Failure> {
    let mut sets = Vec::new();
    for (name, numbers) in stored.sets() {
        let open: Result<Vec<OwnedFd>, Failure> = numbers.into_iter().map(own).collect();
        sets.push((name, open.unwrap_or_default()));
    }
    let (mut found, mut refused) = (None, Vec::new());
    for (name, set) in sets {
        match fits(request, &name, set) {
            Ok(_) if found.is_some() => refused.push((name, "there are two of it".to_owned())),
            Ok(fitting) => found = Some(fitting),
            Err(Refused::Not(failure)) => return Err(failure),
            Err(Refused::Anew(why)) => refused.push((name, why)),
        }
    }
    for (name, why) in &refused {
        let at = request.mountpoint().display();
        log::warn!("{at}: what the service manager has kept ({}) is of no use: {why}", name.escape_default());
        stored::forget(name);
    }
    if !refused.is_empty() {
        // Until then nobody answers at a mount that it was of.
        notify::settle();
    }
    Ok(found)
}

fn fits(request: &MountRequest, name: &str, set: Vec<OwnedFd>) -> Result<(MountRequest, Resumed), Refused> {
    let name: Name = name.parse().map_err(|()| anew("it is called otherwise than what a keeper has it keep"))?;
    if !request.is_to_be_kept() {
        return Err(anew("this mount is to be without a keeper"));
    }
    let pool = paths::real(request.pool()).map_err(|why| anew(why.to_string()))?;
    let number = lock_of(&pool).ok_or_else(|| anew(format!("{} is no pool", pool.display())))?;
    let of_kind = |is_it: &dyn Fn(&OwnedFd) -> bool| set.iter().filter(|one| is_it(one)).count();
    let is_lock = |one: &OwnedFd| is_file(one, number);
    if (set.len(), of_kind(&given::is_fuse), of_kind(&is_memory), of_kind(&is_lock)) != (3, 1, 1, 1) {
        return Err(anew("it is not a device, a memory and the lock of this pool"));
    }
    let (mut handover, mut fuse, mut lock) = (None, None, None);
    for one in set {
        let place = match () {
            () if given::is_fuse(&one) => &mut fuse,
            () if is_memory(&one) => &mut handover,
            () => &mut lock,
        };
        *place = Some(one);
    }
    let (Some(handover), Some(fuse), Some(lock)) = (handover, fuse, lock) else { return Err(anew("it is not whole")) };
    let mount = find(request.mountpoint(), &pool, &name, &fuse)?;
    if let Some(option) = request.options().of_the_kernel(&mount) {
        return Err(anew(format!("it is not mounted as it is to be ({option})")));
    }
    let not = |error: io::Error| {
        Refused::Not(Failure::at(mount.mount_point(), format!("another keeper has it: {}", reason(&error))))
    };
    // The lock keeps none of those from it who have inherited it, and between two servers a keeper has none that runs.
    let alone = Alone::take(&handover).map_err(not)?;
    server_is_gone(&pool, &mount)?;
    // Of the lock's words the pool's owner could make any; and a server that has just begun has said none.
    Serving::take(&handover, TO_END).map_err(|error| {
        Refused::Not(Failure::at(mount.mount_point(), format!("cannot be gone on with: {}", reason(&error))))
    })?;
    could_inherit(&pool, &lock).map_err(|error| anew(reason(&error)))?;
    let request = request.clone().of_mount(&mount).map_err(Refused::Not)?;
    could_serve(&request, &handover).map_err(anew)?;
    Ok((request, Resumed { handover, fuse, lock, alone, name }))
}

/// The mount that is to be served, if this device is its.
fn find(mountpoint: &Path, pool: &Path, name: &Name, fuse: &OwnedFd) -> Result<Mount, Refused> {
    let table = Table::here().map_err(Refused::Not)?;
    let is_here = |mount: &&Mount| {
        let at = mount.mount_point();
        table.top_at(at) == Some(*mount) && matches!(paths::leads_into(mountpoint, &[at]), Ok(Some((_, Leads::Root))))
    };
    let mount = table.latest_first().find(is_here).ok_or_else(|| anew("nothing is mounted there"))?;
    let is_own = mount.is_tensorfs() && !mount.is_foreign() && mount.source() == pool && mount.is_whole();
    if !is_own || mount.device() != (0, name.minor()) || !given::is_of(mount, fuse) {
        return Err(anew("it is of another mount than the one that is there"));
    }
    let mut polled = [PollFd::new(fuse.as_fd(), PollFlags::empty())];
    match poll(&mut polled, PollTimeout::ZERO) {
        Ok(0) => Ok(mount.clone()),
        _ => Err(anew("its mount is dead")),
    }
}

/// Two servers at a time would ruin the pool: both have its lock.
fn server_is_gone(pool: &Path, mount: &Mount) -> Result<(), Refused> {
    let Some(found) = holder(pool).map_err(|error| anew(error.to_string()))? else { return Ok(()) };
    if found.pid == 0 {
        return Err(anew("whether its server has ended cannot be told"));
    }
    let not = |why: String| Refused::Not(Failure::at(mount.mount_point(), why));
    let process = match Process::open(found.pid) {
        Ok(process) => process,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        Err(error) => return Err(not(format!("process {} may serve it still: {}", found.pid, reason(&error)))),
    };
    // The number of one that has ended may be another one's by now. Of one whose first thread alone has ended nobody
    // sees what it has.
    let serves = |pid| given::is_served_by(mount, pid).or_else(|| has_locked(pid, pool)).unwrap_or(true);
    let lives = is_ending(found.pid) || serves(found.pid);
    if lives && !process.wait(TO_END).unwrap_or(false) {
        let why = "serves it still, without a keeper; tensorfs upgrade has another one watch over it";
        return Err(not(format!("process {} {why}", found.pid)));
    }
    Ok(())
}

/// Whether this program could go on with what is left, which another process reads.
fn could_serve(request: &MountRequest, handover: &OwnedFd) -> Result<(), String> {
    let ask = || -> io::Result<String> {
        let mut arguments = request.server_arguments();
        arguments.insert(1, "--would-serve".into());
        let left = File::open(format!("/proc/self/fd/{}", handover.as_raw_fd()))?;
        let mut command = Command::new("/proc/self/exe");
        let asked = command.arg0(PROGRAM).args(arguments).stdin(left).stderr(Stdio::piped()).output()?;
        let said = if asked.status.success() { asked.stdout } else { asked.stderr };
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    match ask() {
        Ok(text) if text == WOULD_SERVE => Ok(()),
        Ok(text) => Err(text.lines().next().unwrap_or("this program does not say that it could serve").to_owned()),
        Err(error) => Err(reason(&error)),
    }
}

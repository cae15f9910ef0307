//! A `/dev/fuse` that somebody else has opened and mounted, handed over as the mount point `/dev/fd/N`: the server
//! needs no privilege. Drivers of Kubernetes (CSI) do this, and mount.fuse3(8) with `drop_privileges`; libfuse takes
//! such a mount point, too.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::stat::{FileStat, SFlag, fstat, major, minor};
use nix::unistd::syncfs;

use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::serving::{self, connection_in};
use crate::mounting::{apart, foreign, inherited, paths};
use crate::show::failure::{Failure, reason};

/// The number of `/dev/fuse`, major and minor (`Documentation/admin-guide/devices.txt` of the kernel).
const DEVICE: (u64, u64) = (10, 229);

/// What whoever mounts has to mount with: neither set-user-ID bits nor devices of a pool count.
const REQUIRED: [&str; 2] = ["nosuid", "nodev"];

/// So long the kernel is waited for as it writes what was not synced.
pub const WRITE_BACK: Duration = Duration::from_secs(10);
/// No more is to be expected when nothing was written for so long: one write of the host may take its time.
const QUIET: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// The descriptor that a mount point stands for: of `/dev/fd/N` that is N.
pub fn number(mountpoint: &Path) -> Option<RawFd> {
    mountpoint.to_str()?.strip_prefix("/dev/fd/")?.parse().ok()
}

/// That the descriptor is one of `/dev/fuse`.
pub fn check(number: RawFd) -> Result<(), Failure> {
    let fail = |why: &str| Failure::new(format!("/dev/fd/{number}: {why}"));
    if number <= 2 {
        return Err(fail("the standard descriptors are in use; hand over another one"));
    }
    // SAFETY: only looked at. If it is not open, the calls say so.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let found = fstat(descriptor).map_err(|_| fail("not open here; the descriptor has to be inherited"))?;
    if !is_device(&found) {
        return Err(fail("not a descriptor of /dev/fuse"));
    }
    Ok(())
}

/// Takes the descriptor over. Programs that this one starts do not get it.
pub fn take(number: RawFd) -> Result<OwnedFd, Failure> {
    check(number)?;
    // SAFETY: it is open, whoever started this program has handed it over, and nothing here has it.
    let device = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&device, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
        .map_err(|errno| Failure::new(format!("/dev/fd/{number}: {}", errno.desc())))?;
    Ok(device)
}

/// The mount that is served through a descriptor, as far as this kernel tells and this process sees it.
pub fn mount_of(device: impl AsFd) -> Option<Mount> {
    mounts_of(device).into_iter().next()
}

/// All mounts of what is served through a descriptor, the last one that was made first.
fn mounts_of(device: impl AsFd) -> Vec<Mount> {
    let (minor, table) = (connection(&device), Table::read().unwrap_or_default());
    table.latest_first().filter(|mount| Some(mount.device()) == minor.map(|minor| (0, minor))).cloned().collect()
}

/// That a pool can be served through a descriptor, as far as it can be told from where that is mounted. Nothing that
/// waits for the mount to be served is asked of the pool's path. Returns where it is mounted.
pub fn check_mounts(number: RawFd, pool: &Path) -> Result<Vec<PathBuf>, Failure> {
    check(number)?;
    // SAFETY: it is open, and whoever has handed it over leaves it so.
    let mounts = mounts_of(unsafe { BorrowedFd::borrow_raw(number) });
    for mount in &mounts {
        let at = mount.mount_point();
        if let Some(missing) = REQUIRED.into_iter().find(|option| !mount.has(option)) {
            let why = format!("mounted without {missing}; unmount it, and mount it with nosuid,nodev");
            return Err(Failure::at(at, why));
        }
    }
    // Neither these nor mounts of other users are asked on the way to the pool.
    let foreign = foreign::table()?;
    let places: Vec<&Path> = mounts.iter().chain(&foreign).map(Mount::mount_point).collect();
    match paths::leads_into(pool, &places)? {
        Some((at, _)) if mounts.iter().any(|mount| mount.mount_point() == at) => Err(Failure::at(at, paths::INSIDE)),
        Some(_) => foreign::check_in(&foreign, pool),
        None => Ok(()),
    }?;
    Ok(mounts.iter().map(|mount| mount.mount_point().into()).collect())
}

/// Has the kernel write what programs have stored through mappings, and nobody has synced: it drops that when the
/// connection ends. Takes a limited time: it waits for programs, and for whoever serves them. So does whoever asks, and
/// for as long as they like: a process that has nothing of what the mount is served by.
pub fn write_back(mount: &Mount) -> Result<(), String> {
    let number = format!("--write-back={}", mount.device().1);
    let asked = [OsStr::new("sync"), OsStr::new(&number), OsStr::new("--"), mount.mount_point().as_os_str()];
    apart::ask::<Result<(), String>>(&asked, WRITE_BACK)?
}

/// What the process does that [`write_back`] starts, of the mount with this number. Nothing that was handed on to it
/// stays open, which would have the mount served for as long as it waits.
pub fn write_back_here(at: &Path, number: u32) -> Result<Result<(), String>, Failure> {
    inherited::close_all_but([])?;
    Ok(flush(at, number).map_err(|error| reason(&error)))
}

/// Waits until nothing waits for the server any more, which the kernel counts. False if that cannot be read here; and
/// if something still waits when nothing was to be expected any more, as whoever waits for a lock does.
pub fn has_settled(mount: &Mount, until: Instant) -> bool {
    let until = until.min(Instant::now() + QUIET);
    loop {
        match waiting(mount) {
            Ok(0) => return true,
            Ok(_) if Instant::now() < until => thread::sleep(LOOK),
            _ => return false,
        }
    }
}

/// Waits for the server, who has `written` so many bytes, to write what [`write_back`] has asked for.
pub fn settle(mount: &Mount, until: Instant, written: impl Fn() -> u64) {
    let (mut before, mut since) = (written(), Instant::now());
    while Instant::now() < until && since.elapsed() < QUIET && waiting(mount).ok() != Some(0) {
        thread::sleep(LOOK);
        let now = written();
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
}

/// How many requests of a mount wait for an answer.
fn waiting(mount: &Mount) -> io::Result<u64> {
    let count = std::fs::read_to_string(format!("/sys/fs/fuse/connections/{}/waiting", mount.device().1))?;
    count.trim().parse().map_err(io::Error::other)
}

fn flush(at: &Path, number: u32) -> io::Result<()> {
    let root = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(at)?;
    let device = fstat(&root)?.st_dev;
    if (major(device), minor(device)) != (0, number.into()) {
        return Err(io::Error::other("something else is mounted on top of it"));
    }
    Ok(syncfs(&root)?)
}

/// The number of the connection (Linux 6.18 and newer): that of its filesystem's device.
fn connection(device: &impl AsFd) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_fd().as_raw_fd())).ok()?;
    connection_in(&text)
}

/// Whether a process serves a mount, by the connections that it has. None if the kernel tells of none.
pub fn is_served_by(mount: &Mount, pid: u32) -> Option<bool> {
    serving::is_by(pid, mount.device().1)
}

/// Whether a descriptor is one of `/dev/fuse`, and of the connection of a mount as far as the kernel tells.
pub fn is_of(mount: &Mount, device: &OwnedFd) -> bool {
    let Ok(found) = fstat(device) else { return false };
    is_device(&found) && connection(device).is_none_or(|number| number == mount.device().1)
}

/// Whether a descriptor is one of `/dev/fuse`.
pub fn is_fuse(device: &OwnedFd) -> bool {
    fstat(device).is_ok_and(|found| is_device(&found))
}

fn is_device(found: &FileStat) -> bool {
    let is_character = SFlag::from_bits_truncate(found.st_mode & libc::S_IFMT) == SFlag::S_IFCHR;
    is_character && (major(found.st_rdev), minor(found.st_rdev)) == DEVICE
}

/// Ends the connection of a mount: it is dead then, until whoever made it unmounts it.
pub fn abort(mount: &Mount) -> Result<(), String> {
    let path = format!("/sys/fs/fuse/connections/{}/abort", mount.device().1);
    std::fs::write(&path, "1").map_err(|error: io::Error| format!("{path}: {}", reason(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_may_be_a_descriptor() {
        assert_eq!(number(Path::new("/dev/fd/7")), Some(7));
        for other in ["/dev/fd/", "/dev/fd/7/x", "/dev/fd/x", "/dev/fd", "dev/fd/7", "/mnt/tensors"] {
            assert_eq!(number(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn what_is_not_dev_fuse_is_refused() {
        let said = |number| check(number).unwrap_err().to_string();
        assert!(said(1).contains("standard"), "{}", said(1));
        assert!(said(9999).contains("not open here"), "{}", said(9999));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(said(null.as_raw_fd()).contains("not a descriptor of /dev/fuse"));
    }
}

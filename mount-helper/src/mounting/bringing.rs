//! Files whose bytes are in a remote yet: the pool is made with their names, and a process beside the server fetches
//! them, started by whoever mounts and with his rights.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::setsid;
use tensorfs_layout::pool::has_remote;

use crate::mounting::given;
use crate::mounting::request::MountRequest;
use crate::show::failure::Failure;
use crate::show::output;

/// Makes a pool with the tree of a remote. `carrier` is the program that knows remotes, with what it is told of this
/// one.
pub fn make_tree(mut carrier: Command, pool: &Path, cannot: impl Fn(&io::Error) -> Failure) -> Result<(), Failure> {
    let made = carrier.stdin(Stdio::null()).stdout(Stdio::null()).status().map_err(|error| cannot(&error))?;
    if made.success() {
        return Ok(());
    }
    match has_remote(pool) {
        // Not all of it has come, and that was said.
        Ok(true) => Ok(()),
        _ => Err(Failure::at(pool, "its tree could not be made; nothing is mounted")),
    }
}

/// Starts what fetches the files of a pool, if some are away. It ends by itself when all are here, or the mount is
/// gone, and waits for a mount for as long as this process lives, which may have to recover the pool first.
pub fn start(
    request: &MountRequest,
    mut carrier: Command,
    cannot: impl Fn(&io::Error) -> Failure,
) -> Result<(), Failure> {
    if !has_remote(request.pool()).unwrap_or(false) {
        return Ok(());
    }
    let (pool, at) = (request.pool().display(), request.mountpoint().display());
    if given::number(request.mountpoint()).is_some() {
        let how = format!("tensorfs-carrier bring {pool} MOUNTPOINT");
        output::complain(format!("{at}: nobody fetches files that are away; start, where it is mounted: {how}"));
        return Ok(());
    }
    let started = io::pipe().and_then(|(waits, here)| {
        carrier.arg("bring");
        if let Some(every) = request.options().follow() {
            carrier.arg(format!("--follow={}", every.as_secs_f64()));
        }
        carrier.arg("--").arg(request.pool()).arg(request.mountpoint());
        carrier.stdin(waits).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        // SAFETY: both call nothing but what may be called between fork and exec.
        unsafe { carrier.pre_exec(|| setsid().map(drop).map_err(io::Error::from).and_then(|()| leave_all())) };
        carrier.spawn()?;
        // Until this process ends.
        std::mem::forget(here);
        Ok(())
    });
    if let Err(error) = started {
        output::complain(format!("{at}: nobody fetches the files that are away: {}", cannot(&error)));
    }
    Ok(())
}

/// Nothing but the standard descriptors is handed on: who has `/dev/fuse` open keeps a mount alive whose server is
/// gone.
fn leave_all() -> io::Result<()> {
    // SAFETY: the call takes integers. What is open stays so until a program is executed.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) } == 0 {
        return Ok(());
    }
    // A kernel before Linux 5.11, or a container that refuses what it does not know.
    // SAFETY: takes an integer.
    let most = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    for number in 3..i32::try_from(most).unwrap_or(i32::MAX) {
        // SAFETY: takes integers, and fails where nothing is open.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

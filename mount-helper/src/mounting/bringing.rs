//! Files whose bytes are in a remote yet: the pool is made with their names, and a process beside the server fetches
//! them, started by whoever mounts and with his rights.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::setsid;
use tensorfs_layout::pool::has_remote;

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
/// gone.
pub fn start(
    request: &MountRequest,
    mut carrier: Command,
    cannot: impl Fn(&io::Error) -> Failure,
) -> Result<(), Failure> {
    if !has_remote(request.pool()).unwrap_or(false) {
        return Ok(());
    }
    carrier.args(["bring", "--"]).arg(request.pool()).arg(request.mountpoint());
    carrier.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    // SAFETY: setsid(2) may be called between fork and exec.
    unsafe { carrier.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
    if let Err(error) = carrier.spawn() {
        let at = request.mountpoint().display();
        output::complain(format!("{at}: nobody fetches the files that are away: {}", cannot(&error)));
    }
    Ok(())
}

//! Who carries a pool that is mounted with `carry`: a process beside the server, started by whoever mounts and with his
//! rights, which starts the carrier as the pool's owner, and again if that ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::unistd::setsid;

use crate::mounting::given;
use crate::mounting::options::Carry;
use crate::mounting::request::{MountRequest, PROGRAM};
use crate::show::failure::{Failure, reason};
use crate::show::output;

/// Starts it, if it was asked for. It ends by itself when the mount is gone, and waits for one as long as this process
/// lives. Whatever keeps it from its work, the mount is there. `is_there` says whether the carrier's program is.
pub fn start(request: &MountRequest, is_there: impl Fn() -> Result<(), Failure>) {
    let Some(Carry { keep }) = request.options().carry() else { return };
    let (pool, at) = (request.pool().display(), request.mountpoint().display());
    if given::number(request.mountpoint()).is_some() {
        let how = format!("tensorfs remote carry {pool} --watch");
        output::complain(format!(
            "{at}: option \"carry\": nobody carries what somebody else has mounted; start: {how}"
        ));
        return;
    }
    if let Err(failure) = is_there() {
        output::complain(format!("{at}: option \"carry\": {failure}; until that is mended nothing is carried"));
    }
    let started = io::pipe().and_then(|(waits, here)| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(PROGRAM).arg("carrying");
        if let Some(days) = keep {
            command.arg(format!("--keep={days}"));
        }
        // Of what whoever mounts has open it keeps nothing.
        if let Some(log) = request.options().log().filter(|log| given::number(log).is_none()) {
            command.arg("--log").arg(log);
        }
        command.arg("--").arg(request.pool()).arg(request.mountpoint());
        command.stdin(waits).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        // SAFETY: setsid(2) may be called between fork and exec.
        unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
        command.spawn()?;
        // Until this process ends.
        std::mem::forget(here);
        Ok(())
    });
    if let Err(error) = started {
        output::complain(format!("{at}: option \"carry\": nobody carries the pool: {}", reason(&error)));
    }
}

//! Who tells of damage: a process beside the server, started by whoever mounts and with his rights.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::unistd::setsid;

use crate::mounting::request::{MountRequest, PROGRAM};
use crate::show::failure::{Failure, reason};

/// Starts it, if it was asked for. It ends by itself when the mount is gone.
pub fn start(request: &MountRequest) -> Result<(), Failure> {
    let Some(program) = request.options().on_damage() else { return Ok(()) };
    let mut alarm = Command::new("/proc/self/exe");
    alarm.arg0(PROGRAM).args(["alarm", "--detached", "--run"]).arg(program).arg("--").arg(request.mountpoint());
    alarm.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    // SAFETY: setsid(2) may be called between fork and exec.
    unsafe { alarm.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
    let started = alarm.spawn().map(drop);
    started
        .map_err(|error| Failure::at(request.mountpoint(), format!("nobody will tell of damage: {}", reason(&error))))
}

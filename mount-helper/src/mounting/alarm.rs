//! Who tells of damage: a process beside the server, started by whoever mounts and with his rights.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::{AccessFlags, access, setsid};

use crate::mounting::given;
use crate::mounting::request::{MountRequest, PROGRAM};
use crate::show::failure::{Failure, reason};
use crate::show::output;

/// Why a program that is to be told of damage could not be, if that can be seen.
pub fn fault_of(program: &Path) -> Option<String> {
    let fault = match program.metadata() {
        Err(error) => reason(&error),
        Ok(found) if !found.is_file() => "not a program".to_owned(),
        Ok(_) => access(program, AccessFlags::X_OK).err()?.desc().to_owned(),
    };
    Some(format!("{}: {fault}", program.display()))
}

/// Starts it, if it was asked for. It ends by itself when the mount is gone.
pub fn start(request: &MountRequest) -> Result<(), Failure> {
    let Some(program) = request.options().on_damage() else { return Ok(()) };
    if let Some(fault) = fault_of(program) {
        let at = request.mountpoint().display();
        output::complain(format!("{at}: option \"on-damage\": {fault}; until that is mended nobody is told of damage"));
    }
    let mut alarm = Command::new("/proc/self/exe");
    alarm.arg0(PROGRAM).args(["alarm", "--detached", "--run"]).arg(program);
    // Of what whoever mounts has open it keeps nothing.
    if let Some(log) = request.options().log().filter(|log| given::number(log).is_none()) {
        alarm.arg("--log").arg(log);
    }
    alarm.arg("--").arg(request.mountpoint());
    alarm.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    // SAFETY: setsid(2) may be called between fork and exec.
    unsafe { alarm.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
    let started = alarm.spawn().map(drop);
    started
        .map_err(|error| Failure::at(request.mountpoint(), format!("nobody will tell of damage: {}", reason(&error))))
}

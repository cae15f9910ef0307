//! A keeper for a server whose own has died, and which has not the rights to start one: whoever asks for it takes the
//! descriptors from the server (pidfd_getfd(2)), which root may, and starts it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::Pid;

use crate::mounting::request::PROGRAM;

/// How the links of its descriptors begin or end.
const FUSE: &str = "/dev/fuse";
const HANDOVER: &str = "/memfd:tensorfs-handover";
const LOCK: &str = "lock";

/// True if a server has given up its rights.
pub fn is_confined(server: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|value| value.trim() == "1"))
}

/// Starts a keeper that has another server take over as soon as this one has ended.
pub fn adopt(pool: &Path, server: Pid) -> io::Result<()> {
    let process = open_process(server)?;
    let find = |is_it: &dyn Fn(&Path) -> bool| -> io::Result<OwnedFd> {
        for entry in fs::read_dir(format!("/proc/{server}/fd"))?.flatten() {
            if fs::read_link(entry.path()).is_ok_and(|link| is_it(&link)) {
                let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
                return take_copy(&process, number.ok_or(io::ErrorKind::InvalidData)?);
            }
        }
        Err(io::ErrorKind::NotFound.into())
    };
    let handed = [
        find(&|link| link.as_os_str().as_bytes().starts_with(HANDOVER.as_bytes()))?,
        find(&|link| link == Path::new(FUSE))?,
        find(&|link| link.parent() == Some(pool) && link.file_name() == Some(OsStr::new(LOCK)))?,
        process,
    ];
    for descriptor in &handed {
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    let numbers = handed.each_ref().map(|descriptor| descriptor.as_raw_fd().to_string());
    let mut arguments = arguments_of(server)?;
    arguments.insert(1, format!("--adopted={}", numbers.join(",")).into());
    // Nothing of the environment of whoever asks is for it.
    Command::new(format!("/proc/{server}/exe"))
        .arg0(PROGRAM)
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
}

/// What the server was started with, but for what its keeper handed to it.
fn arguments_of(server: Pid) -> io::Result<Vec<OsString>> {
    let line = fs::read(format!("/proc/{server}/cmdline"))?;
    let words = line.strip_suffix(b"\0").unwrap_or(&line).split(|byte| *byte == 0).skip(1);
    let handed = ["--kept=", "--errands=", "--after=", "--handshake"];
    let own = words.filter(|word| !handed.iter().any(|name| word.starts_with(name.as_bytes())));
    let mut arguments: Vec<OsString> = own.map(|word| OsString::from_vec(word.to_vec())).collect();
    if arguments.first().is_none_or(|word| word != "mount") {
        return Err(io::ErrorKind::InvalidData.into());
    }
    arguments.insert(1, "--handshake".into());
    Ok(arguments)
}

fn open_process(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })
}

fn take_copy(process: &OwnedFd, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

fn owned(number: libc::c_long) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

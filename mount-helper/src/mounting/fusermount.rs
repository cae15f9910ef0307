//! fusermount3: the set-user-id program of the package fuse3, through which a user who is not root mounts and unmounts.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::mounting::message::{self, Patience};
use crate::mounting::options::MountOptions;
use crate::show::failure::{Failure, reason};

/// The one of the package fuse3, then its predecessor, which speaks the same protocol.
const PROGRAMS: [&str; 2] = ["fusermount3", "fusermount"];

/// Mounts, and returns the open `/dev/fuse` of the new mount.
pub fn mount(pool: &Path, mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, Failure> {
    if options.flags.nosymfollow {
        return Err(Failure::at(mountpoint, "option \"nosymfollow\": only root can mount so"));
    }
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|errno| Failure::new(format!("socketpair: {}", errno.desc())))?;
    let output = run(|program| {
        let stdin = theirs.try_clone()?;
        Command::new(program)
            .arg("-o")
            .arg(list(pool, options))
            .arg("--")
            .arg(mountpoint)
            // its own standard input is the socket it answers on: no other descriptor needs to be inherited
            .env("_FUSE_COMMFD", "0")
            .stdin(Stdio::from(stdin))
            .output()
    })
    .map_err(|error| missing(&error, mountpoint))?;
    drop(theirs);
    if !output.status.success() {
        return Err(Failure::at(mountpoint, said(&output)));
    }
    receive(&ours).map_err(|error| Failure::at(mountpoint, format!("fusermount3: {}", reason(&error))))
}

/// Unmounts. A refusal because the mount is busy is EBUSY.
pub fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let output = run(|program| {
        let mut command = Command::new(program);
        command.arg("-u").stdin(Stdio::null());
        if lazy {
            command.arg("-z");
        }
        command.arg("--").arg(mountpoint).output()
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = said(&output);
    if said.to_ascii_lowercase().contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(said))
}

fn run(mut start: impl FnMut(&str) -> io::Result<Output>) -> io::Result<Output> {
    let mut result = Err(io::Error::from(ErrorKind::NotFound));
    for program in PROGRAMS {
        result = start(program);
        if !result.as_ref().is_err_and(is_missing) {
            break;
        }
    }
    result
}

/// A directory in `PATH` that may not be searched makes it "permission denied".
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
}

fn missing(error: &io::Error, mountpoint: &Path) -> Failure {
    if is_missing(error) {
        Failure::at(mountpoint, "only root may mount without fusermount3; install the package fuse3, or mount as root")
    } else {
        Failure::at(mountpoint, format!("fusermount3: {}", reason(error)))
    }
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    match line {
        Some(line) => line.to_owned(),
        None => format!("fusermount3 failed ({})", output.status),
    }
}

fn list(pool: &Path, options: &MountOptions) -> OsString {
    let mut list = b"nosuid,nodev,default_permissions,subtype=tensorfs".to_vec();
    for (set, word) in [
        (options.flags.read_only, ",ro"),
        (options.flags.noexec, ",noexec"),
        (options.flags.noatime, ",noatime"),
        // `nodiratime` is not among them: reading a directory changes no time in any case.
        (options.allow_other, ",allow_other"),
    ] {
        if set {
            list.extend_from_slice(word.as_bytes());
        }
    }
    list.extend_from_slice(b",fsname=");
    list.extend(escape(pool.as_os_str()));
    OsString::from_vec(list)
}

/// fusermount3 splits at commas unless a backslash stands in front.
fn escape(text: &OsStr) -> Vec<u8> {
    let mut escaped = Vec::new();
    for &byte in text.as_bytes() {
        if byte == b',' || byte == b'\\' {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    escaped
}

fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let (_, descriptors) = message::receive(socket, &mut [0], Patience::Wait)?;
    descriptors.into_iter().next().ok_or_else(|| io::Error::other("did not hand over /dev/fuse"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_the_pool() {
        let mut options = MountOptions::default();
        options.flags.read_only = true;
        assert_eq!(
            list(Path::new("/a,b\\c"), &options),
            "nosuid,nodev,default_permissions,subtype=tensorfs,ro,fsname=/a\\,b\\\\c"
        );
    }
}

//! Telling systemd, for units of `Type=notify`: the protocol of sd_notify(3). A message may have descriptors with it,
//! which the manager keeps for the unit (`FDSTORE=1`), and gives to what it starts next.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sendmsg_addr, socket_with,
};

/// The variable that says where it listens.
pub const SOCKET: &str = "NOTIFY_SOCKET";
/// No message has more descriptors.
const MOST: usize = 3;
/// So long is waited for a manager to have done what it was told.
const TO_HEAR: Duration = Duration::from_secs(5);

/// Sends `state` (`READY=1`, `STOPPING=1`) to the service manager, if one asked for it.
pub fn notify(state: &str) {
    notify_with(state, &[]);
}

/// Whether a service manager wants to be told.
pub fn is_asked_for() -> bool {
    std::env::var_os(SOCKET).is_some()
}

/// As [`notify`], with descriptors. True if a manager has got it.
pub fn notify_with(state: &str, descriptors: &[BorrowedFd]) -> bool {
    let Some(socket) = std::env::var_os(SOCKET) else { return false };
    send(&socket, state, descriptors).inspect_err(|error| log::warn!("cannot notify the manager: {error}")).is_ok()
}

/// Waits until the service manager has done what it was told before (`BARRIER=1`: it closes what came with that).
pub fn settle() {
    let Ok((here, there)) = io::pipe() else { return };
    if !notify_with("BARRIER=1", &[there.as_fd()]) {
        return;
    }
    drop(there);
    let patience = PollTimeout::try_from(TO_HEAR).unwrap_or(PollTimeout::MAX);
    // One of an older version does not answer, and one that is late is not waited for longer.
    let _ = poll(&mut [PollFd::new(here.as_fd(), PollFlags::empty())], patience);
}

fn send(socket: &OsString, state: &str, descriptors: &[BorrowedFd]) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(socket.as_os_str())?,
    };
    // A manager that does not listen is not waited for.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let from = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !with.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg_addr(&from, &address, &[IoSlice::new(state.as_bytes())], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::mounting::message::{Patience, receive};

    #[test]
    fn sends_one_datagram() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for descriptors in [&[][..], &[null.as_fd(); MOST]] {
            send(&path.clone().into_os_string(), "READY=1", descriptors).unwrap();
            let mut buffer = [0; 32];
            let (length, came) = receive(&socket, &mut buffer, Patience::Now).unwrap();
            assert_eq!((&buffer[..length], came.len()), (&b"READY=1"[..], descriptors.len()));
        }
    }
}

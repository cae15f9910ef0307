//! Who serves a connection of FUSE, as the kernel tells of the descriptors that processes have (Linux 6.18 and newer).
//! Nothing is asked of who serves it.

use std::fs;
use std::os::fd::{AsFd, RawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::mounting::process::Process;

/// The number of the connection that a descriptor is of: that of its filesystem's device.
pub fn connection_in(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// The descriptors of a process that are of connections, each with the number of its connection.
fn connections(pid: u32) -> Option<impl Iterator<Item = (RawFd, u32)>> {
    let found = fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?.flatten();
    Some(found.filter_map(|one| {
        let number = one.file_name().to_str()?.parse().ok()?;
        Some((number, connection_in(&fs::read_to_string(one.path()).ok()?)?))
    }))
}

/// Whether a process serves a connection. None if the kernel tells of none of its.
pub fn is_by(pid: u32, connection: u32) -> Option<bool> {
    let mut all = connections(pid)?.peekable();
    all.peek()?;
    Some(all.any(|(_, of)| of == connection))
}

/// Whether a process is seen to serve a connection that is not over.
pub fn goes_on(pid: u32, connection: u32) -> bool {
    let found = connections(pid).and_then(|mut all| all.find(|(_, of)| *of == connection));
    let device = found.and_then(|(number, _)| Process::open(pid).ok()?.descriptor(number).ok());
    device.is_some_and(|device| {
        let mut polled = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let told = poll(&mut polled, PollTimeout::ZERO).ok().and_then(|_| polled[0].revents());
        told.is_some_and(|events| !events.contains(PollFlags::POLLERR))
    })
}

//! Whether the kernel still has a mount's filesystem, wherever that may be mounted: a mount namespace that no process
//! is in, a loop device or another filesystem above it are seen nowhere else.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::{FsType, statfs};

use crate::mounting::mountinfo::Mount;
use crate::mounting::process::Process;

/// Where the kernel lists its connections, if that is mounted (`FUSE_CTL_SUPER_MAGIC`).
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
const LISTING: FsType = FsType(0x6573_5543);

/// Nothing if it cannot be told. The server's own device is asked first: once a connection is over, the kernel gives
/// its number to the next one.
pub fn is_alive(mount: &Mount, server: &Process) -> Option<bool> {
    is_connected(server).or_else(|| {
        let is_listed = statfs(CONNECTIONS).is_ok_and(|found| found.filesystem_type() == LISTING);
        let (_, number) = mount.device();
        is_listed.then(|| Path::new(CONNECTIONS).join(number.to_string()).exists())
    })
}

/// Whether the connection of a server is not over yet, as the kernel says of its device.
fn is_connected(server: &Process) -> Option<bool> {
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).ok()?.flatten();
    let mut devices = open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("/dev/fuse")));
    let Some(device) = devices.next() else { return Some(false) };
    let device = server.descriptor(device.file_name().to_str()?.parse().ok()?).ok()?;
    let mut polled = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).ok()?;
    Some(!polled[0].revents()?.contains(PollFlags::POLLERR))
}

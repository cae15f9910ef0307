//! One keeper at a time: two would start a server each, and both servers have the pool's lock.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::{Flock, FlockArg};

/// The lock that only one keeper of a mount has, for as long as it lives: of the memory that a server leaves to the
/// next one, opened anew (flock(2)), so that no server has it with the memory.
#[derive(Debug)]
pub struct Alone(#[expect(dead_code, reason = "held")] Flock<File>);

impl Alone {
    /// Takes it. An error: another keeper has it.
    pub fn take(handover: &OwnedFd) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", handover.as_raw_fd());
        let own = File::options().read(true).write(true).open(path)?;
        Flock::lock(own, FlockArg::LockExclusiveNonblock).map(Self).map_err(|(_, errno)| errno.into())
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    #[test]
    fn only_one_has_it_at_a_time() {
        let memory: OwnedFd = memfd_create(c"tensorfs-handover", MFdFlags::MFD_CLOEXEC).unwrap();
        let servers = memory.try_clone().unwrap();
        let first = Alone::take(&memory).unwrap();
        assert_eq!(Alone::take(&servers).unwrap_err().raw_os_error(), Some(libc::EWOULDBLOCK));
        // The memory itself stays with the server.
        drop(memory);
        drop(first);
        Alone::take(&servers).unwrap();
    }
}

//! One keeper of a mount at a time, and one server: two keepers would start a server each, and both have the pool's
//! lock. Who serves, the pool's lock only says, in words of the pool's owner.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};

/// So often is looked whether another server has ended.
const LOOK: Duration = Duration::from_millis(10);

/// The lock that only one keeper of a mount has, for as long as it lives: of the memory that a server leaves to the
/// next one, opened anew (flock(2)), so that no server has it with the memory.
#[derive(Debug)]
pub struct Alone(#[expect(dead_code, reason = "held")] Flock<File>);

impl Alone {
    /// Takes it. An error: another keeper has it.
    pub fn take(handover: &OwnedFd) -> io::Result<Self> {
        Flock::lock(anew(handover)?, FlockArg::LockExclusiveNonblock).map(Self).map_err(|(_, errno)| errno.into())
    }
}

/// The lock that only the server of a mount has, for as long as it lives: of the same memory, in another way (fcntl(2),
/// of an open file description), so that a keeper has its own beside it.
#[derive(Debug)]
pub struct Serving(#[expect(dead_code, reason = "held")] File);

impl Serving {
    /// Takes it when the server before has ended, which it may take so long for. An error: that one serves.
    pub fn take(handover: &OwnedFd, patience: Duration) -> io::Result<Self> {
        let own = anew(handover)?;
        let until = Instant::now() + patience;
        loop {
            match fcntl(own.as_fd(), FcntlArg::F_OFD_SETLK(&whole())) {
                Ok(_) => return Ok(Self(own)),
                Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() < until => thread::sleep(LOOK),
                Err(Errno::EAGAIN | Errno::EACCES) => return Err(io::Error::other("another server serves it still")),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The memory, opened anew: a lock of it is nobody's who has inherited it.
pub fn anew(handover: &OwnedFd) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/self/fd/{}", handover.as_raw_fd()))
}

fn whole() -> libc::flock {
    let (l_type, l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
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

    #[test]
    fn only_one_serves_at_a_time() {
        let memory: OwnedFd = memfd_create(c"tensorfs-handover", MFdFlags::MFD_CLOEXEC).unwrap();
        let _keeper = Alone::take(&memory).unwrap();
        let first = Serving::take(&memory, Duration::ZERO).unwrap();
        // Whoever has the memory has not the lock with it.
        let next = memory.try_clone().unwrap();
        assert!(Serving::take(&next, Duration::ZERO).is_err());
        let waits = thread::spawn(move || Serving::take(&next, Duration::from_secs(600)).is_ok());
        drop(first);
        assert!(waits.join().unwrap());
    }
}

//! The server's side of the keeper: what it is handed, and what it hands over so that another can take its place.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use nix::unistd::Pid;
use tensorfs_fs::Handover;

use crate::mounting::keeper::alone::Serving;
use crate::mounting::touching;
use crate::show::failure::{Failure, reason};

/// What a server says when it serves, with two descriptors.
pub const SERVES: u8 = b'+';
/// What it says when nobody waits for that any more.
pub const READY: u8 = b'!';

/// What a program prints that could serve.
pub const WOULD_SERVE: &str = "would serve\n";
/// So long a server may take to end in whose place another one is started.
const TO_END: Duration = Duration::from_secs(10);
/// The exit status of a server that leaves the rest to another one (`EX_TEMPFAIL` of sysexits.h).
pub const LEFT: i32 = 75;

/// The numbers of inherited descriptors: the socket to the keeper and the handover; and from the second server on
/// `/dev/fuse` and the pool's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    socket: RawFd,
    handover: RawFd,
    inherited: Option<(RawFd, RawFd)>,
}

impl FromStr for Descriptors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<RawFd>, _> = text.split(',').map(str::parse).collect();
        let numbers = numbers.ok().filter(|numbers| numbers.iter().all(|number| *number > 2));
        match numbers.as_deref() {
            Some([socket, handover]) => Ok(Self { socket: *socket, handover: *handover, inherited: None }),
            Some([socket, handover, fuse, lock]) => {
                Ok(Self { socket: *socket, handover: *handover, inherited: Some((*fuse, *lock)) })
            }
            _ => Err("not what a keeper says".into()),
        }
    }
}

impl Descriptors {
    /// Their numbers.
    pub fn numbers(self) -> impl Iterator<Item = RawFd> {
        let (fuse, lock) = self.inherited.unzip();
        [self.socket, self.handover].into_iter().chain(fuse).chain(lock)
    }
}

/// The numbers of descriptors that a server hands to a keeper that is to watch over the next one: the handover,
/// `/dev/fuse` and the pool's lock; and the server itself, if whoever started the keeper is not that server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adopted([RawFd; 3], Option<RawFd>);

impl FromStr for Adopted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<RawFd>, _> = text.split(',').map(str::parse).collect();
        let numbers = numbers.ok().filter(|numbers| numbers.iter().all(|number| *number > 2));
        match numbers.as_deref() {
            Some([handover, fuse, lock]) => Ok(Self([*handover, *fuse, *lock], None)),
            Some([handover, fuse, lock, server]) => Ok(Self([*handover, *fuse, *lock], Some(*server))),
            _ => Err("not what a server says".into()),
        }
    }
}

impl Adopted {
    /// Their numbers.
    pub fn numbers(self) -> impl Iterator<Item = RawFd> {
        self.0.into_iter().chain(self.1)
    }

    /// Takes the descriptors over, as soon as the server has ended.
    pub fn take(self) -> Result<[OwnedFd; 3], Failure> {
        let [handover, fuse, lock] = self.0;
        let taken = [own(handover)?, own(fuse)?, own(lock)?];
        let ended = match self.1.map(own).transpose()? {
            Some(server) => wait_for(&server),
            // It has standard input open as long as it lives.
            None => io::copy(&mut io::stdin(), &mut io::sink()).map(drop),
        };
        ended.map_err(|error| Failure::new(format!("cannot wait for the end of a server: {}", reason(&error))))?;
        Ok(taken)
    }
}

/// Waits for the end of a process (pidfd_open(2)).
fn wait_for(process: &OwnedFd) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

/// What a server has of its keeper.
pub struct Kept {
    socket: OwnedFd,
    handover: Arc<Handover>,
    inherited: Option<(OwnedFd, OwnedFd)>,
    #[expect(dead_code, reason = "held")]
    serving: Serving,
}

impl Kept {
    /// Takes the descriptors over. Programs that this one starts do not get them.
    pub fn take(numbers: Descriptors, after: Option<String>) -> Result<Kept, Failure> {
        touching::touch_buffers();
        // The keeper waits for it. The others wait for the server, until it is ready to hear of them.
        let _ = SigSet::from(Signal::SIGCHLD).thread_unblock();
        let inherited = match numbers.inherited {
            Some((fuse, lock)) => Some((own(fuse)?, own(lock)?)),
            None => None,
        };
        let socket = own(numbers.socket)?;
        // Who has made the socket; by now it may have died.
        let keeper = getsockopt(&socket, PeerCredentials).map(|peer| Pid::from_raw(peer.pid()));
        let keeper = keeper.map_err(|errno| Failure::new(format!("the keeper's socket: {}", errno.desc())))?;
        let handover = own(numbers.handover)?;
        // Its keeper waits for the end of the server before; whoever started this one may be another one.
        let serving = Serving::take(&handover, TO_END)
            .map_err(|error| Failure::new(format!("nothing can be taken over: {}", reason(&error))))?;
        let handover = Handover::open(handover, after, keeper)
            .map_err(|error| Failure::new(format!("what the server before left cannot be used: {}", reason(&error))))?;
        Ok(Kept { socket, handover, inherited, serving })
    }

    /// What the next server takes over.
    pub fn handover(&self) -> &Arc<Handover> {
        &self.handover
    }

    /// `/dev/fuse` and the pool's lock, if a server before had them.
    pub fn inherited(&mut self) -> Option<(OwnedFd, OwnedFd)> {
        self.inherited.take()
    }

    /// Tells the keeper that this server serves, and has it hold on to `/dev/fuse` and the pool's lock.
    pub fn tell(&self, fuse: &OwnedFd, lock: &OwnedFd) -> io::Result<()> {
        let descriptors = [fuse.as_raw_fd(), lock.as_raw_fd()];
        let with = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(&[SERVES])], &with, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Tells the keeper that whoever waited for the mount has heard that it is there.
    pub fn tell_ready(&self) -> io::Result<()> {
        sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(&[READY])], &[], MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }
}

/// Takes a descriptor over that was inherited.
pub fn own(number: RawFd) -> Result<OwnedFd, Failure> {
    // SAFETY: the keeper has opened it for this process, and nothing here has it. If it is not open, the call says so.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
        .map_err(|errno| Failure::new(format!("descriptor {number} of the keeper: {}", errno.desc())))?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_keeper_says() {
        let first = Descriptors { socket: 3, handover: 4, inherited: None };
        assert_eq!("3,4".parse(), Ok(first));
        assert_eq!("3,4,5,6".parse(), Ok(Descriptors { inherited: Some((5, 6)), ..first }));
        for wrong in ["", "3", "3,4,5", "1,2", "3,4,5,6,7", "a,b", "3,-1"] {
            assert!(wrong.parse::<Descriptors>().is_err(), "{wrong}");
        }
    }
}

//! The handshake with the kernel, which happens once a mount: whoever takes the place of a server that died finds it
//! done, and makes it again with a socket in the kernel's place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fuser::{Config, Filesystem, KernelConfig, Request, Session, SessionACL};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockType, shutdown, socketpair};
use nix::unistd::{read, write};

use crate::handover::{Beginning, Handover, handshake_of};
use crate::options::PassthroughMode;

use super::adapter::greet;

/// The least that a buffer for requests has to hold: `FUSE_MIN_READ_BUFFER` of `include/uapi/linux/fuse.h`.
const LEAST: usize = 8192;

/// `FUSE_NOTIFY_RESEND` of `include/uapi/linux/fuse.h`.
const RESEND: i32 = 7;

/// A session on a descriptor that is mounted.
pub(super) fn shake_hands<F: Filesystem>(
    filesystem: F,
    fuse: OwnedFd,
    (acl, config): (SessionACL, Config),
    handover: Option<&Handover>,
    pool: Beginning,
) -> io::Result<Session<F>> {
    let Some(handover) = handover else { return Session::from_fd(filesystem, fuse, acl, config) };
    let before = handover.handshake();
    let greeting = match &before {
        Some((greeting, _)) => greeting.clone(),
        None => read_message(&fuse)?,
    };
    let (session, answer) = answer(filesystem, &greeting, (acl, config))?;
    match before {
        None => {
            write(&fuse, &answer)?;
            handover.begin(greeting, answer, pool)?;
        }
        Some((_, told)) if told == answer => handover.is_of(&pool)?,
        Some(_) => return Err(speaks_otherwise()),
    }
    // SAFETY: both descriptors are open; what the session reads from is the kernel from now on.
    let put = unsafe { libc::dup3(fuse.as_raw_fd(), session.as_fd().as_raw_fd(), libc::O_CLOEXEC) };
    if put < 0 { Err(io::Error::last_os_error()) } else { Ok(session) }
}

/// What a filesystem answers to a greeting of the kernel's, and its session, which nobody is at the other end of.
fn answer<F: Filesystem>(
    filesystem: F,
    greeting: &[u8],
    (acl, config): (SessionACL, Config),
) -> io::Result<(Session<F>, Vec<u8>)> {
    if !can_ask_again(greeting) {
        let reason = "a keeper needs a kernel that sends requests again (Linux 6.9 or newer); mount without it";
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    let (kernel, server) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).map_err(io::Error::from)?;
    write(&kernel, greeting)?;
    // Should more be waited for, there is nothing.
    shutdown(kernel.as_raw_fd(), Shutdown::Write)?;
    let session = Session::from_fd(filesystem, server, acl, config)?;
    let answer = read_message(&kernel)?;
    Ok((session, answer))
}

fn speaks_otherwise() -> io::Error {
    io::Error::other("this program does not speak with the kernel as the one before did")
}

/// Greets the kernel as [`Adapter`](super::adapter::Adapter) does, and serves nothing.
struct Greeter {
    passthrough: PassthroughMode,
    is_followed: bool,
}

impl Filesystem for Greeter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        greet(config, self.passthrough, self.is_followed).map(drop)
    }
}

/// That a server of this program could go on with what another one of the pool of this number leaves: it can read that,
/// and answers the kernel as that one did, of a mount that follows its remote or not. Changes nothing.
pub fn could_take_over(
    handover: impl Into<OwnedFd>,
    passthrough: PassthroughMode,
    is_followed: bool,
    uuid: &str,
) -> io::Result<()> {
    let Some((greeting, told)) = handshake_of(handover.into(), uuid)? else { return Ok(()) };
    let (_, answer) = answer(Greeter { passthrough, is_followed }, &greeting, (SessionACL::All, Config::default()))?;
    if answer == told { Ok(()) } else { Err(speaks_otherwise()) }
}

/// True if the kernel's greeting has `FUSE_HAS_RESEND` of `include/uapi/linux/fuse.h`, bit 39 of its flags. The flags
/// come behind a header of 40 bytes and three numbers; the upper half of them has a word of its own.
fn can_ask_again(greeting: &[u8]) -> bool {
    let word = |at: usize| greeting.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    let extended = word(52).is_some_and(|flags| flags & 1 << 30 != 0);
    extended && word(56).is_some_and(|flags| flags & 1 << 7 != 0)
}

/// Has the kernel send again what a server has read that died before it answered.
pub(super) fn ask_again(fuse: &OwnedFd) -> io::Result<()> {
    // A `fuse_out_header`: its length, what is said, and no request.
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16_u32.to_ne_bytes());
    message[4..8].copy_from_slice(&RESEND.to_ne_bytes());
    write(fuse, &message)?;
    Ok(())
}

fn read_message(from: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut message = vec![0; LEAST];
    let len = loop {
        match read(from, &mut message) {
            Err(Errno::EINTR | Errno::ENOENT | Errno::EAGAIN) => {}
            read => break read?,
        }
    };
    message.truncate(len);
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_cannot_send_requests_again() {
        let greeting = |flags: u32, more: u32| {
            let mut bytes = vec![0; 104];
            bytes[52..56].copy_from_slice(&flags.to_ne_bytes());
            bytes[56..60].copy_from_slice(&more.to_ne_bytes());
            bytes
        };
        assert!(can_ask_again(&greeting(1 << 30, 1 << 7)));
        assert!(!can_ask_again(&greeting(1 << 30, 1 << 6)));
        assert!(!can_ask_again(&greeting(0, 1 << 7)), "the upper half is not there");
        assert!(!can_ask_again(&greeting(1 << 30, 1 << 7)[..56]));
    }
}

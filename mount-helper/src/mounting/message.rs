//! A message on a socket, and the descriptors that come with it.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

/// The kernel lets no more descriptors come with one message (`SCM_MAX_FD`).
const MOST: usize = 253;
const SPACE: usize = rustix::cmsg_space!(ScmRights(MOST));

/// Whether to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Wait,
    Now,
}

/// A message, whole: its length, and what came with it. Whoever sends may be anybody: what comes with a message that is
/// longer than it may be, or with one for which there are no descriptors left, is closed.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], patience: Patience) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_into(socket, bytes, patience, &mut [MaybeUninit::uninit(); SPACE])
}

fn receive_into(
    socket: impl AsFd,
    bytes: &mut [u8],
    patience: Patience,
    space: &mut [MaybeUninit<u8>],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let wait = if patience == Patience::Now { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
    // Closes what nobody takes out of it.
    let mut parts = RecvAncillaryBuffer::new(space);
    let message =
        retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut parts, wait | RecvFlags::CMSG_CLOEXEC))?;
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE.into());
    }
    let mut descriptors = Vec::new();
    for part in parts.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = part {
            descriptors.extend(some);
        }
    }
    Ok((message.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::os::fd::{AsRawFd, RawFd};

    use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

    use super::*;

    /// A message with so many copies of one end of a pipe; the other end, which is at its end once all are closed.
    fn sent(bytes: &[u8], count: usize) -> (OwnedFd, std::io::PipeReader) {
        let (here, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let numbers: Vec<RawFd> = vec![writer.as_raw_fd(); count];
        let rights = [ControlMessage::ScmRights(&numbers)];
        sendmsg::<()>(there.as_raw_fd(), &[IoSlice::new(bytes)], &rights, MsgFlags::empty(), None).unwrap();
        (here, reader)
    }

    #[test]
    fn as_many_come_as_the_kernel_lets() {
        let (socket, mut reader) = sent(b"message", MOST);
        let mut bytes = [0; 7];
        let (len, descriptors) = receive(&socket, &mut bytes, Patience::Wait).unwrap();
        assert_eq!((len, &bytes, descriptors.len()), (7, b"message", MOST));
        drop(descriptors);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    /// Waits for ever where one of them stays open.
    #[test]
    fn what_is_not_taken_is_closed() {
        let (socket, mut reader) = sent(b"too long", 3);
        assert!(receive(&socket, &mut [0; 7], Patience::Wait).is_err());
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        // As the kernel has it for whoever has no descriptors left: some of them come.
        let (socket, mut reader) = sent(b"message", 9);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        assert!(receive_into(&socket, &mut [0; 7], Patience::Wait, &mut space).is_err());
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}

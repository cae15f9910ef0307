//! Who is at the other end of a socket: by the kernel's word, and while that process lives. What /proc says of a number
//! counts only if it has not ended since, or the number could be another one's by now.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};

use crate::mounting::mountinfo::Table;
use crate::mounting::process::Process;
use crate::show::failure::reason;

/// A process that has connected, or that has listened.
#[derive(Debug)]
pub struct Peer {
    pid: i32,
    uid: u32,
    /// None where that kernel tells no more than numbers (before Linux 6.5).
    process: Option<Process>,
}

impl Peer {
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let named = getsockopt(socket, PeerCredentials)?;
        let process = match getsockopt(socket, PeerPidfd) {
            Ok(handle) => Some(Process::of_handle(handle, named.pid() as u32)),
            Err(Errno::ENOPROTOOPT) => None,
            // It has ended.
            Err(Errno::EINVAL | Errno::ENODATA) => return Err(Errno::ESRCH.into()),
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self { pid: named.pid(), uid: named.uid(), process })
    }

    /// Its number; 0 if it has none in this process namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its user, when it connected or listened.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// That the number is still its own.
    pub fn check_lives(&self) -> io::Result<()> {
        match &self.process {
            Some(process) if process.wait(Duration::ZERO)? => Err(Errno::ESRCH.into()),
            _ => Ok(()),
        }
    }

    /// That it may do by itself whatever this process may: it is of the same namespaces, has the capabilities, and is
    /// not locked in further, as far as the kernel tells. Root of a container that has the same network is user 0, too,
    /// and what runs in a sandbox is its user. An error says why it is not so.
    pub fn check_could_be(&self) -> Result<(), String> {
        if self.pid == 0 {
            return Err("it is of another process namespace".to_owned());
        }
        let failed = |error: io::Error| format!("it cannot be looked at: {}", reason(&error));
        let own = Standing::of("self").map_err(failed)?;
        let theirs = Standing::of(&self.number_in_proc().map_err(failed)?).map_err(failed)?;
        self.check_lives().map_err(failed)?;
        theirs.check_is_of(self.uid)?;
        theirs.check_reaches(&own)
    }

    /// What /proc calls it, which may be that of a process namespace further out.
    fn number_in_proc(&self) -> io::Result<String> {
        let Some(process) = &self.process else { return Ok(self.pid.to_string()) };
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_fd().as_raw_fd()))?;
        let number = field(&info, "Pid:").filter(|number| number.parse().is_ok_and(|number: i32| number > 0));
        Ok(number.ok_or(Errno::ESRCH)?.to_owned())
    }
}

/// What says how much a process may do.
#[derive(Debug)]
struct Standing {
    /// The real and the effective user.
    uids: [u32; 2],
    /// It is in so many process namespaces, one in the other.
    depth: usize,
    /// The user namespace; none if this process may not look.
    users: Option<String>,
    /// Which users there are in it, seen from here.
    map: String,
    capabilities: Capabilities,
    confined: Confined,
}

/// What it was locked in by. (Of Landlock, and of most of what other security modules do, nobody is told.)
#[derive(Debug)]
struct Confined {
    /// seccomp(2): not, to four calls, by a filter.
    seccomp: u32,
    /// By so many filters, where the kernel says (from Linux 5.9 on).
    filters: u32,
    no_new_privs: bool,
    /// Which mounts it sees, be it by a mount namespace of its own or by another root directory.
    mounts: Option<u64>,
}

#[derive(Debug)]
struct Capabilities {
    effective: u64,
    permitted: u64,
}

impl Standing {
    fn of(process: &str) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let set = |name| field(&status, name).and_then(|set| u64::from_str_radix(set, 16).ok()).ok_or(Errno::EPROTO);
        let number = |name| field(&status, name).and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
        let table = Table::at(&format!("/proc/{process}/mountinfo"))?;
        let (seccomp, filters) = (number("Seccomp:"), number("Seccomp_filters:"));
        let no_new_privs = number("NoNewPrivs:") != 0;
        let mut uids = field(&status, "Uid:").ok_or(Errno::EPROTO)?.split_whitespace().map(str::parse);
        let mut uid = || uids.next().and_then(Result::ok).ok_or(Errno::EPROTO);
        Ok(Self {
            uids: [uid()?, uid()?],
            confined: Confined { seccomp, filters, no_new_privs, mounts: table.namespace() },
            depth: field(&status, "NSpid:").ok_or(Errno::EPROTO)?.split_whitespace().count(),
            users: fs::read_link(format!("/proc/{process}/ns/user")).ok().map(|link| link.display().to_string()),
            map: fs::read_to_string(format!("/proc/{process}/uid_map"))?,
            capabilities: Capabilities { effective: set("CapEff:")?, permitted: set("CapPrm:")? },
        })
    }

    /// That it is still the user's who connected: a program that has another one's rights, by its set-user-ID bit, and
    /// was executed since then, lends them to nobody.
    fn check_is_of(&self, uid: u32) -> Result<(), String> {
        match self.uids == [uid; 2] {
            true => Ok(()),
            false => Err(format!("it is not user {uid} any more, who connected")),
        }
    }

    fn check_reaches(&self, own: &Self) -> Result<(), String> {
        if self.depth != own.depth {
            return Err("it is of another process namespace".to_owned());
        }
        // Capabilities are those of a user namespace. Where that may not be looked at, it is no inner one of this
        // user's, and another one has other users.
        if self.map != own.map || self.users.is_some() && self.users != own.users {
            return Err("it is of another user namespace".to_owned());
        }
        let missing = own.capabilities.permitted & !self.capabilities.effective;
        if missing != 0 {
            return Err(format!("it has not the capabilities that this keeper has (missing: {missing:#x})"));
        }
        // Whoever is in a sandbox could have what he gives to a keeper executed outside of it.
        if self.confined.seccomp > own.confined.seccomp || self.confined.filters > own.confined.filters {
            return Err("its system calls are filtered (seccomp) more than those of this keeper".to_owned());
        }
        if self.confined.no_new_privs && !own.confined.no_new_privs {
            return Err("it may not gain privileges (no_new_privs), and this keeper may".to_owned());
        }
        if self.confined.mounts != own.confined.mounts && self.capabilities.effective & TO_GO != TO_GO {
            return Err("it sees other mounts, or has another root directory, than this keeper".to_owned());
        }
        Ok(())
    }
}

/// Who has these goes to any mount namespace: CAP_SYS_CHROOT, CAP_SYS_PTRACE, CAP_SYS_ADMIN.
const TO_GO: u64 = 1 << 18 | 1 << 19 | 1 << 21;

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};

    use super::*;

    #[test]
    fn this_process_could_be_itself() {
        let (here, _there) = UnixStream::pair().unwrap();
        let peer = Peer::of(&here).unwrap();
        assert_eq!((peer.pid(), peer.uid()), (std::process::id() as i32, nix::unistd::geteuid().as_raw()));
        peer.check_lives().unwrap();
        peer.check_could_be().unwrap();
    }

    #[test]
    fn who_has_less_or_is_elsewhere_could_not() {
        let standing = |depth, users: &str, effective| Standing {
            depth,
            users: Some(users.to_owned()).filter(|users| !users.is_empty()),
            map: "0 0 4294967295\n".to_owned(),
            capabilities: Capabilities { effective, permitted: effective },
            confined: Confined { seccomp: 0, filters: 0, no_new_privs: false, mounts: Some(1) },
            uids: [1000; 2],
        };
        let own = standing(1, "user:[1]", 0b0110);
        let said = |theirs: Standing| theirs.check_reaches(&own).err().unwrap_or_default();
        assert_eq!(said(standing(1, "user:[1]", 0b1110)), "");
        assert_eq!(said(standing(1, "", 0b0110)), "");
        assert!(said(standing(1, "user:[1]", 0b1010)).ends_with("(missing: 0x4)"));
        assert!(said(standing(2, "user:[1]", u64::MAX)).contains("process namespace"));
        assert!(said(standing(1, "user:[2]", u64::MAX)).contains("user namespace"));
        let inner = Standing { map: "0 0 1\n".to_owned(), ..standing(1, "", u64::MAX) };
        assert!(said(inner).contains("user namespace"));
        let locked_in = |seccomp, no_new_privs, mounts, effective| Standing {
            confined: Confined { seccomp, filters: u32::from(seccomp == 2), no_new_privs, mounts },
            ..standing(1, "user:[1]", effective)
        };
        assert!(said(locked_in(2, false, Some(1), 0b0110)).contains("seccomp"));
        assert!(said(locked_in(0, true, Some(1), 0b0110)).contains("no_new_privs"));
        assert!(said(locked_in(0, false, Some(2), 0b0110)).contains("other mounts"));
        assert!(said(locked_in(0, false, None, 0b0110)).contains("other mounts"));
        assert_eq!(said(locked_in(0, false, Some(2), 0b0110 | TO_GO)), "");
        // A keeper that is locked in itself has nothing that such a one has not.
        let keeper = locked_in(2, true, Some(1), 0b0110);
        locked_in(2, true, Some(1), 0b0110).check_reaches(&keeper).unwrap();
        standing(1, "user:[1]", 0b0110).check_reaches(&keeper).unwrap();
    }

    /// The number of one that has listened and ended is anybody's by now.
    #[test]
    fn who_has_ended_is_nobody() {
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap();
        let name = format!("tensorfs-test-peer/{}", std::process::id());
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        bind(listener.as_raw_fd(), &address).unwrap();
        // Another process listens, and ends; this one has the socket still.
        let script = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).listen(8); print(end='x', flush=True)";
        let mut command = Command::new("python3");
        command.args(["-c", script, &listener.as_raw_fd().to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        child.wait().unwrap();
        let asking = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap();
        connect(asking.as_raw_fd(), &address).unwrap();
        assert_eq!(getsockopt(&asking, PeerCredentials).unwrap().pid(), child.id() as i32);
        // Whichever of them sees it, the kernel or this.
        if !matches!(getsockopt(&asking, PeerPidfd), Err(Errno::ENOPROTOOPT)) {
            assert!(Peer::of(&asking).and_then(|peer| peer.check_lives()).is_err());
        }
        let _ = listen(&listener, Backlog::new(1).unwrap());
    }
}

//! What a server has its keeper do that has given up its rights: `Errands` is the server's end, [`run`] the keeper's.
//!
//! There are two sockets, as what is asked at one may take long. At the first: giving segments to the kernel and taking
//! them back. At the second: what others have open, how they end, the log under its name, and unmounting. A message has
//! 32 bytes, its answer eight; one waits for the other.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl, openat2, readlink};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, setsockopt, socketpair};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::time::TimeVal;
use tensorfs_fs::{Own, Privileged};

use crate::mounting::fuse_device::Mounted;
use crate::mounting::kept;
use crate::mounting::message::{Patience, receive};
use crate::show::failure::{Failure, reason};
use crate::show::log_file;

/// A keeper that does not answer for so many seconds is asked no more: about a segment; and about what takes looking
/// around.
const TO_ANSWER: i64 = 10;
const TO_LOOK: i64 = 60;
const MESSAGE: usize = 32;
const ANSWER: usize = 8;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    /// The server gives up its rights: with `/dev/fuse` and the directories that segments are in.
    Reach,
    /// The kernel is to have a segment, which comes with it.
    Give,
    /// The kernel is to let go of a segment.
    Take(u32),
    /// Whether a process has a file open to write.
    Writes { pid: u32, device: Option<(u32, u32)>, ino: u64 },
    /// The signal that kills a process.
    Signal(u32),
    /// The file to log to, opened by its name.
    Log,
    /// The mount is to go.
    Unmount,
}

impl Errand {
    fn to_bytes(self) -> [u8; MESSAGE] {
        let (kind, a, device, n) = match self {
            Self::Reach => (0, 0, None, 0),
            Self::Give => (1, 0, None, 0),
            Self::Take(number) => (2, number, None, 0),
            Self::Writes { pid, device, ino } => (3, pid, device, ino),
            Self::Signal(pid) => (4, pid, None, 0),
            Self::Log => (5, 0, None, 0),
            Self::Unmount => (6, 0, None, 0),
        };
        let (major, minor) = device.unwrap_or_default();
        let mut bytes = [0; MESSAGE];
        for (at, word) in [kind, a, u32::from(device.is_some()), major, minor].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&n.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; MESSAGE]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let a = word(4);
        Some(match word(0) {
            0 => Self::Reach,
            1 => Self::Give,
            2 => Self::Take(a),
            3 => {
                let device = (word(8) != 0).then(|| (word(12), word(16)));
                let ino = u64::from(word(24)) | u64::from(word(28)) << 32;
                Self::Writes { pid: a, device, ino }
            }
            4 => Self::Signal(a),
            5 => Self::Log,
            6 => Self::Unmount,
            _ => return None,
        })
    }
}

/// The numbers of a server's ends of both sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sockets([RawFd; 2]);

impl FromStr for Sockets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<RawFd>, _> = text.split(',').map(str::parse).collect();
        let numbers = numbers.ok().filter(|numbers| numbers.iter().all(|number| *number > 2));
        numbers.and_then(|numbers| numbers.try_into().ok()).map(Self).ok_or_else(|| "not what a keeper says".into())
    }
}

impl Sockets {
    /// Takes the descriptors over.
    pub fn take(self) -> Result<Errands, Failure> {
        let [segments, looks] = self.0;
        let errands = Errands { segments: Socket::new(kept::own(segments)?), looks: Socket::new(kept::own(looks)?) };
        // What fails is told by the first answer that does not come.
        let _ = errands.segments.set_patience(TO_ANSWER);
        let _ = errands.looks.set_patience(TO_LOOK);
        Ok(errands)
    }
}

/// One of them, until it fails.
struct Socket(Mutex<Option<OwnedFd>>);

impl Socket {
    fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(Some(socket)))
    }

    fn set_patience(&self, seconds: i64) -> io::Result<()> {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        socket.iter().try_for_each(|socket| Ok(setsockopt(socket, ReceiveTimeout, &TimeVal::new(seconds, 0))?))
    }

    /// Has something done: what came of it, and a descriptor.
    fn ask(&self, errand: Errand, with: &[BorrowedFd<'_>]) -> io::Result<(u32, Option<OwnedFd>)> {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = socket.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        let asked = send(open, &errand.to_bytes(), with).and_then(|()| {
            let mut answer = [0; ANSWER];
            match receive(open, &mut answer, Patience::Wait)? {
                (ANSWER, descriptors) => Ok((answer, descriptors)),
                _ => Err(io::ErrorKind::NotConnected.into()),
            }
        });
        let (answer, descriptors) = match asked {
            Ok(answered) => answered,
            Err(error) => {
                // An answer that comes later would be taken for that of another question.
                *socket = None;
                log::error!("the keeper does not answer: {}", reason(&error));
                return Err(error);
            }
        };
        let word = |at: usize| u32::from_le_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]]);
        match word(0) {
            0 => Ok((word(4), descriptors.into_iter().next())),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }
}

/// The keeper, as a server without rights asks it.
pub struct Errands {
    segments: Socket,
    looks: Socket,
}

impl Errands {
    /// The server gives up its rights from now on: the keeper is to know where segments are.
    pub fn begin(&self, fuse: BorrowedFd<'_>, directories: &[OwnedFd]) -> io::Result<()> {
        let all: Vec<_> = std::iter::once(fuse).chain(directories.iter().map(AsFd::as_fd)).collect();
        self.segments.ask(Errand::Reach, &all).map(drop)
    }

    /// Has the mount go, lazily where files are open; the keeper's log says how it went.
    pub fn unmount(&self) -> io::Result<()> {
        self.looks.ask(Errand::Unmount, &[]).map(drop)
    }

    /// The log's file, as it has its name now.
    pub fn log(&self) -> io::Result<File> {
        let (_, descriptor) = self.looks.ask(Errand::Log, &[])?;
        descriptor.map(File::from).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Privileged for Errands {
    /// Which connection it is, the keeper knows.
    fn give_segment(&self, _: BorrowedFd<'_>, segment: BorrowedFd<'_>) -> io::Result<u32> {
        Ok(self.segments.ask(Errand::Give, &[segment])?.0)
    }

    fn take_back(&self, _: BorrowedFd<'_>, number: u32) -> io::Result<()> {
        self.segments.ask(Errand::Take(number), &[]).map(drop)
    }

    fn has_open_to_write(&self, pid: u32, device: Option<(u32, u32)>, ino: u64) -> bool {
        self.looks.ask(Errand::Writes { pid, device, ino }, &[]).is_ok_and(|(writes, _)| writes != 0)
    }

    fn exit_signal(&self, pid: u32) -> io::Result<Option<i32>> {
        let (signal, _) = self.looks.ask(Errand::Signal(pid), &[])?;
        Ok(Some(signal as i32).filter(|signal| *signal != 0))
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], with: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers: Vec<RawFd> = with.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let rights = if numbers.is_empty() { &[] } else { &rights[..] };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// What errands are run for.
#[derive(Clone, Debug)]
pub struct Mount {
    pub pool: PathBuf,
    pub mountpoint: PathBuf,
    pub log: Option<PathBuf>,
}

/// A server's ends of two new sockets. What it asks there is done until it ends.
pub fn run(mount: &Mount) -> io::Result<[OwnedFd; 2]> {
    let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let reach = Arc::new(OnceLock::new());
    let ((segments, theirs), (looks, theirs_too)) = (pair()?, pair()?);
    for (name, socket) in [("giving", segments), ("looking", looks)] {
        let mut runner = Runner { mount: mount.clone(), reach: reach.clone() };
        thread::Builder::new().name(name.to_owned()).spawn(move || runner.run(&socket))?;
    }
    Ok([theirs, theirs_too])
}

/// What a server may reach.
struct Reach {
    fuse: OwnedFd,
    /// Whose the pool is.
    owner: u32,
    /// Where segments are, the pool's own first.
    directories: Vec<OwnedFd>,
}

struct Runner {
    mount: Mount,
    reach: Arc<OnceLock<Reach>>,
}

impl Runner {
    /// Until the server has ended, or says what nobody says.
    fn run(&mut self, socket: &OwnedFd) {
        let mut bytes = [0; MESSAGE];
        while let Ok((MESSAGE, descriptors)) = receive(socket, &mut bytes, Patience::Wait) {
            let Some(errand) = Errand::from_bytes(&bytes) else { return };
            let done = self.run_one(errand, descriptors);
            let (errno, value, file) = match done {
                Ok((value, file)) => (0, value, file),
                Err(error) => (error.raw_os_error().unwrap_or(libc::EIO), 0, None),
            };
            let mut answer = [0; ANSWER];
            answer[..4].copy_from_slice(&errno.to_le_bytes());
            answer[4..].copy_from_slice(&value.to_le_bytes());
            let with: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            if send(socket, &answer, &with).is_err() {
                return;
            }
        }
    }

    fn run_one(&mut self, errand: Errand, descriptors: Vec<OwnedFd>) -> io::Result<(u32, Option<OwnedFd>)> {
        let reach = || self.reach.get().ok_or_else(|| io::Error::from(Errno::EACCES));
        match errand {
            Errand::Reach => {
                let reach = Reach::new(descriptors)?;
                self.reach.set(reach).map_err(|_| io::Error::from(Errno::EALREADY))?;
                Ok((0, None))
            }
            Errand::Give => {
                let reach = reach()?;
                let [segment] = descriptors.try_into().map_err(|_| io::Error::from(Errno::EBADMSG))?;
                reach.check(&segment)?;
                Ok((Own.give_segment(reach.fuse.as_fd(), segment.as_fd())?, None))
            }
            Errand::Take(number) => Own.take_back(reach()?.fuse.as_fd(), number).map(|()| (0, None)),
            Errand::Writes { pid, device, ino } => Ok((u32::from(Own.has_open_to_write(pid, device, ino)), None)),
            Errand::Signal(pid) => Ok((Own.exit_signal(pid)?.unwrap_or(0) as u32, None)),
            Errand::Log => {
                let log = self.mount.log.as_deref().ok_or(Errno::ENOENT)?;
                Ok((0, Some(log_file::open(log)?.into())))
            }
            Errand::Unmount => {
                Mounted::inherited(&reach()?.fuse, &self.mount.pool, &self.mount.mountpoint).stop();
                Ok((0, None))
            }
        }
    }
}

impl Reach {
    fn new(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let mut all = descriptors.into_iter();
        let fuse = all.next().ok_or(Errno::EBADMSG)?;
        let directories: Vec<_> = all.collect();
        let pool = directories.first().ok_or(Errno::EBADMSG)?;
        Ok(Self { owner: fstat(pool)?.st_uid, fuse, directories })
    }

    /// That what is open is a regular file of the owner's, and has a name beneath a directory that segments are in.
    /// The path that the kernel has for it only says where to look: seen from another mount namespace, it may be any.
    fn check(&self, segment: &OwnedFd) -> io::Result<()> {
        let found = fstat(segment)?;
        let is_regular = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        let flags = OFlag::from_bits_retain(fcntl(segment, FcntlArg::F_GETFL)?);
        if !is_regular || found.st_uid != self.owner || flags.contains(OFlag::O_PATH) {
            return Err(Errno::EACCES.into());
        }
        let path = path_of(segment)?;
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).resolve(
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
        let is_there = |directory: &OwnedFd| {
            let above = path_of(directory).ok()?;
            let named = openat2(directory, path.strip_prefix(above).ok()?, how).and_then(fstat).ok()?;
            Some((named.st_dev, named.st_ino) == (found.st_dev, found.st_ino))
        };
        if self.directories.iter().any(|directory| is_there(directory) == Some(true)) {
            Ok(())
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
}

fn path_of(open: &OwnedFd) -> io::Result<PathBuf> {
    Ok(readlink(Path::new(&format!("/proc/self/fd/{}", open.as_raw_fd())))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_asked_for_arrives() {
        let device = Some((7, u32::MAX));
        for errand in [
            Errand::Reach,
            Errand::Give,
            Errand::Take(u32::MAX),
            Errand::Writes { pid: 3, device, ino: u64::MAX - 1 },
            Errand::Writes { pid: 3, device: None, ino: 1 },
            Errand::Signal(9),
            Errand::Log,
            Errand::Unmount,
        ] {
            assert_eq!(Errand::from_bytes(&errand.to_bytes()), Some(errand));
        }
        assert_eq!(Errand::from_bytes(&[7; MESSAGE]), None);
    }

    fn open(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn the_kernel_is_given_segments_alone() {
        let room = tempfile::tempdir().unwrap();
        let (pool, tier) = (room.path().join("pool"), room.path().join("tier"));
        for directory in [&pool, &tier] {
            fs::create_dir_all(directory.join("segments/3f")).unwrap();
        }
        let (own, other) = (pool.join("segments/3f/1"), room.path().join("other"));
        for path in [&own, &tier.join("segments/3f/2"), &other] {
            fs::write(path, "bytes").unwrap();
        }
        let null = File::open("/dev/null").unwrap().into();
        let reach = Reach::new(vec![null, open(&pool), open(&tier)]).unwrap();
        let takes = |segment: OwnedFd| reach.check(&segment).is_ok();
        assert!(takes(open(&own)));
        assert!(takes(open(&tier.join("segments/3f/2"))));
        // What is not in there, has no name, or is no file.
        assert!(!takes(open(&other)));
        assert!(!takes(open(&pool)));
        assert!(!takes(open(Path::new("/dev/null"))));
        let named = nix::fcntl::open(&own, OFlag::O_PATH, nix::sys::stat::Mode::empty()).unwrap();
        assert!(!takes(named));
        let removed = open(&own);
        fs::remove_file(&own).unwrap();
        assert!(!takes(removed));
        // A link in there to what is not.
        std::os::unix::fs::symlink(&other, &own).unwrap();
        assert!(!takes(open(&own)));
        // A file that has the name now is another one.
        let before = open(&tier.join("segments/3f/2"));
        fs::rename(&other, tier.join("segments/3f/2")).unwrap();
        assert!(!takes(before));
        // The pool may be somewhere else by now.
        fs::rename(&pool, room.path().join("moved")).unwrap();
        fs::write(room.path().join("moved/segments/3f/4"), "bytes").unwrap();
        assert!(takes(open(&room.path().join("moved/segments/3f/4"))));
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(tier.join("segments/3f/2"), Some(1), None).unwrap();
            assert!(!takes(open(&tier.join("segments/3f/2"))));
        }
    }

    /// Who has said nothing of what it may reach has nothing done.
    #[test]
    fn errands_are_run_behind_the_first_one() {
        let mount = Mount { pool: "/nowhere".into(), mountpoint: "/nowhere".into(), log: None };
        let [segments, looks] = run(&mount).unwrap();
        let errands = Errands { segments: Socket::new(segments), looks: Socket::new(looks) };
        let null: OwnedFd = File::open("/dev/null").unwrap().into();
        let refused = |done: io::Result<()>| done.unwrap_err().kind() == io::ErrorKind::PermissionDenied;
        assert!(refused(errands.unmount()));
        assert!(refused(errands.give_segment(null.as_fd(), null.as_fd()).map(drop)));
        assert!(refused(errands.take_back(null.as_fd(), 1)));
        assert!(errands.log().is_err());
        assert!(!errands.has_open_to_write(std::process::id(), None, u64::MAX));
        assert_eq!(errands.exit_signal(std::process::id()).unwrap(), None);
        let room = tempfile::tempdir().unwrap();
        errands.begin(null.as_fd(), &[open(room.path())]).unwrap();
        assert!(errands.begin(null.as_fd(), &[open(room.path())]).is_err(), "nobody else's either");
        // A message that nobody says ends it.
        send(errands.looks.0.lock().unwrap().as_ref().unwrap(), &[9; MESSAGE], &[]).unwrap();
        assert!(errands.unmount().is_err() && errands.unmount().is_err());
    }
}

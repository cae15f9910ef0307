//! What a server has its keeper do that has given up its rights: `Errands` is the server's end, [`run`] the keeper's.
//!
//! There are two sockets. At the first: giving segments to the kernel and taking them back. At the second, where what
//! is asked may take longer: what others have open, how they end, the log under its name, and unmounting, or what comes
//! before that where somebody else has mounted.
//!
//! A message has 32 bytes and a number, its answer 12 and the same one, and several are under way at a time: what the
//! host is late with for one segment keeps no other waiting. Nobody waits for an answer for longer than [`TO_ANSWER`];
//! one that comes later undoes what it tells of. A server of an earlier version gives no numbers, and a keeper of one
//! answers in eight bytes, without any: then one waits for the other.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl, openat, openat2, readlink};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, sendmsg, shutdown, socketpair,
};
use nix::sys::stat::{Mode, SFlag, fstat};
use tensorfs_fs::{Own, Privileged};

use crate::mounting::fuse_device::Mounted;
use crate::mounting::message::{Patience, receive};
use crate::mounting::{given, kept};
use crate::show::failure::{Failure, reason};
use crate::show::{log_file, logging};

/// So long an answer is waited for: about a segment; and about what takes looking around.
const TO_ANSWER: Duration = Duration::from_secs(10);
const TO_LOOK: Duration = Duration::from_secs(60);
/// So long, if the keeper has not answered anybody since an answer did not come.
const SILENT: Duration = Duration::from_secs(1);
/// So many errands are run at a time from one socket.
const AT_A_TIME: usize = 64;
const MESSAGE: usize = 32;
const ANSWER: usize = 12;
/// An answer without a number.
const UNNUMBERED: usize = 8;

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
    /// The mount is to go; one that somebody else has made, to be served no more.
    Unmount,
    /// The kernel is to write what it would drop then.
    WriteBack,
}

impl Errand {
    fn to_bytes(self, number: u32) -> [u8; MESSAGE] {
        let (kind, a, device, n) = match self {
            Self::Reach => (0, 0, None, 0),
            Self::Give => (1, 0, None, 0),
            Self::Take(number) => (2, number, None, 0),
            Self::Writes { pid, device, ino } => (3, pid, device, ino),
            Self::Signal(pid) => (4, pid, None, 0),
            Self::Log => (5, 0, None, 0),
            Self::Unmount => (6, 0, None, 0),
            Self::WriteBack => (7, 0, None, 0),
        };
        let (major, minor) = device.unwrap_or_default();
        let mut bytes = [0; MESSAGE];
        for (at, word) in [kind, a, u32::from(device.is_some()), major, minor, number].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&n.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; MESSAGE]) -> Option<(Self, u32)> {
        let word = |at: usize| word(bytes, at);
        let a = word(4);
        let errand = match word(0) {
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
            7 => Self::WriteBack,
            _ => return None,
        };
        Some((errand, word(20)))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
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
    /// Their numbers.
    pub fn numbers(self) -> impl Iterator<Item = RawFd> {
        self.0.into_iter()
    }

    /// Takes the descriptors over.
    pub fn take(self) -> Result<Errands, Failure> {
        let [segments, looks] = self.0;
        Ok(Errands {
            segments: Socket::new(kept::own(segments)?, TO_ANSWER),
            looks: Socket::new(kept::own(looks)?, TO_LOOK),
        })
    }
}

/// One of them.
struct Socket {
    socket: OwnedFd,
    patience: Duration,
    asked: Mutex<Asked>,
    /// An answer has come, or somebody else is to receive them.
    answered: Condvar,
}

/// What is under way at a socket.
#[derive(Default)]
struct Asked {
    last: u32,
    /// By their numbers, and the answers that have come.
    waiting: HashMap<u32, Option<Answer>>,
    /// Nobody waits any more for an answer that would give a number of the kernel's.
    given_up: HashMap<u32, Errand>,
    /// Somebody receives answers, for all who wait.
    receiving: bool,
    /// The keeper has answered nobody since somebody gave up.
    silent: bool,
    /// Whether the keeper numbers its answers, once that is known.
    numbers: Option<bool>,
    /// Nothing can be asked any more.
    over: bool,
}

/// What came of an errand.
#[derive(Debug)]
struct Answer {
    errno: u32,
    value: u32,
    descriptor: Option<OwnedFd>,
}

impl Answer {
    fn result(self) -> io::Result<(u32, Option<OwnedFd>)> {
        match self.errno {
            0 => Ok((self.value, self.descriptor)),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }
}

impl Socket {
    fn new(socket: OwnedFd, patience: Duration) -> Self {
        Self { socket, patience, asked: Mutex::default(), answered: Condvar::new() }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, asked: MutexGuard<'a, Asked>, longest: Duration) -> MutexGuard<'a, Asked> {
        self.answered.wait_timeout(asked, longest).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Has something done: what came of it, and a descriptor.
    fn ask(&self, errand: Errand, with: &[BorrowedFd<'_>]) -> io::Result<(u32, Option<OwnedFd>)> {
        let mut asked = self.asked();
        let patience = if asked.silent { SILENT.min(self.patience) } else { self.patience };
        let deadline = Instant::now() + patience;
        // Until it is known whether answers have numbers, and where they have none, one waits for the other.
        while asked.numbers != Some(true) && !asked.waiting.is_empty() && !asked.over {
            match deadline.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => asked = self.wait(asked, left),
                _ => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        if asked.over {
            return Err(io::ErrorKind::NotConnected.into());
        }
        asked.last = asked.last.wrapping_add(1).max(1);
        let number = asked.last;
        asked.waiting.insert(number, None);
        drop(asked);
        // As many as ever wait find room in the socket; if not, the keeper has long been behind.
        if let Err(error) = send(&self.socket, &errand.to_bytes(number), with, MsgFlags::MSG_DONTWAIT) {
            let mut asked = self.asked();
            asked.waiting.remove(&number);
            self.answered.notify_all();
            if error.kind() != io::ErrorKind::WouldBlock {
                self.end(&mut asked, &error);
            }
            return Err(error);
        }
        self.wait_for(number, errand, deadline)
    }

    /// Waits for an answer, and receives those of others meanwhile if nobody else does.
    fn wait_for(&self, number: u32, errand: Errand, deadline: Instant) -> io::Result<(u32, Option<OwnedFd>)> {
        let mut asked = self.asked();
        loop {
            if let Some(Some(answer)) = asked.waiting.get_mut(&number).map(Option::take) {
                asked.waiting.remove(&number);
                self.answered.notify_all();
                return answer.result();
            }
            if asked.over {
                asked.waiting.remove(&number);
                return Err(io::ErrorKind::NotConnected.into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.give_up(asked, number, errand));
            }
            if asked.receiving {
                asked = self.wait(asked, left);
                continue;
            }
            asked.receiving = true;
            drop(asked);
            let received = self.receive(left);
            asked = self.asked();
            asked.receiving = false;
            match received {
                Ok(Some((of, answer))) => self.hand_on(&mut asked, of, answer),
                Ok(None) => {}
                Err(error) => self.end(&mut asked, &error),
            }
            self.answered.notify_all();
        }
    }

    /// The next answer, and of which message it is if it says so; none if none comes so soon.
    fn receive(&self, longest: Duration) -> io::Result<Option<(Option<u32>, Answer)>> {
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        let longest = PollTimeout::try_from(longest.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, longest) {
            Ok(0) | Err(Errno::EINTR) => return Ok(None),
            polled => polled?,
        };
        let mut bytes = [0; ANSWER];
        let (len, descriptors) = match receive(&self.socket, &mut bytes, Patience::Now) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            received => received?,
        };
        let descriptor = descriptors.into_iter().next();
        let answer = Answer { errno: word(&bytes, 0), value: word(&bytes, 4), descriptor };
        match len {
            ANSWER => Ok(Some((Some(word(&bytes, 8)), answer))),
            UNNUMBERED => Ok(Some((None, answer))),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// An answer has come.
    fn hand_on(&self, asked: &mut Asked, of: Option<u32>, answer: Answer) {
        asked.silent = false;
        asked.numbers = Some(of.is_some());
        // Where they have none, it is that of the only one.
        let Some(number) = of.or_else(|| asked.waiting.keys().next().copied()) else { return };
        if let Some(waiting) = asked.waiting.get_mut(&number) {
            *waiting = Some(answer);
        } else if let Some(Errand::Give) = asked.given_up.remove(&number)
            && let (0, backing) = (answer.errno, answer.value)
        {
            // Nobody knows of it. The answer to this has nobody who waits for it either.
            asked.last = asked.last.wrapping_add(1).max(1);
            let take = Errand::Take(backing).to_bytes(asked.last);
            let _ = send(&self.socket, &take, &[], MsgFlags::MSG_DONTWAIT);
        }
    }

    /// Nobody waits for an answer any more.
    fn give_up(&self, mut asked: MutexGuard<'_, Asked>, number: u32, errand: Errand) -> io::Error {
        asked.waiting.remove(&number);
        if !asked.silent {
            log::error!("the keeper does not answer");
        }
        asked.silent = true;
        let error = io::Error::from(io::ErrorKind::TimedOut);
        if asked.numbers == Some(true) {
            asked.given_up.insert(number, errand);
        } else {
            // An answer that comes later would be taken for that of another question.
            self.end(&mut asked, &error);
        }
        self.answered.notify_all();
        error
    }

    /// Nothing can be asked any more.
    fn end(&self, asked: &mut Asked, error: &io::Error) {
        if !asked.over {
            log::error!("the keeper does not answer: {}", reason(error));
        }
        asked.over = true;
        self.answered.notify_all();
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

    /// Has the kernel write what it would drop of a mount that somebody else has made. True if all of it has come.
    pub fn write_back(&self) -> io::Result<bool> {
        Ok(self.looks.ask(Errand::WriteBack, &[])?.0 != 0)
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

    fn has_open_to_write(&self, pid: u32, device: Option<(u32, u32)>, ino: u64) -> io::Result<bool> {
        Ok(self.looks.ask(Errand::Writes { pid, device, ino }, &[])?.0 != 0)
    }

    fn exit_signal(&self, pid: u32) -> io::Result<Option<i32>> {
        let (signal, _) = self.looks.ask(Errand::Signal(pid), &[])?;
        Ok(Some(signal as i32).filter(|signal| *signal != 0))
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], with: &[BorrowedFd<'_>], flags: MsgFlags) -> io::Result<()> {
    let numbers: Vec<RawFd> = with.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let rights = if numbers.is_empty() { &[] } else { &rights[..] };
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None)?;
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
    let (reach, wrote_back) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
    let ((segments, theirs), (looks, theirs_too)) = (pair()?, pair()?);
    for (name, socket) in [("giving", segments), ("looking", looks)] {
        let (mount, reach, wrote_back) = (mount.clone(), reach.clone(), wrote_back.clone());
        let (threads, free) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let runner = Runner { mount, reach, wrote_back, socket, name, threads, free };
        Arc::new(runner).start()?;
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
    /// The kernel was asked to write back, which waits for this very server: once is enough.
    wrote_back: Arc<AtomicBool>,
    socket: OwnedFd,
    name: &'static str,
    /// There are so many.
    threads: AtomicUsize,
    /// So many of them wait for an errand.
    free: AtomicUsize,
}

impl Runner {
    /// Starts another thread, unless there are very many.
    fn start(self: Arc<Self>) -> io::Result<()> {
        if self.threads.fetch_add(1, Ordering::SeqCst) >= AT_A_TIME {
            self.threads.fetch_sub(1, Ordering::SeqCst);
            return Ok(());
        }
        self.free.fetch_add(1, Ordering::SeqCst);
        let this = self.clone();
        let started = thread::Builder::new().name(self.name.to_owned()).spawn(move || this.run());
        started.map(drop).inspect_err(|_| {
            self.threads.fetch_sub(1, Ordering::SeqCst);
            self.free.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Until the server has ended, or says what nobody says. Where the last thread that waits for an errand takes one,
    /// another one waits for the next.
    fn run(self: Arc<Self>) {
        let mut bytes = [0; MESSAGE];
        while let Ok((MESSAGE, descriptors)) = receive(&self.socket, &mut bytes, Patience::Wait) {
            let Some((errand, asked)) = Errand::from_bytes(&bytes) else { break };
            if self.free.fetch_sub(1, Ordering::SeqCst) == 1
                && let Err(error) = self.clone().start()
            {
                log::warn!("running errands: {}", reason(&error));
            }
            let done = self.run_one(errand, descriptors);
            let (errno, value, file) = match done {
                Ok((value, file)) => (0, value, file),
                Err(error) => (error.raw_os_error().unwrap_or(libc::EIO), 0, None),
            };
            let mut answer = [0; ANSWER];
            answer[..4].copy_from_slice(&errno.to_le_bytes());
            answer[4..8].copy_from_slice(&value.to_le_bytes());
            answer[8..].copy_from_slice(&asked.to_le_bytes());
            // Who gives no numbers gets none.
            let answer = if asked == 0 { &answer[..UNNUMBERED] } else { &answer[..] };
            let with: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            if send(&self.socket, answer, &with, MsgFlags::empty()).is_err() {
                break;
            }
            self.free.fetch_add(1, Ordering::SeqCst);
        }
        // Nobody is answered any more, whichever thread waits for it.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }

    fn run_one(&self, errand: Errand, descriptors: Vec<OwnedFd>) -> io::Result<(u32, Option<OwnedFd>)> {
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
            Errand::Writes { pid, device, ino } => Ok((u32::from(Own.has_open_to_write(pid, device, ino)?), None)),
            Errand::Signal(pid) => Ok((Own.exit_signal(pid)?.unwrap_or(0) as u32, None)),
            Errand::Log => {
                let log = self.mount.log.as_deref().ok_or(Errno::ENOENT)?;
                let file = log_file::open(log)?;
                // Somebody has told the server alone that the log has another name.
                logging::go_on_with(&file)?;
                Ok((0, Some(file.into())))
            }
            Errand::Unmount => {
                let mounted = self.mounted(reach()?);
                if mounted.is_given() {
                    mounted.abort().map_err(io::Error::other)?;
                } else {
                    mounted.stop();
                }
                Ok((0, None))
            }
            Errand::WriteBack => {
                let mounted = self.mounted(reach()?);
                if self.wrote_back.swap(true, Ordering::SeqCst) {
                    return Err(Errno::EALREADY.into());
                }
                let Some(mount) = mounted.to_write_back() else { return Ok((0, None)) };
                let until = Instant::now() + given::WRITE_BACK;
                if let Err(why) = given::write_back(mount) {
                    log::warn!("{}: what was stored through mappings: {why}", mounted.mountpoint().display());
                    return Err(io::Error::other(why));
                }
                // The server may not look at what the kernel counts.
                Ok((u32::from(given::has_settled(mount, until)), None))
            }
        }
    }
}

impl Runner {
    fn mounted(&self, reach: &Reach) -> Mounted {
        Mounted::inherited(&reach.fuse, &self.mount.pool, &self.mount.mountpoint)
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
        let is_there = |directory: &OwnedFd| {
            let above = path_of(directory).ok()?;
            let named = look_beneath(directory, path.strip_prefix(above).ok()?).and_then(fstat).ok()?;
            Some((named.st_dev, named.st_ino) == (found.st_dev, found.st_ino))
        };
        if self.directories.iter().any(|directory| is_there(directory) == Some(true)) {
            Ok(())
        } else {
            Err(Errno::EACCES.into())
        }
    }
}

const LOOK: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// What stands beneath a directory, with no link on the way to it.
fn look_beneath(directory: &OwnedFd, way: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(LOOK)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(directory, way, how) {
        // A container, or the limits of a service, that lack the call.
        Err(Errno::ENOSYS | Errno::EPERM) => look_step_by_step(directory, way),
        looked => looked,
    }
}

/// As [`look_beneath`], one directory after the other.
fn look_step_by_step(directory: &OwnedFd, way: &Path) -> nix::Result<OwnedFd> {
    let mut parts = way.components().peekable();
    let mut at: Option<OwnedFd> = None;
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(Errno::EXDEV) };
        let is_last = parts.peek().is_none();
        let flags = if is_last { LOOK } else { LOOK | OFlag::O_DIRECTORY };
        at = Some(openat(at.as_ref().unwrap_or(directory), name, flags, Mode::empty())?);
    }
    at.ok_or(Errno::ENOENT)
}

fn path_of(open: &OwnedFd) -> io::Result<PathBuf> {
    Ok(readlink(Path::new(&format!("/proc/self/fd/{}", open.as_raw_fd())))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn what_is_beneath_a_directory_is_found_without_openat2_too() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/file"), "").unwrap();
        symlink("below", dir.path().join("link")).unwrap();
        symlink("file", dir.path().join("below/link")).unwrap();
        let open = OwnedFd::from(fs::File::open(dir.path()).unwrap());
        let number = |looked: OwnedFd| fstat(looked).unwrap().st_ino;
        for look in [look_beneath, look_step_by_step] {
            let found = number(look(&open, "below/file".as_ref()).unwrap());
            assert_eq!(found, fs::metadata(dir.path().join("below/file")).unwrap().ino());
            assert!(look(&open, "link/file".as_ref()).is_err());
            assert!(look(&open, "below/link".as_ref()).map_or(true, |link| number(link) != found));
            for way in ["", "..", "below/../below/file", "/", "below/none"] {
                assert!(look(&open, way.as_ref()).map_or(true, |looked| number(looked) == found), "{way}");
            }
        }
    }

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
            Errand::WriteBack,
        ] {
            assert_eq!(Errand::from_bytes(&errand.to_bytes(5)), Some((errand, 5)));
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
        symlink(&other, &own).unwrap();
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
        let errands = Errands { segments: Socket::new(segments, TO_ANSWER), looks: Socket::new(looks, TO_LOOK) };
        let null: OwnedFd = File::open("/dev/null").unwrap().into();
        let refused = |done: io::Result<()>| done.unwrap_err().kind() == io::ErrorKind::PermissionDenied;
        assert!(refused(errands.unmount()));
        assert!(refused(errands.give_segment(null.as_fd(), null.as_fd()).map(drop)));
        assert!(refused(errands.take_back(null.as_fd(), 1)));
        assert!(errands.log().is_err());
        assert!(!errands.has_open_to_write(std::process::id(), None, u64::MAX).unwrap());
        assert_eq!(errands.exit_signal(std::process::id()).unwrap(), None);
        let room = tempfile::tempdir().unwrap();
        errands.begin(null.as_fd(), &[open(room.path())]).unwrap();
        assert!(errands.begin(null.as_fd(), &[open(room.path())]).is_err(), "nobody else's either");
        // What waits for the server itself is done once, whichever socket it is asked at.
        assert!(!errands.write_back().unwrap(), "nothing is known to have come");
        for socket in [&errands.looks, &errands.segments] {
            let again = socket.ask(Errand::WriteBack, &[]).unwrap_err();
            assert_eq!(again.raw_os_error(), Some(libc::EALREADY));
        }
        // A message that nobody says ends it.
        send(&errands.looks.socket, &[9; MESSAGE], &[], MsgFlags::empty()).unwrap();
        assert!(errands.unmount().is_err() && errands.unmount().is_err());
    }

    fn next(keeper: &OwnedFd) -> (Errand, u32) {
        let mut bytes = [0; MESSAGE];
        receive(keeper, &mut bytes, Patience::Wait).unwrap();
        Errand::from_bytes(&bytes).unwrap()
    }

    fn answer(keeper: &OwnedFd, value: u32, number: Option<u32>) {
        let words = [Some(0), Some(value), number];
        let bytes: Vec<u8> = words.into_iter().flatten().flat_map(u32::to_le_bytes).collect();
        send(keeper, &bytes, &[], MsgFlags::empty()).unwrap();
    }

    fn sockets(patience: Duration) -> (Arc<Socket>, OwnedFd) {
        let (here, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        (Arc::new(Socket::new(here, patience)), there)
    }

    type Asking = thread::JoinHandle<io::Result<u32>>;

    fn asking(socket: &Arc<Socket>, errand: Errand) -> Asking {
        let socket = socket.clone();
        thread::spawn(move || Ok(socket.ask(errand, &[])?.0))
    }

    #[test]
    fn an_answer_that_is_late_keeps_no_other_waiting() {
        let (socket, keeper) = sockets(Duration::from_secs(60));
        let first = asking(&socket, Errand::Log);
        answer(&keeper, 1, Some(next(&keeper).1));
        assert_eq!(first.join().unwrap().unwrap(), 1);
        let late = asking(&socket, Errand::Give);
        let late_one = next(&keeper);
        for n in 2..5 {
            let other = asking(&socket, Errand::Signal(n));
            let (errand, number) = next(&keeper);
            assert_eq!(errand, Errand::Signal(n));
            answer(&keeper, n, Some(number));
            assert_eq!(other.join().unwrap().unwrap(), n);
        }
        answer(&keeper, 9, Some(late_one.1));
        assert_eq!(late.join().unwrap().unwrap(), 9);
    }

    /// What it tells of is undone, and others are asked as before.
    #[test]
    fn an_answer_that_nobody_waits_for_any_more_ends_nothing() {
        let (socket, keeper) = sockets(Duration::from_millis(300));
        let first = asking(&socket, Errand::Log);
        answer(&keeper, 1, Some(next(&keeper).1));
        first.join().unwrap().unwrap();
        let late = asking(&socket, Errand::Give);
        let late_one = next(&keeper);
        assert_eq!(late.join().unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        answer(&keeper, 9, Some(late_one.1));
        let other = asking(&socket, Errand::Give);
        let (errand, number) = next(&keeper);
        assert_eq!(errand, Errand::Give);
        assert_eq!(next(&keeper).0, Errand::Take(9), "the kernel keeps a segment that nobody knows of");
        answer(&keeper, 10, Some(number));
        assert_eq!(other.join().unwrap().unwrap(), 10);
    }

    /// As a keeper of an earlier version.
    #[test]
    fn where_answers_have_no_numbers_one_waits_for_the_other() {
        let (socket, keeper) = sockets(Duration::from_secs(60));
        let asked = [asking(&socket, Errand::Signal(7)), asking(&socket, Errand::Signal(7))];
        for n in 1..3 {
            assert_eq!(next(&keeper).0, Errand::Signal(7));
            let more = receive(&keeper, &mut [0; MESSAGE], Patience::Now);
            assert_eq!(more.unwrap_err().kind(), io::ErrorKind::WouldBlock);
            answer(&keeper, n, None);
        }
        let mut answers: Vec<u32> = asked.into_iter().map(|asked| asked.join().unwrap().unwrap()).collect();
        answers.sort_unstable();
        assert_eq!(answers, [1, 2]);
    }
}

//! Asking a keeper for another server: with another program, or with other options; or to leave to another keeper.
//!
//! The keeper listens on a socket with an abstract name (unix(7)), which has its pid; and where that is the name of a
//! keeper of another process namespace, as in the other container of a pod, that of its own namespace, too. It executes
//! what it is given, with its own rights: so it hears its own user and root, and of them processes that have those
//! rights anyway. Who is only called root, in a container with the same network or without capabilities, is refused.
//! One message says how the server is to be started, and has the program with it as an open file; one answer says why
//! that was not done, or nothing.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::sys::socket::sockopt::{ReceiveTimeout, SendTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind, connect,
    listen, recv, send, sendmsg, setsockopt, shutdown, socket,
};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};
use nix::sys::time::TimeVal;
use nix::unistd::{Pid, geteuid};

use crate::mounting::busy::has_locked;
use crate::mounting::keeper::adoption;
use crate::mounting::keeper::peer::Peer;
use crate::mounting::message::{Patience, receive};
use crate::mounting::mountinfo::Mount;
use crate::mounting::process::KEEPER;
use crate::mounting::signals::TO_LEAVE;
use crate::mounting::{given, process};
use crate::show::failure::{Failure, reason};

/// The most that a message has.
const MOST: usize = 64 << 10;
/// What is said of whoever has gone before he was heard.
const WAITS_NO_MORE: &str = "whoever asked for another server waits no more";
/// Whoever connects has so many seconds to say what for.
const TO_ASK: i64 = 1;
/// What he is told who took longer: nothing was done. A machine may be as busy as that.
const TOO_LATE: &str = "it has not heard in time what for";
/// So often he tries.
const TRIES: usize = 10;
/// So long is waited for a new keeper.
const AGAIN: Duration = Duration::from_secs(60);
/// What a keeper does takes no longer than so long.
const TO_ANSWER: Duration = Duration::from_secs(200);
/// One that was stopped (SIGSTOP) for so long is not waited for.
const STOPPED: Duration = Duration::from_secs(10);
/// So often is looked whether it is, and so long it may take to be reached, in seconds.
const LOOK: i64 = 1;

/// What the log says of whoever is not heard. It begins without numbers, by which the log would take each for a kind of
/// line of its own.
const REFUSED: &str = "may not ask for another server";

/// What a keeper was asked for.
pub struct Wish {
    socket: OwnedFd,
    /// The program that is to serve, if another one is wanted.
    pub program: Option<File>,
    /// The options of the mount, if others are wanted.
    pub options: Option<String>,
    /// The next keeper is to start that server, with what the service manager keeps.
    pub leaves: bool,
}

impl Wish {
    /// Says why not, or that it is done.
    pub fn answer(self, answer: Result<(), String>) {
        let text = answer.err().unwrap_or_default();
        // Whoever asked may have gone.
        let _ = send(self.socket.as_raw_fd(), format!("={text}").as_bytes(), MsgFlags::MSG_NOSIGNAL);
    }
}

/// Where a keeper listens: at one of these.
fn addresses(keeper: Pid) -> impl Iterator<Item = io::Result<UnixAddr>> {
    let namespace = move || Ok(std::fs::read_link(format!("/proc/{keeper}/ns/pid"))?.display().to_string());
    let names = [Ok(String::new()), namespace().map(|own| format!("/{own}"))];
    let address = move |rest: io::Result<String>| {
        Ok(UnixAddr::new_abstract(format!("tensorfs-keeper/{keeper}{}", rest?).as_bytes())?)
    };
    names.into_iter().map(address)
}

fn new_socket(flags: SockFlag) -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, flags | SockFlag::SOCK_CLOEXEC, None)
}

/// Where this process, a keeper, can be asked.
pub fn open() -> io::Result<OwnedFd> {
    let socket = new_socket(SockFlag::SOCK_NONBLOCK)?;
    let mut bound = Err(Errno::EADDRINUSE);
    for (before, address) in addresses(Pid::this()).enumerate() {
        if bound == Err(Errno::EADDRINUSE) {
            if before > 0 {
                log::info!("listening by its second name: another process, as a keeper of a container, has the first");
            }
            bound = bind(socket.as_raw_fd(), &address?);
        }
    }
    bound?;
    listen(&socket, Backlog::new(8)?)?;
    Ok(socket)
}

/// The next one who asks, if he may.
pub fn next(listener: &OwnedFd) -> Option<Wish> {
    let accepted = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC).ok()?;
    // SAFETY: the kernel has just opened it for this process.
    let socket = unsafe { OwnedFd::from_raw_fd(accepted) };
    // Of one who has ended nobody can say who that was. Who has not asked was looking for another keeper, that of
    // another process namespace, and there is nothing to tell.
    if has_gone(&socket) {
        if has_said_something(&socket) {
            log::warn!("{WAITS_NO_MORE}");
        }
        return None;
    }
    let asker = match Peer::of(&socket) {
        Ok(asker) => asker,
        Err(error) => {
            log::warn!("{REFUSED}: whoever has connected: {}", reason(&error));
            return None;
        }
    };
    if asker.uid() != 0 && asker.uid() != geteuid().as_raw() {
        log::warn!("{REFUSED}: process {} of user {}", asker.pid(), asker.uid());
        return None;
    }
    if let Err(why) = asker.check_could_be() {
        log::warn!("{REFUSED}: process {} of user {}: {why}", asker.pid(), asker.uid());
        refuse(&socket, &format!("{REFUSED}: {why}"));
        return None;
    }
    match hear(&socket) {
        Ok((program, options, leaves)) => Some(Wish { socket, program, options, leaves }),
        Err(error) => {
            let is_late = error.kind() == io::ErrorKind::WouldBlock;
            let why = if is_late { TOO_LATE.to_owned() } else { reason(&error) };
            log::warn!("{REFUSED}: process {}: {why}", asker.pid());
            if is_late {
                refuse(&socket, &why);
            }
            None
        }
    }
}

/// Says why, to one who is not waited for. What it has said is taken, or it would hear of that alone.
fn refuse(socket: &OwnedFd, why: &str) {
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Read);
    let _ = receive(socket, &mut vec![0; MOST], Patience::Now);
    let _ = send(socket.as_raw_fd(), format!("={why}").as_bytes(), MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
}

/// What is wanted: the program, the options, and whether the next keeper is to start the server.
fn hear(socket: &OwnedFd) -> io::Result<(Option<File>, Option<String>, bool)> {
    setsockopt(socket, ReceiveTimeout, &TimeVal::new(TO_ASK, 0))?;
    let mut bytes = vec![0; MOST];
    let (text, programs) = hear_one(socket, &mut bytes)?;
    if has_gone(socket) {
        return Err(io::Error::other(WAITS_NO_MORE));
    }
    let program = programs.into_iter().next().map(File::from);
    let (options, leaves) = match text.split_at_checked(1) {
        Some(("o", list)) => (Some(list.to_owned()), false),
        Some(("l", list)) => (Some(list.to_owned()), true),
        Some(("p", "")) => (None, false),
        _ => return Err(Errno::EPROTO.into()),
    };
    Ok((program, options, leaves))
}

/// True if nobody will hear an answer.
fn has_gone(socket: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    let _ = poll(&mut asked, PollTimeout::ZERO);
    asked[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLHUP))
}

/// True if there is a message that was not heard.
fn has_said_something(socket: &OwnedFd) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(socket.as_raw_fd(), &mut [0], flags).is_ok_and(|len| len > 0)
}

/// One message: what it says, and the descriptors that came with it.
fn hear_one<'a>(socket: &OwnedFd, bytes: &'a mut [u8]) -> io::Result<(&'a str, Vec<OwnedFd>)> {
    let (len, descriptors) = receive(socket, bytes, Patience::Wait)?;
    let text = std::str::from_utf8(&bytes[..len]).map_err(|_| Errno::EPROTO)?;
    Ok((text, descriptors))
}

/// Who keeps watch over the server of a pool that is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// This process.
    By(Pid),
    /// Nobody any more; this is the server.
    NoMore(Pid),
    /// Nobody was to.
    Never,
}

impl Watch {
    /// Over the server of this mount.
    pub fn over(mount: &Mount) -> Result<Self, Failure> {
        let server = server_of(mount)?;
        let words = std::fs::read(format!("/proc/{server}/cmdline")).unwrap_or_default();
        if !words.split(|byte| *byte == 0).any(|word| word.starts_with(b"--kept=")) {
            return Ok(Self::Never);
        }
        Ok(match process::parent(server).filter(|parent| process::name(*parent) == KEEPER) {
            Some(parent) => Self::By(Pid::from_raw(parent as i32)),
            None => Self::NoMore(Pid::from_raw(server as i32)),
        })
    }
}

/// The server of a mount. Who it is the pool's lock says, and so its owner, who could name any process: it counts only
/// if that process has the connection of this mount; or, where the kernel tells nobody's, the lock.
pub fn server_of(mount: &Mount) -> Result<u32, Failure> {
    let pool = mount.source();
    let server = tensorfs_layout::pool::holder(pool)?.ok_or_else(|| Failure::at(pool, "no server has it"))?.pid;
    let serves = given::is_served_by(mount, server).or_else(|| has_locked(server, pool)).unwrap_or(false);
    if serves {
        return Ok(server);
    }
    Err(Failure::at(
        pool,
        format!("its lock names process {server}, which does not serve {}", mount.mount_point().display()),
    ))
}

/// Has a server whose keeper has died leave to one that is watched over, and that logs to a file. Returns who does so.
pub fn watch_again(mount: &Mount, server: Pid, log: Option<&Path>) -> Result<Pid, Failure> {
    let pool = mount.source();
    if process::is_stopped(server.as_raw() as u32) {
        let why = format!("process {server} is stopped, and cannot leave; kill -CONT {server} has it go on");
        return Err(Failure::at(pool, why));
    }
    if adoption::is_confined(server) {
        adoption::adopt(mount, server, log)?;
    }
    kill(server, TO_LEAVE).map_err(|errno| Failure::at(pool, format!("process {server}: {}", errno.desc())))?;
    let until = Instant::now() + AGAIN;
    while Instant::now() < until {
        match Watch::over(mount) {
            Ok(Watch::By(keeper)) => return Ok(keeper),
            // It has not left yet, or the next one has not begun.
            _ => thread::sleep(Duration::from_millis(5)),
        }
    }
    Err(Failure::at(pool, format!("process {server} has not left to another server; its log may say why")))
}

/// Has a keeper put another server in the place of the one that serves. Returns when that one serves; if it does not,
/// the one before goes on, and this is an error.
pub fn ask(keeper: Pid, program: Option<&File>, options: Option<&str>) -> Result<(), Failure> {
    say(keeper, program, &options.map_or("p".to_owned(), |list| format!("o{list}")))
}

/// Has a keeper and its server end and leave the mount to the next ones, which its service manager starts: of this
/// program, with these options. Returns when the server has ended; if it does not, this is an error.
pub fn ask_to_leave(keeper: Pid, program: &File, options: &str) -> Result<(), Failure> {
    say(keeper, Some(program), &format!("l{options}"))
}

fn say(keeper: Pid, program: Option<&File>, text: &str) -> Result<(), Failure> {
    let mut said = say_once(keeper, program, text);
    for _ in 1..TRIES {
        match said {
            Err(Refusal::TooLate) => said = say_once(keeper, program, text),
            _ => break,
        }
    }
    said.map_err(|refusal| match refusal {
        Refusal::TooLate => Failure::new(format!("the keeper, process {keeper}: {TOO_LATE}: the machine is too busy")),
        Refusal::For(failure) => failure,
    })
}

/// Why a keeper does not what it is asked for.
enum Refusal {
    /// It has not heard in time what that is.
    TooLate,
    For(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::For(failure)
    }
}

fn say_once(keeper: Pid, program: Option<&File>, text: &str) -> Result<(), Refusal> {
    let failed = |error: io::Error| Failure::new(format!("the keeper, process {keeper}: {}", reason(&error)));
    let socket = reach(keeper).map_err(failed)?;
    let numbers: Vec<_> = program.map(File::as_raw_fd).into_iter().collect();
    let with = [ControlMessage::ScmRights(&numbers)];
    let with = if numbers.is_empty() { &[] } else { &with[..] };
    let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(text.as_bytes())], with, MsgFlags::MSG_NOSIGNAL, None);
    // One that was refused before it has said anything may hear why.
    // So may one who was too late with it.
    sent.map(drop).or_else(|errno| if errno == Errno::EPIPE { Ok(()) } else { Err(failed(errno.into())) })?;
    let mut bytes = vec![0; MOST];
    let answer = hear_answer(keeper, &socket, &mut bytes).map_err(failed)?;
    match answer.strip_prefix('=') {
        Some("") => Ok(()),
        Some(TOO_LATE) => Err(Refusal::TooLate),
        Some(why) => Err(Failure::new(why.to_owned()).into()),
        None => {
            let what = format!("the keeper, process {keeper}, does not hear this user, or has ended");
            Err(Failure::new(what).into())
        }
    }
}

/// What a keeper answers, which may take its time, but not if it is stopped.
fn hear_answer<'a>(keeper: Pid, socket: &OwnedFd, bytes: &'a mut [u8]) -> io::Result<&'a str> {
    let (asked, mut went) = (Instant::now(), Instant::now());
    loop {
        match receive(socket, bytes, Patience::Wait) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && asked.elapsed() < TO_ANSWER => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
            Ok((len, _)) => return Ok(std::str::from_utf8(&bytes[..len]).map_err(|_| Errno::EPROTO)?),
        }
        if !process::is_stopped(keeper.as_raw() as u32) {
            went = Instant::now();
        } else if went.elapsed() >= STOPPED {
            return Err(io::Error::other(format!("it is stopped; kill -CONT {keeper} has it go on")));
        }
    }
}

fn reach(keeper: Pid) -> io::Result<OwnedFd> {
    let mut failed = io::Error::from(Errno::ECONNREFUSED);
    // It is not there, or another one: the next one may be it.
    let is_another = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::EPERM));
    for address in addresses(keeper) {
        match address.and_then(|address| reach_at(&address, keeper)) {
            Ok(socket) => return Ok(socket),
            Err(error) if is_another(&failed) => failed = error,
            Err(_) => {}
        }
    }
    Err(failed)
}

fn reach_at(address: &UnixAddr, keeper: Pid) -> io::Result<OwnedFd> {
    let socket = new_socket(SockFlag::empty())?;
    // One that takes nobody in has others wait in front of it.
    setsockopt(&socket, SendTimeout, &TimeVal::new(LOOK, 0))?;
    connect(socket.as_raw_fd(), address)?;
    // Anybody could have taken the name, and a keeper of another process namespace has. One who has listened and ended
    // may have had the number of this keeper, and left the socket to others.
    let listener = Peer::of(&socket)?;
    let is_it = listener.pid() == keeper.as_raw() && process::user(keeper.as_raw() as u32) == Some(listener.uid());
    if !is_it || listener.check_lives().is_err() {
        return Err(Errno::EPERM.into());
    }
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(LOOK, 0))?;
    Ok(socket)
}

/// The program at a path, to be started by a keeper.
pub fn program(path: &Path) -> io::Result<File> {
    // A FIFO would be waited for.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let (found, mut magic) = (file.metadata()?, [0; 4]);
    let may_run = found.is_file() && found.mode() & 0o111 != 0;
    // A script could not be started so.
    if !may_run || file.read_exact(&mut magic).is_err() || &magic != b"\x7fELF" {
        return Err(io::Error::other("not a program"));
    }
    // The keeper would wait for the server that is to go.
    if fstatfs(&file)?.filesystem_type() == FUSE_SUPER_MAGIC {
        return Err(io::Error::other(
            "it lies on a FUSE filesystem, which may be the one to be exchanged; copy it elsewhere",
        ));
    }
    Ok(file)
}

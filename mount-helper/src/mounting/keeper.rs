//! The keeper: starts the server, and another one in its place when it dies. It has `/dev/fuse` and the pool's lock
//! open meanwhile, so that the kernel lets requests wait and nobody else takes the pool; and a file in memory that says
//! what the kernel has open. It reads nothing of a pool, of clients, or of that file.
//!
//! A server that ends by itself has unmounted, or has said why it does not: the keeper ends with it. If the keeper is
//! killed, the server serves on.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::{SfdFlags, SigSet, SignalFd};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair};
use nix::unistd::{Pid, dup2_stdout};
use tensorfs_fs::Handover;

use crate::mounting::request::{MountRequest, PROGRAM};
use crate::show::failure::{Failure, reason};

/// A server that crashes so soon has not lived long.
const LONG: Duration = Duration::from_secs(10);
/// So many in a row that have not lived long are enough.
const ENOUGH: u32 = 3;
/// So many in a row that were killed before they served are enough: who kills them does not mean the next one.
const KILLED: u32 = 20;
/// Before another one is started in the place of one that never served.
const PAUSE: Duration = Duration::from_millis(100);

/// What is handed on from server to server.
struct Legacy {
    handover: OwnedFd,
    /// `/dev/fuse` and the pool's lock; none until the first server serves.
    inherited: Option<[OwnedFd; 2]>,
}

/// One server.
struct Life {
    child: Child,
    socket: OwnedFd,
    begun: Instant,
    serves: bool,
}

/// Keeps watch over servers of a mount until the last one has ended. Standard output is the pipe to whoever waits for
/// the first one to serve, if somebody does.
pub fn keep(request: &MountRequest, handshake: bool) -> Result<(), Failure> {
    let _ = prctl::set_name(c"tensorfs-keeper");
    let signals = take_signals().map_err(cannot_watch)?;
    let mut legacy = Legacy { handover: Handover::create().map_err(cannot_watch)?, inherited: None };
    let mut life = begin(request, &legacy, handshake, None)?;
    if handshake {
        // The pipe is the server's alone.
        let null = std::fs::File::options().write(true).open("/dev/null").map_err(cannot_watch)?;
        dup2_stdout(null).map_err(|errno| cannot_watch(errno.into()))?;
    }
    let (mut stopping, mut crashes, mut kills) = (false, 0, 0);
    loop {
        let status = watch(&mut life, &mut legacy, &signals, &mut stopping).map_err(cannot_watch)?;
        let died = status.signal().is_some() || (!life.serves && !status.success());
        if !died || stopping || legacy.inherited.is_none() {
            return ended(request, status);
        }
        let why = how(status);
        // Whoever kills it does so from outside; what makes it crash, or fail, may be there for the next one, too.
        match (status.signal() == Some(libc::SIGKILL), life.serves) {
            (true, true) => (crashes, kills) = (0, 0),
            (true, false) => kills += 1,
            (false, serves) => crashes = if serves && life.begun.elapsed() > LONG { 1 } else { crashes + 1 },
        }
        if crashes >= ENOUGH || kills >= KILLED {
            return Err(stays_dead(request, &why));
        }
        log::error!("{}: the server died ({why}); another one takes over", request.pool().display());
        if !life.serves {
            std::thread::sleep(PAUSE);
        }
        life = begin(request, &legacy, handshake, Some(&why))?;
    }
}

fn how(status: ExitStatus) -> String {
    match status.signal().map(|signal| (signal, Signal::try_from(signal))) {
        Some((_, Ok(signal))) => signal.to_string(),
        Some((number, Err(_))) => format!("signal {number}"),
        None => status.to_string(),
    }
}

fn take_signals() -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2] {
        set.add(signal);
    }
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Starts a server.
fn begin(request: &MountRequest, legacy: &Legacy, handshake: bool, after: Option<&str>) -> Result<Life, Failure> {
    let start = || -> io::Result<Life> {
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let handed: Vec<&OwnedFd> =
            [&theirs, &legacy.handover].into_iter().chain(legacy.inherited.iter().flatten()).collect();
        for descriptor in &handed {
            // It starts nothing but servers.
            fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let numbers: Vec<String> = handed.iter().map(|descriptor| descriptor.as_raw_fd().to_string()).collect();
        let mut command = Command::new("/proc/self/exe");
        command.arg0(PROGRAM).args(arguments(request, handshake, &numbers.join(","), after));
        if handshake {
            command.stdin(Stdio::null()).stderr(Stdio::null());
            if after.is_some() {
                command.stdout(Stdio::null());
            }
        }
        let child = command.spawn()?;
        Ok(Life { child, socket, begun: Instant::now(), serves: false })
    };
    start().map_err(|error| Failure::new(format!("cannot start a server: {}", reason(&error))))
}

fn arguments(request: &MountRequest, handshake: bool, numbers: &str, after: Option<&str>) -> Vec<OsString> {
    let mut arguments = request.server_arguments();
    arguments.retain(|word| handshake || word != "--handshake");
    arguments.insert(1, format!("--kept={numbers}").into());
    if let Some(why) = after {
        arguments.insert(2, format!("--after={why}").into());
    }
    arguments
}

/// Until the server has ended: takes what it hands over, and passes on what the keeper is told.
fn watch(life: &mut Life, legacy: &mut Legacy, signals: &SignalFd, stopping: &mut bool) -> io::Result<ExitStatus> {
    let mut hears = true;
    loop {
        let mut ready = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if hears {
            ready.push(PollFd::new(life.socket.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut ready, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        let spoke = ready.get(1).is_some_and(|socket| socket.any() == Some(true));
        if spoke {
            match receive(&life.socket)? {
                Some(descriptors) => {
                    legacy.inherited = Some(descriptors);
                    life.serves = true;
                }
                None => hears = false,
            }
        }
        while let Some(info) = signals.read_signal()? {
            let signal = Signal::try_from(info.ssi_signo as i32).unwrap_or(Signal::SIGCHLD);
            if signal == Signal::SIGCHLD {
                continue;
            }
            *stopping |= matches!(signal, Signal::SIGTERM | Signal::SIGINT);
            let _ = kill(Pid::from_raw(life.child.id() as i32), signal);
        }
        if let Some(status) = life.child.try_wait()? {
            // It may have said something just before.
            if hears && let Ok(Some(descriptors)) = receive(&life.socket) {
                legacy.inherited = Some(descriptors);
                life.serves = true;
            }
            return Ok(status);
        }
    }
}

/// What a server hands over: two descriptors. None once it has nothing more to say.
fn receive(socket: &OwnedFd) -> io::Result<Option<[OwnedFd; 2]>> {
    let mut byte = [0];
    let mut space = cmsg_space!([std::os::fd::RawFd; 2]);
    let mut buffer = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = match recvmsg::<()>(socket.as_raw_fd(), &mut buffer, Some(&mut space), flags) {
        Err(Errno::EAGAIN | Errno::ECONNRESET) => return Ok(None),
        message => message?,
    };
    let mut descriptors = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has just opened them for this process.
            descriptors.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok(descriptors.try_into().ok())
}

fn ended(request: &MountRequest, status: ExitStatus) -> Result<(), Failure> {
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => Err(Failure::at(request.pool(), format!("the server ended: {status}"))),
    }
}

fn stays_dead(request: &MountRequest, why: &str) -> Failure {
    let reason = format!("its servers die soon after their start, the last one of: {why}; it is not served any more");
    let failure = Failure::at(request.pool(), reason);
    log::error!("{failure}");
    failure
}

fn cannot_watch(error: io::Error) -> Failure {
    Failure::new(format!("cannot keep watch over a server: {}", reason(&error)))
}

//! The keeper: starts the server, and another one in its place when it dies. It has `/dev/fuse` and the pool's lock
//! open meanwhile, so that the kernel lets requests wait and nobody else takes the pool; and a file in memory that says
//! what the kernel has open. It reads nothing of a pool, of clients, or of that file.
//!
//! A server that ends by itself has unmounted, or has said why it does not: the keeper ends with it. If the keeper is
//! killed, the server serves on.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
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

use crate::mounting::kept::{READY, SERVES};
use crate::mounting::request::{MountRequest, PROGRAM};
use crate::show::failure::{Failure, reason};
use crate::show::logging;

/// A server that crashes so soon after it served has not lived long.
const LONG: Duration = Duration::from_secs(10);
/// So many in a row that have not lived long are enough.
const ENOUGH: u32 = 3;
/// So many in a row that were killed before they served are enough: who kills them does not mean the next one.
const KILLED: u32 = 20;
/// Before another one is started in the place of one that never served.
const PAUSE: Duration = Duration::from_millis(100);
/// One that is killed so soon after it served was killed early: each in a row makes the pause longer, up to the last.
const EARLY: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);
const LAST_STEP: u32 = 20;
/// So often is tried to start one, where the machine has no process or descriptor for it.
const TRIES: u32 = 60;
/// And so long is waited in between.
const AGAIN: Duration = Duration::from_secs(1);

/// Whoever watches over the servers of a mount.
struct Keeper<'a> {
    request: &'a MountRequest,
    handover: OwnedFd,
    /// `/dev/fuse` and the pool's lock; none until the first server serves.
    inherited: Option<[OwnedFd; 2]>,
    signals: SignalFd,
    /// It was asked to end.
    stopping: Option<Signal>,
    /// Standard output is the pipe to somebody who waits for the first server.
    awaited: bool,
    /// Servers say by that pipe how their start went.
    handshake: bool,
}

/// One server.
struct Life {
    child: Child,
    socket: OwnedFd,
    /// Since when it serves.
    serves: Option<Instant>,
}

/// How servers died, one after the other.
#[derive(Default)]
struct Deaths {
    crashes: u32,
    kills: u32,
    early: u32,
}

impl Deaths {
    /// How long to wait before another one is started; none if there have been enough. Whoever kills a server does so
    /// from outside; what makes it crash, or fail, may be there for the next one, too.
    fn count(&mut self, killed: bool, served: Option<Duration>) -> Option<Duration> {
        self.early = if killed && served.is_some_and(|time| time < EARLY) { self.early + 1 } else { 0 };
        match (killed, served) {
            (true, Some(_)) => (self.crashes, self.kills) = (0, 0),
            (true, None) => self.kills += 1,
            (false, Some(time)) if time > LONG => self.crashes = 1,
            (false, _) => self.crashes += 1,
        }
        let pause = if served.is_none() { PAUSE } else { STEP * self.early.min(LAST_STEP) };
        (self.crashes < ENOUGH && self.kills < KILLED).then_some(pause)
    }
}

/// What a server says.
enum Said {
    /// It serves: what the next one needs.
    Serves([OwnedFd; 2]),
    /// Nobody waits for that any more.
    Ready,
    /// Nothing more.
    Nothing,
}

/// Keeps watch over servers of a mount until the last one has ended. Standard output is the pipe to whoever waits for
/// the first one to serve, if there is a `handshake`.
pub fn keep(request: &MountRequest, handshake: bool) -> Result<(), Failure> {
    let _ = prctl::set_name(c"tensorfs-keeper");
    let signals = take_signals().map_err(cannot_watch)?;
    let handover = Handover::create().map_err(cannot_watch)?;
    let (inherited, stopping, awaited) = (None, None, handshake);
    let mut keeper = Keeper { request, handover, inherited, signals, stopping, awaited, handshake };
    let mut life = keeper.begin(None).map_err(cannot_start)?;
    let mut deaths = Deaths::default();
    loop {
        let status = keeper.watch(&mut life).map_err(cannot_watch)?;
        if status.success() || keeper.inherited.is_none() {
            return ended(request, status);
        }
        let (why, killed) = (how(status), status.signal() == Some(libc::SIGKILL));
        // One that was to end and failed at that has done nothing for long.
        let served = life.serves.filter(|_| killed || keeper.stopping.is_none());
        let Some(pause) = deaths.count(killed, served.map(|since| since.elapsed())) else {
            return Err(stays_dead(request, &why));
        };
        log::error!("{}: the server died ({why}); another one takes over", request.pool().display());
        thread::sleep(pause);
        life = keeper.begin_again(&why)?;
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

impl Keeper<'_> {
    /// Starts a server.
    fn begin(&self, after: Option<&str>) -> io::Result<Life> {
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let handed: Vec<&OwnedFd> =
            [&theirs, &self.handover].into_iter().chain(self.inherited.iter().flatten()).collect();
        for descriptor in &handed {
            // It starts nothing but servers.
            fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let numbers: Vec<String> = handed.iter().map(|descriptor| descriptor.as_raw_fd().to_string()).collect();
        let mut command = Command::new("/proc/self/exe");
        command.arg0(PROGRAM).args(self.arguments(&numbers.join(","), after));
        if self.handshake {
            command.stdin(Stdio::null()).stderr(Stdio::null());
        }
        Ok(Life { child: command.spawn()?, socket, serves: None })
    }

    /// Starts another one. Clients wait, so that it is tried for a while.
    fn begin_again(&self, why: &str) -> Result<Life, Failure> {
        let pool = self.request.pool().display();
        for left in (0..TRIES).rev() {
            match self.begin(Some(why)) {
                Ok(life) => return Ok(life),
                Err(error) => log::error!("{pool}: {}; {left} more tries", cannot_start(error)),
            }
            thread::sleep(AGAIN);
        }
        Err(stays_dead(self.request, "no other one could be started"))
    }

    fn arguments(&self, numbers: &str, after: Option<&str>) -> Vec<OsString> {
        let mut arguments = self.request.server_arguments();
        arguments.retain(|word| self.handshake || word != "--handshake");
        arguments.insert(1, format!("--kept={numbers}").into());
        if let Some(why) = after {
            arguments.insert(2, format!("--after={why}").into());
        }
        arguments
    }

    /// Until the server has ended: takes what it hands over, and passes on what the keeper is told.
    fn watch(&mut self, life: &mut Life) -> io::Result<ExitStatus> {
        let mut hears = true;
        loop {
            let mut ready = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            if hears {
                ready.push(PollFd::new(life.socket.as_fd(), PollFlags::POLLIN));
            }
            match poll(&mut ready, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                result => result?,
            };
            let spoke = ready.get(1).is_some_and(|socket| socket.any() == Some(true));
            if spoke {
                hears = self.hear(life)?;
            }
            while let Some(info) = self.signals.read_signal()? {
                self.pass_on(Signal::try_from(info.ssi_signo as i32).unwrap_or(Signal::SIGCHLD), life);
            }
            if let Some(status) = life.child.try_wait()? {
                // It may have said something just before.
                while hears {
                    hears = self.hear(life)?;
                }
                return Ok(status);
            }
        }
    }

    /// Hears what the server says. False if it has nothing more to say.
    fn hear(&mut self, life: &mut Life) -> io::Result<bool> {
        match receive(&life.socket)? {
            Said::Serves(descriptors) => {
                self.inherited = Some(descriptors);
                life.serves = Some(Instant::now());
                if let Some(signal) = self.stopping {
                    // The one before died of it, or before it had heard of it.
                    send(life, signal);
                }
            }
            Said::Ready if self.awaited => {
                dup2_stdout(File::options().write(true).open("/dev/null")?)?;
                self.awaited = false;
            }
            Said::Ready => {}
            Said::Nothing => return Ok(false),
        }
        Ok(true)
    }

    fn pass_on(&mut self, signal: Signal, life: &Life) {
        match signal {
            Signal::SIGCHLD => return,
            Signal::SIGHUP => logging::open_again(),
            Signal::SIGUSR1 => logging::change_level(true),
            Signal::SIGUSR2 => logging::change_level(false),
            _ => self.stopping = Some(signal),
        }
        send(life, signal);
    }
}

fn send(life: &Life, signal: Signal) {
    // Fails only if it has died, which is seen.
    let _ = kill(Pid::from_raw(life.child.id() as i32), signal);
}

/// What a server says next.
fn receive(socket: &OwnedFd) -> io::Result<Said> {
    let mut byte = [0];
    let mut space = cmsg_space!([std::os::fd::RawFd; 2]);
    let mut buffer = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = match recvmsg::<()>(socket.as_raw_fd(), &mut buffer, Some(&mut space), flags) {
        Err(Errno::EAGAIN | Errno::ECONNRESET) => return Ok(Said::Nothing),
        message => message?,
    };
    let mut descriptors = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has just opened them for this process.
            descriptors.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok(match (byte[0], descriptors.try_into()) {
        (SERVES, Ok(descriptors)) => Said::Serves(descriptors),
        (READY, _) => Said::Ready,
        _ => Said::Nothing,
    })
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
    Failure::at(request.pool(), reason)
}

fn cannot_start(error: io::Error) -> Failure {
    Failure::new(format!("cannot start a server: {}", reason(&error)))
}

fn cannot_watch(error: io::Error) -> Failure {
    Failure::new(format!("cannot keep watch over a server: {}", reason(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Option<Duration> = Some(Duration::from_millis(5));
    const LATE: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn servers_that_crash_soon_are_enough_one_day() {
        let mut deaths = Deaths::default();
        // A crash now and then is no reason to give up.
        assert!((0..100).all(|_| deaths.count(false, LATE).is_some()));
        assert!(deaths.count(false, SOON).is_some());
        assert!(deaths.count(false, None).is_none());
        // Nor is one who kills them, as long as they serve in between.
        let mut deaths = Deaths::default();
        assert!((0..1000).all(|_| deaths.count(true, SOON).is_some()));
        assert!((1..KILLED).all(|_| deaths.count(true, None).is_some()));
        assert!(deaths.count(true, None).is_none());
    }

    #[test]
    fn who_kills_again_and_again_makes_the_pause_longer() {
        let mut deaths = Deaths::default();
        let pauses: Vec<_> = (0..100).filter_map(|_| deaths.count(true, SOON)).collect();
        assert!(pauses.is_sorted() && pauses[0] < Duration::from_millis(20), "{pauses:?}");
        assert!(pauses[99] > Duration::from_millis(100) && pauses[99] < Duration::from_secs(1), "{pauses:?}");
        assert_eq!(deaths.count(true, LATE), Some(Duration::ZERO));
    }
}

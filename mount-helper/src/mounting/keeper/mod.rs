//! The keeper: starts the server, and another one in its place when it dies. It has `/dev/fuse` and the pool's lock
//! open meanwhile, so that the kernel lets requests wait and nobody else takes the pool; and a file in memory that says
//! what the kernel has open. It reads nothing of a pool, of clients, or of that file.
//!
//! A server that ends by itself has unmounted, or has said why it does not: the keeper ends with it. If the keeper is
//! killed, the server serves on. A service manager that keeps descriptors gets those that the next keeper needs: then
//! this one may leave, and its server with it, while the mount stays.

mod adoption;
pub mod alone;
pub mod errands;
pub mod exchange;
mod peer;
pub mod resume;
pub mod stored;
mod watchdog;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::{SfdFlags, SigSet, SignalFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{Pid, dup2_stdout};
use tensorfs_fs::{Handover, KEEPER_DIED, STARTED_AGAIN, TOLD_TO_LEAVE, UPGRADE, keep_to_quotas};

use crate::mounting::fuse_device::Mounted;
use crate::mounting::given;
use crate::mounting::keeper::alone::Alone;
use crate::mounting::keeper::exchange::Wish;
use crate::mounting::keeper::resume::Resumed;
use crate::mounting::keeper::stored::Manager;
use crate::mounting::keeper::watchdog::Watchdog;
use crate::mounting::kept::{Adopted, LEFT, READY, SERVES, WOULD_SERVE};
use crate::mounting::message::{self, Patience};
use crate::mounting::notify;
use crate::mounting::options::MountOptions;
use crate::mounting::request::{MountRequest, PROGRAM};
use crate::mounting::signals::{self, TO_LEAVE};
use crate::show::failure::{Failure, reason};
use crate::show::logging;

/// A server that crashes so soon after it served has not lived long.
const LONG: Duration = Duration::from_secs(10);
/// So many in a row that have not lived long are enough.
const ENOUGH: u32 = 3;
/// So many in a row that failed before they served are enough: what they need may be back soon, and programs wait.
const FAILED: u32 = 8;
/// So many in a row that were killed before they served are enough: who kills them does not mean the next one.
const KILLED: u32 = 20;
/// Before another one is started in the place of one that never served. Each in a row that has failed doubles it.
const PAUSE: Duration = Duration::from_millis(100);
/// One that is killed so soon after it served was killed early: each in a row makes the pause longer, up to the last.
const EARLY: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);
const LAST_STEP: u32 = 20;
/// So often is tried to start one, where the machine has no process or descriptor for it.
const TRIES: u32 = 60;
/// And so long is waited in between.
const AGAIN: Duration = Duration::from_secs(1);

/// So much of what a server says is heard at once.
const HEARD_AT_ONCE: u32 = 16;
/// So long a server may take that is to leave to another one.
const LEAVING: Duration = Duration::from_secs(10);
/// So long a server may take to end that does not answer.
const DUMPING: Duration = Duration::from_secs(5);
/// How that one has died.
const NO_ANSWER: &str = "it did not answer";
/// So long a program that is to serve may take to say whether it could, and in so many bytes.
const TO_SAY: Duration = Duration::from_secs(10);
const ANSWER: u64 = 4096;
/// So long it may take until it serves.
const TO_SERVE: Duration = Duration::from_secs(60);

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
    manager: Manager,
    /// Servers say by that pipe how their start went.
    handshake: bool,
    /// What the next server is.
    program: Program,
    /// And its options.
    options: MountOptions,
    /// Where the keeper can be asked for another one, if that could be had.
    listener: Option<OwnedFd>,
    /// What it was asked for, while the server leaves.
    wish: Option<Wish>,
    /// Whether the server answers.
    watchdog: Option<Watchdog>,
    /// Programs that were asked whether they could serve, and have not said so in time.
    given_up: Vec<Child>,
}

/// A program that serves.
enum Program {
    /// This one.
    Own,
    Other(File),
}

impl Program {
    fn path(&self) -> PathBuf {
        match self {
            Self::Own => "/proc/self/exe".into(),
            Self::Other(file) => path_of(file),
        }
    }
}

fn path_of(open: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", open.as_raw_fd()).into()
}

/// One server.
struct Life {
    child: Child,
    /// What it speaks by, until it has ended.
    socket: Option<OwnedFd>,
    /// Since when it serves.
    serves: Option<Instant>,
    /// Until when it may take to end.
    ends: Option<Instant>,
    /// It did not answer.
    hangs: bool,
}

/// How servers died, one after the other.
#[derive(Default)]
struct Deaths {
    crashes: u32,
    failures: u32,
    kills: u32,
    early: u32,
}

impl Deaths {
    /// How long to wait before another one is started; none if there have been enough. Whoever kills a server does so
    /// from outside; what makes it crash, or fail, may be there for the next one, too.
    fn count(&mut self, killed: bool, served: Option<Duration>) -> Option<Duration> {
        self.early = if killed && served.is_some_and(|time| time < EARLY) { self.early + 1 } else { 0 };
        if served.is_some() {
            (self.failures, self.kills) = (0, 0);
        }
        match (killed, served) {
            (true, Some(_)) => self.crashes = 0,
            (true, None) => self.kills += 1,
            (false, Some(time)) if time > LONG => self.crashes = 1,
            (false, Some(_)) => self.crashes += 1,
            (false, None) => self.failures += 1,
        }
        let pause = match (killed, served) {
            (_, Some(_)) => STEP * self.early.min(LAST_STEP),
            (true, None) => PAUSE,
            (false, None) => PAUSE * (1 << (self.failures - 1).min(FAILED)),
        };
        (self.crashes < ENOUGH && self.failures < FAILED && self.kills < KILLED).then_some(pause)
    }
}

/// What a server says.
enum Said {
    /// It serves: what the next one needs.
    Serves([OwnedFd; 2]),
    /// Nobody waits for that any more.
    Ready,
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    Ended,
}

/// Keeps watch over servers of a mount until the last one has ended. Standard output is the pipe to whoever waits for
/// the first one to serve, if there is a `handshake`.
pub fn keep(request: &MountRequest, handshake: bool, resumed: Option<Resumed>) -> Result<(), Failure> {
    let _ = prctl::set_name(c"tensorfs-keeper");
    // The kernel moves the bytes of segments with the rights of whoever has given them to it.
    keep_to_quotas();
    let signals = take_signals().map_err(cannot_watch)?;
    logging::write_beside();
    let (kept, why) = (resumed.as_ref().map(|resumed| resumed.name.clone()), resumed.as_ref().map(|_| STARTED_AGAIN));
    let is_own = !handshake && request.adopted.is_none();
    let (handover, inherited, alone) = match (request.adopted.map(Adopted::take).transpose()?, resumed) {
        (Some([handover, fuse, lock]), _) => (handover, Some([fuse, lock]), None),
        (None, Some(Resumed { handover, fuse, lock, alone, .. })) => (handover, Some([fuse, lock]), Some(alone)),
        (None, None) => (Handover::create().map_err(cannot_watch)?, None, None),
    };
    let _alone = alone.map_or_else(|| Alone::take(&handover), Ok).map_err(cannot_watch)?;
    let listener = exchange::open();
    if let Err(error) = &listener {
        log::warn!("{}: cannot be upgraded while it is mounted: {}", request.pool().display(), reason(error));
    }
    let mut keeper = Keeper {
        request,
        handover,
        awaited: handshake && inherited.is_none(),
        manager: Manager::new(is_own, kept),
        inherited,
        signals,
        stopping: None,
        handshake,
        program: Program::Own,
        options: request.options().clone(),
        listener: listener.ok(),
        wish: None,
        watchdog: request.options().watchdog().map(|patience| Watchdog::new(request.mountpoint(), patience)),
        given_up: Vec::new(),
    };
    let served = keeper.serve(why.unwrap_or(KEEPER_DIED));
    // Whatever becomes of the mount: nobody goes on with it.
    if !matches!(served, Ok(None)) {
        keeper.manager.forget();
    }
    served?.map_or(Ok(()), |status| ended(request, status))
}

impl Keeper<'_> {
    /// Until the last server has ended, and how; none if the mount is left to another keeper. `why` says why this one
    /// goes on with a mount, if it does.
    fn serve(&mut self, why: &str) -> Result<Option<ExitStatus>, Failure> {
        let keeper = self;
        let request = keeper.request;
        let mut life = match keeper.inherited {
            None => keeper.begin(None).map_err(cannot_start)?,
            Some(_) => keeper.begin_again(why)?,
        };
        let mut deaths = Deaths::default();
        loop {
            let status = keeper.watch(&mut life).map_err(cannot_watch)?;
            if status.success() || keeper.inherited.is_none() {
                return Ok(Some(status));
            }
            keeper.watchdog.iter_mut().for_each(Watchdog::forget);
            match keeper.wish.take() {
                Some(wish) if wish.leaves && keeper.stopping.is_none() => {
                    log::info!("{}: left to the next keeper", request.pool().display());
                    wish.answer(Ok(()));
                    return Ok(None);
                }
                Some(wish) if wish.leaves => wish.answer(Err("it is being unmounted".to_owned())),
                Some(wish) => {
                    life = keeper.fulfil(wish)?;
                    continue;
                }
                None => {}
            }
            // One that is ended as it does not answer has not crashed.
            let left = status.code() == Some(LEFT);
            let killed = life.hangs || left || status.signal() == Some(libc::SIGKILL);
            let why = match (life.hangs, left) {
                (true, _) => NO_ANSWER.to_owned(),
                (false, true) => TOLD_TO_LEAVE.to_owned(),
                (false, false) => how(status),
            };
            // One that was to end and failed at that has done nothing for long, and nobody waits for long that it does.
            let served = match keeper.stopping {
                Some(_) if !killed => Some(Duration::ZERO),
                _ => life.serves.map(|since| since.elapsed()),
            };
            let Some(pause) = deaths.count(killed, served) else {
                return Err(stays_dead(request, &why));
            };
            match left {
                true => log::info!("{}: the server left, as {why}; another one takes over", request.pool().display()),
                false => log::error!("{}: the server died ({why}); another one takes over", request.pool().display()),
            }
            thread::sleep(pause);
            life = keeper.begin_again(&why)?;
        }
    }
}

/// Starts a keeper that has another server take over as soon as this process has ended: a server whose keeper has died.
pub fn start(request: &MountRequest, handed: &[OwnedFd; 3]) -> io::Result<()> {
    for descriptor in handed {
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    let numbers = handed.each_ref().map(|descriptor| descriptor.as_raw_fd().to_string());
    let (gone, here) = io::pipe()?;
    let mut arguments = request.server_arguments();
    arguments.insert(1, format!("--adopted={}", numbers.join(",")).into());
    let mut command = Command::new("/proc/self/exe");
    command.arg0(PROGRAM).args(arguments).stdin(gone).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    // Until this process ends.
    std::mem::forget(here);
    Ok(())
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
    for signal in signals::TO_END_KEPT.into_iter().chain(signals::OF_THE_LOG).chain([Signal::SIGCHLD]) {
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
        let errands =
            if self.request.options().is_confined() { Some(errands::run(&self.request.into())?) } else { None };
        let numbers = |all: &[&OwnedFd]| -> String {
            all.iter().map(|one| one.as_raw_fd().to_string()).collect::<Vec<_>>().join(",")
        };
        let kept = numbers(&handed);
        let errands: Vec<&OwnedFd> = errands.iter().flatten().collect();
        let sockets = (!errands.is_empty()).then(|| numbers(&errands));
        let handed: Vec<&OwnedFd> = handed.into_iter().chain(errands).collect();
        for descriptor in &handed {
            fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let mut command = Command::new(self.program.path());
        command.env_remove(notify::SOCKET);
        command.arg0(PROGRAM).args(self.arguments(&kept, sockets.as_deref(), after));
        // What whoever mounted reads is not the server's.
        command.stdin(Stdio::null());
        if self.handshake {
            command.stderr(Stdio::null());
        } else {
            command.stdout(Stdio::null());
        }
        let child = command.spawn();
        // They are for nobody else who is started.
        for descriptor in &handed {
            fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        Ok(Life { child: child?, socket: Some(socket), serves: None, ends: None, hangs: false })
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

    fn arguments(&self, kept: &str, errands: Option<&str>, after: Option<&str>) -> Vec<OsString> {
        let mut arguments = self.request.arguments_with(&self.options.to_list());
        arguments.retain(|word| self.handshake || word != "--handshake");
        let more = [
            Some(format!("--kept={kept}")),
            errands.map(|numbers| format!("--errands={numbers}")),
            after.map(|why| format!("--after={why}")),
        ];
        arguments.splice(1..1, more.into_iter().flatten().map(OsString::from));
        arguments
    }

    /// Until the server has ended: takes what it hands over, and passes on what the keeper is told.
    fn watch(&mut self, life: &mut Life) -> io::Result<ExitStatus> {
        loop {
            // Whoever has the first one start waits for it himself.
            let is_watched = life.ends.is_none() && self.inherited.is_some();
            let dog = self.watchdog.as_ref().filter(|_| is_watched);
            let until = dog.map(Watchdog::next).into_iter().chain(life.ends).min();
            if let Some(status) = self.look(life, until)? {
                return Ok(status);
            }
            if life.ends.is_some_and(|ends| Instant::now() >= ends) {
                // What it has in hand, the next one does.
                send(life, Signal::SIGKILL);
                return life.child.wait();
            }
            let Some(dog) = self.watchdog.as_mut().filter(|_| life.ends.is_none() && self.inherited.is_some()) else {
                continue;
            };
            let hangs = match life.serves {
                Some(_) => dog.look().then_some("does not answer"),
                None => dog.look_at_start(life.child.id()).then_some("does not serve yet, and does nothing for it"),
            };
            if let Some(hangs) = hangs {
                self.give_up(life, hangs);
            }
        }
    }

    /// The server hangs, in this way: it is to end, and leaves a core dump where those are kept.
    fn give_up(&self, life: &mut Life, hangs: &str) {
        let pool = self.request.pool().display();
        log::error!("{pool}: the server, process {}, {hangs}; it is ended", life.child.id());
        for line in watchdog::threads(life.child.id()) {
            log::error!("{pool}: {line}");
        }
        send(life, Signal::SIGABRT);
        (life.hangs, life.ends) = (true, Some(Instant::now() + DUMPING));
    }

    /// Waits until something happens, or the time has come, and sees to it. Says how the server ended, if it has.
    fn look(&mut self, life: &mut Life, until: Option<Instant>) -> io::Result<Option<ExitStatus>> {
        let wait = until.map_or(PollTimeout::NONE, |until| {
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let mut ready = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        ready.extend(life.socket.as_ref().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
        // Whoever asks before a server serves waits until it does.
        let listens = |life: &Life| life.serves.is_some() && life.ends.is_none();
        let listener = self.listener.as_ref().filter(|_| listens(life));
        ready.extend(listener.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
        match poll(&mut ready, wait) {
            Err(Errno::EINTR) => return Ok(None),
            result => result?,
        };
        drop(ready);
        self.given_up.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        self.hear_all(life)?;
        while let Some(info) = self.signals.read_signal()? {
            self.pass_on(Signal::try_from(info.ssi_signo as i32).unwrap_or(Signal::SIGCHLD), life);
        }
        if let Some(status) = life.child.try_wait()? {
            // It may have said something just before.
            self.hear_all(life)?;
            return Ok(Some(status));
        }
        let listener = self.listener.as_ref().filter(|_| listens(life));
        if let Some(wish) = listener.and_then(exchange::next) {
            self.consider(wish, life);
        }
        Ok(None)
    }

    /// Whether a wish can be fulfilled, as far as it can be told while the server goes on. If so, that one is to leave.
    fn consider(&mut self, wish: Wish, life: &mut Life) {
        let pool = self.request.pool().display();
        let done = match self.stopping {
            Some(_) => Err("it is being unmounted".to_owned()),
            None if wish.leaves && !self.manager.keeps() => Err("nobody keeps what the next keeper needs".to_owned()),
            None => self.would_serve(&wish, life),
        };
        match done {
            Ok(()) => {
                send(life, TO_LEAVE);
                (self.wish, life.ends) = (Some(wish), Some(Instant::now() + LEAVING));
            }
            Err(why) => {
                log::warn!("{pool}: the server is not exchanged: {why}");
                wish.answer(Err(why));
            }
        }
    }

    /// The options of the server that is wished for: those of this one, but for what others can be had. The next keeper
    /// has its own.
    fn options_of(&self, wish: &Wish) -> Result<MountOptions, String> {
        let mut wanted = MountOptions::default();
        wish.options.iter().try_for_each(|list| wanted.apply(list, false))?;
        Ok(if wish.leaves { wanted } else { self.options.exchanged(&wanted) })
    }

    /// Asks a program whether it could serve, as long as the server lives.
    fn would_serve(&mut self, wish: &Wish, life: &mut Life) -> Result<(), String> {
        let options = self.options_of(wish)?.to_list();
        let mut ask = || -> io::Result<String> {
            let mut said = File::from(memfd_create(c"tensorfs-answer", MFdFlags::MFD_CLOEXEC)?);
            let mut arguments = self.request.arguments_with(&options);
            arguments.insert(1, "--would-serve".into());
            let (out, err) = (said.try_clone()?, said.try_clone()?);
            let program = wish.program.as_ref().map_or_else(|| self.program.path(), path_of);
            // It cannot write there, nor move the place where others read.
            let left = File::open(path_of(&self.handover))?;
            let mut child =
                Command::new(program).arg0(PROGRAM).args(arguments).stdin(left).stdout(out).stderr(err).spawn()?;
            let until = Instant::now() + TO_SAY;
            while child.try_wait()?.is_none() {
                if Instant::now() >= until || life.child.try_wait()?.is_some() {
                    let _ = child.kill();
                    // It may wait for a disk, and end when it likes.
                    self.given_up.push(child);
                    return Err(io::ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(2));
            }
            said.rewind()?;
            let mut text = String::new();
            (&mut said).take(ANSWER).read_to_string(&mut text)?;
            Ok(text)
        };
        match ask() {
            Ok(text) if text == WOULD_SERVE => Ok(()),
            Ok(text) => {
                let first = text.lines().next().unwrap_or("it does not say that it could serve");
                Err(format!("the new server: {}", first.strip_prefix("tensorfs: ").unwrap_or(first)))
            }
            Err(error) => Err(format!("the new server: {}", reason(&error))),
        }
    }

    /// Starts the server that was wished for, in the place of one that has left; if it does not serve, one as before.
    fn fulfil(&mut self, mut wish: Wish) -> Result<Life, Failure> {
        let program = wish.program.take().map(|file| std::mem::replace(&mut self.program, Program::Other(file)));
        let options = self.options_of(&wish).map(|options| std::mem::replace(&mut self.options, options));
        let why = match self.begin(Some(UPGRADE)) {
            Err(error) => reason(&error),
            Ok(mut life) => match self.until_it_serves(&mut life).map_err(cannot_watch)? {
                None => {
                    wish.answer(Ok(()));
                    return Ok(life);
                }
                Some(why) => why,
            },
        };
        program.into_iter().for_each(|program| self.program = program);
        options.into_iter().for_each(|options| self.options = options);
        let why = format!("the new server does not serve ({why}); the one before goes on; the log may say more");
        log::error!("{}: {why}", self.request.pool().display());
        let life = self.begin_again("a new server did not serve")?;
        wish.answer(Err(why));
        Ok(life)
    }

    /// Waits for a server that was wished for. None once it serves, else why it does not.
    fn until_it_serves(&mut self, life: &mut Life) -> io::Result<Option<String>> {
        let until = Instant::now() + TO_SERVE;
        while life.serves.is_none() {
            if let Some(status) = self.look(life, Some(until))? {
                return Ok(Some(how(status)));
            }
            if Instant::now() >= until {
                send(life, Signal::SIGKILL);
                life.child.wait()?;
                return Ok(Some(format!("not within {} s", TO_SERVE.as_secs())));
            }
        }
        Ok(None)
    }

    /// Hears all that the server has said.
    fn hear_all(&mut self, life: &mut Life) -> io::Result<()> {
        // One that has more to say than a server ever has is heard when others have been.
        for _ in 0..HEARD_AT_ONCE {
            if !self.hear(life)? {
                break;
            }
        }
        Ok(())
    }

    /// Hears what the server says next. False if there is nothing.
    fn hear(&mut self, life: &mut Life) -> io::Result<bool> {
        let Some(socket) = &life.socket else { return Ok(false) };
        match receive(socket)? {
            // Once is enough, and the next one could be anybody's word.
            Said::Serves(_) if life.serves.is_some() => {}
            Said::Serves(descriptors) => {
                if self.inherited.is_none()
                    && let Some(number) = given::number(self.request.mountpoint())
                {
                    // The first server has it, and whoever is started from now on need not: the connection would not
                    // end before he does. From now on the number is anything's.
                    drop(given::take(number));
                }
                // The first one had them before it looked at any request. They stay the same.
                let [fuse, lock] = self.inherited.get_or_insert(descriptors);
                let mounted = Mounted::inherited(fuse, self.request.pool(), self.request.mountpoint());
                if let Some(device) = mounted.device().filter(|_| !mounted.is_given()) {
                    self.manager.keep(device, [&self.handover, fuse, lock]);
                }
                life.serves = Some(Instant::now());
                if let Some(signal) = self.stopping {
                    // The one before died of it, or before it had heard of it.
                    send(life, signal);
                }
            }
            Said::Ready => self.ready()?,
            Said::Nothing => return Ok(false),
            Said::Ended => {
                life.socket = None;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whoever waits for the mount is told, once.
    fn ready(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.awaited) {
            dup2_stdout(File::options().write(true).open("/dev/null")?)?;
        }
        self.manager.ready();
        Ok(())
    }

    fn pass_on(&mut self, signal: Signal, life: &Life) {
        match signal {
            Signal::SIGCHLD => return,
            TO_LEAVE => {}
            Signal::SIGHUP => logging::open_again(logging::BY_ITSELF),
            Signal::SIGUSR1 => logging::change_level(true),
            Signal::SIGUSR2 => logging::change_level(false),
            _ => self.stopping = Some(signal),
        }
        send(life, signal);
        if self.stopping == Some(signal) {
            notify::notify("STOPPING=1");
        }
    }
}

fn send(life: &Life, signal: Signal) {
    // Fails only if it has died, which is seen.
    let _ = kill(Pid::from_raw(life.child.id() as i32), signal);
}

/// What a server says next.
fn receive(socket: &OwnedFd) -> io::Result<Said> {
    let mut byte = [0];
    let descriptors = match message::receive(socket, &mut byte, Patience::Now) {
        Ok((_, descriptors)) => descriptors,
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN) => return Ok(Said::Nothing),
            // It has ended, or says more than a server ever does.
            Some(libc::ECONNRESET | libc::EMSGSIZE) => return Ok(Said::Ended),
            _ => return Err(error),
        },
    };
    Ok(match (byte[0], descriptors.try_into()) {
        (SERVES, Ok(descriptors)) => Said::Serves(descriptors),
        (READY, _) => Said::Ready,
        _ => Said::Ended,
    })
}

fn ended(request: &MountRequest, status: ExitStatus) -> Result<(), Failure> {
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => {
            logging::end();
            std::process::exit(code)
        }
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
        assert!(deaths.count(false, None).is_some());
        assert!(deaths.count(false, SOON).is_none());
        // Nor is one who kills them, as long as they serve in between.
        let mut deaths = Deaths::default();
        assert!((0..1000).all(|_| deaths.count(true, SOON).is_some()));
        assert!((1..KILLED).all(|_| deaths.count(true, None).is_some()));
        assert!(deaths.count(true, None).is_none());
    }

    #[test]
    fn what_servers_need_may_be_back_soon() {
        let mut deaths = Deaths::default();
        let pauses: Vec<_> = std::iter::from_fn(|| deaths.count(false, None)).collect();
        assert_eq!(pauses.len(), FAILED as usize - 1);
        assert!(pauses[0] == PAUSE && pauses.windows(2).all(|two| two[1] == two[0] * 2), "{pauses:?}");
        assert_eq!(pauses.iter().sum::<Duration>(), Duration::from_millis(12_700));
        // One that serves, and fails at that, is no better than one that crashes.
        let mut deaths = Deaths::default();
        let again = [None, SOON, None, None, SOON, None, SOON];
        let counted: Vec<_> = again.iter().map(|served| deaths.count(false, *served).is_some()).collect();
        assert_eq!(counted, [true, true, true, true, true, true, false]);
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

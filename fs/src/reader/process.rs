//! One reader, from the server's side: a process, and the socket to it.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use tensorfs_layout::segment::start_apart;

use super::protocol::Wire;
use super::serve::READER;

/// A claim on the file must not wait longer than this for a reader that thinks.
const GLANCE: Duration = Duration::from_millis(20);
/// How often it is asked whether anybody still wants to know.
const LOOK: Duration = Duration::from_millis(100);
/// How much longer than it may compute a reader may take, as the processors may be busy with others.
const PATIENCE: u32 = 20;

/// What watches over a request.
pub(super) struct Watch<'a> {
    /// Done whenever the reader says nothing for a moment.
    pub pause: &'a dyn Fn(),
    /// Why nobody wants to know any more, if so.
    pub wanted: &'a dyn Fn() -> io::Result<()>,
    /// What the reader and this thread may take of the processor for it.
    pub budget: Duration,
    /// This thread may take its time, and any amount of the processor.
    pub at_leisure: bool,
}

/// A reader.
pub(super) struct Process {
    child: Child,
    socket: UnixStream,
    clock: ClockId,
    /// Let go of when the process has ended.
    _counted: Arc<()>,
}

/// A conversation with a reader about one request.
pub(super) struct Talk<'a>(Wire<Patient<'a>>);

/// A stream that is waited for, but not for longer than the request is wanted.
pub(super) struct Patient<'a> {
    socket: &'a UnixStream,
    clock: ClockId,
    watch: Watch<'a>,
    begun: Instant,
    looked: Instant,
    spent_before: Duration,
}

/// Nobody wants to know any more.
#[derive(Debug, thiserror::Error)]
#[error("nobody wants to know any more")]
pub(super) struct Unwanted(pub io::Error);

/// The request took more than it may.
#[derive(Debug, thiserror::Error)]
#[error("it took more than it may")]
pub(super) struct Spent;

impl Process {
    /// Starts one. It ends with the thread that does so.
    pub fn start(program: &Path, counted: Arc<()>) -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        let mut command = Command::new(program);
        command.arg0(READER).env_clear().current_dir("/").stdin(OwnedFd::from(other));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = start_apart(|| command.spawn())?;
        let clock = clock_getcpuclockid(Pid::from_raw(child.id() as i32))?;
        socket.set_nonblocking(true)?;
        Ok(Self { child, socket, clock, _counted: counted })
    }

    /// Begins a conversation.
    pub fn talk<'a>(&'a self, watch: Watch<'a>) -> Talk<'a> {
        let now = Instant::now();
        let spent_before = cpu_time(self.clock, watch.at_leisure);
        let clock = self.clock;
        let socket = &self.socket;
        Talk(Wire::new(Patient { socket, clock, watch, begun: now, looked: now, spent_before }))
    }

    /// True if it can be asked something else.
    pub fn is_ready(&mut self) -> bool {
        let peeked = recv(self.socket.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        let silent = peeked == Err(Errno::EAGAIN);
        silent && matches!(self.child.try_wait(), Ok(None))
    }

    /// How it ended, if it did so by itself. Kills it otherwise.
    pub fn end(mut self) -> String {
        // It may be about to end.
        let deadline = Instant::now() + LOOK;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return format!("ended ({status})");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        "did not end".to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that could not be killed ends when nobody speaks with it any more.
        let _ = self.socket.shutdown(Shutdown::Both);
        // Neither fails but for a process that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Talk<'a> {
    /// What is said goes over this, both ways.
    pub fn wire(&mut self) -> &mut Wire<Patient<'a>> {
        &mut self.0
    }

    /// What the reader, and this thread if that counts, have taken of the processors for it.
    pub fn spent(&self) -> Duration {
        self.0.stream().spent()
    }
}

/// What a process, and this thread if that counts, has had of the processor.
fn cpu_time(clock: ClockId, at_leisure: bool) -> Duration {
    let of = |clock| clock_gettime(clock).map_or(0, |time| time.num_nanoseconds());
    // One that has ended has no clock.
    let (reader, here) = (of(clock), if at_leisure { 0 } else { of(ClockId::CLOCK_THREAD_CPUTIME_ID) });
    Duration::from_nanos(u64::try_from(reader.saturating_add(here)).unwrap_or(0))
}

impl Patient<'_> {
    fn spent(&self) -> Duration {
        cpu_time(self.clock, self.watch.at_leisure).saturating_sub(self.spent_before)
    }

    fn look(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if now.duration_since(self.looked) < LOOK {
            return Ok(());
        }
        self.looked = now;
        // Not handed on as it is: whoever reads to the end tries again where a call was interrupted.
        (self.watch.wanted)().map_err(|why| io::Error::other(Unwanted(why)))?;
        let spent = self.spent();
        let late = !self.watch.at_leisure && now.duration_since(self.begun) > self.watch.budget * PATIENCE;
        if spent > self.watch.budget || late {
            return Err(io::Error::other(Spent));
        }
        Ok(())
    }

    fn wait(&mut self, events: PollFlags) -> io::Result<()> {
        let timeout = PollTimeout::try_from(GLANCE).unwrap_or(PollTimeout::ZERO);
        let ready = poll(&mut [PollFd::new(self.socket.as_fd(), events)], timeout);
        if !ready.is_ok_and(|ready| ready > 0) {
            (self.watch.pause)();
        }
        self.look()
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.socket.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::POLLIN)?,
                done => {
                    self.look()?;
                    return done;
                }
            }
        }
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.socket.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::POLLOUT)?,
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

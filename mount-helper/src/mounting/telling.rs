//! A program that somebody else has written, and that is told something: it may hang, and say as much as it likes.

use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::mounting::process::Process;

/// So much of what it says is kept.
const MOST: usize = 4096;

/// So long it is waited for after SIGTERM, and after SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// So many that even SIGKILL does not end, as what they ask for does not answer, may be there at a time.
const LEFT: usize = 4;

/// What came of it.
pub struct Ended {
    /// Why it did not go well, if so.
    pub fault: Option<String>,
    /// What it said, on standard output and error, as far as that is kept.
    pub said: Vec<u8>,
}

/// Programs that were told something, one after the other.
#[derive(Default)]
pub struct Telling {
    /// Those that could not be ended.
    left: Vec<Child>,
}

/// One that is at work.
struct Told<'a> {
    child: Child,
    handle: Process,
    /// What it reads, until it has all, or wants no more.
    stdin: Option<ChildStdin>,
    text: &'a [u8],
    /// What it says, until it, and whatever it has started, says no more.
    pipe: Option<PipeReader>,
    said: Vec<u8>,
}

impl Telling {
    /// Runs a program, which gets a text on standard input, and has so long for it.
    pub fn tell(&mut self, mut command: Command, text: &[u8], patience: Duration) -> io::Result<Ended> {
        self.left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if self.left.len() >= LEFT {
            return Err(io::Error::other(format!("{LEFT} of it could not be ended, and no more are started")));
        }
        let (pipe, both) = io::pipe()?;
        not_blocking(pipe.as_fd())?;
        command.stdin(Stdio::piped()).stdout(both.try_clone()?).stderr(both).process_group(0);
        let mut child = command.spawn()?;
        // What it writes to is open in nobody else.
        drop(command);
        let stdin = child.stdin.take();
        let handle = stdin.as_ref().map_or(Ok(()), |stdin| not_blocking(stdin.as_fd()));
        let handle = match handle.and_then(|()| Process::open(child.id())) {
            Ok(handle) => handle,
            Err(error) => {
                let _ = child.kill();
                self.left.push(child);
                return Err(error);
            }
        };
        let mut told = Told { child, handle, stdin, text, pipe: Some(pipe), said: Vec::new() };
        let fault = if told.ended_within(patience)? {
            let status = told.child.wait()?;
            (!status.success()).then(|| format!("it failed: {status}"))
        } else {
            let how = match told.end()? {
                Some(status) if status.signal() == Some(libc::SIGKILL) => "was killed",
                Some(_) => "was ended",
                None => "cannot be ended",
            };
            Some(format!("it did not end within {} s, and {how}", patience.as_secs_f64()))
        };
        if matches!(told.child.try_wait(), Ok(None)) {
            self.left.push(told.child);
        }
        Ok(Ended { fault, said: told.said })
    }
}

impl Told<'_> {
    /// Whether it ends in this time. It is not waited for yet, so that nobody else has its number.
    fn ended_within(&mut self, patience: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            self.write();
            self.read();
            let left = deadline.saturating_duration_since(Instant::now());
            let mut polled = vec![PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
            polled.extend(self.stdin.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)));
            polled.extend(self.pipe.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
            let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut polled, wait) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let has_ended = polled[0].any().unwrap_or(true);
            if has_ended {
                // What it has said last.
                self.read();
            }
            if has_ended || left.is_zero() {
                return Ok(has_ended);
            }
        }
    }

    /// Ends it, and what it has started, unless that has a group of its own. How that ended, if it can be ended.
    fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        let group = Pid::from_raw(self.child.id().cast_signed());
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let _ = killpg(group, signal);
            if self.ended_within(GRACE)? {
                // What it has started may go on.
                let _ = killpg(group, Signal::SIGKILL);
                return self.child.wait().map(Some);
            }
        }
        Ok(None)
    }

    /// Who does not want to know more than that there is something need not read it.
    fn write(&mut self) {
        while let Some(pipe) = self.stdin.as_mut().filter(|_| !self.text.is_empty()) {
            match pipe.write(self.text) {
                Ok(written) => self.text = &self.text[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.stdin = None;
    }

    fn read(&mut self) {
        let mut buffer = [0; MOST];
        // One that says more and more is not listened to for ever.
        for _ in 0..64 {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(read) => {
                    let room = MOST - self.said.len();
                    self.said.extend_from_slice(&buffer[..read.min(room)]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.pipe = None,
            }
        }
    }
}

fn not_blocking(pipe: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop).map_err(io::Error::from)
}

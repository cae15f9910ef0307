//! Asking a server that may hang. Whoever asks one cannot be ended then, not even by SIGKILL: the kernel waits for an
//! answer to what a server has been given. So a process of its own asks, which is left behind if that takes too long:
//! what this one has open, be it what a mount is served by, ends with this one.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Uid, User};
use serde::de::DeserializeOwned;

use crate::show::failure::reason;

/// So many threads, each with its process, may be left behind at a time.
const MOST: usize = 8;
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// So long an answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What is read of an answer.
const LONGEST: usize = 64 << 20;

/// What this program says, as JSON, when it is started with these arguments; or why it says nothing.
pub fn ask<T: DeserializeOwned>(arguments: &[&OsStr], patience: Duration) -> Result<T, String> {
    answer(arguments, None, patience)
}

/// As [`ask`], but a process of another user's does so, who may trace it: what it says counts as his.
pub fn ask_as<T: DeserializeOwned>(user: u32, arguments: &[&OsStr], patience: Duration) -> Result<T, String> {
    answer(arguments, Some(user), patience)
}

fn answer<T: DeserializeOwned>(arguments: &[&OsStr], user: Option<u32>, patience: Duration) -> Result<T, String> {
    if LEFT.load(SeqCst) >= MOST {
        return Err(format!("{MOST} processes that have asked still wait for servers that do not answer"));
    }
    let mut asking = Command::new("/proc/self/exe");
    asking.arg0("tensorfs").args(arguments);
    asking.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(user) = user {
        let group = User::from_uid(Uid::from_raw(user)).ok().flatten().map_or(user, |found| found.gid.as_raw());
        // Without root's environment and further groups.
        asking.uid(user).gid(group).env_clear().current_dir("/");
    }
    said_by(asking, patience)
}

fn cannot(error: &io::Error) -> String {
    format!("cannot ask: {}", reason(error))
}

fn said_by<T: DeserializeOwned>(asking: Command, patience: Duration) -> Result<T, String> {
    let (tell, hear) = channel();
    // All of it is done beside: a program may not even begin while the host of its file does not answer, and may not
    // end for as long as the server is held.
    let is_left = Arc::new(Left::default());
    let (until, left) = (Instant::now() + patience, is_left.clone());
    let begun = thread::Builder::new().spawn(move || {
        // Nobody may listen any more.
        let _ = speak(asking, until, |said| drop(tell.send(said)));
        left.has_ended();
    });
    begun.map_err(|error| cannot(&error))?;
    match hear.recv_timeout(patience) {
        Ok(Ok(text)) => serde_json::from_str(&text).map_err(|_| "whoever asked ended without an answer".to_owned()),
        Ok(Err(error)) if error.kind() != io::ErrorKind::TimedOut => Err(cannot(&error)),
        _ => {
            is_left.is_behind();
            Err(format!("the server did not answer within {} s", patience.as_secs_f64()))
        }
    }
}

/// Has a program say what it has to say, until then, and waits for its end.
fn speak(mut asking: Command, until: Instant, tell: impl FnOnce(io::Result<String>)) -> io::Result<()> {
    let mut child = match asking.spawn() {
        Ok(child) => child,
        Err(error) => {
            tell(Err(error));
            return Ok(());
        }
    };
    tell(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe.into()).and_then(|pipe| text_of(pipe, until)));
    child.kill()?;
    child.wait().map(drop)
}

/// What comes through a pipe until it is closed.
fn text_of(mut pipe: impl Read + AsFd, until: Instant) -> io::Result<String> {
    let (mut text, mut part) = (Vec::new(), [0; 1 << 16]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match pipe.read(&mut part)? {
            0 => return String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into()),
            len if text.len() + len > LONGEST => return Err(io::ErrorKind::FileTooLarge.into()),
            len => text.extend_from_slice(&part[..len]),
        }
    }
}

/// Whether a thread that asks was left behind, or has ended, whichever is first.
#[derive(Default)]
struct Left(AtomicBool);

impl Left {
    fn is_behind(&self) {
        LEFT.fetch_add(1, SeqCst);
        if self.0.swap(true, SeqCst) {
            LEFT.fetch_sub(1, SeqCst);
        }
    }

    fn has_ended(&self) {
        if self.0.swap(true, SeqCst) {
            LEFT.fetch_sub(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_program_that_does_not_begin_is_left_behind_until_it_does() {
        let (begin, mut may_begin) = io::pipe().unwrap();
        let fd = begin.as_raw_fd();
        let mut asking = Command::new("true");
        let wait = move || {
            let mut byte = 0_u8;
            // SAFETY: a descriptor that is open, and a byte to read to; read(2) may be called between fork and exec.
            unsafe { libc::read(fd, (&raw mut byte).cast(), 1) };
            Ok(())
        };
        // SAFETY: the closure does nothing that allocates or locks.
        unsafe { asking.pre_exec(wait) };
        let said = said_by::<u32>(asking, Duration::from_millis(50)).unwrap_err();
        assert_eq!(said, "the server did not answer within 0.05 s");
        assert_eq!(LEFT.load(SeqCst), 1);
        io::Write::write_all(&mut may_begin, b"x").unwrap();
        while LEFT.load(SeqCst) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(begin);
        let mut asking = Command::new("echo");
        asking.arg("7").stdout(Stdio::piped());
        assert_eq!(said_by::<u32>(asking, Duration::from_secs(60)), Ok(7));
    }
}

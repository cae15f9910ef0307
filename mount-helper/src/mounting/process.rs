//! Another process, and the wait for its end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A process that cannot be mistaken for a later one with the same id.
#[derive(Debug)]
pub struct Process {
    handle: OwnedFd,
    pid: u32,
}

impl Process {
    /// Takes hold of a process that runs now. An error: there is none with this id (`ESRCH`), or it cannot be seen from
    /// here.
    pub fn open(pid: u32) -> io::Result<Process> {
        let id = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
        // SAFETY: pidfd_open takes two integers and returns a new file descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) };
        let fd = Errno::result(fd).map_err(|errno| match errno {
            // A thread of another process: Linux says the one, and from 6.15 on the other.
            Errno::EINVAL | Errno::ENOENT => Errno::ESRCH,
            errno => errno,
        })?;
        // SAFETY: the call above succeeded, so this is an open descriptor that nobody else owns.
        let handle = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        Ok(Process { handle, pid })
    }

    /// One that the kernel has opened (`SO_PEERPIDFD`).
    pub fn of_handle(handle: OwnedFd, pid: u32) -> Process {
        Process { handle, pid }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A copy of one of its descriptors, which takes as many rights as to trace it.
    pub fn descriptor(&self, number: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: pidfd_getfd takes three integers and returns a new file descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.handle.as_raw_fd(), number, 0) };
        let fd = Errno::result(fd)?;
        // SAFETY: the call above succeeded, so this is an open descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    }

    /// Waits until the process has ended, or the timeout is over. True: it has ended.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut polled, timeout) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// The name of a keeper.
pub const KEEPER: &str = "tensorfs-keeper";

/// The name of a process, as `ps` shows it.
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim_end().to_owned())
        .unwrap_or_else(|_| "?".to_owned())
}

/// The process that has started a process, or that has taken it over since, if it is there.
pub fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// The user that a process is of, if it is there.
pub fn user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process does nothing until somebody has it go on (SIGSTOP).
pub fn is_stopped(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tT"))
}

/// Whether a process is gone, or has been killed and is giving back what it has. Its first thread is dead then, while
/// others may still hold a lock.
pub fn is_ending(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => status.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX")),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn waits_for_the_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.wait(Duration::ZERO).unwrap());
        drop(child.stdin.take());
        assert!(process.wait(Duration::from_secs(600)).unwrap());
        assert!(is_ending(child.id()), "a zombie");
        child.wait().unwrap();
        assert!(!is_ending(std::process::id()));
        assert!(Process::open(u32::MAX).is_err());
    }

    #[test]
    fn the_number_of_a_thread_is_no_process() {
        let (_gate, shut) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            shut.recv().is_ok()
        });
        let error = Process::open(told.recv().unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}

//! Who asks: the process behind a request, and what it may do.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::time::Duration;

use crate::budget::{Allowance, for_bytes};
use crate::privileged::privileged;

/// How a process that closes a descriptor ends, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// It lives, or ends of itself.
    OfItself,
    /// It cannot be seen: it is outside of the server's process namespace, or the server may not look.
    Unseen,
    /// A signal kills it.
    BySignal,
}

/// Who asks, and under which number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub unique: u64,
    /// The server before had been asked, and died before it had answered.
    pub again: bool,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

impl Caller {
    /// True of root, and of the user who can change the pool anyway.
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == nix::unistd::geteuid().as_raw()
    }

    /// The user whose share of what is scarce it takes; none of who is trusted.
    pub fn limited(&self) -> Option<u32> {
        (!self.is_trusted()).then_some(self.uid)
    }

    /// The groups of the caller: its own, and those its process is in.
    pub fn groups(&self) -> Vec<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let listed = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let listed = listed.into_iter().flat_map(str::split_whitespace).filter_map(|id| id.parse().ok());
        listed.chain([self.gid]).collect()
    }

    /// How the process (or thread) that sends a request ends, if it does.
    ///
    /// `/proc/PID/stat` would tell, but it waits for a lock that a process holds while it executes another program, and
    /// one that closes files in doing so waits for our answer. So it is read only of a process that has given up its
    /// memory, which one that executes a program never has; `/proc/PID/status` tells that and waits for nothing.
    pub fn ending(&self) -> Ending {
        let pid = self.pid;
        // Asked at each close, and shorter.
        let memory = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        if memory.split(' ').next().is_some_and(|pages| pages.parse().is_ok_and(|pages: u64| pages > 0)) {
            return Ending::OfItself;
        }
        // It waits for our answer, so it is there; the kernel's number for one in another namespace is 0.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if status.is_empty() {
            return Ending::Unseen;
        }
        if has_memory(&status) {
            return Ending::OfItself;
        }
        match privileged().exit_signal(pid) {
            Ok(Some(_)) => Ending::BySignal,
            Ok(None) => Ending::OfItself,
            Err(_) => Ending::Unseen,
        }
    }

    /// The process of the caller, which may be one of its threads; itself if that cannot be seen.
    pub fn process(&self) -> u32 {
        process_of(self.pid).unwrap_or(self.pid)
    }

    /// The process of the caller and what its program is called, if that can be seen. It may be one of its threads that
    /// asks.
    pub fn program(&self) -> Option<(u32, Box<str>)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let named = status.lines().next()?.strip_prefix("Name:")?.trim().into();
        Some((number_in(&status, "Tgid:")?, named))
    }

    /// The process that has started that of the caller, or has taken its place; 0 if that cannot be seen.
    pub fn parent(&self) -> u32 {
        number_in_status(self.pid, "PPid:").unwrap_or(0)
    }
}

/// The process that a thread belongs to, if that can be seen.
pub(crate) fn process_of(thread: u32) -> Option<u32> {
    number_in_status(thread, "Tgid:")
}

fn number_in_status(pid: u32, field: &str) -> Option<u32> {
    number_in(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, field)
}

fn number_in(status: &str, field: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok())
}

thread_local! {
    static ASKER: Cell<u32> = const { Cell::new(0) };
    /// Whose it is, unless it may have as much as there is.
    static USER: Cell<Option<u32>> = const { Cell::new(None) };
    /// What readers have taken of the processors for it so far.
    static SPENT: RefCell<Option<Allowance>> = const { RefCell::new(None) };
}

/// The process or thread that waits for what this thread does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker(u32);

impl Asker {
    /// Does something for a caller.
    pub fn waits<T>(caller: Caller, work: impl FnOnce() -> T) -> T {
        let user = Some(caller.uid).filter(|_| !caller.is_trusted());
        let before = (ASKER.replace(caller.pid), USER.replace(user), SPENT.replace(Some(Allowance::default())));
        let done = work();
        ASKER.set(before.0);
        USER.set(before.1);
        SPENT.replace(before.2);
        done
    }

    /// Who waits, if it can be seen whether it still does.
    pub fn of_this_thread() -> Option<Self> {
        let asker = Asker(ASKER.get());
        (asker.0 != 0 && !asker.is_gone()).then_some(asker)
    }

    /// The user that waits for what this thread does. None if it is root or whoever runs the server, or nobody waits.
    pub fn user_of_this_thread() -> Option<u32> {
        USER.get()
    }

    /// What a question about so many bytes of a file may take of the processors for them, if the host has so many of
    /// all of it: for whoever waits for what this thread does each of them counts once.
    pub fn for_bytes(file: u64, asked: u64, allocated: u64) -> Duration {
        let one = |spent: &Option<Allowance>| spent.as_ref().map(|one| one.for_bytes(file, asked, allocated));
        SPENT.with_borrow(one).unwrap_or_else(|| for_bytes(asked.min(allocated)))
    }

    /// Readers have taken so much of the processors for whoever waits for what this thread does, of which so much was
    /// for bytes of a file.
    pub fn spend(file: u64, for_bytes: Duration, time: Duration) {
        SPENT.with_borrow_mut(|spent| {
            if let Some(one) = spent {
                one.spend(file, for_bytes, time);
            }
        });
    }

    /// Does something for whoever waits that has an allowance of its own.
    pub fn apart<T>(work: impl FnOnce() -> T) -> T {
        let before = SPENT.replace(Some(Allowance::default()));
        let done = work();
        SPENT.replace(before);
        done
    }

    /// What readers have taken of the processors for whoever waits for what this thread does, beyond what was for
    /// bytes; nothing if nobody does.
    pub fn spent() -> Duration {
        SPENT.with_borrow(|spent| spent.as_ref().map(Allowance::spent)).unwrap_or_default()
    }

    /// True if nobody waits any more: it has ended, or was killed and ends as soon as it is answered. Looks where
    /// nothing waits for a lock (see [`Caller::ending`]).
    pub fn is_gone(self) -> bool {
        match fs::read_to_string(format!("/proc/{}/status", self.0)) {
            Ok(status) => status.is_empty() || is_killed(&status),
            // Whatever else keeps us from looking, such as too many open files, says nothing about it.
            Err(error) => error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH),
        }
    }
}

/// True if `/proc/PID/status` tells of a SIGKILL that is to come.
fn is_killed(status: &str) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|set| set & KILL != 0)
}

fn has_memory(status: &str) -> bool {
    status.lines().any(|line| line.starts_with("VmSize:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_killed_waits_no_more() {
        assert!(is_killed("SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(is_killed("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000102\n"));
        assert!(!is_killed("SigPnd:\t0000000000000002\nSigIgn:\t0000000000000100\n"));
        assert!(Asker::waits(this_process(), Asker::of_this_thread).is_some_and(|asker| !asker.is_gone()));
        assert!(Asker::waits(Caller { pid: 0, ..this_process() }, Asker::of_this_thread).is_none());
        assert!(Asker(u32::MAX).is_gone());
    }

    #[test]
    fn what_is_spent_counts_for_one_request() {
        let second = Duration::from_secs(1);
        Asker::spend(7, Duration::ZERO, second);
        assert_eq!((Asker::spent(), Asker::user_of_this_thread()), (Duration::ZERO, None));
        let other = Caller { uid: 4_000_000, ..this_process() };
        for _ in 0..2 {
            let spent = Asker::waits(other, || {
                Asker::spend(7, Duration::ZERO, second);
                Asker::spend(7, Duration::ZERO, second);
                assert_eq!(Asker::apart(Asker::spent), Duration::ZERO);
                (Asker::spent(), Asker::user_of_this_thread())
            });
            assert_eq!(spent, (2 * second, Some(4_000_000)));
        }
        assert_eq!(Asker::spent(), Duration::ZERO);
    }

    #[test]
    fn a_process_that_exits_has_no_memory() {
        assert!(has_memory("Name:\tx\nVmPeak:\t1 kB\nVmSize:\t1 kB\n"));
        assert!(!has_memory("Name:\tVmSize:\nState:\tX (dead)\n"));
    }

    fn this_process() -> Caller {
        Caller { unique: 0, again: false, uid: 1, gid: 4_000_000, pid: std::process::id() }
    }

    #[test]
    fn a_living_process_ends_of_itself_and_one_outside_is_not_seen() {
        assert_eq!(this_process().ending(), Ending::OfItself);
        assert_eq!(Caller { pid: 0, ..this_process() }.ending(), Ending::Unseen);
    }

    #[test]
    fn a_thread_is_of_its_process() {
        // SAFETY: takes nothing and always succeeds.
        let thread = std::thread::spawn(|| unsafe { libc::gettid() } as u32).join().unwrap();
        assert_eq!(this_process().process(), std::process::id());
        // It has ended, and a moment after it was joined the kernel knows it no longer.
        while std::path::Path::new(&format!("/proc/self/task/{thread}")).exists() {
            std::thread::yield_now();
        }
        assert_eq!(Caller { pid: thread, ..this_process() }.process(), thread);
    }

    #[test]
    fn the_callers_own_group_counts() {
        assert!(this_process().groups().contains(&4_000_000));
    }
}

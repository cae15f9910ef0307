//! Whether a server answers: a process asks it now and then, as `tensorfs health` does. Whoever asks a server that
//! hangs is held until another one answers, and cannot be ended meanwhile; so it is not the keeper that asks.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::mounting::request::PROGRAM;

/// A server is asked so often in the time in which it has to answer.
const OFTEN: u32 = 2;
/// One that takes over may do nothing for twice as long after each that has hung so, up to this power of two: if it is
/// the disk that they wait for, no other one is any better, and the keeper starts only so many.
const LONGER: u32 = 6;
/// While so many are held nobody else asks: it is something else that they wait for.
const HELD: usize = 8;

/// Asks the server of a mount.
pub struct Watchdog {
    mountpoint: PathBuf,
    /// An answer takes no longer.
    patience: Duration,
    /// When to ask next.
    next: Instant,
    /// Who asks, and since when.
    asking: Option<(Child, Instant)>,
    /// Who asked servers that hung.
    held: Vec<Child>,
    /// How long a server that does not serve yet had run, and since when it has not run since.
    starting: Option<(u128, Instant)>,
    /// So many in a row have hung before they served.
    hung: u32,
}

impl Watchdog {
    /// Asks from now on.
    pub fn new(mountpoint: &Path, patience: Duration) -> Self {
        let mountpoint = mountpoint.into();
        Self { mountpoint, patience, next: Instant::now(), asking: None, held: Vec::new(), starting: None, hung: 0 }
    }

    /// When it is to look again.
    pub fn next(&self) -> Instant {
        self.asking.as_ref().map_or(self.next, |(_, since)| *since + self.patience)
    }

    /// Looks whether there was an answer, and asks again if it is time for that. True if the server does not answer.
    pub fn look(&mut self) -> bool {
        self.hung = 0;
        self.held.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let now = Instant::now();
        match &mut self.asking {
            Some((child, since)) => match child.try_wait() {
                Ok(None) if now >= *since + self.patience => return true,
                Ok(None) => {}
                _ => {
                    self.next = *since + self.patience / OFTEN;
                    self.asking = None;
                }
            },
            // Whoever is held was so by a server before, or by something else.
            None if now >= self.next && self.held.len() < HELD => match ask(&self.mountpoint) {
                Ok(child) => self.asking = Some((child, now)),
                Err(error) => {
                    log::warn!("{}: nobody can ask whether it answers: {error}", self.mountpoint.display());
                    self.next = now + self.patience;
                }
            },
            None if now >= self.next => self.next = now + self.patience,
            None => {}
        }
        false
    }

    /// Looks at a server that does not serve yet, whose process this is. There is nothing to ask it, and how long it
    /// takes to recover depends on the pool and its disk; so true only if none of its threads has run for so long.
    pub fn look_at_start(&mut self, pid: u32) -> bool {
        let now = Instant::now();
        let ran = run_time(pid);
        let since = match self.starting {
            Some((before, since)) if before == ran => since,
            _ => now,
        };
        self.starting = Some((ran, since));
        self.next = now + self.patience / OFTEN;
        let hangs = now >= since + self.patience * (1 << self.hung.min(LONGER));
        self.hung += u32::from(hangs);
        hangs
    }

    /// The server has ended: what was asked, the next one answers.
    pub fn forget(&mut self) {
        self.starting = None;
        self.held.extend(self.asking.take().map(|(child, _)| child));
        self.next = Instant::now() + self.patience / OFTEN;
    }
}

fn ask(mountpoint: &Path) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(PROGRAM).args(["health", "--ask", "--"]).arg(mountpoint);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// For how many nanoseconds the threads of a process have run, all together (the kernel's
/// `Documentation/scheduler/sched-stats.rst`).
fn run_time(pid: u32) -> u128 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ran = |text: String| text.split(' ').next()?.parse::<u128>().ok();
    tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok().and_then(ran)).sum()
}

/// What the threads of a process wait for, a line each, as far as the kernel tells this one.
pub fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|task| thread(&task.path())).collect()
}

fn thread(task: &Path) -> String {
    let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
    let status = read("status");
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("?").trim().to_owned();
    let (name, call, stack) = (read("comm"), read("syscall"), read("stack"));
    let call = call.split(' ').next().unwrap_or_default().trim();
    // `[<0>] function+0x1/0x2`, the innermost first (proc(5)).
    let stack: Vec<&str> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let number = task.file_name().unwrap_or_default().display();
    format!("thread {number} {}: {state}, system call {call}, in {}", name.trim(), stack.join(" < "))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Proves K5.
    #[test]
    fn who_waits_for_a_server_before_keeps_nobody_from_asking_the_next_one() {
        let mut dog = Watchdog::new(Path::new("/nowhere"), Duration::from_secs(60));
        let waits = || Command::new("sleep").arg("3600").spawn().unwrap();
        dog.held = (0..HELD).map(|_| waits()).collect();
        assert!(!dog.look());
        assert!(dog.asking.is_none(), "it is not the server that all of them wait for");
        let mut ended = dog.held.pop().unwrap();
        dog.next = Instant::now();
        dog.look();
        assert!(dog.asking.is_some());
        for child in dog.held.iter_mut().chain([&mut ended]).chain(dog.asking.iter_mut().map(|(child, _)| child)) {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    /// Proves K5.
    #[test]
    fn one_that_runs_does_not_hang_however_long_it_takes_to_serve() {
        let patience = Duration::from_millis(50);
        let mut dog = Watchdog::new(Path::new("/nowhere"), patience);
        let mut stopped = Command::new("sleep").arg("3600").spawn().unwrap();
        let until = |dog: &mut Watchdog, hangs: bool, pid: u32| {
            let since = Instant::now();
            while dog.look_at_start(pid) != hangs {
                thread::sleep(Duration::from_millis(5));
            }
            since.elapsed()
        };
        // This process runs meanwhile.
        for _ in 0..40 {
            assert!(!dog.look_at_start(std::process::id()));
            thread::sleep(Duration::from_millis(5));
        }
        dog.forget();
        until(&mut dog, true, stopped.id());
        dog.forget();
        // Twice as long after one that has hung so.
        assert!(until(&mut dog, true, stopped.id()) >= 2 * patience);
        let _ = stopped.kill();
        stopped.wait().unwrap();
    }
}

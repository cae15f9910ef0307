//! Who fetches the files of a mount, and goes on to newer trees, is a process that another one watches over: if it is
//! killed, or fails as nothing should, it is started again, some times. Its own end ends both.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::unistd::Pid;

use crate::bring::tell_of_end;
use crate::commands::cli;
use crate::error::{Error, Result};

/// So often it is started again within so long.
const TRIES: usize = 5;
const WITHIN: Duration = Duration::from_secs(600);
/// After so long, and after twice as long each time.
const PAUSE: Duration = Duration::from_millis(200);
/// A program that panicked ends so.
const PANICKED: i32 = 101;

/// Its deaths.
#[derive(Default)]
struct Deaths(Vec<Instant>);

impl Deaths {
    /// One more. Returns how long to wait until it is started again; nothing if there were too many.
    fn add(&mut self, now: Instant) -> Option<Duration> {
        self.0.retain(|death| now.duration_since(*death) < WITHIN);
        self.0.push(now);
        let before = self.0.len() - 1;
        (before < TRIES).then(|| PAUSE * (1 << before))
    }
}

/// Has another process bring files, and starts it again when it died.
///
/// # Errors
/// It cannot be started.
pub fn bring(arguments: &cli::Bring) -> Result<()> {
    let told = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT];
    let told: SigSet = told.into_iter().collect();
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&told), Some(&mut before)).map_err(|error| failed(error.into()))?;
    let mut deaths = Deaths::default();
    loop {
        let mut child = start(before).map_err(failed)?;
        let Some(ended) = end_of(&mut child, &told).map_err(failed)? else { return Ok(()) };
        let Some(how) = death(ended) else { std::process::exit(ended.code().unwrap_or(1)) };
        let again = deaths.add(Instant::now());
        let what = match again {
            Some(_) => format!("who fetches its files has died ({how}), and is started again"),
            None => {
                let every =
                    arguments.follow.map_or_else(String::new, |every| format!("--follow={} ", every.as_secs_f64()));
                let (pool, at) = (arguments.pool.display(), arguments.mountpoint.display());
                let again = format!("tensorfs-carrier bring {every}{pool} {at}");
                format!("who fetches its files has died {} times ({how}): nobody does; {again}", TRIES + 1)
            }
        };
        log::warn!("{}: {what}", arguments.mountpoint.display());
        if arguments.follow.is_some() {
            tell_of_end(&arguments.pool, &arguments.mountpoint, what);
        }
        match again {
            Some(pause) => std::thread::sleep(pause),
            None => {
                return Err(Error::Refused(format!("{}: nobody fetches its files", arguments.mountpoint.display())));
            }
        }
    }
}

/// As this process was started, and told that somebody watches over it.
fn start(mask: SigSet) -> io::Result<Child> {
    let mut all = std::env::args_os();
    let name = all.next().unwrap_or_default();
    let arguments: Vec<OsString> = all.collect();
    let at = arguments.iter().position(|word| word == "bring").map_or(arguments.len(), |at| at + 1);
    // Whatever has the program's path by then.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(&arguments[..at]).arg("--watched").args(&arguments[at..]);
    // SAFETY: changes the mask of the thread alone, which may be done between fork and exec.
    unsafe {
        command.pre_exec(move || Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?));
    }
    command.spawn()
}

/// Waits for its end; none if this process is told to end, and has it end, too.
fn end_of(child: &mut Child, told: &SigSet) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(ended) = child.try_wait()? {
            return Ok(Some(ended));
        }
        if told.wait()? != Signal::SIGCHLD {
            let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
            child.wait()?;
            return Ok(None);
        }
    }
}

/// How it has died; none if it has ended, or was told to.
fn death(ended: ExitStatus) -> Option<String> {
    match (ended.signal(), ended.code()) {
        (Some(libc::SIGTERM | libc::SIGINT), _) => None,
        (Some(signal), _) => Some(format!("signal {signal}")),
        (None, Some(PANICKED)) => Some("it panicked".to_owned()),
        _ => None,
    }
}

fn failed(source: io::Error) -> Error {
    Error::Host { path: "tensorfs-carrier bring".into(), what: "start", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dies_again_and_again_is_given_up() {
        let (mut deaths, now) = (Deaths::default(), Instant::now());
        let pauses: Vec<_> = (0..TRIES + 1).map(|_| deaths.add(now).map(|pause| pause.as_millis())).collect();
        assert_eq!(pauses, [Some(200), Some(400), Some(800), Some(1600), Some(3200), None]);
        assert_eq!(deaths.add(now + WITHIN), Some(PAUSE));
    }

    #[test]
    fn an_end_is_no_death() {
        let of = |script: &str| death(Command::new("sh").args(["-c", script]).status().unwrap());
        assert_eq!([of("exit 0"), of("exit 1"), of("kill -TERM $$")], [const { None }; 3]);
        assert_eq!(of("kill -KILL $$").as_deref(), Some("signal 9"));
        assert_eq!(of("exit 101").as_deref(), Some("it panicked"));
    }
}

//! Who fetches the files of a mount that have left it and are wanted back: that somebody does, is seen to here.
//!
//! Whoever opens a file waits for that, so it has the priority of whoever began this, and not that of a carrier, which
//! makes way for everybody. A thread has it, as each has its own, and what it starts inherits it.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, sleep};
use std::time::Duration;

use tensorfs_layout::pool::{Leave, LeaveReply, leave};

use crate::carry::Settings;
use crate::error::{Error, Result};

/// Who fetches files of the mount asks for them more often than that.
const ASKING: Duration = Duration::from_millis(700);
/// So often, and at these times, it is looked whether somebody fetches files who was just started.
const LOOKS: (u32, Duration) = (300, Duration::from_millis(50));
/// How often it is looked whether one has ended.
const LOOK: Duration = Duration::from_secs(10);

/// Pool and mount of one that is to be started, and who hears what came of it.
type Asked = (PathBuf, PathBuf, Sender<io::Result<()>>);

/// Who starts them.
#[derive(Clone, Debug)]
pub struct Fetching(Sender<Asked>);

impl Fetching {
    /// With the priority that the caller has now.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn new() -> Result<Self> {
        let (asks, asked) = channel();
        let begun = thread::Builder::new().name("fetching".to_owned()).spawn(move || starts(&asked));
        begun.map(|_| Self(asks)).map_err(failed)
    }

    /// Tells the server of a mount where the remote is that files leave for, and sees to it that somebody fetches those
    /// that are wanted back.
    ///
    /// # Errors
    /// Nobody does, or the server takes no files for there.
    pub fn see_to(&self, (pool, at): (&Path, &Path), uuid: &str, settings: &Settings) -> Result<()> {
        let kept = Settings { exclude: Vec::new(), ..settings.clone() };
        let note = serde_json::to_vec(&kept).map_err(|error| Error::Refused(error.to_string()))?;
        let to = Leave::To { pool: uuid.to_owned(), place: settings.url.clone(), note };
        let is_fetched = || match ask(at, &to)? {
            LeaveReply::Fetched(is_fetched) => Ok(is_fetched),
            LeaveReply::Refused(why) => Err(Error::Refused(format!("{}: {why}", at.display()))),
            _ => Err(of_another_version(at)),
        };
        if is_fetched()? {
            return Ok(());
        }
        // Another server may have just begun.
        sleep(ASKING);
        if is_fetched()? {
            return Ok(());
        }
        self.start(pool, at)?;
        for _ in 0..LOOKS.0 {
            if is_fetched()? {
                return Ok(());
            }
            sleep(LOOKS.1);
        }
        Err(Error::Refused(format!("{}: nobody fetches what is to come back; nothing leaves", at.display())))
    }

    /// Starts one, as whoever mounts does; it ends with the mount.
    fn start(&self, pool: &Path, at: &Path) -> Result<()> {
        let (tells, told) = channel();
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let asked = self.0.send((pool.to_owned(), at.to_owned(), tells)).map_err(|_| gone());
        asked.and_then(|()| told.recv().unwrap_or_else(|_| Err(gone()))).map_err(failed)
    }
}

/// Asks the server of a mount.
pub fn ask(at: &Path, request: &Leave) -> Result<LeaveReply> {
    let asked = File::open(at).and_then(|at| leave(&at, request));
    asked.map_err(|source| match source.raw_os_error() {
        Some(libc::EPERM) => {
            let what = "only root, or who runs the server, may have files leave for the remote";
            Error::Refused(format!("{}: {what}", at.display()))
        }
        Some(libc::ENOTTY) => of_another_version(at),
        _ => Error::Host { path: at.display().to_string(), what: "ask its server", source },
    })
}

fn of_another_version(at: &Path) -> Error {
    Error::Refused(format!("{}: its server is of another version, which lets no file leave", at.display()))
}

fn failed(source: io::Error) -> Error {
    Error::Host { path: "tensorfs-carrier bring".into(), what: "start", source }
}

fn starts(asked: &Receiver<Asked>) {
    let mut started: Vec<Child> = Vec::new();
    loop {
        let asked = asked.recv_timeout(LOOK);
        // Those that have ended are forgotten by the system, too.
        started.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        match asked {
            Ok((pool, at, tells)) => {
                let child = start(&pool, &at).map(|child| started.push(child));
                // Who has asked waits no more.
                let _ = tells.send(child);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn start(pool: &Path, at: &Path) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bring", "--"]).arg(pool).arg(at).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid(2) and close_range(2) may be called between fork and exec, and take integers.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid().map_err(io::Error::from)?;
            // Where the kernel does not know that, what was opened here is closed by executing a program anyway.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    command.spawn()
}

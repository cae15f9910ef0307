//! Who fetches the files of a mount that have left it and are wanted back: that somebody does, is seen to here.
//!
//! Whoever opens a file waits for that, so it has the priority of whoever began this, and not that of a carrier, which
//! makes way for everybody. A process that was started before has it, and what that starts inherits it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use tensorfs_layout::pool::{Leave, LeaveReply, leave};

use crate::carry::Settings;
use crate::error::{Error, Result};
use crate::outside::{Answer, Errand, Outside};

/// Who fetches files of the mount asks for them more often than that.
const ASKING: Duration = Duration::from_millis(700);
/// So many are there at a time, whoever asks for more.
const MOST: usize = 4;
/// So often, and at these times, it is looked whether somebody fetches files who was just started.
const LOOKS: (u32, Duration) = (300, Duration::from_millis(50));

/// Who has them started, outside: whoever is locked in may start nothing.
#[derive(Clone, Debug)]
pub struct Fetching(Outside);

impl Fetching {
    /// With the priority that the caller has now, for the mount of a pool.
    ///
    /// # Errors
    /// There can be no process.
    pub fn new(pool: &Path) -> Result<Self> {
        Outside::start(pool).map(Self)
    }

    /// When files of the mount were used last since its server began, as far as that is told: in seconds since 1970.
    pub fn uses(&self) -> HashMap<u64, i64> {
        match self.0.ask(&Errand::Uses) {
            Ok(Answer::Used(used)) => used.into_iter().collect(),
            _ => HashMap::new(),
        }
    }

    /// Tells the server of a mount where the remote is that files leave for, and sees to it that somebody fetches those
    /// that are wanted back.
    ///
    /// # Errors
    /// Nobody does, or the server takes no files for there.
    pub fn see_to(&self, at: &Path, uuid: &str, settings: &Settings) -> Result<()> {
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
        self.start()?;
        for _ in 0..LOOKS.0 {
            if is_fetched()? {
                return Ok(());
            }
            sleep(LOOKS.1);
        }
        Err(Error::Refused(format!("{}: nobody fetches what is to come back; nothing leaves", at.display())))
    }

    /// Starts one, as whoever mounts does; it ends with the mount.
    fn start(&self) -> Result<()> {
        match self.0.ask(&Errand::Bring) {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::Failed(why)) => Err(failed(io::Error::other(why))),
            Ok(_) => Err(failed(io::ErrorKind::InvalidData.into())),
            Err(error) => Err(failed(error)),
        }
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

/// Those that were started.
#[derive(Debug, Default)]
pub struct Begun(Mutex<Vec<Child>>);

impl Begun {
    /// Starts one for a mount of a pool.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, pool: &Path, at: &Path) -> io::Result<()> {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended are forgotten by the system, too.
        begun.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        // Those that are there fetch, or end with their mount.
        if begun.len() < MOST {
            begun.push(start(pool, at)?);
        }
        Ok(())
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

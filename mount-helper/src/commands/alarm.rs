//! `tensorfs alarm`: runs a program when damage is found. The server of a mount could not: it has given up its rights.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_fs::{Info, State};
use tensorfs_layout::pool::READ_ONLY_HOST;

use crate::cli::Alarm;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::target::Target;
use crate::mounting::telling::{Ended, Telling};
use crate::mounting::{alarm, apart, inherited, paths};
use crate::show::failure::{At, Failure, reason};
use crate::show::{logging, text};

const EVERY: Duration = Duration::from_secs(10);

/// So long the program has.
const PATIENCE: Duration = Duration::from_secs(60);

/// So many lines of what it says are logged.
const SAID: usize = 20;

/// So long a mount is waited for that is about to be made.
const TO_BE_MOUNTED: Duration = Duration::from_secs(60);

/// What is so meanwhile.
const NOT_MOUNTED: &str = "no tensorfs is mounted here";

/// So much of what was told is kept in mind.
const MOST: usize = 100_000;

/// Runs the command, which ends when nothing is mounted there any more.
pub fn run(arguments: &Alarm) -> Result<(), Failure> {
    if arguments.detached {
        inherited::close_all_but([])?;
    }
    match &arguments.log {
        Some(log) => match logging::to_file(log) {
            Err(fault) if arguments.detached => {
                let _ = logging::to_syslog();
                log::error!("{fault}; what is told of damage is logged here");
            }
            opened => opened?,
        },
        None if arguments.detached => drop(logging::to_syslog()),
        None => {}
    }
    let mountpoint = paths::future(&arguments.mountpoint)?;
    if let Some(fault) = alarm::fault_of(&arguments.run).filter(|_| !arguments.detached) {
        return Err(Failure::new(fault));
    }
    let every = arguments.every.unwrap_or(EVERY);
    let mut teller = Teller {
        program: &arguments.run,
        patience: arguments.timeout.unwrap_or(PATIENCE),
        telling: Telling::default(),
        told: HashSet::new(),
    };
    let (begun, mut seen, mut waits) = (Instant::now(), false, false);
    loop {
        match mounted(&mountpoint)? {
            None if seen => return Ok(()),
            None if begun.elapsed() > TO_BE_MOUNTED => return Err(Failure::at(&mountpoint, NOT_MOUNTED)),
            None if !waits && !arguments.detached => {
                // Of what lies inside a mount it is said.
                if mountpoint.exists() {
                    Target::of(&mountpoint)?;
                }
                let seconds = TO_BE_MOUNTED.as_secs();
                log::warn!("{}: {NOT_MOUNTED}; waiting {seconds} s for a mount", mountpoint.display());
                waits = true;
            }
            None => {}
            Some(mount) => {
                seen = true;
                teller.look(&mount);
            }
        }
        thread::sleep(every);
    }
}

fn mounted(mountpoint: &Path) -> Result<Option<Mount>, Failure> {
    let table = Table::read().at(mountpoint)?;
    Ok(table.top_at(mountpoint).filter(|mount| mount.is_tensorfs() && !mount.is_foreign()).cloned())
}

/// Who tells the program.
struct Teller<'a> {
    program: &'a Path,
    /// So long it has for it.
    patience: Duration,
    telling: Telling,
    /// What it knows.
    told: HashSet<String>,
}

impl Teller<'_> {
    /// Looks once. What the program could not be told it is told the next time.
    fn look(&mut self, mount: &Mount) {
        let mountpoint = mount.mount_point();
        let asked = ["info".as_ref(), "--json".as_ref(), "--".as_ref(), mountpoint.as_os_str()];
        // That it does not answer is for others to tell.
        let Ok(info) = apart::ask::<Info>(&asked, apart::PATIENCE) else { return };
        if info.state != State::Mounted {
            return;
        }
        let news: Vec<String> = damage(&info).into_iter().filter(|line| !self.told.contains(line)).collect();
        if !news.is_empty() {
            self.tell(mount, news);
        }
    }

    /// Of the mount the program hears what the kernel says, not its server.
    fn tell(&mut self, mount: &Mount, news: Vec<String>) {
        let mountpoint = mount.mount_point();
        let mut command = Command::new(self.program);
        command.arg(mountpoint).env("TENSORFS_MOUNTPOINT", mountpoint).env("TENSORFS_POOL", mount.source());
        let ended = self.telling.tell(command, (news.join("\n") + "\n").as_bytes(), self.patience);
        logging::find_again();
        let who = format!("{}: {}", mountpoint.display(), self.program.display());
        let fault = match ended {
            Ok(Ended { fault, said }) => {
                let said = String::from_utf8_lossy(&said);
                let mut lines = said.lines().filter(|line| !line.trim().is_empty());
                for line in lines.by_ref().take(SAID) {
                    log::info!("{who}: says: {}", text::plain(line));
                }
                if lines.next().is_some() {
                    log::info!("{who}: says more than {SAID} lines");
                }
                fault
            }
            Err(error) => Some(reason(&error)),
        };
        match fault {
            Some(fault) => log::error!("{who}: {fault}"),
            None => {
                log::info!("{who}: was told of damage ({}), and ended with status 0", lines(news.len()));
                // With more than that it is told some of it again.
                if self.told.len() < MOST {
                    self.told.extend(news);
                }
            }
        }
    }
}

fn lines(count: usize) -> String {
    text::count(count as u64, "line", "lines")
}

/// What is wrong with what a pool holds, a line each. None begins with a word of the pool's, as programs that send mail
/// obey some words at the beginning of a line.
fn damage(info: &Info) -> Vec<String> {
    let read_only = info.read_only.iter().filter(|why| *why != READ_ONLY_HOST);
    let read_only = read_only.map(|why| format!("the pool takes no changes: {why}"));
    let bytes = info.damaged_files_bytes.iter().map(Option::as_deref).chain(std::iter::repeat(None));
    let lost = info.damaged_files.iter().zip(bytes);
    let lost = lost.map(|(path, bytes)| format!("damage: {}: may have lost bytes", named(path, bytes)));
    let found = info.damage_found.iter().map(|finding| {
        let path = finding.path.as_deref().map(|path| named(path, finding.path_bytes.as_deref()));
        let path = path.unwrap_or_else(|| finding.host_file.clone());
        let place = finding.offset.map_or_else(String::new, |offset| format!(" at byte {offset}"));
        let tensors =
            if finding.tensors.is_empty() { String::new() } else { format!("; {}", finding.tensors.join(", ")) };
        format!("damage: {path}: {}{place}{tensors}", finding.what)
    });
    read_only.chain(lost).chain(found).map(|line| text::plain(&line)).collect()
}

/// A path by which it is told apart from all others, in one line.
fn named(path: &str, bytes: Option<&[u8]>) -> String {
    text::told_path(Some(path), bytes).map_or_else(|| path.to_owned(), text::named)
}

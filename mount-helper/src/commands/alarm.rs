//! `tensorfs alarm`: runs a program when damage is found. The server of a mount could not: it has given up its rights.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_fs::{Info, State};
use tensorfs_layout::pool::READ_ONLY_HOST;

use crate::cli::Alarm;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::target::Target;
use crate::mounting::{alarm, apart, inherited, paths};
use crate::show::failure::{At, Failure, reason};
use crate::show::{logging, text};

const EVERY: Duration = Duration::from_secs(10);

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
        let _ = logging::to_syslog();
    }
    let mountpoint = paths::future(&arguments.mountpoint)?;
    if let Some(fault) = alarm::fault_of(&arguments.run).filter(|_| !arguments.detached) {
        return Err(Failure::new(fault));
    }
    let every = arguments.every.unwrap_or(EVERY);
    let (begun, mut seen, mut told, mut waits) = (Instant::now(), false, HashSet::new(), false);
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
                look(&mount, &arguments.run, &mut told);
            }
        }
        thread::sleep(every);
    }
}

fn mounted(mountpoint: &Path) -> Result<Option<Mount>, Failure> {
    let table = Table::read().at(mountpoint)?;
    Ok(table.top_at(mountpoint).filter(|mount| mount.is_tensorfs() && !mount.is_foreign()).cloned())
}

/// Looks once. What the program could not be told it is told the next time.
fn look(mount: &Mount, program: &Path, told: &mut HashSet<String>) {
    let mountpoint = mount.mount_point();
    let asked = ["info".as_ref(), "--json".as_ref(), "--".as_ref(), mountpoint.as_os_str()];
    // That it does not answer is for others to tell.
    let Ok(info) = apart::ask::<Info>(&asked, apart::PATIENCE) else { return };
    if info.state != State::Mounted {
        return;
    }
    let news: Vec<String> = damage(&info).into_iter().filter(|line| !told.contains(line)).collect();
    if news.is_empty() {
        return;
    }
    match tell(mount, program, &news) {
        Ok(()) if told.len() < MOST => told.extend(news),
        Ok(()) => {}
        Err(error) => log::error!("{}: {}: {}", mountpoint.display(), program.display(), reason(&error)),
    }
}

/// What is wrong with what a pool holds, a line each. None begins with a word of the pool's, as programs that send mail
/// obey some words at the beginning of a line.
fn damage(info: &Info) -> Vec<String> {
    let read_only = info.read_only.iter().filter(|why| *why != READ_ONLY_HOST);
    let read_only = read_only.map(|why| format!("the pool takes no changes: {why}"));
    let lost = info.damaged_files.iter().map(|path| format!("damage: {path}: may have lost bytes"));
    let found = info.damage_found.iter().map(|finding| {
        let path = finding.path.as_deref().unwrap_or(&finding.host_file);
        let place = finding.offset.map_or_else(String::new, |offset| format!(" at byte {offset}"));
        let tensors =
            if finding.tensors.is_empty() { String::new() } else { format!("; {}", finding.tensors.join(", ")) };
        format!("damage: {path}: {}{place}{tensors}", finding.what)
    });
    read_only.chain(lost).chain(found).map(|line| text::plain(&line)).collect()
}

/// Of the mount it hears what the kernel says, not its server.
fn tell(mount: &Mount, program: &Path, news: &[String]) -> io::Result<()> {
    let (mountpoint, mut command) = (mount.mount_point(), Command::new(program));
    command.arg(mountpoint).env("TENSORFS_MOUNTPOINT", mountpoint).env("TENSORFS_POOL", mount.source());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // Who does not want to know more than that there is something need not read it.
        let _ = pipe.write_all((news.join("\n") + "\n").as_bytes());
    }
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("it failed: {status}"))) }
}

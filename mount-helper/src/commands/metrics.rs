//! `tensorfs metrics`: what there is to count of mounts, for Prometheus.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ask::about;
use crate::cli::Metrics;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::target::Target;
use crate::mounting::{apart, foreign};
use crate::show::failure::{At, Failure};
use crate::show::metrics::Families;
use crate::show::{output, text};

/// The file that node exporter finds in its directory.
const NAME: &str = "tensorfs.prom";

/// Runs the command. A mount that does not answer, or not in time, keeps nobody from hearing of the others.
pub fn run(arguments: &Metrics) -> Result<ExitCode, Failure> {
    if let ([target], true) = (&*arguments.targets, arguments.ask) {
        return tell(&of(target));
    }
    let patience = arguments.timeout.unwrap_or(apart::PATIENCE);
    let mut is_whole = true;
    let (mut all, mut told): (_, Vec<Told>) = (Families::default(), Vec::new());
    for target in &arguments.targets {
        let (mount, device) = match ask(target, patience) {
            Answer::Says { mount, device, text } => {
                // One that is named twice is told of once, also where it is bound to another place.
                if told.iter().any(|other| other.device == Some(device)) {
                    continue;
                }
                let called = told.iter_mut().find(|other| other.mount == mount);
                if let Some(Told { device: Some(_), .. }) = called {
                    output::complain(format!("{}: another mount is called {mount}, too", target.display()));
                    is_whole = false;
                    continue;
                }
                all.add(&mount, &text);
                (mount, Some(device))
            }
            Answer::Silent { why, mount } => {
                output::complain(why);
                (mount.unwrap_or_else(|| name_of(target)), None)
            }
        };
        match told.iter_mut().find(|other| other.mount == mount) {
            Some(other) => other.device = other.device.or(device),
            None => told.push(Told { mount, device }),
        }
    }
    all.add_up(told.iter().map(|told| (told.mount.as_str(), told.device.is_some())));
    match &arguments.textfile {
        Some(directory) => write(directory, &all.prometheus())?,
        None => output::print(&all.open_metrics())?,
    }
    Ok(if is_whole && told.iter().all(|told| told.device.is_some()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A mount that was asked about.
struct Told {
    /// What it is called.
    mount: String,
    /// The number of its filesystem, if it answers.
    device: Option<(u32, u32)>,
}

/// What comes of asking about a mount.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Answer {
    Says {
        mount: String,
        device: (u32, u32),
        text: String,
    },
    Silent {
        why: String,
        /// Where it is mounted, if that is known.
        #[serde(default)]
        mount: Option<String>,
    },
}

/// Has another process ask, for so long.
fn ask(target: &Path, patience: Duration) -> Answer {
    let arguments = ["metrics".as_ref(), "--ask".as_ref(), "--".as_ref(), target.as_os_str()];
    let silent = |why| Answer::Silent { why: format!("{}: {why}", target.display()), mount: None };
    apart::ask(&arguments, patience).unwrap_or_else(silent)
}

fn tell(answer: &Answer) -> Result<ExitCode, Failure> {
    let json = serde_json::to_string(answer).map_err(|error| Failure::new(error.to_string()))?;
    output::print(&json).map(|()| ExitCode::SUCCESS)
}

/// Where it is mounted, and what its server says.
fn of(target: &Path) -> Answer {
    // Of another user's mount nothing is asked, and it keeps nobody from hearing of the others.
    let mount = match foreign::check(target).and_then(|()| Target::of(target)).and_then(Target::mount) {
        Ok(mount) => mount,
        Err(failure) => return Answer::Silent { why: failure.to_string(), mount: None },
    };
    let name = text::named(mount.mount_point());
    let said = if mount.is_dead() { Err(Failure::new(about::gone(&mount))) } else { about::metrics(&mount) };
    match said {
        Ok(text) => Answer::Says { mount: name, device: mount.device(), text },
        Err(failure) => Answer::Silent { why: failure.to_string(), mount: Some(name) },
    }
}

/// What a mount is called of which nobody has said where it is: as when it answers, as far as that can be told without
/// asking it. Of a pool it is where it is mounted.
fn name_of(target: &Path) -> String {
    let path: PathBuf = std::path::absolute(target).map_or_else(|_| target.into(), |path| path.components().collect());
    let table = Table::read().unwrap_or_default();
    let mount = if table.top_at(&path).is_some() { None } else { table.of_pool(&path).next() };
    text::named(mount.map_or(&*path, Mount::mount_point))
}

/// Whoever reads the file finds all of it, or all of what was there before.
fn write(directory: &Path, text: &str) -> Result<(), Failure> {
    let (path, new) = (directory.join(NAME), directory.join(format!(".{NAME}.{}", std::process::id())));
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o644);
    // One of a process of that number that was killed.
    let _ = fs::remove_file(&new);
    let written = options.open(&new).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&new, &path)).inspect_err(|_| drop(fs::remove_file(&new))).at(&path)
}

//! `tensorfs rollback`: sets aside what is newer than the newest complete checkpoint, so that whoever goes on from the
//! newest one that is there finds one that is all there.
//!
//! Each is renamed at once, and none is deleted. Interrupted in between, some are where they were: the next run sets
//! them aside. The one that is complete is never touched.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tensorfs_fs::FileState;

use crate::cli::Rollback;
use crate::commands::latest::{Candidate, find};
use crate::show::failure::{At, Failure};
use crate::show::output;
use crate::tensors::attribute;
use crate::tensors::place::Place;

/// Where it goes. `tensorfs latest` passes by what is called so, as do shells and programs that list checkpoints.
const ASIDE: &str = ".rolled-back";
/// So many of one name are set aside.
const MOST: u32 = 10_000;

/// What became of one that is not complete.
enum Outcome {
    /// It is there now, or would be.
    Aside(PathBuf),
    /// It is where it was, and why.
    Left(String),
}

/// Runs the command.
pub fn run(arguments: &Rollback) -> Result<ExitCode, Failure> {
    let dir = &arguments.dir;
    // What was closed just before is at rest then, and what is open still is being written.
    File::open(dir).and_then(|opened| opened.sync_all()).at(dir)?;
    let found = find(dir)?;
    let complete = found.complete(dir)?;
    let mut newer = found.newer();
    newer.retain(|other| !other.is_complete());
    for other in &newer {
        if let Some(path) = being_written(other.place())? {
            return Err(Failure::at(&path, "it is being written; end the program that saves, and try again"));
        }
    }
    let aside = arguments.to.clone().unwrap_or_else(|| dir.join(ASIDE));
    let mut outcomes: Vec<(PathBuf, Outcome)> = Vec::new();
    for other in newer {
        let path = other.place().path();
        let is_gone =
            |(moved, outcome): &(PathBuf, Outcome)| matches!(outcome, Outcome::Aside(_)) && path.starts_with(moved);
        if outcomes.iter().any(is_gone) {
            continue;
        }
        let outcome = match why_not(&other, complete.place().path(), dir) {
            Some(why) => Outcome::Left(why),
            None => set_aside(path, dir, &aside, arguments.dry_run)?,
        };
        say(arguments, path, &outcome)?;
        outcomes.push((path.to_owned(), outcome));
    }
    if !arguments.dry_run && outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Aside(_))) {
        File::open(dir).and_then(|opened| opened.sync_all()).at(dir)?;
    }
    let is_left = outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Left(_)));
    if arguments.json {
        output::print(&format!("{}\n", told(arguments, complete.place().path(), &outcomes)))?;
    } else {
        let how = if is_left { "complete" } else { "the newest, and complete" };
        output::print(&format!("{}: {how}\n", complete.place().path().display()))?;
    }
    Ok(if is_left { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A file of a checkpoint that something has open to write.
fn being_written(checkpoint: &Place) -> Result<Option<PathBuf>, Failure> {
    let mut open = None;
    checkpoint.files(&mut |place, _| {
        let state = attribute::get(place.path(), "user.tensorfs.state").ok().flatten();
        if state.as_deref() == Some(FileState::Open.name()) {
            open = Some(place.path().to_owned());
        }
        Ok(open.is_none())
    })?;
    Ok(open)
}

/// Why one that is not complete stays where it is.
fn why_not(other: &Candidate, complete: &Path, dir: &Path) -> Option<String> {
    let path = other.place().path();
    if other.is_unknown() {
        return Some("whether it is complete cannot be told".to_owned());
    }
    if complete.starts_with(path) {
        return Some("what is complete is in it".to_owned());
    }
    (path == dir).then(|| "it is the directory itself".to_owned())
}

/// Renames it to where it lies below the directory, in the other one.
fn set_aside(path: &Path, dir: &Path, aside: &Path, dry_run: bool) -> Result<Outcome, Failure> {
    let below = path.strip_prefix(dir).unwrap_or(path);
    let below: PathBuf = below.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let to = aside.join(below);
    if dry_run {
        return Ok(Outcome::Aside(free_name(&to)));
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).at(parent)?;
    }
    for number in 0..MOST {
        let to = numbered(&to, number);
        match rename_to_new(path, &to) {
            Ok(()) => return Ok(Outcome::Aside(to)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Gone since it was found.
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
                return Ok(Outcome::Aside(to));
            }
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
                return Err(Failure::at(aside, "not on the same mount, so that nothing can be renamed there"));
            }
            Err(error) => return Err(error).at(path),
        }
    }
    Ok(Outcome::Left(format!("{} has too many of that name", aside.display())))
}

fn free_name(to: &Path) -> PathBuf {
    let free = (0..MOST).map(|number| numbered(to, number)).find(|to| fs::symlink_metadata(to).is_err());
    free.unwrap_or_else(|| to.to_owned())
}

/// The name with a number behind it, from the second of that name on.
fn numbered(path: &Path, number: u32) -> PathBuf {
    match number {
        0 => path.to_owned(),
        _ => {
            let mut name: OsString = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            name.into()
        }
    }
}

/// Renames, and replaces nothing.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (CString::new(from.as_os_str().as_bytes())?, CString::new(to.as_os_str().as_bytes())?);
    let (here, flags) = (libc::AT_FDCWD, libc::RENAME_NOREPLACE);
    // SAFETY: two paths that end with NUL.
    let done = unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn say(arguments: &Rollback, path: &Path, outcome: &Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Left(why) => output::complain(Failure::at(path, format!("left where it is: {why}"))),
        Outcome::Aside(_) if arguments.json => {}
        Outcome::Aside(to) => {
            let what = if arguments.dry_run { "would be set aside as" } else { "set aside as" };
            output::print(&format!("{}: incomplete, {what} {}\n", path.display(), to.display()))?;
        }
    }
    Ok(())
}

fn told(arguments: &Rollback, complete: &Path, outcomes: &[(PathBuf, Outcome)]) -> Value {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let aside = outcomes.iter().filter_map(|(path, outcome)| match outcome {
        Outcome::Aside(to) => Some(json!({"path": text(path), "to": text(to)})),
        Outcome::Left(_) => None,
    });
    let left = outcomes.iter().filter_map(|(path, outcome)| match outcome {
        Outcome::Left(why) => Some(json!({"path": text(path), "why": why})),
        Outcome::Aside(_) => None,
    });
    json!({
        "complete": text(complete),
        "dry_run": arguments.dry_run,
        "set_aside": aside.collect::<Vec<_>>(),
        "left": left.collect::<Vec<_>>(),
    })
}

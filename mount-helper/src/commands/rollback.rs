//! `tensorfs rollback`: sets aside what is newer than the newest complete checkpoint, so that whoever goes on from the
//! newest one that is there finds one that is all there.
//!
//! Each is renamed at once, and none is deleted. Interrupted in between, some are where they were: the next run sets
//! them aside. The one that is complete is never touched.
//!
//! The directory may be a user's whom whoever runs this does not trust, and who changes it meanwhile. So both
//! directories are opened once, and nothing is renamed that is not below the one to where it is not below the other,
//! with no link on the way. What is looked at by its path and was another directory meanwhile can be no other user's.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use serde_json::{Value, json};
use tensorfs_fs::FileState;

use crate::cli::Rollback;
use crate::commands::latest::{Candidate, find};
use crate::show::failure::{At, Failure};
use crate::show::{output, text};
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
    let dir = &fs::canonicalize(&arguments.dir).at(&arguments.dir)?;
    // What was closed just before is at rest then, and what is open still is being written.
    let opened = open_without_links(dir).at(dir)?;
    opened.sync_all().at(dir)?;
    let found = find(dir)?;
    let complete = found.complete(dir)?;
    let mut newer = found.newer();
    newer.retain(|other| !other.is_complete());
    for other in &newer {
        if let Some(path) = being_written(other.place())? {
            return Err(Failure::at(&path, "it is being written; end the program that saves, and try again"));
        }
    }
    let aside = Aside { dir, opened: opened.as_fd(), to: arguments.to.as_deref() };
    // Why they cannot be looked into was told.
    let unseen = found.unseen().iter().map(|place| place.path().to_owned());
    let left = |path| (path, Outcome::Left("what is in it cannot be looked at".to_owned()));
    let mut outcomes: Vec<(PathBuf, Outcome)> = unseen.map(left).collect();
    for other in newer {
        let path = other.place().path();
        let is_gone =
            |(moved, outcome): &(PathBuf, Outcome)| matches!(outcome, Outcome::Aside(_)) && path.starts_with(moved);
        if outcomes.iter().any(is_gone) {
            continue;
        }
        let outcome = match why_not(&other, complete.place().path(), dir) {
            Some(why) => Outcome::Left(why),
            None if arguments.dry_run => Outcome::Aside(aside.would_be(path)?),
            None => aside.set(path)?,
        };
        say(arguments, path, &outcome)?;
        outcomes.push((path.to_owned(), outcome));
    }
    if !arguments.dry_run && outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Aside(_))) {
        opened.sync_all().at(dir)?;
    }
    let is_left = outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Left(_)));
    if arguments.json {
        output::print(&format!("{}\n", told(arguments, complete.place().path(), &outcomes)))?;
    } else {
        let how = if is_left { "complete" } else { "the newest, and complete" };
        output::print(&format!("{}: {how}\n", text::plain(&complete.place().path().to_string_lossy())))?;
    }
    Ok(if is_left { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A file of a checkpoint that something has open to write.
fn being_written(checkpoint: &Place) -> Result<Option<PathBuf>, Failure> {
    let (mut open, mut unknown) = (None, None);
    checkpoint.files(
        &mut |place, _| {
            let state = attribute::get(place.path(), "user.tensorfs.state").ok().flatten();
            if state.as_deref() == Some(FileState::Open.name()) {
                open = Some(place.path().to_owned());
            }
            Ok(open.is_none())
        },
        &mut |failure| unknown = unknown.take().or(Some(failure)),
    )?;
    match unknown {
        Some(failure) if open.is_none() => Err(failure),
        _ => Ok(open),
    }
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

/// Where what is not complete goes.
struct Aside<'a> {
    /// Where it is, as it was named.
    dir: &'a Path,
    opened: BorrowedFd<'a>,
    /// Another directory, if one was named.
    to: Option<&'a Path>,
}

impl Aside<'_> {
    /// The directory, as it is called in print.
    fn path(&self) -> PathBuf {
        self.to.map_or_else(|| self.dir.join(ASIDE), Path::to_owned)
    }

    fn would_be(&self, path: &Path) -> Result<PathBuf, Failure> {
        let to = self.path().join(self.below(path)?);
        let free = (0..MOST).map(|number| numbered(&to, number)).find(|to| fs::symlink_metadata(to).is_err());
        Ok(free.unwrap_or(to))
    }

    /// The way to it from the directory.
    fn below<'a>(&self, path: &'a Path) -> Result<&'a Path, Failure> {
        let below = path.strip_prefix(self.dir).ok().filter(|below| {
            below.file_name().is_some() && below.components().all(|part| matches!(part, Component::Normal(_)))
        });
        below.ok_or_else(|| Failure::at(path, format!("not below {}", self.dir.display())))
    }

    /// Renames it to where it lies below the directory, in the other one.
    fn set(&self, path: &Path) -> Result<Outcome, Failure> {
        let below = self.below(path)?;
        let (parent, name) = (below.parent().unwrap_or(Path::new("")), below.file_name().unwrap_or_default());
        let from = open_below(self.opened, parent, false).at(path)?;
        let there = self.path();
        let to = match self.to {
            None => open_below(self.opened, &Path::new(ASIDE).join(parent), true),
            Some(named) => fs::create_dir_all(named)
                .and_then(|()| File::options().read(true).custom_flags(libc::O_DIRECTORY).open(named))
                .and_then(|named| open_below(named.as_fd(), parent, true)),
        }
        .at(&there.join(parent))?;
        for number in 0..MOST {
            let name_there = numbered(Path::new(name), number);
            let outcome = || Outcome::Aside(numbered(&there.join(below), number));
            match rename_to_new((&from, name), (&to, name_there.as_os_str())) {
                Ok(()) => return Ok(outcome()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Gone since it was found.
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_gone(&from, name) => return Ok(outcome()),
                Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
                    return Err(Failure::at(&there, "not on the same mount, so that nothing can be renamed there"));
                }
                Err(error) => return Err(error).at(path),
            }
        }
        Ok(Outcome::Left(format!("{} has too many of that name", there.display())))
    }
}

/// Opens a directory that no link leads to.
fn open_without_links(dir: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(File::from(openat2(AT_FDCWD, dir, how)?))
}

/// Opens a directory below another one, and makes those that are missing. A link on the way is no directory.
fn open_below(from: BorrowedFd<'_>, below: &Path, make: bool) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut opened = openat(from, ".", flags, Mode::empty())?;
    for part in below.components() {
        if make {
            match mkdirat(&opened, part.as_os_str(), Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        opened = openat(&opened, part.as_os_str(), flags, Mode::empty())?;
    }
    Ok(opened)
}

fn is_gone(directory: &OwnedFd, name: &OsStr) -> bool {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) == Err(Errno::ENOENT)
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

/// Renames a name in one directory to one in another, and replaces nothing.
fn rename_to_new(from: (&OwnedFd, &OsStr), to: (&OwnedFd, &OsStr)) -> io::Result<()> {
    let (name, new) = (CString::new(from.1.as_bytes())?, CString::new(to.1.as_bytes())?);
    let (from, to, flags) = (from.0.as_raw_fd(), to.0.as_raw_fd(), libc::RENAME_NOREPLACE);
    // SAFETY: two descriptors that are open, and two names that end with NUL.
    let done = unsafe { libc::renameat2(from, name.as_ptr(), to, new.as_ptr(), flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn say(arguments: &Rollback, path: &Path, outcome: &Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Left(why) => output::complain(Failure::at(path, format!("left where it is: {why}"))),
        Outcome::Aside(_) if arguments.json => {}
        Outcome::Aside(to) => {
            let what = if arguments.dry_run { "would be set aside as" } else { "set aside as" };
            let (path, to) = (text::plain(&path.to_string_lossy()), text::plain(&to.to_string_lossy()));
            output::print(&format!("{path}: incomplete, {what} {to}\n"))?;
        }
    }
    Ok(())
}

fn told(arguments: &Rollback, complete: &Path, outcomes: &[(PathBuf, Outcome)]) -> Value {
    let told = |path: &Path| path.to_string_lossy().into_owned();
    let aside = outcomes.iter().filter_map(|(path, outcome)| match outcome {
        Outcome::Aside(to) => {
            let mut line = text::with_path(json!({"to": told(to)}), path);
            if to.to_str().is_none() {
                line["to_bytes"] = json!(to.as_os_str().as_bytes());
            }
            Some(line)
        }
        Outcome::Left(_) => None,
    });
    let left = outcomes.iter().filter_map(|(path, outcome)| match outcome {
        Outcome::Left(why) => Some(text::with_path(json!({"why": why}), path)),
        Outcome::Aside(_) => None,
    });
    let mut line = json!({
        "complete": told(complete),
        "dry_run": arguments.dry_run,
        "set_aside": aside.collect::<Vec<_>>(),
        "left": left.collect::<Vec<_>>(),
    });
    if complete.to_str().is_none() {
        line["complete_bytes"] = json!(complete.as_os_str().as_bytes());
    }
    line
}

//! `wait`: returns when the remote has files as they are now, whole.

use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::carry::{Carrier, Outcome};
use crate::commands::cli;
use crate::commands::mount::{pool_of, within};
use crate::commands::place::note_of;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::repository::{Entry, Repository, State, Tree, text_of};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// For so long a batch waits for other files that come to rest.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(arguments: &cli::Wait) -> Result<()> {
    match arguments.timeout {
        Some(timeout) => in_time(&arguments.paths, timeout),
        None => arguments.paths.iter().try_for_each(|path| wait(path)),
    }
}

/// A store may keep whoever asks it waiting for longer, so that it is asked elsewhere. What is being carried then ends
/// with this process, as it may at any moment.
fn in_time(paths: &[PathBuf], timeout: Duration) -> Result<()> {
    let until = Instant::now() + timeout;
    let (carried, told) = mpsc::channel();
    let asked = paths.to_vec();
    thread::spawn(move || asked.iter().all(|path| carried.send(wait(path)).is_ok()));
    paths.iter().try_for_each(|path| {
        let left = until.saturating_duration_since(Instant::now());
        told.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Error::Late { path: path.clone(), seconds: timeout.as_secs_f64() },
            RecvTimeoutError::Disconnected => Error::Refused(format!("{}: waiting for it failed", path.display())),
        })?
    })
}

fn wait(path: &Path) -> Result<()> {
    let host = |what| move |source| Error::Host { path: path.display().to_string(), what, source };
    let path = fs::canonicalize(path).map_err(host("find"))?;
    match pool_of(&path) {
        Some((pool, mount)) => {
            // What was done before is committed, so that the carrier sees it.
            let directory = if path.is_dir() { &*path } else { path.parent().unwrap_or(&mount) };
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(host("sync"))?;
            on_mount(&pool, &mount, &path)
        }
        None => closed(&path),
    }
}

/// A pool that is not mounted.
fn closed(pool: &Path) -> Result<()> {
    let mut carrier = Carrier::new(pool, Duration::ZERO)?;
    loop {
        let passed = carrier.pass()?;
        match passed.outcome {
            Outcome::Waiting(_) => sleep(PAUSE),
            _ if passed.incomplete == 0 => return Ok(()),
            _ => {
                let (pool, count) = (pool.display(), passed.incomplete);
                return Err(Error::Refused(format!(
                    "{pool}: {count} files are not whole; `tensorfs check` names them"
                )));
            }
        }
    }
}

/// The remote's tree is compared with what the mount shows. Whoever carries the pool does so meanwhile; if nobody does,
/// this does.
fn on_mount(pool: &Path, mount: &Path, path: &Path) -> Result<()> {
    let name = text_of(within(path, mount).as_bytes());
    let mut seen = None;
    loop {
        if let Some(mut carrier) = Carrier::take(pool, PATIENCE)? {
            loop {
                carrier.pass()?;
                if is_carried(&carrier.newest().tree, &name, path)? {
                    return Ok(());
                }
                sleep(PAUSE);
            }
        }
        let note = note_of(pool)?;
        if seen.replace(note.number) != Some(note.number) {
            let place = Place::open(&note.settings.url, &note.settings.access)?;
            if is_carried(&Repository::new(place).newest()?.tree, &name, path)? {
                return Ok(());
            }
        }
        sleep(PAUSE);
    }
}

/// True if the tree has what is at a path, and all below it, as it is there now.
fn is_carried(tree: &Tree, name: &str, path: &Path) -> Result<bool> {
    let Some(top) = tree.resolve(name) else { return Ok(false) };
    let mut left: Vec<(PathBuf, u64)> = vec![(path.to_owned(), top)];
    while let Some((path, ino)) = left.pop() {
        let host = |source| Error::Host { path: path.display().to_string(), what: "look at", source };
        let now = fs::symlink_metadata(&path).map_err(host)?;
        let Some(entry) = tree.entry(ino).filter(|entry| is_same(entry, &now)) else { return Ok(false) };
        if !entry.is_dir() {
            continue;
        }
        let mut carried: std::collections::HashMap<&str, u64> = tree.names(ino).collect();
        for there in fs::read_dir(&path).map_err(host)? {
            let there = there.map_err(host)?;
            match carried.remove(text_of(there.file_name().as_bytes()).as_str()) {
                Some(ino) => left.push((there.path(), ino)),
                None => return Ok(false),
            }
        }
        if !carried.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_same(entry: &Entry, now: &Metadata) -> bool {
    let whole = entry.file.as_ref().is_none_or(|file| file.state == State::Whole && file.size == now.len());
    let same = entry.ino == now.ino() && entry.mode == now.mode();
    // The times of a directory may be newer than what is in it.
    let time = entry.is_dir() || entry.mtime == (now.mtime(), now.mtime_nsec() as u32);
    whole && same && time
}

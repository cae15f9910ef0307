//! `wait`: returns when the remote has files as they are now, whole.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::fs::lgetxattr;
use rustix::io::Errno;
use tensorfs_layout::check::Committed;

use crate::carry::left_out::{self, Globs};
use crate::carry::{Carrier, Note, Outcome};
use crate::commands::cli;
use crate::commands::mount::{self, OnMount};
use crate::commands::place::note_of;
use crate::commands::show;
use crate::error::{Error, Result};
use crate::repository::{Entry, Repository, State, Tree, text_of};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// So often whoever waits hears what for.
const SAY: Duration = Duration::from_secs(60);
/// For so long a batch waits for other files that come to rest.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why what is waited for is not there yet, as far as is known; whoever waits no longer says it.
type Reason = Mutex<String>;

pub fn run(arguments: &cli::Wait) -> Result<()> {
    let reason = Arc::default();
    match arguments.timeout {
        Some(timeout) => in_time(&arguments.paths, timeout, &reason),
        None => arguments.paths.iter().try_for_each(|path| wait(path, &reason)),
    }
}

/// A store may keep whoever asks it waiting for longer, so that it is asked elsewhere. What is being carried then ends
/// with this process, as it may at any moment.
fn in_time(paths: &[PathBuf], timeout: Duration, reason: &Arc<Reason>) -> Result<()> {
    let until = Instant::now() + timeout;
    let (carried, told) = mpsc::channel();
    let (asked, why) = (paths.to_vec(), reason.clone());
    thread::spawn(move || asked.iter().all(|path| carried.send(wait(path, &why)).is_ok()));
    paths.iter().try_for_each(|path| {
        let left = until.saturating_duration_since(Instant::now());
        told.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                let why = locked(reason).clone();
                Error::Late { path: path.clone(), seconds: timeout.as_secs_f64(), why }
            }
            RecvTimeoutError::Disconnected => Error::Refused(format!("{}: waiting for it failed", path.display())),
        })?
    })
}

fn locked(reason: &Reason) -> MutexGuard<'_, String> {
    reason.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(path: &Path, reason: &Reason) -> Result<()> {
    let host = |what| move |source| Error::Host { path: path.display().to_string(), what, source };
    let path = fs::canonicalize(path).map_err(host("find"))?;
    match mount::on_mount(&path) {
        Some(place) => {
            // What was done before is committed, so that the carrier sees it.
            let directory = if path.is_dir() { &*path } else { path.parent().unwrap_or(&place.at) };
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(host("sync"))?;
            let committed = Committed::read(&place.pool)?;
            let globs = Globs::of(&note_of(&place.pool)?.settings.exclude)?;
            if let Some(why) = left_out::why(committed.view(), &globs, place.within.as_os_str().as_bytes()) {
                return Err(Error::Refused(format!("{}: is left out of the remote, {why}", path.display())));
            }
            let transaction = committed.transaction().0;
            on_mount(&place, transaction, &path, &mut Teller::new(&path, reason))
        }
        None => closed(&path),
    }
}

/// Says what is waited for: at once to whoever gives up, and now and then to whoever does not.
struct Teller<'a> {
    path: &'a Path,
    reason: &'a Reason,
    said: Instant,
}

impl<'a> Teller<'a> {
    fn new(path: &'a Path, reason: &'a Reason) -> Self {
        locked(reason).clear();
        Self { path, reason, said: Instant::now() }
    }

    fn tell(&mut self, why: String) {
        if self.said.elapsed() >= SAY {
            eprintln!("{}: not in the remote yet{}", show::plain(&self.path.display().to_string()), show::plain(&why));
            self.said = Instant::now();
        }
        *locked(self.reason) = why;
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

/// The remote's tree is compared with what the mount shows, once it is as new as the pool's `transaction`: size and
/// times do not tell a file from itself before it was written again. Whoever carries the pool does so meanwhile; if
/// nobody does, this does.
fn on_mount(place: &OnMount, transaction: u64, path: &Path, teller: &mut Teller<'_>) -> Result<()> {
    let (mut seen, mut fetched) = (None, None);
    loop {
        if let Some(mut carrier) = Carrier::take(&place.pool, PATIENCE)? {
            loop {
                let passed = carrier.pass()?;
                let is_new = passed.transaction >= transaction;
                if let Outcome::Waiting(files) = passed.outcome {
                    teller.tell(format!("; files that are about to come to rest: {files}"));
                } else if is_new {
                    match is_carried(&carrier.newest().tree, (place, carrier.note()), path)? {
                        Carried::Yes => return Ok(()),
                        Carried::No(why) => teller.tell(why),
                    }
                }
                sleep(PAUSE);
            }
        }
        let note = note_of(&place.pool)?;
        if let Some(error) = &note.error {
            teller.tell(format!("; the carrier fails: {error}"));
        } else if note.transaction >= transaction {
            let now = (note.number, note.transaction);
            let tree = match fetched.take().filter(|(number, _)| *number == note.number) {
                Some((_, tree)) => tree,
                None => Repository::new(note.settings.open()?).newest()?.tree,
            };
            // The mount may have come to be as the tree is, so that no batch is put.
            if seen.replace(now) != Some(now) {
                match is_carried(&tree, (place, &note), path)? {
                    Carried::Yes => return Ok(()),
                    Carried::No(why) => teller.tell(why),
                }
            }
            fetched = Some((note.number, tree));
        }
        sleep(PAUSE);
    }
}

/// Whether the tree has what is at a path, and all below it, as it is there now; or what it lacks.
enum Carried {
    Yes,
    No(String),
}

/// Fails on what no waiting brings to the remote. What is left out of it is passed over.
fn is_carried(tree: &Tree, (place, note): (&OnMount, &Note), path: &Path) -> Result<Carried> {
    let lacks = |path: &Path, what: &str| Ok(Carried::No(format!("; {}: {what}", path.display())));
    let globs = Globs::of(&note.settings.exclude)?;
    let within = place.within.as_os_str().as_bytes();
    let Some(top) = tree.resolve(&text_of(within)) else { return lacks(path, "was not carried yet") };
    let within = within.strip_prefix(b"/").unwrap_or(within);
    let mut left: Vec<(PathBuf, Option<Vec<u8>>, u64)> = vec![(path.to_owned(), Some(within.to_vec()), top)];
    while let Some((path, within, ino)) = left.pop() {
        let host = |source| Error::Host { path: path.display().to_string(), what: "look at", source };
        let now = fs::symlink_metadata(&path).map_err(host)?;
        let Some(entry) = tree.entry(ino).filter(|entry| entry.ino == now.ino()) else {
            return lacks(&path, "was not carried yet");
        };
        match entry.file.as_ref().map(|file| file.state) {
            Some(State::Damaged) => {
                let what = "is damaged, and not in the remote as it is; `tensorfs verify` finds what is wrong with it";
                return Err(Error::Refused(format!("{}: {what}", path.display())));
            }
            Some(State::Open) => return lacks(&path, "is open to write, or was when it was carried"),
            _ if !is_same(entry, &now) => return lacks(&path, "has changed since it was carried"),
            _ => {}
        }
        if !entry.is_dir() || says_no(&path).map_err(host)? {
            continue;
        }
        let mut carried: std::collections::HashMap<&str, u64> = tree.names(ino).collect();
        for there in fs::read_dir(&path).map_err(host)? {
            let there = there.map_err(host)?;
            let name = there.file_name();
            let own = within.as_ref().and_then(|within| left_out::joined(within, name.as_bytes()));
            if globs.fit(name.as_bytes(), own.as_deref()) {
                continue;
            }
            match carried.remove(text_of(name.as_bytes()).as_str()) {
                Some(ino) => left.push((there.path(), own, ino)),
                None => return lacks(&there.path(), "was not carried yet"),
            }
        }
        if !carried.is_empty() {
            return lacks(&path, "has fewer names than when it was carried");
        }
    }
    Ok(Carried::Yes)
}

/// True of a directory nothing below which is carried.
fn says_no(path: &Path) -> io::Result<bool> {
    let mut value = [0_u8; left_out::NO.len()];
    match lgetxattr(path, left_out::ATTRIBUTE, &mut value[..]) {
        Ok(len) => Ok(value[..len] == *left_out::NO),
        // What is longer is something else.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn is_same(entry: &Entry, now: &Metadata) -> bool {
    let same = entry.mode == now.mode() && entry.file.as_ref().is_none_or(|file| file.size == now.len());
    // The times of a directory may be newer than what is in it.
    same && (entry.is_dir() || entry.mtime == (now.mtime(), now.mtime_nsec() as u32))
}

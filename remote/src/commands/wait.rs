//! `wait`: returns when the remote has files as they are now, whole.

use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use tensorfs_layout::check::Committed;
use tensorfs_layout::globs::joined;

use crate::carry::left_out;
use crate::carry::{Carrier, Note, Outcome, Passed, Settings};
use crate::commands::catching_up::CatchingUp;
use crate::commands::cli;
use crate::commands::mount::{self, OnMount};
use crate::commands::place::note_of;
use crate::commands::show;
use crate::error::{Error, Result};
use crate::repository::{Entry, Newest, Repository, State, Tree, text_of};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// So often whoever waits hears what for.
const SAY: Duration = Duration::from_secs(60);
/// For so long a batch waits for other files that come to rest.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is told to whoever waits.
struct Told {
    /// Why what is waited for is not there yet, as far as is known; whoever waits no longer says it.
    reason: Mutex<String>,
    come: CatchingUp,
}

/// So often in a row something fails that may pass, before whoever has no time to wait for hears of it.
const TRIES: u32 = 6;

pub fn run(arguments: &cli::Wait) -> Result<()> {
    let told = Arc::new(Told { reason: Mutex::default(), come: CatchingUp::default() });
    let paths = match &arguments.paths[..] {
        [] => vec![all_of_the_mount()?],
        paths => paths.to_vec(),
    };
    let waited = match arguments.timeout {
        Some(timeout) => in_time(&paths, timeout, &told),
        None => paths.iter().try_for_each(|path| wait(path, &told, Some(TRIES))),
    };
    told.come.end(waited.is_ok());
    waited
}

/// The mount that the working directory is on.
fn all_of_the_mount() -> Result<PathBuf> {
    let host = |source| Error::Host { path: "working directory".into(), what: "find", source };
    let here = std::env::current_dir().and_then(fs::canonicalize).map_err(host)?;
    mount::on_mount(&here).map(|place| place.at).ok_or_else(|| {
        let what = "the working directory is on no mount; name files or directories on one, or a pool";
        Error::Refused(format!("{}: {what}", here.display()))
    })
}

/// A store may keep whoever asks it waiting for longer, so that it is asked elsewhere. What is being carried then ends
/// with this process, as it may at any moment.
fn in_time(paths: &[PathBuf], timeout: Duration, told: &Arc<Told>) -> Result<()> {
    let until = Instant::now() + timeout;
    let (carried, done) = mpsc::channel();
    let (asked, own) = (paths.to_vec(), told.clone());
    thread::spawn(move || asked.iter().all(|path| carried.send(wait(path, &own, None)).is_ok()));
    paths.iter().try_for_each(|path| {
        let left = until.saturating_duration_since(Instant::now());
        done.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                let why = told.reason().clone();
                Error::Late { path: path.clone(), seconds: timeout.as_secs_f64(), why }
            }
            RecvTimeoutError::Disconnected => Error::Refused(format!("{}: waiting for it failed", path.display())),
        })?
    })
}

impl Told {
    fn reason(&self) -> MutexGuard<'_, String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What fails and may pass is tried again, so often in a row if there is a number.
fn wait(path: &Path, told: &Arc<Told>, tries: Option<u32>) -> Result<()> {
    let host = |what| move |source| Error::Host { path: path.display().to_string(), what, source };
    let path = fs::canonicalize(path).map_err(host("find"))?;
    match mount::on_mount(&path) {
        Some(place) => {
            // What was done before is committed, so that the carrier sees it.
            let directory = if path.is_dir() { &*path } else { path.parent().unwrap_or(&place.at) };
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(host("sync"))?;
            let committed = Committed::read(&place.pool)?;
            let globs = left_out::compiled(&note_of(&place.pool)?.settings.exclude)?;
            if let Some(why) = left_out::why(committed.view(), &globs, place.within.as_os_str().as_bytes()) {
                return Err(Error::Refused(format!("{}: is left out of the remote, {why}", path.display())));
            }
            let transaction = committed.transaction().0;
            on_mount(&place, transaction, &path, &mut Teller::new(&path, told, (tries, true)))
        }
        None => closed(&path, &mut Teller::new(&path, told, (tries, false))),
    }
}

/// Says what is waited for: at once to whoever gives up, and now and then to whoever does not.
struct Teller<'a> {
    path: &'a Path,
    told: &'a Arc<Told>,
    said: Instant,
    /// So often in a row something has failed, and may.
    failed: u32,
    tries: Option<u32>,
    is_on_mount: bool,
}

impl<'a> Teller<'a> {
    fn new(path: &'a Path, told: &'a Arc<Told>, (tries, is_on_mount): (Option<u32>, bool)) -> Self {
        told.reason().clear();
        Self { path, told, said: Instant::now(), failed: 0, tries, is_on_mount }
    }

    /// A pass of a carrier of one's own, of a pool at this path.
    fn pass(&self, carrier: &mut Carrier, pool: &Path) -> Result<Passed> {
        let (told, of) = (self.told.clone(), (pool.to_owned(), carrier.note().pool.clone()));
        carrier.hear(Some(Box::new(move |_| told.come.look((&of.0, &of.1)))));
        let passed = carrier.pass();
        carrier.hear(None);
        self.told.come.is(carrier.note().pace.behind.bytes);
        passed
    }

    /// What a try came to; nothing after one that failed with what may pass.
    fn tried<T>(&mut self, tried: Result<T>) -> Result<Option<T>> {
        match tried {
            Ok(done) => {
                self.failed = 0;
                Ok(Some(done))
            }
            // Of a mount they are being fetched.
            Err(Error::Coming(why)) if self.is_on_mount => {
                self.tell(format!("; {why}"));
                sleep(PAUSE);
                Ok(None)
            }
            Err(error) if error.may_pass() && self.tries.is_none_or(|tries| self.failed + 1 < tries) => {
                self.tell(format!("; {error}; trying again"));
                sleep(PAUSE.saturating_mul(2_u32.saturating_pow(self.failed)).min(SAY));
                self.failed = self.failed.saturating_add(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn tell(&mut self, why: String) {
        if self.said.elapsed() >= SAY {
            let path = show::plain(&self.path.display().to_string());
            self.told.come.beside(|| eprintln!("{path}: not in the remote yet{}", show::plain(&why)));
            self.said = Instant::now();
        }
        *self.told.reason() = why;
    }
}

/// A pool that is not mounted.
fn closed(pool: &Path, teller: &mut Teller<'_>) -> Result<()> {
    // What is no pool, or has no remote, is none in a moment either.
    note_of(pool)?;
    let mut carrier = loop {
        if let Some(carrier) = teller.tried(Carrier::new(pool, Duration::ZERO))? {
            break carrier;
        }
    };
    loop {
        let passed = teller.pass(&mut carrier, pool);
        let Some(passed) = teller.tried(passed)? else { continue };
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
    let mut seen = None;
    let mut fetched: Option<(Settings, Newest)> = None;
    loop {
        let Some(taken) = teller.tried(Carrier::take(&place.pool, PATIENCE))? else { continue };
        if let Some(mut carrier) = taken {
            loop {
                let passed = teller.pass(&mut carrier, &place.pool);
                let Some(passed) = teller.tried(passed)? else { continue };
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
        teller.told.come.is(note.pace.behind.bytes);
        if let Some(error) = &note.error {
            teller.tell(format!("; the carrier fails: {error}"));
        } else if note.transaction >= transaction {
            let now = (note.number, note.transaction);
            let before = fetched.take().filter(|(settings, _)| *settings == note.settings).map(|(_, before)| before);
            let Some(newest) = teller.tried(newest(&note, before))? else { continue };
            // The mount may have come to be as the tree is, so that no batch is put.
            if seen.replace(now) != Some(now) {
                match is_carried(&newest.tree, (place, &note), path)? {
                    Carried::Yes => return Ok(()),
                    Carried::No(why) => teller.tell(why),
                }
            }
            fetched = Some((note.settings, newest));
        }
        sleep(PAUSE);
    }
}

/// The newest tree as the note has it, or a newer one, given one that was it. What has come since is all that is read.
fn newest(note: &Note, before: Option<Newest>) -> Result<Newest> {
    let is_it = |newest: &Newest| (newest.number(), newest.hash) == (note.number, note.hash);
    if let Some(before) = before {
        if is_it(&before) {
            return Ok(before);
        }
        let newest = Repository::new(note.settings.open()?).since(before)?;
        // One may have come since the note was read.
        if is_it(&newest) || newest.number() > note.number {
            return Ok(newest);
        }
    }
    Repository::new(note.settings.open()?).newest()
}

/// Whether the tree has what is at a path, and all below it, as it is there now; or what it lacks.
enum Carried {
    Yes,
    No(String),
}

/// Fails on what no waiting brings to the remote. What is left out of it is passed over.
fn is_carried(tree: &Tree, (place, note): (&OnMount, &Note), path: &Path) -> Result<Carried> {
    let lacks = |path: &Path, what: &str| Ok(Carried::No(format!("; {}: {what}", path.display())));
    let globs = left_out::compiled(&note.settings.exclude)?;
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
        if !entry.is_dir() || says_no(entry) {
            continue;
        }
        let mut carried: std::collections::HashMap<&str, u64> = tree.names(ino).collect();
        for there in fs::read_dir(&path).map_err(host)? {
            let there = there.map_err(host)?;
            let name = there.file_name();
            let own = within.as_ref().and_then(|within| joined(within, name.as_bytes()));
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
fn says_no(entry: &Entry) -> bool {
    entry.xattrs().any(|(name, value)| name == left_out::ATTRIBUTE.as_bytes() && value == left_out::NO)
}

fn is_same(entry: &Entry, now: &Metadata) -> bool {
    let same = entry.mode == now.mode() && entry.file.as_ref().is_none_or(|file| file.size == now.len());
    // The times of a directory may be newer than what is in it.
    same && (entry.is_dir() || entry.mtime == (now.mtime(), now.mtime_nsec() as u32))
}

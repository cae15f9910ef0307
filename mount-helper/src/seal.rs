//! `tensorfs seal`: files get their checksums now, those that nothing can write.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tensorfs_fs::{Reply, Request, Sealing};
use tensorfs_layout::{Ino, OpenOptions, Pool, Timestamp};

use crate::cli::Seal;
use crate::failure::Failure;
use crate::place::Place;
use crate::progress::Bar;
use crate::{job, output};

/// How often to ask what came of it.
const INTERVAL: Duration = Duration::from_millis(20);
/// A program that has closed a file, or has ended, may seem to have it open for a moment longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs the command. Status 1: something was not sealed.
pub fn run(arguments: &Seal) -> Result<ExitCode, Failure> {
    let tally = all(arguments)?;
    let files = if tally.sealed == 1 { "1 file is".to_owned() } else { format!("{} files are", tally.sealed) };
    let not = if tally.not > 0 { format!(", {} not", tally.not) } else { String::new() };
    output::print(&format!("{files} sealed{not}\n"))?;
    Ok(if tally.not > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Seals what can be sealed, waits for it, and says what cannot.
pub fn all(arguments: &Seal) -> Result<Tally, Failure> {
    let bar = Bar::new(false);
    let mut tally = Tally::default();
    for path in &arguments.paths {
        let place = Place::of(path)?;
        if place.is_in_pool() {
            in_pool(path, &place, arguments.again, &bar, &mut tally)?;
        } else {
            on_mount(&place, arguments.again, &bar, &mut tally)?;
        }
    }
    bar.clear();
    Ok(tally)
}

/// How many files are sealed, and how many are not.
#[derive(Default)]
pub struct Tally {
    pub sealed: u64,
    pub not: u64,
}

impl Tally {
    /// Counts a file; false if it is not known yet what comes of it.
    fn add(&mut self, path: &Path, sealing: &Sealing, bar: &Bar) -> bool {
        match sealing {
            Sealing::Waiting => return false,
            Sealing::Sealed => self.sealed += 1,
            Sealing::InUse(why) | Sealing::Unfit(why) => {
                self.not += 1;
                bar.aside(|| output::complain(Failure::at(path, format!("not sealed: {why}"))));
            }
        }
        true
    }
}

/// A file of which it is not known yet what comes of it.
struct Waiting {
    path: PathBuf,
    /// A directory of its mount.
    dir: PathBuf,
    ino: Ino,
    /// When it was first said to be in use. That it waits for its turn in between changes nothing: a program that writes it
    /// again and again could go on for ever.
    in_use: Option<Instant>,
    /// So it was said the last time.
    to_begin: bool,
}

/// Seals a file, or all files below a directory, of a mount, and waits for it.
fn on_mount(place: &Place, again: bool, bar: &Bar, tally: &mut Tally) -> Result<(), Failure> {
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut seen = HashSet::new();
    let mut total = 0;
    place.files(&mut |place, _| {
        let ino = place.ino()?;
        // A file may have several names.
        if seen.insert(ino) {
            total += 1;
            let file =
                Waiting { path: place.path.clone(), dir: directory(&place.path), ino, in_use: None, to_begin: false };
            waiting.extend(file.ask(true, again, bar, tally)?);
        }
        Ok(true)
    })?;
    while !waiting.is_empty() {
        bar.show("sealing", total - waiting.len() as u64, total);
        thread::sleep(INTERVAL);
        // They are sealed one by one: what comes late need not be asked for every time.
        let late = waiting.split_off(waiting.len().min(64));
        let mut still = Vec::new();
        for file in waiting {
            let begin = file.to_begin;
            still.extend(file.ask(begin, again, bar, tally)?);
        }
        still.extend(late);
        waiting = still;
    }
    Ok(())
}

impl Waiting {
    /// Asks what came of it. Returns it if that is still to be seen.
    fn ask(mut self, begin: bool, again: bool, bar: &Bar, tally: &mut Tally) -> Result<Option<Waiting>, Failure> {
        let sealing = ask(&self.dir, self.ino, begin, again)?;
        self.to_begin = matches!(sealing, Sealing::InUse(_));
        if self.to_begin && self.in_use.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return Ok(Some(self));
        }
        Ok((!tally.add(&self.path, &sealing, bar)).then_some(self))
    }
}

fn ask(dir: &Path, ino: Ino, begin: bool, again: bool) -> Result<Sealing, Failure> {
    match job::request(dir, &Request::Seal { ino, begin, again })? {
        Reply::Sealing(sealing) => Ok(sealing),
        _ => Err(Failure::at(dir, "its server speaks of something unknown here")),
    }
}

/// The server is asked through a directory, so that no file is opened, which could be in somebody's way.
fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Seals files of a pool that is not mounted: opens it, as a mount would.
fn in_pool(path: &Path, place: &Place, again: bool, bar: &Bar, tally: &mut Tally) -> Result<(), Failure> {
    let (pool, inside) = place.in_which_pool().ok_or_else(|| Failure::at(path, "no pool"))?;
    let options = OpenOptions { now: Timestamp::from(SystemTime::now()), ..OpenOptions::default() };
    let opened = Pool::open(&pool, &options)?;
    let inside = inside.as_os_str().as_bytes();
    let wanted = |found: &[u8]| match found.strip_prefix(inside) {
        Some(rest) => inside.is_empty() || rest.is_empty() || rest.starts_with(b"/"),
        None => false,
    };
    tensorfs_fs::seal_pool(opened, again, &wanted, &mut |found, sealing| {
        let path = pool.display().to_string() + ":/" + &String::from_utf8_lossy(found);
        tally.add(Path::new(&path), &sealing, bar);
        bar.show("sealing", tally.sealed + tally.not, 0);
        true
    })?;
    Ok(())
}

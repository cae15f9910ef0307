//! Having files sealed that nothing can write, and waiting for it.

use std::cell::Cell;
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_fs::{Reply, Request, Sealing};
use tensorfs_layout::Ino;

use crate::ask::question::{directory, request_about, unknown};
use crate::mounting::pool;
use crate::show::failure::Failure;
use crate::show::output;
use crate::show::progress::Bar;
use crate::tensors::place::Place;

/// How often to ask what came of it.
const INTERVAL: Duration = Duration::from_millis(20);
/// A program that has closed a file, or has ended, may seem to have it open for a moment longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Seals what can be sealed, waits for it, and says what cannot.
///
/// `again`: files that are sealed are looked at again.
pub fn seal(paths: &[PathBuf], again: bool) -> Result<Tally, Failure> {
    let bar = Bar::new(false);
    let mut tally = Tally::default();
    for path in paths {
        let sealed = Place::of(path).and_then(|place| match place.is_in_pool() {
            true => in_pool(path, &place, again, &bar, &mut tally),
            false => on_mount(&place, again, &bar, &mut tally),
        });
        // Others are sealed all the same.
        if let Err(failure) = sealed {
            bar.aside(|| output::complain(failure));
            tally.failed = true;
        }
    }
    bar.clear();
    Ok(tally)
}

/// How many files are sealed, and how many are not.
#[derive(Default)]
pub struct Tally {
    sealed: u64,
    not: u64,
    failed: bool,
}

impl Tally {
    /// Files that are sealed.
    pub fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Files that are not.
    pub fn not_sealed(&self) -> u64 {
        self.not
    }

    /// True if something could not be looked at, so that it is not known which files there are.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

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
    place: Place,
    /// A directory of its mount.
    dir: PathBuf,
    ino: Ino,
    /// When it was first said to be in use. That it waits for its turn in between changes nothing: a program that
    /// writes it again and again could go on for ever.
    in_use: Option<Instant>,
    /// It was said to be in use the last time, so sealing has not begun.
    to_begin: bool,
}

/// Seals a file, or all files below a directory, of a mount, and waits for it.
fn on_mount(place: &Place, again: bool, bar: &Bar, tally: &mut Tally) -> Result<(), Failure> {
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut seen = HashSet::new();
    let mut total = 0;
    let failed = Cell::new(false);
    let trouble = |failure| {
        bar.aside(|| output::complain(failure));
        failed.set(true);
    };
    place.files(
        &mut |place, _| {
            let Some(ino) = place.looked_at(Place::ino, &mut { trouble }) else { return Ok(true) };
            // A file may have several names.
            if seen.insert(ino) {
                total += 1;
                let (place, dir) = (place.clone(), directory(place.path()));
                let file = Waiting { place, dir, ino, in_use: None, to_begin: false };
                match file.ask(true, again, bar, tally) {
                    Ok(file) => waiting.extend(file),
                    Err(failure) => trouble(failure),
                }
            }
            Ok(true)
        },
        &mut { trouble },
    )?;
    while !waiting.is_empty() {
        bar.show("sealing", total - waiting.len() as u64, total);
        thread::sleep(INTERVAL);
        // They are sealed one by one: what comes late need not be asked for every time.
        let late = waiting.split_off(waiting.len().min(64));
        let mut still = Vec::new();
        for file in waiting {
            let begin = file.to_begin;
            match file.ask(begin, again, bar, tally) {
                Ok(file) => still.extend(file),
                Err(failure) => trouble(failure),
            }
        }
        still.extend(late);
        waiting = still;
    }
    tally.failed |= failed.get();
    Ok(())
}

impl Waiting {
    /// Asks what came of it. Returns it if that is still to be seen.
    fn ask(mut self, begin: bool, again: bool, bar: &Bar, tally: &mut Tally) -> Result<Option<Waiting>, Failure> {
        let sealing = match ask(self.place.path(), &self.dir, self.ino, begin, again) {
            Ok(Sealing::Unfit(_)) | Err(_) if self.place.is_gone() => return Ok(None),
            answer => answer?,
        };
        self.to_begin = matches!(sealing, Sealing::InUse(_));
        if self.to_begin && self.in_use.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return Ok(Some(self));
        }
        Ok((!tally.add(self.place.path(), &sealing, bar)).then_some(self))
    }
}

fn ask(file: &Path, dir: &Path, ino: Ino, begin: bool, again: bool) -> Result<Sealing, Failure> {
    match request_about(file, dir, &Request::Seal { ino, begin, again })? {
        Reply::Sealing(sealing) => Ok(sealing),
        _ => Err(unknown(file)),
    }
}

/// Seals files of a pool that is not mounted: opens it, as a mount would.
fn in_pool(path: &Path, place: &Place, again: bool, bar: &Bar, tally: &mut Tally) -> Result<(), Failure> {
    let (pool, inside) = place.in_which_pool().ok_or_else(|| Failure::at(path, "no pool"))?;
    let opened = pool::open(&pool)?;
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

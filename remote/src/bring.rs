//! The files of a mount whose bytes are in a remote yet: they are fetched, and handed to its server. Those that
//! somebody waits for come first.
//!
//! Nothing is kept here: which files are away, the pool knows. Who is killed leaves the rest to the next one.

mod changes;
mod follow;
mod mount;
mod several;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::ToBring;

use crate::bring::mount::{AFTER_FAILURE, MOUNTED, Mount, PAUSES, Stop, THREADS, THREADS_WAITED_FOR, Why, locked};
use crate::carry::{Note, Settings};
use crate::error::{Error, Result};
use crate::fetch::{Fetcher, Written};
use crate::origin::{From, Noted};
use crate::repository::{Hash, Newest, Repository};

pub(crate) use follow::tell_of_end;

/// After so long without one, whoever fetches those that have left asks no more often than that.
const IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(100));

/// Where the files of a mount come from.
enum Source {
    /// From the remote that the pool was made from.
    Made(From),
    /// From the pool's own remote, for which they have left: it is there, as the pool says.
    Own(Mutex<Settings>),
}

/// The number of a batch, and its BLAKE3.
type Batch = (u64, Option<Hash>);

/// A remote, read.
struct Opened {
    repository: Repository,
    newest: Newest,
    settings: Settings,
}

/// Brings the files of a pool that is mounted, or about to be, until all are here or it is mounted no more. If it is to
/// `follow` its remote, it is looked so often for a newer tree of that.
///
/// # Errors
/// What the pool says of its remote is not to be believed, or cannot be read.
pub fn bring_all(pool: &Path, at: &Path, follow: Option<Duration>) -> Result<()> {
    // Whatever has the pool's path later: owner, note and segments are those of this directory.
    let opened = File::open(pool).map_err(|source| {
        let path = pool.display().to_string();
        Error::Host { path, what: "open", source }
    })?;
    let pool = &*PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let mount = Mount {
        pool: pool.to_owned(),
        at: at.to_owned(),
        to: Arc::new(ToBring::of(pool)?),
        uuid: String::new(),
        coming: Mutex::default(),
        over: AtomicBool::new(false),
    };
    if !mount.is_there_within(MOUNTED) {
        return Ok(());
    }
    let committed = loop {
        match Committed::read(pool) {
            Ok(committed) => break committed,
            Err(error) if !mount.is_there_within(Duration::ZERO) => return Err(error.into()),
            // Its server changes it too fast, or there is no memory or descriptor just now.
            Err(_) => thread::sleep(AFTER_FAILURE),
        }
    };
    let mount = Mount { uuid: committed.superblock().uuid_text(), ..mount };
    let Some((number, tier)) = committed.view().remote() else { return Ok(()) };
    let is_own = tier.is_own_remote();
    if committed.view().tier_totals(number).files == 0 && !is_own && !tier.is_followed() {
        return Ok(());
    }
    let from = if geteuid().is_root() && mount.to.owner() != 0 {
        Err(format!("the pool belongs to user {}, who says where its files are; mount it as him", mount.to.owner()))
    } else {
        let note = tier.note().unwrap_or_default();
        let source = match is_own {
            true => serde_json::from_slice(note).map(Mutex::new).map(Source::Own),
            false => match serde_json::from_slice(note) {
                Ok(noted @ Noted::Several(_)) => {
                    drop(committed);
                    several::bring(mount, noted);
                    return Ok(());
                }
                Ok(Noted::Followed(noted)) => {
                    drop(committed);
                    follow::bring(mount, noted, follow);
                    return Ok(());
                }
                Ok(Noted::One(from)) => Ok(Source::Made(from)),
                Err(error) => Err(error),
            },
        };
        source.map_err(|error| format!("what is noted of its remote: {error}"))
    };
    drop(committed);
    let opened = match mount.open(&from) {
        Err(_) => return Ok(()),
        Ok(opened) => Mutex::new(Arc::new(opened)),
    };
    let Ok(source) = from else { return Ok(()) };
    let written = mount.written();
    thread::scope(|scope| {
        scope.spawn(|| mount.give_signs());
        let workers = (0..THREADS + THREADS_WAITED_FOR).map(|n| {
            let (mount, source, opened, written) = (&mount, &source, &opened, &written);
            scope.spawn(move || while mount.work(source, opened, (n >= THREADS, written)).is_ok() {})
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().for_each(|worker| drop(worker.join()));
        mount.over.store(true, Ordering::SeqCst);
    });
    Ok(())
}

impl Mount {
    /// Opens the repository. Until that has succeeded, whoever waits for a file is told why not.
    fn open(&self, from: &std::result::Result<Source, String>) -> std::result::Result<Opened, Stop> {
        loop {
            let why = match from {
                Err(why) => why.clone(),
                Ok(from) => match self.opened(from) {
                    Ok(opened) => return Ok(opened),
                    Err(error) => error.to_string(),
                },
            };
            let begun = Instant::now();
            // Nothing may be waited for, and then it is tried again all the same.
            while begun.elapsed() < AFTER_FAILURE * 5 {
                if let Some(job) = self.next(true)? {
                    let why = why.clone();
                    self.said(job, Err(if from.is_err() { Why::of_file(why, true) } else { Why::for_now(why) }))?;
                    thread::sleep(AFTER_FAILURE);
                    break;
                }
                thread::sleep(PAUSES[1]);
            }
        }
    }

    /// Fetches files, until another state of the remote is to be looked at.
    fn work(
        &self,
        source: &Source,
        opened: &Mutex<Arc<Opened>>,
        (waited_for, written): (bool, &Written),
    ) -> std::result::Result<(), Stop> {
        let now = locked(opened).clone();
        let fetcher = &mut Fetcher::beside_others(&now.repository, written.clone());
        let mut idle = Instant::now();
        loop {
            let Some(job) = self.next(waited_for)? else {
                // Of those that have left one may be wanted in days.
                let is_long = matches!(source, Source::Own(_)) && idle.elapsed() >= IDLE.0;
                thread::sleep(match waited_for {
                    true if is_long => IDLE.1,
                    true => PAUSES[0],
                    false => PAUSES[1],
                });
                continue;
            };
            let current = self.current(source, opened);
            let fetched = match &current {
                Err(error) => Err(Why::for_now(error.to_string())),
                Ok(newer) if Arc::ptr_eq(newer, &now) => self.fetch(fetcher, &now.newest, job),
                Ok(newer) => {
                    let fetcher = &mut Fetcher::beside_others(&newer.repository, written.clone());
                    self.fetch(fetcher, &newer.newest, job)
                }
            };
            let failed = fetched.is_err();
            self.said(job, fetched)?;
            if failed {
                thread::sleep(AFTER_FAILURE);
            }
            if current.is_ok_and(|newer| !Arc::ptr_eq(&newer, &now)) {
                return Ok(());
            }
            idle = Instant::now();
        }
    }

    /// The remote as it is to be looked at now: what has left since is in a newer tree of the pool's own.
    fn current(&self, source: &Source, opened: &Mutex<Arc<Opened>>) -> Result<Arc<Opened>> {
        let mut opened = locked(opened);
        if let Source::Own(place) = source {
            let (settings, batch) = self.own(place)?;
            let newest = (opened.newest.number(), opened.newest.hash);
            if settings != opened.settings || batch.is_some_and(|batch| batch != newest) {
                *opened = Arc::new(self.opened(source)?);
            }
        }
        Ok(opened.clone())
    }

    /// How the remote is reached that files have left for, and the newest batch there, as far as the pool's carrier has
    /// noted that of this one.
    fn own(&self, place: &Mutex<Settings>) -> Result<(Settings, Option<Batch>)> {
        let note = Note::of(&self.pool, &self.uuid)?;
        let mut place = locked(place);
        if note.as_ref().is_none_or(|note| note.settings.url != place.url) {
            let committed = Committed::read(&self.pool)?;
            let tier = committed.view().remote().filter(|(_, tier)| tier.is_own_remote());
            let now = tier.and_then(|(_, tier)| serde_json::from_slice(tier.note()?).ok());
            *place = now.unwrap_or_else(|| place.clone());
        }
        let note = note.filter(|note| note.settings.url == place.url);
        Ok(note.map_or_else(|| (place.clone(), None), |note| (note.settings, Some((note.number, note.hash)))))
    }

    fn opened(&self, source: &Source) -> Result<Opened> {
        match source {
            Source::Made(from) => opened(from),
            Source::Own(place) => {
                let (settings, _) = self.own(place)?;
                let repository = Repository::new(settings.open()?);
                let newest = repository.newest()?;
                Ok(Opened { repository, newest, settings })
            }
        }
    }
}

fn opened(from: &From) -> Result<Opened> {
    let repository = Repository::new(from.settings.open()?);
    let newest = repository.tree_at(Some(from.number))?;
    if newest.head.as_ref().map(|head| head.number) != Some(from.number) || newest.hash != from.hash {
        let what = format!("batch {} is not the one that the pool was made from", from.number);
        return Err(Error::damaged(repository.place().shown(), what));
    }
    Ok(Opened { repository, newest, settings: from.settings.clone() })
}

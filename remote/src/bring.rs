//! The files of a mount whose bytes are in a remote yet: they are fetched, and handed to its server. Those that
//! somebody waits for come first.
//!
//! Nothing is kept here: which files are away, the pool knows. Who is killed leaves the rest to the next one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::unistd::{Whence, geteuid, lseek};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{Bring, BringReply, ToBring, bring};
use tensorfs_layout::{Ino, SegmentId};

use crate::carry::{Note, Settings};
use crate::error::{Error, Result};
use crate::fetch::{Fetcher, Target};
use crate::repository::{Content, Hash, Newest, Repository};

/// So many threads fetch whatever is next, and so many what somebody waits for.
const THREADS: usize = 2;
const THREADS_WAITED_FOR: usize = 2;
/// So long a mount is waited for, and as long as whoever is to serve it lives.
const MOUNTED: Duration = Duration::from_secs(120);
/// How often it is asked for the next file where there is none: by who fetches what is waited for, and by others.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// After so long without one, whoever fetches those that have left asks no more often than that.
const IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(100));
/// After an attempt that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The server hears so often that somebody is at work.
const SIGN: Duration = Duration::from_secs(5);
/// And so often that bytes have come.
const TOLD: Duration = Duration::from_millis(500);
/// Bytes of a reason at most.
const REASON: usize = 600;

/// What a pool notes of the remote that its files come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct From {
    /// Where it is, and how it is reached.
    pub settings: Settings,
    /// The batch whose tree the pool was made from.
    pub number: u64,
    /// Its BLAKE3.
    pub hash: Option<Hash>,
}

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

/// What keeps from going on.
enum Stop {
    /// There is no mount any more.
    Unmounted,
    /// All files are here.
    Done,
}

/// The mount of a pool.
struct Mount {
    pool: PathBuf,
    at: PathBuf,
    to: ToBring,
    uuid: String,
    /// The files that are on their way.
    coming: Mutex<Vec<(Ino, SegmentId)>>,
    over: AtomicBool,
}

/// Brings the files of a pool that is mounted, or about to be, until all are here or it is mounted no more.
///
/// # Errors
/// What the pool says of its remote is not to be believed, or cannot be read.
pub fn bring_all(pool: &Path, at: &Path) -> Result<()> {
    // Whatever has the pool's path later: owner, note and segments are those of this directory.
    let opened = File::open(pool).map_err(|source| {
        let path = pool.display().to_string();
        Error::Host { path, what: "open", source }
    })?;
    let pool = &*PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let mount = Mount {
        pool: pool.to_owned(),
        at: at.to_owned(),
        to: ToBring::of(pool)?,
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
    if committed.view().tier_totals(number).files == 0 && !is_own {
        return Ok(());
    }
    let from = if geteuid().is_root() && mount.to.owner() != 0 {
        Err(format!("the pool belongs to user {}, who says where its files are; mount it as him", mount.to.owner()))
    } else {
        let note = tier.note().unwrap_or_default();
        let source = match is_own {
            true => serde_json::from_slice(note).map(Mutex::new).map(Source::Own),
            false => serde_json::from_slice(note).map(Source::Made),
        };
        source.map_err(|error| format!("what is noted of its remote: {error}"))
    };
    drop(committed);
    let opened = match mount.open(&from) {
        Err(_) => return Ok(()),
        Ok(opened) => Mutex::new(Arc::new(opened)),
    };
    let Ok(source) = from else { return Ok(()) };
    thread::scope(|scope| {
        scope.spawn(|| mount.give_signs());
        let workers = (0..THREADS + THREADS_WAITED_FOR).map(|n| {
            let (mount, source, opened) = (&mount, &source, &opened);
            scope.spawn(move || while mount.work(source, opened, n >= THREADS).is_ok() {})
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().for_each(|worker| drop(worker.join()));
        mount.over.store(true, Ordering::SeqCst);
    });
    Ok(())
}

impl Mount {
    fn is_there_within(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        // Of no file, so that nothing comes of it.
        let request = Bring::Coming { ino: Ino(0), segment: SegmentId(0), bytes: 0 };
        while File::open(&self.at).and_then(|at| bring(&at, &request)).is_err() {
            if begun.elapsed() > patience && (patience.is_zero() || !is_to_come()) {
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Nothing of the mount is held open meanwhile, so that it can be unmounted.
    fn ask(&self, request: &Bring) -> std::result::Result<BringReply, Stop> {
        let begun = Instant::now();
        loop {
            return match File::open(&self.at).and_then(|at| bring(&at, request)) {
                Ok(reply) => Ok(reply),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Too many files are open, or the like.
                Err(error) if [Some(libc::EMFILE), Some(libc::ENFILE), Some(libc::ENOMEM)].contains(&os(&error)) => {
                    thread::sleep(AFTER_FAILURE);
                    continue;
                }
                // That one request was not answered does not say that none will be.
                Err(error) if os(&error) == Some(libc::EIO) && begun.elapsed() < MOUNTED => {
                    thread::sleep(AFTER_FAILURE);
                    continue;
                }
                Err(_) => Err(Stop::Unmounted),
            };
        }
    }

    fn next(&self, waited_for: bool) -> std::result::Result<Option<(Ino, u64, u64, SegmentId)>, Stop> {
        match self.ask(&Bring::Next { pool: self.uuid.clone(), waited_for })? {
            BringReply::File { ino, number, size, segment } => {
                self.coming().push((ino, segment));
                Ok(Some((ino, number, size, segment)))
            }
            BringReply::Nothing { away: 0 } => Err(Stop::Done),
            _ => Ok(None),
        }
    }

    fn coming(&self) -> std::sync::MutexGuard<'_, Vec<(Ino, SegmentId)>> {
        locked(&self.coming)
    }

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
                if let Some((ino, _, _, segment)) = self.next(true)? {
                    self.said(ino, segment, Err((why.clone(), from.is_err())))?;
                    thread::sleep(AFTER_FAILURE);
                    break;
                }
                thread::sleep(PAUSES[1]);
            }
        }
    }

    /// Fetches files, until another state of the remote is to be looked at.
    fn work(&self, source: &Source, opened: &Mutex<Arc<Opened>>, waited_for: bool) -> std::result::Result<(), Stop> {
        let now = locked(opened).clone();
        let fetcher = &mut Fetcher::new(&now.repository);
        let mut idle = Instant::now();
        loop {
            let Some((ino, number, size, segment)) = self.next(waited_for)? else {
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
                Err(error) => Err((error.to_string(), false)),
                Ok(newer) if Arc::ptr_eq(newer, &now) => {
                    self.fetch(fetcher, &now.newest, (ino, segment), (number, size))
                }
                Ok(newer) => {
                    let fetcher = &mut Fetcher::new(&newer.repository);
                    self.fetch(fetcher, &newer.newest, (ino, segment), (number, size))
                }
            };
            let failed = fetched.is_err();
            self.said(ino, segment, fetched)?;
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

    /// Fetches a file. An error says whether it is of no use to try again.
    fn fetch(
        &self,
        fetcher: &mut Fetcher<'_>,
        newest: &Newest,
        (ino, segment): (Ino, SegmentId),
        (number, size): (u64, u64),
    ) -> std::result::Result<(), (String, bool)> {
        let content = newest.tree.entry(number).and_then(|entry| entry.file.as_ref());
        let len = |content: &&Content| content.parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.len()));
        let content = content.filter(|content| len(content) == size);
        let content = content.ok_or_else(|| ("its remote has no such file".to_owned(), true))?;
        let file = self.to.open(segment).map_err(|error| (format!("its segment: {error}"), false))?;
        let file = File::from(file);
        check_new(&file, size).map_err(|error| (format!("its segment: {error}"), false))?;
        let (mut told, mut bytes) = (Instant::now(), 0);
        let each = |len| {
            bytes += len;
            if told.elapsed() >= TOLD {
                // What comes of it is heard at the end.
                let _ = self.ask(&Bring::Coming { ino, segment, bytes });
                (told, bytes) = (Instant::now(), 0);
            }
        };
        let shown = format!("inode {ino}");
        let fetched = fetcher.file(content, None, (&mut Target::File(&file), &shown), each);
        // Closed before that is said.
        drop(file);
        fetched.map(drop).map_err(|error| {
            let for_good = matches!(error, Error::Damaged { .. });
            (error.to_string(), for_good)
        })
    }

    fn said(
        &self,
        ino: Ino,
        segment: SegmentId,
        fetched: std::result::Result<(), (String, bool)>,
    ) -> std::result::Result<(), Stop> {
        self.coming().retain(|one| *one != (ino, segment));
        let request = match fetched {
            Ok(()) => Bring::Come { ino, segment },
            Err((mut why, for_good)) => {
                while why.len() > REASON {
                    why.pop();
                }
                Bring::Failed { ino, segment, why, for_good }
            }
        };
        self.ask(&request).map(drop)
    }

    /// A large part may take long: until it has come, the server hears that somebody fetches it.
    fn give_signs(&self) {
        let mut given = Instant::now();
        while !self.over.load(Ordering::SeqCst) {
            thread::sleep(PAUSES[1]);
            if given.elapsed() >= SIGN {
                given = Instant::now();
                for (ino, segment) in self.coming().clone() {
                    let _ = self.ask(&Bring::Coming { ino, segment, bytes: 0 });
                }
            }
        }
    }
}

/// True if standard input is a pipe that somebody has open yet: who has started this one, and is to serve the mount.
fn is_to_come() -> bool {
    let stdin = io::stdin();
    let is_pipe = fstat(&stdin).is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFIFO);
    let mut polled = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    is_pipe && poll(&mut polled, PollTimeout::ZERO).is_ok_and(|found| found == 0)
}

/// That nothing is in a segment yet. Whoever says which one it is need not be the server of this pool.
fn check_new(segment: &File, size: u64) -> io::Result<()> {
    let found = segment.metadata()?;
    // Attributes may take a block.
    let is_hole = || found.blocks() == 0 || lseek(segment, 0, Whence::SeekData) == Err(Errno::ENXIO);
    if found.is_file() && found.len() == size && is_hole() {
        return Ok(());
    }
    Err(io::Error::other("it is not one that the server has just made"))
}

fn os(error: &io::Error) -> Option<i32> {
    error.raw_os_error().filter(|errno| *errno != Errno::UnknownErrno as i32)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_bytes_is_not_written() {
        let scratch = tempfile::tempdir().unwrap();
        let file = File::create(scratch.path().join("segment")).unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(check_new(&file, 1 << 20).is_ok());
        assert!(check_new(&file, 1 << 21).is_err());
        std::os::unix::fs::FileExt::write_all_at(&file, b"bytes", 0).unwrap();
        assert!(check_new(&file, 1 << 20).is_err());
        assert!(check_new(&File::open("/dev/null").unwrap(), 0).is_err());
    }
}

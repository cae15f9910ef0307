//! The mount of a pool, and how its server is asked.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::unistd::{Whence, lseek};
use tensorfs_layout::pool::{Bring, BringReply, ToBring, bring};
use tensorfs_layout::{Ino, SegmentId};

use crate::error::Error;
use crate::fetch::{Fetcher, Target};
use crate::repository::{Content, Newest};

/// So many threads fetch whatever is next, and so many what somebody waits for.
pub(super) const THREADS: usize = 2;
pub(super) const THREADS_WAITED_FOR: usize = 2;
/// So long a mount is waited for, and as long as whoever is to serve it lives.
pub(super) const MOUNTED: Duration = Duration::from_secs(120);
/// How often it is asked for the next file where there is none: by who fetches what is waited for, and by others.
pub(super) const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// After an attempt that failed.
pub(super) const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The server hears so often that somebody is at work.
pub(super) const SIGN: Duration = Duration::from_secs(5);
/// And so often that bytes have come.
pub(super) const TOLD: Duration = Duration::from_millis(500);
/// Bytes of a reason at most.
pub(super) const REASON: usize = 600;

/// What keeps from going on.
pub(super) enum Stop {
    /// There is no mount any more.
    Unmounted,
    /// All files are here.
    Done,
}

/// The mount of a pool.
pub(super) struct Mount {
    pub(super) pool: PathBuf,
    pub(super) at: PathBuf,
    pub(super) to: ToBring,
    pub(super) uuid: String,
    /// The files that are on their way.
    pub(super) coming: Mutex<Vec<(Ino, SegmentId)>>,
    pub(super) over: AtomicBool,
}

impl Mount {
    pub(super) fn is_there_within(&self, patience: Duration) -> bool {
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

    pub(super) fn next(&self, waited_for: bool) -> std::result::Result<Option<(Ino, u64, u64, SegmentId)>, Stop> {
        match self.ask(&Bring::Next { pool: self.uuid.clone(), waited_for })? {
            BringReply::File { ino, number, size, segment } => {
                self.coming().push((ino, segment));
                Ok(Some((ino, number, size, segment)))
            }
            BringReply::Nothing { away: 0 } => Err(Stop::Done),
            _ => Ok(None),
        }
    }

    pub(super) fn coming(&self) -> std::sync::MutexGuard<'_, Vec<(Ino, SegmentId)>> {
        locked(&self.coming)
    }

    /// Fetches a file. An error says whether it is of no use to try again.
    pub(super) fn fetch(
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

    pub(super) fn said(
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
    pub(super) fn give_signs(&self) {
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

pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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

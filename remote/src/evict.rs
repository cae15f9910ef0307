//! Files of a mount leave it: their bytes are in the pool's remote alone from then on, and come back when somebody
//! opens them.
//!
//! Here it is seen that the remote has all of a file: in its newest tree, as the pool's carrier has put it, with
//! objects that are there and as long as they should be. Whether the file is still what was carried, the server of the
//! mount says, by its seals. Nothing is kept here.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tensorfs_formats::crc32c_append;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{Carrying, Known, Leave, LeaveReply, digest, time_of_carrier};
use tensorfs_layout::{Ino, SegmentId};

use crate::carry::{Note, Settings};
use crate::error::{Error, Result};
use crate::fetch::{Fetcher, Target};
use crate::fetching::{Fetching, ask};
use crate::repository::{Content, Hash, Newest, Part, Repository, State, object_name};

/// A carrier that has put a batch notes it within this; and one that is about to put one is waited for so long.
const NOTED: Duration = Duration::from_secs(5);
const PUT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(200);
/// So often it is looked again for one file at what has changed meanwhile.
const AGAIN: u32 = 5;
/// So many files in a row of which the remote tells nothing, and none is tried any more.
const FAILED: u32 = 8;
/// So many objects are known to be there at a time.
const SEEN: usize = 1 << 20;

/// What came of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// It is away.
    Gone,
    /// It has no bytes.
    Empty,
    /// It is where it was, for this reason.
    Stays(String),
}

/// Lets files of a mount leave.
#[derive(Debug)]
pub struct Evictor {
    pool: PathBuf,
    at: PathBuf,
    uuid: String,
    settings: Settings,
    repository: Repository,
    newest: Newest,
    /// Objects that are there, and how long they are.
    seen: BTreeMap<Hash, u64>,
    /// What files have is read, and compared with their checksums.
    reads: bool,
    /// What was read last, and found to have them.
    read: Option<Content>,
    /// The server knows where the remote is, and somebody fetches what comes back; and it did once.
    is_begun: bool,
    has_begun: bool,
    /// The number of the carrier's time after which it was looked at what is noted.
    time: u64,
    /// So many files in a row came to nothing as the store failed.
    failed: u32,
    fetching: Fetching,
}

impl Evictor {
    /// For files of a pool that is mounted there.
    ///
    /// # Errors
    /// It has no remote, or that cannot be read.
    pub fn of(pool: &Path, at: &Path, reads: bool, fetching: Fetching) -> Result<Self> {
        let uuid = Committed::read(pool)?.superblock().uuid_text();
        let settings = note(pool, &uuid)?.settings;
        let repository = Repository::new(settings.open()?);
        let newest = repository.newest()?;
        // Whoever is started with it is in another directory.
        let host = |source| Error::Host { path: pool.display().to_string(), what: "find", source };
        let (pool, at) = (std::path::absolute(pool).map_err(host)?, at.to_owned());
        let mut evictor = Self {
            pool,
            at,
            uuid,
            settings,
            repository,
            newest,
            seen: BTreeMap::new(),
            reads,
            read: None,
            is_begun: false,
            has_begun: false,
            time: 0,
            failed: 0,
            fetching,
        };
        evictor.look_again()?;
        Ok(evictor)
    }

    /// Where the pool is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Lets a file leave, if the remote has all of it. One that nobody has asked for stays if it has come back a moment
    /// ago.
    ///
    /// # Errors
    /// None can: the remote or the mount is not reached, or whoever calls this may not do so.
    pub fn evict(&mut self, ino: u64, by_itself: bool) -> Result<Evicted> {
        for _ in 0..AGAIN {
            self.look_again()?;
            let evicted = match self.evict_as_seen(ino, by_itself) {
                // What is wrong with one object need not be wrong with others.
                Err(error @ (Error::Store { .. } | Error::Damaged { .. })) => {
                    self.failed += 1;
                    if self.failed >= FAILED {
                        self.failed = 0;
                        return Err(error);
                    }
                    return Ok(Evicted::Stays(error.to_string()));
                }
                evicted => evicted?,
            };
            self.failed = 0;
            match evicted {
                Some(evicted) => return Ok(evicted),
                None => self.is_begun = false,
            }
        }
        Ok(Evicted::Stays("batches are put all the while; try again later".to_owned()))
    }

    /// As [`Evictor::evict`]; nothing if what is noted has changed meanwhile.
    fn evict_as_seen(&mut self, ino: u64, by_itself: bool) -> Result<Option<Evicted>> {
        let stays = |why: &str| Ok(Some(Evicted::Stays(why.to_owned())));
        let batch = self.newest.number();
        let content = self.newest.tree.entry(ino).and_then(|entry| entry.file.clone());
        let Some(content) = content else {
            return stays(&format!("not in the remote's tree after batch {batch}; `tensorfs remote wait`"));
        };
        match content.state {
            _ if content.size == 0 => return Ok(Some(Evicted::Empty)),
            State::Open => return stays("it was not at rest when it was carried; `tensorfs remote wait`"),
            State::Damaged => return stays("it is damaged, and not in the remote as it is"),
            State::Whole => {}
        }
        let sum = |mut lens: Box<dyn Iterator<Item = u64> + '_>| lens.try_fold(0_u64, u64::checked_add);
        let in_parts = sum(Box::new(content.parts.iter().map(Part::len)));
        let in_seals = sum(Box::new(content.seals.iter().map(|sealed| sealed.0)));
        if in_parts != Some(content.size) || in_seals != Some(content.size) {
            return stays("not all of it is in the remote with its checksums");
        }
        if let Some(fault) = self.fault(&content)? {
            return Ok(Some(Evicted::Stays(fault)));
        }
        self.begin()?;
        let known = Known {
            segment: SegmentId(content.segment),
            version: content.version,
            size: content.size,
            seals: digest(content.seals.iter().map(|sealed| (sealed.0, sealed.1))),
        };
        let (place, time) = (self.settings.url.clone(), self.time);
        match ask(&self.at, &Leave::Go { ino: Ino(ino), known, place, time, by_itself })? {
            LeaveReply::Gone => Ok(Some(Evicted::Gone)),
            LeaveReply::Empty => Ok(Some(Evicted::Empty)),
            LeaveReply::Refused(why) => stays(&why),
            LeaveReply::Again => Ok(None),
            LeaveReply::Fetched(_) | LeaveReply::Which { .. } => stays("its server speaks of something unknown here"),
        }
    }

    /// That somebody fetches what has left, once more: whoever did may have ended.
    ///
    /// # Errors
    /// Nobody does.
    pub fn see_to_fetching(&mut self) -> Result<()> {
        if self.has_begun { self.fetching.see_to(&self.at, &self.uuid, &self.settings) } else { Ok(()) }
    }

    /// Sees to it that what is known of the remote is the newest tree, and that this pool has put it, with nothing
    /// being put behind it.
    fn look_again(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let time = time_of_carrier(&self.pool)?;
            let note = note(&self.pool, &self.uuid)?;
            let is_being_put = note.intended.is_some();
            if note.number == 0 && !is_being_put {
                let what = "nothing is in its remote yet; `tensorfs remote carry` brings it there";
                return Err(Error::Refused(format!("{}: {what}", self.pool.display())));
            }
            let is_elsewhere = note.settings != self.settings;
            if is_elsewhere {
                self.repository = Repository::new(note.settings.open()?);
                self.settings = note.settings;
                (self.is_begun, self.seen, self.read) = (false, BTreeMap::new(), None);
            }
            let is_other = |newest: &Newest| note.number != newest.number() || note.hash != newest.hash;
            if !is_being_put && (is_elsewhere || is_other(&self.newest)) {
                self.newest = self.repository.newest()?;
            }
            let is_ours = self.newest.head.as_ref().is_some_and(|head| head.pool == self.uuid);
            if let Some(time) = time.filter(|_| is_ours && !is_being_put && !is_other(&self.newest)) {
                self.time = time;
                return Ok(());
            }
            // A batch is noted before and after it is put.
            let is_at_work = (is_being_put || time.is_none()) && Carrying::is_taken(&self.pool)?;
            if begun.elapsed() >= if is_at_work { PUT } else { NOTED } {
                return Err(self.is_not_last(is_being_put, time.is_some()));
            }
            sleep(PAUSE);
        }
    }

    fn is_not_last(&self, is_being_put: bool, is_free: bool) -> Error {
        let (remote, number) = (self.repository.place().shown(), self.newest.number());
        let what = match is_being_put {
            true => format!("a batch behind {number} may be there or not; `tensorfs remote carry` sees to that"),
            false if !is_free => "the pool's carrier is at work all the while, or of another version".to_owned(),
            false => format!("its newest batch, {number}, is not the one that this pool has put last"),
        };
        Error::Refused(format!("{remote}: {what}"))
    }

    /// What keeps the remote from giving back a file.
    fn fault(&mut self, content: &Content) -> Result<Option<String>> {
        if self.seen.len() > SEEN {
            self.seen.clear();
        }
        let objects = || content.parts.iter().filter_map(|part| part.object().map(|(object, _)| object));
        let unseen: HashSet<Hash> = objects().filter(|object| !self.seen.contains_key(object)).collect();
        let unseen: Vec<Hash> = unseen.into_iter().collect();
        let names: Vec<String> = unseen.iter().map(|object| object_name(*object)).collect();
        let sizes = self.repository.place().sizes(&names)?;
        self.seen.extend(unseen.iter().zip(sizes).filter_map(|(object, size)| Some((*object, size?))));
        for part in &content.parts {
            let Some((object, at)) = part.object() else { continue };
            let end = at.checked_add(part.len());
            let fits = match (self.seen.get(&object), part) {
                (None, _) => {
                    return Ok(Some(format!("the remote has lost {}, which it needs", object_name(object))));
                }
                (Some(size), Part::Alone(_)) => end == Some(*size),
                (Some(size), _) => end.is_some_and(|end| end <= *size),
            };
            if !fits {
                return Ok(Some(format!("the remote has {} not as long as it was put", object_name(object))));
            }
        }
        if !self.reads || self.read.as_ref() == Some(content) {
            return Ok(None);
        }
        let mut sums =
            Sums { seals: content.seals.iter().map(|sealed| (sealed.0, sealed.1)).collect(), ..Sums::default() };
        let mut fetcher = Fetcher::new(&self.repository);
        let read = fetcher.file(content, None, (&mut Target::Stream(&mut sums), "it"), |_| {});
        match read {
            Err(error @ Error::Damaged { .. }) => Ok(Some(error.to_string())),
            Err(error) => Err(error),
            Ok(_) if sums.are_right() => {
                self.read = Some(content.clone());
                Ok(None)
            }
            Ok(_) => Ok(Some("what the remote has of it has not its checksums".to_owned())),
        }
    }

    /// Before a file leaves: the server is told where it will be, and somebody fetches what is wanted back.
    fn begin(&mut self) -> Result<()> {
        if !self.is_begun {
            self.fetching.see_to(&self.at, &self.uuid, &self.settings)?;
            (self.is_begun, self.has_begun) = (true, true);
        }
        Ok(())
    }
}

fn note(pool: &Path, uuid: &str) -> Result<Note> {
    let none = || Error::Refused(format!("{}: it has no remote; `tensorfs remote set` gives it one", pool.display()));
    Note::of(pool, uuid)?.ok_or_else(none)
}

/// Compares bytes that come one behind the other with seals.
#[derive(Default)]
struct Sums {
    /// Length and checksum of each run, from the first byte on.
    seals: Vec<(u64, u32)>,
    /// The run that they are of, how many of it have come, and their checksum.
    at: usize,
    seen: u64,
    crc: u32,
    differs: bool,
}

impl Sums {
    fn are_right(&self) -> bool {
        !self.differs && self.at == self.seals.len()
    }
}

impl Write for Sums {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(&(len, crc)) = self.seals.get(self.at) else {
                self.differs = true;
                break;
            };
            let now = usize::try_from(len - self.seen).unwrap_or(usize::MAX).min(rest.len());
            self.crc = crc32c_append(self.crc, &rest[..now]);
            self.seen += now as u64;
            rest = &rest[now..];
            if self.seen == len {
                self.differs |= self.crc != crc;
                (self.at, self.seen, self.crc) = (self.at + 1, 0, 0);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_compared_with_the_seals_of_runs_however_they_come() {
        let seals = vec![(3, crc32c_append(0, b"abc")), (5, crc32c_append(0, b"defgh"))];
        let right = |pieces: &[&[u8]]| {
            let mut sums = Sums { seals: seals.clone(), ..Sums::default() };
            pieces.iter().for_each(|piece| sums.write_all(piece).unwrap());
            sums.are_right()
        };
        assert!(right(&[b"abcdefgh"]) && right(&[b"ab", b"cdef", b"", b"gh"]));
        for wrong in [&b"abcdefg"[..], b"abcdefghi", b"abcdefgx", b"xbcdefgh", b""] {
            assert!(!right(&[wrong]), "{wrong:?}");
        }
    }
}

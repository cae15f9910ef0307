//! Files of a mount leave it: their bytes are in the pool's remote alone from then on, and come back when somebody
//! opens them.
//!
//! Here it is seen that the remote has all of a file: in its newest tree, as the pool's carrier has put it, with
//! objects that are there and as long as they should be. Whether the file is still what was carried, the server of the
//! mount says, by its seals. Nothing is kept here.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tensorfs_formats::crc32c_append;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{Known, Leave, LeaveReply, digest, leave};
use tensorfs_layout::{Ino, SegmentId};

use crate::carry::{Note, Settings};
use crate::error::{Error, Result};
use crate::fetch::{Fetcher, Target};
use crate::repository::{Content, Hash, Newest, Part, Repository, State, object_name};

/// Who fetches files of the mount asks for them more often than that.
const ASKING: Duration = Duration::from_millis(700);
/// So often, and at these times, it is looked whether somebody fetches files who was just started.
const LOOKS: (u32, Duration) = (300, Duration::from_millis(50));
/// A carrier that puts a batch notes it within so many looks.
const NOTED: u32 = 25;
const PAUSE: Duration = Duration::from_millis(200);
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
    /// The server knows where the remote is, and somebody fetches what comes back.
    is_begun: bool,
}

impl Evictor {
    /// For files of a pool that is mounted there.
    ///
    /// # Errors
    /// It has no remote, or that cannot be read.
    pub fn of(pool: &Path, at: &Path, reads: bool) -> Result<Self> {
        let uuid = Committed::read(pool)?.superblock().uuid_text();
        let settings = note(pool, &uuid)?.settings;
        let repository = Repository::new(settings.open()?);
        let newest = repository.newest()?;
        // Whoever is started with it is in another directory.
        let host = |source| Error::Host { path: pool.display().to_string(), what: "find", source };
        let (pool, at) = (std::path::absolute(pool).map_err(host)?, at.to_owned());
        let mut evictor =
            Self { pool, at, uuid, settings, repository, newest, seen: BTreeMap::new(), reads, is_begun: false };
        evictor.look_again()?;
        Ok(evictor)
    }

    /// Lets a file leave, if the remote has all of it. One that nobody has asked for stays if it has come back a moment
    /// ago.
    ///
    /// # Errors
    /// None can: the remote or the mount is not reached, or whoever calls this may not do so.
    pub fn evict(&mut self, ino: u64, by_itself: bool) -> Result<Evicted> {
        self.look_again()?;
        let stays = |why: &str| Ok(Evicted::Stays(why.to_owned()));
        let batch = self.newest.number();
        let content = self.newest.tree.entry(ino).and_then(|entry| entry.file.clone());
        let Some(content) = content else {
            return Ok(Evicted::Stays(format!("not in the remote's tree after batch {batch}; `tensorfs remote wait`")));
        };
        match content.state {
            _ if content.size == 0 => return Ok(Evicted::Empty),
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
            return Ok(Evicted::Stays(fault));
        }
        self.begin()?;
        let known = Known {
            segment: SegmentId(content.segment),
            version: content.version,
            size: content.size,
            seals: digest(content.seals.iter().map(|sealed| (sealed.0, sealed.1))),
        };
        match self.ask(&Leave::Go { ino: Ino(ino), known, by_itself })? {
            LeaveReply::Gone => Ok(Evicted::Gone),
            LeaveReply::Empty => Ok(Evicted::Empty),
            LeaveReply::Refused(why) => Ok(Evicted::Stays(why)),
            LeaveReply::Fetched(_) | LeaveReply::Which { .. } => stays("its server speaks of something unknown here"),
        }
    }

    /// Sees to it that what is known of the remote is the newest tree, and that this pool has put it.
    fn look_again(&mut self) -> Result<()> {
        for _ in 0..NOTED {
            let note = note(&self.pool, &self.uuid)?;
            if note.number == 0 {
                let what = "nothing is in its remote yet; `tensorfs remote carry` brings it there";
                return Err(Error::Refused(format!("{}: {what}", self.pool.display())));
            }
            let is_elsewhere = note.settings != self.settings;
            if is_elsewhere {
                self.repository = Repository::new(note.settings.open()?);
                self.settings = note.settings;
                (self.is_begun, self.seen) = (false, BTreeMap::new());
            }
            if is_elsewhere || note.number != self.newest.number() || note.hash != self.newest.hash {
                self.newest = self.repository.newest()?;
            }
            let is_ours = self.newest.head.as_ref().is_some_and(|head| head.pool == self.uuid);
            if is_ours && note.number == self.newest.number() && note.hash == self.newest.hash {
                return Ok(());
            }
            // A batch is noted after it was put.
            sleep(PAUSE);
        }
        let (remote, number) = (self.repository.place().shown(), self.newest.number());
        Err(Error::Refused(format!("{remote}: its newest batch, {number}, is not the one that this pool has put last")))
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
        if !self.reads {
            return Ok(None);
        }
        let mut sums =
            Sums { seals: content.seals.iter().map(|sealed| (sealed.0, sealed.1)).collect(), ..Sums::default() };
        let mut fetcher = Fetcher::new(&self.repository);
        let read = fetcher.file(content, None, (&mut Target::Stream(&mut sums), "it"), |_| {});
        match read {
            Err(error @ Error::Damaged { .. }) => Ok(Some(error.to_string())),
            Err(error) => Err(error),
            Ok(_) if sums.are_right() => Ok(None),
            Ok(_) => Ok(Some("what the remote has of it has not its checksums".to_owned())),
        }
    }

    /// Before the first file leaves: the server is told where they will be, and somebody fetches what is wanted back.
    fn begin(&mut self) -> Result<()> {
        if self.is_begun {
            return Ok(());
        }
        let kept = Settings { exclude: Vec::new(), ..self.settings.clone() };
        let note = serde_json::to_vec(&kept).map_err(|error| Error::Refused(error.to_string()))?;
        let to = Leave::To { pool: self.uuid.clone(), place: self.settings.url.clone(), note };
        let is_fetched = |this: &Self| match this.ask(&to)? {
            LeaveReply::Fetched(is_fetched) => Ok(is_fetched),
            LeaveReply::Refused(why) => Err(Error::Refused(format!("{}: {why}", this.at.display()))),
            _ => Err(this.unknown()),
        };
        if !is_fetched(self)? {
            // Another server may have just begun.
            sleep(ASKING);
            if !is_fetched(self)? {
                fetch_files(&self.pool, &self.at)?;
                let mut looks = 0;
                while !is_fetched(self)? {
                    if looks == LOOKS.0 {
                        let what = "nobody fetches what is to come back; nothing has left";
                        return Err(Error::Refused(format!("{}: {what}", self.at.display())));
                    }
                    looks += 1;
                    sleep(LOOKS.1);
                }
            }
        }
        self.is_begun = true;
        Ok(())
    }

    fn ask(&self, request: &Leave) -> Result<LeaveReply> {
        let asked = File::open(&self.at).and_then(|at| leave(&at, request));
        asked.map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) => {
                let what = "only root, or who runs the server, may have files leave for the remote";
                Error::Refused(format!("{}: {what}", self.at.display()))
            }
            Some(libc::ENOTTY) => self.unknown(),
            _ => Error::Host { path: self.at.display().to_string(), what: "ask its server", source },
        })
    }

    fn unknown(&self) -> Error {
        Error::Refused(format!("{}: its server is of another version, which lets no file leave", self.at.display()))
    }
}

fn note(pool: &Path, uuid: &str) -> Result<Note> {
    let none = || Error::Refused(format!("{}: it has no remote; `tensorfs remote set` gives it one", pool.display()));
    Note::of(pool, uuid)?.ok_or_else(none)
}

/// Starts what fetches the files of a mount that are wanted, as whoever mounts does; it ends with the mount.
fn fetch_files(pool: &Path, at: &Path) -> Result<()> {
    let host = |source| Error::Host { path: "tensorfs-carrier bring".into(), what: "start", source };
    let mut command = Command::new(std::env::current_exe().map_err(host)?);
    command.args(["bring", "--"]).arg(pool).arg(at).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid(2) and close_range(2) may be called between fork and exec, and take integers.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid().map_err(io::Error::from)?;
            // Where the kernel does not know that, what was opened here is closed by executing a program anyway.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    command.spawn().map(drop).map_err(host)
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

//! Files of a mount leave for its remote by themselves: those whose place or owner says so, and where the mount is
//! fuller than it may be, those that nobody has used for longest. It is done beside the passes of the pool's carrier,
//! on a thread of its own.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use serde::Deserialize;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{Leave, LeaveReply, holder, leave};
use tensorfs_layout::tree::FileChain;

use crate::carry::{Note, to_leave};
use crate::error::{Error, Result};
use crate::evict::{Evicted, Evictor};

/// One that could not leave is tried again after so long, twice that the next time, and this at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));
/// So many that could not are remembered.
const TRIED: usize = 1 << 16;
/// Where a mount was too full, files leave until it is emptier by so many per cent.
const EMPTIER: u8 = 5;
/// Bytes that are read of what the mount says of accesses.
const ACCESSES: u64 = 64 << 20;

/// Who has files leave.
#[derive(Debug)]
pub struct Relief(());

impl Relief {
    /// Looks after the files of a pool, from now on until this process ends: it is their carrier, and the only one.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(pool: &Path, every: Duration, note: &Note) -> Result<Self> {
        let (pool, uuid) = (pool.to_owned(), note.pool.clone());
        let mut work = Work { pool, uuid, tried: HashMap::new(), seen: None, said: None };
        let begun = thread::Builder::new().name("relief".to_owned()).spawn(move || {
            loop {
                work.look();
                sleep(every);
            }
        });
        let failed = |source| Error::Host { path: "a thread".to_owned(), what: "start", source };
        begun.map(|_| Self(())).map_err(failed)
    }
}

struct Work {
    pool: PathBuf,
    uuid: String,
    /// Files that could not leave: when they are tried again, and how often they were.
    tried: HashMap<u64, (Instant, u32)>,
    /// The transaction up to which it was looked which files are to leave for their place.
    seen: Option<u64>,
    /// What was said last of what keeps files from leaving.
    said: Option<String>,
}

/// What the mount says of a file that was used.
#[derive(Deserialize)]
struct Use {
    ino: u64,
    last_use: f64,
}

impl Work {
    fn look(&mut self) {
        match self.round() {
            Ok(None) => self.said = None,
            Ok(Some(why)) if self.said.as_ref() != Some(&why) => {
                log::warn!("{}: {why}", self.pool.display());
                self.said = Some(why);
            }
            Ok(Some(_)) => {}
            Err(error) => {
                let why = error.to_string();
                if self.said.as_ref() != Some(&why) {
                    log::error!("no file leaves for the remote: {why}");
                    self.said = Some(why);
                }
            }
        }
    }

    /// What keeps the mount fuller than it may be, if anything does.
    fn round(&mut self) -> Result<Option<String>> {
        let Ok(Some(at)) = holder(&self.pool).map(|holder| holder.and_then(|holder| holder.mountpoint)) else {
            return Ok(None);
        };
        let asked = File::open(&at).and_then(|at| leave(&at, &Leave::Which { pool: self.uuid.clone() }));
        // Another server, or nobody who may be asked: what is to leave, nobody knows.
        let Ok(LeaveReply::Which { files, evict_at }) = asked else { return Ok(None) };
        let is_full = evict_at.is_some_and(|most| fullness(&at).is_some_and(|now| now >= most));
        let carried = Note::of(&self.pool, &self.uuid)?.map(|note| note.transaction);
        let now = Instant::now();
        let is_due = self.tried.values().any(|(due, _)| *due <= now);
        let by_place = is_due || self.seen != carried;
        if files.is_empty() && !is_full && !by_place {
            return Ok(None);
        }
        let committed = Committed::read(&self.pool)?;
        let view = committed.view();
        let own = view.remote().filter(|(_, tier)| tier.is_own_remote()).map(|(number, _)| number);
        let is_here = |ino: &u64| {
            let object = view.object(tensorfs_layout::Ino(*ino)).filter(|object| object.size() > 0);
            let object = object.filter(|object| object.chain().is_some_and(FileChain::is_sealed));
            object.and_then(|object| object.attributes.segment).is_some_and(|segment| Some(segment.tier()) != own)
        };
        let mut evictor = None;
        let wished: BTreeSet<u64> = files.into_iter().map(|ino| ino.0).collect();
        let placed: BTreeSet<u64> = match by_place && to_leave::names_remote(view) {
            true => to_leave::to_leave(view).into_iter().map(|ino| ino.0).collect(),
            false => BTreeSet::new(),
        };
        for ino in wished.union(&placed).copied().filter(is_here) {
            self.evict((&at, &mut evictor), ino, !wished.contains(&ino))?;
        }
        if by_place {
            self.seen = carried;
        }
        let Some(most) = evict_at.filter(|_| is_full) else { return Ok(None) };
        let used = uses(&at);
        let mut coldest: Vec<(i64, u64)> = view
            .objects()
            .filter(|(ino, object)| object.is_file() && object.names() > 0 && is_here(&ino.0))
            .map(|(ino, object)| {
                let (atime, mtime) = (object.attributes.atime.sec, object.attributes.mtime.sec);
                (atime.max(mtime).max(used.get(&ino.0).copied().unwrap_or(i64::MIN)), ino.0)
            })
            .collect();
        coldest.sort_unstable();
        drop(committed);
        let goal = most.saturating_sub(EMPTIER).max(1);
        let mut left = 0_u64;
        for (_, ino) in coldest {
            if fullness(&at).is_none_or(|now| now < goal) {
                break;
            }
            left += u64::from(self.evict((&at, &mut evictor), ino, true)?);
        }
        if left > 0 {
            log::warn!("{}: it was {most} % full: {left} files have left for the remote", at.display());
        }
        let is_yet = fullness(&at).is_some_and(|now| now >= most);
        Ok(is_yet.then(|| format!("it is more than {most} % full, and what is carried and in no use has left")))
    }

    /// Has a file leave, if it is its turn. True if it did.
    fn evict(&mut self, (at, evictor): (&Path, &mut Option<Evictor>), ino: u64, by_itself: bool) -> Result<bool> {
        let now = Instant::now();
        if self.tried.get(&ino).is_some_and(|(due, _)| *due > now) {
            return Ok(false);
        }
        let evictor = match evictor {
            Some(evictor) => evictor,
            None => evictor.insert(Evictor::of(&self.pool, at, false)?),
        };
        match evictor.evict(ino, by_itself)? {
            Evicted::Gone => {
                self.tried.remove(&ino);
                Ok(true)
            }
            Evicted::Empty => Ok(false),
            Evicted::Stays(why) => {
                log::debug!("inode {ino} stays: {why}");
                if self.tried.len() >= TRIED {
                    self.tried.clear();
                }
                let tries = self.tried.get(&ino).map_or(0, |(_, tries)| *tries);
                let longer = 1_u32.checked_shl(tries).unwrap_or(u32::MAX);
                let due = now + PAUSE.0.saturating_mul(longer).min(PAUSE.1);
                self.tried.insert(ino, (due, tries.saturating_add(1)));
                Ok(false)
            }
        }
    }
}

/// How full a mount is, in per cent.
fn fullness(at: &Path) -> Option<u8> {
    let found = statvfs(at).ok().filter(|found| found.blocks() > 0)?;
    let used = found.blocks().saturating_sub(found.blocks_available());
    u8::try_from(u128::from(used) * 100 / u128::from(found.blocks())).ok()
}

/// When files were used last since the mount's server began, in seconds since 1970.
fn uses(at: &Path) -> HashMap<u64, i64> {
    let Ok(file) = File::open(at.join(".tensorfs/accesses")) else { return HashMap::new() };
    let lines = BufReader::new(std::io::Read::take(file, ACCESSES)).lines().map_while(std::result::Result::ok);
    let told = lines.filter_map(|line| serde_json::from_str::<Use>(&line).ok());
    told.map(|told| (told.ino, told.last_use as i64)).collect()
}

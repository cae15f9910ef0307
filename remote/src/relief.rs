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
use tensorfs_layout::Ino;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{Leave, LeaveReply, holder, leave};
use tensorfs_layout::tree::FileChain;

use crate::carry::{Note, to_leave};
use crate::error::{Error, Result};
use crate::evict::{Evicted, Evictor};
use crate::fetching::Fetching;

/// One that could not leave is tried again after so long, twice that the next time, and this at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));
/// So many that could not are remembered.
const TRIED: usize = 1 << 16;
/// Where a mount was too full, files leave until it is emptier by so many per cent; where it is no emptier by what has
/// left, the next ones do after so long.
const EMPTIER: u8 = 5;
const IN_VAIN: Duration = Duration::from_secs(600);
/// Bytes that are read of what the mount says of accesses.
const ACCESSES: u64 = 64 << 20;
/// The server hears so often that somebody carries the pool.
const SIGN: Duration = Duration::from_secs(30);

/// Who has files leave.
#[derive(Debug)]
pub struct Relief(());

impl Relief {
    /// Looks after the files of a pool, from now on until this process ends: it is their carrier, and the only one.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(pool: &Path, every: Duration, note: &Note, fetching: &Fetching) -> Result<Self> {
        let (pool, uuid, fetching) = (pool.to_owned(), note.pool.clone(), fetching.clone());
        let (of_pool, of_uuid) = (pool.clone(), uuid.clone());
        let signs = move || {
            loop {
                // A round may take longer than who says that a file is to leave is told that somebody has it do so.
                mounted(&of_pool).and_then(|at| which(&at, &of_uuid, false));
                sleep(SIGN);
            }
        };
        let mut work = Work {
            pool,
            uuid,
            fetching,
            evictor: None,
            has_tried: false,
            is_any_away: false,
            tried: HashMap::new(),
            seen: None,
            said: None,
            in_vain: None,
        };
        let rounds = move || {
            loop {
                work.look();
                sleep(every);
            }
        };
        let failed = |source| Error::Host { path: "a thread".to_owned(), what: "start", source };
        thread::Builder::new().name("relief".to_owned()).spawn(rounds).map_err(failed)?;
        thread::Builder::new().name("relief-sign".to_owned()).spawn(signs).map_err(failed)?;
        Ok(Self(()))
    }
}

struct Work {
    pool: PathBuf,
    uuid: String,
    fetching: Fetching,
    evictor: Option<Evictor>,
    /// A file was tried since the last round began.
    has_tried: bool,
    /// Files have left, and may be wanted.
    is_any_away: bool,
    /// Files that could not leave: when they are tried again, and how often they were.
    tried: HashMap<u64, (Instant, u32)>,
    /// The transaction up to which it was looked which files are to leave for their place.
    seen: Option<u64>,
    /// What was said last of what keeps files from leaving.
    said: Option<String>,
    /// When files left, and the mount was as full as before.
    in_vain: Option<Instant>,
}

/// What is to leave where a mount is too full.
struct TooFull {
    /// From so many per cent on it is.
    most: u8,
    /// Files and their bytes, of which the first one was not used for longest.
    coldest: Vec<(u64, u64)>,
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
        let Some(at) = mounted(&self.pool) else { return Ok(None) };
        // Another server, or nobody who may be asked: what is to leave, nobody knows.
        let Some((files, evict_at)) = which(&at, &self.uuid, true) else { return Ok(None) };
        let now = Instant::now();
        let is_in_vain = self.in_vain.is_some_and(|then| then.elapsed() < IN_VAIN);
        let full = evict_at.filter(|most| !is_in_vain && is_full(*most, fullness(&at)));
        let carried = Note::of(&self.pool, &self.uuid)?.map(|note| note.transaction);
        let is_due = self.tried.values().any(|(due, _)| *due <= now);
        let by_place = is_due || self.seen != carried;
        // The tree of the remote is kept for files that follow each other.
        if !std::mem::take(&mut self.has_tried) || self.evictor.as_ref().is_some_and(|evictor| evictor.at() != at) {
            self.evictor = None;
        }
        if self.is_any_away
            && let Some(note) = Note::of(&self.pool, &self.uuid)?
        {
            // Whoever did may have ended, as with the carrier before this one.
            self.fetching.see_to(&at, &self.uuid, &note.settings)?;
        }
        if files.is_empty() && full.is_none() && !by_place {
            return Ok(None);
        }
        let wished: BTreeSet<u64> = files.into_iter().map(|ino| ino.0).collect();
        let (leaving, too_full) = self.chosen((&wished, by_place), full)?;
        for ino in leaving {
            self.evict(&at, ino, !wished.contains(&ino))?;
        }
        if by_place {
            self.seen = carried;
        }
        too_full.map_or(Ok(None), |too_full| self.relieve(&at, too_full))
    }

    /// The files that are to leave as somebody says so, or for their place, and those that are because the mount is too
    /// full. What the pool says of all others is not kept while they leave.
    fn chosen(
        &mut self,
        (wished, by_place): (&BTreeSet<u64>, bool),
        full: Option<u8>,
    ) -> Result<(Vec<u64>, Option<TooFull>)> {
        let committed = Committed::read(&self.pool)?;
        let view = committed.view();
        let own = view.remote().filter(|(_, tier)| tier.is_own_remote()).map(|(number, _)| number);
        self.is_any_away |= own.is_some_and(|own| view.tier_totals(own).files > 0);
        let is_here = |ino: &u64| {
            let object = view.object(Ino(*ino)).filter(|object| object.size() > 0);
            let object = object.filter(|object| object.chain().is_some_and(FileChain::is_sealed));
            object.and_then(|object| object.attributes.segment).is_some_and(|segment| Some(segment.tier()) != own)
        };
        let placed: BTreeSet<u64> = match by_place && to_leave::names_remote(view) {
            true => to_leave::to_leave(view).into_iter().map(|ino| ino.0).collect(),
            false => BTreeSet::new(),
        };
        let leaving = wished.union(&placed).copied().filter(is_here).collect();
        let Some(most) = full else { return Ok((leaving, None)) };
        let used = self.fetching.uses();
        let mut coldest: Vec<(i64, u64, u64)> = view
            .objects()
            .filter(|(ino, object)| object.is_file() && object.names() > 0 && is_here(&ino.0))
            .map(|(ino, object)| {
                let (atime, mtime) = (object.attributes.atime.sec, object.attributes.mtime.sec);
                let used = used.get(&ino.0).copied().unwrap_or(i64::MIN);
                (atime.max(mtime).max(used), ino.0, object.chain().map_or(0, FileChain::allocated))
            })
            .collect();
        coldest.sort_unstable();
        let coldest = coldest.into_iter().map(|(_, ino, bytes)| (ino, bytes)).collect();
        Ok((leaving, Some(TooFull { most, coldest })))
    }

    /// Has those leave that nobody has used for longest, until the mount is emptier, or should be: where something else
    /// fills its host, what leaves does not help.
    fn relieve(&mut self, at: &Path, TooFull { most, coldest }: TooFull) -> Result<Option<String>> {
        let goal = most.saturating_sub(EMPTIER).max(1);
        let before = fullness(at);
        let enough = before.zip(size(at)).map(|(now, size)| size / 100 * u64::from((now + 1).saturating_sub(goal)));
        let (mut left, mut bytes) = (0_u64, 0_u64);
        for (ino, allocated) in coldest {
            if fullness(at).is_none_or(|now| now < goal) || enough.is_none_or(|enough| bytes > enough) {
                break;
            }
            if self.evict(at, ino, true)? {
                (left, bytes) = (left + 1, bytes.saturating_add(allocated));
            }
        }
        if left > 0 {
            log::warn!("{}: it was {most} % full: {left} files have left for the remote", at.display());
        }
        let now = fullness(at);
        self.in_vain = (enough.is_some_and(|enough| bytes > enough) && now >= before).then(Instant::now);
        let is_yet = is_full(most, now);
        let why = match self.in_vain {
            Some(_) => "is no emptier by what has left for the remote: something else fills its host",
            None => "and what is carried and in no use has left",
        };
        Ok(is_yet.then(|| format!("it is more than {most} % full, {why}")))
    }

    /// Has a file leave, if it is its turn. True if it did.
    fn evict(&mut self, at: &Path, ino: u64, by_itself: bool) -> Result<bool> {
        let now = Instant::now();
        if self.tried.get(&ino).is_some_and(|(due, _)| *due > now) {
            return Ok(false);
        }
        self.has_tried = true;
        let evictor = match &mut self.evictor {
            Some(evictor) => evictor,
            none => none.insert(Evictor::of(&self.pool, at, false, self.fetching.clone())?),
        };
        match evictor.evict(ino, by_itself) {
            Ok(Evicted::Gone) => {
                self.is_any_away = true;
                self.tried.remove(&ino);
                Ok(true)
            }
            Ok(Evicted::Empty) => Ok(false),
            Ok(Evicted::Stays(why)) => {
                log::debug!("inode {ino} stays: {why}");
                self.later(ino, now);
                Ok(false)
            }
            Err(error) => {
                // It is not the first one of the next round.
                self.later(ino, now);
                Err(error)
            }
        }
    }

    fn later(&mut self, ino: u64, now: Instant) {
        if self.tried.len() >= TRIED {
            self.tried.clear();
        }
        let tries = self.tried.get(&ino).map_or(0, |(_, tries)| *tries);
        let longer = 1_u32.checked_shl(tries).unwrap_or(u32::MAX);
        let due = now + PAUSE.0.saturating_mul(longer).min(PAUSE.1);
        self.tried.insert(ino, (due, tries.saturating_add(1)));
    }
}

/// Where a pool is mounted.
fn mounted(pool: &Path) -> Option<PathBuf> {
    holder(pool).ok()??.mountpoint
}

/// What the server of a mount says is to leave, and from which per cent on it is too full.
fn which(at: &Path, uuid: &str, tell: bool) -> Option<(Vec<Ino>, Option<u8>)> {
    let asked = File::open(at).and_then(|at| leave(&at, &Leave::Which { pool: uuid.to_owned(), tell }));
    match asked {
        Ok(LeaveReply::Which { files, evict_at }) => Some((files, evict_at)),
        _ => None,
    }
}

/// True of a mount that is too full; 100 is never.
fn is_full(most: u8, now: Option<u8>) -> bool {
    most < 100 && now.is_some_and(|now| now >= most)
}

/// How full a mount is, in per cent.
fn fullness(at: &Path) -> Option<u8> {
    let found = statvfs(at).ok().filter(|found| found.blocks() > 0)?;
    let used = found.blocks().saturating_sub(found.blocks_available());
    u8::try_from(u128::from(used) * 100 / u128::from(found.blocks())).ok()
}

/// The bytes that a mount has, taken or not.
fn size(at: &Path) -> Option<u64> {
    statvfs(at).ok().map(|found| found.blocks().saturating_mul(found.fragment_size()))
}

/// When files were used last since the mount's server began, in seconds since 1970.
pub fn uses(at: &Path) -> HashMap<u64, i64> {
    let Ok(file) = File::open(at.join(".tensorfs/accesses")) else { return HashMap::new() };
    let lines = BufReader::new(std::io::Read::take(file, ACCESSES)).lines().map_while(std::result::Result::ok);
    let told = lines.filter_map(|line| serde_json::from_str::<Use>(&line).ok());
    told.map(|told| (told.ino, told.last_use as i64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves E28.
    #[test]
    fn a_hundred_per_cent_is_never() {
        assert!(is_full(99, Some(99)) && is_full(1, Some(100)) && !is_full(99, Some(98)) && !is_full(50, None));
        assert!(!is_full(100, Some(100)));
    }
}

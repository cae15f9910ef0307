//! Quarantine: what recovery or an interrupted replace set aside. An entry is a file and, beside it, a note as JSON
//! that says whose bytes they are and why they are here. Nothing in quarantine is ever removed without being asked, but
//! for what newer versions of the same file push out ([`super::versions`]).
//!
//! What was a whole segment is there by a second name of the segment, in the quarantine of its own tier: that copies
//! nothing, and takes no room but for the note.
//!
//! A note is durable before its entry has a name, and an entry is whole before it has one: what interrupts the setting
//! aside leaves at most a note without an entry, which counts for nothing, and [`PARTIAL`], which the next one removes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use nix::sys::stat::SFlag;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::ids::{Ino, SegmentId};
use crate::log::tier::PM;
use crate::medium::dir::Dir;
use crate::medium::domain::Medium;
use crate::medium::foreign::{Foreign, kind_name};
use crate::segment::host_errors::{Unreadable, is_of_segment};
use crate::segment::note::{Note, Reason};
use crate::segment::place::{Counted, Place, QUARANTINE, identity};
use crate::segment::segments::Segments;
use crate::segment::tier;
use crate::segment::versions::{Version, Versions};
use crate::time::Timestamp;
use crate::tree::paths::spelled;

/// A copy on its way into quarantine; of more at a time, each has its number behind.
const PARTIAL: &str = ".partial";

/// In names that tell why an entry is there: the version before a replace, or after it.
const REPLACED: &str = "replaced";
const UNFINISHED: &str = "unfinished";

/// The longest note: paths have 4095 bytes at most.
const NOTE_MAX: u64 = 64 << 10;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineEntry {
    /// Its name in the quarantine directory.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// It is itself what a program that died in the middle of a replace had left.
    #[serde(default)]
    pub partial: bool,
    /// What the note beside it says; nothing if there is none that can be read.
    #[serde(flatten)]
    pub note: Option<Note>,
}

/// What is written beside an entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Written {
    #[serde(flatten)]
    note: Note,
    /// The segment that the file had from then on, if its writer had died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<SegmentId>,
    /// See [`QuarantineEntry::partial`].
    #[serde(default)]
    partial: bool,
    /// Whose file it was, if how many a user may have counts ([`versions::MOST`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<u32>,
}

impl From<&Note> for Written {
    fn from(note: &Note) -> Self {
        Self { note: note.clone(), left: None, partial: false, user: None }
    }
}

/// The quarantine of a pool.
#[derive(Debug)]
pub struct Quarantine {
    /// The pool's own, and those of its tiers.
    places: BTreeMap<u8, Place>,
    medium: Option<Arc<dyn Medium>>,
    counted: Mutex<BTreeMap<u8, Counted>>,
    /// What is there of each file, once that was asked for. Others may have removed some of it.
    versions: Mutex<Option<Versions>>,
    /// The numbers of the copies that are being made.
    copies: Mutex<BTreeSet<u32>>,
    /// Entries whose notes found no room, and what is to be in them.
    owed: Mutex<Vec<(String, Written)>>,
}

/// When the host last changed anything about the directories of a quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes(Vec<Option<Timestamp>>);

impl Changes {
    /// The last of them; nothing if none of the directories is there.
    pub fn last(&self) -> Option<Timestamp> {
        self.0.iter().copied().flatten().max()
    }
}

/// A copy that is being made.
struct Copying<'a> {
    copies: &'a Mutex<BTreeSet<u32>>,
    number: u32,
}

impl<'a> Copying<'a> {
    fn begin(copies: &'a Mutex<BTreeSet<u32>>) -> Self {
        let mut taken = copies.lock();
        let number = (0..).find(|number| !taken.contains(number)).unwrap_or(u32::MAX);
        taken.insert(number);
        Self { copies, number }
    }

    /// What it is called until it is whole.
    fn name(&self) -> String {
        if self.number == 0 { PARTIAL.into() } else { format!("{PARTIAL}{}", self.number) }
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.copies.lock().remove(&self.number);
    }
}

fn note_name(name: &str) -> String {
    format!("{name}.json")
}

/// The entries in a directory, with their bytes and what is written beside them. What is not the pool's is none.
fn read(dir: &Dir) -> io::Result<Vec<(String, u64, Option<Written>)>> {
    let mut entries = Vec::new();
    for entry in dir.entries()? {
        let Some(name) = entry.text() else { continue };
        if name.ends_with(".json") || name.starts_with(PARTIAL) || entry.kind != SFlag::S_IFREG {
            continue;
        }
        let Ok(found) = dir.stat(name) else { continue };
        if dir.check_file(&found).is_err() {
            continue;
        }
        let changed = Timestamp::new(found.st_ctime, found.st_ctime_nsec as u32);
        let written = written_beside(dir, name).or_else(|| told(name, changed).as_ref().map(Written::from));
        entries.push((name.to_owned(), found.st_size as u64, written));
    }
    Ok(entries)
}

/// What is written beside an entry.
fn written_beside(dir: &Dir, name: &str) -> Option<Written> {
    let text = dir.read(note_name(name).as_str(), NOTE_MAX).ok()?;
    serde_json::from_slice(&text).ok()
}

/// A name for an entry that has no note yet, which tells the most of what the note would.
fn telling_name(segment: SegmentId, note: &Note) -> String {
    let reason = match note.reason {
        Reason::InterruptedReplace => REPLACED,
        Reason::UnfinishedReplace => UNFINISHED,
        _ => return segment.to_string(),
    };
    note.ino.map_or_else(|| segment.to_string(), |ino| format!("{segment}.{reason}.{:016x}", ino.0))
}

/// What such a name tells.
fn told(name: &str, changed: Timestamp) -> Option<Note> {
    let mut parts = name.split('.').skip(1);
    let reason = match parts.next()? {
        REPLACED => Reason::InterruptedReplace,
        UNFINISHED => Reason::UnfinishedReplace,
        _ => return None,
    };
    let ino = u64::from_str_radix(parts.next()?, 16).ok().map(Ino)?;
    Some(Note { ino: Some(ino), path: None, path_bytes: None, reason, offset: 0, time: changed })
}

/// The segment that an entry is named after.
fn segment_of(name: &str) -> Option<SegmentId> {
    u64::from_str_radix(name.split('.').next().unwrap_or_default(), 16).ok().map(SegmentId)
}

/// What is in a directory that is no regular file of the pool's, with what it is instead: but for what has a note of
/// its own, as a foreign directory that was moved here.
fn strays(dir: &Dir) -> io::Result<Vec<(String, String)>> {
    let mut strays = Vec::new();
    for entry in dir.entries()? {
        let Some(name) = entry.text() else { continue };
        let what = match entry.kind {
            // A name that is gone by now is nothing.
            SFlag::S_IFREG => match dir.stat(name).map(|found| dir.check_file(&found)) {
                Ok(Err(why)) => why.to_string(),
                _ => continue,
            },
            kind => format!("it is {}, and no note says whose", kind_name(kind)),
        };
        let has_note = || dir.read(note_name(name).as_str(), NOTE_MAX).is_ok();
        if entry.kind == SFlag::S_IFREG || !has_note() {
            strays.push((name.to_owned(), what));
        }
    }
    strays.sort();
    Ok(strays)
}

impl Quarantine {
    /// The quarantine of a pool that this process has open, with its tiers.
    pub(crate) fn new(pool: Arc<Dir>, segments: &Segments, medium: Arc<dyn Medium>) -> Self {
        Self { medium: Some(medium), ..Self::of(pool).with(segments) }
    }

    /// The quarantine of a pool that another process may have open: to list, open and discard entries. Of the tiers,
    /// which are in these directories, those that are the pool's.
    ///
    /// # Errors
    /// What opening the pool's directory gives.
    pub fn at<'a>(pool: &Path, uuid: &str, tiers: impl IntoIterator<Item = &'a Path>) -> io::Result<Self> {
        let mut found = Self::of(Arc::new(Dir::open(pool)?));
        let owner = found.pool_dir()?.owner();
        for directory in tiers {
            match tier::of_pool(directory, uuid, owner) {
                Ok((number, above)) => drop(found.places.insert(number, Place::of_tier(Arc::new(above)))),
                Err(why) => log::warn!("{}: its quarantine is passed over: {why}", directory.display()),
            }
        }
        Ok(found)
    }

    /// The pool's own part of it.
    pub(crate) fn of(pool: Arc<Dir>) -> Self {
        Self {
            places: BTreeMap::from([(PM, Place::of_pool(pool))]),
            medium: None,
            counted: Mutex::default(),
            versions: Mutex::default(),
            copies: Mutex::default(),
            owed: Mutex::default(),
        }
    }

    /// With the parts that are in tiers.
    pub(crate) fn with(mut self, segments: &Segments) -> Self {
        self.places.extend(segments.tier_directories().map(|(number, above)| (number, Place::of_tier(above))));
        self
    }

    fn pool_dir(&self) -> io::Result<Dir> {
        self.place(PM)?.open()
    }

    fn place(&self, tier: u8) -> io::Result<&Place> {
        self.places.get(&tier).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }

    /// The directory for what is set aside of a tier, and the names that are taken there.
    fn open_to_fill(&self, tier: u8) -> io::Result<Filling> {
        let dir = match self.place(tier)?.open_to_fill(|above| self.sync_names(above)) {
            Err(error) if tier != PM && Foreign::of(&error).is_some() => {
                log::warn!("{}: {error}; set aside in the pool's own instead", self.place(tier)?.shown());
                return Ok(Filling { dir: self.pool_dir()?, also: None });
            }
            opened => opened?,
        };
        // Earlier servers put copies of segments in tiers into the pool's own.
        let also = if tier == PM { None } else { self.pool_dir().ok() };
        Ok(Filling { dir, also })
    }

    /// Those of its directories that are there.
    fn dirs(&self) -> impl Iterator<Item = io::Result<(&Place, Dir)>> {
        self.places.values().filter_map(|place| Some(place.look().transpose()?.map(|dir| (place, dir))))
    }

    /// The directory that an entry is in.
    fn find(&self, name: &str) -> io::Result<(&Place, Dir)> {
        let mut has = self.dirs().filter(|found| found.as_ref().map_or(true, |(_, dir)| dir.has(name)));
        has.next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    }

    /// How an entry is called in messages and findings.
    pub(crate) fn shown(&self, name: &str) -> String {
        let place = self.find(name).map_or_else(|_| QUARANTINE.to_owned(), |(place, _)| place.shown());
        format!("{place}/{name}")
    }

    /// Whether the pool's own part of it can be looked into.
    pub(crate) fn has_own(&self) -> bool {
        self.pool_dir().is_ok()
    }

    /// When its directories last changed.
    pub fn changes(&self) -> Changes {
        let changed =
            |place: &Place| Some(place.stat().ok()?).map(|at| Timestamp::new(at.st_ctime, at.st_ctime_nsec as u32));
        Changes(self.places.values().map(changed).collect())
    }

    /// True if an entry, or its note, belongs to another user, so that nothing is said of it.
    pub(crate) fn is_anothers(&self, name: &str) -> bool {
        let Ok((_, dir)) = self.find(name) else { return false };
        let names = [name, &note_name(name)];
        names.iter().any(|name| dir.stat(*name).is_ok_and(|found| dir.owner().check(&found).is_err()))
    }

    /// When an entry last changed; nothing if it is not there.
    pub(crate) fn entry_changed(&self, name: &str) -> Option<Timestamp> {
        let found = self.find(name).ok()?.1.stat(name).ok()?;
        Some(Timestamp::new(found.st_ctime, found.st_ctime_nsec as u32))
    }

    /// What the host has allocated for it, when it was last counted.
    pub fn allocated(&self) -> u64 {
        self.counted.lock().values().map(|counted| counted.allocated).sum()
    }

    /// Counts that anew where a directory has changed.
    pub fn recount(&self) -> u64 {
        for (tier, place) in &self.places {
            let mut counted = self.counted.lock().get(tier).copied().unwrap_or_default();
            counted.recount(place);
            self.counted.lock().insert(*tier, counted);
        }
        self.allocated()
    }

    /// What is set aside.
    pub fn list(&self) -> io::Result<Vec<QuarantineEntry>> {
        let entries = self.read()?.into_iter().map(|(name, bytes, written)| {
            let partial = written.as_ref().is_some_and(|written| written.partial);
            QuarantineEntry { name, bytes, partial, note: written.map(|written| written.note) }
        });
        Ok(entries.collect())
    }

    fn read(&self) -> io::Result<Vec<(String, u64, Option<Written>)>> {
        let mut entries = Vec::new();
        for found in self.dirs() {
            entries.append(&mut read(&found?.1)?);
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(entries)
    }

    /// What is in it, or in its place, and is none of the pool's: where, and what it is.
    pub(crate) fn strays(&self) -> io::Result<Vec<(String, String)>> {
        let instead = self.places.values().filter_map(|place| Some((place.shown(), place.stranger()?)));
        let mut found: Vec<(String, String)> = instead.collect();
        for opened in self.dirs() {
            let (place, dir) = opened?;
            found.extend(strays(&dir)?.into_iter().map(|(name, what)| (format!("{}/{name}", place.shown()), what)));
        }
        Ok(found)
    }

    /// How many entries a tier has; and if it has none, removes what else there is of ours. The number of what is then
    /// left is returned, too.
    pub(crate) fn clear_tier(&self, tier: u8) -> io::Result<(usize, usize)> {
        let Some(dir) = self.place(tier)?.look()? else { return Ok((0, 0)) };
        let entries = read(&dir)?.len();
        if entries == 0 {
            tier::clear(&dir)?;
        }
        Ok((entries, dir.entries()?.len()))
    }

    /// Sets a whole segment aside, by a second name for it. The caller has the segment itself removed once no record
    /// needs it. Returns the entry's name. Durable when it returns.
    pub fn keep(&self, segments: &Segments, segment: SegmentId, note: &Note) -> io::Result<String> {
        self.keep_whole(segments, segment, note.into())
    }

    /// Sets the version of a file aside that it had before a program that died began to replace it, in the same way.
    /// `left` is the segment that it has from now on. A `user` keeps so many of these at most; the oldest goes then.
    pub fn keep_version(
        &self,
        segments: &Segments,
        old: SegmentId,
        left: SegmentId,
        note: &Note,
        user: Option<u32>,
    ) -> io::Result<String> {
        let written = self.written(segments, old, Some(left), note)?;
        let kept = self.keep_whole(segments, old, Written { user, ..written });
        self.recount();
        kept
    }

    /// What is to be written beside a segment: `left` if it is a version before that one.
    fn written(
        &self,
        segments: &Segments,
        segment: SegmentId,
        left: Option<SegmentId>,
        note: &Note,
    ) -> io::Result<Written> {
        let partial = match note.ino.filter(|_| left.is_some()) {
            Some(ino) => {
                let changed = segments.stat(segment)?.mtime;
                self.with_versions(|versions| versions.is_left(ino, segment, changed))?
            }
            None => false,
        };
        Ok(Written { left, partial, ..note.into() })
    }

    fn keep_whole(&self, segments: &Segments, segment: SegmentId, written: Written) -> io::Result<String> {
        let filling = self.open_to_fill(segment.tier())?;
        let dir = &filling.dir;
        if let Some(name) = filling.kept(segments, segment)? {
            // It may have been the sync that failed.
            self.sync_names(dir)?;
            return Ok(name);
        }
        let name = filling.fresh_name(&segment.to_string());
        let file = segments.open(segment, libc::O_RDONLY)?;
        self.sync_as_far_as_can_be(segments, segment, &file)?;
        self.write_beside(dir, &name, &written)?;
        match segments.link(segment, &file, dir, &name) {
            Err(error) if is_without_links(&error) => {
                dir.unlink_if_there(note_name(&name).as_str())?;
                let size = segments.stat(segment)?.size;
                return self.keep_part(segments, segment, size, written);
            }
            linked => linked?,
        }
        self.sync_names(dir)?;
        self.push_out(&name, written);
        Ok(name)
    }

    /// Makes durable what is about to get another name. What the disk does not take of it is lost by any name.
    fn sync_as_far_as_can_be(&self, segments: &Segments, segment: SegmentId, file: &impl AsFd) -> io::Result<()> {
        match self.medium()?.sync_segment(file.as_fd()) {
            Err(error) if is_of_segment(&error) => {
                log::error!("{}: some of what is set aside is lost: {error}", segments.path_of(segment).display());
                Ok(())
            }
            synced => synced,
        }
    }

    /// As [`Quarantine::keep`], where the host has no room for a note: a second name hardly needs any. The note is
    /// owed ([`Quarantine::write_owed_notes`]).
    pub(crate) fn keep_without_note(
        &self,
        segments: &Segments,
        segment: SegmentId,
        left: Option<SegmentId>,
        note: &Note,
    ) -> io::Result<String> {
        // Whether it is itself what a writer had left may not be to be found out now.
        let written = self.written(segments, segment, left, note).unwrap_or(Written { left, ..note.into() });
        let filling = self.open_to_fill(segment.tier())?;
        let name = match filling.kept(segments, segment).unwrap_or_default() {
            Some(name) => name,
            None => {
                let name = filling.fresh_name(&telling_name(segment, note));
                let file = segments.open(segment, libc::O_RDONLY)?;
                self.sync_as_far_as_can_be(segments, segment, &file)?;
                segments.link(segment, &file, &filling.dir, &name)?;
                name
            }
        };
        self.sync_names(&filling.dir)?;
        self.owed.lock().push((name.clone(), written));
        Ok(name)
    }

    /// Writes the notes that found no room when their entries were made. Stops at the first that finds none now.
    ///
    /// # Errors
    /// What the host says of that one.
    pub fn write_owed_notes(&self) -> io::Result<()> {
        while let Some((name, written)) = { self.owed.lock().first().cloned() } {
            match self.find(&name) {
                Ok((_, dir)) => {
                    self.write_beside(&dir, &name, &written)?;
                    log::info!("{}: has its note now", self.shown(&name));
                    self.push_out(&name, written);
                }
                // It was restored or discarded.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            self.owed.lock().remove(0);
        }
        Ok(())
    }

    /// Whoever opens a pool makes good what an earlier server had no room for. `path` finds what a file is called.
    pub(crate) fn owe_notes(&self, path: impl Fn(Ino) -> Option<Vec<u8>>) -> io::Result<()> {
        for found in self.dirs() {
            let (_, dir) = found?;
            for (name, _, written) in read(&dir)? {
                let Some(Written { note, left, partial, user }) =
                    written.filter(|_| told(&name, Timestamp::default()).is_some())
                else {
                    continue;
                };
                if written_beside(&dir, &name).is_none() {
                    let (path, path_bytes) = spelled(note.ino.and_then(&path));
                    let note = Note { path, path_bytes, ..note };
                    self.owed.lock().push((name, Written { note, left, partial, user }));
                }
            }
        }
        Ok(())
    }

    /// How many entries have no note so far.
    pub fn owed_notes(&self) -> usize {
        self.owed.lock().len()
    }

    fn with_versions<T>(&self, ask: impl FnOnce(&mut Versions) -> T) -> io::Result<T> {
        let mut versions = self.versions.lock();
        if versions.is_none() {
            let mut found = Versions::default();
            for (name, _, written) in self.read()? {
                if let Some((ino, version)) = written.and_then(|written| version(name, written)) {
                    found.add(ino, version);
                }
            }
            *versions = Some(found);
        }
        Ok(ask(versions.get_or_insert_default()))
    }

    /// A new entry is there, and older ones of its file go for it. If one cannot be removed, it stays.
    fn push_out(&self, name: &str, written: Written) {
        let (reason, user) = (written.note.reason, written.user);
        let Some((ino, version)) = version(name.to_owned(), written) else { return };
        let dirs: Vec<_> = self.dirs().collect();
        let is_there = |name: &str| dirs.iter().any(|found| found.as_ref().map_or(true, |(_, dir)| dir.has(name)));
        let surplus = self.with_versions(|versions| {
            versions.add(ino, version);
            // `tensorfs restore` is another process.
            versions.strike_removed(ino, user, is_there);
            let of_file = versions.take_surplus(ino, reason, name).into_iter().map(|name| (name, "of its file"));
            let of_user = versions.take_oldest(user, name).map(|name| (name, "of its user's files"));
            of_file.chain(of_user).collect::<Vec<_>>()
        });
        for (name, which) in surplus.unwrap_or_default() {
            match self.discard(&name) {
                Ok(()) => log::info!("quarantine/{name}: removed, as there are newer versions {which}"),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => log::warn!("{}: {error}", self.shown(&name)),
            }
        }
    }

    /// Copies `offset..size` of a segment here. Durable when it returns.
    pub(crate) fn keep_tail(
        &self,
        segments: &Segments,
        segment: SegmentId,
        size: u64,
        note: &Note,
    ) -> io::Result<String> {
        self.keep_part(segments, segment, size, note.into())
    }

    fn keep_part(&self, segments: &Segments, segment: SegmentId, size: u64, written: Written) -> io::Result<String> {
        let note = &written.note;
        let from = File::from(segments.open(segment, libc::O_RDONLY)?);
        let (filling, stem) = (self.open_to_fill(segment.tier())?, segment.to_string());
        // What set it aside was interrupted before it cut the segment, and is done again.
        for name in filling.taken(&stem) {
            let Ok((_, dir)) = self.find(&name) else { continue };
            let other = written_beside(&dir, &name).map(|other| Note { time: note.time, ..other.note });
            let Ok(copy) = dir.open_file(name.as_str(), libc::O_RDONLY).map(File::from) else { continue };
            let as_long = copy.metadata()?.len() == size - note.offset;
            if other.as_ref() == Some(note) && as_long && is_copy(&from, note.offset, &copy)? {
                return Ok(name);
            }
        }
        let name = self.copy_as(&filling, &stem, &from, note.offset..size, &written)?;
        self.push_out(&name, written);
        Ok(name)
    }

    /// Copies a file here. Durable when it returns.
    pub(crate) fn copy(&self, from: &File, stem: &str, note: &Note) -> io::Result<String> {
        let len = from.metadata()?.len();
        self.copy_as(&self.open_to_fill(PM)?, stem, from, 0..len, &note.into())
    }

    fn copy_as(
        &self,
        filling: &Filling,
        stem: &str,
        from: &File,
        part: Range<u64>,
        written: &Written,
    ) -> io::Result<String> {
        let (dir, name) = (&filling.dir, filling.fresh_name(stem));
        // What an interrupted copy left may be a second name of its entry by now: a new file, never that one again.
        let copying = Copying::begin(&self.copies);
        let partial = copying.name();
        let to = dir.create_anew(partial.as_str())?;
        let copied = copy_range(from, part.start, part.end, &to).and_then(|()| self.sync(&to));
        let named = copied.and_then(|()| {
            self.write_beside(dir, &name, written)?;
            match dir.link(partial.as_str(), &to, dir, name.as_str()) {
                // It is whole, and has its note.
                Err(error) if is_without_links(&error) => dir.rename(partial.as_str(), dir, name.as_str()),
                linked => linked,
            }
        });
        let removed = dir.unlink_if_there(partial.as_str());
        named.and(removed)?;
        self.sync_names(dir)?;
        Ok(name)
    }

    /// Moves a foreign file or directory here, from another directory of the pool.
    pub(crate) fn adopt(&self, from: &Dir, from_name: &OsStr, note: &Note) -> io::Result<String> {
        let filling = self.open_to_fill(PM)?;
        let (dir, name) = (&filling.dir, filling.fresh_name("foreign"));
        self.write_beside(dir, &name, &note.into())?;
        from.rename(from_name, dir, name.as_str())?;
        self.sync_names(dir)?;
        Ok(name)
    }

    /// An empty entry, for the sake of its note.
    pub(crate) fn note_only(&self, ino: Ino, note: &Note) -> io::Result<String> {
        let filling = self.open_to_fill(PM)?;
        let (dir, name) = (&filling.dir, filling.fresh_name(&format!("lost{ino}")));
        self.write_beside(dir, &name, &note.into())?;
        dir.create(name.as_str())?;
        self.sync_names(dir)?;
        Ok(name)
    }

    fn medium(&self) -> io::Result<&dyn Medium> {
        self.medium.as_deref().ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        match &self.medium {
            Some(medium) => medium.sync_segment(file.as_fd()),
            None => file.sync_all(),
        }
    }

    /// Writes the note beside an entry. Durable when it returns.
    pub(crate) fn write_note(&self, name: &str, note: &Note) -> io::Result<()> {
        self.write_beside(&self.find(name)?.1, name, &note.into())
    }

    fn write_beside(&self, dir: &Dir, name: &str, written: &Written) -> io::Result<()> {
        let mut file = dir.create_anew(note_name(name).as_str())?;
        file.write_all(serde_json::to_string_pretty(written)?.as_bytes())?;
        self.sync(&file)?;
        self.sync_names(dir)
    }

    fn sync_names(&self, dir: &Dir) -> io::Result<()> {
        match &self.medium {
            Some(medium) => medium.sync_directory(dir.as_fd()),
            None => dir.sync(),
        }
    }

    /// Opens an entry for reading.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let name = entry_name(name)?;
        Ok(self.find(name)?.1.open_file(name, libc::O_RDONLY)?.into())
    }

    /// Removes an entry for good.
    pub fn discard(&self, name: &str) -> io::Result<()> {
        let name = entry_name(name)?;
        let (_, dir) = self.find(name)?;
        dir.check_file(&dir.stat(name)?)?;
        dir.unlink(name)?;
        // The note goes when the entry is gone for good. Half of this may have been done before.
        self.sync_names(&dir)?;
        let note = note_name(name);
        match dir.stat(note.as_str()) {
            Ok(found) if dir.owner().check(&found).is_err() => Ok(()),
            _ => dir.unlink_if_there(note.as_str()),
        }
    }

    /// The segments that entries are named after.
    pub(crate) fn segments(&self) -> io::Result<HashSet<SegmentId>> {
        Ok(self.list()?.iter().filter_map(|entry| segment_of(&entry.name)).collect())
    }

    /// Takes back entries that are second names of segments still in use: their replace never became true.
    pub(crate) fn forget_in_use(&self, segments: &Segments, in_use: impl Fn(SegmentId) -> bool) -> io::Result<()> {
        for entry in self.list()? {
            let Some(segment) = segment_of(&entry.name) else { continue };
            if !in_use(segment) {
                continue;
            }
            let ours = identity(&self.find(&entry.name)?.1.stat(entry.name.as_str())?);
            if segments.identity(segment).is_ok_and(|other| other == ours) {
                log::info!("quarantine/{}: its file was not replaced after all; removed", entry.name);
                self.discard(&entry.name)?;
            }
        }
        Ok(())
    }
}

/// The name of an entry, if it can be one.
fn entry_name(name: &str) -> io::Result<&str> {
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    if !plain || name.starts_with('.') || name.ends_with(".json") {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(name)
}

/// The names that an entry may have, in the order in which they are taken.
fn names(stem: &str) -> impl Iterator<Item = String> {
    std::iter::once(stem.to_owned()).chain((1..).map(move |n| format!("{stem}.{n}")))
}

/// A directory of it that gets an entry.
struct Filling {
    dir: Dir,
    /// Another one, in which the same names may be taken.
    also: Option<Dir>,
}

impl Filling {
    /// True if no entry has a name, and its note, should an interrupted setting aside have left one, can be written
    /// anew.
    fn is_free(&self, name: &str) -> bool {
        let note = |dir: &Dir| dir.stat(note_name(name).as_str()).map_or(true, |note| dir.check_file(&note).is_ok());
        !self.dir.has(name) && note(&self.dir) && self.also.as_ref().is_none_or(|also| !also.has(name))
    }

    fn fresh_name(&self, stem: &str) -> String {
        names(stem).find(|name| self.is_free(name)).unwrap_or_default()
    }

    fn taken<'a>(&'a self, stem: &'a str) -> impl Iterator<Item = String> + 'a {
        names(stem).take_while(|name| !self.is_free(name))
    }

    /// The entry that is the segment already, with its note: what set it aside was interrupted, and is done again.
    fn kept(&self, segments: &Segments, segment: SegmentId) -> io::Result<Option<String>> {
        let (ours, stem) = (segments.identity(segment)?, segment.to_string());
        let is_it = |name: &String| self.dir.stat(name.as_str()).is_ok_and(|found| identity(&found) == ours);
        let same = self.taken(&stem).find(is_it);
        Ok(same.filter(|name| self.dir.has(note_name(name).as_str())))
    }
}

/// True if the filesystem has no second names for files.
fn is_without_links(error: &io::Error) -> bool {
    [libc::EPERM, libc::EOPNOTSUPP, libc::ENOSYS, libc::EXDEV, libc::EMLINK].map(Some).contains(&error.raw_os_error())
}

/// What there is to know of an entry, if it is a file's.
fn version(name: String, written: Written) -> Option<(Ino, Version)> {
    let Written { note, left, partial, user } = written;
    let segment = segment_of(&name);
    Some((note.ino?, Version { name, segment, reason: note.reason, time: note.time, left, partial, user }))
}

/// True if `copy` holds what `from` holds from `offset` on, as far as it goes.
fn is_copy(from: &File, offset: u64, copy: &File) -> io::Result<bool> {
    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut at = 0;
    loop {
        let [ours, theirs] = &mut buffers;
        let read = copy.read_at(ours, at)?;
        if read == 0 {
            return Ok(true);
        }
        match from.read_exact_at(&mut theirs[..read], offset + at) {
            Ok(()) if ours[..read] == theirs[..read] => at += read as u64,
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(Unreadable::mark(error)),
        }
    }
}

/// Copies `offset..end`, skipping what the host has not allocated.
fn copy_range(from: &File, offset: u64, end: u64, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = offset;
    while at < end {
        // A hole may be much longer than anything that can be read of it.
        at = match nix::unistd::lseek(from, at as i64, nix::unistd::Whence::SeekData) {
            Ok(data) => data as u64,
            Err(nix::errno::Errno::ENXIO) => break,
            Err(_) => at,
        };
        if at >= end {
            break;
        }
        let part = (end - at).min(buffer.len() as u64) as usize;
        let read = from.read_at(&mut buffer[..part], at).map_err(Unreadable::mark)?;
        if read == 0 {
            break;
        }
        if buffer[..read].iter().any(|byte| *byte != 0) {
            to.write_all_at(&buffer[..read], at - offset)?;
        }
        at += read as u64;
    }
    to.set_len(end - offset)
}

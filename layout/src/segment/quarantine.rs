//! Quarantine: what recovery or an interrupted replace set aside. An entry is a file and, beside it, a note as JSON
//! that says whose bytes they are and why they are here. Nothing in quarantine is ever removed without being asked, but
//! for what newer versions of the same file push out ([`super::versions`]).
//!
//! A note is durable before its entry has a name, and an entry is whole before it has one: what interrupts the setting
//! aside leaves at most a note without an entry, which counts for nothing, and [`PARTIAL`], which the next one removes.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::stat::{FileStat, SFlag};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::ids::{Ino, SegmentId};
use crate::log::tier::PM;
use crate::medium::dir::Dir;
use crate::medium::domain::Medium;
use crate::medium::foreign::kind_name;
use crate::segment::note::Note;
use crate::segment::segments::Segments;
use crate::segment::versions::{Version, Versions};
use crate::time::Timestamp;

/// The directory.
pub(crate) const QUARANTINE: &str = "quarantine";

/// A copy on its way into quarantine; of more at a time, each has its number behind.
const PARTIAL: &str = ".partial";

/// The clock by which the host dates changes of files does not stand still for longer.
const TICK: Duration = Duration::from_millis(50);

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
}

impl From<&Note> for Written {
    fn from(note: &Note) -> Self {
        Self { note: note.clone(), left: None, partial: false }
    }
}

/// The quarantine directory of a pool.
#[derive(Debug)]
pub struct Quarantine {
    /// The pool's directory. This one is opened in it whenever it is used: operators may remove it.
    pool: Arc<Dir>,
    medium: Option<Arc<dyn Medium>>,
    counted: Mutex<Counted>,
    /// What is there of each file, once that was asked for. Others may have removed some of it.
    versions: Mutex<Option<Versions>>,
    /// The numbers of the copies that are being made.
    copies: Mutex<BTreeSet<u32>>,
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

/// What was counted, and when.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    allocated: u64,
    /// The directory's change time then.
    changed: Option<SystemTime>,
    at: Option<SystemTime>,
}

impl Counted {
    /// True if a directory that changed last then is as it was: what changes within a tick of the host's clock for
    /// files does not show.
    fn is_of(&self, changed: SystemTime) -> bool {
        let late = |at: SystemTime| at.duration_since(changed).is_ok_and(|since| since > TICK);
        self.changed == Some(changed) && self.at.is_some_and(late)
    }
}

/// Blocks of the host that a directory's files have.
fn allocated(dir: &Dir) -> io::Result<u64> {
    let mut blocks = 0;
    for entry in dir.entries()? {
        // One that is removed meanwhile has none.
        blocks += dir.stat(entry.name.as_c_str()).map_or(0, |found| found.st_blocks as u64);
    }
    Ok(blocks * 512)
}

fn note_name(name: &str) -> String {
    format!("{name}.json")
}

/// The entries in a pool's quarantine.
pub(crate) fn list(pool: &Dir) -> io::Result<Vec<QuarantineEntry>> {
    let entries = read(&pool.below(QUARANTINE)?)?.into_iter().map(|(name, bytes, written)| {
        let partial = written.as_ref().is_some_and(|written| written.partial);
        QuarantineEntry { name, bytes, partial, note: written.map(|written| written.note) }
    });
    Ok(entries.collect())
}

/// The entries in a pool's quarantine, with their bytes and what is written beside them. What is not the pool's is
/// none.
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
        let written = dir.read(note_name(name).as_str(), NOTE_MAX).ok();
        let written = written.and_then(|text| serde_json::from_slice(&text).ok());
        entries.push((name.to_owned(), found.st_size as u64, written));
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

/// The segment that an entry is named after.
fn segment_of(name: &str) -> Option<SegmentId> {
    u64::from_str_radix(name.split('.').next().unwrap_or_default(), 16).ok().map(SegmentId)
}

/// What is in a pool's quarantine that is no regular file of the pool's, with what it is instead: but for what has a
/// note of its own, as a foreign directory that was moved here.
pub(crate) fn strays(pool: &Dir) -> io::Result<Vec<(String, String)>> {
    let dir = pool.below(QUARANTINE)?;
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
    pub(crate) fn new(pool: Arc<Dir>, medium: Arc<dyn Medium>) -> Self {
        Self { medium: Some(medium), ..Self::of(pool) }
    }

    /// The quarantine of a pool that another process may have open: to list, open and discard entries.
    ///
    /// # Errors
    /// What opening the pool's directory gives.
    pub fn at(pool: &Path) -> io::Result<Self> {
        Ok(Self::of(Arc::new(Dir::open(pool)?)))
    }

    pub(crate) fn of(pool: Arc<Dir>) -> Self {
        Self { pool, medium: None, counted: Mutex::default(), versions: Mutex::default(), copies: Mutex::default() }
    }

    fn dir(&self) -> io::Result<Dir> {
        self.pool.below(QUARANTINE)
    }

    /// For messages.
    fn path_of(&self, name: &str) -> PathBuf {
        self.pool.path_of(format!("{QUARANTINE}/{name}"))
    }

    /// When a name in it was last made or removed, and when the host last changed anything about the directory.
    fn changed(&self) -> io::Result<FileStat> {
        self.pool.stat(QUARANTINE)
    }

    /// When the directory last changed; nothing if it is not there.
    pub fn last_change(&self) -> Option<Timestamp> {
        let found = self.changed().ok()?;
        Some(Timestamp::new(found.st_ctime, found.st_ctime_nsec as u32))
    }

    /// True if an entry, or its note, belongs to another user, so that nothing is said of it.
    pub(crate) fn is_anothers(&self, name: &str) -> bool {
        let Ok(dir) = self.dir() else { return false };
        let names = [name, &note_name(name)];
        names.iter().any(|name| dir.stat(*name).is_ok_and(|found| self.pool.owner().check(&found).is_err()))
    }

    /// When an entry last changed; nothing if it is not there.
    pub(crate) fn entry_changed(&self, name: &str) -> Option<Timestamp> {
        let found = self.dir().ok()?.stat(name).ok()?;
        Some(Timestamp::new(found.st_ctime, found.st_ctime_nsec as u32))
    }

    /// What the host has allocated for it, when it was last counted.
    pub fn allocated(&self) -> u64 {
        self.counted.lock().allocated
    }

    /// Counts that anew, if the directory has changed: other processes remove entries, too. What cannot be read counts
    /// as it did.
    pub fn recount(&self) -> u64 {
        let at = SystemTime::now();
        let Ok(changed) = self.changed().map(|found| modified(&found)) else { return self.allocated() };
        if !self.counted.lock().is_of(changed)
            && let Ok(allocated) = self.dir().and_then(|dir| allocated(&dir))
        {
            *self.counted.lock() = Counted { allocated, changed: Some(changed), at: Some(at) };
        }
        self.allocated()
    }

    /// What is set aside.
    pub fn list(&self) -> io::Result<Vec<QuarantineEntry>> {
        list(&self.pool)
    }

    /// Sets a whole segment aside, by a second name for it. The caller has the segment itself removed once no record
    /// needs it. Returns the entry's name. Durable when it returns.
    pub fn keep(&self, segments: &Segments, segment: SegmentId, note: &Note) -> io::Result<String> {
        self.keep_whole(segments, segment, note.into())
    }

    /// Sets the version of a file aside that it had before a program that died began to replace it, in the same way.
    /// `left` is the segment that it has from now on.
    pub fn keep_version(
        &self,
        segments: &Segments,
        old: SegmentId,
        left: SegmentId,
        note: &Note,
    ) -> io::Result<String> {
        let changed = segments.stat(old)?.mtime;
        let partial = match note.ino {
            Some(ino) => self.with_versions(|versions| versions.is_left(ino, old, changed))?,
            None => false,
        };
        self.keep_whole(segments, old, Written { left: Some(left), partial, ..note.into() })
    }

    fn keep_whole(&self, segments: &Segments, segment: SegmentId, written: Written) -> io::Result<String> {
        if segment.tier() != PM {
            // It may be on another filesystem, where it can have no second name.
            let size = segments.stat(segment)?.size;
            return self.keep_part(segments, segment, size, written);
        }
        let dir = self.dir()?;
        if let Some(name) = kept(&dir, segments, segment)? {
            // It may have been the sync that failed.
            self.sync_names(&dir)?;
            return Ok(name);
        }
        let name = fresh_name(&dir, &segment.to_string());
        let file = segments.open(segment, libc::O_RDONLY)?;
        self.medium()?.sync_segment(file.as_fd())?;
        self.write_beside(&dir, &name, &written)?;
        segments.link(segment, &file, &dir, &name)?;
        self.sync_names(&dir)?;
        self.push_out(&name, written);
        Ok(name)
    }

    /// As [`Quarantine::keep`], where the host has no room for a note: a second name hardly needs any.
    pub(crate) fn keep_without_note(&self, segments: &Segments, segment: SegmentId) -> io::Result<String> {
        if segment.tier() != PM {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let dir = self.dir()?;
        let name = fresh_name(&dir, &segment.to_string());
        let file = segments.open(segment, libc::O_RDONLY)?;
        self.medium()?.sync_segment(file.as_fd())?;
        segments.link(segment, &file, &dir, &name)?;
        self.sync_names(&dir)?;
        Ok(name)
    }

    fn with_versions<T>(&self, ask: impl FnOnce(&mut Versions) -> T) -> io::Result<T> {
        let mut versions = self.versions.lock();
        if versions.is_none() {
            let mut found = Versions::default();
            for (name, _, written) in read(&self.dir()?)? {
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
        let reason = written.note.reason;
        let Some((ino, version)) = version(name.to_owned(), written) else { return };
        let surplus = self.with_versions(|versions| {
            versions.add(ino, version);
            versions.take_surplus(ino, reason)
        });
        for name in surplus.unwrap_or_default() {
            match self.discard(&name) {
                Ok(()) => log::info!("quarantine/{name}: removed, as there are newer versions of its file"),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => log::warn!("{}: {error}", self.path_of(&name).display()),
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
        // What set it aside was interrupted before it cut the segment, and is done again.
        for entry in self.list()? {
            let same = entry.note.as_ref().is_some_and(|other| Note { time: note.time, ..other.clone() } == *note);
            if same && entry.bytes == size - note.offset && is_copy(&from, note.offset, &self.open(&entry.name)?)? {
                return Ok(entry.name);
            }
        }
        let name = self.copy_as(&segment.to_string(), &from, note.offset, size, &written)?;
        self.push_out(&name, written);
        Ok(name)
    }

    /// Copies a file here. Durable when it returns.
    pub(crate) fn copy(&self, from: &File, stem: &str, note: &Note) -> io::Result<String> {
        let len = from.metadata()?.len();
        self.copy_as(stem, from, 0, len, &note.into())
    }

    fn copy_as(&self, stem: &str, from: &File, offset: u64, end: u64, written: &Written) -> io::Result<String> {
        let dir = self.dir()?;
        let name = fresh_name(&dir, stem);
        // What an interrupted copy left may be a second name of its entry by now: a new file, never that one again.
        let copying = Copying::begin(&self.copies);
        let partial = copying.name();
        let to = dir.create_anew(partial.as_str())?;
        let copied = copy_range(from, offset, end, &to).and_then(|()| self.sync(&to));
        let named = copied.and_then(|()| {
            self.write_beside(&dir, &name, written)?;
            dir.link(partial.as_str(), &to, &dir, name.as_str())
        });
        let removed = dir.unlink(partial.as_str());
        named.and(removed)?;
        self.sync_names(&dir)?;
        Ok(name)
    }

    /// Moves a foreign file or directory here, from another directory of the pool.
    pub(crate) fn adopt(&self, from: &Dir, from_name: &OsStr, note: &Note) -> io::Result<String> {
        let dir = self.dir()?;
        let name = fresh_name(&dir, "foreign");
        self.write_beside(&dir, &name, &note.into())?;
        from.rename(from_name, &dir, name.as_str())?;
        self.sync_names(&dir)?;
        Ok(name)
    }

    /// An empty entry, for the sake of its note.
    pub(crate) fn note_only(&self, ino: Ino, note: &Note) -> io::Result<String> {
        let dir = self.dir()?;
        let name = fresh_name(&dir, &format!("lost{ino}"));
        self.write_beside(&dir, &name, &note.into())?;
        dir.create(name.as_str())?;
        self.sync_names(&dir)?;
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
        self.write_beside(&self.dir()?, name, &note.into())
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
        Ok(self.dir()?.open_file(entry_name(name)?, libc::O_RDONLY)?.into())
    }

    /// Removes an entry for good.
    pub fn discard(&self, name: &str) -> io::Result<()> {
        let (dir, name) = (self.dir()?, entry_name(name)?);
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
            if !in_use(segment) || segment.tier() != PM {
                continue;
            }
            let ours = self.dir()?.stat(entry.name.as_str())?.st_ino;
            if segments.inode(segment).is_ok_and(|other| other == ours) {
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

/// True if no entry has a name, and its note, should an interrupted setting aside have left one, can be written anew.
fn is_free(dir: &Dir, name: &str) -> bool {
    !dir.has(name) && dir.stat(note_name(name).as_str()).map_or(true, |note| dir.check_file(&note).is_ok())
}

fn fresh_name(dir: &Dir, stem: &str) -> String {
    names(stem).find(|name| is_free(dir, name)).unwrap_or_default()
}

/// The entry that is the segment already, with its note: what set it aside was interrupted, and is done again.
fn kept(dir: &Dir, segments: &Segments, segment: SegmentId) -> io::Result<Option<String>> {
    let ours = segments.inode(segment)?;
    let stem = segment.to_string();
    let mut taken = names(&stem).take_while(|name| !is_free(dir, name));
    let same = taken.find(|name| dir.stat(name.as_str()).is_ok_and(|found| found.st_ino == ours));
    Ok(same.filter(|name| dir.has(note_name(name).as_str())))
}

/// When a directory's names last changed.
fn modified(found: &FileStat) -> SystemTime {
    UNIX_EPOCH + Duration::new(found.st_mtime.max(0) as u64, found.st_mtime_nsec as u32)
}

/// What there is to know of an entry, if it is a file's.
fn version(name: String, written: Written) -> Option<(Ino, Version)> {
    let Written { note, left, partial } = written;
    let segment = segment_of(&name);
    Some((note.ino?, Version { name, segment, reason: note.reason, time: note.time, left, partial }))
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
            Err(error) => return Err(error),
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
        let read = from.read_at(&mut buffer[..part], at)?;
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

//! Quarantine: what recovery or an interrupted replace set aside. An entry is a file and, beside it, a note as JSON
//! that says whose bytes they are and why they are here. Nothing in quarantine is ever removed without being asked, but
//! for what newer versions of the same file push out ([`super::versions`]).
//!
//! A note is durable before its entry has a name, and an entry is whole before it has one: what interrupts the setting
//! aside leaves at most a note without an entry, which counts for nothing, and [`PARTIAL`], which the next one removes.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::ids::{Ino, SegmentId};
use crate::log::tier::PM;
use crate::medium::domain::{Medium, sync_dir_at};
use crate::medium::{owner, regular};
use crate::segment::note::Note;
use crate::segment::segments::Segments;
use crate::segment::versions::{Version, Versions};

/// A copy on its way into quarantine.
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
    path: PathBuf,
    medium: Option<Arc<dyn Medium>>,
    counted: Mutex<Counted>,
    /// What is there of each file, once that was asked for. Others may have removed some of it.
    versions: Mutex<Option<Versions>>,
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
fn allocated(path: &Path) -> io::Result<u64> {
    let mut blocks = 0;
    for entry in fs::read_dir(path)? {
        // One that is removed meanwhile has none.
        blocks += entry?.metadata().map_or(0, |found| found.blocks());
    }
    Ok(blocks * 512)
}

/// The entries in a pool's quarantine.
pub(crate) fn list(path: &Path) -> io::Result<Vec<QuarantineEntry>> {
    let entries = read(path)?.into_iter().map(|(name, bytes, written)| {
        let partial = written.as_ref().is_some_and(|written| written.partial);
        QuarantineEntry { name, bytes, partial, note: written.map(|written| written.note) }
    });
    Ok(entries.collect())
}

/// The entries in a pool's quarantine, with their bytes and what is written beside them.
fn read(path: &Path) -> io::Result<Vec<(String, u64, Option<Written>)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        if name.ends_with(".json") || name == PARTIAL || !entry.file_type()?.is_file() {
            continue;
        }
        let written = regular::read(&path.join(format!("{name}.json")), NOTE_MAX).ok();
        let written = written.and_then(|text| serde_json::from_slice(&text).ok());
        entries.push((name, entry.metadata()?.len(), written));
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

/// The segment that an entry is named after.
fn segment_of(name: &str) -> Option<SegmentId> {
    u64::from_str_radix(name.split('.').next().unwrap_or_default(), 16).ok().map(SegmentId)
}

/// What is in a pool's quarantine that is no regular file, with what it is instead: but for what has a note of its own,
/// as a foreign directory that was moved here.
pub(crate) fn strays(path: &Path) -> io::Result<Vec<(String, &'static str)>> {
    let mut strays = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let has_note = || regular::read(&path.join(format!("{name}.json")), NOTE_MAX).is_ok();
        if let Some(kind) = regular::kind_at(&entry.path())?
            && !has_note()
        {
            strays.push((name, kind));
        }
    }
    strays.sort();
    Ok(strays)
}

impl Quarantine {
    pub(crate) fn new(pool: &Path, medium: Arc<dyn Medium>) -> Self {
        Self {
            path: pool.join("quarantine"),
            medium: Some(medium),
            counted: Mutex::default(),
            versions: Mutex::default(),
        }
    }

    /// The quarantine of a pool that another process may have open: to list, open and discard entries.
    pub fn at(pool: &Path) -> Self {
        Self { path: pool.join("quarantine"), medium: None, counted: Mutex::default(), versions: Mutex::default() }
    }

    /// What the host has allocated for it, when it was last counted.
    pub fn allocated(&self) -> u64 {
        self.counted.lock().allocated
    }

    /// Counts that anew, if the directory has changed: other processes remove entries, too. What cannot be read counts
    /// as it did.
    pub fn recount(&self) -> u64 {
        let at = SystemTime::now();
        let Ok(changed) = fs::metadata(&self.path).and_then(|found| found.modified()) else { return self.allocated() };
        if !self.counted.lock().is_of(changed)
            && let Ok(allocated) = allocated(&self.path)
        {
            *self.counted.lock() = Counted { allocated, changed: Some(changed), at: Some(at) };
        }
        self.allocated()
    }

    /// What is set aside.
    pub fn list(&self) -> io::Result<Vec<QuarantineEntry>> {
        list(&self.path)
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
        if let Some(name) = self.kept(segments, segment)? {
            // It may have been the sync that failed.
            self.sync_names()?;
            return Ok(name);
        }
        let name = self.fresh_name(&segment.to_string());
        self.medium()?.sync_segment(segments.open(segment, libc::O_RDONLY)?.as_fd())?;
        self.write_beside(&name, &written)?;
        fs::hard_link(segments.path_of(segment), self.path.join(&name))?;
        self.sync_names()?;
        self.push_out(&name, written);
        Ok(name)
    }

    /// As [`Quarantine::keep`], where the host has no room for a note: a second name hardly needs any.
    pub(crate) fn keep_without_note(&self, segments: &Segments, segment: SegmentId) -> io::Result<String> {
        if segment.tier() != PM {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let name = self.fresh_name(&segment.to_string());
        self.medium()?.sync_segment(segments.open(segment, libc::O_RDONLY)?.as_fd())?;
        fs::hard_link(segments.path_of(segment), self.path.join(&name))?;
        self.sync_names()?;
        Ok(name)
    }

    fn with_versions<T>(&self, ask: impl FnOnce(&mut Versions) -> T) -> io::Result<T> {
        let mut versions = self.versions.lock();
        if versions.is_none() {
            let mut found = Versions::default();
            for (name, _, written) in read(&self.path)? {
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
                Err(error) => log::warn!("{}: {error}", self.path.join(name).display()),
            }
        }
    }

    /// The entry that is the segment already, with its note: what set it aside was interrupted, and is done again.
    fn kept(&self, segments: &Segments, segment: SegmentId) -> io::Result<Option<String>> {
        let ours = fs::metadata(segments.path_of(segment))?.ino();
        let names = std::iter::once(segment.to_string()).chain((1..).map(|n| format!("{segment}.{n}")));
        let mut taken = names.take_while(|name| self.path.join(name).exists());
        let same = |name: &String| fs::metadata(self.path.join(name)).is_ok_and(|entry| entry.ino() == ours);
        Ok(taken.find(same).filter(|name| self.path.join(format!("{name}.json")).exists()))
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
    pub(crate) fn copy(&self, from: &Path, stem: &str, note: &Note) -> io::Result<String> {
        let from = regular::open(from, libc::O_RDONLY)?;
        let len = from.metadata()?.len();
        self.copy_as(stem, &from, 0, len, &note.into())
    }

    fn copy_as(&self, stem: &str, from: &File, offset: u64, end: u64, written: &Written) -> io::Result<String> {
        let name = self.fresh_name(stem);
        let partial = self.path.join(PARTIAL);
        // What an interrupted copy left may be a second name of its entry by now: a new file, never that one again.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let to = regular::open(&partial, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?;
        let given = owner::give(&to, &self.path);
        let copied = given.and_then(|()| copy_range(from, offset, end, &to)).and_then(|()| self.sync(&to));
        let named = copied.and_then(|()| {
            self.write_beside(&name, written)?;
            fs::hard_link(&partial, self.path.join(&name))
        });
        let removed = fs::remove_file(&partial);
        named.and(removed)?;
        self.sync_names()?;
        Ok(name)
    }

    /// Moves a foreign file or directory here.
    pub(crate) fn adopt(&self, from: &Path, note: &Note) -> io::Result<String> {
        let name = self.fresh_name("foreign");
        self.write_note(&name, note)?;
        fs::rename(from, self.path.join(&name))?;
        self.sync_names()?;
        Ok(name)
    }

    /// An empty entry, for the sake of its note.
    pub(crate) fn note_only(&self, ino: Ino, note: &Note) -> io::Result<String> {
        let name = self.fresh_name(&format!("lost{ino}"));
        self.write_note(&name, note)?;
        let empty = regular::open(&self.path.join(&name), libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?;
        owner::give(&empty, &self.path)?;
        self.sync_names()?;
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

    fn fresh_name(&self, stem: &str) -> String {
        let taken = |name: &String| self.path.join(name).exists();
        let plain = stem.to_owned();
        if !taken(&plain) {
            return plain;
        }
        (1..).map(|n| format!("{stem}.{n}")).find(|name| !taken(name)).unwrap_or(plain)
    }

    /// Writes the note beside an entry. Durable when it returns.
    pub(crate) fn write_note(&self, name: &str, note: &Note) -> io::Result<()> {
        self.write_beside(name, &note.into())
    }

    fn write_beside(&self, name: &str, written: &Written) -> io::Result<()> {
        let path = self.path.join(format!("{name}.json"));
        let mut file = regular::open(&path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)?;
        owner::give(&file, &self.path)?;
        file.write_all(serde_json::to_string_pretty(written)?.as_bytes())?;
        self.sync(&file)?;
        self.sync_names()
    }

    fn sync_names(&self) -> io::Result<()> {
        match &self.medium {
            Some(medium) => sync_dir_at(&**medium, &self.path),
            None => regular::open_directory(&self.path)?.sync_all(),
        }
    }

    fn entry_path(&self, name: &str) -> io::Result<PathBuf> {
        let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
        if !plain || name.starts_with('.') || name.ends_with(".json") {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(self.path.join(name))
    }

    /// Opens an entry for reading.
    pub fn open(&self, name: &str) -> io::Result<File> {
        regular::open(&self.entry_path(name)?, libc::O_RDONLY)
    }

    /// Removes an entry for good.
    pub fn discard(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.entry_path(name)?)?;
        // The note goes when the entry is gone for good. Half of this may have been done before.
        self.sync_names()?;
        match fs::remove_file(self.path.join(format!("{name}.json"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
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
            let ours = fs::metadata(self.path.join(&entry.name))?;
            let same = fs::metadata(segments.path_of(segment)).is_ok_and(|other| other.ino() == ours.ino());
            if same {
                log::info!("quarantine/{}: its file was not replaced after all; removed", entry.name);
                self.discard(&entry.name)?;
            }
        }
        Ok(())
    }
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

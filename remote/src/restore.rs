//! From a remote to a new pool.
//!
//! The pool is made beside the place where it is to be, and gets its name when it is whole. What is interrupted is gone
//! on with: a file that has a name there has all its bytes.

mod files;
mod lots;
mod staging;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use tensorfs_layout::check::{Committed, Contents};
use tensorfs_layout::log::{Attributes, Origin, Record, Transaction};
use tensorfs_layout::pool::{Carrying, CreateOptions, OpenOptions, Pool, carried, is_unfinished};
use tensorfs_layout::segment::SealedRun;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, ROOT, SegmentId, Timestamp};

use crate::carry::{Note, Settings};
use crate::error::{Error, Result};
use crate::fetch::{Fetcher, PACKS_OF_MANY, Written, write_at};
use crate::origin::Noted;
use crate::repository::{Content, Entry, Hash, INTERRUPTED, LEFT, Newest, Part, Repository, State, Tree, name_of};
use files::{Coming, Underway};
use lots::{Lots, Waiting};
use staging::{Staging, beside, is_mount_point};

/// Bytes of what a pool notes of where its files come from, at most.
const NOTE: usize = 4000;
/// In a note in the place of a pool's uuid: what is made from a remote, and is none yet.
const RESTORING: &str = "restoring";
/// So, if the bytes of its files are to come later.
const COMING: &str = "coming";

/// Hears how many bytes of how many are there.
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// What came of a restore.
#[derive(Debug, Default)]
pub struct Restored {
    /// Files that the pool has now.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that are not whole, with what they lack.
    pub incomplete: Vec<String>,
    /// Files whose bytes come when the pool is mounted.
    pub away: u64,
}

/// What a pool is made from.
#[derive(Debug)]
pub struct Source<'a> {
    /// The tree.
    pub tree: &'a Tree,
    /// Where it is: a URL.
    pub shown: &'a str,
    /// The new pool's layout name.
    pub layout: String,
    /// Which state of it this is: the number of a batch, and its BLAKE3; of several repositories 0, and that of what is
    /// noted of them.
    pub batch: (u64, Option<Hash>),
    /// How else that can be named, to go on with it.
    pub at: String,
    /// The repositories that objects are in, by the number behind which theirs are, the least one first.
    pub repositories: Vec<(u64, &'a Repository)>,
}

impl<'a> Source<'a> {
    /// One repository.
    pub fn one(repository: &'a Repository, newest: &'a Newest) -> Result<Self> {
        let shown = repository.place().shown();
        let head = newest.head.as_ref().ok_or_else(|| Error::damaged(shown, "it holds no pool"))?;
        let (layout, batch, at) = (head.layout.clone(), (head.number, newest.hash), head.number.to_string());
        Ok(Self { tree: &newest.tree, shown, layout, batch, at, repositories: vec![(0, repository)] })
    }
}

/// How a pool is made.
#[derive(Debug, Default)]
pub struct How {
    /// The bytes of its files come later, from here: what is shown of that, and what is noted.
    pub later: Option<(String, Noted)>,
    /// Bytes that it may use on its host.
    pub limit: Option<u64>,
}

struct Restore<'a> {
    source: &'a Source<'a>,
    pool: Arc<Pool>,
    /// What was written, from where it comes another time.
    written: Written,
    /// What became of the objects.
    made: HashMap<u64, Ino>,
    lots: Lots,
    underway: Underway<'a>,
    /// What fetches, and the repository that it fetches from.
    fetcher: Option<(usize, Fetcher<'a>)>,
    restored: Restored,
    total: u64,
    progress: Progress<'a>,
    /// The tier of files whose bytes come later.
    later: Option<u8>,
}

/// Makes a pool with the tree of a repository, and the bytes of its files.
pub fn restore(repository: &Repository, newest: &Newest, to: &Path, progress: Progress<'_>) -> Result<Restored> {
    restore_so(&Source::one(repository, newest)?, (to, &How::default()), progress)
}

/// Makes a pool with the tree of a source.
pub fn restore_so(source: &Source<'_>, (to, how): (&Path, &How), progress: Progress<'_>) -> Result<Restored> {
    let refused = |what: String| Error::Refused(format!("{}: {what}", to.display()));
    let host = |what| move |source| Error::Host { path: to.display().to_string(), what, source };
    match fs::read_dir(to).map(|mut there| there.next().is_some()) {
        Ok(true) => return Err(refused("there is something already".into())),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(host("read")(error)),
        // What is made beside it would be on another disk, and could not get its name.
        Ok(false) if is_mount_point(to).map_err(host("look at"))? => {
            return Err(refused("is a mount point, and cannot be a pool itself; name a directory in it".into()));
        }
        _ => {}
    }
    // Nothing is begun that could not be ended.
    how.later.as_ref().map(noted).transpose()?;
    let staged = beside(to).ok_or_else(|| refused("names no directory".into()))?;
    let mark = serde_json::to_vec(&Note {
        settings: Settings { url: source.shown.to_owned(), ..Settings::default() },
        pool: if how.later.is_some() { COMING } else { RESTORING }.into(),
        number: source.batch.0,
        hash: source.batch.1,
        error: Some(source.at.clone()).filter(|_| source.batch.0 == 0),
        ..Note::default()
    })
    .map_err(|error| refused(error.to_string()))?;
    let staging = Staging::make(&staged).map_err(|what| Error::Refused(format!("{}: {what}", staged.display())))?;
    let restored = restore_to(source, (&staging.path(), &mark), how, progress);
    let (restored, carrying) = restored.map_err(|error| staging.named(error))?;
    fs::rename(&staged, to).map_err(host("give its name to what was restored beside it"))?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(host("make its name durable"))?;
    // Until it has its name, the mark is what another one goes on by. Left behind, it is a note of no pool, and says
    // nothing.
    if let Some(carrying) = carrying {
        carrying.forget()?;
    }
    Ok(restored)
}

/// Makes the pool in a directory, or goes on with it. Returns by what its mark can be forgotten, too.
fn restore_to(
    source: &Source<'_>,
    (staged, mark): (&Path, &[u8]),
    how: &How,
    progress: Progress<'_>,
) -> Result<(Restored, Option<Carrying>)> {
    let layout = source.layout.clone();
    let now = Timestamp::from(SystemTime::now());
    let begun = begun(staged, mark, &layout)?;
    if begun == Begun::Not {
        let limit = how.limit;
        Pool::create(staged, &CreateOptions { layout, limit, now, ..CreateOptions::default() })?;
    }
    if begun != Begun::Marked {
        let busy = || Error::Refused(format!("{}: somebody else restores it", staged.display()));
        Carrying::take(staged)?.ok_or_else(busy)?.write(mark)?;
    }
    let pool = Pool::open(staged, &OpenOptions { now, ..OpenOptions::default() })?;
    let later = how.later.as_ref().map(|noted| later(&pool, source.tree, noted)).transpose()?;
    let total = source.tree.entries().filter_map(|entry| entry.file.as_ref()).map(bytes_of).sum();
    let pool = Arc::new(pool);
    let of_written = pool.clone();
    let open = move |segment| of_written.segments().open(segment, libc::O_RDONLY).ok().map(File::from);
    let written = Written::new(open, PACKS_OF_MANY);
    let mut restore = Restore {
        source,
        lots: Lots::of(pool.clone())?,
        pool,
        written,
        made: HashMap::new(),
        underway: Underway::default(),
        fetcher: None,
        restored: Restored::default(),
        total,
        progress,
        later,
    };
    restore.all()?;
    let Restore { pool, written, fetcher, restored, lots, .. } = restore;
    lots.end()?;
    pool.close()?;
    // Whoever has it open has its lock.
    drop((fetcher, written, pool));
    Ok((restored, Carrying::take(staged)?))
}

/// What is noted in the pool of where the bytes of its files come from.
fn noted((shown, noted): &(String, Noted)) -> Result<Vec<u8>> {
    let note = serde_json::to_vec(noted).map_err(|error| Error::Refused(error.to_string()))?;
    if shown.len() + note.len() > NOTE {
        let what =
            "of so many pools it cannot be noted where their files come from; `tensorfs remote restore` needs no note";
        return Err(Error::Refused(format!("{shown}: {what}")));
    }
    Ok(note)
}

/// The tier that stands for the remote that the bytes of files come from later. A file there has the number of its
/// object in the remote.
fn later(pool: &Pool, tree: &Tree, later: &(String, Noted)) -> Result<u8> {
    if let Some((number, _)) = pool.view().remote() {
        return Ok(number);
    }
    let note = noted(later)?;
    let first = tree.entries().map(|entry| entry.ino).max().unwrap_or(0).saturating_add(1);
    Ok(pool.add_remote(&later.0, &note, first)?)
}

/// How far this very restore has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    Not,
    /// There is an empty pool.
    Made,
    /// The pool says what it is made from.
    Marked,
}

/// Fails if something else is there.
fn begun(staged: &Path, mark: &[u8], layout: &str) -> Result<Begun> {
    if is_unfinished(staged).unwrap_or(false) {
        return Ok(Begun::Not);
    }
    let is_new = || -> Result<bool> {
        let is_empty = Contents::read(staged)?.view().totals().objects <= 1;
        Ok(is_empty && Committed::read(staged)?.superblock().layout == layout)
    };
    match carried(staged)? {
        Some(found) if found.note == mark => Ok(Begun::Marked),
        // It was interrupted before there was anything in it.
        None if is_new()? => Ok(Begun::Made),
        found => {
            let note = found.and_then(|found| serde_json::from_slice(&found.note).ok());
            let what = match note.filter(|note: &Note| note.pool == RESTORING || note.pool == COMING) {
                Some(Note { settings, error: Some(at), number: 0, .. }) => {
                    format!(
                        "is the restore of {} as it was at {at}; go on with it (--at {at}), or remove it",
                        settings.url
                    )
                }
                Some(Note { settings, number, .. }) => {
                    format!(
                        "is the restore of batch {number} of {}; go on with it (--at {number}), or remove it",
                        settings.url
                    )
                }
                None => "holds something else; remove it".to_owned(),
            };
            Err(Error::Refused(format!("{}: {what}", staged.display())))
        }
    }
}

/// The bytes that the parts of a file have.
fn bytes_of(content: &Content) -> u64 {
    content.bytes()
}

impl<'a> Restore<'a> {
    fn all(&mut self) -> Result<()> {
        let (tree, shown) = (self.source.tree, self.source.shown);
        let root = tree.entry(ROOT.0).filter(|root| root.is_dir());
        let root = root.ok_or_else(|| Error::damaged(shown, "its tree has no root"))?;
        self.store(object(root, ROOT, None))?;
        self.made.insert(ROOT.0, ROOT);
        let mut left = vec![(String::new(), ROOT.0, ROOT)];
        while let Some((path, dir, made)) = left.pop() {
            let names: Vec<(&str, u64)> = tree.names(dir).collect();
            let mut ahead = 0;
            for (at, (name, ino)) in names.iter().copied().enumerate() {
                ahead = self.expect(&names, made, (at, ahead.max(at)))?;
                let path = format!("{path}/{name}");
                let Some(entry) = tree.entry(ino) else {
                    return Err(Error::damaged(shown, format!("{path} is a name of nothing")));
                };
                let bytes = name_of(name).ok_or_else(|| Error::damaged(shown, format!("{path}: no name")))?;
                let child = self.one(&path, entry, made, &bytes)?;
                if entry.is_dir() {
                    left.push((path, ino, child));
                }
            }
        }
        self.end_files()
    }

    /// An object and its name, unless it is there.
    fn one(&mut self, path: &str, entry: &'a Entry, dir: Ino, name: &[u8]) -> Result<Ino> {
        let there = self.pool.view().lookup(dir, name);
        let other = self.made.get(&entry.ino).copied();
        if other.is_some() && entry.is_dir() {
            return Err(Error::damaged(self.source.shown, format!("{path}: a directory of two names")));
        }
        let named = |ino| Record::Name { dir, name: name.into(), ino };
        let ino = match (there, other) {
            (Some(ino), _) => {
                if let (Some(content), None) = (&entry.file, other) {
                    self.seal_what_is_there(ino, content)?;
                }
                ino
            }
            (None, Some(ino)) => {
                // It may be on its way.
                self.end_files()?;
                self.store(Transaction::new(0).with(named(ino)))?;
                return Ok(ino);
            }
            (None, None) => {
                let ino = Ino(self.pool.edit().next_id());
                match &entry.file {
                    Some(content) if entry.is_file() && !content.parts.is_empty() => {
                        let name = named(ino);
                        if !self.file_for_later(entry, content, ino, &name)? {
                            self.made.insert(entry.ino, ino);
                            self.file(path, (entry, content), (ino, name))?;
                            return Ok(ino);
                        }
                    }
                    _ => self.store(object(entry, ino, None).with(named(ino)))?,
                }
                ino
            }
        };
        if other.is_none() {
            self.made.insert(entry.ino, ino);
            if let Some(content) = &entry.file {
                self.more(bytes_of(content));
                self.count(path, content);
            }
        }
        Ok(ino)
    }

    /// So many bytes more are there.
    fn more(&mut self, bytes: u64) {
        self.restored.bytes = self.restored.bytes.saturating_add(bytes);
        (self.progress)(self.restored.bytes, self.total);
    }

    /// One more file is there.
    fn count(&mut self, path: &str, content: &Content) {
        let bytes = bytes_of(content);
        self.restored.files += 1;
        let what = match content.state {
            State::Whole => None,
            State::Open if content.tail > 0 => Some(format!(
                "was open to write: {bytes} of its {} bytes are here, the last {} as they were found then",
                content.size, content.tail
            )),
            State::Open => Some(format!("was open to write: {bytes} of its {} bytes are here", content.size)),
            State::Damaged => {
                Some("was damaged in its pool: it is as it was carried before that, if it was".to_owned())
            }
        };
        self.restored.incomplete.extend(what.map(|what| format!("{path}: {what}")));
    }

    /// A file with bytes that come later, if all of them have seals, by which they are known then. False if not.
    fn file_for_later(&mut self, entry: &Entry, content: &Content, ino: Ino, name: &Record) -> Result<bool> {
        let size = bytes_of(content);
        let runs = if content.state == State::Whole { self.runs(content, size) } else { Vec::new() };
        let segment = self.later.and_then(|tier| SegmentId::in_tier(tier, entry.ino));
        let Some(segment) = segment.filter(|_| !runs.is_empty()) else { return Ok(false) };
        let mut tx = object(entry, ino, Some((segment, content.segment)));
        tx.push(Record::Data { ino, segment, offset: 0, len: size, allocated: 0, origin: Origin::default() });
        tx.bytes_are_durable(segment);
        tx.push(name.clone());
        self.store(tx)?;
        self.restored.away += 1;
        self.lots.add(Waiting { ino, segment, allocated: 0, runs }, 0)?;
        Ok(true)
    }

    /// Has the packs come of files that are next in a directory, that of the name which it is at among them. Returns
    /// the first one that has to wait until others have come.
    fn expect(&mut self, names: &[(&str, u64)], dir: Ino, (now, from): (usize, usize)) -> Result<usize> {
        let tree = self.source.tree;
        for (at, (name, ino)) in names.iter().enumerate().skip(from) {
            let content = tree.entry(*ino).filter(|entry| entry.is_file()).and_then(|entry| entry.file.as_ref());
            let is_there = || name_of(name).is_some_and(|name| self.pool.view().lookup(dir, &name).is_some());
            let Some(content) = content.filter(|_| !self.made.contains_key(ino) && !is_there()) else { continue };
            // What comes from one repository comes before what does from another one.
            let of = self.repository_of(*ino)?;
            let is_others = at > now && self.fetcher.as_ref().is_some_and(|(current, _)| *current != of);
            if self.later.is_some() || is_others || !self.fetcher(*ino)?.expect_packs(content) {
                return Ok(at);
            }
        }
        Ok(names.len())
    }

    /// Which repository has the bytes of an object.
    fn repository_of(&self, ino: u64) -> Result<usize> {
        let of = self.source.repositories.iter().rposition(|(first, _)| *first < ino);
        of.ok_or_else(|| Error::damaged(self.source.shown, "an object has the number 0"))
    }

    /// A file that was there already: whoever made it may have been killed before he had sealed it. Whether it has the
    /// bytes, its seals tell.
    fn seal_what_is_there(&mut self, ino: Ino, content: &Content) -> Result<()> {
        let size = bytes_of(content);
        let unsealed = {
            let view = self.pool.view();
            let object = view.object(ino);
            let chain = object.and_then(Object::chain).filter(|chain| !chain.is_sealed() && chain.size() == size);
            let segment = object.and_then(|object| object.attributes.segment);
            chain.and_then(|chain| Some((segment?, chain.allocated())))
        };
        let Some((segment, allocated)) = unsealed else { return Ok(()) };
        let runs = self.runs(content, size);
        self.lots.add(Waiting { ino, segment, allocated, runs }, 0)
    }

    /// The seals of a file that is whole, as far as they describe it.
    fn runs(&self, content: &Content, size: u64) -> Vec<SealedRun> {
        let room = self.pool.description_room();
        let (mut runs, mut offset) = (Vec::new(), 0_u64);
        for sealed in &content.seals {
            let Some(mut seal) = sealed.seal() else { return Vec::new() };
            if seal.description.len() > room {
                seal.description = Box::default();
            }
            runs.push(SealedRun { offset, len: sealed.0, seal, origin: Origin::default() });
            offset = offset.saturating_add(sealed.0);
        }
        if content.state == State::Whole && offset == size { runs } else { Vec::new() }
    }

    /// Begins a file with bytes: these first, then what names them.
    fn file(&mut self, path: &str, (entry, content): (&'a Entry, &Content), (ino, name): (Ino, Record)) -> Result<()> {
        let host = |what| move |source| Error::Host { path: path.to_owned(), what, source };
        let serial = self.pool.edit().next_id();
        let segment = SegmentId::in_tier(0, serial).ok_or_else(|| Error::Refused("no number is left".into()))?;
        drop(self.pool.segments().create(segment).map_err(host("make"))?);
        let file = File::from(self.pool.segments().open(segment, libc::O_RDWR).map_err(host("open"))?);
        let begun = Coming::new(path, (entry, ino, name), (segment, file));
        let of = (path.to_owned(), entry.ino, begun.file.clone(), segment);
        self.underway.begin(begun);
        let mut at = 0_u64;
        for part in &content.parts {
            self.part(ino, &of, (part, at))?;
            at = at.saturating_add(part.len());
        }
        self.underway.all_asked_for(ino);
        self.end_file(ino)
    }

    /// Has a part of a file come, or begins that.
    fn part(
        &mut self,
        ino: Ino,
        (path, of, file, segment): &(String, u64, Arc<File>, SegmentId),
        (part, at): (&Part, u64),
    ) -> Result<()> {
        if part.hash().is_none() {
            self.more(part.len());
            return Ok(());
        }
        // What is on its way already can be read, when it has come, where it was written.
        while self.underway.has(part) || !self.has_room(*of, part)? {
            self.next_part()?;
        }
        if let Some(pouring) = self.fetcher(*of)?.pour(part, file, at) {
            self.underway.add(ino, pouring);
            return Ok(());
        }
        let bytes = self.fetcher(*of)?.part(part).map_err(|error| about(path, error))?.unwrap_or_default();
        let host = |source| Error::Host { path: path.clone(), what: "write", source };
        write_at(file, &bytes, at).map_err(host)?;
        self.written.add_part(part, (*segment, at));
        self.more(part.len());
        Ok(())
    }

    fn has_room(&mut self, of: u64, part: &Part) -> Result<bool> {
        let load = self.underway.load();
        Ok(self.fetcher(of)?.has_room(load, part.len()))
    }

    /// Waits for the part that was asked for first.
    fn next_part(&mut self) -> Result<()> {
        let Some((ino, pouring)) = self.underway.next() else { return Ok(()) };
        let Some(file) = self.underway.file(ino) else { return Ok(()) };
        let (path, segment, of) = (file.path.clone(), file.segment, file.entry.ino);
        let (part, at) = pouring.part();
        let (part, place) = (part.clone(), (segment, at));
        if let Some(again) = pouring.wait(&path)? {
            self.fetcher(of)?.once_more(&again, &path).map_err(|error| about(&path, error))?;
        }
        self.written.add_part(&part, place);
        self.more(part.len());
        self.underway.came(ino);
        self.end_file(ino)
    }

    /// All that was begun comes to its end.
    fn end_files(&mut self) -> Result<()> {
        while self.underway.load().0 > 0 {
            self.next_part()?;
        }
        Ok(())
    }

    /// A file gets its name, if all of it is there.
    fn end_file(&mut self, ino: Ino) -> Result<()> {
        let Some(Coming { path, entry, name, segment, file, .. }) = self.underway.take_whole(ino) else {
            return Ok(());
        };
        let Some(content) = &entry.file else { return Ok(()) };
        let shown = &path;
        let host = |what| move |source| Error::Host { path: shown.clone(), what, source };
        let size = bytes_of(content);
        file.set_len(size).map_err(host("make as long as it was"))?;
        let (sec, nsec) = entry.mtime;
        let time = TimeSpec::new(sec, nsec.into());
        futimens(&*file, &time, &time).map_err(io::Error::from).map_err(host("set the times of"))?;
        let allocated = file.metadata().map_err(host("stat"))?.blocks() * 512;
        let data = Record::Data { ino, segment, offset: 0, len: size, allocated, origin: Origin::default() };
        let mut tx = object(entry, ino, Some((segment, content.segment)));
        tx.push(data);
        tx.push(name);
        self.store(tx)?;
        self.count(&path, content);
        let runs = self.runs(content, size);
        self.lots.add(Waiting { ino, segment, allocated, runs }, size)
    }

    /// What fetches the bytes of an object.
    fn fetcher(&mut self, ino: u64) -> Result<&mut Fetcher<'a>> {
        let (all, of, written) = (&self.source.repositories, self.repository_of(ino)?, self.written.clone());
        let other = self.fetcher.take().filter(|(current, _)| *current == of);
        let (_, fetcher) = self.fetcher.insert(other.unwrap_or_else(|| (of, Fetcher::of_many(all[of].1, written))));
        Ok(fetcher)
    }

    fn store(&self, tx: Transaction) -> Result<()> {
        let stored = self.pool.edit().store(tx.clone());
        match stored {
            Err(tensorfs_layout::Error::NoSpace { .. }) => {
                self.pool.reclaim()?;
                self.pool.edit().store(tx)?;
            }
            stored => drop(stored?),
        }
        Ok(())
    }
}

fn about(path: &str, error: Error) -> Error {
    match error {
        Error::Damaged { object, what } => Error::Damaged { object, what: format!("{what}; {path} needs it") },
        error => error,
    }
}

/// The records of an object, whose segment is another one than it was.
fn object(entry: &Entry, ino: Ino, segment: Option<(SegmentId, u64)>) -> Transaction {
    let attributes = Attributes { segment: segment.map(|(segment, _)| segment), ..entry.attributes() };
    let mut tx = Transaction::new(0).with(Record::Attributes { ino, attributes });
    if let Some(target) = entry.target.as_deref().and_then(name_of) {
        tx.push(Record::Target { ino, target: target.into() });
    }
    for (name, mut value) in entry.xattrs() {
        if name.starts_with(LEFT) {
            // So do these.
            continue;
        }
        if name == INTERRUPTED {
            // It says something of a segment that has another number here.
            match segment.filter(|(_, was)| value == was.to_le_bytes()) {
                Some((now, _)) => value = now.0.to_le_bytes().to_vec(),
                None => continue,
            }
        }
        tx.push(Record::Xattr { ino, name: name.into(), value: value.into() });
    }
    tx
}

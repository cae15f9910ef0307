//! One pass: from what the pool has committed to a batch of the remote.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tensorfs_layout::Ino;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{self, Carrying, Holder, holder};
use tensorfs_layout::tree::{FileChain, Object};

use crate::carry::changes::changes;
use crate::carry::content::{Cutter, Placed, Trouble, cuts, different};
use crate::carry::note::{Intended, Note};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::repository::{Content, FORMAT, Head, Line, Newest, Part, Repository, Sealed, State};

/// Bytes of a pool in use that differ from their seal for so long are damaged. Before that, the log may be about to say
/// that they were going to be changed.
const DOUBT: Duration = Duration::from_secs(10);

/// What brings a pool to its remote. There is one for each pool.
#[derive(Debug)]
pub struct Carrier {
    pool: PathBuf,
    carrying: Carrying,
    note: Note,
    repository: Repository,
    newest: Newest,
    placed: Placed,
    /// Files that were read while a batch is held back, so that they need not be read again.
    ready: HashMap<u64, Content>,
    /// Files whose bytes were not what was sealed: which bytes, and since when.
    doubts: HashMap<u64, (u64, u64, Instant)>,
    /// Since when a batch is held back for files that are about to come to rest.
    held: Option<Instant>,
    patience: Duration,
}

/// What came of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The remote has what the pool has.
    Nothing,
    /// A batch was put.
    Carried,
    /// So many files are about to come to rest, and the batch waits for them.
    Waiting(u64),
}

/// What a pass did.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// What came of it.
    pub outcome: Outcome,
    /// The transaction that it looked at.
    pub transaction: u64,
    /// Bytes of files that were read.
    pub read: u64,
    /// Bytes that were put.
    pub put: u64,
    /// Files of the remote's tree whose parts are not all of them.
    pub incomplete: u64,
}

impl Carrier {
    /// The carrier of a pool; an error says why there can be none. A batch is held back for at most `patience` while
    /// files come to rest.
    pub fn new(pool: &Path, patience: Duration) -> Result<Self> {
        let busy = || Error::Refused(format!("{}: another carrier is at work already", pool.display()));
        Self::take(pool, patience)?.ok_or_else(busy)
    }

    /// As [`Carrier::new`]; `None` if there is one already.
    pub fn take(pool: &Path, patience: Duration) -> Result<Option<Self>> {
        let uuid = Committed::read(pool)?.superblock().uuid_text();
        let Some(carrying) = Carrying::take(pool)? else { return Ok(None) };
        let note = Note::kept(&carrying, &uuid)?;
        let note = note.ok_or_else(|| {
            Error::Refused(format!("{}: it has no remote; `tensorfs remote set` gives it one", pool.display()))
        })?;
        let place = Place::open(&note.settings.url, &note.settings.access)?;
        Self::with(pool, carrying, note, place, patience).map(Some)
    }

    /// As [`Carrier::new`], with everything at hand.
    pub fn with(pool: &Path, carrying: Carrying, note: Note, place: Place, patience: Duration) -> Result<Self> {
        let repository = Repository::new(place);
        let newest = repository.newest()?;
        let pool = pool.to_owned();
        let mut carrier = Self {
            pool,
            carrying,
            note,
            repository,
            placed: Placed::new(newest.tree.index()),
            newest,
            ready: HashMap::new(),
            doubts: HashMap::new(),
            held: None,
            patience,
        };
        carrier.claim()?;
        Ok(carrier)
    }

    /// What is kept of how far it has come.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// The remote.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The remote's tree.
    pub fn newest(&self) -> &Newest {
        &self.newest
    }

    /// That the newest batch is one that this pool has put.
    fn claim(&mut self) -> Result<()> {
        let (number, hash) = (self.newest.number(), self.newest.hash);
        let ours = (number, hash) == (self.note.number, self.note.hash);
        let intended = self.note.intended.take();
        let arrived = intended.is_some_and(|batch| batch.number == number && Some(batch.hash) == hash);
        if ours || arrived {
            (self.note.number, self.note.hash) = (number, hash);
            if let Some(head) = self.newest.head.as_ref().filter(|_| arrived) {
                (self.note.transaction, self.note.carried) = (head.transaction, Some(head.time));
            }
            return Ok(());
        }
        if number < self.note.number {
            let what = format!("its newest batch is {number}, and this pool has put {}", self.note.number);
            return Err(Error::damaged(self.repository.place().shown(), what));
        }
        let by = self.newest.head.as_ref().map_or_else(|| "nobody".to_owned(), |head| format!("pool {}", head.pool));
        Err(Error::Fenced { remote: self.repository.place().shown().into(), number, by })
    }

    /// One pass. What fails is noted.
    pub fn pass(&mut self) -> Result<Passed> {
        let done = self.pass_now();
        let error = done.as_ref().err().map(ToString::to_string);
        if error != self.note.error {
            self.note.error = error;
            self.note.keep(&self.carrying)?;
        }
        done
    }

    fn pass_now(&mut self) -> Result<Passed> {
        if self.note.intended.is_some() {
            // It failed to be put, as far as anybody heard.
            self.newest = self.repository.newest()?;
            self.claim()?;
        }
        if self.held.is_some() || self.note.incomplete > 0 {
            have_committed(&self.pool);
        }
        let committed = Committed::read(&self.pool)?;
        if committed.superblock().uuid_text() != self.note.pool {
            let what = "another pool is there by now than the one that this is the carrier of";
            return Err(Error::Refused(format!("{}: {what}", self.pool.display())));
        }
        let transaction = committed.transaction().0;
        let ours = self.newest.head.as_ref().filter(|head| head.pool == self.note.pool);
        if let Some(head) = ours.filter(|head| head.transaction > transaction) {
            return Err(Error::Refused(format!(
                "{}: it is at transaction {transaction}, and its remote is at {}: the pool is older than its copy, \
                 which stays as it is",
                self.pool.display(),
                head.transaction
            )));
        }
        let before = (self.placed.read, self.placed.put);
        let (lines, pending) = self.look(&committed)?;
        let incomplete = incomplete(&self.newest, &lines);
        let passed = |this: &Self, outcome| {
            let (read, put) = (this.placed.read - before.0, this.placed.put - before.1);
            Passed { outcome, transaction, read, put, incomplete }
        };
        if pending > 0 && self.held.get_or_insert_with(Instant::now).elapsed() < self.patience {
            return Ok(passed(self, Outcome::Waiting(pending)));
        }
        self.held = None;
        if lines.is_empty() {
            self.arrived(transaction, incomplete)?;
            return Ok(passed(self, Outcome::Nothing));
        }
        committed.check_unchanged().inspect_err(|_| self.ready.clear())?;
        self.put(&committed, lines, incomplete)?;
        Ok(passed(self, Outcome::Carried))
    }

    /// What has changed, with the bytes of files put; and how many files are about to come to rest.
    fn look(&mut self, committed: &Committed) -> Result<(Vec<Line>, u64)> {
        let looked = self.look_and_put(committed);
        if looked.is_err() {
            // What was on its way may not be there.
            self.placed.forget(self.newest.tree.index());
            self.ready.clear();
        }
        looked
    }

    fn look_and_put(&mut self, committed: &Committed) -> Result<(Vec<Line>, u64)> {
        let Self { repository, newest, placed, ready, doubts, .. } = self;
        let mut cutter = Cutter::new(repository.place().puts(), placed);
        let mut pending = 0;
        let mut of_file = |ino: Ino, before: Option<&Content>| {
            let Some(object) = committed.view().object(ino) else { return Err(Error::Refused("it is gone".into())) };
            let content = content(committed, &mut cutter, doubts, ino, object, ready.get(&ino.0).or(before))?;
            if content.state == State::Whole && before != Some(&content) {
                ready.insert(ino.0, content.clone());
            }
            // What was open before is not about to come to rest.
            let was_open = before.is_some_and(|before| before.state != State::Whole);
            pending += u64::from(content.state == State::Open && !was_open);
            Ok(content)
        };
        let lines = changes(committed.view(), &newest.tree, &mut of_file)?;
        cutter.finish()?;
        let lines = lines.into_iter().map(|line| match line {
            Line::Object(mut entry) => {
                if let Some(file) = &mut entry.file {
                    file.parts = std::mem::take(&mut file.parts).into_iter().map(|part| placed.resolve(part)).collect();
                }
                Line::Object(entry)
            }
            line => line,
        });
        Ok((lines.collect(), pending))
    }

    fn put(&mut self, committed: &Committed, lines: Vec<Line>, incomplete: u64) -> Result<()> {
        let superblock = committed.superblock();
        let number = self.newest.number() + 1;
        let head = Head {
            tensorfs_remote: FORMAT,
            number,
            base: false,
            pool: superblock.uuid_text(),
            layout: superblock.layout.clone(),
            transaction: committed.transaction().0,
            time: now(),
            before: self.newest.hash,
        };
        let (bytes, len) = self.repository.compose(head.clone(), lines.iter().cloned())?;
        let hash = crate::repository::Hash::of(&bytes);
        self.note.intended = Some(Intended { number, hash });
        self.note.keep(&self.carrying)?;
        self.repository.put_batch(number, &bytes)?;
        for line in lines {
            self.newest.tree.apply(line).map_err(|what| Error::damaged(self.repository.place().shown(), what))?;
        }
        self.ready.clear();
        (self.newest.head, self.newest.hash) = (Some(head), Some(hash));
        self.newest.came.since += len;
        (self.note.number, self.note.hash, self.note.intended) = (number, Some(hash), None);
        self.arrived(committed.transaction().0, incomplete)?;
        if self.newest.wants_base() {
            self.repository.put_base(&mut self.newest)?;
        }
        Ok(())
    }

    /// The remote has the tree as it was after this transaction.
    fn arrived(&mut self, transaction: u64, incomplete: u64) -> Result<()> {
        self.note.transaction = transaction;
        self.note.carried = Some(now());
        self.note.incomplete = incomplete;
        self.note.error = None;
        self.note.keep(&self.carrying)
    }
}

fn incomplete(newest: &Newest, lines: &[Line]) -> u64 {
    let is_incomplete = |file: &Option<Content>| file.as_ref().is_some_and(|file| file.state != State::Whole);
    let changed: HashMap<u64, bool> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Object(entry) => Some((entry.ino, is_incomplete(&entry.file))),
            Line::Gone(ino) => Some((*ino, false)),
            _ => None,
        })
        .collect();
    let others = newest.tree.entries().filter(|entry| !changed.contains_key(&entry.ino));
    let others = others.filter(|entry| is_incomplete(&entry.file)).count();
    (others + changed.values().filter(|incomplete| **incomplete).count()) as u64
}

/// What the remote is to say of a file's bytes.
fn content(
    committed: &Committed,
    cutter: &mut Cutter<'_>,
    doubts: &mut HashMap<u64, (u64, u64, Instant)>,
    ino: Ino,
    object: &Object,
    before: Option<&Content>,
) -> Result<Content> {
    let Some(chain) = object.chain() else { return Err(Error::Refused("it is no file".into())) };
    let segment = object.attributes.segment.unwrap_or_default();
    let (size, version) = (chain.size(), chain.version());
    let settled = committed.is_settled(object);
    let seals = Sealed::of(chain);
    // Without seals nothing says that bytes which were written in place are those of before.
    if let Some(before) = before.filter(|before| (before.segment, before.version) == (segment.0, version))
        && (before.size, &before.seals) == (size, &seals)
        && (size == 0 || !seals.is_empty() || !settled)
        && (before.state == State::Whole) == settled
    {
        return Ok(before.clone());
    }
    // One that is damaged is read once by each carrier, in case it was mended.
    if let Some(before) = before.filter(|before| before.state == State::Damaged && doubts.contains_key(&ino.0))
        && (before.segment, before.version) == (segment.0, version)
    {
        return Ok(before.clone());
    }
    // Of a file that something may write, what is sealed.
    let sealed = chain.runs().iter().take_while(|run| run.seal().is_some()).count();
    let runs = if settled { chain.runs() } else { &chain.runs()[..sealed] };
    let runs = if object.attributes.damaged { &[][..] } else { runs };
    let read = match runs {
        [] => Ok(Vec::new()),
        runs => committed
            .open(segment)
            .map_err(|error| different(&error))
            .and_then(|file| cutter.parts(&file, runs, &cuts(chain))),
    };
    let open = if object.attributes.damaged { State::Damaged } else { State::Open };
    match read {
        Ok(parts) if settled => {
            doubts.remove(&ino.0);
            Ok(Content { state: State::Whole, size, segment: segment.0, version, parts, seals })
        }
        Ok(parts) => Ok(kept(chain, open, (segment.0, version), parts, before)),
        Err(Trouble::Remote(error)) => Err(error),
        Err(Trouble::Different(what)) => {
            let since = doubts.entry(ino.0).or_insert((segment.0, version, Instant::now()));
            if (since.0, since.1) != (segment.0, version) {
                *since = (segment.0, version, Instant::now());
            }
            let sure = !committed.is_in_use() || since.2.elapsed() >= DOUBT;
            if sure {
                let path = committed.view().path_of(ino).unwrap_or_default();
                log::error!("{}: damaged, and not carried: {what}", String::from_utf8_lossy(&path));
            }
            let state = if sure { State::Damaged } else { State::Open };
            Ok(kept(chain, state, (segment.0, version), Vec::new(), before))
        }
    }
}

/// What is told of a file that is not at rest: the parts that could be read, or else those that it had when it was.
fn kept(
    chain: &FileChain,
    state: State,
    (segment, version): (u64, u64),
    parts: Vec<Part>,
    before: Option<&Content>,
) -> Content {
    let parts = match before {
        Some(before) if parts.is_empty() => before.parts.clone(),
        _ => parts,
    };
    Content { state, size: chain.size(), segment, version, parts, seals: Vec::new() }
}

/// Has a mounted pool commit what it has stored: seals are not made durable for their own sake. Who may not open the
/// mount waits for the next commit. Nothing is asked by fsync(2): what that says of files that could not be synced is
/// for the program that comes with it next, and said once.
fn have_committed(dir: &Path) {
    if let Ok(Some(Holder { mountpoint: Some(mountpoint), .. })) = holder(dir)
        && let Ok(root) = File::open(mountpoint)
    {
        let committed = pool::have_committed(&root);
        committed.unwrap_or_else(|error| log::debug!("{}: it commits by itself: {error}", dir.display()));
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

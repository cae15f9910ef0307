//! One pass: from what the pool has committed to a batch of the remote.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tensorfs_layout::check::Committed;
use tensorfs_layout::globs::Globs;
use tensorfs_layout::pool::{self, Carrying, Holder, holder};
use tensorfs_layout::tree::{FileChain, Object, View};
use tensorfs_layout::{Ino, SegmentId};

use crate::carry::behind::Behind;
use crate::carry::changes::changes;
use crate::carry::content::{Cutter, Placed};
use crate::carry::file::Reader;
use crate::carry::left;
use crate::carry::left_out::{self, Amount, LeftOut};
use crate::carry::note::{Arrived, Collection, Healing, Intended, Note};
use crate::carry::tails::Tails;
use crate::carry::way::Way;
use crate::error::{Error, Result};
use crate::gc::{self, Keep, Removed};
use crate::locked_in::{check, lock_in};
use crate::place::Place;
use crate::repository::{Content, FORMAT, Head, Line, Newest, OBJECTS, Repository, State, Tree};

/// So often it is noted how far a pass has come that takes long.
const NOTED: Duration = Duration::from_secs(10);
/// So many files are named of which the remote may not have all.
const UNSETTLED: usize = 1024;
const HOUR: Duration = Duration::from_secs(60 * 60);
/// So often a pass is begun anew as files have left meanwhile.
const AGAIN: u32 = 8;
/// In seconds.
const DAY: i64 = 24 * 60 * 60;

/// What brings a pool to its remote. There is one for each pool.
#[derive(Debug)]
pub struct Carrier {
    pool: PathBuf,
    carrying: Carrying,
    note: Note,
    repository: Repository,
    newest: Newest,
    /// What was last found there was not what this pool has put.
    is_doubted: bool,
    placed: Placed,
    /// What had been read and put before this pass, and those before it that waited.
    before: (u64, u64),
    /// Files that were read while a batch is held back, so that they need not be read again.
    ready: HashMap<u64, Content>,
    reader: Reader,
    patience: Patience,
    /// When removing what the retention does not need failed.
    uncollected: Option<Instant>,
    way: Option<Way>,
    exclude: Globs,
}

/// With files that are about to come to rest.
#[derive(Debug)]
struct Patience {
    /// Since when a batch is held back for them.
    held: Option<Instant>,
    /// For so long it may be.
    most: Duration,
}

impl Patience {
    /// True if a batch may be held back now.
    fn waits(&self) -> bool {
        !self.most.is_zero() && self.held.is_none_or(|held| held.elapsed() < self.most)
    }
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
    /// Bytes of files that were read, also by the passes before it that waited.
    pub read: u64,
    /// Bytes that were put, as well.
    pub put: u64,
    /// Files of the remote's tree whose parts are not all of them.
    pub incomplete: u64,
    /// What is left out.
    pub left_out: Amount,
}

/// What has changed, and what is known besides.
struct Looked {
    lines: Vec<Line>,
    /// Files that are about to come to rest.
    pending: u64,
    left_out: Amount,
    /// Nothing is left out, not even what is no file.
    is_all: bool,
}

impl Carrier {
    /// The carrier of a pool; an error says why there can be none. A batch is held back for at most `patience` while
    /// files come to rest.
    pub fn new(pool: &Path, patience: Duration) -> Result<Self> {
        Self::taken(pool, patience, None)?.ok_or_else(|| busy(pool))
    }

    /// As [`Carrier::new`], by a process that is locked in before it speaks with the store, and has no thread but the
    /// caller and that of `way`, who makes way.
    pub fn locked_in(pool: &Path, patience: Duration, way: &Way) -> Result<Self> {
        let mut carrier = Self::taken(pool, patience, Some(way))?.ok_or_else(|| busy(pool))?;
        carrier.way = Some(way.clone());
        Ok(carrier)
    }

    /// As [`Carrier::new`]; `None` if there is one already.
    pub fn take(pool: &Path, patience: Duration) -> Result<Option<Self>> {
        Self::taken(pool, patience, None)
    }

    fn taken(pool: &Path, patience: Duration, locked_in_with: Option<&Way>) -> Result<Option<Self>> {
        let committed = Committed::read(pool)?;
        let uuid = committed.superblock().uuid_text();
        let Some(carrying) = Carrying::take(pool)? else { return Ok(None) };
        let note = Note::kept(&carrying, &uuid)?;
        let mut note = note.ok_or_else(|| {
            Error::Refused(format!("{}: it has no remote; `tensorfs remote set` gives it one", pool.display()))
        })?;
        if let Some(way) = locked_in_with {
            let needs = note.settings.needs(pool, committed.view());
            let locked = lock_in(&needs).map(|()| way.lock_in(needs));
            noted(&mut note, &carrying, locked)?;
        }
        drop(committed);
        let place = note.settings.open();
        let place = noted(&mut note, &carrying, place)?;
        Self::with(pool, carrying, note, place, patience).map(Some)
    }

    /// As [`Carrier::new`], with everything at hand. What fails is noted.
    pub fn with(pool: &Path, carrying: Carrying, mut note: Note, place: Place, patience: Duration) -> Result<Self> {
        let repository = Repository::new(place);
        let newest = noted(&mut note, &carrying, repository.newest())?;
        let exclude = left_out::compiled(&note.settings.exclude);
        let exclude = noted(&mut note, &carrying, exclude)?;
        let pool = pool.to_owned();
        let mut carrier = Self {
            pool,
            carrying,
            note,
            repository,
            placed: Placed::new(newest.tree.index()),
            before: (0, 0),
            newest: Newest::default(),
            is_doubted: false,
            ready: HashMap::new(),
            reader: Reader::default(),
            patience: Patience { held: None, most: patience },
            uncollected: None,
            way: None,
            exclude,
        };
        let claimed = carrier.claim(newest).and_then(|()| carrier.find());
        noted(&mut carrier.note, &carrier.carrying, claimed)?;
        Ok(carrier)
    }

    /// Bytes that were damaged are looked at again after so long, and not after ten minutes.
    pub fn look_again_after(&mut self, time: Duration) {
        self.reader.look_again_after(time);
    }

    /// Of files that stay open what is not sealed is carried, too, as this says; if nothing does, it is not.
    pub fn tell_of_tails(&mut self, tails: Tails) {
        self.reader.tell_of_tails(tails);
    }

    /// From now on somebody hears how many bytes of files were read, or nobody.
    pub fn hear(&mut self, hears: Option<Box<dyn Fn(u64) + Send>>) {
        self.placed.hear(hears);
    }

    /// What a carrier before this one has put for a batch that it did not come to.
    fn find(&mut self) -> Result<()> {
        if self.note.unfinished {
            let staying = gc::staying(&self.repository)?;
            // Whoever was killed may have made a name that is not durable yet.
            self.repository.place().make_durable(OBJECTS)?;
            self.placed.find(staying);
        }
        Ok(())
    }

    /// What is kept of how far it has come.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// Notes what came of mending the pool's files.
    pub fn note_healing(&mut self, healing: Healing) -> Result<()> {
        if self.note.healing == healing {
            return Ok(());
        }
        self.note.healing = healing;
        self.note.keep(&self.carrying)
    }

    /// The remote.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The remote's tree.
    pub fn newest(&self) -> &Newest {
        &self.newest
    }

    /// True if it is time to remove what the retention does not need: once a day, and an hour after that failed.
    pub fn wants_collection(&self) -> bool {
        let has_failed = self.uncollected.is_some_and(|failed| failed.elapsed() < HOUR);
        // One that lies ahead is of a clock that was wrong.
        let is_due = |then| !(0..DAY).contains(&now().saturating_sub(then));
        !has_failed && self.note.collection.collected.is_none_or(is_due)
    }

    /// Removes what trees within the retention do not need, between two passes. As long as this is the carrier, nobody
    /// else puts anything; that it still is, is made sure of: a pool that does not change hears of nothing else.
    pub fn collect(&mut self, keep: Keep, dry_run: bool, progress: gc::Progress<'_>) -> Result<Removed> {
        self.collect_for((keep, None), dry_run, progress)
    }

    /// As [`Carrier::collect`]; once it has removed for so long, the rest is for the next time, which is soon.
    pub fn collect_for(
        &mut self,
        (keep, time): (Keep, Option<Duration>),
        dry_run: bool,
        progress: gc::Progress<'_>,
    ) -> Result<Removed> {
        let removed = self.collect_now((keep, time), dry_run, progress);
        if dry_run {
            return removed;
        }
        self.uncollected = removed.as_ref().err().map(|_| Instant::now());
        match &removed {
            Ok(Removed { more: true, .. }) => self.note.collection.collect_error = None,
            Ok(_) => self.note.collection = Collection { collected: Some(now()), collect_error: None },
            Err(error) => {
                self.is_doubted |= error.is_of_remote();
                doubt(&mut self.note, error);
                self.note.collection.collect_error = Some(error.to_string());
            }
        }
        self.note.keep(&self.carrying)?;
        removed
    }

    fn collect_now(
        &mut self,
        (keep, time): (Keep, Option<Duration>),
        dry_run: bool,
        progress: gc::Progress<'_>,
    ) -> Result<Removed> {
        let newest = self.repository.newest()?;
        self.claim(newest)?;
        if !dry_run {
            // What was put and is not named may be gone, also if this fails.
            self.placed.forget(self.newest.tree.index());
            self.ready.clear();
        }
        gc::collect_for(&self.repository, (keep, time), dry_run, progress)
    }

    /// Goes on from a tree, if its batch is one that this pool has put. Another one is not gone on from, nor is
    /// anything else until the remote has this pool's again.
    fn claim(&mut self, newest: Newest) -> Result<()> {
        self.is_doubted = true;
        let is_own = self.is_own(&newest);
        if is_own.is_err() && self.note.coverage.arrived.take().is_some() {
            // What this pool has put is not what is there.
            self.note.keep(&self.carrying)?;
        }
        is_own?;
        self.is_doubted = false;
        self.reader.know(&newest.tree);
        self.newest = newest;
        Ok(())
    }

    /// That the newest batch is one that this pool has put.
    fn is_own(&mut self, newest: &Newest) -> Result<()> {
        let (number, hash) = (newest.number(), newest.hash);
        let ours = (number, hash) == (self.note.number, self.note.hash);
        let arrived =
            self.note.intended.as_ref().is_some_and(|batch| batch.number == number && Some(batch.hash) == hash);
        if ours || arrived {
            self.note.intended = None;
            (self.note.number, self.note.hash) = (number, hash);
            if let Some(head) = newest.head.as_ref().filter(|_| arrived) {
                (self.note.transaction, self.note.carried) = (head.transaction, Some(head.time));
            }
            return Ok(());
        }
        if number < self.note.number {
            let (remote, put) = (self.repository.place().shown().into(), self.note.number);
            return Err(Error::RolledBack { remote, number, put });
        }
        if let Some(batch) = self.note.intended.clone() {
            // It may have got there when others had gone on without it already.
            self.repository.withdraw(batch.number, batch.hash)?;
            self.note.intended = None;
        }
        let by = newest.head.as_ref().map_or_else(|| "nobody".to_owned(), |head| format!("pool {}", head.pool));
        Err(Error::Fenced { remote: self.repository.place().shown().into(), number, by })
    }

    /// One pass. What fails is noted.
    pub fn pass(&mut self) -> Result<Passed> {
        let done = self.pass_now();
        let is_doubted = done.as_ref().err().is_some_and(|error| doubt(&mut self.note, error));
        self.is_doubted |= done.as_ref().err().is_some_and(Error::is_of_remote);
        let error = done.as_ref().err().map(ToString::to_string);
        if error != self.note.error || is_doubted {
            self.note.error = error;
            self.note.keep(&self.carrying)?;
        }
        done
    }

    fn pass_now(&mut self) -> Result<Passed> {
        for _ in 0..AGAIN {
            if let Some(passed) = self.pass_once()? {
                return Ok(passed);
            }
        }
        Err(Error::NotYet(format!("{}: files that are to be dropped leave for the remote", self.pool.display())))
    }

    /// A pass; nothing if a file has left meanwhile which it would have dropped: it is to be looked at again.
    fn pass_once(&mut self) -> Result<Option<Passed>> {
        if self.note.intended.is_some() || self.is_doubted {
            // It failed to be put, as far as anybody heard; or what was there was not this pool's.
            let newest = self.repository.newest()?;
            self.claim(newest)?;
        }
        // Who looks once is asked for what was done before.
        if self.patience.held.is_some() || self.note.coverage.incomplete > 0 || self.reader.looks_once() {
            have_committed(&self.pool);
        }
        let waits = self.patience.waits();
        let left = self.carrying.left()?;
        let committed = Arc::new(Committed::read(&self.pool)?);
        if committed.superblock().uuid_text() != self.note.pool {
            let what = "another pool is there by now than the one that this is the carrier of";
            return Err(Error::Refused(format!("{}: {what}", self.pool.display())));
        }
        check(&self.note.settings.needs(&self.pool, committed.view()))?;
        let transaction = committed.transaction().0;
        let is_ours = self.is_ours();
        if let Some(head) = self.newest.head.as_ref().filter(|head| is_ours && head.transaction > transaction) {
            return Err(Error::Refused(format!(
                "{}: it is at transaction {transaction}, and its remote is at {}: the pool is older than its copy, \
                 which stays as it is",
                self.pool.display(),
                head.transaction
            )));
        }
        self.check_come(&committed)?;
        if self.patience.held.is_none() {
            self.before = (self.placed.read, self.placed.put);
        }
        let Looked { lines, pending, left_out, is_all } = self.look(&committed, waits)?;
        let incomplete = incomplete(&self.newest, &lines);
        self.note.coverage.left_out = (left_out.files, left_out.bytes);
        let passed = |this: &Self, outcome| {
            let (read, put) = (this.placed.read - this.before.0, this.placed.put - this.before.1);
            Passed { outcome, transaction, read, put, incomplete, left_out }
        };
        if pending > 0 && waits {
            self.patience.held.get_or_insert_with(Instant::now);
            return Ok(Some(passed(self, Outcome::Waiting(pending))));
        }
        self.patience.held = None;
        // Whoever has taken a remote over says so, though he may have nothing else to say.
        if lines.is_empty() && is_ours {
            self.arrived(&committed, (incomplete, is_all))?;
            return Ok(Some(passed(self, Outcome::Nothing)));
        }
        committed.check_unchanged().inspect_err(|_| self.ready.clear())?;
        match self.put(&committed, lines, (incomplete, is_all), left)? {
            true => Ok(Some(passed(self, Outcome::Carried))),
            false => Ok(None),
        }
    }

    /// Of a pool that was made from a remote and has put nothing yet, the bytes may be there alone: who goes on from
    /// the first batch that it puts, has to find them in that.
    fn check_come(&self, committed: &Committed) -> Result<()> {
        let is_first = self.newest.head.as_ref().is_none_or(|head| head.pool != self.note.pool);
        let Some((number, tier)) = committed.view().remote().filter(|(_, tier)| is_first && !tier.is_own_remote())
        else {
            return Ok(());
        };
        let files = committed.view().tier_totals(number).files;
        if files == 0 {
            return Ok(());
        }
        let (pool, place) = (self.pool.display(), tier.path().display());
        let what = "the first batch is put when they have come, so that what is carried is whole";
        Err(Error::Coming(format!("{pool}: {files} of its files are in {place} yet and not here; {what}")))
    }

    /// True if a file has left for this remote since the pool was looked at, by how many had left then, of which a
    /// batch with these lines has not what the newest one has: nothing else has its bytes.
    fn drops_what_has_left(&self, lines: &[Line], left: u64) -> Result<bool> {
        if self.carrying.left()? == left {
            return Ok(false);
        }
        let before = |ino: u64| self.newest.tree.entry(ino).and_then(|entry| entry.file.as_ref());
        let dropped: Vec<Ino> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Gone(ino) => Some(*ino),
                Line::Object(entry) if entry.file.as_ref() != before(entry.ino) => Some(entry.ino),
                _ => None,
            })
            .filter(|ino| before(*ino).is_some())
            .map(Ino)
            .collect();
        if dropped.is_empty() {
            return Ok(false);
        }
        let committed = Committed::read(&self.pool)?;
        let view = committed.view();
        let Some((own, _)) = view.remote().filter(|(_, tier)| tier.is_own_remote()) else { return Ok(false) };
        let segment = |ino: Ino| view.object(ino).and_then(|object| object.attributes.segment);
        // What had left before is looked at as such: it keeps its bytes, and the number that they have here.
        let is_new = |ino: Ino, segment: SegmentId| {
            segment.tier() == own
                && !lines.iter().any(|line| {
                    matches!(line, Line::Object(entry)
                if entry.ino == ino.0 && entry.file.as_ref().is_some_and(|file| file.segment == segment.0))
                })
        };
        let leaves = dropped.into_iter().find(|ino| segment(*ino).is_some_and(|segment| is_new(*ino, segment)));
        if let Some(ino) = leaves {
            log::info!("inode {ino} has left for the remote meanwhile; looking again");
        }
        Ok(leaves.is_some())
    }

    /// What has changed, with the bytes of files put.
    fn look(&mut self, committed: &Arc<Committed>, waits: bool) -> Result<Looked> {
        let looked = self.look_and_put(committed, waits);
        if looked.is_err() {
            // What was on its way may not be there.
            let placed = &self.placed;
            self.ready.retain(|_, content| placed.has(content));
        }
        looked
    }

    /// True if the remote's tree is of this pool: numbers of another one's objects say nothing.
    fn is_ours(&self) -> bool {
        self.newest.head.as_ref().is_none_or(|head| head.pool == self.note.pool)
    }

    fn look_and_put(&mut self, committed: &Arc<Committed>, waits: bool) -> Result<Looked> {
        let is_ours = self.is_ours();
        let out = LeftOut::of(committed.view(), &self.exclude);
        let Self { repository, newest, placed, ready, reader, note, carrying, way, .. } = self;
        let (begun, put) = (Instant::now(), placed.put);
        let coming = RefCell::new(Coming { note: &mut *note, carrying, left: Behind::default(), kept: begun });
        coming.borrow_mut().is(Behind::of((committed.view(), &out), is_ours.then_some(&newest.tree)))?;
        let mut of_much = || coming.borrow_mut().has_much();
        reader.begin(waits);
        let making = OnceCell::new();
        let way = way.as_ref();
        let step = || {
            let Some(way) = way else { return };
            // While nothing is read nobody is watched, which costs who writes a little.
            making.get_or_init(|| {
                let halts = repository.place().halts();
                way.make(committed.clone(), move |way| {
                    let way = way.clone();
                    halts.halt(&move || way.wait());
                })
            });
            way.wait();
        };
        let mut cutter = Cutter::new(repository.place().puts(), placed, (&mut of_much, &step));
        let (mut pending, mut older) = (0, None);
        let mut of_file = |ino: Ino, before: Option<&Content>| {
            let before = before.filter(|_| is_ours);
            let known = ready.get(&ino.0).or(before);
            if left::is_without(committed, ino, known) && is_ours && older.is_none() {
                older = Some(left::in_older(repository, committed, &newest.tree)?);
            }
            let known = older.as_ref().and_then(|older| older.get(&ino.0)).or(known);
            let content = reader.content((committed, ino), &mut cutter, (&newest.tree, known))?;
            let is_read = content.state == State::Whole || reader.has_read(ino);
            if is_read && before != Some(&content) {
                ready.insert(ino.0, content.clone());
            }
            // What was open before is not about to come to rest.
            let was_open = before.is_some_and(|before| before.state != State::Whole);
            pending += u64::from(content.state == State::Open && !was_open);
            if let Some(object) = committed.view().object(ino) {
                coming.borrow_mut().passes(Behind::of_file((committed.view(), object), before))?;
            }
            Ok(content)
        };
        let lines = changes((committed.view(), &out), &newest.tree, &mut of_file);
        let lines = cutter.finish(lines)?;
        let put = placed.put - put;
        if put > 0 {
            note.pace.put_bytes = note.pace.put_bytes.saturating_add(put);
            note.pace.put_bytes_per_second = Some((put as f64 / begun.elapsed().as_secs_f64().max(1e-3)) as u64);
        }
        let lines = lines.into_iter().map(|line| match line {
            Line::Object(mut entry) => {
                if let Some(file) = &mut entry.file {
                    file.parts = std::mem::take(&mut file.parts).into_iter().map(|part| placed.resolve(part)).collect();
                }
                Line::Object(entry)
            }
            line => line,
        });
        Ok(Looked { lines: lines.collect(), pending, left_out: out.amount(), is_all: out.is_nothing() })
    }

    /// Puts a batch. False if a file has left meanwhile that it has not: then there is none.
    fn put(
        &mut self,
        committed: &Committed,
        lines: Vec<Line>,
        (incomplete, is_all): (u64, bool),
        left: u64,
    ) -> Result<bool> {
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
        let Some(own_time) = self.carrying.own_time()? else {
            return Err(Error::NotYet(format!("{}: files leave for the remote all the while", self.pool.display())));
        };
        if self.drops_what_has_left(&lines, left)? {
            return Ok(false);
        }
        self.note.intended = Some(Intended { number, hash });
        self.note.keep(&self.carrying)?;
        // From here on nothing leaves that was looked at before.
        drop(own_time);
        self.repository.put_batch(number, &bytes)?;
        for line in lines {
            self.reader.apply(&line);
            self.newest.tree.apply(line).map_err(|what| Error::damaged(self.repository.place().shown(), what))?;
        }
        self.ready.clear();
        (self.newest.head, self.newest.hash) = (Some(head), Some(hash));
        self.newest.came.since += len;
        (self.note.number, self.note.hash, self.note.intended) = (number, Some(hash), None);
        self.arrived(committed, (incomplete, is_all))?;
        if self.newest.wants_base() {
            self.repository.put_base(&mut self.newest)?;
        }
        Ok(true)
    }

    /// The remote has the tree as it was after this transaction.
    fn arrived(&mut self, committed: &Committed, (incomplete, is_all): (u64, bool)) -> Result<()> {
        let transaction = committed.transaction().0;
        self.note.transaction = transaction;
        self.note.carried = Some(now());
        self.note.coverage.incomplete = incomplete;
        self.note.coverage.arrived = Some(Arrived {
            log: committed.log_file().to_owned(),
            transaction,
            all: is_all,
            unsettled: unsettled(committed.view(), &self.newest.tree),
        });
        self.note.pace.behind = Behind::of_tree(&self.newest.tree);
        self.note.unfinished = false;
        self.note.error = None;
        self.note.keep(&self.carrying)
    }
}

/// How far a pass has come, as it is noted meanwhile.
struct Coming<'a> {
    note: &'a mut Note,
    carrying: &'a Carrying,
    /// What is still to come: all of it once more, should the pass fail.
    left: Behind,
    /// When it was noted last.
    kept: Instant,
}

impl Coming<'_> {
    /// What is to come.
    fn is(&mut self, behind: Behind) -> Result<()> {
        self.left = behind;
        if std::mem::replace(&mut self.note.pace.behind, behind) == behind { Ok(()) } else { self.keep() }
    }

    /// A file was looked at.
    fn passes(&mut self, file: Behind) -> Result<()> {
        self.left = self.left.without(file);
        if self.kept.elapsed() < NOTED { Ok(()) } else { self.keep() }
    }

    /// Much is there for a batch that is not.
    fn has_much(&mut self) -> Result<()> {
        self.note.unfinished = true;
        self.keep()
    }

    fn keep(&mut self) -> Result<()> {
        self.kept = Instant::now();
        let all = std::mem::replace(&mut self.note.pace.behind, self.left);
        let kept = self.note.keep(self.carrying);
        self.note.pace.behind = all;
        kept
    }
}

fn busy(pool: &Path) -> Error {
    Error::NotYet(format!("{}: another carrier is at work already", pool.display()))
}

/// Of a remote that is not as this pool has put it, nobody knows what it has. True if that was noted.
fn doubt(note: &mut Note, error: &Error) -> bool {
    error.is_of_remote() && note.coverage.arrived.take().is_some()
}

/// Keeps why something failed, if it did.
fn noted<T>(note: &mut Note, carrying: &Carrying, outcome: Result<T>) -> Result<T> {
    if let Err(error) = &outcome {
        let is_doubted = doubt(note, error);
        let error = Some(error.to_string());
        if error != note.error || is_doubted {
            note.error = error;
            note.keep(carrying)?;
        }
    }
    outcome
}

/// The files of a remote's tree, as that is the pool's, of whose bytes it may not have all, or have others: nothing
/// proves that those which are not sealed stay as they are. None if they are too many to be named.
fn unsettled(view: &View, tree: &Tree) -> Option<Vec<u64>> {
    let is_sealed = |ino| view.object(Ino(ino)).and_then(Object::chain).is_some_and(FileChain::is_sealed);
    let is_settled = |(ino, file): &(u64, &Content)| file.state == State::Whole && is_sealed(*ino);
    let files = tree.entries().filter_map(|entry| Some((entry.ino, entry.file.as_ref()?)));
    let found: Vec<u64> = files.filter(|file| !is_settled(file)).map(|(ino, _)| ino).take(UNSETTLED + 1).collect();
    (found.len() <= UNSETTLED).then_some(found)
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

//! A mount that goes on to newer trees of its remote: one thread looks for one, finds out what is new in it and has the
//! server make it so, while others fetch bytes as of any other mount.
//!
//! What is kept here is found again by whoever comes next: which tree is here says the pool, and which content a file
//! has that is away, its path there. Of files that were replaced or removed that is kept for a while: somebody may have
//! one open.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::{Change, FOLLOW_CHUNK, Follow, FollowReply, digest, follow, note_sum};
use tensorfs_layout::tree::{Object, View};
use tensorfs_layout::{Ino, ROOT};

use crate::bring::changes::{Between, Step, changes, has_content, has_seals, new_of};
use crate::bring::mount::{AFTER_FAILURE, Job, Mount, PAUSES, Stop, THREADS, THREADS_WAITED_FOR, Why, locked};
use crate::carry::Settings;
use crate::error::{Error, Result};
use crate::fetch::{Fetcher, Written};
use crate::origin::{Followed, Follows};
use crate::repository::{Content, Hash, Newest, Repository, batch_name, name_of};

/// The contents of files that were replaced or removed are kept for so many trees, and so many of them.
const TREES: usize = 24;
const CONTENTS: usize = 1 << 16;
/// After a failure it is looked again later and later, up to this.
const LATER: Duration = Duration::from_secs(60);
/// Every so many looks the place is opened anew and listed: what follows the tree that is here may have been removed as
/// garbage.
const LISTED: u32 = 6;
/// Where the pool changes under the comparison, it is made again so often.
const TRIES: usize = 3;
/// Of a file that nobody knows, it is looked no more often.
const ANEW: Duration = Duration::from_secs(1);
/// So long is waited until it is known.
const KNOWN: Duration = Duration::from_secs(3);

/// Which content files have that are away, by their places.
type Contents = HashMap<u64, Arc<Content>>;

/// A mount and its remote.
struct Following {
    mount: Mount,
    settings: Settings,
    /// As it was opened last: another place may have its name by now, or other rights.
    repository: Mutex<Option<Arc<Repository>>>,
    /// Why that could not be opened, or read.
    why: Mutex<Option<String>>,
    known: Mutex<Known>,
    /// Held by who reads what is known.
    reading: Mutex<()>,
    written: Written,
}

#[derive(Default)]
struct Known {
    /// The tree that is here, as far as it was read.
    tree: Option<Arc<Newest>>,
    away: Contents,
    /// Those that were, the newest ones first.
    before: VecDeque<Contents>,
    read: Option<Instant>,
}

/// What keeps a tree from coming.
enum Not {
    /// It may come later.
    Now(Error),
    /// There is no mount any more.
    Over,
}

impl<E: Into<Error>> From<E> for Not {
    fn from(error: E) -> Self {
        Self::Now(error.into())
    }
}

fn over(_: Stop) -> Not {
    Not::Over
}

/// Brings files of a mount until it is mounted no more; and newer trees, if it is to be looked for them `every` so
/// often. Nobody waits then for a store that does not answer.
pub(super) fn bring(mount: Mount, noted: Followed, every: Option<Duration>) {
    let (repository, why, known) = (Mutex::default(), Mutex::default(), Mutex::default());
    let (settings, reading, written) = (noted.settings, Mutex::default(), mount.written());
    let following = Arc::new(Following { mount, settings, repository, why, known, reading, written });
    let begin = |work: fn(&Following)| {
        let following = following.clone();
        thread::spawn(move || work(&following))
    };
    begin(|following| following.mount.give_signs());
    let looking = following.clone();
    thread::spawn(move || looking.look_all_the_time(every));
    let workers: Vec<_> = (0..THREADS + THREADS_WAITED_FOR)
        .map(|n| match n >= THREADS {
            true => begin(|following| while following.work(true).is_ok() {}),
            false => begin(|following| while following.work(false).is_ok() {}),
        })
        .collect();
    workers.into_iter().for_each(|worker| drop(worker.join()));
    following.mount.over.store(true, Ordering::SeqCst);
}

/// Tells the server of a mount that who looked for newer trees does so no more, and why.
pub(crate) fn tell_of_end(pool: &Path, at: &Path, why: String) {
    let tell = || {
        let committed = Committed::read(pool)?;
        let (follows, _) = noted(&committed)?;
        let (pool, here) = (committed.superblock().uuid_text(), (follows.number, follows.time));
        let told = Follow::Looked { pool, here, why: Some(shortened(why)) };
        let at = File::open(at).and_then(|at| follow(&at, &told));
        at.map_err(|error| Error::Refused(error.to_string()))
    };
    if let Err(error) = tell() {
        log::debug!("{}: {error}", at.display());
    }
}

impl Following {
    fn is_over(&self) -> bool {
        self.mount.over.load(Ordering::SeqCst)
    }

    /// Fetches files, until the remote was opened anew.
    fn work(&self, waited_for: bool) -> std::result::Result<(), Stop> {
        let repository = loop {
            if let Some(repository) = locked(&self.repository).clone() {
                break repository;
            }
            let why = locked(&self.why).clone();
            if let (true, Some(why)) = (waited_for, why)
                && let Some(job) = self.mount.next(true)?
            {
                self.mount.said(job, Err(Why::for_now(why)))?;
                thread::sleep(AFTER_FAILURE);
            }
            if self.is_over() || !self.mount.is_there_within(Duration::ZERO) {
                return Err(Stop::Unmounted);
            }
            thread::sleep(PAUSES[1]);
        };
        let mut fetcher = Fetcher::beside_others(&repository, self.written.clone());
        while locked(&self.repository).as_ref().is_some_and(|newest| Arc::ptr_eq(newest, &repository)) {
            let Some(job) = self.mount.next(waited_for)? else {
                thread::sleep(PAUSES[usize::from(!waited_for)]);
                continue;
            };
            let content = self.content(&repository, job);
            let fetched = content.and_then(|content| self.mount.fetch_content(&mut fetcher, Some(&content), job));
            let failed = fetched.is_err();
            self.mount.said(job, fetched)?;
            if failed {
                thread::sleep(AFTER_FAILURE);
            }
        }
        Ok(())
    }

    /// The content of a file that is away.
    fn content(&self, repository: &Repository, job: Job) -> std::result::Result<Arc<Content>, Why> {
        let place = job.number;
        let find = || {
            let known = locked(&self.known);
            let mut all = std::iter::once(&known.away).chain(&known.before);
            (all.find_map(|contents| contents.get(&place).cloned()), known.read)
        };
        let asked = Instant::now();
        while asked.elapsed() < KNOWN {
            let (found, read) = find();
            if let Some(content) = found {
                return Ok(content);
            }
            if read.is_none_or(|read| read.elapsed() >= ANEW)
                && let Ok(reading) = self.reading.try_lock()
            {
                let read = self.read(repository, &reading);
                let (_, follows, _) = read.map_err(|error| Why::for_now(error.to_string()))?;
                if let (Some(content), _) = find() {
                    return Ok(content);
                }
                drop(reading);
                let content = self.of_those_before(repository, &follows, job.ino);
                let content = content.map_err(|error| Why::for_now(error.to_string()))?;
                let none = || Why::of_file("no tree of its remote that is kept has such a file", true);
                let content = Arc::new(content.ok_or_else(none)?);
                locked(&self.known).away.insert(place, content.clone());
                return Ok(content);
            }
            // What was gone over to a moment ago is being read.
            thread::sleep(PAUSES[0]);
        }
        Err(Why::for_now("its place in the remote is not known yet"))
    }

    /// The content of a file that was removed before this process began, and that somebody has open: of the trees that
    /// were here before, as its size, time and seals tell. What two different files could be is none.
    fn of_those_before(&self, repository: &Repository, follows: &Follows, ino: Ino) -> Result<Option<Content>> {
        let known = self.mount.asked(|at| follow(at, &Follow::What { ino }));
        let (size, seals, mtime) = match known {
            Ok(FollowReply::Is { size, seals, mtime }) => (size, seals, mtime),
            // It was gone over to, and that is not durable yet.
            Ok(FollowReply::Noted) => return Err(Error::NotYet("its place in the remote is not known yet".into())),
            _ => return Ok(None),
        };
        for number in &follows.before {
            let tree = match repository.tree_at(Some(*number)) {
                Err(Error::Damaged { .. }) => break,
                tree => tree?,
            };
            let is_it = |content: &&Content| {
                content.bytes() == size && digest(content.seals.iter().map(|seal| (seal.0, seal.1))) == seals
            };
            let entries = tree.tree.entries().filter(|entry| entry.attributes().mtime == mtime);
            let mut found = entries.filter_map(|entry| entry.file.as_ref()).filter(is_it);
            if let Some(first) = found.next() {
                return Ok(Some(first.clone()).filter(|_| found.all(|other| other.parts == first.parts)));
            }
        }
        Ok(None)
    }

    /// Reads what the pool has, and what files there are in its remote. Returns which tree it is.
    fn read(&self, repository: &Repository, _: &MutexGuard<'_, ()>) -> Result<(Committed, Follows, Vec<u8>)> {
        let committed = Committed::read(&self.mount.pool)?;
        let (follows, note) = noted(&committed)?;
        let tree = locked(&self.known).tree.clone().filter(|tree| is_of(tree, follows.number, follows.hash));
        let tree = match tree {
            Some(tree) => Some(tree),
            None => tree_of(repository, follows.number, follows.hash)?.map(Arc::new),
        };
        let mut trees: Vec<Arc<Newest>> = tree.iter().cloned().collect();
        if let Some((number, hash)) = follows.partly {
            trees.extend(tree_of(repository, number, hash)?.map(Arc::new));
        }
        if trees.is_empty() {
            // What is there yet of the tree that is here, a newer one may have, too.
            trees.push(Arc::new(proved(repository.newest()?)));
        }
        let away = away(committed.view(), &trees);
        let mut known = locked(&self.known);
        known.tree = tree;
        let mut before = std::mem::replace(&mut known.away, away);
        before.retain(|place, _| !known.away.contains_key(place));
        if !before.is_empty() {
            known.before.push_front(before);
        }
        known.before.truncate(TREES);
        while known.before.iter().map(HashMap::len).sum::<usize>() > CONTENTS && known.before.len() > 1 {
            known.before.pop_back();
        }
        known.read = Some(Instant::now());
        drop(known);
        Ok((committed, follows, note))
    }

    /// Looks for newer trees until the mount is gone.
    fn look_all_the_time(&self, every: Option<Duration>) {
        let committed = Committed::read(&self.mount.pool).map_err(Error::from);
        let follows = committed.and_then(|committed| noted(&committed)).map(|(follows, _)| follows);
        let mut here = follows.map_or((0, 0), |follows| (follows.number, follows.time));
        let (mut failures, mut looks) = (0_u32, 0);
        while !self.is_over() {
            let looked = self.look(every.is_some(), looks % LISTED == 0 || failures > 0, &mut here);
            looks += 1;
            let why = match looked {
                Ok(()) => None,
                Err(Not::Over) => return,
                Err(Not::Now(error)) => Some(error.to_string()),
            };
            failures = if why.is_some() { failures + 1 } else { 0 };
            locked(&self.why).clone_from(&why);
            let Some(every) = every else {
                if why.is_none() {
                    return;
                }
                self.pause(AFTER_FAILURE * 5);
                continue;
            };
            let told = Follow::Looked { pool: self.mount.uuid.clone(), here, why: why.map(shortened) };
            if self.mount.asked(|at| follow(at, &told)).is_err() {
                return;
            }
            self.pause(every.max(every.saturating_mul(1 << failures.min(6)).min(LATER)));
        }
    }

    fn pause(&self, pause: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < pause && !self.is_over() {
            thread::sleep((pause - begun.elapsed().min(pause)).min(PAUSES[1]));
        }
    }

    /// Looks once, and goes over to a newer tree if there is one.
    fn look(&self, goes_on: bool, list: bool, here: &mut (u64, i64)) -> std::result::Result<(), Not> {
        let opened = locked(&self.repository).clone().filter(|_| !list);
        let repository = match opened {
            Some(opened) => opened,
            None => {
                let opened = Arc::new(Repository::new(self.settings.open()?));
                locked(&self.repository).insert(opened).clone()
            }
        };
        let repository = &*repository;
        let known = {
            let known = locked(&self.known);
            known.tree.clone().filter(|_| known.read.is_some())
        };
        let (follows, tree) = match known {
            // Nobody else changes which tree is here.
            Some(tree) => (None, tree),
            None => {
                let (_, follows, _) = self.read(repository, &locked(&self.reading))?;
                *here = (follows.number, follows.time);
                (Some(follows), locked(&self.known).tree.clone().unwrap_or_default())
            }
        };
        let follows = follows.filter(|follows| follows.partly.is_some() || tree.head.is_none());
        if !goes_on {
            return Ok(());
        }
        let newest = match follows {
            Some(Follows { partly: Some((number, hash)), .. }) => match tree_of(repository, number, hash)? {
                Some(target) => Some(target),
                None => Some(repository.newest()?),
            },
            Some(_) => Some(repository.newest()?),
            None if repository.place().get(&batch_name(tree.number() + 1))?.is_some() => {
                Some(repository.since((*tree).clone())?)
            }
            None if list && is_behind(repository, &tree)? => Some(repository.newest()?),
            None => None,
        };
        match newest {
            Some(newest) => self.go_over(repository, proved(newest), here),
            None => Ok(()),
        }
    }

    /// Has the server go over to a tree.
    fn go_over(&self, repository: &Repository, newest: Newest, here: &mut (u64, i64)) -> std::result::Result<(), Not> {
        for _ in 0..TRIES {
            let (committed, follows, note) = self.read(repository, &locked(&self.reading))?;
            *here = (follows.number, follows.time);
            if is_of(&newest, follows.number, follows.hash) && follows.partly.is_none() {
                return Ok(());
            }
            let at_least = follows.partly.map_or(follows.number, |(number, _)| number.max(follows.number));
            if newest.number() < at_least || newest.number() == follows.number {
                let what = format!("its newest batch is {}, and that of the tree here {at_least}", newest.number());
                return Err(Error::damaged(repository.place().shown(), what).into());
            }
            let before = locked(&self.known).tree.clone().filter(|tree| {
                let is_its = tree.head.as_ref().map(|head| &head.pool) == newest.head.as_ref().map(|head| &head.pool);
                is_its && follows.partly.is_none() && is_of(tree, follows.number, follows.hash)
            });
            let between = Between {
                here: committed.view(),
                before: before.as_ref().map(|tree| &tree.tree),
                now: &newest.tree,
                shown: repository.place().shown(),
            };
            match self.switch(repository, (&newest, &follows), (between, note_sum(&note)))? {
                true => {
                    *here = (newest.number(), newest.head.as_ref().map_or(0, |head| head.time));
                    locked(&self.known).tree = Some(Arc::new(newest));
                    self.read(repository, &locked(&self.reading))?;
                    return Ok(());
                }
                false => continue,
            }
        }
        Err(Error::NotYet("the mount changes while its tree is compared".into()).into())
    }

    /// False if the server knows nothing of it any more.
    fn switch(
        &self,
        repository: &Repository,
        (newest, follows): (&Newest, &Follows),
        (between, note): (Between<'_>, u32),
    ) -> std::result::Result<bool, Not> {
        let mut all = changes(between, true)?;
        let begun = self.ask(&Follow::Begin { pool: self.mount.uuid.clone(), note })?;
        let Some(FollowReply::Begun { switch, room }) = begun else { return Ok(false) };
        let room = room as usize;
        if all.len() > room {
            all = changes(between, false)?;
        }
        let (mut stream, mut at) = (Vec::new(), 0);
        let mut fetcher = Fetcher::new(repository);
        for step in all.made {
            match step {
                Step::Make(entry) => Change::Make(Box::new(new_of(entry, &mut fetcher)?)).write(&mut stream),
                Step::Change(change) => change.write(&mut stream),
            }
            if stream.len() >= FOLLOW_CHUNK && !self.send(switch, &mut stream, &mut at)? {
                return Ok(false);
            }
        }
        let mut lots = lots(all.lots, room).into_iter().peekable();
        while let Some(lot) = lots.next() {
            for change in lot {
                change.write(&mut stream);
            }
            if !self.send(switch, &mut stream, &mut at)? {
                return Ok(false);
            }
            let last = lots.peek().is_none();
            let now = match last {
                true => Follows::of(newest, Some(follows)),
                false => Follows { partly: Some((newest.number(), newest.hash)), ..follows.clone() },
            };
            let noted = Followed { follows: now, settings: self.settings.clone() };
            let note = serde_json::to_vec(&noted).map_err(|error| Error::Refused(error.to_string()))?;
            if self.ask(&Follow::Go { switch, note, last })? != Some(FollowReply::Noted) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends what there is of a stream. False if the server knows nothing of it.
    fn send(&self, switch: u64, stream: &mut Vec<u8>, at: &mut u64) -> std::result::Result<bool, Not> {
        for bytes in stream.chunks(FOLLOW_CHUNK) {
            let bytes = bytes.to_vec();
            let len = bytes.len() as u64;
            if self.ask(&Follow::Changes { switch, at: *at, bytes })? != Some(FollowReply::Noted) {
                return Ok(false);
            }
            *at += len;
        }
        stream.clear();
        Ok(true)
    }

    /// Asks the server. None if another one serves, or another switch has begun.
    fn ask(&self, request: &Follow) -> std::result::Result<Option<FollowReply>, Not> {
        match self.mount.asked(|at| follow(at, request)).map_err(over)? {
            FollowReply::Unknown => Ok(None),
            FollowReply::Refused(why) => Err(Error::Refused(why).into()),
            reply => Ok(Some(reply)),
        }
    }
}

/// Which tree a pool has, and how that is noted.
fn noted(committed: &Committed) -> Result<(Follows, Vec<u8>)> {
    let tier = committed.view().remote().filter(|(_, tier)| tier.is_followed());
    let note = tier.and_then(|(_, tier)| tier.note()).unwrap_or_default();
    match serde_json::from_slice::<Followed>(note) {
        Ok(Followed { follows, .. }) => Ok((follows, note.to_vec())),
        Err(error) => Err(Error::Refused(format!("what is noted of its remote: {error}"))),
    }
}

fn is_of(tree: &Newest, number: u64, hash: Option<Hash>) -> bool {
    tree.head.is_some() && (tree.number(), tree.hash) == (number, hash)
}

/// The tree of a batch, if it can be had yet.
fn tree_of(repository: &Repository, number: u64, hash: Option<Hash>) -> Result<Option<Newest>> {
    match repository.tree_at(Some(number)) {
        Ok(tree) => Ok(Some(proved(tree)).filter(|tree| is_of(tree, number, hash))),
        Err(Error::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Without the tails of files that are open: who follows would fetch such a file anew with each of them.
fn proved(mut newest: Newest) -> Newest {
    newest.tree.forget_tails();
    newest
}

/// True if the place lists other batches or bases than lead to a tree: later ones, or only earlier ones.
fn is_behind(repository: &Repository, tree: &Newest) -> Result<bool> {
    let listing = repository.listing()?;
    let last = listing.last().max(listing.bases().last().unwrap_or(0));
    Ok(last != tree.number())
}

/// Which content files have whose bytes are away, by their paths in trees.
fn away(view: &View, trees: &[Arc<Newest>]) -> Contents {
    let Some((remote, _)) = view.remote() else { return Contents::new() };
    let mut found = Contents::new();
    let mut left = vec![(ROOT, vec![Some(ROOT.0); trees.len()])];
    while let Some((dir, numbers)) = left.pop() {
        let names = trees.iter().zip(&numbers).map(|(tree, number)| {
            let names = number.iter().flat_map(|number| tree.tree.names(*number));
            names.filter_map(|(name, number)| Some((name_of(name)?, number))).collect::<HashMap<_, _>>()
        });
        let names: Vec<HashMap<Vec<u8>, u64>> = names.collect();
        for (_, name, ino) in view.entries_after(dir, 0) {
            let Some(object) = view.object(ino) else { continue };
            let numbers = || names.iter().map(|names| names.get(name).copied());
            if object.is_dir() {
                left.push((ino, numbers().collect()));
                continue;
            }
            let Some(place) = object.attributes.segment.filter(|segment| segment.tier() == remote) else { continue };
            let mut contents = trees.iter().zip(numbers()).filter_map(|(tree, number)| {
                let content = tree.tree.entry(number?)?.file.as_ref()?;
                is_content(object, content).then(|| Arc::new(content.clone()))
            });
            if let Some(content) = contents.next() {
                found.insert(place.serial(), content);
            }
        }
    }
    found
}

/// True of a content that a file has which is away, as far as its seals tell. Those of one that has none in the remote
/// were found out from its bytes.
fn is_content(object: &Object, content: &Content) -> bool {
    has_content(object, content, None) || (!has_seals(content) && object.size() == content.bytes())
}

/// Names and attributes in lots of which each fits one transaction.
fn lots(changes: Vec<Change>, room: usize) -> Vec<Vec<Change>> {
    let (mut lots, mut len) = (vec![Vec::new()], 0);
    for change in changes {
        if len + change.len() > room && len > 0 {
            lots.push(Vec::new());
            len = 0;
        }
        len += change.len();
        lots.last_mut().into_iter().for_each(|lot: &mut Vec<Change>| lot.push(change.clone()));
    }
    lots
}

fn shortened(mut why: String) -> String {
    const REASON: usize = 1000;
    while why.len() > REASON {
        why.pop();
    }
    why
}

//! Reading the newest tree, and putting the batch that comes next.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::place::{Coming, Place};
use crate::repository::batch::{Head, Line, lines, open, seal};
use crate::repository::names::{BASES, Hash, LOG, MARK, base_name, batch_name, number_in, object_name};
use crate::repository::tree::Tree;

/// Longer lists of lines stand in pages.
const INLINE: usize = 256 << 10;
/// Bytes of a page, as a rule.
const PAGE: usize = 8 << 20;
/// A base is put when the batches since the last one have more bytes than it, and this many.
const BASE_EVERY: u64 = 1 << 20;
/// Or when there are so many.
const BASE_BATCHES: u64 = 256;

/// A repository in an object store.
#[derive(Debug)]
pub struct Repository {
    place: Place,
}

/// The newest tree of a repository, or the one that a batch made.
#[derive(Clone, Debug, Default)]
pub struct Newest {
    /// The tree.
    pub tree: Tree,
    /// The head of the batch that made it; none before the first one.
    pub head: Option<Head>,
    /// The BLAKE3 of that batch.
    pub hash: Option<Hash>,
    /// What it was made from.
    pub came: Came,
}

/// What a tree was read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// The base, and how many bytes it has.
    pub base: (u64, u64),
    /// Bytes of the batches behind it.
    pub since: u64,
}

impl Newest {
    /// The number of the newest batch; 0 before the first one.
    pub fn number(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.number)
    }

    /// True if it is time for a base.
    pub fn wants_base(&self) -> bool {
        let batches = self.number() - self.came.base.0.min(self.number());
        self.came.since > self.came.base.1.max(BASE_EVERY) || batches >= BASE_BATCHES
    }
}

/// What is between here and a store may have spoilt what it said, or may not know of it yet: so it is asked a second
/// time before anything is called damaged.
fn twice<T>(once: impl Fn() -> Result<T>) -> Result<T> {
    match once() {
        Err(Error::Damaged { .. }) => once(),
        other => other,
    }
}

/// An object that is on its way; its bytes, if they are what it is named after.
#[derive(Debug)]
pub struct Arriving {
    hash: Hash,
    coming: Coming<Option<Bytes>>,
}

impl Repository {
    /// The repository at a place, which need not be there yet.
    pub fn new(place: Place) -> Self {
        Self { place }
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The repository, where from now on somebody hears of the bytes that are read ([`Place::heard_by`]).
    pub fn heard_by(self, hears: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { place: self.place.heard_by(hears) }
    }

    /// What an object or a part of a file with these bytes is named after here.
    pub fn hash(&self, bytes: &[u8]) -> Hash {
        Hash::named(self.place.names(), bytes)
    }

    /// The newest tree.
    pub fn newest(&self) -> Result<Newest> {
        self.tree_at(None)
    }

    /// The tree that a batch made; the newest one if none is named.
    pub fn tree_at(&self, wanted: Option<u64>) -> Result<Newest> {
        let upto = wanted.unwrap_or(u64::MAX);
        let listing = self.listing()?;
        let bases: Vec<u64> = listing.bases().filter(|number| *number <= upto).collect();
        let first = listing.first();
        // There was a batch for each base, also where that cannot be read.
        let listed = listing.last().max(bases.last().copied().unwrap_or(0));
        let mut why = None;
        // A base that is damaged is as none: the batches behind the one before it say as much.
        for base in bases.into_iter().rev().map(Some).chain([None]) {
            if base.is_none() && (why.is_some() && listed == 0 || first > 1 && listed > 0) {
                break;
            }
            match self.from_base(base) {
                Ok(start) => match self.follow(start, upto, listed, |_| {}) {
                    Ok(newest) if wanted.is_none_or(|wanted| wanted == newest.number()) => return Ok(newest),
                    Ok(newest) => {
                        let what = format!("there is no batch {upto}; the newest is {}", newest.number());
                        return Err(Error::damaged(self.place.shown(), what));
                    }
                    Err(error) => drop(why.get_or_insert(error)),
                },
                Err(error @ Error::Damaged { .. }) => {
                    log::warn!("{error}; an older base is used");
                    why.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(why.unwrap_or_else(|| Error::damaged(self.place.shown(), "it has batches, and no base before them")))
    }

    /// The tree of a base, or of nothing.
    pub fn from_base(&self, base: Option<u64>) -> Result<Newest> {
        let Some(number) = base else { return Ok(Newest::default()) };
        let name = base_name(number);
        let (bytes, head) = twice(|| {
            let bytes = self.place.get(&name)?.ok_or_else(|| Error::damaged(&name, "it is gone"))?;
            let (head, _) = open(&bytes).map_err(|what| Error::damaged(&name, what))?;
            match head.base && head.number == number {
                true => Ok((bytes, head)),
                false => Err(Error::damaged(&name, "it is another one than its name says")),
            }
        })?;
        let mut tree = Tree::default();
        let len = self.each_line(&name, &bytes, |line| tree.apply(line))?;
        let (hash, came) = (head.before, Came { base: (number, len), since: 0 });
        Ok(Newest { tree, head: Some(head), hash, came })
    }

    /// The newest tree, given one that was it: only what has come since is read, as far as that follows it.
    pub fn since(&self, before: Newest) -> Result<Newest> {
        let listed = before.number();
        match self.follow(before, u64::MAX, listed, |_| {}) {
            Err(Error::Damaged { .. }) => self.newest(),
            newest => newest,
        }
    }

    /// Calls back with every tree that [`Repository::tree_at`] can give, the oldest one first.
    pub fn each_tree(&self, mut each: impl FnMut(&Newest)) -> Result<()> {
        let listing = self.listing()?;
        let listed = listing.last();
        let from_nothing = (listing.first() == 1).then_some(None);
        for base in from_nothing.into_iter().chain(listing.bases().map(Some)) {
            match self.from_base(base) {
                Ok(start) => {
                    if base.is_some() {
                        each(&start);
                    }
                    return self.follow(start, u64::MAX, listed, each).map(drop);
                }
                Err(error @ Error::Damaged { .. }) => log::warn!("{error}; what is before the next base is left out"),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Calls back with each line of the bases and batches that are there, in the order of their numbers. What cannot be
    /// read is passed over.
    pub fn each_change(&self, mut each: impl FnMut(Line)) -> Result<()> {
        let listing = self.listing()?;
        let bases = listing.bases().map(|number| (number, base_name(number)));
        let batches = listing.batches.iter().map(|(number, _)| (*number, batch_name(*number)));
        let all: BTreeSet<(u64, String)> = bases.chain(batches).collect();
        for (_, name) in all {
            let read = match self.place.get(&name)? {
                Some(bytes) => self.each_line(&name, &bytes, |line| {
                    each(line);
                    Ok(())
                }),
                None => continue,
            };
            match read {
                Err(error @ Error::Damaged { .. }) => log::warn!("{error}; it is passed over"),
                read => drop(read?),
            }
        }
        Ok(())
    }

    /// Calls back with what each tree that [`Repository::tree_at`] can give says of itself, the newest one first, until
    /// that returns false. One that cannot be read is passed over.
    pub fn heads(&self, mut each: impl FnMut(&Head) -> bool) -> Result<()> {
        let listing = self.listing()?;
        let first = if listing.first() == 1 { 1 } else { listing.bases().next().unwrap_or(u64::MAX) };
        let batches: BTreeSet<u64> = listing.batches.iter().map(|(number, _)| *number).collect();
        let all: BTreeSet<u64> = batches.iter().copied().chain(listing.bases()).collect();
        for number in all.range(first..).rev() {
            let name = if batches.contains(number) { batch_name(*number) } else { base_name(*number) };
            let head = match self.place.get(&name) {
                Ok(Some(bytes)) => open(&bytes).map(|(head, _)| head),
                Ok(None) => Err("it is gone".to_owned()),
                Err(Error::Damaged { what, .. }) => Err(what),
                Err(error) => return Err(error),
            };
            match head {
                Ok(head) if head.number == *number && !each(&head) => break,
                Ok(_) => {}
                Err(what) => log::warn!("{name}: {what}; an older one is looked for"),
            }
        }
        Ok(())
    }

    /// True if anything was ever put there, be it damaged or encrypted.
    pub fn is_there(place: &Place) -> Result<bool> {
        if place.get_as_put(MARK)?.is_some() {
            return Ok(true);
        }
        let mut is_there = false;
        for directory in [LOG, BASES] {
            place.list(directory, |found| is_there |= number_in(&found.name).is_some())?;
        }
        Ok(is_there)
    }

    /// Applies the batches behind a tree, up to one of them. The listing saw batches up to `listed`.
    fn follow(&self, mut at: Newest, upto: u64, listed: u64, mut each: impl FnMut(&Newest)) -> Result<Newest> {
        while at.number() < upto {
            let number = at.number() + 1;
            let name = batch_name(number);
            let next = twice(|| match self.place.get(&name)? {
                Some(bytes) => Ok(Some((self.check_batch(&name, &bytes, number, at.hash)?, bytes))),
                None if number > listed.min(upto) => Ok(None),
                None => Err(Error::damaged(&name, "it is missing, and there are later ones")),
            })?;
            let Some((head, bytes)) = next else { break };
            let tree = &mut at.tree;
            at.came.since += self.each_line(&name, &bytes, |line| tree.apply(line))?;
            (at.head, at.hash) = (Some(head), Some(Hash::of(&bytes)));
            each(&at);
        }
        Ok(at)
    }

    /// That a batch is the one of this number, and follows the one before it.
    pub fn check_batch(&self, name: &str, bytes: &[u8], number: u64, before: Option<Hash>) -> Result<Head> {
        let (head, _) = open(bytes).map_err(|what| Error::damaged(name, what))?;
        if head.base || head.number != number {
            return Err(Error::damaged(name, "it is another one than its name says"));
        }
        if head.before != before {
            return Err(Error::damaged(name, "it does not follow the batch before it"));
        }
        Ok(head)
    }

    /// Calls back with each line between the first and the last one, those of pages included. Returns all their bytes.
    pub fn each_line(
        &self,
        name: &str,
        bytes: &[u8],
        mut each: impl FnMut(Line) -> std::result::Result<(), String>,
    ) -> Result<u64> {
        let damaged = |what| Error::damaged(name, what);
        let (_, rest) = open(bytes).map_err(damaged)?;
        let mut len = rest.len() as u64;
        for line in lines(rest) {
            match line.map_err(damaged)? {
                Line::Page(hash) => {
                    let page = self.object(hash)?;
                    len += page.len() as u64;
                    for line in lines(&page) {
                        line.and_then(&mut each).map_err(|what| Error::damaged(object_name(hash), what))?;
                    }
                }
                line => each(line).map_err(damaged)?,
            }
        }
        Ok(len)
    }

    /// Calls back with each page that a batch or a base names.
    pub fn each_page(&self, name: &str, bytes: &[u8], mut each: impl FnMut(Hash)) -> Result<()> {
        let (_, rest) = open(bytes).map_err(|what| Error::damaged(name, what))?;
        for line in lines(rest) {
            if let Line::Page(hash) = line.map_err(|what| Error::damaged(name, what))? {
                each(hash);
            }
        }
        Ok(())
    }

    /// An object, whose bytes are those that it is named after.
    pub fn object(&self, hash: Hash) -> Result<Bytes> {
        let name = object_name(hash);
        twice(|| {
            let bytes = self.place.get(&name)?.ok_or_else(|| Error::damaged(&name, "it is gone"))?;
            match self.hash(&bytes) == hash {
                true => Ok(bytes),
                false => Err(Error::damaged(&name, "its bytes are not those that it is named after")),
            }
        })
    }

    /// Has an object come, while other things are done. That it is what it is named after is found out beside, too.
    pub fn begin(&self, hash: Hash) -> Arriving {
        let names = self.place.names().copied();
        let coming = self.place.begin(&object_name(hash), move |bytes| {
            let is_it = Hash::named(names.as_ref(), &bytes) == hash;
            is_it.then_some(bytes)
        });
        Arriving { hash, coming }
    }

    /// As [`Repository::object`], of one that was on its way.
    pub fn arrived(&self, Arriving { hash, coming }: Arriving) -> Result<Bytes> {
        match coming.wait() {
            Ok(Some(Some(bytes))) => Ok(bytes),
            Ok(_) | Err(Error::Damaged { .. }) => self.object(hash),
            Err(error) => Err(error),
        }
    }

    /// The bytes of a batch or a base, with pages put where lines are many; and how many bytes all lines have.
    pub fn compose(&self, head: Head, lines: impl Iterator<Item = Line>) -> Result<(Vec<u8>, u64)> {
        let (mut text, mut pages, mut len) = (Vec::new(), Vec::new(), 0);
        let mut puts = self.place.puts();
        let mut page = |text: &mut Vec<u8>, pages: &mut Vec<u8>| {
            let bytes = Bytes::from(std::mem::take(text));
            len += bytes.len() as u64;
            let hash = self.hash(&bytes);
            Line::Page(hash).write(pages)?;
            puts.put(object_name(hash), bytes)
        };
        for line in lines {
            line.write(&mut text)?;
            if text.len() >= PAGE {
                page(&mut text, &mut pages)?;
            }
        }
        if text.len() > INLINE || !pages.is_empty() && !text.is_empty() {
            page(&mut text, &mut pages)?;
        }
        len += text.len() as u64;
        puts.finish()?;
        pages.append(&mut text);
        Ok((seal(head, &pages)?, len))
    }

    /// Puts a batch, if nobody has put one of its number, and nobody has gone on without it; else says whose that is.
    pub fn put_batch(&self, number: u64, bytes: &[u8]) -> Result<()> {
        let name = batch_name(number);
        if !self.place.put_new(&name, Bytes::copy_from_slice(bytes))? {
            // An answer that was lost on its way looks like somebody else; and so, to some stores, does a put that has
            // not come to its end.
            let Some(there) = self.whatever(&name)? else {
                let what = "the store says that another put of it is on its way";
                return Err(Error::NotYet(format!("{}/{name}: {what}", self.place.shown())));
            };
            if there != bytes {
                return Err(self.fenced(number, &there));
            }
        }
        // One of its number may have been there, and have been removed with all that a base makes needless.
        let Some(later) = self.later(number)? else { return Ok(()) };
        self.withdraw(number, Hash::of(bytes))?;
        let later = self.whatever(&later)?.unwrap_or_default();
        Err(self.fenced(number, &later))
    }

    /// What there is under a name, be it ours or not: of what is not encrypted as ours is, nothing can be read.
    fn whatever(&self, name: &str) -> Result<Option<Bytes>> {
        match self.place.get(name) {
            Err(Error::Damaged { .. }) => Ok(Some(Bytes::new())),
            there => there,
        }
    }

    fn fenced(&self, number: u64, there: &[u8]) -> Error {
        let by = open(there).map_or_else(|what| format!("which {what}"), |(head, _)| format!("pool {}", head.pool));
        Error::Fenced { remote: self.place.shown().into(), number, by }
    }

    /// Removes a batch of this number that was put behind others' backs, if it is this very one: nobody else has gone
    /// on behind it.
    pub fn withdraw(&self, number: u64, hash: Hash) -> Result<()> {
        let name = batch_name(number);
        if self.whatever(&name)?.is_none_or(|there| Hash::of(&there) != hash) {
            return Ok(());
        }
        for next in [base_name(number), batch_name(number + 1)] {
            let Some(next) = self.whatever(&next)? else { continue };
            // Of one that cannot be read nobody knows it.
            if open(&next).map_or(true, |(head, _)| head.before == Some(hash)) {
                return Ok(());
            }
        }
        self.place.delete(&name)
    }

    /// Puts a base: the whole tree, after the batch that made it.
    pub fn put_base(&self, newest: &mut Newest) -> Result<()> {
        let Some(head) = newest.head.clone() else { return Ok(()) };
        let number = head.number;
        let head = Head { base: true, before: newest.hash, ..head };
        let (bytes, len) = self.compose(head, newest.tree.lines())?;
        // Another carrier may have put one of the same tree, in another order.
        self.place.put_new(&base_name(number), bytes.into())?;
        newest.came = Came { base: (number, len), since: 0 };
        Ok(())
    }
}

//! The trees of several repositories as one: directories are merged, and what has one name in several of them is there
//! once if it is the same, and else once for each.
//!
//! Objects have other numbers in it than in the trees that it is made of: each tree has a range of them, one behind the
//! other, and the root is 1.

mod rights;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use tensorfs_formats::crc32c_join;

use crate::error::{Error, Result};
use crate::fetch::Fetcher;
use crate::repository::{Content, Entry, Line, Newest, Part, Repository, State, Tree, name_of, text_of};

/// Numbers of objects are below this one.
const NUMBERS: u64 = 1 << 56;
/// Bytes of a name, and of a pool's name in one.
const NAME: usize = 255;
const POOL: usize = 100;
const ROOT: u64 = 1;

/// One of the repositories.
#[derive(Debug)]
pub struct Member {
    /// What its pool is called: the name of its place.
    pub name: String,
    /// Where it is.
    pub repository: Repository,
    /// The tree of it that is meant.
    pub newest: Newest,
}

/// All of them.
#[derive(Debug)]
pub struct Union {
    /// The tree.
    pub tree: Tree,
    /// Behind which number the objects of each member are.
    pub firsts: Vec<u64>,
    /// What has different bytes in several of them, a line for each.
    pub differing: Vec<String>,
}

/// An object: the member that it is of, and its number there.
type Key = (usize, u64);

/// An object of a member.
#[derive(Clone, Copy)]
struct Of<'a> {
    member: usize,
    entry: &'a Entry,
}

impl Of<'_> {
    fn key(&self) -> Key {
        (self.member, self.entry.ino)
    }
}

/// Makes one tree of all. The members' trees are empty afterwards.
pub fn merged(members: &mut [Member]) -> Result<Union> {
    let mut firsts = Vec::with_capacity(members.len());
    let mut first = 0_u64;
    for member in members.iter() {
        firsts.push(first);
        let last = member.newest.tree.entries().map(|entry| entry.ino).max().unwrap_or(0);
        first = first
            .checked_add(last)
            .filter(|first| *first < NUMBERS)
            .ok_or_else(|| damaged(member, "it has impossible numbers"))?;
    }
    let names = members.iter().map(|member| member.newest.tree.count_names()).collect();
    let mut merge = Merge {
        members: &*members,
        firsts: &firsts,
        names,
        entered: HashSet::new(),
        wanted: HashSet::new(),
        directories: Vec::new(),
        lines: Vec::new(),
        differing: Vec::new(),
    };
    merge.all()?;
    let Merge { wanted, directories, lines, differing, .. } = merge;
    let mut tree = Tree::default();
    let mut apply = |line| tree.apply(line).map_err(|what| Error::Refused(format!("a tree of several pools: {what}")));
    for (of, member) in members.iter_mut().enumerate() {
        for entry in std::mem::take(&mut member.newest.tree).into_entries() {
            if wanted.contains(&(of, entry.ino)) {
                let ino = firsts[of] + entry.ino;
                apply(Line::Object(Box::new(Entry { ino, ..entry })))?;
            }
        }
    }
    directories.into_iter().try_for_each(|entry| apply(Line::Object(Box::new(entry))))?;
    lines.into_iter().try_for_each(|(dir, name, ino)| apply(Line::Name(dir, name, ino)))?;
    Ok(Union { tree, firsts, differing })
}

struct Merge<'a> {
    members: &'a [Member],
    firsts: &'a [u64],
    /// How many names each object of each member has.
    names: Vec<HashMap<u64, u32>>,
    entered: HashSet<Key>,
    /// Objects that are there as they are.
    wanted: HashSet<Key>,
    /// Directories that several have.
    directories: Vec<Entry>,
    lines: Vec<(u64, String, u64)>,
    differing: Vec<String>,
}

fn damaged(member: &Member, what: impl Into<String>) -> Error {
    Error::damaged(member.repository.place().shown(), what)
}

impl<'a> Merge<'a> {
    fn all(&mut self) -> Result<()> {
        let root = |(member, of): (usize, &'a Member)| {
            let entry = of.newest.tree.entry(ROOT).filter(|root| root.is_dir());
            entry.map(|entry| Of { member, entry }).ok_or_else(|| damaged(of, "its tree has no root"))
        };
        let roots: Vec<Of<'a>> = self.members.iter().enumerate().map(root).collect::<Result<_>>()?;
        let mut left = vec![(String::new(), roots)];
        while let Some((path, of)) = left.pop() {
            self.directory(&path, &of, &mut left)?;
        }
        Ok(())
    }

    fn number(&self, of: &Of<'_>) -> u64 {
        self.firsts[of.member] + of.entry.ino
    }

    /// A directory that these have.
    fn directory(&mut self, path: &str, all: &[Of<'a>], left: &mut Vec<(String, Vec<Of<'a>>)>) -> Result<()> {
        let Some(number) = all.first().map(|first| self.number(first)) else { return Ok(()) };
        let found = self.names_in(path, all)?;
        match all {
            [one] => drop(self.wanted.insert(one.key())),
            several => self.directories.push(one_of(number, several)),
        }
        let mut names = Names { taken: found.keys().cloned().collect(), next: HashMap::new() };
        for (name, all) in found {
            let (directories, others): (Vec<Of<'a>>, Vec<Of<'a>>) = all.iter().partition(|of| of.entry.is_dir());
            let mut kinds = self.kinds(others)?.into_iter();
            // What is below a directory keeps its path.
            if let Some(first) = directories.first() {
                self.lines.push((number, name.clone(), self.number(first)));
                left.push((format!("{path}/{name}"), directories));
            } else if let Some(first) = kinds.next() {
                self.name(number, name.clone(), &first);
            }
            let mut differ = Vec::new();
            for kind in kinds {
                let of = &self.members[kind.member].name;
                let other = names.free(&name, of);
                differ.push(format!("that of {of} is {path}/{other}"));
                self.name(number, other, &kind);
            }
            if !differ.is_empty() {
                let of: Vec<&str> = all.iter().map(|of| self.members[of.member].name.as_str()).collect();
                let (of, differ) = (of.join(", "), differ.join(", "));
                self.differing.push(format!("{path}/{name} is not the same in {of}: {differ}"));
            }
        }
        Ok(())
    }

    /// What these directories have, by name.
    fn names_in(&mut self, path: &str, all: &[Of<'a>]) -> Result<BTreeMap<String, Vec<Of<'a>>>> {
        let mut found: BTreeMap<String, Vec<Of<'a>>> = BTreeMap::new();
        for dir in all {
            let member = &self.members[dir.member];
            if !self.entered.insert(dir.key()) {
                return Err(damaged(member, format!("{path}: a directory of two names")));
            }
            let tree = &member.newest.tree;
            for (name, ino) in tree.names(dir.entry.ino) {
                let wrong = |what: &str| damaged(member, format!("{path}/{name}: {what}"));
                let plain = name_of(name).filter(|name| is_name(name)).ok_or_else(|| wrong("no name"))?;
                let entry = tree.entry(ino).ok_or_else(|| wrong("is a name of nothing"))?;
                let has = found.entry(text_of(&plain)).or_default();
                if has.iter().any(|there| there.member == dir.member) {
                    return Err(wrong("it is there twice"));
                }
                has.push(Of { member: dir.member, entry });
            }
        }
        Ok(found)
    }

    fn name(&mut self, dir: u64, name: String, of: &Of<'_>) {
        self.wanted.insert(of.key());
        self.lines.push((dir, name, self.number(of)));
    }

    /// One of each kind of what has one name: what is whole comes first, then what is newer.
    fn kinds(&self, all: Vec<Of<'a>>) -> Result<Vec<Of<'a>>> {
        let mut kinds: Vec<Vec<Of<'a>>> = Vec::new();
        'all: for of in all {
            for kind in &mut kinds {
                if self.is_same(kind[0], of)? {
                    kind.push(of);
                    continue 'all;
                }
            }
            kinds.push(vec![of]);
        }
        let names = |of: &Of<'_>| self.names[of.member].get(&of.entry.ino).copied();
        let is_whole = |of: &Of<'_>| of.entry.file.as_ref().is_none_or(|file| file.state == State::Whole);
        let ranked = kinds.into_iter().filter_map(|kind| {
            let newest = kind.iter().map(|of| of.entry.mtime).max();
            // With most names, so that links to each other stay so.
            let one = kind.into_iter().max_by_key(|of| (names(of), of.entry.mtime, Reverse(of.member)))?;
            Some((Reverse((is_whole(&one), newest, Reverse(one.member))), one))
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        Ok(ranked.into_iter().map(|(_, of)| of).collect())
    }

    /// True of two objects that are the same but for owner, mode, attributes and times.
    fn is_same(&self, a: Of<'_>, b: Of<'_>) -> Result<bool> {
        let (one, other) = (a.entry, b.entry);
        if (one.mode ^ other.mode) & libc::S_IFMT != 0 || one.rdev != other.rdev || one.target != other.target {
            return Ok(false);
        }
        let (Some(ours), Some(theirs)) = (&one.file, &other.file) else {
            return Ok(one.file.is_none() && other.file.is_none());
        };
        if ours.size != theirs.size || ours.state != theirs.state {
            return Ok(false);
        }
        let [here, there] = [a, b].map(|of| &self.members[of.member].repository);
        let named = |part: &Part| (part.len(), part.hash());
        // Names say the same only if they are made in one way.
        if here.place().names() == there.place().names()
            && ours.parts.iter().map(named).eq(theirs.parts.iter().map(named))
        {
            return Ok(true);
        }
        if ours.state != State::Whole {
            return Ok(false);
        }
        if let (Some(ours), Some(theirs)) = (checksum(ours), checksum(theirs))
            && ours != theirs
        {
            return Ok(false);
        }
        match has_same_bytes((here, ours), (there, theirs)) {
            Err(error @ Error::Damaged { .. }) => {
                log::warn!("{error}; so it is not known whether files are the same");
                Ok(false)
            }
            same => same,
        }
    }
}

/// The CRC32C of a file, if it is known.
fn checksum(content: &Content) -> Option<u32> {
    let seals = content.seals.iter().map(|sealed| (sealed.0, sealed.1));
    (!content.seals.is_empty()).then(|| crc32c_join(seals))
}

/// A directory of several: it lets nobody do what one of them does not let him.
fn one_of(ino: u64, all: &[Of<'_>]) -> Entry {
    let entries: Vec<&Entry> = all.iter().map(|of| of.entry).collect();
    let newest = entries.iter().fold(entries[0], |newest, entry| {
        if (entry.mtime, entry.ctime) > (newest.mtime, newest.ctime) { entry } else { newest }
    });
    let mut one = Entry { ino, ..newest.clone() };
    for entry in &entries {
        one.atime = one.atime.max(entry.atime);
        one.ctime = one.ctime.max(entry.ctime);
        one.btime = one.btime.min(entry.btime);
        for (name, value) in &entry.xattrs {
            one.xattrs.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    rights::narrow(&mut one, &entries);
    one
}

/// The names of a directory, and those that are found for what is not the same in several.
#[derive(Default)]
struct Names {
    taken: HashSet<String>,
    /// Behind a beginning and a pool's name, numbers below this one are taken.
    next: HashMap<(Vec<u8>, String), u64>,
}

impl Names {
    /// `NAME.POOL`, or with a number behind it, which nothing has as its name yet.
    fn free(&mut self, name: &str, pool: &str) -> String {
        let name = name_of(name).unwrap_or_default();
        let cut = (0..=POOL.min(pool.len())).rev().find(|cut| pool.is_char_boundary(*cut)).unwrap_or(0);
        let pool = &pool[..cut];
        let mut number = 1_u64;
        loop {
            let end = if number == 1 { format!(".{pool}") } else { format!(".{pool}.{number}") };
            let mut keep = name.len().min(NAME - end.len());
            // No character is cut in the middle.
            while keep < name.len() && keep > 0 && name[keep] & 0xc0 == 0x80 {
                keep -= 1;
            }
            let other = text_of(&[&name[..keep], end.as_bytes()].concat());
            if self.taken.insert(other.clone()) {
                return other;
            }
            // Names that are all cut to one have come as far as that before.
            let next = self.next.entry((name[..keep].to_vec(), pool.to_owned())).or_insert(0);
            number = (number + 1).max(*next);
            *next = number;
        }
    }
}

fn is_name(name: &[u8]) -> bool {
    (1..=NAME).contains(&name.len()) && !matches!(name, b"." | b"..") && !name.contains(&0) && !name.contains(&b'/')
}

/// Reads both, as far as they are the same.
fn has_same_bytes(one: (&Repository, &Content), other: (&Repository, &Content)) -> Result<bool> {
    let (mut one, mut other) = (Reader::of(one), Reader::of(other));
    loop {
        let (ours, theirs) = match (one.next()?, other.next()?) {
            (None, None) => return Ok(true),
            (Some(ours), Some(theirs)) => (ours, theirs),
            _ => return Ok(false),
        };
        let len = ours.0.min(theirs.0);
        let bytes = |piece: &Piece| piece.1.as_ref().map(|bytes| bytes.slice(..len as usize));
        let is_same = match (bytes(&ours), bytes(&theirs)) {
            (Some(ours), Some(theirs)) => ours == theirs,
            (Some(some), None) | (None, Some(some)) => some.iter().all(|byte| *byte == 0),
            (None, None) => true,
        };
        if !is_same {
            return Ok(false);
        }
        one.keep(ours, len);
        other.keep(theirs, len);
    }
}

/// So many bytes; zeroes if there are none.
type Piece = (u64, Option<Bytes>);

/// The bytes of a file, piece by piece.
struct Reader<'a> {
    fetcher: Fetcher<'a>,
    parts: std::slice::Iter<'a, Part>,
    kept: Option<Piece>,
}

impl<'a> Reader<'a> {
    fn of((repository, content): (&'a Repository, &'a Content)) -> Self {
        Self { fetcher: Fetcher::new(repository), parts: content.parts.iter(), kept: None }
    }

    fn next(&mut self) -> Result<Option<Piece>> {
        if let Some(kept) = self.kept.take() {
            return Ok(Some(kept));
        }
        match self.parts.find(|part| !part.is_empty()) {
            Some(part) => Ok(Some((part.len(), self.fetcher.part(part)?))),
            None => Ok(None),
        }
    }

    /// What is behind so many bytes of a piece comes next.
    fn keep(&mut self, (len, bytes): Piece, used: u64) {
        let rest = len - used;
        self.kept = (rest > 0).then(|| (rest, bytes.map(|bytes| bytes.slice(used as usize..))));
    }
}

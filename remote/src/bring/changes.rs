//! What is new in a tree of a remote, compared with the one that a mount has.
//!
//! An object stays the same one if it is as the newer tree says: of a file its seals, which tell what its bytes are,
//! and its size. A name alone proves nothing. Which one it may be, the tree before tells by its number there, if that
//! is known; else its name. Where more changes than one transaction takes, nothing is moved: an object that has
//! another name then is another one, so that what is left between two lots is a tree, whatever comes next.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use tensorfs_formats::{crc32c_append, crc32c_zeroes};
use tensorfs_layout::log::{NAME_MAX, TARGET_MAX};
use tensorfs_layout::pool::{Change, Look, New, Whose};
use tensorfs_layout::tree::{FileChain, Object, View};
use tensorfs_layout::{Ino, ROOT};

use crate::error::{Error, Result};
use crate::fetch::Fetcher;
use crate::repository::{Content, Entry, INTERRUPTED, LEFT, State, Tree, name_of};

/// Of a file without seals, so many bytes or a part more have one checksum.
const RUN: u64 = 64 << 20;

/// Length, CRC32C and description of a run.
type Run = (u64, u32, Vec<u8>);

/// What is to be done.
#[derive(Clone, Debug)]
pub(super) enum Step<'a> {
    /// An object is made, the next one in their order.
    Make(&'a Entry),
    /// Anything else.
    Change(Change),
}

/// What there is to compare.
#[derive(Clone, Copy)]
pub(super) struct Between<'a> {
    /// What the mount has.
    pub here: &'a View,
    /// The tree of the remote that this is, if it is known.
    pub before: Option<&'a Tree>,
    /// The one that it is to be.
    pub now: &'a Tree,
    /// Where that is, for what is said of it.
    pub shown: &'a str,
}

/// The changes.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    /// Objects that are made, and the names in directories that are.
    pub made: Vec<Step<'a>>,
    /// Names and attributes.
    pub lots: Vec<Change>,
}

impl Changes<'_> {
    /// Bytes of the log that names and attributes take.
    pub fn len(&self) -> usize {
        self.lots.iter().map(Change::len).sum()
    }
}

struct Comparing<'a> {
    between: Between<'a>,
    /// Objects that have moved stay the same ones.
    moves: bool,
    /// What stands here for objects of the tree before, and the other way round.
    was: HashMap<u64, Ino>,
    numbers: HashMap<Ino, u64>,
    /// What stands for those of the new one, and the objects among them that are here.
    is: HashMap<u64, Whose>,
    kept: HashSet<Ino>,
    count: u32,
    changes: Changes<'a>,
}

/// What changes between two trees. A tree that cannot be one is damaged.
pub(super) fn changes(between: Between<'_>, moves: bool) -> Result<Changes<'_>> {
    let (was, numbers, is) = (HashMap::new(), HashMap::new(), HashMap::new());
    let (kept, count, changes) = (HashSet::new(), 0, Changes::default());
    let mut comparing = Comparing { between, moves, was, numbers, is, kept, count, changes };
    comparing.find_those_before();
    comparing.compare()?;
    if moves {
        comparing.unname_what_was_moved();
    }
    Ok(comparing.changes)
}

impl<'a> Comparing<'a> {
    fn damaged(&self, what: String) -> Error {
        Error::damaged(self.between.shown, what)
    }

    /// Which object here stands for which of the tree before, by their paths.
    fn find_those_before(&mut self) {
        let Between { here, before: Some(before), .. } = self.between else { return };
        let mut left = vec![(ROOT.0, ROOT)];
        while let Some((number, ino)) = left.pop() {
            if self.was.insert(number, ino).is_some() {
                continue;
            }
            self.numbers.insert(ino, number);
            for (name, number) in before.names(number) {
                let found = name_of(name).and_then(|name| here.lookup(ino, &name));
                let is_one = |ino: &Ino| {
                    let kind = before.entry(number).map(|entry| entry.mode & libc::S_IFMT);
                    here.object(*ino).map(Object::kind) == kind
                };
                left.extend(found.filter(is_one).map(|found| (number, found)));
            }
        }
    }

    fn compare(&mut self) -> Result<()> {
        let (here, now) = (self.between.here, self.between.now);
        let root = now.entry(ROOT.0).filter(|root| root.is_dir());
        let root = root.ok_or_else(|| self.damaged("its tree has no root".into()))?;
        self.is.insert(ROOT.0, Whose::There(ROOT));
        self.kept.insert(ROOT);
        self.compare_look(ROOT, root);
        let mut left = VecDeque::from([(ROOT.0, Whose::There(ROOT))]);
        while let Some((number, dir)) = left.pop_front() {
            let mut names = HashSet::new();
            for (text, number) in now.names(number) {
                let name = name_of(text).filter(|name| is_name(name));
                let name = name.ok_or_else(|| self.damaged(format!("{text}: no name")))?;
                let entry = now.entry(number);
                let entry = entry.ok_or_else(|| self.damaged(format!("{text} is a name of nothing")))?;
                let there = match dir {
                    Whose::There(dir) => here.lookup(dir, &name),
                    Whose::Made(_) => None,
                };
                let known = self.is.get(&number).copied();
                if known.is_some() && entry.is_dir() {
                    return Err(self.damaged(format!("{text}: a directory of two names")));
                }
                let child = match known {
                    Some(child) => child,
                    None => self.find(text, number, entry, there)?,
                };
                if known.is_none() && entry.is_dir() {
                    left.push_back((number, child));
                }
                match (dir, child) {
                    (Whose::Made(dir), Whose::Made(child)) => {
                        self.changes.made.push(Step::Change(Change::Within(dir, name.clone(), child)));
                    }
                    (_, Whose::There(ino)) if there == Some(ino) => {}
                    _ => self.changes.lots.push(Change::Name(dir, name.clone(), child)),
                }
                names.insert(name);
            }
            if let Whose::There(dir) = dir {
                let gone = here.entries_after(dir, 0).filter(|(_, name, _)| !names.contains(*name));
                self.changes.lots.extend(gone.map(|(_, name, _)| Change::Unname(dir, name.to_vec())));
            }
        }
        Ok(())
    }

    /// What stands for an object: the one that it was or that has its name, if that is as the tree says; else a new
    /// one.
    fn find(&mut self, text: &str, number: u64, entry: &'a Entry, there: Option<Ino>) -> Result<Whose> {
        check(entry).map_err(|what| self.damaged(format!("{text}: {what}")))?;
        let it_was = self.was.get(&number).copied().filter(|_| self.moves);
        // That of a name may be another one's, which was moved.
        let is_others = |ino: &Ino| {
            let of = self.numbers.get(ino).filter(|of| self.moves && **of != number);
            of.and_then(|of| self.between.now.entry(*of)).is_some()
        };
        let there = there.filter(|ino| !is_others(ino));
        let same = it_was.into_iter().chain(there).find(|ino| !self.kept.contains(ino) && self.is_same(*ino, entry));
        let whose = match same {
            Some(ino) => {
                self.kept.insert(ino);
                self.compare_look(ino, entry);
                Whose::There(ino)
            }
            None => {
                self.changes.made.push(Step::Make(entry));
                self.count += 1;
                Whose::Made(self.count - 1)
            }
        };
        self.is.insert(number, whose);
        Ok(whose)
    }

    /// True of an object that is as the new tree says, but for its attributes.
    fn is_same(&self, ino: Ino, entry: &Entry) -> bool {
        let Some(object) = self.between.here.object(ino) else { return false };
        if object.kind() != entry.mode & libc::S_IFMT || object.attributes.damaged != entry.attributes().damaged {
            return false;
        }
        let before = self.between.before.zip(self.numbers.get(&ino));
        let before = before.and_then(|(tree, number)| tree.entry(*number)?.file.as_ref());
        match &entry.file {
            Some(content) if entry.is_file() => has_content(object, content, before),
            None if entry.is_file() => object.size() == 0,
            _ if entry.is_dir() => true,
            _ => {
                object.target().map(<[u8]>::to_vec) == entry.target.as_deref().and_then(name_of)
                    && object.attributes.rdev == entry.rdev
            }
        }
    }

    /// Attributes that are others by now. When a file was read is none that anybody goes by.
    fn compare_look(&mut self, ino: Ino, entry: &Entry) {
        let Some(object) = self.between.here.object(ino) else { return };
        let (here, now) = (Look::of(&object.attributes), Look::of(&entry.attributes()));
        if (Look { atime: now.atime, ..here }) != now {
            self.changes.lots.push(Change::Look(ino, now));
        }
        let is_told = |name: &[u8]| name != INTERRUPTED && !name.starts_with(LEFT);
        let now: BTreeMap<Vec<u8>, Vec<u8>> = entry.xattrs().filter(|(name, _)| is_told(name)).collect();
        let gone = object.xattrs().filter(|(name, _)| is_told(name) && !now.contains_key(*name));
        let gone: Vec<Vec<u8>> = gone.map(|(name, _)| name.to_vec()).collect();
        let lots = &mut self.changes.lots;
        lots.extend(gone.into_iter().map(|name| Change::Xattr(ino, name, None)));
        let new = now.into_iter().filter(|(name, value)| object.xattr(name) != Some(value));
        lots.extend(new.map(|(name, value)| Change::Xattr(ino, name, Some(value))));
    }

    /// What was moved out of a directory that is no more has its name there no more either.
    fn unname_what_was_moved(&mut self) {
        let here = self.between.here;
        let (mut left, mut entered) = (vec![ROOT], HashSet::new());
        while let Some(dir) = left.pop() {
            if !entered.insert(dir) {
                continue;
            }
            for (_, name, ino) in here.entries_after(dir, 0) {
                if !self.kept.contains(&dir) && self.kept.contains(&ino) {
                    self.changes.lots.push(Change::Unname(dir, name.to_vec()));
                }
                if here.object(ino).is_some_and(Object::is_dir) {
                    left.push(ino);
                }
            }
        }
    }
}

fn is_name(name: &[u8]) -> bool {
    let is_special = matches!(name, b"." | b"..") || name.contains(&b'/') || name.contains(&0);
    (1..=NAME_MAX).contains(&name.len()) && !is_special
}

/// What of an object cannot be.
fn check(entry: &Entry) -> std::result::Result<(), String> {
    let kind = entry.mode & libc::S_IFMT;
    let kinds =
        [libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK, libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK];
    if !kinds.contains(&kind) {
        return Err("no kind of file".into());
    }
    let target = entry.target.as_deref().and_then(name_of);
    if kind == libc::S_IFLNK && target.is_none_or(|target| target.len() > TARGET_MAX) {
        return Err("a link without a target".into());
    }
    if let Some(content) = entry.file.as_ref().filter(|_| entry.is_file()) {
        let (bytes, sealed) = (content.bytes(), sealed_bytes(content));
        let is_too_much = i64::try_from(bytes).is_err() || content.parts.iter().any(|part| part.is_empty());
        let is_short = content.state == State::Whole && (bytes != content.size || (sealed != 0 && sealed != bytes));
        if is_too_much || is_short {
            let size = content.size;
            return Err(format!("a file of {size} bytes whose parts have {bytes}, and whose seals {sealed}"));
        }
    }
    Ok(())
}

fn sealed_bytes(content: &Content) -> u64 {
    content.seals.iter().fold(0, |sum, seal| sum.saturating_add(seal.0))
}

/// The seals of a file, if they are of all bytes that the remote has of it.
fn runs_of(content: &Content) -> Option<Vec<Run>> {
    if content.bytes() == 0 || sealed_bytes(content) != content.bytes() || content.seals.iter().any(|seal| seal.0 == 0)
    {
        return None;
    }
    content.seals.iter().map(|sealed| Some((sealed.0, sealed.1, sealed.seal()?.description.into()))).collect()
}

/// True of one whose seals are of all bytes that the remote has of it.
pub(super) fn has_seals(content: &Content) -> bool {
    runs_of(content).is_some()
}

/// True of a file that has this content. What it had in the tree `before` tells it of one whose bytes have no seals,
/// and from one of which all checksums are the same by chance.
pub(super) fn has_content(object: &Object, content: &Content, before: Option<&Content>) -> bool {
    let size = content.bytes();
    if object.size() != size || size == 0 {
        return object.size() == size;
    }
    let Some(chain) = object.chain() else { return false };
    match runs_of(content) {
        Some(runs) if chain.is_sealed() => has_runs(chain, &runs) && !before.is_some_and(|it| differ(it, content)),
        _ => before.is_some_and(|before| before.parts == content.parts),
    }
}

fn has_runs(chain: &FileChain, runs: &[Run]) -> bool {
    let here = chain.runs().iter().filter(|run| run.len > 0).map(|run| (run.len, run.seal().map(|seal| seal.crc)));
    here.eq(runs.iter().map(|(len, crc, _)| (*len, Some(*crc))))
}

/// True of two that are cut alike, and have other bytes.
fn differ(one: &Content, other: &Content) -> bool {
    let lengths = |content: &Content| content.parts.iter().map(|part| part.len()).collect::<Vec<u64>>();
    let hashes = |content: &Content| content.parts.iter().map(|part| part.hash()).collect::<Vec<_>>();
    lengths(one) == lengths(other) && hashes(one) != hashes(other)
}

/// A new object as the server is told of it. Of a file without seals the bytes are read, to know them when they come.
pub(super) fn new_of(entry: &Entry, fetcher: &mut Fetcher<'_>) -> Result<New> {
    let content = entry.file.as_ref().filter(|content| entry.is_file() && content.bytes() > 0);
    let runs = match content {
        None => Vec::new(),
        Some(content) => match runs_of(content) {
            Some(runs) => runs,
            None => checksums(content, fetcher)?,
        },
    };
    let attributes = entry.attributes();
    let xattrs = entry.xattrs().filter(|(name, _)| name != INTERRUPTED && !name.starts_with(LEFT)).collect();
    let left = entry.xattrs().find(|(name, _)| name == INTERRUPTED).map(|(_, value)| value);
    let interrupted = left.is_some_and(|left| content.is_some_and(|content| left == content.segment.to_le_bytes()));
    let target = if entry.mode & libc::S_IFMT == libc::S_IFLNK { entry.target.as_deref() } else { None };
    let (look, damaged) = (Look::of(&attributes), attributes.damaged && entry.is_file());
    Ok(New { look, target: target.and_then(name_of), xattrs, interrupted, damaged, runs })
}

fn checksums(content: &Content, fetcher: &mut Fetcher<'_>) -> Result<Vec<Run>> {
    let (mut runs, mut len, mut crc) = (Vec::new(), 0_u64, 0);
    let mut ahead = content.parts.iter();
    let mut next = ahead.next();
    for part in &content.parts {
        while next.is_some_and(|next| fetcher.ask(next)) {
            next = ahead.next();
        }
        crc = match fetcher.part(part)? {
            Some(bytes) => crc32c_append(crc, &bytes),
            None => crc32c_zeroes(crc, part.len()),
        };
        len = len.saturating_add(part.len());
        if len >= RUN {
            runs.push((len, crc, Vec::new()));
            (len, crc) = (0, 0);
        }
    }
    runs.extend((len > 0).then(|| (len, crc, Vec::new())));
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use tensorfs_layout::check::Committed;
    use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};

    use super::*;
    use crate::repository::{Hash, Line, Part, Sealed};

    fn entry(ino: u64, kind: u32) -> Entry {
        let time = (0, 0);
        Entry {
            ino,
            mode: kind | 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            xattrs: BTreeMap::new(),
            target: None,
            file: None,
        }
    }

    fn file(ino: u64, bytes: &[u8]) -> Entry {
        let (size, hash) = (bytes.len() as u64, Hash::of(bytes));
        let seals = vec![Sealed(size, crc32c_append(0, bytes), String::new())];
        let parts = vec![Part::Alone((size, hash))];
        let content = Content { state: State::Whole, size, segment: ino, version: 1, parts, tail: 0, seals };
        Entry { file: Some(content), ..entry(ino, libc::S_IFREG) }
    }

    fn tree(entries: Vec<Entry>, names: &[(u64, &str, u64)]) -> Tree {
        let mut tree = Tree::default();
        let entries = entries.into_iter().chain([entry(1, libc::S_IFDIR)]);
        entries.for_each(|entry| tree.apply(Line::Object(Box::new(entry))).unwrap());
        names.iter().for_each(|(dir, name, ino)| tree.apply(Line::Name(*dir, (*name).into(), *ino)).unwrap());
        tree
    }

    /// A pool to which changes are made as a server makes them.
    struct Here(tempfile::TempDir);

    impl Here {
        fn new() -> Self {
            let here = Self(tempfile::tempdir().unwrap());
            Pool::create(&here.0.path().join("pool"), &CreateOptions::default()).unwrap();
            let pool = here.open();
            pool.add_remote("file:///remote", b"{\"follows\":0}", 100).unwrap();
            pool.close().unwrap();
            here
        }

        fn open(&self) -> Pool {
            Pool::open(&self.0.path().join("pool"), &OpenOptions::default()).unwrap()
        }

        fn read(&self) -> Committed {
            Committed::read(&self.0.path().join("pool")).unwrap()
        }

        /// Goes over from one tree to another. Returns how many objects were made, and the changes of names and
        /// attributes.
        fn go(&self, before: Option<&Tree>, now: &Tree, moves: bool) -> (usize, Vec<Change>) {
            let repository = crate::repository::Repository::new(
                crate::place::Place::open(&format!("file://{}", self.0.path().display()), &Default::default()).unwrap(),
            );
            let committed = self.read();
            let between = Between { here: committed.view(), before, now, shown: "remote" };
            let found = changes(between, moves).unwrap();
            let pool = self.open();
            let (tier, _) = pool.view().remote().map(|(number, tier)| (number, tier.clone())).unwrap();
            let mut made = Vec::new();
            for step in &found.made {
                match step {
                    Step::Make(entry) => {
                        let new = new_of(entry, &mut Fetcher::new(&repository)).unwrap();
                        made.push(pool.make_unnamed(tier, &new).unwrap());
                    }
                    Step::Change(Change::Within(dir, name, child)) => {
                        pool.name_within(made[*dir as usize], name, made[*child as usize]).unwrap();
                    }
                    Step::Change(other) => panic!("{other:?}"),
                }
            }
            let known = tensorfs_layout::pool::note_sum(b"{\"follows\":0}");
            let gone = pool.edit().go_over(known, (&found.lots, &made), b"{\"follows\":0}").unwrap();
            gone.unwrap();
            pool.close().unwrap();
            (made.len(), found.lots)
        }

        fn ino(&self, path: &str) -> Option<Ino> {
            self.read().view().resolve(path.as_bytes())
        }
    }

    /// Proves E30.
    #[test]
    fn what_moved_stays_the_same_and_what_is_gone_over_to_has_no_changes_left() {
        let here = Here::new();
        let first = tree(
            vec![entry(2, libc::S_IFDIR), file(3, b"one"), file(4, b"two"), entry(5, libc::S_IFDIR)],
            &[(1, "dir", 2), (2, "one", 3), (1, "two", 4), (2, "below", 5)],
        );
        assert_eq!(here.go(None, &first, true).0, 4);
        assert_eq!(here.go(Some(&first), &first, true), (0, Vec::new()));
        let old = ["dir", "dir/one", "two", "dir/below"].map(|path| here.ino(path));
        // Exchanged, and moved out of what is no more.
        let second = tree(
            vec![entry(5, libc::S_IFDIR), file(3, b"one"), file(4, b"two"), file(9, b"one")],
            &[(1, "two", 3), (5, "one", 4), (1, "below", 5), (1, "new", 9)],
        );
        let (made, lots) = here.go(Some(&first), &second, true);
        assert_eq!((made, here.ino("dir")), (1, None));
        assert_eq!(["below/one", "two", "below"].map(|path| here.ino(path)), [old[2], old[1], old[3]]);
        assert!(lots.contains(&Change::Unname(old[0].unwrap(), b"one".to_vec())), "{lots:?}");
        assert_eq!(here.go(Some(&second), &second, true), (0, Vec::new()));
        // Without moves what has another name is another one; a name alone proves nothing.
        let third = tree(vec![file(4, b"two"), file(3, b"six")], &[(1, "new", 4), (1, "two", 3)]);
        assert_eq!(here.go(Some(&second), &third, false).0, 2);
        assert_eq!(here.go(None, &third, false), (0, Vec::new()));
        assert!(here.ino("two") != old[1] && here.ino("new").is_some());
        here.open().close().unwrap();
    }

    /// Proves E30.
    #[test]
    fn a_tree_that_cannot_be_is_damaged() {
        let here = Here::new();
        let committed = here.read();
        let fails = |entries: Vec<Entry>, names: &[(u64, &str, u64)]| {
            let now = tree(entries, names);
            let between = Between { here: committed.view(), before: None, now: &now, shown: "remote" };
            let error = changes(between, true).map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{names:?}: {error}");
        };
        let dir = || entry(2, libc::S_IFDIR);
        fails(vec![dir()], &[(1, "a", 2), (1, "b", 2)]);
        fails(vec![dir()], &[(1, "a", 2), (2, "b", 1)]);
        fails(vec![dir()], &[(1, "..", 2)]);
        fails(vec![dir()], &[(1, "a%2Fb", 2)]);
        fails(vec![dir()], &[(1, "%", 2)]);
        fails(vec![], &[(1, "a", 2)]);
        fails(vec![entry(2, 0)], &[(1, "a", 2)]);
        fails(vec![entry(2, libc::S_IFLNK)], &[(1, "a", 2)]);
        let with = |change: fn(&mut Content)| {
            let mut entry = file(2, b"bytes");
            entry.file.iter_mut().for_each(change);
            entry
        };
        // Never an empty file instead.
        fails(vec![with(|content| content.parts.clear())], &[(1, "a", 2)]);
        fails(vec![with(|content| content.size = 4)], &[(1, "a", 2)]);
        fails(vec![with(|content| content.seals[0].0 = 6)], &[(1, "a", 2)]);
        fails(vec![with(|content| content.parts = vec![Part::Zeroes((u64::MAX,)); 2])], &[(1, "a", 2)]);
        fails(vec![with(|content| content.parts.push(Part::Zeroes((0,))))], &[(1, "a", 2)]);
    }
}

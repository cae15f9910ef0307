//! An OCDBT database as it is gone through; and whether it is all there: its nodes, and the files that have its values.

use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use tensorfs_formats::ocdbt::{Asked, Entry, Place, Step, Told, Tree, Wrong};
use tensorfs_formats::{Metadata, What};
use tensorfs_layout::{Ino, Timestamp};

use crate::clock;
use crate::error::{self, Fault};
use crate::file::Version;

use super::Content;
use super::bytes::fault;
use super::databases::{Databases, Known, ReadFrom, Seen};
use super::reach::reach;

/// How manifests are called that have the number of a version behind, in so many digits; and so many names are looked
/// at for those.
const NUMBERED: &[u8] = b"manifest.";
const DIGITS: usize = 16;
/// Paths of its data files lead through so many directories.
const ABOVE_MAX: usize = 1 << 16;

/// One that is gone through. Of each data file it shows one version.
pub(super) struct Walk<'a> {
    content: &'a Content,
    dir: Ino,
    pub tree: Tree,
    /// Data files that something was read of, as they were when they were come by.
    files: BTreeMap<Arc<str>, Seen>,
    /// Directories that their paths led through then.
    above: BTreeSet<Ino>,
}

/// What is done with its keys.
pub(super) type Each<'a> = &'a mut dyn FnMut(Entry) -> ControlFlow<()>;

/// What came of reading something of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    All,
    /// No more was wanted.
    Enough,
    /// It is not what it should be: why.
    Wrong(String),
    /// There is more of it than is looked at: why.
    TooMuch(String),
}

impl Read {
    fn and(self, other: Read) -> Read {
        if self == Read::All { other } else { self }
    }
}

impl<'a> Walk<'a> {
    /// Through the one whose manifest is in a directory. Values that stand beside their keys come with these if
    /// `with_values`.
    pub fn new(content: &'a Content, dir: Ino, with_values: bool) -> Self {
        Self { content, dir, tree: Tree::new(with_values, false), files: BTreeMap::new(), above: BTreeSet::new() }
    }

    /// Reads a manifest.
    pub fn manifest(&mut self, manifest: (Ino, &Version)) -> io::Result<Read> {
        self.takes(manifest, None, &mut |_| ControlFlow::Continue(()))
    }

    /// Goes on to the last key, and gives each to `each`.
    pub fn go_on(&mut self, each: Each<'_>) -> io::Result<Read> {
        let mut read = Read::All;
        while read == Read::All
            && let Some(step) = self.tree.step()
        {
            read = self.node(&step, each)?;
        }
        Ok(read)
    }

    /// Reads the node that is the next step, and gives each key that is in it to `each`.
    pub fn node(&mut self, step: &Step, each: Each<'_>) -> io::Result<Read> {
        match self.file(&step.place.path) {
            Ok((file, version)) => self.takes((file, &version), Some(step), each),
            Err(read) => Ok(read),
        }
    }

    /// What a value in a file says that an array is, or why it does not.
    pub fn array(&mut self, place: &Place, metadata: Metadata) -> io::Result<Result<What, String>> {
        let (file, version) = match self.file(&place.path) {
            Ok(found) => found,
            Err(Read::Wrong(why) | Read::TooMuch(why)) => return Ok(Err(why)),
            Err(Read::All | Read::Enough) => return Ok(Err(String::new())),
        };
        let source = self.content.bytes_of(file, &version);
        let (mut said, at, len) = (None, place.offset, place.len);
        let found = source.tree(Asked::Array { at, len, metadata }, &mut |told| {
            if let Told::Array(what) = told {
                said = Some(what);
            }
            ControlFlow::Continue(())
        });
        source.close();
        let found = found?;
        found.error.map_or(Ok(()), Err)?;
        Ok(said.ok_or_else(|| found.reason.unwrap_or_default()))
    }

    /// Whether there are more directories with its data files than are looked at.
    pub fn is_beyond(&self) -> bool {
        self.above.len() > ABOVE_MAX
    }

    /// Data files that something was read of.
    pub fn read_from(self) -> ReadFrom {
        let files = self.files.into_iter().map(|(path, seen)| (Box::from(&*path), seen));
        ReadFrom { files: files.collect(), above: self.above.into_iter().collect() }
    }

    fn file(&mut self, path: &Arc<str>) -> Result<(Ino, Version), Read> {
        let seen = match self.files.entry(path.clone()) {
            Occupied(known) => *known.get(),
            Vacant(new) => {
                let mut on_the_way = Vec::new();
                let found = reach(&self.content.files.store().view(), self.dir, path, &mut on_the_way);
                self.above.extend(found.map(|_| on_the_way).into_iter().flatten());
                *new.insert(self.content.seen(found))
            }
        };
        if self.is_beyond() {
            return Err(Read::TooMuch("data files in more directories than are looked at".to_owned()));
        }
        let found = seen.and_then(|(ino, version)| Some((ino, version?)));
        found.ok_or_else(|| Read::Wrong(format!("{path} is missing")))
    }

    /// Has a place of a file read, and the tree take what is told.
    fn takes(&mut self, (file, version): (Ino, &Version), step: Option<&Step>, each: Each<'_>) -> io::Result<Read> {
        let source = self.content.bytes_of(file, version);
        let (tree, mut read) = (&mut self.tree, Read::All);
        let told = source.tree(step.map_or(Asked::Manifest, |step| step.asked), &mut |told| {
            read = match tree.take(step, told).map(|entry| entry.is_none_or(|entry| each(entry).is_continue())) {
                Ok(true) => return ControlFlow::Continue(()),
                Ok(false) => Read::Enough,
                Err(Wrong::Damage(why)) => Read::Wrong(why),
                Err(Wrong::TooMuch(why)) => Read::TooMuch(why),
            };
            ControlFlow::Break(())
        });
        source.close();
        let found = told?;
        match (found.error, found.reason) {
            (Some(error), _) => Err(error),
            (None, why) if found.beyond => Ok(Read::TooMuch(why.unwrap_or_default())),
            (None, Some(why)) => Ok(Read::Wrong(why)),
            (None, None) => Ok(read),
        }
    }
}

impl Content {
    /// Whether all is there that the newest version of a database needs whose manifest is in a directory.
    ///
    /// # Errors
    /// `EIO` if something of it is of a version that is not known, or compressed in another way, or if there is more of
    /// it than is looked at, and nothing is missing of what is.
    pub(super) fn is_whole_database(&self, dir: Ino, manifest: Ino, names: &[&[u8]]) -> error::Result<bool> {
        let looked = clock::now();
        let newest = self.newest_of(dir, names);
        if let Some(said) = self.said_of(&self.databases, dir, manifest, [self.seen(Some(manifest)), newest]) {
            return said.ok_or(Fault::new(libc::EIO));
        }
        let mut walk = Walk::new(self, dir, false);
        let mut read = self.manifest(&mut walk, manifest)?;
        if walk.tree.is_numbered() && names.iter().any(|name| is_numbered(name)) {
            let Some((newest, _)) = newest else { return Ok(false) };
            read = read.and(self.manifest(&mut walk, newest)?);
        }
        if read == Read::All {
            read = walk.go_on(&mut |_| ControlFlow::Continue(())).map_err(fault)?;
        }
        let tree = &walk.tree;
        let files: Vec<_> =
            tree.needed().map(|(path, _)| (path.into(), self.seen(self.file_below(dir, path)))).collect();
        let is_there = |((_, end), (_, file)): ((&str, u64), &(Box<str>, Seen))| {
            file.is_some_and(|(_, version)| version.is_some_and(|version| version.size >= end))
        };
        let said = match read {
            Read::Wrong(_) => Some(false),
            _ if !tree.needed().zip(&files).all(is_there) => Some(false),
            Read::All if tree.unknown().is_none() => Some(true),
            Read::All | Read::Enough | Read::TooMuch(_) => None,
        };
        let manifests = [self.seen(Some(manifest)), self.newest_of(dir, names)];
        self.note_said(&self.databases, manifest, Known { dir, manifests, files, said }, looked);
        said.ok_or(Fault::new(libc::EIO))
    }

    /// What was said of a database, if it is as it was. None if nothing was.
    pub(super) fn said_of(
        &self,
        all: &Databases,
        dir: Ino,
        manifest: Ino,
        manifests: [Seen; 2],
    ) -> Option<Option<bool>> {
        let known = all.of(manifest).filter(|known| known.dir == dir && known.manifests == manifests)?;
        self.are_as_seen(dir, &known.files).then_some(known.said)
    }

    /// Keeps in mind what is said of a database, if it would show when a file of it is changed that was as it is known
    /// to have been when that was begun.
    pub(super) fn note_said(&self, all: &Databases, manifest: Ino, known: Known, looked: Timestamp) {
        let of_all = known.files.iter().map(|(_, file)| file).chain(&known.manifests);
        if of_all.flatten().all(|(_, version)| version.is_none_or(|one| one.is_settled(looked))) {
            all.note(manifest, known);
        }
    }

    /// True if files below a directory are as they were when they were seen.
    pub(super) fn are_as_seen(&self, dir: Ino, files: &[(Box<str>, Seen)]) -> bool {
        files.iter().all(|(path, seen)| self.seen(self.file_below(dir, path)) == *seen)
    }

    /// What can be seen of a file.
    pub(super) fn seen(&self, file: Option<Ino>) -> Seen {
        file.map(|ino| (ino, self.files.version(ino).ok()))
    }

    /// The newest manifest with a number.
    fn newest_of(&self, dir: Ino, names: &[&[u8]]) -> Seen {
        let newest = names.iter().filter(|name| is_numbered(name)).max()?;
        self.seen(self.files.store().view().lookup(dir, newest))
    }

    fn manifest(&self, walk: &mut Walk<'_>, manifest: Ino) -> error::Result<Read> {
        match self.files.version(manifest) {
            Ok(version) => walk.manifest((manifest, &version)).map_err(fault),
            Err(_) => Ok(Read::Wrong("it is not there".to_owned())),
        }
    }
}

fn is_numbered(name: &[u8]) -> bool {
    let digits = name.strip_prefix(NUMBERED).filter(|digits| digits.len() == DIGITS);
    digits.is_some_and(|digits| digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
}

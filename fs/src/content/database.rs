//! Whether an OCDBT database is all there: its nodes, and the files that have its values.

use std::ops::ControlFlow;

use tensorfs_formats::ocdbt::{Asked, Step, Tree, Wrong};
use tensorfs_layout::Ino;

use crate::clock;
use crate::error::{Fault, Result};
use crate::file::Version;

use super::Content;
use super::bytes::fault;
use super::databases::{Known, Seen};

/// How manifests are called that have the number of a version behind, in so many digits; and so many names are looked
/// at for those.
const NUMBERED: &[u8] = b"manifest.";
const DIGITS: usize = 16;

impl Content {
    /// Whether all is there that the newest version of a database needs whose manifest is in a directory.
    ///
    /// # Errors
    /// `EIO` if something of it is of a version that is not known, or compressed in another way, or if there is more of
    /// it than is looked at, and nothing is missing of what is.
    pub(super) fn is_whole_database(&self, dir: Ino, manifest: Ino, names: &[&[u8]]) -> Result<bool> {
        let looked = clock::now();
        let newest = self.newest_of(dir, names);
        let known = self.databases.of(manifest);
        if let Some(known) =
            known.filter(|known| known.dir == dir && known.manifests == [self.seen(Some(manifest)), newest])
            && known.files.iter().all(|(path, file)| self.seen(self.file_below(dir, path)) == *file)
        {
            return known.said.ok_or(Fault::new(libc::EIO));
        }
        let mut tree = Tree::new(false, false);
        let mut read = self.takes(&mut tree, manifest, None)?;
        if tree.is_numbered() && names.iter().any(|name| is_numbered(name)) {
            let Some((newest, _)) = newest else { return Ok(false) };
            read = read.and(self.takes(&mut tree, newest, None)?);
        }
        while read == Read::All
            && let Some(step) = tree.step()
        {
            let Some(file) = self.file_below(dir, &step.place.path) else { return Ok(false) };
            read = self.takes(&mut tree, file, Some(&step))?;
        }
        let files: Vec<_> =
            tree.needed().map(|(path, _)| (path.into(), self.seen(self.file_below(dir, path)))).collect();
        let is_there = |((_, end), (_, file)): ((&str, u64), &(Box<str>, Seen))| {
            file.is_some_and(|(_, version)| version.is_some_and(|version| version.size >= end))
        };
        let said = match read {
            Read::Wrong => Some(false),
            _ if !tree.needed().zip(&files).all(is_there) => Some(false),
            Read::All if tree.unknown().is_none() => Some(true),
            Read::All | Read::TooMuch => None,
        };
        let manifests = [self.seen(Some(manifest)), self.newest_of(dir, names)];
        let all = files.iter().map(|(_, file)| file).chain(&manifests);
        // Each is as it was when all this began.
        let is_settled = |(_, version): &(Ino, Option<Version>)| version.is_none_or(|one| one.is_settled(looked));
        if all.flatten().all(is_settled) {
            self.databases.note(manifest, Known { dir, manifests, files, said });
        }
        said.ok_or(Fault::new(libc::EIO))
    }

    /// The newest manifest with a number.
    fn newest_of(&self, dir: Ino, names: &[&[u8]]) -> Seen {
        let newest = names.iter().filter(|name| is_numbered(name)).max()?;
        self.seen(self.files.store().view().lookup(dir, newest))
    }

    /// What can be seen of a file.
    fn seen(&self, file: Option<Ino>) -> Seen {
        file.map(|ino| (ino, self.files.version(ino).ok()))
    }

    /// Has a place of a file read, and the tree take what is told.
    fn takes(&self, tree: &mut Tree, file: Ino, step: Option<&Step>) -> Result<Read> {
        let Ok(version) = self.files.version(file) else { return Ok(Read::Wrong) };
        let source = self.bytes_of(file, &version);
        let mut read = Read::All;
        let told =
            source.tree(step.map_or(Asked::Manifest, |step| step.asked), &mut |told| match tree.take(step, told) {
                Ok(_) => ControlFlow::Continue(()),
                Err(wrong) => {
                    read = match wrong {
                        Wrong::Damage(_) => Read::Wrong,
                        Wrong::TooMuch(_) => Read::TooMuch,
                    };
                    ControlFlow::Break(())
                }
            });
        source.close();
        let found = told.map_err(fault)?;
        match found.error {
            Some(error) => Err(fault(error)),
            None if found.beyond => Ok(Read::TooMuch),
            None if found.reason.is_some() => Ok(Read::Wrong),
            None => Ok(read),
        }
    }
}

/// What came of reading something of a database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    All,
    /// It is not what it should be.
    Wrong,
    /// There is more of it than is looked at.
    TooMuch,
}

impl Read {
    fn and(self, other: Read) -> Read {
        if self == Read::All { other } else { self }
    }
}

fn is_numbered(name: &[u8]) -> bool {
    let digits = name.strip_prefix(NUMBERED).filter(|digits| digits.len() == DIGITS);
    digits.is_some_and(|digits| digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
}

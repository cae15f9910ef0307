//! Files whose bytes are on their way: several at a time, and each gets its name once it has all of them. Who waits for
//! the last part of one file has those of the next ones come meanwhile.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use tensorfs_layout::log::Record;
use tensorfs_layout::{Ino, SegmentId};

use crate::fetch::Pouring;
use crate::repository::{Entry, Part};

/// A file some of whose bytes are on their way.
pub struct Coming<'a> {
    pub path: String,
    pub entry: &'a Entry,
    pub ino: Ino,
    pub name: Record,
    pub segment: SegmentId,
    pub file: Arc<File>,
    /// So many parts of it have not come.
    left: usize,
    /// All of its parts were asked for.
    is_asked_for: bool,
}

impl<'a> Coming<'a> {
    /// A file none of whose parts was asked for.
    pub fn new(path: &str, (entry, ino, name): (&'a Entry, Ino, Record), (segment, file): (SegmentId, File)) -> Self {
        let (path, file) = (path.to_owned(), Arc::new(file));
        Self { path, entry, ino, name, segment, file, left: 0, is_asked_for: false }
    }
}

/// What is on its way, in the order in which it was asked for.
#[derive(Default)]
pub struct Underway<'a> {
    files: VecDeque<Coming<'a>>,
    parts: VecDeque<(Ino, Pouring)>,
}

impl<'a> Underway<'a> {
    /// One more file.
    pub fn begin(&mut self, file: Coming<'a>) {
        self.files.push_back(file);
    }

    /// A part of a file is on its way.
    pub fn add(&mut self, ino: Ino, part: Pouring) {
        self.parts.push_back((ino, part));
        self.file(ino).into_iter().for_each(|file| file.left += 1);
    }

    /// No more of a file will be asked for.
    pub fn all_asked_for(&mut self, ino: Ino) {
        self.file(ino).into_iter().for_each(|file| file.is_asked_for = true);
    }

    /// The part that was asked for first. It is not on its way any more.
    pub fn next(&mut self) -> Option<(Ino, Pouring)> {
        self.parts.pop_front()
    }

    /// A part of a file has come.
    pub fn came(&mut self, ino: Ino) {
        self.file(ino).into_iter().for_each(|file| file.left = file.left.saturating_sub(1));
    }

    /// A file, if nothing of it is to come any more. It is not on its way then.
    pub fn take_whole(&mut self, ino: Ino) -> Option<Coming<'a>> {
        let is_it = |file: &Coming<'_>| file.ino == ino && file.left == 0 && file.is_asked_for;
        self.files.iter().position(is_it).and_then(|at| self.files.remove(at))
    }

    /// A file.
    pub fn file(&mut self, ino: Ino) -> Option<&mut Coming<'a>> {
        self.files.iter_mut().find(|file| file.ino == ino)
    }

    /// How many objects are on their way, and their bytes.
    pub fn load(&self) -> (usize, u64) {
        (self.parts.len(), self.parts.iter().fold(0, |sum, (_, part)| sum.saturating_add(part.part().0.len())))
    }

    /// True if the object that a part is is on its way.
    pub fn has(&self, part: &Part) -> bool {
        matches!(part, Part::Alone(_)) && self.parts.iter().any(|(_, other)| other.part().0.hash() == part.hash())
    }
}

//! Where objects are in the tree, seen from below. Whatever the tree is, nothing of it takes longer than a bound says.

use rustc_hash::FxHashMap;
use tensorfs_layout::globs::{Globs, joined};
use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, ROOT};

use crate::store::Store;
use crate::store::reserved::REMOTE;

/// So many directories are above one at most, for whoever asks here: more than there are in the longest path.
const DEEPEST: usize = 1 << 12;
/// So many directories are passed on the way to one, in all.
const STEPS: usize = 1 << 16;
/// So many names are looked at while nobody can change the tree.
const LOT: usize = 1 << 10;

/// What is right above an object.
enum Above {
    Directory(Ino),
    /// Nothing: it is the root.
    Root,
    /// It has no name.
    Nowhere,
    /// It has several names, and nobody knows where they are.
    Several,
}

fn above(view: &View, ino: Ino) -> Above {
    match view.object(ino) {
        _ if ino == ROOT => Above::Root,
        Some(object) if object.names() > 0 => {
            let dir = if object.is_dir() { object.parent() } else { object.only_place() };
            dir.map_or(Above::Several, Above::Directory)
        }
        _ => Above::Nowhere,
    }
}

/// The way from an object to the root.
pub(super) enum Way {
    /// By these directories: the one that it is in first, the root last.
    By(Vec<Ino>),
    /// There is none: it has no name.
    Nowhere,
    /// There are several.
    Several,
    /// It is too long.
    Long,
}

/// The way from an object to the root.
pub(super) fn way(view: &View, ino: Ino) -> Way {
    let (mut dirs, mut at) = (Vec::new(), ino);
    while dirs.len() < DEEPEST {
        at = match above(view, at) {
            Above::Directory(dir) => dir,
            Above::Root => return Way::By(dirs),
            Above::Nowhere => return Way::Nowhere,
            Above::Several => return Way::Several,
        };
        dirs.push(at);
    }
    Way::Long
}

/// True of a directory nothing below which is carried.
pub(super) fn says_no(view: &View, dir: Ino) -> bool {
    view.object(dir).is_some_and(|dir| dir.is_dir() && dir.xattr(REMOTE) == Some(b"no"))
}

/// Whether globs fit a name in the first one of these directories, which are a way to the root, or one of their names.
pub(super) fn fit(view: &View, globs: &Globs, (dirs, own): (&[Ino], &[u8])) -> bool {
    let mut path: Option<Vec<u8>> = globs.want_paths().then(Vec::new);
    let above = dirs.iter().rev().filter(|dir| **dir != ROOT).filter_map(|dir| view.name_of_directory(*dir));
    above.chain([own]).any(|name| {
        path = path.take().and_then(|path| joined(&path, name));
        globs.fit(name, path.as_deref())
    })
}

/// What there is in a directory, seen from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is not below that one.
    Elsewhere,
    /// It is.
    Below,
    /// It is, and a directory between the two says that it is not carried.
    LeftOut,
    /// It has several names, or it would take too long.
    Unknown,
}

/// Finds out what is below a directory, as long as nobody changes the tree.
pub(super) struct Below {
    top: Ino,
    known: FxHashMap<Ino, Place>,
    steps: usize,
}

impl Below {
    /// Nothing is known yet of what is below a directory.
    pub fn new(top: Ino) -> Self {
        Self { top, known: FxHashMap::default(), steps: STEPS }
    }

    /// Where an object is.
    pub fn place(&mut self, view: &View, ino: Ino) -> Place {
        match above(view, ino) {
            Above::Directory(dir) => self.place_in(view, dir),
            Above::Root | Above::Nowhere => Place::Elsewhere,
            Above::Several => Place::Unknown,
        }
    }

    /// Where that is which is in a directory.
    fn place_in(&mut self, view: &View, dir: Ino) -> Place {
        let (mut passed, mut at) = (Vec::new(), dir);
        let mut place = loop {
            if at == self.top {
                break Place::Below;
            }
            if let Some(place) = self.known.get(&at) {
                break *place;
            }
            if self.steps == 0 {
                return Place::Unknown;
            }
            self.steps -= 1;
            passed.push(at);
            at = match above(view, at) {
                Above::Directory(dir) => dir,
                Above::Root | Above::Nowhere => break Place::Elsewhere,
                Above::Several => break Place::Unknown,
            };
        };
        for dir in passed.into_iter().rev() {
            if place == Place::Below && says_no(view, dir) {
                place = Place::LeftOut;
            }
            self.known.insert(dir, place);
        }
        place
    }
}

/// The name of an object that has just one, and the directory that it is in; nothing if it has not, or if so many names
/// as are `left` to be looked at do not lead to it.
pub(super) fn name_of(store: &Store, ino: Ino, left: &mut usize) -> Option<(Ino, Vec<u8>)> {
    let mut cookie = 0;
    loop {
        let view = store.view();
        let Above::Directory(dir) = above(&view, ino) else { return None };
        if let Some(name) = view.name_of_directory(ino) {
            return Some((dir, name.to_vec()));
        }
        let mut seen = 0;
        for (place, name, found) in view.entries_after(dir, cookie).take(LOT.min(*left)) {
            if found == ino {
                return Some((dir, name.to_vec()));
            }
            (seen, cookie) = (seen + 1, place);
        }
        *left -= seen;
        if seen == 0 {
            return None;
        }
    }
}

//! Whether the pool's second copy has a file, or all that is below a directory, as it is now.
//!
//! The carrier notes up to which transaction of the log the copy has all, and which files it has not whole. So what was
//! not touched since, and nothing is about to touch, is there. What is not known to be is said not to be.
//!
//! Whether something may write a file is asked before the tree is looked at: what it has written is recorded before
//! it is no writer any more.

use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, ROOT, TxId};

use crate::error::{Fault, Result};
use crate::protocol::FileState;
use crate::store::{Reached, SecondCopy};

use super::Content;
use super::places::{self, Below, Place, Way, name_of, says_no, way};

/// So many names are looked at to find one that a glob may fit.
const NAMES: usize = 1 << 16;
/// So many objects are looked at while nobody can change the tree.
const LOT: usize = 1 << 10;
/// So many in all.
const MOST: usize = 1 << 16;
/// So often this begins anew as the tree was changed meanwhile.
const TRIES: u32 = 4;

/// What is said of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// It is left out.
    No,
    Carried,
    /// It is not known to be carried.
    Behind,
}

impl Word {
    fn text(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Carried => "carried",
            Self::Behind => "behind",
        }
    }
}

impl Content {
    /// Whether a file or a directory is carried. None if the host's disk has to be read for it, and `may_read` is
    /// false.
    pub(super) fn is_carried(&self, ino: Ino, may_read: bool) -> Result<Option<&'static str>> {
        let none = || Fault::new(libc::ENODATA);
        let store = self.files.store();
        let is_dir = {
            let view = store.view();
            if says_no(&view, ino) {
                return Ok(Some(Word::No.text()));
            }
            let object = view.object(ino).filter(|object| object.is_dir() || object.is_file());
            object.ok_or_else(none)?.is_dir()
        };
        if !may_read {
            return Ok(None);
        }
        let copy = store.second_copy().ok_or_else(none)?;
        if !is_dir {
            return self.word_of_file(ino, &copy).map(|word| Some(word.text()));
        }
        let mut words = (0..TRIES).filter_map(|_| self.word_of_directory(ino, &copy));
        Ok(Some(words.next().unwrap_or(Word::Behind).text()))
    }

    fn word_of_file(&self, ino: Ino, copy: &SecondCopy) -> Result<Word> {
        let is_at_rest = match self.file_state(ino)? {
            FileState::Sealed | FileState::Committed | FileState::Interrupted | FileState::Away => true,
            FileState::Open | FileState::Damaged | FileState::Lost | FileState::Missing => false,
        };
        let store = self.files.store();
        let name = if copy.globs.is_empty() { None } else { name_of(store, ino, &mut { NAMES }) };
        let view = store.view();
        let dirs = match way(&view, ino) {
            Way::By(dirs) => dirs,
            // Nothing leads to it, and so it is not carried.
            Way::Nowhere => return Ok(Word::No),
            Way::Several if is_at_rest => return Ok(self.word_of_several_names(&view, ino, copy)),
            Way::Several | Way::Long => return Ok(Word::Behind),
        };
        // What has left for the remote is carried wherever it is.
        if !is_in_own_remote(&view, ino) {
            if dirs.iter().any(|dir| says_no(&view, *dir)) {
                return Ok(Word::No);
            }
            if !copy.globs.is_empty() {
                let Some((dir, name)) = name else { return Ok(Word::Behind) };
                if dirs.first() != Some(&dir) || view.lookup(dir, &name) != Some(ino) {
                    return Ok(Word::Behind);
                }
                if places::fit(&view, &copy.globs, (&dirs, &name)) {
                    return Ok(Word::No);
                }
            }
        }
        let Some(Reached { transaction, unsettled, .. }) = copy.reached.as_ref().filter(|_| is_at_rest) else {
            return Ok(Word::Behind);
        };
        let is_carried = !unsettled.contains(&ino) && self.is_untouched(ino, &dirs, *transaction);
        Ok(if is_carried { Word::Carried } else { Word::Behind })
    }

    /// True of what was not touched since a transaction, and has the path that it had then. To be asked with the view.
    fn is_untouched(&self, ino: Ino, dirs: &[Ino], since: TxId) -> bool {
        let newer = self.files.store().touched().newer(since);
        newer.is_some_and(|newer| {
            !newer.is_changed(ino) && !newer.is_named(ino) && !dirs.iter().any(|dir| newer.is_named(*dir))
        })
    }

    /// Of a file with several names nobody knows where they are. All are carried if it was not touched, if no directory
    /// has another name, and if nothing is left out.
    fn word_of_several_names(&self, view: &View, ino: Ino, copy: &SecondCopy) -> Word {
        let reached = copy.reached.as_ref().filter(|reached| reached.all && !reached.unsettled.contains(&ino));
        let Some(newer) = reached.and_then(|reached| self.files.store().touched().newer(reached.transaction)) else {
            return Word::Behind;
        };
        let is_moved = |dir: Ino| newer.is_named(dir) && view.object(dir).is_some_and(|object| object.is_dir());
        let is_carried = !newer.is_changed(ino) && !newer.is_named(ino) && !newer.all().any(is_moved);
        if is_carried { Word::Carried } else { Word::Behind }
    }

    /// Nothing if the tree was changed meanwhile.
    fn word_of_directory(&self, top: Ino, copy: &SecondCopy) -> Option<Word> {
        let store = self.files.store();
        let restless = store.writers().inos().into_iter().chain(store.known_damaged());
        let restless: Vec<Ino> = restless.collect();
        let mut view = store.view();
        let newest = store.pool().newest();
        let dirs = match way(&view, top) {
            Way::By(dirs) => dirs,
            Way::Nowhere => return Some(Word::No),
            Way::Several | Way::Long => return Some(Word::Behind),
        };
        if dirs.iter().any(|dir| says_no(&view, *dir)) {
            return Some(Word::No);
        }
        let globs = &*copy.globs;
        let is_out = |view: &View, dir: Ino, dirs: &[Ino]| {
            !globs.is_empty()
                && dir != ROOT
                && view.name_of_directory(dir).is_some_and(|name| places::fit(view, globs, (dirs, name)))
        };
        if is_out(&view, top, &dirs) {
            return Some(Word::No);
        }
        let Some(Reached { transaction, unsettled, .. }) = &copy.reached else { return Some(Word::Behind) };
        if !self.is_untouched(top, &dirs, *transaction) {
            return Some(Word::Behind);
        }
        let mut looked_at: Vec<Ino> = store.touched().newer(*transaction)?.all().collect();
        looked_at.extend(unsettled.iter().chain(&restless));
        if looked_at.len() > MOST {
            return Some(Word::Behind);
        }
        let (mut below, mut found) = (Below::new(top), Vec::new());
        for (number, lot) in looked_at.chunks(LOT).enumerate() {
            if number > 0 {
                drop(view);
                view = store.view();
                if store.pool().newest() != newest {
                    return None;
                }
            }
            for ino in lot {
                match below.place(&view, *ino) {
                    Place::Elsewhere | Place::LeftOut => {}
                    Place::Below if !globs.is_empty() => found.push(*ino),
                    Place::Below | Place::Unknown => return Some(Word::Behind),
                }
            }
        }
        drop(view);
        // Some of what is there may be left out.
        let mut left = NAMES;
        for ino in found {
            let name = name_of(store, ino, &mut left);
            let view = store.view();
            let (Some((_, name)), Way::By(dirs)) = (name, way(&view, ino)) else { return Some(Word::Behind) };
            if !places::fit(&view, globs, (&dirs, &name)) {
                return Some(Word::Behind);
            }
        }
        let _unchanging = store.view();
        (store.pool().newest() == newest || globs.is_empty()).then_some(Word::Carried)
    }
}

/// True of a file whose bytes the pool's own remote alone has.
fn is_in_own_remote(view: &View, ino: Ino) -> bool {
    let segment = view.object(ino).and_then(|object| object.attributes.segment);
    let own = view.remote().filter(|(_, tier)| tier.is_own_remote());
    segment.is_some_and(|segment| own.is_some_and(|(number, _)| segment.tier() == number))
}

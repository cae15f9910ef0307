//! Where files are, for whoever looks at requests: these tell of numbers, or of names in directories of a number.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use tensorfs_layout::tree::{Object, View};
use tensorfs_layout::{Ino, ROOT};

use crate::store::Store;

/// So many names are kept in mind.
const MOST: usize = 1 << 16;
/// So many files are searched for at a time.
const MISSED: usize = 4096;
/// The tree is not searched more often: that goes through all of it.
const PAUSE: Duration = Duration::from_secs(2);
/// So many names are looked at before others may change the tree.
const LOT: usize = 256;
/// A path has no more steps (4095 bytes).
const STEPS: usize = 2048;

/// A name of something, in a directory.
type Name = (Ino, Box<[u8]>);

/// Names under which files and directories were seen.
#[derive(Default)]
pub(super) struct Paths {
    known: HashMap<Ino, Name>,
    missed: HashSet<Ino>,
    searched: Option<Instant>,
}

impl Paths {
    /// A name was used.
    pub fn saw(&mut self, view: &View, dir: Ino, name: &[u8]) {
        if let Some(ino) = view.lookup(dir, name) {
            self.keep(ino, (dir, name.into()));
        }
    }

    fn keep(&mut self, ino: Ino, name: Name) {
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(ino, name);
    }

    /// The path of something from the mount's root on, if it is known.
    pub fn of(&mut self, view: &View, ino: Ino) -> Option<Vec<u8>> {
        let (mut at, mut names) = (ino, Vec::new());
        while at != ROOT {
            let known = self.known.get(&at).filter(|(dir, name)| view.lookup(*dir, name) == Some(at));
            match known {
                Some((dir, name)) if names.len() < STEPS => {
                    names.push(&**name);
                    at = *dir;
                }
                _ => {
                    if self.missed.len() < MISSED {
                        self.missed.insert(at);
                    }
                    return None;
                }
            }
        }
        if names.is_empty() {
            Some(b"/".to_vec())
        } else {
            Some(names.iter().rev().flat_map(|name| [b"/", *name].concat()).collect())
        }
    }

    /// Searches for what was missed, by a walk through the tree, unless that was done just now.
    pub fn search(&mut self, store: &Store) {
        if self.missed.is_empty() || self.searched.is_some_and(|then| then.elapsed() < PAUSE) {
            return;
        }
        let mut wanted = std::mem::take(&mut self.missed);
        let (mut left, mut entered) = (vec![(ROOT, 0)], HashMap::<Ino, Name>::new());
        while let Some((dir, mut cookie)) = left.pop() {
            if wanted.is_empty() {
                break;
            }
            let view = store.view();
            let mut count = 0;
            for (at, name, ino) in view.entries_after(dir, cookie).take(LOT) {
                (count, cookie) = (count + 1, at);
                if wanted.remove(&ino) {
                    self.keep(ino, (dir, name.into()));
                    let mut above = dir;
                    while let Some((parent, name)) = entered.get(&above) {
                        self.keep(above, (*parent, name.clone()));
                        above = *parent;
                    }
                }
                if count == LOT {
                    left.push((dir, cookie));
                }
                if view.object(ino).is_some_and(Object::is_dir) && ino != ROOT && !entered.contains_key(&ino) {
                    entered.insert(ino, (dir, name.into()));
                    left.push((ino, 0));
                }
            }
        }
        self.searched = Some(Instant::now());
    }
}

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
/// A search goes through all of the tree. The next one waits for so many times as long as it took, and no longer than
/// this: what is asked for meanwhile is told without its path.
const REST: u32 = 20;
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
    /// No search before.
    next: Option<Instant>,
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
                    let can_be_found = || view.object(at).is_some_and(|object| object.names() > 0);
                    if known.is_none() && self.missed.len() < MISSED && can_be_found() {
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
        let begun = Instant::now();
        if self.missed.is_empty() || self.next.is_some_and(|next| begun < next) {
            return;
        }
        let (found, entered) = walk(store, std::mem::take(&mut self.missed));
        // From each up to the root, or to where another one has come by.
        for (ino, name) in found {
            let mut above = name.0;
            self.keep(ino, name);
            for _ in 0..STEPS {
                let Some(name) = entered.get(&above).filter(|name| self.known.get(&above) != Some(name)) else { break };
                self.keep(above, name.clone());
                above = name.0;
            }
        }
        self.next = Some(Instant::now() + pause_after(begun.elapsed()));
    }
}

fn pause_after(search: Duration) -> Duration {
    (search * REST).min(PAUSE)
}

/// What is found of what is wanted, and the directories that were looked through on the way. Others may change the tree
/// meanwhile.
fn walk(store: &Store, mut wanted: HashSet<Ino>) -> (Vec<(Ino, Name)>, HashMap<Ino, Name>) {
    let (mut found, mut entered, mut left) = (Vec::new(), HashMap::<Ino, Name>::new(), vec![(ROOT, 0)]);
    while let Some((dir, mut cookie)) = left.pop() {
        if wanted.is_empty() {
            break;
        }
        let view = store.view();
        let mut count = 0;
        for (at, name, ino) in view.entries_after(dir, cookie).take(LOT) {
            (count, cookie) = (count + 1, at);
            if wanted.remove(&ino) {
                found.push((ino, (dir, name.into())));
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
    (found, entered)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};

    use crate::options::{Durability, Options};
    use crate::testing::Direct;

    use super::*;

    #[test]
    fn searches_take_a_small_part_of_the_time_and_soon_follow_one_that_was_short() {
        assert_eq!(pause_after(Duration::from_micros(50)), Duration::from_millis(1));
        assert_eq!(pause_after(Duration::from_secs(10)), PAUSE);
    }

    /// Files of one deep chain of directories, each of which is searched for.
    #[test]
    fn what_is_deep_is_found_as_far_as_there_are_paths() {
        const DEPTH: usize = 2 * STEPS;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let mut chain = vec![ROOT];
        {
            let direct = Direct::new(pool.clone(), Durability::Fsync);
            for above in 0..DEPTH {
                chain.push(direct.make(chain[above], "d", libc::S_IFDIR | 0o700).unwrap());
            }
        }
        let store = Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024);
        let mut paths = Paths::default();
        let some: Vec<Ino> = chain.iter().copied().step_by(7).skip(1).collect();
        some.iter().for_each(|ino| assert_eq!(paths.of(&store.view(), *ino), None));
        paths.search(&store);
        for (depth, ino) in chain.iter().enumerate().step_by(7).skip(1) {
            let expected = (depth <= STEPS).then(|| b"/d".repeat(depth));
            assert_eq!(paths.of(&store.view(), *ino), expected, "{depth}");
        }
        drop(store);
        pool.close().unwrap();
    }
}

//! Which directories and files of the control tree the tensors of one file are.
//!
//! Names are not kept: a directory is a hash of its path, and an entry says which tensor of the file it comes from,
//! whose name is read again when it is asked for. A file of a million tensors takes 28 MB this way.

use std::collections::HashSet;

use tensorfs_formats::{Mode, Tensor, npy_len};

use super::hash::number;
use super::names::{self, Leaf, Place};

/// The most entries of one file: tensors that are in the tree, and directories. Tensors behind that are left out.
const ENTRIES_MAX: usize = 1 << 21;

/// The number of a file's own directory.
pub(super) const TOP: DirId = DirId(0);

/// A directory within a file: a hash of its path that nobody outside can foresee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DirId(u64);

impl DirId {
    /// That of a number which [`DirId::number`] has given.
    pub fn of(number: u64) -> Self {
        Self(number)
    }

    /// A number that stands for it.
    pub fn number(self) -> u64 {
        self.0
    }

    fn child(self, name: &[u8]) -> DirId {
        // Never that of a file's own directory.
        DirId(number((self.0, name)) | 1)
    }

    fn leaf(self, base: &[u8], step: Option<i64>) -> u64 {
        number((self.0, base, step))
    }
}

/// One name in a directory.
#[derive(Clone, Copy, Debug)]
struct Item {
    dir: DirId,
    /// For a directory its own number; for a tensor a hash of where it is, of its name and its step.
    key: u64,
    /// The tensor, or the first one inside.
    ordinal: u32,
    what: What,
}

/// What a item is, in 32 bits: a directory at some depth; or a tensor of a mode, the nth of that mode, and whether
/// its mode is the one that is not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct What(u32);

impl What {
    const DIRECTORY: u32 = 1 << 31;
    const NAMED: u32 = 1 << 30;
    const MODE_SHIFT: u32 = 27;
    const NTH: u32 = (1 << Self::MODE_SHIFT) - 1;

    fn directory(depth: usize) -> Self {
        Self(Self::DIRECTORY | depth as u32)
    }

    fn tensor(mode: Option<Mode>) -> Self {
        let mode = mode.and_then(|mode| Mode::ALL.iter().position(|&m| m == mode)).map_or(0, |at| at as u32 + 1);
        Self(mode << Self::MODE_SHIFT)
    }

    fn with(self, named: bool, nth: u32) -> Self {
        Self(self.0 & 7 << Self::MODE_SHIFT | if named { Self::NAMED } else { 0 } | nth & Self::NTH)
    }

    fn depth(self) -> Option<usize> {
        (self.0 & Self::DIRECTORY != 0).then_some((self.0 & Self::NTH) as usize)
    }

    fn mode(self) -> u32 {
        self.0 >> Self::MODE_SHIFT & 7
    }

    fn is_named(self) -> bool {
        self.0 & Self::NAMED != 0
    }

    fn nth(self) -> u32 {
        self.0 & Self::NTH
    }
}

/// The entries of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// By directory, and in it by tensor.
    items: Vec<Item>,
    /// Their places, by key, mode and number.
    by_key: Vec<u32>,
}

/// One name of a directory, without the name: that is in the tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub ordinal: u32,
    dir: DirId,
    what: What,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Directory(DirId),
    Tensor(u32),
}

impl Entry {
    /// The entry's name, from its tensor; and its directory if it is one.
    pub fn name(&self, tensor: &Tensor) -> (Vec<u8>, Option<DirId>) {
        let Place { mut directories, base } = names::place(&tensor.name);
        if let Some(depth) = self.what.depth() {
            let name = if depth < directories.len() { directories.swap_remove(depth) } else { Vec::new() };
            let dir = self.dir.child(&name);
            return (name, Some(dir));
        }
        let mode = self.what.is_named().then_some(tensor.mode);
        (Leaf { base: &base, step: tensor.step, mode, nth: self.what.nth() }.name(), None)
    }
}

impl Index {
    /// Takes in a file's next tensor. [`Index::finish`] must follow the last one.
    pub fn add(&mut self, ordinal: u32, tensor: &Tensor, directories: &mut Directories) {
        // What cannot be a file of plain bytes is not one.
        if self.items.len() >= ENTRIES_MAX || npy_len(tensor).is_none() {
            return;
        }
        let place = names::place(&tensor.name);
        let (mut dir, before) = (TOP, self.items.len());
        for (depth, name) in place.directories.iter().enumerate() {
            let child = dir.child(name);
            if directories.0.insert(child.0) {
                self.items.push(Item { dir, key: child.0, ordinal, what: What::directory(depth) });
            }
            dir = child;
        }
        let key = dir.leaf(&place.base, tensor.step);
        self.items.push(Item { dir, key, ordinal, what: What::tensor(tensor.mode) });
        if self.items.len() > ENTRIES_MAX {
            // Not some of its directories either, without it.
            let made = self.items.drain(before..).filter(|item| item.what.depth().is_some());
            for item in made {
                directories.0.remove(&item.key);
            }
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The directories that are there, to go on adding.
    pub fn directories(&self) -> Directories {
        Directories(self.items.iter().filter(|item| item.what.depth().is_some()).map(|item| item.key).collect())
    }

    /// Puts everything in order, and numbers what is alike.
    pub fn finish(&mut self) {
        self.items.sort_unstable_by_key(|item| (item.dir, item.ordinal, item.what));
        let items = &mut self.items[..];
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        order.sort_unstable_by_key(|&place| {
            let item = &items[place as usize];
            (item.key, item.ordinal)
        });
        let mut rest = &mut order[..];
        while let Some(&first) = rest.first() {
            let first = items[first as usize];
            let alike = rest.iter().take_while(|&&place| items[place as usize].key == first.key).count();
            let (alike, behind) = rest.split_at_mut(alike);
            rest = behind;
            if first.what.depth().is_some() {
                continue;
            }
            let mut counts = [0; 8];
            for &place in alike.iter() {
                let what = &mut items[place as usize].what;
                counts[what.mode() as usize] += 1;
                *what = what.with(what.mode() != first.what.mode(), counts[what.mode() as usize]);
            }
            alike.sort_unstable_by_key(|&place| items[place as usize].what);
        }
        self.by_key = order;
    }

    /// What a name in a directory stands for.
    pub(super) fn find(&self, dir: DirId, name: &[u8]) -> Option<Found> {
        let Some(leaf) = Leaf::parse(name) else {
            let child = dir.child(name);
            let item = self.alike(child.0, |_| std::cmp::Ordering::Equal)?;
            return (item.dir == dir && item.what.depth().is_some()).then_some(Found::Directory(child));
        };
        let key = dir.leaf(leaf.base, leaf.step);
        let of = |mode: Option<Mode>, named| {
            let what = What::tensor(mode).with(named, leaf.nth);
            self.alike(key, |item| item.what.cmp(&what))
        };
        let item = match leaf.mode {
            Some(mode) => of(mode, true),
            // Whichever mode came first.
            None => Mode::ALL.into_iter().map(Some).chain([None]).find_map(|mode| of(mode, false)),
        }?;
        Some(Found::Tensor(item.ordinal)).filter(|_| item.dir == dir)
    }

    /// The first tensor of that name that has no step.
    pub(super) fn find_named(&self, name: &[u8]) -> Option<u32> {
        let Place { directories, base } = names::place(name);
        let mut dir = TOP;
        for directory in &directories {
            let Some(Found::Directory(inside)) = self.find(dir, directory) else { return None };
            dir = inside;
        }
        match self.find(dir, &Leaf { base: &base, step: None, mode: None, nth: 1 }.name())? {
            Found::Tensor(ordinal) => Some(ordinal),
            Found::Directory(_) => None,
        }
    }

    fn alike(&self, key: u64, which: impl Fn(&Item) -> std::cmp::Ordering) -> Option<Item> {
        let item = |place: u32| self.items[place as usize];
        let order = |&place: &u32| item(place).key.cmp(&key).then_with(|| which(&item(place)));
        self.by_key.binary_search_by(order).ok().map(|at| item(self.by_key[at]))
    }

    /// The entries of a directory whose tensor is `from` or a later one, in the tensors' order. There is at most one
    /// for each tensor.
    pub(super) fn entries(&self, dir: DirId, from: u32) -> impl Iterator<Item = Entry> {
        let start = self.items.partition_point(|item| (item.dir, item.ordinal) < (dir, from));
        let inside = self.items[start..].iter().take_while(move |item| item.dir == dir);
        inside.map(move |item| Entry { ordinal: item.ordinal, dir, what: item.what })
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<Item>() + self.by_key.capacity() * size_of::<u32>()
    }
}

/// Directories that have an entry already.
#[derive(Default)]
pub(super) struct Directories(HashSet<u64>);

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;
    use tensorfs_formats::recognise;

    /// Tensors as the recogniser gives them, with names, steps and modes of choice.
    fn tensors(list: &[(&str, Option<i64>, Option<Mode>)]) -> Vec<Tensor> {
        let header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n";
        let npy = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header, b"x"].concat();
        let mut found = None;
        let _ = recognise(&&npy[..], &mut |tensor| {
            found = Some(tensor);
            ControlFlow::Continue(())
        });
        let one = found.unwrap();
        let named = |&(name, step, mode): &(&str, Option<i64>, Option<Mode>)| Tensor {
            name: name.into(),
            step,
            mode,
            ..one.clone()
        };
        list.iter().map(named).collect()
    }

    fn index(tensors: &[Tensor]) -> Index {
        let mut index = Index::default();
        let mut directories = Directories::default();
        (0..).zip(tensors).for_each(|(ordinal, tensor)| index.add(ordinal, tensor, &mut directories));
        index.finish();
        index
    }

    /// Every path, by walking down from the top, and that each name is found again.
    fn paths(index: &Index, tensors: &[Tensor], dir: DirId, prefix: &str) -> Vec<String> {
        let mut all = Vec::new();
        for entry in index.entries(dir, 0) {
            let (name, inside) = entry.name(&tensors[entry.ordinal as usize]);
            let path = format!("{prefix}{}", String::from_utf8_lossy(&name));
            match inside {
                Some(inside) => {
                    assert_eq!(index.find(dir, &name), Some(Found::Directory(inside)), "{path}");
                    all.extend(paths(index, tensors, inside, &format!("{path}/")));
                }
                None => {
                    assert_eq!(index.find(dir, &name), Some(Found::Tensor(entry.ordinal)), "{path}");
                    all.push(path);
                }
            }
        }
        all
    }

    /// Proves T9.
    #[test]
    fn a_file_has_so_many_names_and_no_more() {
        let mut one = tensors(&[("", None, None)]).remove(0);
        let (mut index, mut directories) = (Index::default(), Directories::default());
        let mut add = |name: String| {
            one.name = name.into();
            index.add(0, &one, &mut directories);
            index.len()
        };
        for n in 1..ENTRIES_MAX {
            assert_eq!(add(n.to_string()), n);
        }
        // Directories are names, too.
        assert_eq!(add("a/b".into()), ENTRIES_MAX - 1);
        assert_eq!(add("a".into()), ENTRIES_MAX);
        assert_eq!(add("b".into()), ENTRIES_MAX);
        assert_eq!(add("a/b".into()), ENTRIES_MAX);
        assert!(directories.0.is_empty());
    }

    #[test]
    fn nested_names_are_directories() {
        let tensors = tensors(&[
            ("a/b", None, None),
            ("c", None, None),
            ("a/d/e", None, None),
            ("a", None, None),
            ("a.npy/x", None, None),
        ]);
        let index = index(&tensors);
        let want = ["a/b.npy", "a/d/e.npy", "c.npy", "a.npy", "a%2Enpy/x.npy"];
        assert_eq!(paths(&index, &tensors, TOP, ""), want);
        for nothing in ["b.npy", "d", "a/b.npy", "", "c", "c@1.npy", "c@#2.npy", "a.npy.npy", "a%2Enpy.npy"] {
            assert_eq!(index.find(TOP, nothing.as_bytes()), None, "{nothing}");
        }
    }

    #[test]
    fn what_is_alike_is_told_apart_and_keeps_its_name() {
        let (train, eval) = (Some(Mode::Train), Some(Mode::Eval));
        let list = [
            ("w", Some(1), train),
            ("w", Some(2), eval),
            ("w", Some(1), eval),
            ("w", Some(1), train),
            ("w", Some(1), None),
            ("w", Some(1), eval),
            ("x", None, None),
            ("x", None, None),
            ("x@1", None, None),
        ];
        let tensors = tensors(&list);
        let want = [
            "w@1.npy",
            "w@2.npy",
            "w@1@EVAL.npy",
            "w@1@#2.npy",
            "w@1@NONE.npy",
            "w@1@EVAL@#2.npy",
            "x.npy",
            "x@#2.npy",
            "x%401.npy",
        ];
        for len in 0..=list.len() {
            assert_eq!(paths(&index(&tensors[..len]), &tensors, TOP, ""), want[..len]);
        }
        // Grown by and by it is the same.
        let mut grown = Index::default();
        for (ordinal, tensor) in (0..).zip(&tensors) {
            let mut directories = grown.directories();
            grown.add(ordinal, tensor, &mut directories);
            grown.finish();
        }
        assert_eq!(paths(&grown, &tensors, TOP, ""), want);
    }

    #[test]
    fn listing_goes_on_behind_any_tensor() {
        let names: Vec<String> = (0..100).map(|n| format!("d{}/{}", n % 7, n)).collect();
        let list: Vec<_> = names.iter().map(|name| (&name[..], None, None)).collect();
        let tensors = tensors(&list);
        let index = index(&tensors);
        assert_eq!(index.entries(TOP, 0).count(), 7);
        assert_eq!(index.entries(TOP, 3).map(|entry| entry.ordinal).collect::<Vec<_>>(), [3, 4, 5, 6]);
        let Some(Found::Directory(dir)) = index.find(TOP, b"d3") else { panic!("no d3") };
        assert_eq!(index.entries(dir, 11).map(|entry| entry.ordinal).next(), Some(17));
    }
}

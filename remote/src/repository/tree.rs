//! The tree that all lines together make.

use std::collections::{BTreeMap, HashMap};

use crate::repository::batch::Line;
use crate::repository::entry::{Content, Entry, Part};
use crate::repository::names::Hash;

/// Where the bytes of a part are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The object.
    pub object: Hash,
    /// Where in it.
    pub at: u64,
}

/// A tree.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// A table that grows has room for many more than are in it, so that it is of pointers.
    entries: HashMap<u64, Box<Entry>>,
    names: HashMap<u64, BTreeMap<String, u64>>,
}

impl Tree {
    /// Makes what a line says true. An error says why it cannot be.
    pub fn apply(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Object(entry) if entry.ino == 0 => return Err("an object has the number 0".into()),
            Line::Object(mut entry) => {
                // As it was read, a list has room for four; there may be millions of files, each with one part.
                if let Some(file) = &mut entry.file {
                    file.parts.shrink_to_fit();
                    file.seals.shrink_to_fit();
                }
                self.entries.insert(entry.ino, entry);
            }
            Line::Gone(ino) => {
                self.entries.remove(&ino);
                self.names.remove(&ino);
            }
            Line::Name(dir, name, ino) => drop(self.names.entry(dir).or_default().insert(name, ino)),
            Line::Unname(dir, name) => {
                if let Some(names) = self.names.get_mut(&dir) {
                    names.remove(&name);
                }
            }
            Line::Head(_) | Line::End(_) | Line::Page(_) => return Err("a line stands where it cannot".into()),
        }
        Ok(())
    }

    /// Without the tails of files that were open.
    pub fn forget_tails(&mut self) {
        for entry in self.entries.values_mut() {
            entry.file = entry.file.take().map(Content::without_tail);
        }
    }

    /// An object by its number.
    pub fn entry(&self, ino: u64) -> Option<&Entry> {
        self.entries.get(&ino).map(AsRef::as_ref)
    }

    /// All objects, in no order, and none of their names.
    pub fn into_entries(self) -> impl Iterator<Item = Entry> {
        self.entries.into_values().map(|entry| *entry)
    }

    /// How many names each object has.
    pub fn count_names(&self) -> HashMap<u64, u32> {
        let mut counts = HashMap::new();
        self.names.values().flat_map(BTreeMap::values).for_each(|ino| *counts.entry(*ino).or_default() += 1);
        counts
    }

    /// All objects, in no order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().map(AsRef::as_ref)
    }

    /// The names in a directory, and whose they are.
    pub fn names(&self, dir: u64) -> impl Iterator<Item = (&str, u64)> {
        self.names.get(&dir).into_iter().flatten().map(|(name, ino)| (name.as_str(), *ino))
    }

    /// What a path from the root leads to, in parts as text.
    pub fn resolve(&self, path: &str) -> Option<u64> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        parts.try_fold(1, |dir, part| self.names.get(&dir)?.get(part).copied())
    }

    /// What lies below an object, itself included: path from it, and what it is. Each directory once.
    pub fn below(&self, top: u64) -> Vec<(String, &Entry)> {
        let mut found = Vec::new();
        let mut left = vec![(String::new(), top)];
        let mut entered = std::collections::HashSet::new();
        while let Some((path, ino)) = left.pop() {
            let Some(entry) = self.entry(ino) else { continue };
            if entry.is_dir() && entered.insert(ino) {
                left.extend(self.names(ino).map(|(name, ino)| (format!("{path}/{name}"), ino)));
            }
            found.push((path, entry));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// All parts of all files.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.entries().filter_map(|entry| entry.file.as_ref()).flat_map(|file| &file.parts)
    }

    /// Where bytes are, by their BLAKE3.
    pub fn index(&self) -> HashMap<Hash, Stored> {
        let stored = self.parts().filter_map(|part| {
            let (object, at) = part.object()?;
            Some((part.hash()?, Stored { object, at }))
        });
        stored.collect()
    }

    /// The lines that make the tree from nothing.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        let objects = self.entries.values().map(|entry| Line::Object(entry.clone()));
        let names = self
            .names
            .iter()
            .flat_map(|(dir, names)| names.iter().map(|(name, ino)| Line::Name(*dir, name.clone(), *ino)));
        objects.chain(names)
    }
}

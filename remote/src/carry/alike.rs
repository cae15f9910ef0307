//! Files that have the same bytes, by size and checksum. One that is new is cut as the one that is there was, which may
//! have grown, so that no byte of it is put again. Where it is another one after all, nothing is lost but that.

use std::collections::HashMap;

use tensorfs_formats::crc32c_join;

use crate::repository::{Content, Line, Part, Sealed, Tree};

/// Bytes of a file, and their CRC32C.
type Key = (u64, u32);

/// The files of the remote's tree that have several parts.
#[derive(Debug, Default)]
pub struct Alike {
    files: HashMap<Key, u64>,
    keys: HashMap<u64, Key>,
}

impl Alike {
    /// Those of a tree.
    pub fn of(tree: &Tree) -> Self {
        let mut alike = Self::default();
        tree.entries().for_each(|entry| alike.note(entry.ino, entry.file.as_ref()));
        alike
    }

    /// The tree is as this line says from now on.
    pub fn apply(&mut self, line: &Line) {
        match line {
            Line::Object(entry) => self.note(entry.ino, entry.file.as_ref()),
            Line::Gone(ino) => self.note(*ino, None),
            _ => {}
        }
    }

    fn note(&mut self, ino: u64, file: Option<&Content>) {
        if let Some(key) = self.keys.remove(&ino)
            && self.files.get(&key) == Some(&ino)
        {
            self.files.remove(&key);
        }
        if let Some(file) = file.filter(|file| file.parts.len() > 1)
            && let Some(key) = key(file.size, &file.seals)
        {
            self.files.insert(key, ino);
            self.keys.insert(ino, key);
        }
    }

    /// The parts of a file of the tree that has the same bytes as one of this size with these seals.
    pub fn parts<'a>(&self, tree: &'a Tree, size: u64, seals: &[Sealed]) -> &'a [Part] {
        let ino = key(size, seals).and_then(|key| self.files.get(&key));
        let file = ino.and_then(|ino| tree.entry(*ino)?.file.as_ref());
        file.map_or(&[], |file| &file.parts)
    }
}

fn key(size: u64, seals: &[Sealed]) -> Option<Key> {
    (!seals.is_empty()).then(|| (size, crc32c_join(seals.iter().map(|sealed| (sealed.0, sealed.1)))))
}

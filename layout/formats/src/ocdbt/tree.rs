//! A tree as it is gone through, node by node: what is to be read next, and what has been told of all that was.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::arrays::{Metadata, What};
use crate::names::is_below;

use super::told::{Asked, At, LENGTH_MAX, Tail, Told, Value, metadata_of};

/// A tree may have so many nodes, each counted for every way that leads to it; keys; and bytes of them.
const NODES_MAX: usize = 1 << 14;
const KEYS_MAX: usize = 1 << 20;
const KEYS_BYTES_MAX: usize = 64 << 20;
/// Bytes of nodes, each counted as often.
const NODES_BYTES_MAX: u64 = 1 << 30;
/// Data files, and bytes of their paths: of those that a node names, and of all that have something of the tree.
const FILES_MAX: usize = 1 << 16;
const FILES_BYTES_MAX: usize = 8 << 20;
/// What is to be read yet takes so many bytes.
const LEFT_MAX: usize = 8 << 20;

/// A place in a data file, whose path leads from the directory of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The path: names joined by `/`, each of a file or directory below.
    pub path: Arc<str>,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// What is to be read next.
#[derive(Clone, Debug)]
pub struct Step {
    /// In which file, and where.
    pub place: Place,
    /// What is to be asked of it.
    pub asked: Asked,
    /// What its keys have in front, and the paths that it names.
    prefix: Arc<[u8]>,
    base: Arc<[u8]>,
    /// Its height in the tree.
    height: u8,
}

/// A key.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// All of it.
    pub key: Vec<u8>,
    /// Bytes of its value.
    pub len: u64,
    /// Where the value is. None if it stands beside the key.
    pub place: Option<Place>,
    /// Its bytes, if it stands beside the key and that is wanted.
    pub bytes: Vec<u8>,
    /// What it says that an array is, if the key is called so and it stands beside that.
    pub what: Option<What>,
    /// The key is called as metadata of an array is.
    pub metadata: Option<Metadata>,
}

/// Why a tree is not gone through any further: in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// That cannot be.
    Damage(String),
    /// There is more than is looked at, which says nothing of what there is.
    TooMuch(String),
}

impl Wrong {
    fn damage(what: &str) -> Wrong {
        Wrong::Damage(what.to_owned())
    }
}

/// One that is gone through.
#[derive(Default)]
pub struct Tree {
    /// Values that stand beside keys are wanted.
    with_values: bool,
    /// Nodes of older versions are read, too.
    with_versions: bool,
    /// What is to be read, in reverse.
    left: Vec<Step>,
    /// Children of the node that is read.
    children: Vec<Step>,
    /// Files that the node names.
    files: Vec<Named>,
    /// How far each data file goes at least.
    needed: BTreeMap<Arc<str>, u64>,
    taken: Taken,
    /// The last key.
    last: Option<Vec<u8>>,
    is_numbered: bool,
    version: Option<u64>,
    unknown: Option<String>,
}

/// What was met so far, and what is kept.
#[derive(Default)]
struct Taken {
    nodes: usize,
    /// Bytes of those, and of those that are to be read.
    nodes_bytes: u64,
    keys: usize,
    /// Bytes of those.
    keys_bytes: usize,
    /// Bytes of what is to be read.
    left_bytes: usize,
    /// Bytes of the paths of the files that the node names, and of those that are needed.
    files_bytes: usize,
    needed_bytes: usize,
}

/// A file that a node names.
struct Named {
    /// Its path, if that leads below.
    path: Option<Arc<str>>,
    /// What of it is in front of all paths that are told below.
    base: Arc<[u8]>,
}

impl Tree {
    /// What is to be read next. None if all has been.
    pub fn step(&mut self) -> Option<Step> {
        self.children.reverse();
        self.left.append(&mut self.children);
        self.files.clear();
        self.taken.files_bytes = 0;
        let step = self.left.pop()?;
        self.taken.left_bytes -= weight(&step);
        self.taken.nodes += 1;
        Some(step)
    }

    /// The tree of a manifest that is to be read first. Values that stand beside their keys are told if `with_values`;
    /// nodes of older versions are read as well if `with_versions`.
    pub fn new(with_values: bool, with_versions: bool) -> Tree {
        Tree { with_values, with_versions, ..Tree::default() }
    }

    /// Takes what is told of the manifest (`at` None), or of a place that was to be read next. A key is handed back.
    ///
    /// # Errors
    /// What cannot be, or is more than is looked at.
    pub fn take(&mut self, at: Option<&Step>, told: Told) -> Result<Option<Entry>, Wrong> {
        match told {
            Told::Unknown(why) => drop(self.unknown.get_or_insert(why)),
            Told::Numbered => self.is_numbered = true,
            Told::File { path, base } => self.name(at, &path, base)?,
            Told::Version { generation, height, root } => {
                self.version = Some(generation);
                if let Some(root) = root {
                    let (place, base) = self.place(root)?;
                    self.push(place, base, b"", height, false)?;
                }
            }
            Told::Versions { at: child, height } => {
                let is_less = at.is_none_or(|at| height < at.height);
                let (place, base) = self.place(child)?;
                match is_less {
                    true if self.with_versions => self.push(place, base, b"", height, true)?,
                    true => {}
                    false => {
                        return Err(Wrong::damage("a node of versions that is not below the one that leads to it"));
                    }
                }
            }
            Told::Child { key, at: child } => {
                let Some(step) = at.filter(|at| at.height > 0) else { return Err(Wrong::damage(NOT_ASKED)) };
                let prefix = joined(&step.prefix, &key)?;
                let height = step.height - 1;
                let (place, base) = self.place(child)?;
                self.push(place, base, &prefix, height, false)?;
            }
            Told::Key { key, value } => {
                let Some(step) = at.filter(|at| at.height == 0) else { return Err(Wrong::damage(NOT_ASKED)) };
                let key = joined(&step.prefix, &key)?;
                return self.key(key, value).map(Some);
            }
            Told::Array(_) => return Err(Wrong::damage(NOT_ASKED)),
        }
        Ok(None)
    }

    /// Why not all of it is looked into, if something is of a version that is not known, or compressed in another way.
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// The manifest says that versions are in manifests with numbers in their names.
    pub fn is_numbered(&self) -> bool {
        self.is_numbered
    }

    /// The number of the newest version.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// How far each data file goes at least that something is in.
    pub fn needed(&self) -> impl Iterator<Item = (&str, u64)> {
        self.needed.iter().map(|(path, end)| (&**path, *end))
    }

    /// Keys so far.
    pub fn keys(&self) -> usize {
        self.taken.keys
    }

    fn name(&mut self, at: Option<&Step>, path: &[u8], base: u16) -> Result<(), Wrong> {
        let before: &[u8] = at.map_or(&[], |at| &at.base);
        let whole = joined(before, path)?;
        let base: Arc<[u8]> = whole[..before.len() + usize::from(base)].into();
        // One that leads elsewhere is no fault as long as nothing is in it.
        let path = String::from_utf8(whole).ok().filter(|path| is_below(path));
        let path = path.map(|path| match self.needed.get_key_value(path.as_str()) {
            Some((known, _)) => known.clone(),
            None => path.into(),
        });
        self.taken.files_bytes += path.as_ref().map_or(0, |path| path.len()) + base.len();
        self.files.push(Named { path, base });
        if self.files.len() > FILES_MAX || self.taken.files_bytes > FILES_BYTES_MAX {
            return Err(Wrong::TooMuch(MANY_FILES.to_owned()));
        }
        Ok(())
    }

    /// A place that a node names, with what paths have in front that are told there.
    fn place(&mut self, at: At) -> Result<(Place, Arc<[u8]>), Wrong> {
        let Some(Named { path, base }) = self.files.get(at.file as usize) else { return Err(Wrong::damage(NOT_ASKED)) };
        let Some(path) = path else { return Err(Wrong::damage("a data file that is not below the directory")) };
        let end = at.offset.checked_add(at.len).ok_or_else(|| Wrong::damage("a place that cannot be"))?;
        let place = Place { path: path.clone(), offset: at.offset, len: at.len };
        let base = base.clone();
        let needed = self.needed.entry(place.path.clone()).or_insert_with(|| {
            self.taken.needed_bytes += place.path.len();
            0
        });
        *needed = end.max(*needed);
        match self.needed.len() > FILES_MAX || self.taken.needed_bytes > FILES_BYTES_MAX {
            true => Err(Wrong::TooMuch(MANY_FILES.to_owned())),
            false => Ok((place, base)),
        }
    }

    fn push(&mut self, place: Place, base: Arc<[u8]>, prefix: &[u8], height: u8, is_old: bool) -> Result<(), Wrong> {
        let (at, len) = (place.offset, place.len);
        let asked = match is_old {
            true => Asked::Versions { at, len, height },
            false => Asked::Node { at, len, height, tail: Tail::of(prefix), with_values: self.with_values },
        };
        let step = Step { place, asked, prefix: prefix.into(), base, height };
        self.taken.left_bytes += weight(&step);
        self.children.push(step);
        if self.taken.nodes + self.left.len() + self.children.len() > NODES_MAX || self.taken.left_bytes > LEFT_MAX {
            return Err(Wrong::TooMuch(format!("more than {NODES_MAX} nodes")));
        }
        self.taken.nodes_bytes = self.taken.nodes_bytes.saturating_add(len);
        if self.taken.nodes_bytes > NODES_BYTES_MAX {
            return Err(Wrong::TooMuch(format!("nodes of more than {NODES_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    fn key(&mut self, key: Vec<u8>, value: Value) -> Result<Entry, Wrong> {
        self.taken.keys += 1;
        self.taken.keys_bytes += key.len();
        if self.taken.keys > KEYS_MAX || self.taken.keys_bytes > KEYS_BYTES_MAX {
            return Err(Wrong::TooMuch(format!("more than {KEYS_MAX} keys, or {KEYS_BYTES_MAX} bytes of them")));
        }
        // So none is told twice, however many ways lead to it.
        if self.last.as_ref().is_some_and(|last| *last >= key) {
            return Err(Wrong::damage("keys that are not in order"));
        }
        self.last = Some(key.clone());
        let metadata = metadata_of(&key);
        Ok(match value {
            Value::At(at) => {
                let (place, _) = self.place(at)?;
                Entry { key, len: place.len, place: Some(place), bytes: Vec::new(), what: None, metadata }
            }
            Value::Here { len, bytes, what } => Entry { key, len, place: None, bytes, what, metadata },
        })
    }
}

/// They, or their names, are more than is looked at.
const MANY_FILES: &str = "more data files than are looked at";
/// Something else was asked.
const NOT_ASKED: &str = "what cannot be in a node of that height";

/// What a step takes while it waits.
fn weight(step: &Step) -> usize {
    size_of::<Step>() + step.prefix.len() + step.base.len()
}

fn joined(before: &[u8], behind: &[u8]) -> Result<Vec<u8>, Wrong> {
    match before.len() + behind.len() {
        len if len <= LENGTH_MAX => Ok([before, behind].concat()),
        _ => Err(Wrong::damage("a key or a path that is too long")),
    }
}

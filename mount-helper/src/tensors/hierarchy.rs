//! Hierarchies of arrays that are directories, as a walk comes by them: zarr 2 and 3, n5, and OCDBT.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tensorfs_formats::{Array, Metadata, What};
use tensorfs_fs::Inspector;

use crate::show::failure::{self, Failure};
use crate::tensors::chunks::Chunks;
use crate::tensors::place::Place;

/// What users say of arrays and groups of zarr 2.
const ATTRIBUTES: &str = ".zattrs";
/// What an array is called that is a hierarchy by itself.
const ALONE: &str = "array";

/// What a walk has come by.
pub enum Seen {
    /// An array.
    Array(Box<Stored>),
    /// Something of it is not understood, or is told twice and not the same: no damage.
    Odd(Failure),
    /// What cannot be read.
    Trouble(Failure),
    /// All of a hierarchy was gone through.
    End(Sum),
}

/// An array in its directory.
pub struct Stored {
    /// The root of its hierarchy.
    root: PathBuf,
    /// The name of the format in print.
    format: &'static str,
    /// The way to it from the root, names joined by `/`.
    way: String,
    /// What its metadata says.
    pub(super) array: Array,
    /// Which chunks are there, if it is known how they are called.
    pub(super) chunks: Option<Chunks>,
}

/// What a hierarchy has in all.
pub struct Sum {
    /// Its root.
    path: PathBuf,
    /// The name of the format in print.
    format: &'static str,
    /// A database, whose arrays are not looked into.
    is_database: bool,
    /// How many arrays there are.
    arrays: u64,
    /// Chunks that are there, and that there may be.
    chunks: (u64, u64),
    /// Bytes of those that are there.
    bytes: u64,
}

/// Those that a walk comes by, of which one at a time is gone through.
pub struct Hierarchies {
    inspector: Inspector,
    /// Whether it is kept where chunks are.
    keep: bool,
    open: Option<Open>,
}

/// One that is gone through.
struct Open {
    sum: Sum,
    /// What is told of all that is below, by the ways to it, and not come by yet.
    named: BTreeMap<String, What>,
}

impl Hierarchies {
    /// Nothing is gone through yet.
    pub fn new(inspector: &Inspector) -> Hierarchies {
        Hierarchies { inspector: inspector.clone(), keep: false, open: None }
    }

    /// Keeps where chunks are, for who is to read them.
    pub fn to_read(inspector: &Inspector) -> Hierarchies {
        Hierarchies { keep: true, ..Hierarchies::new(inspector) }
    }

    /// Comes into a directory. What of it is metadata or chunks is taken out of what is in it.
    pub fn enter(&mut self, dir: &Place, inside: &mut Vec<Place>) -> Vec<Seen> {
        let mut seen: Vec<Seen> = self.leave(dir.path()).into_iter().flatten().collect();
        let own = self.look(dir, inside, &mut seen);
        let Some(open) = &mut self.open else { return seen };
        let Some(name) = below(&open.sum.path, dir.path()) else { return seen };
        let told = open.named.remove(&name);
        match (&own, &told) {
            (Some(What::Array(own)), Some(What::Array(told))) if own != told => {
                let what = "what is told of it in the root of its hierarchy is not what it says itself";
                seen.push(Seen::Odd(Failure::at(dir.path(), what)));
            }
            _ => {}
        }
        match own.or(told) {
            Some(What::Array(array)) => {
                seen.extend(array.odd.iter().map(|why| Seen::Odd(Failure::at(dir.path(), why))));
                let chunks = Chunks::of(inside, &array, self.keep, &mut |failure| seen.push(Seen::Trouble(failure)));
                let stored = open.sum.add(&name, array, chunks);
                let fault = stored.chunks.as_ref().and_then(Chunks::fault);
                seen.extend(fault.map(|fault| Seen::Trouble(Failure::at(dir.path(), fault))));
                seen.push(Seen::Array(Box::new(stored)));
            }
            Some(What::Unknown(why)) => {
                let what = format!("{} that is not understood: {why}", open.sum.format);
                seen.push(Seen::Trouble(Failure::at(dir.path(), what)));
            }
            Some(What::Database) => open.sum.is_database = true,
            Some(What::Group) | None => {}
        }
        seen
    }

    /// Comes to a path, and says what there is of a hierarchy that it is not in.
    pub fn leave(&mut self, path: &Path) -> Option<Vec<Seen>> {
        let is_over = self.open.as_ref().is_some_and(|open| below(&open.sum.path, path).is_none());
        is_over.then(|| self.end())
    }

    /// The walk is over.
    pub fn end(&mut self) -> Vec<Seen> {
        let Some(Open { mut sum, named }) = self.open.take() else { return Vec::new() };
        let mut seen = Vec::new();
        // Of what is told of below, and has no directory, no chunk is there.
        for (name, what) in named {
            if let What::Array(array) = what {
                let chunks = Chunks::none_of(&array);
                seen.push(Seen::Array(Box::new(sum.add(&name, array, chunks))));
            }
        }
        seen.push(Seen::End(sum));
        seen
    }

    /// True if one is gone through.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// What a directory says that it is. Begins to go through a hierarchy, if it is the root of one.
    fn look(&mut self, dir: &Place, inside: &mut Vec<Place>, seen: &mut Vec<Seen>) -> Option<What> {
        let of_name = |place: &Place| Metadata::ALL.into_iter().find(|one| place.name() == one.name());
        let all: HashMap<&str, Place> =
            inside.iter().filter_map(|place| Some((of_name(place)?.name(), place.clone()))).collect();
        let mut own: Option<(Metadata, What)> = None;
        let mut named = BTreeMap::new();
        for metadata in Metadata::ALL {
            let Some(place) = all.get(metadata.name()) else { continue };
            let is_more =
                |(known, _): &(Metadata, What)| metadata != Metadata::Zarr2All || known.format() != metadata.format();
            if own.as_ref().is_some_and(is_more) {
                continue;
            }
            let file = match place.open() {
                Ok(file) => file,
                Err(_) if place.is_gone() => continue,
                Err(failure) => {
                    seen.push(Seen::Trouble(failure));
                    continue;
                }
            };
            let found = self.inspector.nodes(&file, metadata, &mut |node| {
                match node.path.is_empty() {
                    true => drop(own.get_or_insert((metadata, node.what))),
                    false => drop(named.insert(node.path, node.what)),
                }
                ControlFlow::Continue(())
            });
            match (&found.error, found.reason) {
                (Some(error), _) => seen.push(Seen::Trouble(Failure::at(place.path(), failure::reason(error)))),
                // A file of that name may be any program's.
                (None, Some(_)) if metadata == Metadata::N5 && self.open.is_none() => {}
                (None, Some(why)) => {
                    let what = format!("metadata of {} that cannot be read: {why}", metadata.format());
                    seen.push(Seen::Trouble(Failure::at(place.path(), what)));
                }
                (None, None) => {}
            }
        }
        if let Some((metadata, _)) = &own
            && self.open.is_none()
        {
            let sum = Sum::new(dir.path(), metadata.format());
            self.open = Some(Open { sum, named });
        }
        if own.is_some() {
            inside.retain(|place| of_name(place).is_none() && place.name() != ATTRIBUTES);
        }
        own.map(|(_, what)| what)
    }
}

impl Stored {
    /// The root of its hierarchy.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The name of the format in print.
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// What its metadata says.
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// Which chunks are there, if it is known how they are called.
    pub fn chunks(&self) -> Option<&Chunks> {
        self.chunks.as_ref()
    }

    /// What it is called in its hierarchy.
    pub fn name(&self) -> &str {
        if self.way.is_empty() { ALONE } else { &self.way }
    }

    /// What it is called in a directory that its hierarchy is in, or is.
    pub fn name_from(&self, top: &Path) -> String {
        match below(top, &self.root) {
            Some(root) if !root.is_empty() => format!("{root}/{}", self.way).trim_end_matches('/').to_owned(),
            _ => self.name().to_owned(),
        }
    }
}

impl Sum {
    fn new(path: &Path, format: &'static str) -> Sum {
        Sum { path: path.to_owned(), format, is_database: false, arrays: 0, chunks: (0, 0), bytes: 0 }
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the format in print.
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// How many arrays there are. None of a database, whose arrays are not looked into.
    pub fn arrays(&self) -> Option<u64> {
        (!self.is_database).then_some(self.arrays)
    }

    /// Chunks that are there, and that there may be.
    pub fn chunks(&self) -> (u64, u64) {
        self.chunks
    }

    /// Bytes of those that are there.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, name: &str, array: Array, chunks: Option<Chunks>) -> Stored {
        self.arrays += 1;
        if let Some(chunks) = &chunks {
            self.chunks.0 = self.chunks.0.saturating_add(chunks.there);
            self.chunks.1 = self.chunks.1.saturating_add(chunks.of);
            self.bytes = self.bytes.saturating_add(chunks.bytes());
        }
        Stored { root: self.path.clone(), format: self.format, way: name.to_owned(), array, chunks }
    }
}

/// The way to a path from one that it is below, or the same: names joined by `/`.
fn below(root: &Path, path: &Path) -> Option<String> {
    let (root, path) = (root.to_string_lossy(), path.to_string_lossy());
    let rest = path.strip_prefix(root.trim_end_matches('/'))?;
    // What is in a pool that is not mounted stands behind a colon.
    let name = rest.strip_prefix(':').unwrap_or(rest);
    (rest.is_empty() || name.starts_with('/')).then(|| name.trim_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_lead_from_the_root() {
        let way = |root: &str, path: &str| below(Path::new(root), Path::new(path));
        for (root, path, name) in
            [("/a", "/a/b/c", "b/c"), ("/a/", "/a/b", "b"), ("/", "/b", "b"), ("a", "a", ""), ("p", "p:/x", "x")]
        {
            assert_eq!(way(root, path).as_deref(), Some(name), "{root} {path}");
        }
        assert!(way("/a", "/ab").is_none() && way("/a/b", "/a").is_none());
    }
}

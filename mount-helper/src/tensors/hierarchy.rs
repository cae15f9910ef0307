//! Hierarchies of arrays that are directories, as a walk comes by them: zarr 2 and 3, n5, and OCDBT.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tensorfs_formats::{Array, Metadata, What};
use tensorfs_fs::Inspector;

use crate::show::failure::{self, Failure};
use crate::tensors::bound::Bound;
use crate::tensors::chunks::{self, Chunks, Going, InDatabase};
use crate::tensors::database::{self, Database, Wish};
use crate::tensors::place::{Kind, Place};

/// What users say of arrays and groups of zarr 2.
const ATTRIBUTES: &str = ".zattrs";
/// What an array is called that is a hierarchy by itself.
const ALONE: &str = "array";

/// Why an array is not read that has no metadata of its own.
const ONLY_TOLD: &str = "nothing but the root of its hierarchy tells of it";
/// So many bytes of metadata are as much work as an entry of a directory.
const METADATA_ENTRY: u64 = 1024;

/// What a walk has come by.
pub enum Seen {
    /// An array, and what of it cannot be read.
    Array(Box<Stored>, Option<Failure>),
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
    /// Which chunks are there, if it is known how they are called, and where.
    pub(super) chunks: Option<Chunks>,
    /// Why it cannot be told what its elements are, if so.
    pub(super) fault: Option<String>,
}

/// What a hierarchy has in all.
pub struct Sum {
    /// Its root.
    path: PathBuf,
    /// The name of the format in print.
    format: &'static str,
    /// Why not all of a database is looked into.
    unknown: Option<String>,
    /// How many arrays there are.
    arrays: u64,
    /// Chunks that are there, and that there may be.
    chunks: (u64, u64),
    /// Bytes of those that are there.
    bytes: u64,
    /// What has the name of a chunk and is none.
    strange: u64,
    /// Keys of databases that belong to no array.
    others: u64,
}

/// Those that a walk comes by. One of another format in one is a hierarchy of its own.
pub struct Hierarchies {
    inspector: Inspector,
    /// Whether it is kept which chunks are there.
    keep: bool,
    /// Those that are gone through, each in the one before.
    open: Vec<Open>,
    bound: Bound,
    /// What is no chunk in directories of chunks that are gone into for that, by those.
    others: HashMap<PathBuf, Vec<Place>>,
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
        Hierarchies::within(inspector, Bound::none())
    }

    /// Looks no further than that.
    pub fn within(inspector: &Inspector, bound: Bound) -> Hierarchies {
        Hierarchies { inspector: inspector.clone(), keep: false, open: Vec::new(), bound, others: HashMap::new() }
    }

    /// Keeps which chunks are there, for who is to read them.
    pub fn to_read(inspector: &Inspector) -> Hierarchies {
        Hierarchies { keep: true, ..Hierarchies::new(inspector) }
    }

    /// Comes into a directory. What of it is metadata or chunks is taken out of what is in it.
    pub fn enter(&mut self, dir: &Place, inside: &mut Vec<Place>) -> Vec<Seen> {
        if let Some(others) = self.others.remove(dir.path()) {
            *inside = others;
        }
        let mut seen = self.leave(dir.path());
        let own = self.look(dir, inside, &mut seen);
        let Some(open) = self.open.last_mut() else { return seen };
        let Some(name) = below(&open.sum.path, dir.path()) else { return seen };
        let told = open.named.remove(&name);
        match (&own, &told) {
            (Some(What::Array(own)), Some(What::Array(told))) if own != told => {
                let what = "what is told of it in the root of its hierarchy is not what it says itself";
                seen.push(Seen::Odd(Failure::at(dir.path(), what)));
            }
            _ => {}
        }
        let is_only_told = own.is_none();
        match own.or(told) {
            Some(What::Array(array)) => {
                seen.extend(array.odd.iter().map(|why| Seen::Odd(Failure::at(dir.path(), why))));
                let going = Going { bound: &self.bound, others: &mut self.others };
                let chunks = Chunks::of((dir, inside), &array, self.keep, going);
                let fault = chunks.as_ref().and_then(Chunks::fault);
                let trouble = fault.as_ref().map(|fault| Failure::at(dir.path(), fault));
                let fault = fault.or_else(|| is_only_told.then(|| ONLY_TOLD.to_owned()));
                seen.push(Seen::Array(Box::new(open.sum.add(&name, array, chunks, fault)), trouble));
            }
            Some(What::Unknown(why)) => {
                let what = format!("{} that is not understood: {why}", open.sum.format);
                seen.push(Seen::Trouble(Failure::at(dir.path(), what)));
            }
            Some(What::Database) => {
                let wish = Wish { keep: self.keep, arrays: true, with_versions: false, bound: &self.bound };
                let found = Database::read(dir, inside, &self.inspector, wish);
                inside.retain(|place| !database::is_part(place, &found));
                open.sum.take(&name, dir, found, &mut seen);
            }
            Some(What::Group) | None => {}
        }
        seen
    }

    /// Comes to a path, and says what there is of hierarchies that it is not in.
    pub fn leave(&mut self, path: &Path) -> Vec<Seen> {
        self.end_those(|open| below(&open.sum.path, path).is_none())
    }

    /// The walk is over.
    pub fn end(&mut self) -> Vec<Seen> {
        self.end_those(|_| true)
    }

    fn end_those(&mut self, is_over: impl Fn(&Open) -> bool) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(Open { mut sum, named }) = self.open.pop_if(|open| is_over(open)) {
            // What is told of below, and has no directory: a link may have its name, or one that cannot be entered.
            for (name, what) in named {
                if let What::Array(array) = what {
                    let stored = sum.add(&name, array, None, Some(ONLY_TOLD.to_owned()));
                    seen.push(Seen::Array(Box::new(stored), None));
                }
            }
            seen.push(Seen::End(sum));
        }
        seen
    }

    /// True if one is gone through.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// How much more is looked at.
    pub fn bound(&self) -> &Bound {
        &self.bound
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
            // A file of that name may be any program's.
            let is_any = metadata == Metadata::N5 && self.format() != Some(metadata.format());
            let file = match self.open(place, is_any) {
                Ok(Some(file)) => file,
                Ok(None) => continue,
                Err(_) if place.is_gone() => continue,
                Err(one) => {
                    seen.push(one);
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
                (None, Some(_)) if is_any => {}
                (None, Some(why)) if found.beyond => {
                    seen.push(Seen::Odd(Failure::at(place.path(), format!("not looked into: {why}"))));
                }
                (None, Some(why)) => {
                    let what = format!("metadata of {} that cannot be read: {why}", metadata.format());
                    seen.push(Seen::Trouble(Failure::at(place.path(), what)));
                }
                (None, None) => {}
            }
        }
        if let Some((metadata, _)) = &own
            && self.format() != Some(metadata.format())
        {
            if let Some(open) = self.open.last_mut()
                && let Some(name) = below(&open.sum.path, dir.path())
            {
                open.named.remove(&name);
            }
            let sum = Sum::new(dir.path(), metadata.format());
            self.open.push(Open { sum, named });
        }
        if own.is_some() {
            inside.retain(|place| of_name(place).is_none() && place.name() != ATTRIBUTES);
        }
        own.map(|(_, what)| what)
    }

    /// The format of what is gone through, in print.
    fn format(&self) -> Option<&'static str> {
        self.open.last().map(|open| open.sum.format)
    }

    /// Opens metadata, if it is a regular file: what else has such a name is neither followed nor opened. Nothing is
    /// said of what cannot be read and may be anything.
    fn open(&self, place: &Place, is_any: bool) -> Result<Option<File>, Seen> {
        let refused = |failure| if is_any { Ok(None) } else { Err(Seen::Trouble(failure)) };
        let about = match place.about_itself() {
            Ok(about) => about,
            Err(failure) => return refused(failure),
        };
        if about.kind() != Kind::File {
            let what = format!("has the name of metadata, and is {}", chunks::other(about.kind()));
            let failure = Failure::at(place.path(), what);
            return Err(if is_any { Seen::Odd(failure) } else { Seen::Trouble(failure) });
        }
        // The root of a hierarchy is looked at in any case.
        if !self.bound.take(about.size() / METADATA_ENTRY) && self.is_open() {
            return Ok(None);
        }
        place.open_found().map_or_else(refused, |file| Ok(Some(file)))
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
        Sum { path: path.to_owned(), format, unknown: None, arrays: 0, chunks: (0, 0), bytes: 0, strange: 0, others: 0 }
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the format in print.
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// How many arrays there are. None of a database that is not looked into.
    pub fn arrays(&self) -> Option<u64> {
        self.unknown.is_none().then_some(self.arrays)
    }

    /// Why it is not looked into.
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// Chunks that are there, and that there may be.
    pub fn chunks(&self) -> (u64, u64) {
        self.chunks
    }

    /// Bytes of those that are there.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What has the name of a chunk and is none.
    pub fn strange(&self) -> u64 {
        self.strange
    }

    /// Keys of databases that belong to no array.
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Takes what is in a database in a directory of that name.
    fn take(&mut self, name: &str, dir: &Place, found: Database, seen: &mut Vec<Seen>) {
        let path = dir.path();
        let named = |array: &str| [name, array].join("/").trim_matches('/').to_owned();
        seen.extend(found.faults.iter().map(|why| Seen::Trouble(Failure::at(path, format!("incomplete: {why}")))));
        for (array, why) in &found.strange {
            let what = format!("{}, an array that is not understood: {why}", named(array));
            seen.push(Seen::Trouble(Failure::at(path, what)));
        }
        if let Some(why) = &found.unknown {
            seen.push(Seen::Odd(Failure::at(path, format!("not looked into: {why}"))));
        }
        self.unknown = self.unknown.take().or(found.unknown);
        self.others += found.others;
        for (way, InDatabase { array, chunks, fault, why }) in found.arrays {
            let way = named(&way);
            seen.extend(array.odd.iter().map(|why| Seen::Odd(Failure::at(path, format!("{way}: {why}")))));
            let trouble = fault.as_ref().map(|fault| Failure::at(path, format!("{way}: {fault}")));
            let stored = self.add(&way, array, chunks, fault.or(why));
            seen.push(Seen::Array(Box::new(stored), trouble));
        }
    }

    fn add(&mut self, name: &str, array: Array, chunks: Option<Chunks>, fault: Option<String>) -> Stored {
        self.arrays += 1;
        if let Some(chunks) = &chunks {
            self.chunks.0 = self.chunks.0.saturating_add(chunks.there);
            self.chunks.1 = self.chunks.1.saturating_add(chunks.of);
            self.bytes = self.bytes.saturating_add(chunks.bytes());
            self.strange = self.strange.saturating_add(chunks.strange());
        }
        Stored { root: self.path.clone(), format: self.format, way: name.to_owned(), array, chunks, fault }
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

//! An OCDBT database in a directory: its tree is gone through, and its keys are put together to arrays.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use tensorfs_formats::ocdbt::{self, Asked, Entry, Told, Tree, Wrong};
use tensorfs_formats::{Array, Metadata, What};
use tensorfs_fs::Inspector;

use crate::show::failure::reason;
use crate::tensors::bound::Bound;
use crate::tensors::chunks::{Chunks, InDatabase, Where, key_in, open_below};
use crate::tensors::place::Place;

/// How manifests are called that have the number of a version behind, in so many digits.
const NUMBERED: &str = "manifest.";
const DIGITS: usize = 16;
/// Where data files are; and databases of the processes that Orbax puts one together of, which are no more than parts
/// of that then.
const DATA: &str = "d";
const OF_PROCESS: &str = "ocdbt.process_";
/// Values that stand beside their keys are kept up to so many bytes.
const KEPT_MAX: u64 = 256 << 20;
/// So many arrays are looked at, and so many bytes of what is said of them.
const ARRAYS_MAX: usize = 1 << 17;
const SAID_MAX: usize = 256 << 20;

/// What is in one.
#[derive(Default)]
pub struct Database {
    /// Its arrays, by their names.
    pub arrays: Vec<(String, InDatabase)>,
    /// What is called as metadata of an array, and is none: its name, and why.
    pub strange: Vec<(String, String)>,
    /// What is missing or wrong, in words.
    pub faults: Vec<String>,
    /// Why it is not looked into, or not all of it.
    pub unknown: Option<String>,
    /// Keys that belong to no array.
    pub others: u64,
    /// What has its data files in the directory.
    names: HashSet<String>,
}

/// How much of it is wanted.
#[derive(Clone, Copy)]
pub struct Wish<'a> {
    /// Chunks are to be read, too.
    pub keep: bool,
    /// It is looked at which arrays there are, not only whether all is there.
    pub arrays: bool,
    /// Nodes of older versions are looked at, too.
    pub with_versions: bool,
    /// How many keys are looked at.
    pub bound: &'a Bound,
}

/// Whether what is in the directory of one is its own.
pub fn is_part(place: &Place, of: &Database) -> bool {
    let name = place.name().to_string_lossy();
    name == DATA || number_of(&name).is_some() || is_of_process(place) || of.names.contains(&*name)
}

/// A part of one that Orbax puts together, if that is there.
pub fn is_of_process(place: &Place) -> bool {
    place.name().to_string_lossy().starts_with(OF_PROCESS)
}

/// A value that is a chunk: its number, its length, and where it is.
type Value = (u64, u64, Where);

/// One that is being read.
struct Reading<'a> {
    dir: &'a Place,
    inspector: Inspector,
    wish: Wish<'a>,
    tree: Tree,
    entries: Vec<(String, u64, Where)>,
    /// Names of arrays, by what says so of them, which is in a file yet.
    named: Vec<(String, Metadata, Result<What, ocdbt::Place>)>,
    kept: u64,
    /// Bytes of what is said of arrays; and what a place was found to say.
    said: usize,
    known: HashMap<(Arc<str>, u64, u64), Result<What, String>>,
    found: Database,
    /// Not all nodes were read: what is not there may be in them.
    is_partial: bool,
    /// The file that was read last.
    open: Option<(Arc<str>, Rc<File>)>,
}

impl Database {
    /// Reads the one whose manifest is in a directory, of which the contents are given.
    pub fn read(dir: &Place, inside: &[Place], inspector: &Inspector, wish: Wish<'_>) -> Database {
        let (tree, inspector) = (Tree::new(wish.keep, wish.with_versions), inspector.for_one());
        let mut reading = Reading {
            dir,
            inspector,
            wish,
            tree,
            entries: Vec::new(),
            named: Vec::new(),
            kept: 0,
            said: 0,
            known: HashMap::new(),
            found: Database::default(),
            is_partial: false,
            open: None,
        };
        reading.manifest(inside);
        while let Some(step) = reading.tree.step() {
            reading.node(&step);
            if wish.bound.is_passed() || reading.found.unknown.is_some() {
                break;
            }
        }
        reading.end()
    }
}

impl Reading<'_> {
    fn manifest(&mut self, inside: &[Place]) {
        let name = Metadata::Ocdbt.name();
        self.one_manifest(name);
        if self.tree.is_numbered() {
            let numbers = inside.iter().filter_map(|place| number_of(&place.name().to_string_lossy()));
            if let Some(newest) = numbers.max() {
                self.one_manifest(&format!("{NUMBERED}{newest:016x}"));
            }
        }
    }

    fn one_manifest(&mut self, name: &str) {
        match open_below(self.dir, name) {
            Ok((file, _)) => self.ask(&file, name, None),
            Err(why) => self.fault(why),
        }
    }

    fn node(&mut self, step: &ocdbt::Step) {
        match self.open(&step.place.path) {
            Ok(file) => self.ask(&file, &step.place.path.clone(), Some(step)),
            // What is missing is told below.
            Err(_) => self.is_partial |= is_of_tree(step),
        }
    }

    /// Has a place of a file read, and takes what is told.
    fn ask(&mut self, file: &File, name: &str, step: Option<&ocdbt::Step>) {
        let asked = step.map_or(Asked::Manifest, |step| step.asked);
        let mut wrong = None;
        let (inspector, bound) = (self.inspector.clone(), self.wish.bound);
        let found = inspector.tree(file, asked, &mut |told| match self.tree.take(step, told) {
            Ok(None) => ControlFlow::Continue(()),
            Ok(Some(entry)) if bound.take(1) => {
                self.entry(entry);
                ControlFlow::Continue(())
            }
            Ok(Some(_)) => ControlFlow::Break(()),
            Err(why) => {
                wrong = Some(why);
                ControlFlow::Break(())
            }
        });
        let told = |why: String| format!("{name}: {why}");
        match (&found.error, &wrong) {
            // That no reader gets through it says nothing of what is there.
            (Some(error), _) if error.raw_os_error().is_none() => return self.unknown(told(reason(error))),
            (None, Some(Wrong::TooMuch(why))) => return self.unknown(told(why.clone())),
            _ => {}
        }
        if found.beyond {
            return self.unknown(told(found.reason.unwrap_or_default()));
        }
        let wrong = wrong.map(|(Wrong::Damage(why) | Wrong::TooMuch(why))| why);
        let why = found.error.as_ref().map(reason).or(found.reason).or(wrong);
        if let Some(why) = why {
            self.is_partial |= step.is_none_or(is_of_tree);
            // Of what is behind the end of a file is told below.
            let is_behind = found.cut && step.is_some();
            if !is_behind {
                self.fault(format!("{name}: {why}"));
            }
        }
    }

    fn entry(&mut self, entry: Entry) {
        if !self.wish.arrays || self.found.unknown.is_some() {
            return;
        }
        if entry.metadata.is_some() && !self.is_room_for(entry.what.as_ref(), 1) {
            return;
        }
        let Ok(key) = String::from_utf8(entry.key) else {
            self.found.others += 1;
            return;
        };
        match (entry.metadata, entry.what, entry.place) {
            (Some(metadata), Some(what), _) => self.named.push((key, metadata, Ok(what))),
            (Some(metadata), None, Some(place)) => self.named.push((key, metadata, Err(place))),
            (_, _, Some(place)) => self.entries.push((key, entry.len, Where::In(place))),
            (_, _, None) => {
                self.kept = self.kept.saturating_add(entry.bytes.len() as u64);
                let bytes = (self.kept <= KEPT_MAX).then(|| entry.bytes.into());
                self.entries.push((key, entry.len, Where::Here(bytes)));
            }
        }
    }

    fn end(mut self) -> Database {
        let sizes = self.check_files();
        self.found.unknown = self.found.unknown.take().or(self.tree.unknown().map(str::to_owned));
        self.is_partial |= self.found.unknown.is_some() || self.wish.bound.is_passed();
        let mut arrays: HashMap<String, (Array, Vec<Value>)> = HashMap::new();
        for (key, metadata, what) in std::mem::take(&mut self.named) {
            let name = key.rsplit_once('/').map_or("", |(name, _)| name).to_owned();
            let what = what.map_or_else(|place| self.known(&place, metadata), Ok);
            if !self.is_room_for(what.as_ref().ok(), 0) {
                arrays.clear();
                break;
            }
            match what {
                Ok(What::Array(array)) => drop(arrays.insert(name, (array, Vec::new()))),
                Ok(What::Unknown(why)) | Err(why) => self.found.strange.push((name, why)),
                Ok(What::Group | What::Database) => {}
            }
        }
        for (key, len, at) in std::mem::take(&mut self.entries) {
            let Some((name, number)) = chunk_of(&key, |name| arrays.get(name).map(|(array, _)| array)) else {
                self.found.others += 1;
                continue;
            };
            if let Some((_, chunks)) = arrays.get_mut(name) {
                chunks.push((number, len, at));
            }
        }
        let why = self.is_partial.then(|| match self.found.faults.first().or(self.found.unknown.as_ref()) {
            Some(why) => format!("not all of the database can be read: {why}"),
            None => "not all of the database is looked at".to_owned(),
        });
        let bad = |path: &str| match sizes.get(path) {
            Some(Err(why)) => Some(why.clone()),
            _ => None,
        };
        for (name, (array, all)) in arrays {
            let chunks = Chunks::in_database(self.dir, &array, all, self.wish.keep, &bad);
            let fault = chunks.as_ref().and_then(Chunks::fault);
            self.found.arrays.push((name, InDatabase { array, chunks, fault, why: why.clone() }));
        }
        self.found.arrays.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.found
    }

    /// Whether what is said of another array is looked at, which is noted. If not, the database is not looked into.
    fn is_room_for(&mut self, what: Option<&What>, more: usize) -> bool {
        self.said = self.said.saturating_add(what.map_or(0, weight));
        let is_too_much = self.named.len() + more > ARRAYS_MAX || self.said > SAID_MAX;
        if is_too_much {
            self.named = Vec::new();
            self.entries = Vec::new();
            self.unknown(format!("more than {ARRAYS_MAX} arrays, or {SAID_MAX} bytes of what they are"));
        }
        !is_too_much
    }

    /// What a value in a file says that an array is, which may be that of others.
    fn known(&mut self, place: &ocdbt::Place, metadata: Metadata) -> Result<What, String> {
        let key = (place.path.clone(), place.offset, place.len);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let said = self.array(place, metadata);
        self.known.insert(key, said.clone());
        said
    }

    /// What a value in a file says that an array is.
    fn array(&mut self, place: &ocdbt::Place, metadata: Metadata) -> Result<What, String> {
        let file = self.open(&place.path)?;
        let (mut said, at, len) = (None, place.offset, place.len);
        let found = self.inspector.tree(&file, Asked::Array { at, len, metadata }, &mut |told| {
            if let Told::Array(what) = told {
                said = Some(what);
            }
            ControlFlow::Continue(())
        });
        let why = found.error.as_ref().map(reason).or(found.reason).unwrap_or_default();
        said.ok_or_else(|| format!("metadata that cannot be read: {why}"))
    }

    /// Whether each data file is there, and as long as it has to be; says of each that is not what is wrong.
    fn check_files(&mut self) -> HashMap<Arc<str>, Result<(), String>> {
        let mut checked = HashMap::new();
        for (path, end) in self.tree.needed() {
            let is_there = match open_below(self.dir, path) {
                Ok((_, size)) if size >= end => Ok(()),
                Ok((_, size)) => Err(format!("{path} is cut short: it has {size} bytes of at least {end}")),
                Err(why) => Err(why),
            };
            self.found.names.extend(path.split('/').next().map(str::to_owned));
            if let Err(why) = &is_there {
                self.found.faults.push(why.clone());
            }
            checked.insert(path.into(), is_there);
        }
        checked
    }

    fn open(&mut self, path: &Arc<str>) -> Result<Rc<File>, String> {
        if let Some((_, file)) = self.open.as_ref().filter(|(known, _)| known == path) {
            return Ok(file.clone());
        }
        let (file, _) = open_below(self.dir, path)?;
        let file = Rc::new(file);
        self.open = Some((path.clone(), file.clone()));
        Ok(file)
    }

    /// Not all of it is looked into.
    fn unknown(&mut self, why: String) {
        self.is_partial = true;
        self.found.unknown.get_or_insert(why);
    }

    fn fault(&mut self, why: String) {
        self.is_partial = true;
        self.found.faults.push(why);
    }
}

/// What is said of an array takes so many bytes, twice: for its chunks, too.
fn weight(what: &What) -> usize {
    match what {
        What::Array(array) => {
            let texts = array.codecs.iter().chain(&array.descr).chain(&array.odd);
            let numbers = array.shape.len() + array.chunk.as_ref().map_or(0, Vec::len);
            2 * (size_of::<InDatabase>()
                + texts.map(|text| size_of::<String>() + text.len()).sum::<usize>()
                + 8 * numbers)
        }
        What::Unknown(why) => why.len(),
        What::Group | What::Database => 0,
    }
}

/// Without it not all keys are known.
fn is_of_tree(step: &ocdbt::Step) -> bool {
    matches!(step.asked, Asked::Node { .. })
}

/// The number of the version that a manifest is called after.
fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(NUMBERED).filter(|digits| digits.len() == DIGITS)?;
    let number = u64::from_str_radix(digits, 16).ok().filter(|number| *number > 0)?;
    (format!("{number:016x}") == digits).then_some(number)
}

/// The name of the array that a key is a chunk of, and the number of the chunk.
fn chunk_of<'k, 'a>(key: &'k str, array: impl Fn(&str) -> Option<&'a Array>) -> Option<(&'k str, u64)> {
    // A number in each dimension, and what is in front of those.
    let ends = key.rmatch_indices('/').map(|(at, _)| at).take(tensorfs_formats::DIMENSIONS_MAX + 1);
    let within = ends.map(|at| (&key[..at], &key[at + 1..])).chain([("", key)]);
    let (name, array, rest) = within.into_iter().find_map(|(name, rest)| Some((name, array(name)?, rest)))?;
    Some((name, key_in(rest, array)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_have_numbers_of_sixteen_digits() {
        assert_eq!(number_of("manifest.00000000000000ff"), Some(255));
        for name in ["manifest.ocdbt", "manifest.0000000000000000", "manifest.00000000000000FF", "manifest.ff", "x"] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }
}

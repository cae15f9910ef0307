//! Arrays in a database whose chunks are elements and nothing else: they are put together from its values. Its keys are
//! those of a B+tree, in order; which of them are chunks is told by what says that there is an array, which may come
//! behind these.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tensorfs_formats::ocdbt::{Entry, Place};
use tensorfs_formats::{Array, Metadata, Tensor, What};
use tensorfs_layout::Ino;

use crate::budget::BUDGET;
use crate::caller::Asker;
use crate::clock;
use crate::file::Version;
use crate::reader::Broken;

use super::Content;
use super::database::{Read, Walk};
use super::databases::{Known, ReadFrom, Seen};
use super::plan::{Draft, MEMORY_MAX, Plan, TooMuch, Value};

/// So many arrays of a database are looked at.
const ARRAYS_MAX: usize = 1 << 17;
/// Whether it has one that can be put together is looked for in so many values that are in files, in so many nodes, and
/// for so long, which is a part of what a request may take. If there is more, that may be.
const LOOKED_AT: usize = 256;
const NODES: usize = 256;
const LOOKING_MAX: Duration = Duration::from_secs(BUDGET.as_secs() / 4);
/// The name of the array that the database itself is.
const ALONE: &[u8] = b"array";
/// What something takes that has a place of its own in memory, beside its bytes.
const APART: usize = 16;

/// What is known of the keys of one.
pub(super) struct Values {
    /// It may take so much, and does.
    most: usize,
    taken: usize,
    /// Those that may be chunks, in order.
    keys: Vec<Key>,
    /// What says that there is an array: what its keys have in front, and what is said, or where.
    said: Vec<(Box<[u8]>, Said)>,
    /// Arrays that can be put together, by what their keys have in front.
    arrays: BTreeMap<Box<[u8]>, Array>,
}

struct Key {
    key: Box<[u8]>,
    value: Held,
}

/// A value: in a file, or beside its key.
enum Held {
    In(Arc<str>, u64, u64),
    Here(Box<[u8]>),
}

/// What is said of an array.
enum Said {
    Here(Box<What>),
    In(Place, Metadata),
}

/// Why a database says nothing of its arrays.
#[derive(Debug)]
pub(super) enum Why {
    /// In words.
    Words(String),
    /// It is more than there is room for.
    TooMuch,
}

impl From<TooMuch> for Why {
    fn from(_: TooMuch) -> Self {
        Why::TooMuch
    }
}

impl Values {
    /// Nothing is known yet. It may take so much memory, with the plan that comes of it.
    pub fn new(most: usize) -> Self {
        let most = most.min(MEMORY_MAX);
        Self { most, taken: 0, keys: Vec::new(), said: Vec::new(), arrays: BTreeMap::new() }
    }

    /// Takes in the next key.
    pub fn add(&mut self, entry: Entry) -> Result<(), TooMuch> {
        let Entry { key, place, bytes, what, metadata, .. } = entry;
        if let Some(metadata) = metadata {
            let said = match (what, place) {
                (Some(what), _) => Said::Here(Box::new(what)),
                (None, Some(place)) => Said::In(place, metadata),
                (None, None) => return Ok(()),
            };
            let front = key[..key.len().saturating_sub(metadata.name().len())].into();
            return self.say(front, said);
        }
        // The last number of a chunk, or what stands for one of no dimensions.
        if matches!(key.last(), Some(b'0'..=b'9' | b'c')) {
            let value = match place {
                Some(Place { path, offset, len }) => Held::In(path, offset, len),
                None => Held::Here(bytes.into()),
            };
            let of_value = if let Held::Here(bytes) = &value { bytes.len() + APART } else { 0 };
            self.taken += key.len() + APART + of_value;
            self.keys.push(Key { key: key.into(), value });
        }
        self.check()
    }

    fn say(&mut self, front: Box<[u8]>, said: Said) -> Result<(), TooMuch> {
        self.taken += front.len() + APART + if let Said::Here(what) = &said { weight(what) } else { 0 };
        self.said.push((front, said));
        if self.said.len() > ARRAYS_MAX { Err(TooMuch) } else { self.check() }
    }

    fn check(&self) -> Result<(), TooMuch> {
        let tables = self.keys.capacity() * size_of::<Key>() + self.said.capacity() * size_of::<(Box<[u8]>, Said)>();
        if self.taken + tables > self.most { Err(TooMuch) } else { Ok(()) }
    }

    /// Finds out which arrays there are: `look` says what is said in a file, or why not. What comes last counts, also
    /// if it is an array that cannot be put together.
    pub fn settle(
        &mut self,
        mut look: impl FnMut(&Place, Metadata) -> io::Result<Result<What, String>>,
    ) -> io::Result<Result<(), TooMuch>> {
        // Many may be told by one value.
        let mut known: HashMap<(Arc<str>, u64, u64), Option<Array>> = HashMap::new();
        for (front, said) in std::mem::take(&mut self.said) {
            let found = match said {
                Said::Here(what) => of(*what),
                Said::In(place, metadata) => {
                    let at = (place.path.clone(), place.offset, place.len);
                    match known.get(&at) {
                        Some(found) => found.clone(),
                        None => {
                            let found = look(&place, metadata)?.ok().and_then(of);
                            self.taken += found.as_ref().map_or(APART, bytes_of) + size_of_val(&at);
                            known.insert(at, found.clone());
                            found
                        }
                    }
                }
            };
            let Some(array) = found else { continue };
            if !is_put_together(&array) {
                self.arrays.remove(&front);
                continue;
            }
            self.taken += bytes_of(&array) + front.len() + APART;
            self.arrays.insert(front, array);
            if self.check().is_err() {
                return Ok(Err(TooMuch));
            }
        }
        Ok(Ok(()))
    }

    /// All arrays that can be put together, each with where its chunks are; and these files, of which that was read.
    pub fn plan(mut self, files: &[(Box<str>, Seen)]) -> Result<Plan, TooMuch> {
        let tables = self.keys.capacity() * size_of::<Key>();
        let mut draft = Draft::new(self.most.checked_sub(self.taken + tables).ok_or(TooMuch)?);
        for (path, _) in files {
            draft.add_file(path)?;
        }
        for (front, array) in std::mem::take(&mut self.arrays) {
            let below = self.below(&front);
            let name = match front.strip_suffix(b"/").unwrap_or(&front) {
                [] => ALONE,
                name => name,
            };
            draft.add_values(name, array, |chunk| find(below, front.len(), chunk))?;
        }
        Ok(draft.finish())
    }

    /// Keys that have that in front.
    fn below(&self, front: &[u8]) -> &[Key] {
        let begins = |key: &Key| &key.key[..front.len().min(key.key.len())] <= front;
        let from = self.keys.partition_point(|key| &*key.key < front);
        let count = self.keys[from..].partition_point(begins);
        &self.keys[from..][..count]
    }
}

/// The value of a chunk that is called so, among keys that all have the same number of bytes in front.
fn find<'v>(keys: &'v [Key], front: usize, chunk: &str) -> Option<Value<'v>> {
    let found = keys.binary_search_by(|key| key.key[front..].cmp(chunk.as_bytes())).ok()?;
    Some(match &keys[found].value {
        Held::In(path, offset, len) => Value::In(path, *offset, *len),
        Held::Here(bytes) => Value::Here(bytes),
    })
}

fn of(what: What) -> Option<Array> {
    if let What::Array(array) = what { Some(array) } else { None }
}

/// Whether an array in a database can be put together from its values. Blocks say in front how large they are, and
/// nobody looks into values.
fn is_put_together(array: &Array) -> bool {
    !array.blocks && array.is_put_together()
}

/// What is said of something takes so many bytes.
fn weight(what: &What) -> usize {
    match what {
        What::Array(array) => bytes_of(array),
        What::Unknown(why) => size_of::<What>() + why.len(),
        What::Group | What::Database => size_of::<What>(),
    }
}

fn bytes_of(array: &Array) -> usize {
    let texts = array.codecs.iter().chain(&array.descr).chain(&array.odd).map(|text| size_of::<String>() + text.len());
    let numbers = array.shape.len() + array.chunk.as_ref().map_or(0, Vec::len);
    size_of::<What>() + 8 * numbers + array.fill.as_ref().map_or(0, Vec::len) + texts.sum::<usize>()
}

/// For tests: the arrays that a server makes of these keys, within so much memory: each as a tensor, with how many of
/// its elements each chunk has. None if it is more than there is room for. `look` says what is said in a file.
pub fn arrays_of(
    entries: Vec<Entry>,
    most: usize,
    look: &mut dyn FnMut(&Place, Metadata) -> Result<What, String>,
) -> Option<Vec<(Tensor, Vec<u64>)>> {
    let mut values = Values::new(most);
    entries.into_iter().try_for_each(|entry| values.add(entry)).ok()?;
    values.settle(|place, metadata| Ok(look(place, metadata))).ok()?.ok()?;
    let mut plan = Plan::default();
    let other = values.plan(&[]).ok()?;
    assert!(other.memory() <= most, "{} bytes of {most}", other.memory());
    plan.append(other, b"2/").ok()?;
    let elements = |nth| {
        let each = plan.pieces(nth).map(|(part, place)| {
            let _ = plan.find(place);
            part.volume()
        });
        each.collect()
    };
    Some((0..plan.len()).filter_map(|nth| Some((plan.tensor(nth)?, elements(nth)))).collect())
}

/// A manifest that says where its versions are.
fn only(manifest: Ino, version: &Version) -> [Seen; 2] {
    [Some((manifest, Some(*version))), None]
}

/// Whether an array that can be put together is found, or there may be one in what is not looked at. A small database
/// may say that it has very much.
fn may_have_one(walk: &mut Walk<'_>, manifest: (Ino, &Version)) -> io::Result<bool> {
    let before = Asker::spent();
    let takes_long = || Asker::spent().saturating_sub(before) > LOOKING_MAX;
    let (mut left, mut has_one, mut nodes) = (Vec::new(), false, 0);
    let mut each = |Entry { what, place, metadata, .. }: Entry| {
        has_one |= what.and_then(of).is_some_and(|array| is_put_together(&array));
        left.extend(place.zip(metadata));
        if has_one || left.len() > LOOKED_AT { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut read = walk.manifest(manifest)?;
    while read == Read::All
        && let Some(step) = walk.tree.step()
    {
        if nodes == NODES || takes_long() {
            return Ok(true);
        }
        nodes += 1;
        read = walk.node(&step, &mut each)?;
    }
    let is_untold = matches!(read, Read::Wrong(_) | Read::TooMuch(_)) || walk.tree.unknown().is_some();
    if has_one || is_untold || left.len() > LOOKED_AT {
        return Ok(true);
    }
    for (place, metadata) in left {
        if takes_long()
            || walk.array(&place, metadata)?.is_ok_and(|what| of(what).as_ref().is_some_and(is_put_together))
        {
            return Ok(true);
        }
    }
    Ok(walk.is_beyond())
}

impl Content {
    /// What was said of that, if the database is as it was. Nobody needs to look into it.
    pub(super) fn had_values(&self, dir: Ino, manifest: Ino, version: &Version) -> Option<bool> {
        self.said_of(&self.checkpoints.databases, dir, manifest, only(manifest, version)).flatten()
    }

    /// Whether a database has an array that can be put together, or may have one as not all of it can be looked at.
    pub(super) fn has_values(&self, dir: Ino, manifest: Ino, version: &Version) -> io::Result<bool> {
        let (looked, mut walk) = (clock::now(), Walk::new(self, dir, false));
        let has_one = match may_have_one(&mut walk, (manifest, version)) {
            // Nor will it be looked at later.
            Err(error) if matches!(Broken::of(&error), Some(Broken::ForGood)) => true,
            has_one => has_one?,
        };
        let (manifests, said) = (only(manifest, version), Some(has_one));
        let known = Known { dir, manifests, files: walk.read_from().files, said };
        self.note_said(&self.checkpoints.databases, manifest, known, looked);
        Ok(has_one)
    }

    /// What a database says of arrays that can be put together, if that takes no more than so many bytes. Notes of
    /// which files that was read.
    pub(super) fn values_of(
        &self,
        dir: Ino,
        manifest: (Ino, &Version),
        most: usize,
        read_from: &mut ReadFrom,
    ) -> io::Result<Result<Plan, Why>> {
        let (mut walk, mut values) = (Walk::new(self, dir, true), Values::new(most));
        let mut each = |entry| match values.add(entry) {
            Ok(()) => ControlFlow::Continue(()),
            Err(TooMuch) => ControlFlow::Break(()),
        };
        let mut read = walk.manifest(manifest)?;
        if read == Read::All {
            read = walk.go_on(&mut each)?;
        }
        let unknown = walk.tree.unknown().map(str::to_owned);
        let settled = match read {
            Read::All if unknown.is_none() => values.settle(|place, metadata| walk.array(place, metadata))?,
            _ => Ok(()),
        };
        let (is_beyond, own) = (walk.is_beyond(), walk.read_from());
        let from = read_from.files.len();
        read_from.files.extend(own.files);
        read_from.above.extend(own.above);
        Ok(match (read, unknown, settled) {
            (Read::Wrong(why) | Read::TooMuch(why), ..) | (Read::All, Some(why), _) => Err(Why::Words(why)),
            (Read::Enough, ..) | (_, _, Err(TooMuch)) => Err(Why::TooMuch),
            (Read::All, None, Ok(())) if is_beyond => Err(Why::TooMuch),
            (Read::All, None, Ok(())) => values.plan(&read_from.files[from..]).map_err(Why::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, bytes: &[u8]) -> Entry {
        Entry {
            key: key.into(),
            len: bytes.len() as u64,
            place: None,
            bytes: bytes.to_vec(),
            what: None,
            metadata: None,
        }
    }

    /// Keys that begin alike, are shorter than what is looked for, or stand around it.
    #[test]
    fn values_are_found_by_all_of_their_keys() {
        let mut values = Values::new(usize::MAX);
        let keys = ["0", "a", "a.0", "a/", "a/0", "a/0.0", "a/0.1", "a/b/0", "a/b0", "a0", "b/0", "c"];
        keys.iter().for_each(|key| values.add(entry(key, key.as_bytes())).unwrap());
        let found = |front: &str, chunk: &str| match find(values.below(front.as_bytes()), front.len(), chunk) {
            Some(Value::Here(bytes)) => Some(String::from_utf8(bytes.to_vec()).unwrap()),
            Some(Value::In(..)) => panic!("none is in a file"),
            None => None,
        };
        for front in ["", "a/", "a/b/", "b/", "c/", "/", "a/0/", "zzzzzzzzzz/"] {
            for chunk in ["0", "0.0", "0.1", "0.2", "c", "a"] {
                let key = format!("{front}{chunk}");
                let is_there = keys.contains(&&*key) && !key.ends_with('a');
                assert_eq!(found(front, chunk), is_there.then_some(key.clone()), "{key}");
            }
        }
    }

    #[test]
    fn values_take_no_more_than_they_may() {
        let mut values = Values::new(1 << 20);
        let mut added = (0..1 << 20).map(|n| values.add(entry(&format!("a/{n:020}"), &[1; 100])));
        let count = added.position(|added| added.is_err()).unwrap();
        assert!((2000..8000).contains(&count), "{count}");
        let mut values = Values::new(usize::MAX);
        let said = |n: usize| Entry {
            metadata: Some(Metadata::Zarr3),
            what: Some(What::Group),
            ..entry(&format!("{n:010}/zarr.json"), b"")
        };
        let count = (0..).position(|n| values.add(said(n)).is_err()).unwrap();
        assert_eq!(count, ARRAYS_MAX);
    }
}

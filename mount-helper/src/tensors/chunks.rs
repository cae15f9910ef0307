//! Which chunks of an array are there: each is a file, or a value of a database, and called by its numbers.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

use tensorfs_formats::{Array, Keys, ocdbt};

use crate::show::failure::{At, Failure};
use crate::show::text;
use crate::tensors::bound::Bound;
use crate::tensors::place::{Kind, Place};

/// What comes before the numbers, where something does, and what stands for the chunk of a single element.
const PREFIX: &str = "c";
const SINGLE: &str = "0";
const DOTTED: Keys = Keys { has_prefix: false, is_nested: false };

/// Which are there.
#[derive(Default)]
pub struct Chunks {
    /// How many files of chunks are there.
    pub(super) there: u64,
    /// How many there may be.
    pub(super) of: u64,
    /// Bytes of those that are there.
    bytes: u64,
    /// Which those are, if that was asked for.
    files: Files,
    /// What has the name of a chunk, or of a directory of chunks, and is none, or cannot be looked at.
    strange: u64,
    /// The first of these, in words.
    first_strange: Option<String>,
    /// Those that are as many bytes as their elements take and no more, by what their metadata says, and are not.
    odd: u64,
    /// The first of these: its name, bytes that it has, and bytes that it should.
    first_odd: Option<(String, u64, u64)>,
}

impl Chunks {
    /// Those of an array, in what is in its directory. They are taken out of that, and so are directories that have
    /// nothing else. None if it is not known how they are called.
    pub fn of((dir, inside): (&Place, &mut Vec<Place>), array: &Array, keep: bool, going: Going<'_>) -> Option<Chunks> {
        let mut chunks = Chunks::none_of(array)?;
        let (grid, keys) = (array.grid()?, array.keys?);
        let mut count = Counting { chunks: &mut chunks, grid: &grid, plain: array.plain_chunk(), keep, going };
        inside.retain(|place| {
            let name = place.name().to_string_lossy().into_owned();
            let is_chunk = match keys {
                _ if grid.is_empty() || !keys.is_nested => {
                    key_of(&name, keys.has_prefix, &grid).is_some_and(|key| count.file(place, &key))
                }
                Keys { has_prefix: true, .. } => name == PREFIX && count.below(place, &[]),
                Keys { has_prefix: false, .. } => count.numbered(place, &[]),
            };
            !is_chunk
        });
        if keep {
            chunks.files.numbers.sort_unstable();
            chunks.files.within = Some(Within::Directory(dir.clone(), keys, grid));
        }
        Some(chunks)
    }

    /// Those of an array in the database of a directory, by their numbers and lengths. `bad` says what is wrong with a
    /// data file, if anything.
    pub fn in_database(
        dir: &Place,
        array: &Array,
        all: Vec<(u64, u64, Where)>,
        keep: bool,
        bad: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Chunks> {
        let mut chunks = Chunks::none_of(array)?;
        let (grid, plain) = (array.grid()?, array.plain_chunk());
        let mut kept = BTreeMap::new();
        for (number, len, at) in all {
            let why = match &at {
                Where::In(place) => bad(&place.path),
                Where::Here(None) => Some("more is kept beside keys than is read".to_owned()),
                Where::Here(Some(_)) => None,
            };
            if let Some(why) = why {
                chunks.strange += 1;
                chunks.first_strange.get_or_insert(why);
                continue;
            }
            chunks.there += 1;
            chunks.bytes = chunks.bytes.saturating_add(len);
            if let Some(plain) = plain.filter(|plain| *plain != len) {
                chunks.odd += 1;
                let name = || names_of(&key_of_number(number, &grid), array.keys.unwrap_or(DOTTED)).join("/");
                chunks.first_odd.get_or_insert_with(|| (name(), len, plain));
            }
            if keep {
                kept.insert(number, at);
            }
        }
        if keep {
            chunks.files.numbers = kept.keys().copied().collect();
            chunks.files.within = Some(Within::Database(dir.clone(), kept));
        }
        Some(chunks)
    }

    /// Numbers of those that are there, in order, each of which stands for all that its name says.
    pub fn numbers(&self) -> &[u64] {
        &self.files.numbers
    }

    /// Opens one of those, by its number. None if it was not there.
    pub fn open(&self, number: u64) -> Result<Option<ChunkBytes>, Failure> {
        if self.files.numbers.binary_search(&number).is_err() {
            return Ok(None);
        }
        match &self.files.within {
            None => Ok(None),
            Some(Within::Directory(dir, keys, grid)) => {
                let names = names_of(&key_of_number(number, grid), *keys);
                let place = names.iter().try_fold(dir.clone(), |place, name| place.named_in(name))?;
                let file = place.open_found()?;
                let len = file.metadata().at(place.path())?.len();
                Ok(Some(ChunkBytes::File { file, offset: 0, len }))
            }
            Some(Within::Database(dir, all)) => match all.get(&number) {
                None | Some(Where::Here(None)) => Ok(None),
                Some(Where::Here(Some(bytes))) => Ok(Some(ChunkBytes::Here(bytes.clone()))),
                Some(Where::In(place)) => {
                    let opened = open_below(dir, &place.path);
                    let (file, _) = opened.map_err(|why| Failure::at(dir.path(), why))?;
                    Ok(Some(ChunkBytes::File { file, offset: place.offset, len: place.len }))
                }
            },
        }
    }

    /// Whether they are values of a database.
    pub fn are_in_database(&self) -> bool {
        matches!(self.files.within, Some(Within::Database(..)))
    }

    /// How many files of chunks are there.
    pub fn there(&self) -> u64 {
        self.there
    }

    /// How many there may be.
    pub fn most(&self) -> u64 {
        self.of
    }

    /// Bytes of those that are there.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many are no files, or cannot be looked at.
    pub fn strange(&self) -> u64 {
        self.strange
    }

    /// What is wrong with those that cannot be read, or are not as long as their elements, in words.
    pub fn fault(&self) -> Option<String> {
        if let Some(first) = &self.first_strange {
            return Some(format!("not all of its chunks can be read: {first}{}", and_more(self.strange)));
        }
        let (first, size, plain) = self.first_odd.as_ref()?;
        let more = and_more(self.odd);
        Some(format!("its chunk {first} has {}, and its elements take {plain}{more}", bytes(*size)))
    }

    /// Of an array of which none is there.
    fn none_of(array: &Array) -> Option<Chunks> {
        array.keys?;
        let of = array.grid()?.iter().fold(1_u64, |of, count| of.saturating_mul(*count));
        Some(Chunks { of, ..Chunks::default() })
    }
}

/// Which chunks are there: each is a number, however many there are, and found by the name that it has.
#[derive(Default)]
struct Files {
    numbers: Vec<u64>,
    within: Option<Within>,
}

enum Within {
    /// The array's directory, how they are called, and how many there are in each dimension.
    Directory(Place, Keys, Vec<u64>),
    /// The database's directory, and where they are in that.
    Database(Place, BTreeMap<u64, Where>),
}

/// Where a value of a database is.
pub enum Where {
    /// In one of its files.
    In(ocdbt::Place),
    /// Beside its key; its bytes, as far as they are kept.
    Here(Option<Rc<[u8]>>),
}

/// An array that is in a database.
pub struct InDatabase {
    /// What its metadata says.
    pub(super) array: Array,
    /// Which chunks are there, if it is known how they are called.
    pub(super) chunks: Option<Chunks>,
    /// What is wrong with those.
    pub(super) fault: Option<String>,
    /// Why others may be there.
    pub(super) why: Option<String>,
}

/// The bytes of a chunk, to be read.
pub enum ChunkBytes {
    /// They are in a file.
    File {
        /// That.
        file: File,
        /// The first of them.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// They stand beside a key.
    Here(Rc<[u8]>),
}

impl ChunkBytes {
    /// How many there are.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        match self {
            ChunkBytes::File { len, .. } => *len,
            ChunkBytes::Here(bytes) => bytes.len() as u64,
        }
    }

    /// Fills a buffer with those from `from` on.
    pub fn read_exact_at(&self, buffer: &mut [u8], from: u64) -> io::Result<()> {
        let end = from.checked_add(buffer.len() as u64).filter(|end| *end <= self.len());
        if end.is_none() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match self {
            ChunkBytes::File { file, offset, .. } => file.read_exact_at(buffer, offset + from),
            ChunkBytes::Here(bytes) => {
                // It is within, as was seen above.
                let from = usize::try_from(from).unwrap_or(usize::MAX);
                let bytes = bytes.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                buffer.copy_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// How the directories are gone through that chunks are in.
pub struct Going<'a> {
    /// How much of them is looked at.
    pub(super) bound: &'a Bound,
    /// What is in them that is no chunk, by the directories that have such.
    pub(super) others: &'a mut HashMap<PathBuf, Vec<Place>>,
}

/// Chunks that are counted.
struct Counting<'a, 'g> {
    chunks: &'a mut Chunks,
    grid: &'a [u64],
    /// Bytes of one, if that is known.
    plain: Option<u64>,
    /// Whether it is kept where they are.
    keep: bool,
    going: Going<'g>,
}

impl Counting<'_, '_> {
    /// Counts a chunk, if it is a file.
    fn file(&mut self, place: &Place, key: &[u64]) -> bool {
        let Some(about) = self.look(place, Place::about_itself) else { return true };
        if about.kind() != Kind::File {
            self.strange(format!("{} is {}", place.path().display(), other(about.kind())));
            return false;
        }
        self.chunks.there += 1;
        if self.keep {
            self.chunks.files.numbers.push(number_of(key, self.grid));
        }
        self.chunks.bytes = self.chunks.bytes.saturating_add(about.size());
        if let Some(plain) = self.plain.filter(|plain| *plain != about.size()) {
            self.chunks.odd += 1;
            let name = || place.name().to_string_lossy().into_owned();
            self.chunks.first_odd.get_or_insert_with(|| (name(), about.size(), plain));
        }
        true
    }

    /// Counts those in a directory, whose names are numbers in the dimension behind those that are known. True if
    /// nothing else is in it.
    fn below(&mut self, place: &Place, known: &[u64]) -> bool {
        let Some(about) = self.look(place, Place::about_itself) else { return true };
        if about.kind() != Kind::Directory {
            let what = other(about.kind());
            self.strange(format!("{} is {what}, and no directory of chunks", place.path().display()));
            return false;
        }
        let bound = self.going.bound;
        let mut others = self.look(place, |place| bound.inside(place)).unwrap_or_default();
        others.retain(|place| !self.numbered(place, known));
        if others.is_empty() {
            return true;
        }
        self.going.others.insert(place.path().to_owned(), others);
        false
    }

    /// Counts what has a number in that dimension: a chunk, or a directory of those.
    fn numbered(&mut self, place: &Place, known: &[u64]) -> bool {
        let name = place.name().to_string_lossy().into_owned();
        let Some(number) = number(&name, self.grid[known.len()]) else { return false };
        let key = [known, &[number]].concat();
        if key.len() == self.grid.len() { self.file(place, &key) } else { self.below(place, &key) }
    }

    /// Looks at what is no fill value, as long as it has its name.
    fn look<T>(&mut self, place: &Place, look: impl Fn(&Place) -> Result<T, Failure>) -> Option<T> {
        let mut why = None;
        let found = place.looked_at(look, &mut |failure| why = Some(failure.to_string()));
        if let Some(why) = why {
            self.strange(why);
        }
        found
    }

    fn strange(&mut self, why: String) {
        self.chunks.strange += 1;
        self.chunks.first_strange.get_or_insert(why);
    }
}

fn bytes(count: u64) -> String {
    format!("{count} byte{}", if count == 1 { "" } else { "s" })
}

/// How many chunks there are of which it is to be said, beside the first one.
fn and_more(count: u64) -> String {
    if count > 1 { format!("; so it is with {} more", count - 1) } else { String::new() }
}

/// What something is that is not what it should be, in words.
pub(super) fn other(kind: Kind) -> &'static str {
    match kind {
        Kind::Link => "a link, which is not followed",
        Kind::Directory => "a directory",
        Kind::File => "a file",
        Kind::Other => "no regular file",
    }
}

/// Opens a file below a directory, with its size. No link is followed.
pub fn open_below(dir: &Place, path: &str) -> Result<(File, u64), String> {
    let mut place = dir.clone();
    let mut names = path.split('/').peekable();
    while let Some(name) = names.next() {
        place = place.named_in(name).map_err(|_| format!("{path} is missing"))?;
        let about = place.about_itself().map_err(|failure| match place.is_gone() {
            true => format!("{path} is missing"),
            false => failure.to_string(),
        })?;
        let expected = if names.peek().is_some() { Kind::Directory } else { Kind::File };
        if about.kind() != expected {
            return Err(format!("{} is {}", text::plain(&place.path().to_string_lossy()), other(about.kind())));
        }
        if expected == Kind::File {
            let file = place.open_found().map_err(|failure| failure.to_string())?;
            return Ok((file, about.size()));
        }
    }
    Err(format!("{path} is missing"))
}

/// The number below that, if it is one as it is written.
fn number(name: &str, most: u64) -> Option<u64> {
    name.parse::<u64>().ok().filter(|number| *number < most && number.to_string() == name)
}

/// The numbers of the chunk that is called so, with dots between them.
fn key_of(name: &str, has_prefix: bool, grid: &[u64]) -> Option<Vec<u64>> {
    if grid.is_empty() {
        return (name == if has_prefix { PREFIX } else { SINGLE }).then(Vec::new);
    }
    let rest = if has_prefix { name.strip_prefix(PREFIX)?.strip_prefix('.')? } else { name };
    let mut numbers = rest.split('.');
    let key = grid.iter().map(|most| number(numbers.next()?, *most)).collect::<Option<Vec<u64>>>()?;
    numbers.next().is_none().then_some(key)
}

/// The number of the chunk of an array that is called so in its database.
pub(super) fn key_in(name: &str, array: &Array) -> Option<u64> {
    let (keys, grid) = (array.keys?, array.grid()?);
    if grid.is_empty() || !keys.is_nested {
        return key_of(name, keys.has_prefix, &grid).map(|key| number_of(&key, &grid));
    }
    let rest = if keys.has_prefix { name.strip_prefix(PREFIX)?.strip_prefix('/')? } else { name };
    let mut names = rest.split('/');
    let key = grid.iter().map(|most| number(names.next()?, *most)).collect::<Option<Vec<u64>>>()?;
    names.next().is_none().then(|| number_of(&key, &grid))
}

/// The chunks of a grid have numbers, row by row.
pub(super) fn number_of(key: &[u64], grid: &[u64]) -> u64 {
    // There are no more of them than an array has elements, which are counted by 64 bits.
    key.iter().zip(grid).fold(0, |number, (at, most)| number * most + at)
}

fn key_of_number(mut number: u64, grid: &[u64]) -> Vec<u64> {
    let mut key: Vec<u64> = grid.to_vec();
    for at in key.iter_mut().rev() {
        let most = (*at).max(1);
        (*at, number) = (number % most, number / most);
    }
    key
}

/// The names on the way to a chunk.
fn names_of(key: &[u64], Keys { has_prefix, is_nested }: Keys) -> Vec<String> {
    if key.is_empty() {
        return vec![if has_prefix { PREFIX } else { SINGLE }.to_owned()];
    }
    let prefix = has_prefix.then(|| PREFIX.to_owned());
    let names = prefix.into_iter().chain(key.iter().map(u64::to_string)).collect::<Vec<_>>();
    if is_nested { names } else { vec![names.join(".")] }
}

/// What is said of chunks, in print.
pub fn text_of(chunks: Option<&Chunks>) -> String {
    chunks.map_or_else(|| "?".to_owned(), |chunks| format!("{}/{}", chunks.there, chunks.of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_grid() {
        let of = |name: &str, has_prefix, grid: &[u64]| key_of(name, has_prefix, grid);
        assert_eq!(of("1.2", false, &[2, 3]), Some(vec![1, 2]));
        assert_eq!(of("c.1.2", true, &[2, 3]), Some(vec![1, 2]));
        assert_eq!((of("0", false, &[]), of("c", true, &[])), (Some(vec![]), Some(vec![])));
        for name in ["2.0", "0.3", "0", "0.0.0", "00.0", "0.+1", "0.", ".0", "c.0.0", "0.0.partial", ""] {
            assert_eq!(of(name, false, &[2, 3]), None, "{name}");
        }
        for (keys, way) in
            [((false, false), "1.2"), ((true, false), "c.1.2"), ((false, true), "1/2"), ((true, true), "c/1/2")]
        {
            let keys = Keys { has_prefix: keys.0, is_nested: keys.1 };
            assert_eq!(names_of(&[1, 2], keys).join("/"), way);
            assert_eq!(names_of(&[], keys), [if keys.has_prefix { "c" } else { "0" }]);
        }
        let grid = [2, 1, 1 << 40];
        for key in [[0, 0, 0], [1, 0, (1 << 40) - 1], [0, 0, 77]] {
            assert_eq!(key_of_number(number_of(&key, &grid), &grid), key);
        }
        assert_eq!((number_of(&[], &[]), key_of_number(0, &[])), (0, vec![]));
        assert!(of("0.0", true, &[2, 3]).is_none() && of("c0.0", true, &[2, 3]).is_none());
        assert!(of("1", false, &[]).is_none());
    }
}

//! Which chunks of an array are there: each is a file, and called by its numbers.

use std::collections::BTreeMap;

use tensorfs_formats::{Array, Keys};

use crate::tensors::place::{Kind, Place, Trouble};

/// What comes before the numbers, where something does, and what stands for the chunk of a single element.
const PREFIX: &str = "c";
const SINGLE: &str = "0";

/// Which are there.
#[derive(Default)]
pub struct Chunks {
    /// How many files of chunks are there.
    pub(super) there: u64,
    /// How many there may be.
    pub(super) of: u64,
    /// Bytes of those that are there.
    bytes: u64,
    /// Where they are, by their numbers, if that was asked for.
    pub(super) files: BTreeMap<Vec<u64>, Place>,
    /// Those that are as many bytes as their elements take and no more, by what their metadata says, and are not.
    odd: u64,
    /// The first of these: its name, bytes that it has, and bytes that it should.
    first_odd: Option<(String, u64, u64)>,
}

impl Chunks {
    /// Those of an array, in what is in its directory. They are taken out of that. None if it is not known how they are
    /// called.
    pub fn of(inside: &mut Vec<Place>, array: &Array, keep: bool, trouble: &mut Trouble<'_>) -> Option<Chunks> {
        let mut chunks = Chunks::none_of(array)?;
        let (grid, keys) = (array.grid()?, array.keys?);
        let mut count = Counting { chunks: &mut chunks, grid: &grid, plain: array.plain_chunk(), keep, trouble };
        let mut left = Vec::new();
        for place in std::mem::take(inside) {
            let name = place.name().to_string_lossy().into_owned();
            let is_chunk = match keys {
                _ if grid.is_empty() || !keys.is_nested => {
                    key_of(&name, keys.has_prefix, &grid).is_some_and(|key| count.file(&place, &key))
                }
                Keys { has_prefix: true, .. } => name == PREFIX && count.below(&place, &[]),
                Keys { has_prefix: false, .. } => count.numbered(&place, &[]),
            };
            if !is_chunk {
                left.push(place);
            }
        }
        *inside = left;
        Some(chunks)
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

    /// What is wrong with those that are not as long as their elements, in words.
    pub fn fault(&self) -> Option<String> {
        let (first, size, plain) = self.first_odd.as_ref()?;
        let more = if self.odd > 1 { format!("; and {} more", self.odd - 1) } else { String::new() };
        Some(format!("its chunk {first} has {size} bytes, and elements of {plain}{more}"))
    }

    /// Of an array of which none is there.
    pub fn none_of(array: &Array) -> Option<Chunks> {
        array.keys?;
        let of = array.grid()?.iter().fold(1_u64, |of, count| of.saturating_mul(*count));
        Some(Chunks { of, ..Chunks::default() })
    }
}

/// Chunks that are counted.
struct Counting<'a, 't> {
    chunks: &'a mut Chunks,
    grid: &'a [u64],
    /// Bytes of one, if that is known.
    plain: Option<u64>,
    /// Whether it is kept where they are.
    keep: bool,
    trouble: &'a mut Trouble<'t>,
}

impl Counting<'_, '_> {
    /// Counts a chunk, if it is a file.
    fn file(&mut self, place: &Place, key: &[u64]) -> bool {
        let Some(about) = place.looked_at(Place::about_itself, self.trouble) else { return true };
        if about.kind() != Kind::File {
            return false;
        }
        self.chunks.there += 1;
        if self.keep {
            self.chunks.files.insert(key.to_vec(), place.clone());
        }
        self.chunks.bytes = self.chunks.bytes.saturating_add(about.size());
        if let Some(plain) = self.plain.filter(|plain| *plain != about.size()) {
            self.chunks.odd += 1;
            let name = || place.name().to_string_lossy().into_owned();
            self.chunks.first_odd.get_or_insert_with(|| (name(), about.size(), plain));
        }
        true
    }

    /// Counts those in a directory, whose names are numbers in the dimension behind those that are known.
    fn below(&mut self, place: &Place, known: &[u64]) -> bool {
        let Some(about) = place.looked_at(Place::about_itself, self.trouble) else { return true };
        if about.kind() != Kind::Directory {
            return false;
        }
        let inside = place.looked_at(Place::inside, self.trouble).unwrap_or_default();
        for place in inside {
            self.numbered(&place, known);
        }
        true
    }

    /// Counts what has a number in that dimension: a chunk, or a directory of those.
    fn numbered(&mut self, place: &Place, known: &[u64]) -> bool {
        let name = place.name().to_string_lossy().into_owned();
        let Some(number) = number(&name, self.grid[known.len()]) else { return false };
        let key = [known, &[number]].concat();
        if key.len() == self.grid.len() { self.file(place, &key) } else { self.below(place, &key) }
    }
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
        assert!(of("0.0", true, &[2, 3]).is_none() && of("c0.0", true, &[2, 3]).is_none());
        assert!(of("1", false, &[]).is_none());
    }
}

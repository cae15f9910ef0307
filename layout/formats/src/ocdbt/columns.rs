//! What a manifest or a node says, column by column: first of all entries one thing, then of all the next one.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use crate::fault::{Fault, Result, malformed, too_much};
use crate::limits::push;

use super::told::{At, FILES_MAX, Give, LENGTH_MAX, Told};

/// The most bytes that the keys of a node have in all, and that those take that they do not have from the one before.
const KEYS_MAX: usize = 64 << 20;
const OWN_MAX: usize = 16 << 20;

/// What is left of one.
pub(super) struct Columns<'s> {
    bytes: Box<dyn Read + 's>,
    /// No more is taken of it.
    left: u64,
    /// The file cannot be read.
    failed: Rc<Cell<bool>>,
}

impl<'s> Columns<'s> {
    pub fn new(bytes: Box<dyn Read + 's>, left: u64, failed: Rc<Cell<bool>>) -> Self {
        Columns { bytes, left, failed }
    }

    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let Some(left) = self.left.checked_sub(buffer.len() as u64) else {
            return too_much("a node that inflates to more than is looked at");
        };
        self.left = left;
        self.bytes.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Malformed("it ends too early".into()),
            _ if self.failed.get() => Fault::Io(io::Error::other("it cannot be read")),
            _ => Fault::Malformed(format!("it cannot be inflated: {error}").into()),
        })
    }

    /// Nothing is behind.
    pub fn end(&mut self) -> Result<()> {
        match self.bytes.read(&mut [0]) {
            Ok(0) => Ok(()),
            _ => malformed("bytes that nothing says what they are"),
        }
    }

    pub fn bytes(&mut self, mut len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // Nothing is taken for what a number alone says.
        while len > 0 {
            let (from, count) = (bytes.len(), len.min(64 << 10));
            bytes.resize(from + count, 0);
            self.fill(&mut bytes[from..])?;
            len -= count;
        }
        Ok(bytes)
    }

    pub fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.fill(&mut byte)?;
        Ok(byte[0])
    }

    pub fn number(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if shift == 63 && byte > 1 {
                return malformed("a number of more than 64 bits");
            }
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        malformed("a number of more than 64 bits")
    }

    /// A number of things, of which no more than that are looked at.
    pub fn few(&mut self, most: usize, what: &str) -> Result<usize> {
        let count = self.number()?;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => too_much(format!("{count} {what}")),
        }
    }

    /// A number of things, of which there are no more than that.
    pub fn count(&mut self, most: usize, what: &str) -> Result<usize> {
        let count = self.number()?;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => malformed(format!("{count} {what}")),
        }
    }

    /// A column of numbers.
    pub fn numbers(&mut self, count: usize) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for _ in 0..count {
            push(&mut numbers, self.number()?);
        }
        Ok(numbers)
    }

    /// A column of lengths of keys or paths.
    pub fn lengths(&mut self, count: usize) -> Result<Vec<u16>> {
        let mut lengths = Vec::new();
        for _ in 0..count {
            push(&mut lengths, u16::try_from(self.number()?).or_else(|_| malformed("a length of more than 16 bits"))?);
        }
        Ok(lengths)
    }

    /// A column of numbers of files, of which there are so many.
    pub fn files(&mut self, count: usize, files: u32) -> Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for _ in 0..count {
            let number = u32::try_from(self.number()?).ok().filter(|number| *number < files);
            push(&mut numbers, number.map_or_else(|| malformed("a file that is not among those"), Ok)?);
        }
        Ok(numbers)
    }

    /// Columns of places: a file, an offset and a length of each. None stands for nothing.
    pub fn places(&mut self, count: usize, files: u32) -> Result<Vec<Option<At>>> {
        let files = self.files(count, files)?;
        let offsets = self.numbers(count)?;
        let lens = self.numbers(count)?;
        let one = |((file, offset), len): ((u32, u64), u64)| match offset.checked_add(len) {
            _ if offset == u64::MAX && len == u64::MAX => Ok(None),
            Some(_) => Ok(Some(At { file, offset, len })),
            None => malformed("a place that cannot be"),
        };
        files.into_iter().zip(offsets).zip(lens).map(one).collect()
    }

    /// The table of data files: gives each, and says how many there are.
    pub fn table(&mut self, give: &mut Give<'_>) -> Result<u32> {
        let count = self.few(FILES_MAX, "data files")?;
        let prefixes = self.prefixes(count)?;
        let suffixes = self.lengths(count)?;
        let bases = self.lengths(count)?;
        let (mut path, mut before) = (Vec::new(), 0);
        for ((prefix, suffix), base) in prefixes.into_iter().zip(suffixes).zip(bases) {
            let (prefix, len) = (usize::from(prefix), usize::from(prefix) + usize::from(suffix));
            let is_kept = prefix <= usize::from(base.min(before)) || base == before;
            if prefix > path.len() || len > LENGTH_MAX || usize::from(base) > len || !is_kept {
                return malformed("a path of a data file that cannot be");
            }
            path.truncate(prefix);
            path.extend(self.bytes(suffix.into())?);
            before = base;
            give(Told::File { path: path.clone(), base })?;
        }
        // There are no more than fit.
        Ok(count as u32)
    }

    /// How much of each it has from the one before: of the first one that is not said.
    fn prefixes(&mut self, count: usize) -> Result<Vec<u16>> {
        let mut prefixes = vec![0];
        prefixes.extend(self.lengths(count.saturating_sub(1))?);
        Ok(prefixes)
    }

    /// The keys of a node, and of one with children how much of each all keys below have.
    pub fn keys(&mut self, count: usize, has_children: bool) -> Result<Keys> {
        let prefixes = self.prefixes(count)?;
        let suffixes = self.lengths(count)?;
        let commons = if has_children { self.lengths(count)? } else { Vec::new() };
        let (mut before, mut all, mut own) = (0, 0, 0);
        for (at, (prefix, suffix)) in prefixes.iter().zip(&suffixes).enumerate() {
            let len = usize::from(*prefix) + usize::from(*suffix);
            let common = commons.get(at).map_or(0, |common| usize::from(*common));
            if usize::from(*prefix) > before || len > LENGTH_MAX || common > len {
                return malformed("a key that cannot be");
            }
            (before, all, own) = (len, all + len, own + usize::from(*suffix));
        }
        if all > KEYS_MAX || own > OWN_MAX {
            return too_much(format!("keys of {all} bytes in one node"));
        }
        Ok(Keys { prefixes, suffixes, commons, own: self.bytes(own)?, key: Vec::new(), at: 0, from: 0 })
    }
}

/// The keys of a node, one by one.
pub(super) struct Keys {
    prefixes: Vec<u16>,
    suffixes: Vec<u16>,
    commons: Vec<u16>,
    own: Vec<u8>,
    key: Vec<u8>,
    at: usize,
    from: usize,
}

impl Keys {
    /// The next one, which is behind the one before, and how much of it all keys below have.
    pub fn next(&mut self) -> Result<(&[u8], u16)> {
        let (prefix, suffix) = (usize::from(self.prefixes[self.at]), usize::from(self.suffixes[self.at]));
        let own = &self.own[self.from..self.from + suffix];
        if self.at > 0 && self.key[prefix..] >= *own {
            return malformed("keys that are not in order");
        }
        self.key.truncate(prefix);
        self.key.extend_from_slice(own);
        let common = self.commons.get(self.at).copied().unwrap_or(0);
        (self.from, self.at) = (self.from + suffix, self.at + 1);
        Ok((&self.key, common))
    }
}

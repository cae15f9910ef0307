//! The lines of a batch or of a base.
//!
//! The first one is its head, the last one counts and checks those before it. Where there are many, those between stand
//! in pages: objects of their own.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::repository::entry::Entry;
use crate::repository::names::Hash;

/// The version of the format.
pub const FORMAT: u32 = 1;

/// What a batch or a base says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub tensorfs_remote: u32,
    /// Its number, which is in its name, too.
    pub number: u64,
    /// True for a base: its lines make the whole tree.
    #[serde(default)]
    pub base: bool,
    /// The pool that it is of: its uuid.
    pub pool: String,
    /// The pool's layout name.
    pub layout: String,
    /// The tree is as it was after this transaction of the pool.
    pub transaction: u64,
    /// When it was made, in seconds since 1970 by the clock of whoever made it.
    pub time: i64,
    /// The BLAKE3 of the batch before it; of a base, of the batch with its number.
    pub before: Option<Hash>,
}

/// How many lines there are before this one, and the BLAKE3 of their bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub lines: u64,
    pub hash: Hash,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The first one.
    Head(Head),
    /// The lines of an object stand here.
    Page(Hash),
    /// An object that does not exist any more.
    Gone(u64),
    /// An object as it is from now on.
    Object(Box<Entry>),
    /// A directory has this name no more.
    Unname(u64, String),
    /// A name in a directory, and whose it is.
    Name(u64, String, u64),
    /// The last one.
    End(End),
}

impl Line {
    /// Its bytes.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        serde_json::to_writer(&mut *out, self)
            .map_err(|error| Error::Refused(format!("cannot be written: {error}")))?;
        out.push(b'\n');
        Ok(())
    }
}

/// The bytes of a batch or a base whose lines these are.
pub fn seal(head: Head, lines: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(lines.len() + 512);
    Line::Head(head).write(&mut out)?;
    out.extend_from_slice(lines);
    let count = out.iter().filter(|byte| **byte == b'\n').count() as u64;
    let hash = Hash::of(&out);
    Line::End(End { lines: count, hash }).write(&mut out)?;
    Ok(out)
}

/// The head of a batch or a base, and its other lines but for the last one. An error says what is wrong with it.
pub fn open(bytes: &[u8]) -> std::result::Result<(Head, &[u8]), String> {
    let body = bytes.strip_suffix(b"\n").ok_or("it ends in the middle")?;
    let last = body.iter().rposition(|byte| *byte == b'\n').ok_or("it ends in the middle")? + 1;
    let (before, end) = bytes.split_at(last);
    let Ok(Line::End(end)) = serde_json::from_slice(end) else { return Err("it has no last line".into()) };
    let count = before.iter().filter(|byte| **byte == b'\n').count() as u64;
    if end.lines != count || end.hash != Hash::of(before) {
        return Err("its bytes are not those that its last line vouches for".into());
    }
    let first = before.iter().position(|byte| *byte == b'\n').ok_or("it has no first line")?;
    let head: Line = serde_json::from_slice(&before[..first]).map_err(|error| format!("its first line: {error}"))?;
    let Line::Head(head) = head else { return Err("its first line is no head".into()) };
    if head.tensorfs_remote != FORMAT {
        return Err(format!("it is of version {}, which a newer tensorfs may know", head.tensorfs_remote));
    }
    Ok((head, &before[first + 1..]))
}

/// The lines of bytes, one after the other.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = std::result::Result<Line, String>> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).map_err(|error| format!("a line cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let (pool, layout) = ("p".into(), "l".into());
        Head { tensorfs_remote: FORMAT, number: 3, base: false, pool, layout, transaction: 9, time: 1, before: None }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let mut text = Vec::new();
        Line::Name(1, "a".into(), 7).write(&mut text).unwrap();
        Line::Gone(9).write(&mut text).unwrap();
        let whole = seal(head(), &text).unwrap();
        let (found, rest) = open(&whole).unwrap();
        assert_eq!((found, rest), (head(), &text[..]));
        let read: Vec<Line> = lines(rest).map(std::result::Result::unwrap).collect();
        assert_eq!(read, [Line::Name(1, "a".into(), 7), Line::Gone(9)]);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // What is flipped in the words of the last line may leave its meaning.
            assert!(open(&flipped).is_err() || bit / 8 >= whole.len() - 120, "bit {bit}");
            if let Ok((found, rest)) = open(&flipped) {
                assert_eq!((found, rest), (head(), &text[..]), "bit {bit}");
            }
        }
        for len in 0..whole.len() {
            assert!(open(&whole[..len]).is_err(), "{len} bytes");
        }
    }
}

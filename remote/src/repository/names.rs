//! What the objects of a repository are called.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Objects that are named after their content.
pub const OBJECTS: &str = "objects";
/// Numbered batches.
pub const LOG: &str = "log";
/// Says what a place is.
pub const MARK: &str = "tensorfs-remote";
/// Trees as they were after the batch of their number.
pub const BASES: &str = "base";

/// The BLAKE3 of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// That of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// What objects and parts of files with these bytes are named after: where a remote is encrypted, that has a key.
    pub fn named(key: Option<&[u8; 32]>, bytes: &[u8]) -> Self {
        key.map_or_else(|| Self::of(bytes), |key| Self(*blake3::keyed_hash(key, bytes).as_bytes()))
    }
}

/// Finds out what bytes are named after that come one after the other ([`Hash::named`]).
pub struct Naming(blake3::Hasher);

impl Naming {
    /// No bytes yet.
    pub fn new(key: Option<&[u8; 32]>) -> Self {
        Self(key.map_or_else(blake3::Hasher::new, blake3::Hasher::new_keyed))
    }

    /// The next ones.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// That of all bytes so far.
    pub fn hash(&self) -> Hash {
        Hash(*self.0.finalize().as_bytes())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Hash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        let digits = text.as_bytes();
        let digit = |at: usize| match digits.get(at) {
            Some(digit @ b'0'..=b'9') => Ok(digit - b'0'),
            Some(digit @ b'a'..=b'f') => Ok(digit - b'a' + 10),
            _ => Err("not a BLAKE3 of 64 digits"),
        };
        if digits.len() != 64 {
            return Err("not a BLAKE3 of 64 digits");
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = digit(2 * at)? << 4 | digit(2 * at + 1)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The object with these bytes.
pub fn object_name(hash: Hash) -> String {
    let text = hash.to_string();
    format!("{OBJECTS}/{}/{text}", &text[..2])
}

/// What an object is named after; nothing if it is not one of ours.
pub fn object_in(name: &str) -> Option<Hash> {
    let hash = name.rsplit('/').next()?.parse().ok()?;
    (object_name(hash) == name).then_some(hash)
}

/// The batch of a number.
pub fn batch_name(number: u64) -> String {
    format!("{LOG}/{number:012}")
}

/// The base of a number.
pub fn base_name(number: u64) -> String {
    format!("{BASES}/{number:012}")
}

/// The number in the name of a batch or a base.
pub fn number_in(name: &str) -> Option<u64> {
    let digits = name.rsplit('/').next()?;
    (digits.len() >= 12 && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let hash = Hash::of(b"abc");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        for key in [None, Some(&[7; 32])] {
            let mut naming = Naming::new(key);
            b"abc".chunks(2).for_each(|bytes| naming.add(bytes));
            assert_eq!(naming.hash(), Hash::named(key, b"abc"));
        }
        assert_eq!(object_name(hash), format!("objects/64/{hash}"));
        assert_eq!(number_in(&batch_name(42)), Some(42));
        assert_eq!(number_in("base/000000000007"), Some(7));
        assert_eq!(object_in(&object_name(hash)), Some(hash));
        for strange in [format!("objects/65/{hash}"), format!("objects/x/64/{hash}"), format!("objects/{hash}")] {
            assert_eq!(object_in(&strange), None, "{strange}");
        }
        for strange in ["log/x", "log/42", "log/00000000004x", ""] {
            assert_eq!(number_in(strange), None, "{strange}");
        }
        for strange in ["", "64", &"G".repeat(64), &"A".repeat(64)] {
            assert!(strange.parse::<Hash>().is_err(), "{strange}");
        }
    }
}

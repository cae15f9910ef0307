//! An object of the tree, as text.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use tensorfs_layout::Timestamp;
use tensorfs_layout::log::{Attributes, Seal};
use tensorfs_layout::tree::{FileChain, Object};

use crate::repository::names::Hash;

/// The attribute of a file whose writer was killed, which names the file's segment.
pub const INTERRUPTED: &[u8] = b"user.tensorfs.interrupted";
/// How the names of attributes begin that say which segments of a pool are as a power loss left them.
pub const LEFT: &[u8] = b"user.tensorfs.left.";

/// Seconds since 1970, and nanoseconds that count forward.
type Time = (i64, u32);

/// An object of the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in its pool.
    pub ino: u64,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rdev: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the object.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Extended attributes: names as [`text_of`] gives them, values in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, String>,
    /// Where a symbolic link points, as [`text_of`] gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The bytes of a regular file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Content>,
}

/// What is known of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its parts are all its bytes.
    Whole,
    /// It was open to write: its parts are what was at rest, and a tail that was not.
    Open,
    /// Its bytes in the pool were not those that they had been: its parts are what was carried before.
    Damaged,
}

/// The bytes of a regular file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// Whether the parts are all of it.
    pub state: State,
    /// Bytes that the file has in the pool.
    pub size: u64,
    /// The segment that they were read from: with `version`, what tells whether they need be read again.
    pub segment: u64,
    /// Grows when records of the file's bytes change.
    pub version: u64,
    /// What stands behind each other in the file, from its first byte on.
    pub parts: Vec<Part>,
    /// So many of their last bytes are as they were found while something could write them.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub tail: u64,
    /// The seals of the file's runs, which follow each other from its first byte on; none if it had none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seals: Vec<Sealed>,
}

impl Content {
    /// Without its tail.
    pub fn without_tail(mut self) -> Self {
        while self.tail > 0
            && let Some(part) = self.parts.pop()
        {
            self.tail = self.tail.saturating_sub(part.len());
        }
        self.tail = 0;
        self
    }

    /// The bytes that its parts have.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.len()))
    }
}

/// Consecutive bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Part {
    /// Zeroes that nothing stores: `[length]`.
    Zeroes((u64,)),
    /// An object of its own: `[length, BLAKE3]`.
    Alone((u64, Hash)),
    /// In a pack: `[length, BLAKE3 of the bytes, BLAKE3 of the pack, offset in it]`.
    Packed((u64, Hash, Hash, u64)),
}

impl Part {
    /// Its bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Zeroes((len,)) | Self::Alone((len, _)) | Self::Packed((len, ..)) => *len,
        }
    }

    /// True for one without bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The BLAKE3 of its bytes, if something stores them.
    pub fn hash(&self) -> Option<Hash> {
        match self {
            Self::Zeroes(_) => None,
            Self::Alone((_, hash)) | Self::Packed((_, hash, ..)) => Some(*hash),
        }
    }

    /// The object that it is in, and where.
    pub fn object(&self) -> Option<(Hash, u64)> {
        match self {
            Self::Zeroes(_) => None,
            Self::Alone((_, hash)) => Some((*hash, 0)),
            Self::Packed((_, _, pack, at)) => Some((*pack, *at)),
        }
    }
}

/// The seal of a run: `[length, CRC32C, description in base64]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed(pub u64, pub u32, pub String);

impl Sealed {
    /// The seal, as the pool has it; `None` if it cannot be read.
    pub fn seal(&self) -> Option<Seal> {
        let description = BASE64_STANDARD.decode(&self.2).ok()?;
        Some(Seal { crc: self.1, description: description.into() })
    }

    /// Those of a chain; none if some of its bytes have none.
    pub fn of(chain: &FileChain) -> Vec<Self> {
        if !chain.is_sealed() {
            return Vec::new();
        }
        let runs = chain.runs().iter().filter(|run| run.len > 0);
        let sealed = |seal: &Seal, len| Self(len, seal.crc, BASE64_STANDARD.encode(&seal.description));
        runs.filter_map(|run| Some(sealed(run.seal()?, run.len))).collect()
    }
}

fn is_nothing(value: &u64) -> bool {
    *value == 0
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn time(time: Timestamp) -> Time {
    (time.sec, time.nsec)
}

fn timestamp((sec, nsec): Time) -> Timestamp {
    Timestamp::new(sec, nsec.min(999_999_999))
}

impl Entry {
    /// What the pool says of an object, but for the bytes of a file.
    pub fn of(ino: u64, object: &Object) -> Self {
        let Attributes { mode, uid, gid, rdev, atime, mtime, ctime, btime, .. } = object.attributes.clone();
        Self {
            ino,
            mode,
            uid,
            gid,
            rdev,
            atime: time(atime),
            mtime: time(mtime),
            ctime: time(ctime),
            btime: time(btime),
            xattrs: object.xattrs().map(|(name, value)| (text_of(name), BASE64_STANDARD.encode(value))).collect(),
            target: object.target().map(text_of),
            file: None,
        }
    }

    /// The attributes of the object, in a pool that has no segment for it yet.
    pub fn attributes(&self) -> Attributes {
        Attributes {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            atime: timestamp(self.atime),
            mtime: timestamp(self.mtime),
            ctime: timestamp(self.ctime),
            btime: timestamp(self.btime),
            segment: None,
            damaged: self.file.as_ref().is_some_and(|file| file.state == State::Damaged),
        }
    }

    /// Names and values of its extended attributes; those that cannot be read are left out.
    pub fn xattrs(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        self.xattrs.iter().filter_map(|(name, value)| Some((name_of(name)?, BASE64_STANDARD.decode(value).ok()?)))
    }

    /// True if the two differ at most in when they were read last.
    pub fn is_but_for_access(&self, other: &Self) -> bool {
        *self == Self { atime: self.atime, ..other.clone() }
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// Bytes as text: what is not printable text in UTF-8, and the per cent sign, is `%` and two digits for each byte.
pub fn text_of(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '%' || character.is_control() {
                let mut buffer = [0; 4];
                character.encode_utf8(&mut buffer).bytes().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
    }
    text
}

/// The bytes of a text; `None` if a per cent sign has no two digits behind it.
pub fn name_of(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let digits = behind.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &behind[2..];
        } else {
            bytes.push(*first);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_are_text() {
        for name in [&b"plain"[..], b"50%", b"\xff\xfe", "gr\u{fc}n".as_bytes(), b"a\nb", b"%41", b"\xe2\x82"] {
            assert_eq!(name_of(&text_of(name)).as_deref(), Some(name), "{name:?}");
        }
        assert_eq!(text_of(b"a%\n\xff"), "a%25%0A%FF");
        for wrong in ["%", "%4", "%+1", "%zz"] {
            assert_eq!(name_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn parts_are_told_by_their_length() {
        let (hash, pack) = (Hash::of(b"a"), Hash::of(b"b"));
        for part in [Part::Zeroes((7,)), Part::Alone((8, hash)), Part::Packed((9, hash, pack, 10))] {
            let text = serde_json::to_string(&part).unwrap();
            assert!(text.starts_with('['), "{text}");
            assert_eq!(serde_json::from_str::<Part>(&text).unwrap(), part);
        }
        assert!(serde_json::from_str::<Part>("[]").is_err());
        assert!(serde_json::from_str::<Part>("[1,2]").is_err());
    }
}

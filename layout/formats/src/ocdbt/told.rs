//! What is asked of a place in a file, and what is told of it.

use serde::{Deserialize, Serialize};

use crate::arrays::{Metadata, What};
use crate::fault::Result;

/// The longest key or path.
pub(super) const LENGTH_MAX: usize = u16::MAX as usize;
/// The most data files that a node names.
pub(super) const FILES_MAX: usize = 1 << 16;
/// The longest value beside its key, and the longest reason.
const VALUE_MAX: usize = 1 << 20;
const REASON_MAX: usize = 4096;
/// Values that say what an array is have keys that end so, behind a slash.
const OF_ARRAYS: [Metadata; 3] = [Metadata::Zarr2Array, Metadata::Zarr3, Metadata::N5];

/// What is asked of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked {
    /// It is a manifest: what does it lead to?
    Manifest,
    /// A node of older versions is at a place.
    Versions {
        /// The first byte.
        at: u64,
        /// How many.
        len: u64,
        /// Its height.
        height: u8,
    },
    /// A node of the tree is at a place.
    Node {
        /// The first byte.
        at: u64,
        /// How many.
        len: u64,
        /// Its height.
        height: u8,
        /// The end of what its keys have in front.
        tail: Tail,
        /// Values beside keys are told as well.
        with_values: bool,
    },
    /// A value is at a place that says what an array is.
    Array {
        /// The first byte.
        at: u64,
        /// How many.
        len: u64,
        /// As which it is to be read.
        metadata: Metadata,
    },
}

impl Asked {
    /// Where it begins.
    pub fn at(self) -> u64 {
        match self {
            Asked::Manifest => 0,
            Asked::Versions { at, .. } | Asked::Node { at, .. } | Asked::Array { at, .. } => at,
        }
    }

    /// How many bytes it has. Those of a manifest are all of its file.
    pub fn bytes(self) -> u64 {
        match self {
            Asked::Manifest => u64::MAX,
            Asked::Versions { len, .. } | Asked::Node { len, .. } | Asked::Array { len, .. } => len,
        }
    }
}

/// The end of what keys have in front: as much of it as the name may have in it that tells metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    bytes: [u8; 16],
    len: u8,
}

impl Tail {
    /// Of that.
    pub fn of(prefix: &[u8]) -> Tail {
        let end = &prefix[prefix.len().saturating_sub(16)..];
        let mut bytes = [0; 16];
        bytes[..end.len()].copy_from_slice(end);
        Tail { bytes, len: end.len() as u8 }
    }

    pub(super) fn joined(&self, name: &[u8]) -> Vec<u8> {
        [self.bytes.get(..usize::from(self.len)).unwrap_or_default(), name].concat()
    }
}

/// A place in one of the files that a node names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// Which of them, in the order in which they were told.
    pub file: u32,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Told {
    /// It is of a version that is not known, or compressed in another way: why it is not looked into.
    Unknown(String),
    /// Versions are in manifests that have their numbers in their names.
    Numbered,
    /// The newest version.
    Version {
        /// Its number.
        generation: u64,
        /// The height of its tree.
        height: u8,
        /// The root of that, if it has any keys.
        root: Option<At>,
    },
    /// A node of older versions.
    Versions {
        /// Where it is.
        at: At,
        /// Its height.
        height: u8,
    },
    /// A data file, which places name that come behind.
    File {
        /// Its path.
        path: Vec<u8>,
        /// How much of it all paths have in front that are told below.
        base: u16,
    },
    /// A child of a node.
    Child {
        /// What keys below have in front.
        key: Vec<u8>,
        /// Where it is.
        at: At,
    },
    /// A key.
    Key {
        /// What of it is not in front of all keys of the node.
        key: Vec<u8>,
        /// Its value.
        value: Value,
    },
    /// What a value says that an array is.
    Array(What),
}

/// Who is told.
pub(super) type Give<'a> = dyn FnMut(Told) -> Result<()> + 'a;

/// A value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// It is in a file.
    At(At),
    /// It stands beside its key.
    Here {
        /// Bytes of it.
        len: u64,
        /// These, if they are wanted.
        bytes: Vec<u8>,
        /// What it says that an array is, if its key is called so.
        what: Option<What>,
    },
}

impl Told {
    /// What cannot be true of it, if anything: for whoever does not trust who says it.
    pub fn fault(&self) -> Option<&'static str> {
        let node = |what: &What| crate::arrays::Node { path: String::new(), what: what.clone() }.fault();
        let place = |at: &At| at.offset.checked_add(at.len).is_none().then_some("a place that cannot be");
        match self {
            Told::Unknown(why) if why.len() > REASON_MAX => Some("a reason that is too long"),
            Told::File { path, base } if path.len() > LENGTH_MAX || usize::from(*base) > path.len() => {
                Some("a path of a data file that cannot be")
            }
            Told::Child { key, .. } | Told::Key { key, .. } if key.len() > LENGTH_MAX => Some("a key that is too long"),
            Told::Version { root: Some(at), .. } | Told::Versions { at, .. } | Told::Child { at, .. } => place(at),
            Told::Key { value: Value::At(at), .. } => place(at),
            Told::Key { value: Value::Here { len, bytes, what }, .. } => match what {
                _ if *len > VALUE_MAX as u64 || !bytes.is_empty() && bytes.len() as u64 != *len => {
                    Some("a value that is too long to stand beside its key")
                }
                Some(what) => node(what),
                None => None,
            },
            Told::Array(what) => node(what),
            Told::Unknown(_) | Told::Numbered | Told::Version { .. } | Told::File { .. } => None,
        }
    }
}

/// The metadata of an array that a key is called as.
pub(super) fn metadata_of(key: &[u8]) -> Option<Metadata> {
    let name = key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    OF_ARRAYS.into_iter().find(|metadata| metadata.name().as_bytes() == name)
}

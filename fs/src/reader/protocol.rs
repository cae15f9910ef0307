//! What the server and a reader say to each other.
//!
//! The server asks for one thing at a time. Until it has the answer, the reader asks back: for bytes of the file, or
//! whether more tensors are wanted. A message is two lengths, the message, and bytes that belong to it.

use std::fmt;
use std::io::{self, Read, Write};
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tensorfs_formats::ocdbt::Asked;
use tensorfs_formats::{Block, Format, Front, Metadata, Recognised, Tensor};

/// The most bytes of a file that are read at once.
pub(super) const READ_MAX: usize = 256 << 10;
/// So many bytes of a file come with the question what is in it: mostly they are enough to tell that it is of no format
/// that is known, or to find its first tensor.
pub(super) const HEAD: usize = 8 << 10;
/// The most bytes of a tensor that are decoded at once.
pub(super) const DECODE_MAX: usize = 1 << 20;
/// Tensors come in lots of at most so many.
pub(super) const LOT_MAX: u32 = 1024;
/// A lot is sent once it has so many bytes.
pub(super) const LOT_BYTES: usize = 256 << 10;

/// The most that a file may say about itself, and the most calls that are told of it.
const METADATA_PAIRS: usize = 1 << 17;
const CALLS_MAX: usize = 32;

/// The longest message, and the most bytes with it.
const MESSAGE_MAX: usize = 4 << 20;
const BYTES_MAX: usize = 4 << 20;

/// How much of what is in a file is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wanted {
    /// All tensors, until no more are wanted.
    All,
    /// The first tensor, if there is one.
    First,
    /// Those of an event file from a place on, up to so many.
    From { at: u64, limit: u64 },
    /// Those from a place on, of a file of which so much is known in front of that.
    Behind { at: u64, front: Front },
    /// No tensors, but the parts that an index names.
    Shards,
    /// No tensors, but the files that the plan of a distributed checkpoint names.
    Plan,
    /// No tensors, but all that the plan of a distributed checkpoint says, or the index of one in parts.
    Pieces,
    /// No tensors, but what the metadata of a hierarchy of arrays says of its directories.
    Nodes(Metadata),
    /// No tensors, but what is at a place of a file of an OCDBT database.
    Tree(Asked),
    /// The elements of a block of n5's, as one tensor.
    Block(Block),
    /// No tensors, but whether a file in which nothing is recognised may be a part of a distributed checkpoint.
    Part,
}

impl Wanted {
    /// Where it is begun.
    pub(crate) fn start(self) -> u64 {
        match self {
            Wanted::All | Wanted::First | Wanted::Block(_) | Wanted::Part => 0,
            Wanted::Shards | Wanted::Plan | Wanted::Pieces | Wanted::Nodes(_) => 0,
            Wanted::Tree(asked) => asked.at(),
            Wanted::From { at, .. } | Wanted::Behind { at, .. } => at,
        }
    }
}

/// What the server says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Say what is in a file of this size. The bytes that it begins with come with this, or those from the place on
    /// where it is to be gone on.
    Recognise { size: u64, wanted: Wanted },
    /// Decode bytes of a tensor in a file of this size. Without a tensor, of the one before.
    Decode { size: u64, tensor: Option<Box<Tensor>>, offset: u64, len: u32 },
    /// The bytes that were wanted come with this.
    Bytes,
    /// There are so many bytes of a hole.
    Hole(u64),
    /// They could not be read.
    Unreadable,
    /// More tensors are wanted.
    More,
    /// No more are.
    Enough,
}

/// What a reader says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is locked in. What of that was not to be had is told.
    Ready(#[serde(deserialize_with = "few::<CALLS_MAX, _, _>")] Vec<String>),
    /// These bytes of the file are wanted.
    Read { offset: u64, len: u32 },
    /// Is there a hole?
    Hole { offset: u64 },
    /// So many tensors come with this. Are more wanted?
    Tensors(u32),
    /// So many pieces of a plan come with this. Are more wanted?
    Pieces(u32),
    /// So many directories of a hierarchy come with this. Are more wanted?
    Nodes(u32),
    /// So much of what is told of a database comes with this. Is more wanted?
    Told(u32),
    /// That is all.
    Recognised(Summary),
    /// The bytes that were to be decoded come with this.
    Decoded,
    /// It could not be done: an error number, or what is wrong with the bytes.
    Failed(Option<i32>, String),
}

/// A [`Recognised`] on its way.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Summary {
    pub format: Format,
    pub frames: u64,
    pub bad_frames: u64,
    pub end: u64,
    pub cut: bool,
    pub reason: Option<String>,
    pub beyond: bool,
    #[serde(deserialize_with = "few::<METADATA_PAIRS, _, _>")]
    pub metadata: Vec<(String, String)>,
    #[serde(deserialize_with = "few::<CALLS_MAX, _, _>")]
    pub calls: Vec<String>,
    pub stopped: bool,
    pub failed: Option<String>,
}

/// So many of something at most. A byte of a message stands for an empty text, which takes many: more of them are not
/// even taken in.
fn few<'de, const MOST: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Few<const MOST: usize, T>(PhantomData<T>);

    impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for Few<MOST, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST} of them")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<T>, A::Error> {
            let mut taken = Vec::new();
            while let Some(one) = all.next_element()? {
                if taken.len() == MOST {
                    return Err(A::Error::custom("too many"));
                }
                taken.push(one);
            }
            Ok(taken)
        }
    }

    from.deserialize_seq(Few::<MOST, T>(PhantomData))
}

impl From<Recognised> for Summary {
    fn from(found: Recognised) -> Self {
        Summary {
            format: found.format,
            frames: found.frames,
            bad_frames: found.bad_frames,
            end: found.end,
            cut: found.cut,
            reason: found.reason,
            beyond: found.beyond,
            metadata: found.metadata,
            calls: found.calls,
            stopped: found.stopped,
            failed: found.error.map(|error| error.to_string()),
        }
    }
}

/// Messages over a stream.
pub(super) struct Wire<S> {
    stream: S,
    buffer: Vec<u8>,
}

fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<S: Read + Write> Wire<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// What it goes over.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Sends a message and what belongs to it.
    pub fn send(&mut self, message: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
        let encoded = postcard::to_stdvec(message).map_err(|_| nonsense("a message that cannot be sent"))?;
        if encoded.len() > MESSAGE_MAX || bytes.len() > BYTES_MAX {
            return Err(nonsense("a message that is too long"));
        }
        self.buffer.clear();
        self.buffer.extend((encoded.len() as u32).to_le_bytes());
        self.buffer.extend((bytes.len() as u32).to_le_bytes());
        self.buffer.extend(encoded);
        self.buffer.extend(bytes);
        self.stream.write_all(&self.buffer)
    }

    /// Waits for a message, and what belongs to it.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<(T, &[u8])> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h] = head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        if len > MESSAGE_MAX || bytes > BYTES_MAX {
            return Err(nonsense("a message that is too long"));
        }
        self.buffer.clear();
        self.buffer.resize(len + bytes, 0);
        self.stream.read_exact(&mut self.buffer)?;
        let (message, bytes) = self.buffer.split_at(len);
        let message = postcard::from_bytes(message).map_err(|_| nonsense("a message that means nothing"))?;
        Ok((message, bytes))
    }
}

//! How the tree of a pool goes on to a newer one of the remote that it was made from, while the pool is mounted: the
//! process that knows the remote says what is new, and the server makes it so.
//!
//! What is new is made first, where no name leads to it; a file has no bytes here yet and is away as others are
//! ([`crate::pool::Bring`]). Then names and attributes change in one transaction, together with the note of which tree
//! this is: whoever looks sees the tree before or the one behind. What is more than one transaction takes goes over in
//! lots, of which the first one notes so. What was computed against another note than the pool has is refused.
//!
//! It asks by an ioctl(2) on any directory of the mount, as root or as the user whom the server runs as. The encoding
//! is postcard's; the number of the ioctl stands for its version. Changes are one stream of bytes, each with its length
//! in front, as one of them may be longer than a request.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use serde::{Deserialize, Serialize};
use tensorfs_formats::crc32c;

use crate::error::{Error, Result};
use crate::ids::{Ino, ROOT, SegmentId, TxId};
use crate::log::Origin;
use crate::log::frame;
use crate::log::length;
use crate::log::record::{Attributes, Record};
use crate::log::seal::Seal;
use crate::log::tier::{REMOTE_NAME, Tier};
use crate::log::transaction::Transaction;
use crate::pool::asking::ask;
use crate::pool::edit::Edit;
use crate::pool::leaving::digest;
use crate::pool::opened::Pool;
use crate::segment::examine::SealedRun;
use crate::time::Timestamp;
use crate::tree::object::Object;
use crate::tree::view::View;

/// Bytes of a request or an answer, at most.
pub const FOLLOW_SIZE: usize = 8176;

/// The ioctl(2) by which a tree goes on to a newer one.
pub const FOLLOW: u32 = nix::request_code_readwrite!(0xa7, 8, FOLLOW_SIZE) as u32;

/// Bytes of the changes that go with one request.
pub const FOLLOW_CHUNK: usize = 6000;

/// Bytes of one change at most: a file with very many seals.
const LONGEST: usize = 64 << 20;

/// Bytes of a note at most.
const NOTE: usize = 4000;

/// What is told or asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Follow {
    /// It was looked for a newer tree.
    Looked {
        /// In the remote of the pool that has this uuid.
        pool: String,
        /// The batch whose tree is here, and when it was made, in seconds since 1970.
        here: (u64, i64),
        /// Why it is not known whether there is a newer one, or why that does not come.
        why: Option<String>,
    },
    /// A newer tree is there, and its changes follow. What was begun before and not ended is given up.
    Begin {
        /// The pool's uuid.
        pool: String,
        /// The CRC32C of the note of which tree is here, as it was when the changes were found out.
        note: u32,
    },
    /// Some more of the changes.
    Changes {
        /// Of which switch.
        switch: u64,
        /// Behind so many bytes.
        at: u64,
        /// These.
        bytes: Vec<u8>,
    },
    /// The names and attributes that were said since the last lot are to be what they were said to be.
    Go {
        /// In this switch.
        switch: u64,
        /// Which tree this is from then on.
        note: Vec<u8>,
        /// No lot follows.
        last: bool,
    },
    /// What is known of a file that was removed and that somebody has open; of one that has a name, only that it is so
    /// ([`FollowReply::Noted`]).
    What {
        /// The file.
        ino: Ino,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FollowReply {
    /// A switch has begun.
    Begun {
        /// Its number.
        switch: u64,
        /// Bytes of the log that the names and attributes of a lot may have ([`Change::len`]).
        room: u64,
    },
    /// It is done.
    Noted,
    /// There is no such switch any more: another server serves, or another one has begun.
    Unknown,
    /// Not so, and why.
    Refused(String),
    /// What is known of a file.
    Is {
        /// Its bytes.
        size: u64,
        /// A CRC32C of its seals, as [`crate::pool::digest`] makes it.
        seals: u32,
        /// When its bytes were changed last.
        mtime: Timestamp,
    },
}

/// Asks the server of the mount that a directory is in.
///
/// # Errors
/// What it says; `ENOTTY` of one that does not know this, and where there is none.
pub fn follow(mount: &File, request: &Follow) -> io::Result<FollowReply> {
    ask(mount, FOLLOW, request)
}

impl Follow {
    /// A request, as a server gets it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

impl FollowReply {
    /// What a server answers.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }
}

/// What [`Follow::Begin`] says of a note.
pub fn note_sum(note: &[u8]) -> u32 {
    crc32c(note)
}

/// An object: one that is there, or one that this switch makes, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Whose {
    /// The one of this number.
    There(Ino),
    /// The one that was made as this one.
    Made(u32),
}

/// What an object looks like, but for its bytes and extended attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the object.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl Look {
    /// That of attributes.
    pub fn of(attributes: &Attributes) -> Self {
        let Attributes { mode, uid, gid, rdev, atime, mtime, ctime, btime, .. } = attributes.clone();
        Self { mode, uid, gid, rdev, atime, mtime, ctime, btime }
    }

    /// Attributes with it, for the bytes in a segment.
    fn with(&self, segment: Option<SegmentId>, damaged: bool) -> Attributes {
        let Self { mode, uid, gid, rdev, atime, mtime, ctime, btime } = self.clone();
        Attributes { mode, uid, gid, rdev, atime, mtime, ctime, btime, segment, damaged }
    }
}

/// A new object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct New {
    /// What it looks like.
    pub look: Look,
    /// Where a symbolic link points.
    pub target: Option<Vec<u8>>,
    /// Its extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its writer was killed, and has not written it to its end.
    pub interrupted: bool,
    /// What it has may not be what was written.
    pub damaged: bool,
    /// Length, CRC32C and description of the runs of a file, from its first byte on. One without runs is empty.
    pub runs: Vec<(u64, u32, Vec<u8>)>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// An object is made, without a name.
    Make(Box<New>),
    /// A name in a directory that was made, of an object that was: at once, as no name leads there.
    Within(u32, Vec<u8>, u32),
    /// A name in a directory, with the next lot.
    Name(Whose, Vec<u8>, Whose),
    /// A name that a directory has no more, with the next lot. What lies below one that has none then goes with it.
    Unname(Ino, Vec<u8>),
    /// What an object looks like, with the next lot.
    Look(Ino, Look),
    /// An extended attribute of an object, or that it has none of this name, with the next lot.
    Xattr(Ino, Vec<u8>, Option<Vec<u8>>),
}

impl Change {
    /// Adds it to a stream.
    pub fn write(&self, stream: &mut Vec<u8>) {
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        stream.extend((bytes.len() as u32).to_le_bytes());
        stream.extend(bytes);
    }

    /// Takes the first one of a stream, if all of it is there.
    ///
    /// # Errors
    /// It is none.
    pub fn take(stream: &mut Vec<u8>) -> std::result::Result<Option<Self>, &'static str> {
        let Some((len, rest)) = stream.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > LONGEST {
            return Err("a change is too long");
        }
        let Some(bytes) = rest.get(..len) else { return Ok(None) };
        let change = postcard::from_bytes(bytes).map_err(|_| "a change cannot be read")?;
        stream.drain(..4 + len);
        Ok(Some(change))
    }

    /// Bytes of the log that it takes in a lot; none of one that is no part of it.
    pub fn len(&self) -> usize {
        match self {
            Self::Make(_) | Self::Within(..) => 0,
            Self::Name(_, name, _) => length::name(name.len()),
            Self::Unname(_, name) => length::removal(name.len()),
            Self::Look(..) => length::ATTRIBUTES,
            Self::Xattr(_, name, value) => length::xattr(name.len(), value.as_ref().map_or(0, Vec::len)),
        }
    }

    /// True of one that is no part of a lot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record that it is, in a tree to which these objects were added.
    fn record(&self, view: &View, made: &[Ino]) -> std::result::Result<Option<Record>, String> {
        let is_dir = |ino: Ino| view.object(ino).is_some_and(|object| object.is_dir());
        let there = |ino: Ino| view.object(ino).map(|_| ino).ok_or_else(|| format!("there is no object {ino}"));
        let find = |whose: Whose| match whose {
            Whose::There(ino) => there(ino),
            Whose::Made(at) => made.get(at as usize).copied().ok_or_else(|| format!("nothing was made as {at}")),
        };
        Ok(Some(match self {
            Self::Make(_) | Self::Within(..) => return Ok(None),
            Self::Name(dir, name, whose) => {
                let (dir, ino) = (find(*dir)?, find(*whose)?);
                if !is_dir(dir) || ino == ROOT {
                    return Err(format!("a name in {dir} for {ino} cannot be"));
                }
                Record::Name { dir, name: name.as_slice().into(), ino }
            }
            Self::Unname(dir, name) => Record::Removal { dir: there(*dir)?, name: name.as_slice().into() },
            Self::Look(ino, look) => {
                let object = view.object(*ino).ok_or_else(|| format!("there is no object {ino}"))?;
                if object.kind() != look.mode & libc::S_IFMT {
                    return Err(format!("{ino} cannot become something else than it is"));
                }
                let Attributes { segment, damaged, .. } = object.attributes;
                Record::Attributes { ino: *ino, attributes: look.with(segment, damaged) }
            }
            Self::Xattr(ino, name, Some(value)) => {
                Record::Xattr { ino: there(*ino)?, name: name.as_slice().into(), value: value.as_slice().into() }
            }
            Self::Xattr(ino, name, None) => Record::XattrRemoval { ino: there(*ino)?, name: name.as_slice().into() },
        }))
    }
}

/// What is known of a file, if it is one, and all of it is sealed.
pub fn known_of(object: &Object) -> Option<FollowReply> {
    let chain = object.chain().filter(|chain| chain.is_sealed())?;
    let runs = chain.runs().iter().filter(|run| run.len > 0);
    let seals = digest(runs.filter_map(|run| Some((run.len, run.seal()?.crc))));
    Some(FollowReply::Is { size: chain.size(), seals, mtime: object.attributes.mtime })
}

impl Pool {
    /// Bytes of the log that the names and attributes of a lot may have.
    pub fn room_to_go(&self) -> usize {
        let rest = frame::HEADER + length::tier(REMOTE_NAME.len(), NOTE + 4096);
        self.state.read().log.largest_frame().saturating_sub(rest).min(usize::from(u16::MAX - 1) * length::removal(1))
    }

    /// Makes an object that has no name. The bytes of a file are in the remote that this tier stands for; they are
    /// known by its seals.
    ///
    /// # Errors
    /// The pool's own; then nothing is left of it.
    pub fn make_unnamed(&self, tier: u8, new: &New) -> Result<Ino> {
        let ino = Ino(self.edit().next_id());
        self.make_as(ino, tier, new).map(|()| ino).inspect_err(|_| self.edit().reap(ino))
    }

    fn make_as(&self, ino: Ino, tier: u8, new: &New) -> Result<()> {
        let invalid = |what: &str| Error::Invalid { pool: self.path.clone(), what: what.into() };
        let size = new.runs.iter().try_fold(0_u64, |sum, (len, ..)| sum.checked_add(*len));
        let size = size.filter(|size| i64::try_from(*size).is_ok()).ok_or_else(|| invalid("a size that cannot be"))?;
        let is_file = new.look.mode & libc::S_IFMT == libc::S_IFREG;
        if (size > 0 && !is_file) || new.runs.iter().any(|(len, ..)| *len == 0) {
            return Err(invalid("runs that cannot be"));
        }
        let serial = if size > 0 { Some(self.edit().next_id()) } else { None };
        let segment = serial.map(|serial| SegmentId::in_tier(tier, serial).ok_or_else(|| invalid("no number is left")));
        let segment = segment.transpose()?;
        let mut tx =
            Transaction::new(0).with(Record::Attributes { ino, attributes: new.look.with(segment, new.damaged) });
        if let Some(target) = &new.target {
            tx.push(Record::Target { ino, target: target.as_slice().into() });
        }
        if let Some(segment) = segment {
            tx.push(Record::Data { ino, segment, offset: 0, len: size, allocated: 0, origin: Origin::default() });
            tx.bytes_are_durable(segment);
            if new.interrupted {
                tx.push(Record::interrupted(ino, segment));
            }
        }
        self.edit().store(tx)?;
        for (name, value) in &new.xattrs {
            let record = Record::Xattr { ino, name: name.as_slice().into(), value: value.as_slice().into() };
            self.edit().store(Transaction::new(0).with(record))?;
        }
        let Some(segment) = segment else { return Ok(()) };
        let room = self.description_room();
        let runs = new.runs.iter().scan(0_u64, |offset, (len, crc, description)| {
            let description = if description.len() > room { Box::default() } else { description.as_slice().into() };
            let run = SealedRun {
                offset: *offset,
                len: *len,
                seal: Seal { crc: *crc, description },
                origin: Origin::default(),
            };
            *offset += len;
            Some(run)
        });
        match self.seal_unnamed(ino, segment, runs.collect())? {
            true => Ok(()),
            false => Err(invalid("it is not as it was made")),
        }
    }

    /// Gives a name in a directory that was made to an object that was. One of a directory is its only one.
    ///
    /// # Errors
    /// The pool's own; and there can be no such name.
    pub fn name_within(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<TxId> {
        let view = self.view();
        let is_dir = |ino: Ino| view.object(ino).is_some_and(Object::is_dir);
        if !is_dir(dir) || dir == ino || (is_dir(ino) && view.object(ino).is_some_and(|object| object.names() > 0)) {
            let what = format!("a name in {dir} for {ino} cannot be");
            return Err(Error::Invalid { pool: self.path.clone(), what });
        }
        drop(view);
        self.edit().store(Transaction::new(0).with(Record::Name { dir, name: name.into(), ino }))
    }
}

impl Edit<'_> {
    /// What is noted of which tree this is.
    pub fn followed_note(&self) -> Option<&[u8]> {
        self.remote().filter(|(_, tier)| tier.is_followed()).and_then(|(_, tier)| tier.note())
    }

    /// Makes changes true, and notes which tree this is from then on, if what is noted has this CRC32C. An answer says
    /// why not.
    ///
    /// # Errors
    /// The pool's own.
    pub fn go_over(
        &mut self,
        known: u32,
        (changes, made): (&[Change], &[Ino]),
        note: &[u8],
    ) -> Result<std::result::Result<(), String>> {
        let refused = |why: &str| Ok(Err(why.to_owned()));
        let Some((number, tier)) = self.remote().filter(|(_, tier)| tier.is_followed()) else {
            return refused("the pool follows no remote");
        };
        if tier.note().map(note_sum) != Some(known) {
            return refused("another tree is here by now");
        }
        if note.len() > NOTE {
            return refused("what is to be noted is too long");
        }
        let end = tier.directory.iter().position(|byte| *byte == b'\n').map_or(tier.directory.len(), |end| end + 1);
        let directory = [&tier.directory[..end], note].concat().into();
        let tier = Tier { directory, ..tier.clone() };
        if !tier.is_followed() || !tier.is_sound() {
            return refused("what is to be noted is no note");
        }
        let mut tx = Transaction::new(0);
        for change in changes {
            match change.record(self, made) {
                Ok(record) => record.into_iter().for_each(|record| tx.push(record)),
                Err(why) => return Ok(Err(why)),
            }
        }
        if let Some(ino) = self.directory_of_two_names(&tx) {
            return Ok(Err(format!("the directory {ino} cannot have two names")));
        }
        tx.push(Record::Tier { number, tier });
        self.store_from_reserve(tx).map(|_| Ok(()))
    }

    /// A directory that has more than one name behind a transaction.
    fn directory_of_two_names(&self, tx: &Transaction) -> Option<Ino> {
        let (mut names, mut counts) = (HashMap::new(), HashMap::new());
        for record in tx.records() {
            let (place, now) = match record {
                Record::Name { dir, name, ino } => ((*dir, &**name), Some(*ino)),
                Record::Removal { dir, name } => ((*dir, &**name), None),
                _ => continue,
            };
            let before = names.insert(place, now).unwrap_or_else(|| self.lookup(place.0, place.1));
            if before == now {
                continue;
            }
            for (ino, more) in before.map(|ino| (ino, -1)).into_iter().chain(now.map(|ino| (ino, 1))) {
                if let Some(object) = self.object(ino).filter(|object| object.is_dir()) {
                    *counts.entry(ino).or_insert_with(|| i64::from(object.names())) += more;
                }
            }
        }
        counts.into_iter().find(|(_, names)| *names > 1).map(|(ino, _)| ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves E30.
    #[test]
    fn a_stream_of_changes_is_taken_apart_wherever_it_is_cut() {
        let changes = [
            Change::Unname(ROOT, b"a".to_vec()),
            Change::Name(Whose::There(ROOT), b"b".to_vec(), Whose::Made(3)),
            Change::Xattr(Ino(7), b"user.x".to_vec(), Some(vec![1; 300])),
        ];
        let mut stream = Vec::new();
        changes.iter().for_each(|change| change.write(&mut stream));
        for step in [1, 7, stream.len()] {
            let (mut left, mut found) = (Vec::new(), Vec::new());
            for bytes in stream.chunks(step) {
                left.extend(bytes);
                while let Some(change) = Change::take(&mut left).unwrap() {
                    found.push(change);
                }
            }
            assert_eq!((found.as_slice(), left.len()), (&changes[..], 0));
        }
        assert!(Change::take(&mut u32::MAX.to_le_bytes().to_vec()).is_err());
        assert!(Change::take(&mut vec![1, 0, 0, 0, 200]).is_err());
    }
}

//! How files leave a pool that has a second copy: their bytes are in its remote alone from then on. The process that
//! knows the remote has seen there that all of a file is in the newest tree, and says which records of the file that
//! was; the server looks whether the file is still that, and lets go of its segment.
//!
//! It asks by an ioctl(2) on any directory of the mount, as root or as the user whom the server runs as. The encoding
//! is postcard's; the number of the ioctl stands for its version.

use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tensorfs_formats::crc32c_append;

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::frame;
use crate::log::length;
use crate::log::record::{Attributes, Record};
use crate::log::transaction::Transaction;
use crate::pool::asking::ask;
use crate::pool::opened::Pool;
use crate::pool::turns::{self, MayLeave};
use crate::segment::examine::SealedRun;
use crate::tree::Run;
use crate::tree::chain::FileChain;
use crate::tree::object::Object;

/// Bytes of a request or an answer, at most.
pub const LEAVE_SIZE: usize = 8184;

/// The ioctl(2) by which files leave.
pub const LEAVE: u32 = nix::request_code_readwrite!(0xa7, 7, LEAVE_SIZE) as u32;

/// Room in the frame of a transaction for what is there beside the seals.
const REST: usize = length::ATTRIBUTES + length::xattr(64, 8);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leave {
    /// Files are going to leave for a place.
    To {
        /// The pool's uuid.
        pool: String,
        /// The URL of its remote.
        place: String,
        /// What whoever fetches them has to know of it.
        note: Vec<u8>,
    },
    /// A file is to leave.
    Go {
        /// The file.
        ino: Ino,
        /// What of it the remote has.
        known: Known,
        /// The URL of that remote.
        place: String,
        /// The number of the carrier's time after which it was looked at what is noted of the remote.
        time: u64,
        /// Nobody has asked for it: one that has come back a moment ago stays.
        by_itself: bool,
    },
    /// What is to leave by itself, for whoever carries the pool.
    Which {
        /// The pool's uuid.
        pool: String,
        /// Files are to be named. Else it is a sign that somebody carries it.
        tell: bool,
    },
}

/// Which bytes of a file the remote has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The segment that they were read from.
    pub segment: SegmentId,
    /// The version of the records that said of them what they are.
    pub version: u64,
    /// How many.
    pub size: u64,
    /// What [`digest`] makes of the file's seals.
    pub seals: u32,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaveReply {
    /// They may. True if somebody fetches files of this mount.
    Fetched(bool),
    /// Its bytes are away.
    Gone,
    /// It has none.
    Empty,
    /// It stays, or all do.
    Refused(String),
    /// What was said or seen of the remote before is not so any more: it is to be looked at, and said, again.
    Again,
    /// These files, and what nobody has used for longest where the mount is fuller than so many per cent.
    Which {
        /// Some of those that their owners have named.
        files: Vec<Ino>,
        /// From this on the mount is full.
        evict_at: Option<u8>,
    },
}

/// Stands for the seals of a file: length and checksum of each run that has bytes.
pub fn digest(seals: impl Iterator<Item = (u64, u32)>) -> u32 {
    seals.fold(0, |sum, (len, crc)| crc32c_append(crc32c_append(sum, &len.to_le_bytes()), &crc.to_le_bytes()))
}

/// Asks the server of the mount that a directory is in.
///
/// # Errors
/// What it says; `ENOTTY` of one that does not know this, and where there is none.
pub fn leave(mount: &File, request: &Leave) -> io::Result<LeaveReply> {
    ask(mount, LEAVE, request)
}

impl Leave {
    /// A request, as a server gets it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

impl LeaveReply {
    /// What a server answers.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }
}

impl Pool {
    /// True if a carrier has noted where the pool has a second copy.
    pub fn has_second_copy(&self) -> bool {
        self.carried().is_ok_and(|carried| carried.is_some())
    }

    /// That a file may leave for a place, if the pool's carrier has had no time of its own after this one: the number
    /// of the tier that stands for that. The answer is held until it is durable that the file has left.
    pub fn may_leave(&self, place: &str, time: u64) -> Result<Option<(u8, MayLeave)>> {
        let Some(turn) = turns::may_leave(self.dir(), time)? else { return Ok(None) };
        let view = self.view();
        let own = view.remote().filter(|(_, tier)| tier.is_own_remote() && tier.path() == Path::new(place));
        Ok(own.map(|(number, _)| (number, turn)))
    }

    /// Lets a file's bytes be in the remote that the tier of this number stands for, and nowhere else, in one
    /// transaction with the file's seals: its segment is removed once that is durable. The caller sees to it that
    /// nothing can write the file meanwhile. An answer says why the file stays as it is.
    pub fn let_go(&self, ino: Ino, known: &Known, tier: u8) -> Result<std::result::Result<(), String>> {
        let refused = |why: &str| Ok(Err(why.to_owned()));
        let len = self.view().object(ino).and_then(Object::chain).map_or(0, sealed_len);
        let mut edit = self.edit_with_room(len);
        let Some(object) = edit.object(ino).filter(|object| object.names() > 0) else {
            return refused("it is not there any more");
        };
        let Some(chain) = object.chain().filter(|chain| chain.is_sealed()) else {
            return refused("not all of it is sealed");
        };
        if object.attributes.damaged {
            return refused("it is damaged");
        }
        let runs = || chain.runs().iter().filter(|run| run.len > 0);
        let seals = digest(runs().filter_map(|run| Some((run.len, run.seal()?.crc))));
        let now = Known {
            segment: object.attributes.segment.unwrap_or_default(),
            version: chain.version(),
            size: object.size(),
            seals,
        };
        if now != *known || object.pending_replace().is_some() || object.is_cut_unconfirmed() {
            return refused("it has changed since it was carried");
        }
        // Of two transactions one could be lost, and with it the only proof of what the bytes are.
        if len > edit.state.log.largest_frame() || runs().count() > usize::from(u16::MAX) - 2 {
            return refused("it has more seals than one transaction takes");
        }
        let (attributes, is_interrupted) = (object.attributes.clone(), object.is_interrupted());
        let sealed: Vec<SealedRun> = runs()
            .filter_map(|run| {
                let &Run { offset, len, origin, .. } = run;
                Some(SealedRun { offset, len, seal: run.seal().cloned()?, origin })
            })
            .collect();
        let Some(segment) = SegmentId::in_tier(tier, edit.next_id()) else { return refused("no number is left") };
        let mut tx = Transaction::new(0);
        tx.push(Record::Attributes { ino, attributes: Attributes { segment: Some(segment), ..attributes } });
        if is_interrupted {
            tx.push(Record::interrupted(ino, segment));
        }
        for SealedRun { offset, len, seal, origin } in sealed {
            tx.push(Record::Sealed { ino, segment, offset, len, allocated: 0, seal, origin });
        }
        tx.bytes_are_durable(segment);
        // What leaves makes room.
        match edit.store_from_reserve(tx) {
            Err(Error::TooLarge { .. }) => refused("it has more seals than one transaction takes"),
            stored => stored.map(|_| Ok(())),
        }
    }
}

/// Bytes of a transaction with the seals of a file.
fn sealed_len(chain: &FileChain) -> usize {
    let seals = chain.runs().iter().filter_map(|run| run.seal());
    let sealed = seals.map(|seal| length::sealed(seal.description.len()) + length::ORIGIN);
    frame::HEADER + REST + sealed.sum::<usize>()
}

//! The bytes of a file, from the objects of a repository. Objects that are needed next are on their way while those
//! before them are written: a store answers many requests at a time faster than one after the other.

mod poured;
mod written;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tensorfs_layout::SegmentId;

use crate::error::{Error, Result};
use crate::repository::{Arriving, Content, Hash, Part, Repository, object_name};

pub use poured::Pouring;
pub use written::Written;
use written::{Packs, locked};

/// Packs with so many bytes together are kept at hand, and one more.
const PACKS: usize = 64 << 20;
/// Of who fetches many files.
pub const PACKS_OF_MANY: usize = 4 * PACKS;
/// So many bytes are asked for ahead, and so many objects; one more may have come.
const AHEAD: u64 = 128 << 20;
const MOST: usize = 16;
/// What a pack counts for, whose length nobody has said.
const PACK: u64 = 16 << 20;
/// A part of a file has no more bytes, as an object has none.
const LONGEST: u64 = 64 << 20;
/// Zeroes that nothing stores are written so many at a time.
const ZEROES: usize = 1 << 20;
/// So many bytes are written at a time.
const PIECE: usize = 1 << 20;

/// Fetches parts of files.
pub struct Fetcher<'a> {
    repository: &'a Repository,
    packs: Arc<Mutex<Packs>>,
    written: Option<Written>,
    /// What is on its way, and what it counts for.
    asked: Vec<(Hash, Arriving, u64)>,
    /// What others are told that it is on its way here; none if there are no others.
    begun: Option<Vec<Hash>>,
    /// Others are not waited for.
    hurries: bool,
}

/// What need not be fetched.
enum AtHand {
    /// An object.
    Object(Bytes),
    /// A part of a file, which is one.
    Part(Bytes),
}

/// Where the bytes of a file go.
pub enum Target<'a> {
    /// To a regular file, from its first byte on.
    File(&'a File),
    /// To that of a segment, from where others may read it.
    Segment(&'a File, SegmentId),
    /// One behind the other.
    Stream(&'a mut dyn Write),
}

impl<'a> Fetcher<'a> {
    /// Fetches from a repository.
    pub fn new(repository: &'a Repository) -> Self {
        Self::of(repository, Arc::new(Mutex::new(Packs::new(PACKS))), None, None)
    }

    fn of(
        repository: &'a Repository,
        packs: Arc<Mutex<Packs>>,
        written: Option<Written>,
        begun: Option<Vec<Hash>>,
    ) -> Self {
        Self { repository, packs, written, asked: Vec::new(), begun, hurries: false }
    }

    /// As [`Fetcher::new`], for many files: what was written for one of them is not fetched for another one, and more
    /// packs are kept.
    pub fn of_many(repository: &'a Repository, written: Written) -> Self {
        Self::of(repository, written.packs().clone(), Some(written), None)
    }

    /// As [`Fetcher::of_many`], beside others who fetch from there, too: what one of them has on its way the others
    /// wait for, as it can be read then where he writes it.
    pub fn beside_others(repository: &'a Repository, written: Written) -> Self {
        Self::of(repository, written.packs().clone(), Some(written), Some(Vec::new()))
    }

    /// Whether somebody waits for what is fetched from now on, who is not kept waiting for what others fetch.
    pub fn hurry(&mut self, hurries: bool) {
        self.hurries = hurries;
    }

    /// Asks for the packs that a file needs that is to be fetched soon; false once nothing more is asked for ahead.
    pub fn expect_packs(&mut self, content: &Content) -> bool {
        content.parts.iter().filter(|part| matches!(part, Part::Packed(_))).all(|part| self.ask(part))
    }

    /// Asks for a part, unless it is here or on its way; false if too much is.
    pub fn ask(&mut self, part: &Part) -> bool {
        let Some((object, _)) = part.object() else { return true };
        let is_known = locked(&self.packs).has(object) || self.asked.iter().any(|(asked, ..)| *asked == object);
        if is_known || self.written.as_ref().is_some_and(|written| written.place(part).is_some()) {
            return true;
        }
        let ahead = self.asked.iter().fold(0_u64, |sum, (.., bytes)| sum.saturating_add(*bytes));
        if ahead >= AHEAD || self.asked.len() >= MOST {
            return false;
        }
        if !self.begin(object) && !self.hurries {
            return true;
        }
        let bytes = if matches!(part, Part::Packed(_)) { PACK } else { part.len() };
        self.asked.push((object, self.repository.begin(object), bytes));
        true
    }

    /// What was asked for is not needed any more.
    pub fn forget(&mut self) {
        self.asked.clear();
        self.end_all();
    }

    /// Says to others that an object is on its way here; false if it is to one of them.
    fn begin(&mut self, object: Hash) -> bool {
        let (Some(begun), Some(written)) = (&mut self.begun, &self.written) else { return true };
        if begun.contains(&object) {
            return true;
        }
        let is_ours = written.begin(object);
        if is_ours {
            begun.push(object);
        }
        is_ours
    }

    /// Others need not wait for it any more.
    fn end(&mut self, object: Hash) {
        let (Some(begun), Some(written)) = (&mut self.begun, &self.written) else { return };
        if let Some(at) = begun.iter().position(|one| *one == object) {
            begun.swap_remove(at);
            written.end(object);
        }
    }

    fn end_all(&mut self) {
        let (Some(begun), Some(written)) = (&mut self.begun, &self.written) else { return };
        begun.drain(..).for_each(|object| written.end(object));
    }

    /// A part is in a segment by now, where it can be read again.
    pub fn has_written(&mut self, part: &Part, place: (SegmentId, u64)) {
        if let (Some(written), Some((object, _))) = (&self.written, part.object()) {
            written.add_part(part, place);
            self.end(object);
        }
    }

    /// An object, be it on its way or not.
    fn object(&mut self, object: Hash) -> Result<Bytes> {
        match self.asked.iter().position(|(asked, ..)| *asked == object) {
            Some(at) => self.repository.arrived(self.asked.remove(at).1),
            None => {
                // What nobody has come for makes room.
                if self.asked.len() >= MOST {
                    let (dropped, ..) = self.asked.remove(0);
                    self.end(dropped);
                }
                self.repository.object(object)
            }
        }
    }

    /// The bytes of a part that was written before, if they are there yet.
    fn written_before(&self, part: &Part) -> Option<Bytes> {
        let written = self.written.as_ref()?;
        let (segment, at) = written.place(part)?;
        let bytes = written.open(segment).and_then(|file| self.read_part(&file, part, at));
        if bytes.is_none() {
            // Nor is it asked for any more.
            part.hash().into_iter().for_each(|hash| written.remove(hash));
        }
        bytes
    }

    /// An object that is at hand, or in a file that was written before.
    fn at_hand(&mut self, part: &Part, object: Hash) -> Option<AtHand> {
        let pack = locked(&self.packs).get(object);
        pack.map(AtHand::Object).or_else(|| self.written_before(part).map(AtHand::Part))
    }

    /// The bytes of a part; `None` of zeroes.
    pub fn part(&mut self, part: &Part) -> Result<Option<Bytes>> {
        let (hash, (object, at)) = match (part.hash(), part.object()) {
            (Some(hash), Some(object)) => (hash, object),
            _ => return Ok(None),
        };
        let mut found = self.at_hand(part, object);
        if found.is_none() && !self.begin(object) && !self.hurries {
            self.written.iter().for_each(|written| written.wait(object));
            found = self.at_hand(part, object);
            // If not, he has failed, or it takes too long.
            self.begin(object);
        }
        let whole = match found {
            Some(AtHand::Part(bytes)) => {
                self.end(object);
                return Ok(Some(bytes));
            }
            Some(AtHand::Object(bytes)) => bytes,
            None => self.object(object)?,
        };
        if matches!(part, Part::Packed(_)) {
            locked(&self.packs).keep(object, whole.clone());
            self.end(object);
        }
        let end = at.checked_add(part.len()).filter(|end| *end <= whole.len() as u64);
        let bytes = end.map(|end| whole.slice(at as usize..end as usize));
        let is_object = |bytes: &Bytes| bytes.len() == whole.len() && hash == object;
        let bytes = bytes.filter(|bytes| is_object(bytes) || self.repository.hash(bytes) == hash);
        bytes.map(Some).ok_or_else(|| Error::damaged(object_name(object), "it has not the bytes that a file names"))
    }

    /// Writes what the repository has of a file. Parts that `here` has in their places are not fetched. `path` is what
    /// the target is called in errors; `each` hears how many bytes each part has. Returns how many bytes were fetched.
    pub fn file(
        &mut self,
        content: &Content,
        here: Option<&File>,
        (target, path): (&mut Target<'_>, &str),
        mut each: impl FnMut(u64),
    ) -> Result<u64> {
        let host = |what| move |source| Error::Host { path: path.to_owned(), what, source };
        let (mut at, mut fetched) = (0_u64, 0);
        let mut ahead = content.parts.iter();
        let mut next = ahead.next();
        for part in &content.parts {
            // What is here is not fetched.
            while here.is_none() && next.is_some_and(|next| self.ask(next)) {
                next = ahead.next();
            }
            let bytes = match here.and_then(|here| self.read_part(here, part, at)) {
                Some(bytes) => Some(bytes),
                None => {
                    let bytes = self.part(part)?;
                    fetched += bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
                    bytes
                }
            };
            match (&mut *target, bytes) {
                (Target::File(file), Some(bytes)) => write_at(file, &bytes, at).map_err(host("write"))?,
                (Target::Segment(file, segment), Some(bytes)) => {
                    write_at(file, &bytes, at).map_err(host("write"))?;
                    self.has_written(part, (*segment, at));
                }
                (Target::Stream(stream), Some(bytes)) => stream.write_all(&bytes).map_err(host("write"))?,
                (Target::File(_) | Target::Segment(..), None) => {}
                (Target::Stream(stream), None) => write_zeroes(stream, part.len()).map_err(host("write"))?,
            }
            at = at.saturating_add(part.len());
            each(part.len());
        }
        if let Target::File(file) | Target::Segment(file, _) = target {
            file.set_len(at).map_err(host("make as long as it was"))?;
        }
        Ok(fetched)
    }

    /// The bytes of a part, if a file has them where the part is to be.
    pub fn read_part(&self, here: &File, part: &Part, at: u64) -> Option<Bytes> {
        let hash = part.hash().filter(|_| part.len() <= LONGEST)?;
        let mut bytes = vec![0; part.len() as usize];
        here.read_exact_at(&mut bytes, at).ok()?;
        (self.repository.hash(&bytes) == hash).then(|| bytes.into())
    }
}

impl Drop for Fetcher<'_> {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// A little at a time: with more of it the host's kernel takes memory in lots that cost several times as much.
pub fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut at = at;
    for piece in bytes.chunks(PIECE) {
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

fn write_zeroes(stream: &mut dyn Write, len: u64) -> io::Result<()> {
    let zeroes = vec![0; ZEROES.min(len as usize)];
    let mut left = len;
    while left > 0 {
        let now = left.min(zeroes.len() as u64);
        stream.write_all(&zeroes[..now as usize])?;
        left -= now;
    }
    Ok(())
}

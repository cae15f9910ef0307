//! The bytes of a file, from the objects of a repository. Objects that are needed next are on their way while those
//! before them are written: a store answers many requests at a time faster than one after the other.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tensorfs_layout::SegmentId;

use crate::error::{Error, Result};
use crate::place::Coming;
use crate::repository::{Content, Hash, Part, Repository, object_name};

/// Packs with so many bytes together are kept at hand, and one more.
const PACKS: usize = 64 << 20;
/// So many bytes are asked for ahead, and so many objects; one more may have come.
const AHEAD: u64 = 128 << 20;
const MOST: usize = 16;
/// What a pack counts for, whose length nobody has said.
const PACK: u64 = 16 << 20;
/// A part of a file has no more bytes, as an object has none.
const LONGEST: u64 = 64 << 20;
/// Zeroes that nothing stores are written so many at a time.
const ZEROES: usize = 1 << 20;

/// Where an object was written as a part of a file: that file, and where it begins there.
type Place = (SegmentId, u64);

/// Objects that were written as parts of files, from where they can be read again.
#[derive(Clone)]
pub struct Written {
    places: Arc<Mutex<HashMap<Hash, Place>>>,
    open: Arc<dyn Fn(SegmentId) -> Option<File> + Send + Sync>,
}

impl Written {
    /// None yet. `open` is asked for the files.
    pub fn new(open: impl Fn(SegmentId) -> Option<File> + Send + Sync + 'static) -> Self {
        Self { places: Arc::default(), open: Arc::new(open) }
    }

    /// What a file has was written there.
    pub fn add(&self, content: &Content, segment: SegmentId) {
        let mut places = self.places();
        let mut at = 0_u64;
        for part in &content.parts {
            if let Part::Alone((_, hash)) = part {
                places.entry(*hash).or_insert((segment, at));
            }
            at = at.saturating_add(part.len());
        }
    }

    fn place(&self, part: &Part) -> Option<Place> {
        let Part::Alone((_, hash)) = part else { return None };
        self.places().get(hash).copied()
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Hash, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fetches parts of files.
pub struct Fetcher<'a> {
    repository: &'a Repository,
    /// Those that were used last come first.
    packs: Vec<(Hash, Bytes)>,
    room: usize,
    written: Option<Written>,
    /// What is on its way, and what it counts for.
    asked: Vec<(Hash, Coming, u64)>,
}

/// Where the bytes of a file go.
pub enum Target<'a> {
    /// To a regular file, from its first byte on.
    File(&'a File),
    /// One behind the other.
    Stream(&'a mut dyn Write),
}

impl<'a> Fetcher<'a> {
    /// Fetches from a repository.
    pub fn new(repository: &'a Repository) -> Self {
        Self { repository, packs: Vec::new(), room: PACKS, written: None, asked: Vec::new() }
    }

    /// As [`Fetcher::new`], for many files: what was written for one of them is not fetched for another one, and more
    /// packs are kept.
    pub fn of_many(repository: &'a Repository, written: Written) -> Self {
        Self { room: 4 * PACKS, written: Some(written), ..Self::new(repository) }
    }

    /// Asks for what a file needs that is to be fetched soon; false once nothing more is asked for ahead.
    pub fn expect(&mut self, content: &Content) -> bool {
        content.parts.iter().all(|part| self.ask(part))
    }

    /// Asks for a part, unless it is here or on its way; false if too much is.
    pub fn ask(&mut self, part: &Part) -> bool {
        let Some((object, _)) = part.object() else { return true };
        let is_known =
            self.packs.iter().any(|(pack, _)| *pack == object) || self.asked.iter().any(|(asked, ..)| *asked == object);
        if is_known || self.written.as_ref().is_some_and(|written| written.place(part).is_some()) {
            return true;
        }
        let ahead = self.asked.iter().fold(0_u64, |sum, (.., bytes)| sum.saturating_add(*bytes));
        if ahead >= AHEAD || self.asked.len() >= MOST {
            return false;
        }
        let bytes = if matches!(part, Part::Packed(_)) { PACK } else { part.len() };
        self.asked.push((object, self.repository.begin(object), bytes));
        true
    }

    /// What was asked for is not needed any more.
    pub fn forget(&mut self) {
        self.asked.clear();
    }

    /// An object, be it on its way or not.
    fn object(&mut self, object: Hash) -> Result<Bytes> {
        match self.asked.iter().position(|(asked, ..)| *asked == object) {
            Some(at) => self.repository.arrived(object, self.asked.remove(at).1),
            None => {
                // What nobody has come for makes room.
                if self.asked.len() >= MOST {
                    self.asked.remove(0);
                }
                self.repository.object(object)
            }
        }
    }

    /// Keeps a pack at hand, and those that were used before it as far as there is room.
    fn keep(&mut self, pack: Hash, bytes: Bytes) {
        self.packs.insert(0, (pack, bytes));
        let mut kept = 0;
        let fits = |(_, bytes): &&(Hash, Bytes)| {
            kept += bytes.len();
            kept <= self.room
        };
        let fit = self.packs.iter().take_while(fits).count();
        self.packs.truncate(fit.max(1));
    }

    /// The bytes of a part that was written before, if they are there yet.
    fn written_before(&self, part: &Part) -> Option<Bytes> {
        let written = self.written.as_ref()?;
        let (segment, at) = written.place(part)?;
        let bytes = self.read_part(&(written.open)(segment)?, part, at);
        if bytes.is_none() {
            // Nor is it asked for any more.
            part.hash().map(|hash| written.places().remove(&hash));
        }
        bytes
    }

    /// The bytes of a part; `None` of zeroes.
    pub fn part(&mut self, part: &Part) -> Result<Option<Bytes>> {
        let (hash, (object, at)) = match (part.hash(), part.object()) {
            (Some(hash), Some(object)) => (hash, object),
            _ => return Ok(None),
        };
        let whole = match self.packs.iter().position(|(pack, _)| *pack == object) {
            Some(at) => {
                self.packs[..=at].rotate_right(1);
                self.packs[0].1.clone()
            }
            None => match self.written_before(part) {
                Some(bytes) => return Ok(Some(bytes)),
                None => self.object(object)?,
            },
        };
        if matches!(part, Part::Packed(_)) && self.packs.first().is_none_or(|(pack, _)| *pack != object) {
            self.keep(object, whole.clone());
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
                (Target::File(file), Some(bytes)) => file.write_all_at(&bytes, at).map_err(host("write"))?,
                (Target::Stream(stream), Some(bytes)) => stream.write_all(&bytes).map_err(host("write"))?,
                (Target::File(_), None) => {}
                (Target::Stream(stream), None) => write_zeroes(stream, part.len()).map_err(host("write"))?,
            }
            at = at.saturating_add(part.len());
            each(part.len());
        }
        if let Target::File(file) = target {
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

//! The bytes of files: read, proved to be what was sealed, cut into parts, and put where no object has them yet.
//!
//! A part begins and ends where a tensor does, as far as seals say where that is, so that a tensor is the same parts in
//! whatever file it stands, and however that was written (`cuts`). Long ones are cut. What is known to be as it was, by
//! its seals, is not read again.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io;

use bytes::Bytes;
use nix::unistd::{Whence, lseek};
use tensorfs_formats::{Source, crc32c_append, crc32c_zeroes, hole_of, read_exact};
use tensorfs_layout::log::Seal;
use tensorfs_layout::tree::Run;

use crate::error::{Error, Result};
use crate::place::Puts;
use crate::repository::{Content, Hash, Naming, Part, Stored, object_name};

/// The most bytes of a part.
pub(super) const PART_MAX: u64 = 64 << 20;
/// Parts that are shorter share an object with others.
const ALONE: usize = 1 << 20;
/// Bytes of an object that parts share, as a rule.
const PACK: usize = 16 << 20;
/// Whoever has put more, and ends before the batch that names it, has his successor look for it.
const MUCH: u64 = 16 << 20;
/// So many bytes are read, compared or hashed in a step.
const STEP: usize = 4 << 20;
/// A hole that is shorter is read and stored as zeroes.
const HOLE: u64 = 64 << 10;

/// What came of reading a file.
pub type Outcome<T> = std::result::Result<T, Trouble>;

/// Why a file's bytes are not to be had.
#[derive(Debug)]
pub enum Trouble {
    /// They are not what was sealed, or are not there: they changed since the log was read, or are damaged.
    Different {
        /// Where the bytes begin that are so, if only some are.
        from: u64,
        /// What is said of it.
        what: String,
    },
    /// The remote failed.
    Remote(crate::Error),
}

impl From<crate::Error> for Trouble {
    fn from(error: crate::Error) -> Self {
        Self::Remote(error)
    }
}

/// What was put, and where.
#[derive(Debug, Default)]
pub struct Placed {
    /// By the BLAKE3 of the bytes.
    at: HashMap<Hash, Stored>,
    /// Objects that were there though no tree names them.
    found: HashSet<Hash>,
    /// Bytes that were read.
    pub(super) read: u64,
    /// Bytes that were put.
    pub(super) put: u64,
    hears: Hears,
}

/// Who hears how many bytes were read.
#[derive(Default)]
struct Hears(Option<Box<dyn Fn(u64) + Send>>);

impl fmt::Debug for Hears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "somebody" } else { "nobody" })
    }
}

/// Which seal of a run its bytes are compared with.
pub type SealOf = fn(&Run) -> Option<&Seal>;

/// Hears that much was put.
pub type OfMuch<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Is called before each step, and returns when it may be taken.
pub type Step<'a> = &'a dyn Fn();

/// Cuts and puts the bytes of one file after the other.
pub struct Cutter<'a> {
    puts: Puts<'a>,
    placed: &'a mut Placed,
    /// What is on its way: the objects, how long they are, and which bytes are in them.
    sent: HashMap<Hash, (u64, Vec<Hash>)>,
    sent_bytes: u64,
    of_much: OfMuch<'a>,
    step: Step<'a>,
    pack: Vec<u8>,
    /// What is in the pack: BLAKE3, offset.
    packed: Vec<(Hash, u64)>,
}

impl Placed {
    /// What the remote's tree has already.
    pub fn new(at: HashMap<Hash, Stored>) -> Self {
        Self { at, ..Self::default() }
    }

    /// From now on somebody hears how many bytes were read, or nobody.
    pub fn hear(&mut self, hears: Option<Box<dyn Fn(u64) + Send>>) {
        self.hears = Hears(hears);
    }

    /// Nothing is known to be there but what the tree has.
    pub fn forget(&mut self, at: HashMap<Hash, Stored>) {
        self.at = at;
        self.found.clear();
    }

    /// These objects are there, too, and stay.
    pub fn find(&mut self, objects: HashSet<Hash>) {
        for hash in &objects {
            self.at.entry(*hash).or_insert(Stored { object: *hash, at: 0 });
        }
        self.found = objects;
    }

    /// True if all bytes of a file are there.
    pub fn has(&self, content: &Content) -> bool {
        content.parts.iter().filter_map(Part::hash).all(|hash| self.at.contains_key(&hash))
    }

    /// A part where its bytes are by now.
    pub fn resolve(&self, part: Part) -> Part {
        match part {
            Part::Alone((len, hash)) => match self.at.get(&hash) {
                Some(stored) if stored.object != hash => Part::Packed((len, hash, stored.object, stored.at)),
                _ => Part::Alone((len, hash)),
            },
            part => part,
        }
    }
}

impl<'a> Cutter<'a> {
    /// Puts go to `puts`; what `placed` knows is not put again.
    pub fn new(puts: Puts<'a>, placed: &'a mut Placed, (of_much, step): (OfMuch<'a>, Step<'a>)) -> Self {
        let (sent, sent_bytes) = (HashMap::new(), 0);
        Self { puts, placed, sent, sent_bytes, of_much, step, pack: Vec::new(), packed: Vec::new() }
    }

    /// The parts of a file whose runs these are, and which end at these places: the first of them are known, and end at
    /// `from`, and the others are read. Where a run is sealed, its bytes are compared with the seal, and with one that
    /// is provisional if nothing else is relied on.
    pub fn parts(
        &mut self,
        file: &File,
        (runs, seal_of): (&[Run], SealOf),
        known: (&[Part], u64),
        ends: &[u64],
    ) -> Outcome<Vec<Part>> {
        let (mut parts, from) = (known.0.to_vec(), known.1);
        let end = runs.last().map_or(0, Run::end);
        // A run is compared from its beginning on.
        let runs = &runs[runs.partition_point(|run| run.end() <= from)..];
        let mut at = runs.first().map_or(end, |run| run.offset.min(from));
        let mut proof = Proof { runs, seal_of, seen: 0, crc: 0 };
        let mut ends = [from].into_iter().chain(ends.iter().copied().filter(|place| *place > from && *place < end));
        let mut until = 0;
        while at < end {
            while until <= at {
                until = ends.next().unwrap_or(end);
            }
            let is_known = at < from;
            let left = until - at;
            let hole = file.hole(at).unwrap_or(0).min(left);
            if hole >= HOLE.min(left) && hole > 0 {
                proof.zeroes(hole)?;
                match parts.last_mut() {
                    _ if is_known => {}
                    Some(Part::Zeroes((len,))) => *len += hole,
                    _ => parts.push(Part::Zeroes((hole,))),
                }
                at += hole;
                continue;
            }
            let piece = self.read(file, at, stored(file, at, left.min(PART_MAX)))?;
            for some in piece.chunks(STEP) {
                (self.step)();
                proof.bytes(some)?;
            }
            at += piece.len() as u64;
            if !is_known {
                parts.push(self.part(piece)?);
            }
        }
        Ok(parts)
    }

    fn read(&mut self, file: &File, offset: u64, len: u64) -> Outcome<Vec<u8>> {
        let mut piece = vec![0; len as usize];
        let mut at = offset;
        for some in piece.chunks_mut(STEP) {
            (self.step)();
            read_exact(file, at, some).map_err(|error| different(&error, offset))?;
            at += some.len() as u64;
        }
        self.placed.read += len;
        if let Some(hears) = &self.placed.hears.0 {
            hears(self.placed.read);
        }
        Ok(piece)
    }

    /// How many bytes were put, or are about to be.
    pub fn put_bytes(&self) -> u64 {
        self.placed.put + self.pack.len() as u64
    }

    fn hash(&self, bytes: &[u8]) -> Hash {
        let mut naming = Naming::new(self.puts.names());
        for some in bytes.chunks(STEP) {
            (self.step)();
            naming.add(some);
        }
        naming.hash()
    }

    /// A part with these bytes, which are put unless they are somewhere already.
    fn part(&mut self, bytes: Vec<u8>) -> Result<Part> {
        let (len, hash) = (bytes.len() as u64, self.hash(&bytes));
        if self.placed.at.contains_key(&hash) || self.packed.iter().any(|(packed, _)| *packed == hash) {
            return Ok(Part::Alone((len, hash)));
        }
        if bytes.len() >= ALONE {
            self.placed.at.insert(hash, Stored { object: hash, at: 0 });
            self.put(hash, bytes.into(), vec![hash])?;
        } else {
            self.packed.push((hash, self.pack.len() as u64));
            self.pack.extend_from_slice(&bytes);
            if self.pack.len() >= PACK {
                self.close_pack()?;
            }
        }
        Ok(Part::Alone((len, hash)))
    }

    fn close_pack(&mut self) -> Result<()> {
        if self.pack.is_empty() {
            return Ok(());
        }
        let bytes = Bytes::from(std::mem::take(&mut self.pack));
        let object = Hash::named(self.puts.names(), &bytes);
        let packed = self.packed.iter().map(|(hash, _)| *hash).collect();
        let stored = self.packed.drain(..).map(|(hash, at)| (hash, Stored { object, at }));
        self.placed.at.extend(stored);
        // A carrier before may have made the very same.
        if self.placed.found.contains(&object) { Ok(()) } else { self.put(object, bytes, packed) }
    }

    fn put(&mut self, object: Hash, bytes: Bytes, parts: Vec<Hash>) -> Result<()> {
        let (before, len) = (self.sent_bytes, bytes.len() as u64);
        self.sent_bytes += len;
        self.placed.put += len;
        self.sent.insert(object, (len, parts));
        if before < MUCH && self.sent_bytes >= MUCH {
            (self.of_much)()?;
        }
        self.puts.put(object_name(object), bytes)
    }

    /// Returns once all is put, or nothing is on its way any more. Only then [`Placed`] knows where everything is; what
    /// did not arrive it forgets.
    pub fn finish<T>(mut self, outcome: Result<T>) -> Result<T> {
        let outcome = outcome.and_then(|done| self.close_pack().map(|()| done));
        let finished = self.puts.finish();
        let arrived = self.puts.arrived();
        for (object, (len, parts)) in self.sent.drain().filter(|(object, _)| !arrived.contains(&object_name(*object))) {
            self.placed.put -= len;
            for part in parts {
                if self.placed.at.get(&part).is_some_and(|stored| stored.object == object) {
                    self.placed.at.remove(&part);
                }
            }
        }
        outcome.and_then(|done| finished.map(|()| done))
    }
}

/// How many bytes from an offset on are read: up to the next hole that is not stored, and so many at most.
fn stored(file: &File, at: u64, most: u64) -> u64 {
    let end = at + most;
    let mut from = at;
    while from < end {
        // Where the host does not tell, there is none.
        let hole = i64::try_from(from).ok().and_then(|from| lseek(file, from, Whence::SeekHole).ok());
        let Some(hole) = hole.and_then(|hole| u64::try_from(hole).ok()).filter(|hole| *hole < end) else { break };
        let len = hole_of(file, hole);
        if len >= HOLE && hole > at {
            return hole - at;
        }
        from = hole + len.max(1);
    }
    most
}

/// Compares bytes that follow each other with the seals of the runs that they are in, from the first one on.
struct Proof<'a> {
    runs: &'a [Run],
    seal_of: SealOf,
    /// Bytes of the first run that were seen, and their checksum.
    seen: u64,
    crc: u32,
}

impl Proof<'_> {
    fn bytes(&mut self, mut bytes: &[u8]) -> Outcome<()> {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(self.left().min(bytes.len() as u64) as usize);
            self.crc = crc32c_append(self.crc, now);
            self.go_on(now.len() as u64)?;
            bytes = rest;
        }
        Ok(())
    }

    fn zeroes(&mut self, mut len: u64) -> Outcome<()> {
        while len > 0 {
            let now = self.left().min(len);
            self.crc = crc32c_zeroes(self.crc, now);
            self.go_on(now)?;
            len -= now;
        }
        Ok(())
    }

    /// Bytes of the run that is looked at; there are as many in all runs as are shown.
    fn left(&mut self) -> u64 {
        while let [run, rest @ ..] = self.runs
            && run.len == 0
        {
            self.runs = rest;
        }
        self.runs.first().map_or(u64::MAX, |run| run.len - self.seen)
    }

    fn go_on(&mut self, len: u64) -> Outcome<()> {
        self.seen += len;
        let Some(run) = self.runs.first().filter(|run| run.len == self.seen) else { return Ok(()) };
        if (self.seal_of)(run).is_some_and(|seal| seal.crc != self.crc) {
            let what = format!("{} bytes from offset {} are not those that were sealed", run.len, run.offset);
            return Err(Trouble::Different { from: run.offset, what });
        }
        (self.runs, self.seen, self.crc) = (&self.runs[1..], 0, 0);
        Ok(())
    }
}

/// What reading a segment from there on failed with.
pub fn different(error: &io::Error, from: u64) -> Trouble {
    // What this process may not have says nothing of the file.
    const OWN: [i32; 5] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EACCES, libc::EPERM];
    if let Some(errno) = error.raw_os_error().filter(|errno| OWN.contains(errno)) {
        let (path, source) = ("a segment".to_owned(), io::Error::from_raw_os_error(errno));
        return Trouble::Remote(Error::Host { path, what: "read", source });
    }
    Trouble::Different { from, what: format!("cannot be read: {}", tensorfs_layout::reason(error)) }
}

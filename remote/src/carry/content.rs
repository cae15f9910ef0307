//! The bytes of files: read, proved to be what was sealed, cut into parts, and put where no object has them yet.
//!
//! A part begins where a run of the file begins, and so where a tensor does. Runs that are too short to be parts share
//! one; long ones are cut.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use bytes::Bytes;
use tensorfs_formats::{Source, crc32c_append, crc32c_zeroes, read_exact};
use tensorfs_layout::tree::Run;

use crate::error::Result;
use crate::place::Puts;
use crate::repository::{Hash, Part, Stored, object_name};

/// The most bytes of a part.
const PART_MAX: u64 = 64 << 20;
/// Runs that are shorter share a part with what is next to them.
const PART_MIN: u64 = 64 << 10;
/// Parts that are shorter share an object with others.
const ALONE: usize = 1 << 20;
/// Bytes of an object that parts share, as a rule.
const PACK: usize = 16 << 20;
/// A hole that is shorter is read and stored as zeroes.
const HOLE: u64 = 64 << 10;

/// Why a file's bytes are not to be had.
#[derive(Debug)]
pub enum Trouble {
    /// They are not what was sealed, or are not there: they changed since the log was read, or are damaged.
    Different(String),
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
    /// Bytes that were read.
    pub(super) read: u64,
    /// Bytes that were put.
    pub(super) put: u64,
}

/// Cuts and puts the bytes of one file after the other.
#[derive(Debug)]
pub struct Cutter<'a> {
    puts: Puts<'a>,
    placed: &'a mut Placed,
    pack: Vec<u8>,
    /// What is in the pack: BLAKE3, offset.
    packed: Vec<(Hash, u64)>,
}

impl Placed {
    /// What the remote's tree has already.
    pub fn new(at: HashMap<Hash, Stored>) -> Self {
        Self { at, ..Self::default() }
    }

    /// Nothing is known to be there but what the tree has.
    pub fn forget(&mut self, at: HashMap<Hash, Stored>) {
        self.at = at;
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
    pub fn new(puts: Puts<'a>, placed: &'a mut Placed) -> Self {
        Self { puts, placed, pack: Vec::new(), packed: Vec::new() }
    }

    /// The parts of a file whose runs these are. Where a run is sealed, its bytes are compared with the seal.
    pub fn parts(&mut self, file: &File, runs: &[Run]) -> std::result::Result<Vec<Part>, Trouble> {
        let (mut parts, mut short) = (Vec::new(), Vec::new());
        for run in runs.iter().filter(|run| run.len > 0) {
            let mut crc = 0;
            if run.len < PART_MIN {
                let piece = self.read(file, run.offset, run.len)?;
                crc = crc32c_append(crc, &piece);
                short.extend_from_slice(&piece);
                if short.len() as u64 >= PART_MIN {
                    parts.push(self.part(std::mem::take(&mut short))?);
                }
            } else {
                if !short.is_empty() {
                    parts.push(self.part(std::mem::take(&mut short))?);
                }
                self.long_run(file, run, &mut crc, &mut parts)?;
            }
            if run.seal.as_ref().is_some_and(|seal| seal.crc != crc) {
                let what = format!("{} bytes from offset {} are not those that were sealed", run.len, run.offset);
                return Err(Trouble::Different(what));
            }
        }
        if !short.is_empty() {
            parts.push(self.part(short)?);
        }
        Ok(parts)
    }

    fn long_run(
        &mut self,
        file: &File,
        run: &Run,
        crc: &mut u32,
        parts: &mut Vec<Part>,
    ) -> std::result::Result<(), Trouble> {
        let mut at = run.offset;
        while at < run.end() {
            let left = run.end() - at;
            let hole = file.hole(at).unwrap_or(0).min(left);
            if hole >= HOLE.min(left) && hole > 0 {
                *crc = crc32c_zeroes(*crc, hole);
                match parts.last_mut() {
                    Some(Part::Zeroes((len,))) => *len += hole,
                    _ => parts.push(Part::Zeroes((hole,))),
                }
                at += hole;
                continue;
            }
            let piece = self.read(file, at, left.min(PART_MAX))?;
            *crc = crc32c_append(*crc, &piece);
            at += piece.len() as u64;
            parts.push(self.part(piece)?);
        }
        Ok(())
    }

    fn read(&mut self, file: &File, offset: u64, len: u64) -> std::result::Result<Vec<u8>, Trouble> {
        let mut piece = vec![0; len as usize];
        read_exact(file, offset, &mut piece).map_err(|error| different(&error))?;
        self.placed.read += len;
        Ok(piece)
    }

    /// A part with these bytes, which are put unless they are somewhere already.
    fn part(&mut self, bytes: Vec<u8>) -> Result<Part> {
        let (len, hash) = (bytes.len() as u64, Hash::of(&bytes));
        if self.placed.at.contains_key(&hash) || self.packed.iter().any(|(packed, _)| *packed == hash) {
            return Ok(Part::Alone((len, hash)));
        }
        if bytes.len() >= ALONE {
            self.placed.put += len;
            self.puts.put(object_name(hash), bytes.into())?;
            self.placed.at.insert(hash, Stored { object: hash, at: 0 });
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
        let object = Hash::of(&bytes);
        self.placed.put += bytes.len() as u64;
        self.puts.put(object_name(object), bytes)?;
        let packed = self.packed.drain(..);
        self.placed.at.extend(packed.map(|(hash, at)| (hash, Stored { object, at })));
        Ok(())
    }

    /// Returns once all is put. Only then [`Placed`] knows where everything is.
    pub fn finish(mut self) -> Result<()> {
        self.close_pack()?;
        self.puts.finish()
    }
}

/// What reading a segment failed with.
pub fn different(error: &io::Error) -> Trouble {
    Trouble::Different(format!("cannot be read: {}", tensorfs_layout::reason(error)))
}

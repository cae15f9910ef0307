//! Sealing: reading a file's bytes once, to checksum them and to find out what they are.
//!
//! [`examine`] cuts a file into runs and makes a [`Seal`] for each. A tensor of [`LARGE`] bytes or more begins and ends
//! at a cut, so that its runs' checksums are its own; a smaller one shares its run and has a checksum in its entry.
//! What was a record of its own stays one: there is a cut at its beginning. No run is longer than [`RUN_MAX`]. Memory
//! is bounded by [`DESCRIPTIONS_MAX`] and what recognition takes, whatever the file holds.
//!
//! What is sealed already is not read again for its checksum: a file that has grown costs what it has grown by. Where
//! it has to be cut otherwise, or a tensor in it is to have a checksum of its own, it is read, and compared with the
//! checksum that it had: bytes that are damaged get no new one ([`NotAsSealed`]). So are records that recognising read
//! something of: what is said of the file rests on them, and would be wrong for good.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::{ControlFlow, Range};

use tensorfs_formats::{Format, Recognised, Sink, Source, Tensor, crc32c, crc32c_append, crc32c_zeroes, read_exact};

use crate::log::Origin;
use crate::log::description::{ENTRY_OVERHEAD, REASON_MAX, SUMMARY_MAX, Summary, put_entry};
use crate::log::description::{put, start, tensor};
use crate::log::seal::Seal;
use crate::segment::compared::{Checksum, Compared};

/// A tensor of so many bytes has runs of its own.
pub const LARGE: u64 = 4096;
/// A longer run is cut, so that damage can be placed and several threads can verify a file.
pub const RUN_MAX: u64 = 1 << 30;
/// The most bytes of descriptions that one file gets. Tensors beyond are left out, and recognised when asked for.
pub const DESCRIPTIONS_MAX: usize = 64 << 20;
/// What is read at a time.
const PIECE: usize = 1 << 20;
/// So many tensors of bytes that are not what was sealed are named.
const NAMED: usize = 16;

/// A run of a file and its seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedRun {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Checksum, and what the bytes are.
    pub seal: Seal,
    /// What made its bytes part of the file, if that is not for the file's chain to say.
    pub origin: Origin,
}

/// A record that a file has before it is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Its seal, if it has one that holds and is to be believed.
    pub seal: Option<Seal>,
}

/// Where a file is gone on with that is sealed up to there, as it has only grown: what is in front stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneOn {
    /// Where a record ends that is sealed, and what is behind it can be looked at for itself.
    pub from: u64,
    /// So many tensors are in front of it.
    pub tensors: u64,
    /// What the seals in front of it say. They may speak of more tensors, where some have gone since.
    pub summary: Summary,
}

/// What is known of a file before it is examined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Its records, which follow each other without gaps.
    pub records: Vec<Known>,
    /// It need not be looked at from its beginning.
    pub gone_on: Option<GoneOn>,
    /// It is being written: of frames, those that are complete are sealed, and of another file nothing.
    pub is_open: bool,
    /// What is sealed of it has just been compared with its checksums.
    pub is_compared: bool,
}

/// Bytes that do not have the checksum any more that they were sealed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlike {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Tensors that were found in them now, of which their seal says nothing: the first few.
    pub tensors: Vec<String>,
}

/// A file that was sealed has other bytes now, though nothing could write it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its bytes are not those that were sealed")]
pub struct NotAsSealed(pub Vec<Unlike>);

impl NotAsSealed {
    /// What an error says of it.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// Says what is in a file, as [`tensorfs_formats::recognise()`] does. Whoever does not trust the file has it done
/// elsewhere.
pub type Recognise<'a> = dyn Fn(&dyn Source, &mut Sink<'_>) -> Recognised + 'a;

/// Reads the first `size` bytes of a file and makes seals of them, whose descriptions have at most `room` bytes each.
/// Where the file's records begin, runs begin, and the checksums of those that are sealed are believed. Where a file is
/// gone on with, `recognise` gives the tensors from there on, and so are the runs. The bytes must not change meanwhile.
/// `None` if `go_on` said no, which is asked at least for every 1 MiB. Holes are not read.
///
/// # Errors
/// What reading gives; [`io::ErrorKind::UnexpectedEof`] if the file is shorter; [`NotAsSealed`] if what is sealed would
/// have to be sealed anew and is not what it was.
pub fn examine(
    source: &dyn Source,
    size: u64,
    room: usize,
    before: &Before,
    go_on: &dyn Fn() -> bool,
    recognise: &Recognise<'_>,
) -> io::Result<Option<Vec<SealedRun>>> {
    let room = room.max(SUMMARY_MAX);
    let watched = Watched { source, go_on, before, seen: RefCell::new(vec![false; before.records.len()]) };
    let mut found = Found { gone_on: before.gone_on.clone(), ..Found::default() };
    let recognised = recognise(&watched, &mut |tensor| found.add(&tensor, size, room));
    if !go_on() {
        return Ok(None);
    }
    if let Some(error) = recognised.error {
        return Err(error);
    }
    let seen = watched.seen.into_inner();
    let (size, recognised) = match before.is_open {
        true if recognised.format != Format::TfRecord => return Ok(Some(Vec::new())),
        // What is behind them is not at its end yet.
        true => (recognised.end.min(size), Recognised { reason: whole(&recognised), cut: false, ..recognised }),
        false => (size, recognised),
    };
    if before.is_sealed_across(size) {
        return Ok(Some(Vec::new()));
    }
    if recognised.tensors == 0 {
        // Whoever looked gave up in the middle, and stands by nothing of what he said.
        found.forget();
    }
    let records: Vec<u64> = before.records.iter().map(|known| known.offset).collect();
    let (cuts, left_out) = found.plan(size, room, &records, &|at| source.hole(at).unwrap_or(0));
    let summary = found.summary(recognised, left_out);
    let mut runs: Vec<SealedRun> = cuts
        .iter()
        .map_while(|cut| {
            let seal = before.seal_of(cut).filter(|seal| found.is_described(cut, seal))?.clone();
            Some(SealedRun { offset: cut.offset, len: cut.len, seal, origin: Origin::default() })
        })
        .collect();
    // From here on runs are stored anew, and what was said in them of the whole is gone.
    let said = runs.iter().rev().find_map(|run| run.seal.summary());
    let said = said.or_else(|| before.gone_on.as_ref().map(|gone_on| gone_on.summary.clone()));
    let says_something = summary.format != Format::Opaque || summary.cut || !summary.complete;
    let mut to_say = said.map_or(says_something, |said| said != summary);
    if to_say && runs.len() == cuts.len() {
        runs.pop();
    }
    let buffer = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
    let mut reader = Reader { source, go_on, buffer, compared: Compared::new(before.checksums()), reach: 0 };
    // Of a file that is open nobody knows who has changed it.
    let is_to_compare = |cut: &Cut| {
        let has_seen = |at: usize| seen.get(at).is_some_and(|seen| *seen);
        !before.is_open && !before.is_compared && before.record_of(cut).is_some_and(has_seen)
    };
    for cut in cuts[..runs.len()].iter().filter(|cut| is_to_compare(cut)) {
        if !reader.compare(cut)? {
            return Ok(None);
        }
    }
    for cut in &cuts[runs.len()..] {
        let said_here = std::mem::take(&mut to_say).then_some(&summary);
        let again = before.seal_of(cut).and_then(|known| reader.seal_again(cut, &found, said_here, known));
        let seal = match again {
            Some(_) if is_to_compare(cut) && !reader.compare(cut)? => None,
            Some(seal) => Some(seal),
            None => reader.seal(cut, &found, said_here)?,
        };
        let Some(seal) = seal else { return Ok(None) };
        runs.push(SealedRun { offset: cut.offset, len: cut.len, seal, origin: Origin::default() });
    }
    let unlike = reader.compared.unlike();
    if unlike.is_empty() {
        return Ok(Some(runs));
    }
    found.tell(before, unlike, go_on).map_or(Ok(None), |unlike| Err(io::Error::other(NotAsSealed(unlike))))
}

/// What is wrong with the frames of a file that are complete.
fn whole(recognised: &Recognised) -> Option<String> {
    recognised.reason.clone().filter(|_| recognised.bad_frames > 0 || !recognised.cut)
}

impl Before {
    /// The seal of a run, if there is a record of just these bytes that has one.
    fn seal_of(&self, cut: &Cut) -> Option<&Seal> {
        self.records[self.record_of(cut)?].seal.as_ref()
    }

    /// Which record is of just these bytes.
    fn record_of(&self, cut: &Cut) -> Option<usize> {
        let at = self.records.binary_search_by_key(&cut.offset, |known| known.offset).ok()?;
        (self.records[at].len == cut.len).then_some(at)
    }

    /// The records that have bytes in a range.
    fn within(&self, offset: u64, len: u64) -> Range<usize> {
        let first = self.records.partition_point(|known| known.offset.saturating_add(known.len) <= offset);
        let behind = self.records.partition_point(|known| known.offset < offset.saturating_add(len));
        first..behind.max(first)
    }

    /// True if a record that is sealed goes on behind a place: it cannot be compared.
    fn is_sealed_across(&self, place: u64) -> bool {
        let at = self.records.partition_point(|known| known.offset < place);
        let last = at.checked_sub(1).and_then(|at| self.records.get(at));
        last.is_some_and(|known| known.seal.is_some() && known.offset.saturating_add(known.len) > place)
    }

    /// The checksums that there are.
    fn checksums(&self) -> Vec<Checksum> {
        let checksum = |known: &Known| {
            let crc = known.seal.as_ref()?.crc;
            Some(Checksum { offset: known.offset, len: known.len, crc })
        };
        self.records.iter().filter_map(checksum).collect()
    }
}

/// A source that fails once it is no longer wanted, and notes which records of a file were looked at.
struct Watched<'a> {
    source: &'a dyn Source,
    go_on: &'a dyn Fn() -> bool,
    before: &'a Before,
    /// For each record whether something of it was.
    seen: RefCell<Vec<bool>>,
}

impl Watched<'_> {
    fn has_seen(&self, offset: u64, len: u64) {
        self.seen.borrow_mut()[self.before.within(offset, len)].fill(true);
    }
}

impl Source for Watched<'_> {
    fn size(&self) -> io::Result<u64> {
        self.source.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if !(self.go_on)() {
            return Err(io::Error::other("no longer wanted"));
        }
        let count = self.source.read_at(offset, buffer)?;
        self.has_seen(offset, count as u64);
        Ok(count)
    }

    fn hole(&self, offset: u64) -> io::Result<u64> {
        let hole = self.source.hole(offset)?;
        if hole > 0 {
            // Somebody sees that there is nothing.
            self.has_seen(offset, hole);
        }
        Ok(hole)
    }
}

/// A tensor that was found: where it is in the file, and its encoding in the arena.
#[derive(Clone, Copy)]
struct Pending {
    start: u64,
    end: u64,
    at: u32,
    len: u32,
    index: u32,
    left_out: bool,
}

/// The tensors of a file, encoded as soon as they are found: a million of them take less than 100 MiB.
#[derive(Default)]
struct Found {
    pending: Vec<Pending>,
    arena: Vec<u8>,
    full: bool,
    gone_on: Option<GoneOn>,
}

/// A run to be sealed, and which of the pending tensors start in it.
#[derive(Debug, PartialEq, Eq)]
struct Cut {
    offset: u64,
    len: u64,
    first: usize,
    last: usize,
}

impl Found {
    fn add(&mut self, tensor: &Tensor, size: u64, room: usize) -> ControlFlow<()> {
        let (offset, len) = tensor.range();
        let start = offset.min(size);
        let end = offset.saturating_add(len).min(size);
        let at = self.arena.len();
        put(&mut self.arena, tensor);
        let len = self.arena.len() - at;
        let fits = SUMMARY_MAX + len + ENTRY_OVERHEAD <= room;
        match (u32::try_from(at), u32::try_from(len), u32::try_from(self.pending.len())) {
            (Ok(at), Ok(len), Ok(index)) if self.arena.len() <= DESCRIPTIONS_MAX && fits => {
                self.pending.push(Pending { start, end, at, len, index, left_out: false });
                ControlFlow::Continue(())
            }
            _ => {
                // What follows would be out of order.
                self.full = true;
                ControlFlow::Break(())
            }
        }
    }

    fn forget(&mut self) {
        if !self.pending.is_empty() {
            *self = Self { gone_on: self.gone_on.take(), ..Self::default() };
        }
    }

    /// Cuts `[0, size)` into runs; returns also how many tensors found no room in theirs. `hole` is that of a source.
    fn plan(&mut self, size: u64, room: usize, records: &[u64], hole: &dyn Fn(u64) -> u64) -> (Vec<Cut>, u64) {
        self.pending.sort_by_key(|tensor| tensor.start);
        let mut bounds: Vec<u64> = records.iter().copied().filter(|start| *start < size).collect();
        for tensor in self.pending.iter().filter(|tensor| tensor.end - tensor.start >= LARGE) {
            bounds.extend([tensor.start, tensor.end]);
        }
        bounds.push(size);
        bounds.sort_unstable();
        bounds.dedup();
        let mut cuts = Vec::new();
        let (mut next, mut left_out) = (0, 0);
        let mut offset = self.gone_on.as_ref().map_or(0, |gone_on| gone_on.from);
        let mut bounds = bounds.into_iter().peekable();
        while offset < size {
            while bounds.next_if(|bound| *bound <= offset).is_some() {}
            let bound = bounds.peek().copied().unwrap_or(size);
            let mut end = bound.min(offset.saturating_add(RUN_MAX));
            if end < bound {
                // A hole takes no time, and no part of it can be damaged by itself.
                end = end.max(offset.saturating_add(hole(offset))).min(bound);
            }
            let first = next;
            let mut used = SUMMARY_MAX;
            while let Some(tensor) = self.pending.get_mut(next)
                // What starts at the end of the file has no bytes; it goes with the last run.
                && (tensor.start < end || end == size)
            {
                let more = tensor.len as usize + ENTRY_OVERHEAD;
                if used + more <= room {
                    used += more;
                } else if tensor.start > offset && tensor.start < size {
                    end = tensor.start;
                    break;
                } else {
                    tensor.left_out = true;
                    left_out += 1;
                }
                next += 1;
            }
            // Going back to the first tensor of the next run, should the cut lie among tensors that share their start.
            while next > first && self.pending[next - 1].start >= end && end < size {
                next -= 1;
            }
            cuts.push(Cut { offset, len: end - offset, first, last: next });
            offset = end;
        }
        (cuts, left_out)
    }

    fn summary(&self, recognised: Recognised, left_out: u64) -> Summary {
        let mut reason = recognised.reason;
        if let Some(reason) = &mut reason {
            let end = (0..=REASON_MAX.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
            reason.truncate(end.unwrap_or(0));
        }
        let tensors = self.before() + self.pending.len() as u64 - left_out;
        // Of what nobody got through nothing is known.
        let is_unknown = recognised.stopped && recognised.format == Format::Opaque;
        let complete = !self.full && left_out == 0 && !is_unknown;
        match &self.gone_on {
            None => {
                let (format, bad_frames) = (recognised.format, recognised.bad_frames);
                Summary { format, tensors, complete, bad_frames, reason, cut: recognised.cut }
            }
            Some(GoneOn { summary, .. }) => Summary {
                format: summary.format,
                tensors,
                complete: complete && summary.complete,
                bad_frames: summary.bad_frames + recognised.bad_frames,
                reason,
                cut: recognised.cut,
            },
        }
    }

    /// So many tensors are in front of those that were found.
    fn before(&self) -> u64 {
        self.gone_on.as_ref().map_or(0, |gone_on| gone_on.tensors)
    }

    /// True if a seal says of the tensors of a run just what was found.
    fn is_described(&self, cut: &Cut, seal: &Seal) -> bool {
        let tensors = self.pending[cut.first..cut.last].iter().filter(|tensor| !tensor.left_out);
        let mut said = seal.tensors();
        let same = |tensor: &Pending| {
            said.next().is_some_and(|entry| {
                let mut encoded = Vec::with_capacity(tensor.len as usize);
                put(&mut encoded, &entry.tensor);
                entry.index == self.before() + u64::from(tensor.index) && encoded == self.encoded(tensor)
            })
        };
        let mut tensors = tensors;
        tensors.all(same) && said.next().is_none()
    }

    /// Says of records that are not what was sealed which tensors have bytes in them, but those that seals speak of.
    /// None if `go_on` said no.
    fn tell(&self, before: &Before, unlike: &[Checksum], go_on: &dyn Fn() -> bool) -> Option<Vec<Unlike>> {
        let end = unlike.last().map_or(0, Checksum::end);
        let mut said = HashSet::new();
        for known in before.records.iter().take_while(|known| known.offset < end) {
            if !go_on() {
                return None;
            }
            said.extend(known.seal.iter().flat_map(Seal::tensors).map(|entry| entry.tensor.range()));
        }
        let is_new = |tensor: &&Pending| !said.contains(&(tensor.start, tensor.end - tensor.start));
        let new: Vec<&Pending> = self.pending.iter().filter(is_new).collect();
        let mut new = &new[..];
        let mut told = Vec::with_capacity(unlike.len());
        for &Checksum { offset, len, .. } in unlike {
            if !go_on() {
                return None;
            }
            // Both are in order.
            new = &new[new.iter().take_while(|tensor| tensor.end <= offset).count()..];
            let within = new.iter().take_while(|tensor| tensor.start < offset + len);
            let within = within.filter(|tensor| tensor.end > offset);
            let tensors = within.filter_map(|new| Some(tensor(self.encoded(new))?.label())).take(NAMED).collect();
            told.push(Unlike { offset, len, tensors });
        }
        Some(told)
    }

    fn encoded(&self, tensor: &Pending) -> &[u8] {
        &self.arena[tensor.at as usize..][..tensor.len as usize]
    }
}

/// What comes next of a run: so many zeroes that nothing stores, or bytes.
enum Piece {
    Hole(u64),
    Bytes(u64),
}

/// Reads runs from front to back.
struct Reader<'a> {
    source: &'a dyn Source,
    go_on: &'a dyn Fn() -> bool,
    buffer: Vec<u8>,
    compared: Compared,
    /// Behind the last byte of the tensors that have got a checksum of their own.
    reach: u64,
}

impl Reader<'_> {
    /// The seal of a run whose bytes have one: only what is said of them is new. None if a tensor is to have a checksum
    /// of its own that it has not, for which the bytes have to be those that were sealed.
    fn seal_again(&self, cut: &Cut, found: &Found, summary: Option<&Summary>, known: &Seal) -> Option<Seal> {
        if cut.offset < self.reach {
            return None;
        }
        let tensors = &found.pending[cut.first..cut.last];
        let crcs: HashMap<(u64, u64), u32> =
            known.tensors().filter_map(|entry| Some((entry.tensor.range(), entry.crc?))).collect();
        let mut description = match summary {
            None if tensors.is_empty() => Vec::new(),
            summary => start(summary),
        };
        for tensor in tensors.iter().filter(|tensor| !tensor.left_out) {
            let len = tensor.end - tensor.start;
            let crc = match crcs.get(&(tensor.start, len)) {
                _ if len >= LARGE => None,
                Some(crc) => Some(*crc),
                None if len == 0 => Some(0),
                None => return None,
            };
            put_entry(&mut description, found.before() + u64::from(tensor.index), crc, found.encoded(tensor));
        }
        Some(Seal { crc: known.crc, description: description.into() })
    }

    /// Reads a run only to compare it. False if that was given up.
    fn compare(&mut self, cut: &Cut) -> io::Result<bool> {
        let (mut at, end) = (cut.offset, cut.offset + cut.len);
        while at < end {
            if !(self.go_on)() {
                return Ok(false);
            }
            let (Piece::Hole(len) | Piece::Bytes(len)) = self.read(at, end)?;
            at += len;
        }
        Ok(true)
    }

    /// Reads what comes next of a run that ends at a place into the buffer, and compares it.
    fn read(&mut self, at: u64, end: u64) -> io::Result<Piece> {
        let hole = self.source.hole(at)?.min(end - at);
        if hole > 0 {
            self.compared.zeroes(at, hole);
            return Ok(Piece::Hole(hole));
        }
        let len = (end - at).min(self.buffer.len() as u64);
        let piece = &mut self.buffer[..len as usize];
        read_exact(self.source, at, piece)?;
        self.compared.bytes(at, piece);
        Ok(Piece::Bytes(len))
    }

    fn seal(&mut self, cut: &Cut, found: &Found, summary: Option<&Summary>) -> io::Result<Option<Seal>> {
        let tensors = &found.pending[cut.first..cut.last];
        let mut description = match summary {
            None if tensors.is_empty() => Vec::new(),
            summary => start(summary),
        };
        let (mut crc, mut at, mut next) = (0, cut.offset, 0);
        let end = cut.offset + cut.len;
        while at < end {
            if !(self.go_on)() {
                return Ok(None);
            }
            let (len, hole) = match self.read(at, end)? {
                Piece::Hole(len) => (len, len),
                Piece::Bytes(len) => (len, 0),
            };
            crc = match hole {
                0 => crc32c_append(crc, &self.buffer[..len as usize]),
                hole => crc32c_zeroes(crc, hole),
            };
            let behind = at + len;
            while let Some(tensor) = tensors.get(next)
                && (tensor.start < behind || behind == end)
            {
                next += 1;
                if tensor.left_out {
                    continue;
                }
                if tensor.end - tensor.start < LARGE {
                    self.reach = self.reach.max(tensor.end);
                }
                let crc = if tensor.end - tensor.start >= LARGE {
                    None
                } else if tensor.start >= at && tensor.end <= behind && hole == 0 {
                    let range = (tensor.start - at) as usize..(tensor.end - at) as usize;
                    Some(crc32c(&self.buffer[range]))
                } else {
                    let mut bytes = vec![0; (tensor.end - tensor.start) as usize];
                    read_exact(self.source, tensor.start, &mut bytes)?;
                    Some(crc32c(&bytes))
                };
                put_entry(&mut description, found.before() + u64::from(tensor.index), crc, found.encoded(tensor));
            }
            at = behind;
        }
        Ok(Some(Seal { crc, description: description.into() }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::description::{entries, summary};
    use tensorfs_formats::{self as formats, Dtype, Location};

    fn tensor(name: String, offset: u64, len: u64) -> Tensor {
        Tensor::new(name.into(), Dtype::U8, vec![len], Location::Raw { offset, len })
    }

    /// Plans a file of these tensors, whatever its bytes would be recognised as.
    fn plan(tensors: &[(u64, u64)], size: u64, room: usize) -> (Found, Vec<Cut>, u64) {
        let mut found = Found::default();
        for (index, (offset, len)) in tensors.iter().enumerate() {
            let _ = found.add(&tensor(format!("t{index}"), *offset, *len), size, room);
        }
        let (cuts, left_out) = found.plan(size, room, &[], &|_| 0);
        (found, cuts, left_out)
    }

    fn safetensors(parts: &[(&str, usize)]) -> Vec<u8> {
        let mut at = 0;
        let header: Vec<String> = parts
            .iter()
            .map(|(name, len)| {
                let entry =
                    format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{at},{}]}}", at + len);
                at += len;
                entry
            })
            .collect();
        let header = format!("{{{}}}", header.join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend((0..at).map(|n| (n * 7 % 251) as u8));
        bytes
    }

    fn sealed(bytes: &[u8], room: usize) -> Vec<SealedRun> {
        let runs = examine(&bytes, bytes.len() as u64, room, &Before::default(), &|| true, &formats::recognise)
            .unwrap()
            .unwrap();
        let mut at = 0;
        for run in &runs {
            assert_eq!(run.offset, at);
            assert!(run.len > 0 && run.seal.description.len() <= room.max(SUMMARY_MAX));
            at += run.len;
            assert_eq!(run.seal.crc, formats::crc32c(&bytes[run.offset as usize..at as usize]));
        }
        assert_eq!(at, bytes.len() as u64);
        runs
    }

    #[test]
    fn a_large_tensor_has_a_run_of_its_own_and_small_ones_share() {
        let bytes = safetensors(&[("a", 10), ("big", 5000), ("b", 20), ("c", 0), ("last", 4096)]);
        let runs = sealed(&bytes, 16 << 10);
        let names = |run: &SealedRun| -> Vec<String> {
            entries(&run.seal.description).map(|entry| entry.tensor.name_text().into_owned()).collect()
        };
        assert_eq!(runs.iter().map(names).collect::<Vec<_>>(), [vec!["a"], vec!["big"], vec!["b"], vec!["c", "last"]]);
        assert_eq!(runs[1].len, 5000);
        let summary = summary(&runs[0].seal.description).unwrap();
        assert_eq!((summary.format, summary.tensors, summary.complete), (Format::Safetensors, 5, true));
        for entry in runs.iter().flat_map(|run| entries(&run.seal.description)) {
            let (offset, len) = entry.tensor.range();
            let own = formats::crc32c(&bytes[offset as usize..(offset + len) as usize]);
            assert_eq!(entry.crc, (len < LARGE).then_some(own));
        }
    }

    /// As where a reader's budget is spent after it has named some tensors.
    #[test]
    fn what_a_recognition_named_that_was_given_up_is_in_no_description() {
        let bytes = safetensors(&[("a", 10), ("big", 5000), ("b", 20)]);
        let given_up = |source: &dyn Source, sink: &mut Sink<'_>| {
            let found = formats::recognise(source, sink);
            assert_eq!(found.tensors, 3);
            let unread = Recognised::unread(io::Error::other("the budget is spent"));
            Recognised { error: None, tensors: 0, stopped: true, ..unread }
        };
        let bytes = &bytes[..];
        let runs = examine(&bytes, bytes.len() as u64, 16 << 10, &Before::default(), &|| true, &given_up);
        let runs = runs.unwrap().unwrap();
        assert_eq!(runs.iter().flat_map(|run| run.seal.tensors()).count(), 0);
        assert_eq!(runs.len(), 1, "nothing is cut at what is no tensor");
        let summary = runs[0].seal.summary().unwrap();
        assert_eq!((summary.format, summary.tensors, summary.complete), (Format::Opaque, 0, false));
        assert_eq!(summary.reason.as_deref(), Some("the budget is spent"));
    }

    /// Where a file is completed that was sealed in the middle: whichever byte was changed in between, no checksum fits
    /// it afterwards, of a record or of a tensor in it; and if tensors are found by it, that is told.
    #[test]
    fn no_checksum_fits_what_was_changed_since_it_was_sealed() {
        let (mut told, mut kept) = (0, 0);
        for len in [300, 5000] {
            let parts: Vec<(String, usize)> = (0..12).map(|n| (format!("t{n}"), len)).collect();
            let parts: Vec<(&str, usize)> = parts.iter().map(|(name, len)| (name.as_str(), *len)).collect();
            let whole = safetensors(&parts);
            let begin = whole.len() - 12 * len;
            let half = begin + 7 * len + len / 2;
            // In one record, and in some whose borders are inside of tensors.
            for borders in [vec![half], vec![begin + len / 3, begin + 3 * len + len / 2, begin + 4 * len - 9, half]] {
                let mut offset = 0;
                let known = |border: &usize| {
                    let from = std::mem::replace(&mut offset, *border);
                    let seal = Seal { crc: crc32c(&whole[from..*border]), description: Box::default() };
                    Known { offset: from as u64, len: (border - from) as u64, seal: Some(seal) }
                };
                let before = Before { records: borders.iter().map(known).collect(), ..Before::default() };
                let again = |bytes: &[u8]| {
                    let runs = examine(&bytes, bytes.len() as u64, 16 << 10, &before, &|| true, &formats::recognise);
                    runs.map(Option::unwrap)
                };
                let fit = |bytes: &[u8], run: &SealedRun| {
                    crc32c(&bytes[run.offset as usize..(run.offset + run.len) as usize]) == run.seal.crc
                };
                let runs = again(&whole).unwrap();
                assert!(runs.iter().all(|run| fit(&whole, run)), "{len}: {borders:?}");
                assert_eq!(runs.iter().flat_map(|run| run.seal.tensors()).count(), 12);
                for at in (0..half).step_by(41) {
                    let mut bytes = whole.clone();
                    bytes[at] ^= 1;
                    let is_in = |offset: u64, len: u64| (offset..offset + len).contains(&(at as u64));
                    match again(&bytes) {
                        Err(error) => {
                            let NotAsSealed(unlike) = NotAsSealed::of(&error).unwrap();
                            assert!(unlike.len() == 1 && is_in(unlike[0].offset, unlike[0].len), "{at}: {unlike:?}");
                            assert!(before.records.iter().any(|known| known.offset == unlike[0].offset));
                            told += usize::from(!unlike[0].tensors.is_empty());
                        }
                        Ok(runs) => {
                            assert!(at >= begin, "{len}, {borders:?}: {at} in the header");
                            let run = runs.iter().find(|run| is_in(run.offset, run.len)).unwrap();
                            assert!(!fit(&bytes, run), "{len}, {borders:?}: {at} in {run:?}");
                            for entry in runs.iter().flat_map(|run| run.seal.tensors()) {
                                let (offset, len) = entry.tensor.range();
                                let own = crc32c(&bytes[offset as usize..(offset + len) as usize]);
                                assert!(!is_in(offset, len) || entry.crc != Some(own), "{len}, {borders:?}: {at}");
                            }
                            kept += 1;
                        }
                    }
                }
            }
        }
        assert!(told > 500 && kept > 0, "{told} told, {kept} kept");
    }

    /// What is stored where a hole was sealed, and a hole where something was.
    #[test]
    fn a_hole_that_is_none_any_more_is_found_when_it_is_cut_anew() {
        struct Holes<'a>(&'a [u8]);
        impl Source for Holes<'_> {
            fn size(&self) -> io::Result<u64> {
                self.0.size()
            }
            fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read_at(offset, buffer)
            }
            fn hole(&self, offset: u64) -> io::Result<u64> {
                let rest = &self.0[offset as usize..];
                let zeroes = rest.iter().take_while(|byte| **byte == 0).count();
                Ok(if zeroes > 4096 { zeroes as u64 } else { 0 })
            }
        }
        let mut whole = safetensors(&[("a", 100_000), ("b", 100_000)]);
        let begin = whole.len() - 200_000;
        whole[begin + 50_000..begin + 150_000].fill(0);
        let cut = begin + 140_000;
        let seal = Seal { crc: crc32c(&whole[..cut]), description: Box::default() };
        let records = vec![Known { offset: 0, len: cut as u64, seal: Some(seal) }];
        let before = Before { records, ..Before::default() };
        let size = whole.len() as u64;
        let again = |bytes: &[u8]| examine(&Holes(bytes), size, 4096, &before, &|| true, &formats::recognise);
        assert!(again(&whole).is_ok());
        for (from, upto, byte) in [(100_000, 100_001, 1), (60_000, 140_000, 7), (10_000, 50_000, 0)] {
            let mut bytes = whole.clone();
            bytes[begin + from..begin + upto].fill(byte);
            let error = again(&bytes).unwrap_err();
            assert_eq!(NotAsSealed::of(&error).unwrap().0[0].tensors, ["a", "b"]);
        }
    }

    #[test]
    fn an_opaque_file_costs_nothing_but_its_checksum() {
        let runs = sealed(&[7; 100_000], 16 << 10);
        assert_eq!((runs.len(), runs[0].seal.description.len()), (1, 0));
        assert_eq!(sealed(&[], 16 << 10).len(), 0);
    }

    #[test]
    fn many_small_tensors_are_spread_over_runs_that_have_room() {
        let parts: Vec<(String, usize)> = (0..500).map(|n| (format!("tensor number {n}"), 3)).collect();
        let parts: Vec<(&str, usize)> = parts.iter().map(|(name, len)| (name.as_str(), *len)).collect();
        let runs = sealed(&safetensors(&parts), 1024);
        assert!(runs.len() > 10, "{}", runs.len());
        let mut found: Vec<_> = runs.iter().flat_map(|run| entries(&run.seal.description)).collect();
        found.sort_by_key(|entry| entry.index);
        let names: Vec<_> = found.iter().map(|entry| entry.tensor.name_text().into_owned()).collect();
        assert_eq!(names, parts.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn what_finds_no_room_is_left_out_and_said() {
        let names: Vec<String> = (0..60).map(|n| format!("empty {n} of a long name {}", "x".repeat(40))).collect();
        let parts: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 0)).collect();
        let runs = sealed(&safetensors(&parts), 1024);
        let summary = summary(&runs[0].seal.description).unwrap();
        let there = runs.iter().flat_map(|run| entries(&run.seal.description)).count() as u64;
        assert!(!summary.complete && there < 60);
        assert_eq!(summary.tensors, there);
    }

    /// A file of which nothing but the first and the last bytes are stored, and that must not be read.
    struct Sparse(u64);

    impl Source for Sparse {
        fn size(&self) -> io::Result<u64> {
            Ok(self.0)
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            // Who looks for a format looks at some places of the file.
            assert!(buffer.len() <= 32 || self.hole(offset)? == 0, "{} bytes at {offset}", buffer.len());
            let count = buffer.len().min((self.0 - offset) as usize);
            for (at, byte) in (offset..).zip(&mut buffer[..count]) {
                *byte = if at < 4096 || at >= self.0 - 4096 { 7 } else { 0 };
            }
            Ok(count)
        }

        fn hole(&self, offset: u64) -> io::Result<u64> {
            Ok(if offset < 4096 { 0 } else { (self.0 - 4096).saturating_sub(offset) })
        }
    }

    #[test]
    fn a_hole_is_neither_read_nor_cut() {
        let small = sealed(
            &{
                let mut bytes = vec![0; 3 << 20];
                Sparse(3 << 20).read_at(0, &mut bytes[..PIECE]).unwrap();
                let end = bytes.len() - 4096;
                bytes[end..].fill(7);
                bytes
            },
            4096,
        );
        let found = examine(&Sparse(3 << 20), 3 << 20, 4096, &Before::default(), &|| true, &formats::recognise)
            .unwrap()
            .unwrap();
        assert_eq!(found, small);
        let runs = examine(&Sparse(15 << 40), 15 << 40, 4096, &Before::default(), &|| true, &formats::recognise)
            .unwrap()
            .unwrap();
        assert!(runs.len() <= 3, "{}", runs.len());
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), 15 << 40);
    }

    #[test]
    fn examining_stops_when_it_is_not_wanted_any_more() {
        let bytes = safetensors(&[("a", 3 << 20)]);
        for allowed in 0..6 {
            let asked = std::cell::Cell::new(0);
            let go_on = || asked.replace(asked.get() + 1) < allowed;
            assert_eq!(
                examine(&&bytes[..], bytes.len() as u64, 4096, &Before::default(), &go_on, &formats::recognise)
                    .unwrap(),
                None
            );
        }
    }

    #[test]
    fn a_file_that_is_shorter_than_it_should_be_is_an_error() {
        let error =
            examine(&&[1_u8, 2, 3][..], 4, 4096, &Before::default(), &|| true, &formats::recognise).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn runs_partition_the_file_and_every_tensor_starts_in_its_run(
            tensors in prop::collection::vec((0..40_000_u64, prop_oneof![0..10_u64, 4000..9000_u64]), 0..60),
            size in 1..40_000_u64,
            room in prop_oneof![Just(400_usize), Just(1000), Just(16 << 10)],
        ) {
            let (found, cuts, left_out) = plan(&tensors, size, room);
            let (mut at, mut next) = (0, 0);
            for cut in &cuts {
                prop_assert!(cut.offset == at && cut.len > 0 && cut.first == next);
                at += cut.len;
                next = cut.last;
                for tensor in &found.pending[cut.first..cut.last] {
                    prop_assert!(tensor.start >= cut.offset && (tensor.start < at || at == size));
                }
                for tensor in found.pending.iter().filter(|tensor| tensor.end - tensor.start >= LARGE) {
                    prop_assert!(tensor.start <= cut.offset || tensor.start >= at, "a run of its own");
                    prop_assert!(tensor.end <= cut.offset || tensor.end >= at, "a run of its own");
                }
            }
            prop_assert_eq!((at, next), (size, found.pending.len()));
            prop_assert_eq!(found.pending.iter().filter(|tensor| tensor.left_out).count() as u64, left_out);
        }
    }
}

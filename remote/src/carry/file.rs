//! What is told of one file's bytes.
//!
//! Of a file that something may write, that is what is sealed, and what is sealed provisionally: its bytes are what was
//! durable when the log said so if they have the checksum that was noted then, and only then are they told of. What
//! stands behind that is told of every now and then (`tails`), as it is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tensorfs_layout::check::Committed;
use tensorfs_layout::segment::Gone;
use tensorfs_layout::tree::{FileChain, Run};
use tensorfs_layout::{Ino, SegmentId};

use crate::carry::alike::Alike;
use crate::carry::content::{Cutter, Outcome, SealOf, Trouble, different};
use crate::carry::cuts;
use crate::carry::left;
use crate::carry::tails::{self, Tails};
use crate::error::{Error, Result};
use crate::repository::{Content, Line, Part, Sealed, State, Tree};

/// Bytes of a pool in use that differ from their seal for so long are damaged. Before that, the log may be about to say
/// that they were going to be changed.
const DOUBT: Duration = Duration::from_secs(10);
/// So often bytes that were damaged are looked at again: a disk may have been away, or have failed once.
const AGAIN: Duration = Duration::from_secs(600);

/// Says what the bytes of files are, and knows what it has seen of those that are not at rest.
#[derive(Debug)]
pub struct Reader {
    /// Files whose bytes were not what was sealed.
    doubts: HashMap<u64, Doubt>,
    /// After so long they are looked at again.
    again: Duration,
    /// Files that were open.
    open: HashMap<u64, Compared>,
    tails: Tails,
    alike: Alike,
}

#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// Which bytes.
    bytes: Bytes,
    since: Instant,
    read: Instant,
}

/// Segment and version: while both stay the same, so do the records of a file.
type Bytes = (u64, u64);

/// What the bytes of a file that were told of were compared with.
#[derive(Clone, Debug, Default)]
struct Compared {
    bytes: Bytes,
    /// Length and checksum of each run, from the first byte on.
    seals: Vec<(u64, u32)>,
    /// Up to here those are seals that held, and behind it provisional ones.
    held: u64,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            doubts: HashMap::new(),
            again: AGAIN,
            open: HashMap::new(),
            tails: Tails::default(),
            alike: Alike::default(),
        }
    }
}

impl Reader {
    /// Bytes that were damaged are looked at again after so long.
    pub fn look_again_after(&mut self, time: Duration) {
        self.again = time;
    }

    /// What files that stay open have behind what is sealed is told of as this says.
    pub fn tell_of_tails(&mut self, tails: Tails) {
        self.tails = tails;
    }

    /// True if all there is to tell is told in one look.
    pub fn looks_once(&self) -> bool {
        self.tails.are_at_once()
    }

    /// All files are looked at once, in the order of their numbers; the batch may wait for those that come to rest.
    pub fn begin(&mut self, waits: bool) {
        self.tails.begin(waits);
    }

    /// The remote's tree is this one.
    pub fn know(&mut self, tree: &Tree) {
        self.alike = Alike::of(tree);
    }

    /// The remote's tree is as this line says from now on.
    pub fn apply(&mut self, line: &Line) {
        self.alike.apply(line);
        if let Line::Gone(ino) = line {
            self.doubts.remove(ino);
            self.open.remove(ino);
            self.tails.forget(*ino);
        }
    }

    /// True if what was said of an open file last was read.
    pub fn has_read(&self, ino: Ino) -> bool {
        self.open.contains_key(&ino.0)
    }

    /// What the remote, whose tree is this one, is to say of a file's bytes, given what it said before.
    pub fn content(
        &mut self,
        (committed, ino): (&Committed, Ino),
        cutter: &mut Cutter<'_>,
        (tree, before): (&Tree, Option<&Content>),
    ) -> Result<Content> {
        let Some(object) = committed.view().object(ino) else { return Err(Error::Refused("it is gone".into())) };
        let Some(chain) = object.chain() else { return Err(Error::Refused("it is no file".into())) };
        let segment = object.attributes.segment.unwrap_or_default();
        let (size, version) = (chain.size(), chain.version());
        let bytes = (segment.0, version);
        let settled = committed.is_settled(object);
        let seals = Sealed::of(chain);
        let is_damaged = object.attributes.damaged;
        if settled {
            self.tails.forget(ino.0);
        }
        let is_away = left::is_away(committed, segment);
        let unproved = size.saturating_sub(chain.sealed_end());
        let told = tree.entry(ino.0).and_then(|entry| entry.file.as_ref());
        let was_open = told.is_some_and(|file| file.state != State::Whole);
        let wants_tail = !settled && !is_damaged && !is_away && self.tails.is_due(ino.0, unproved, was_open);
        // Without seals nothing says that bytes which were written in place are those of before.
        if let Some(before) = before.filter(|before| (before.segment, before.version) == bytes)
            && (before.size, &before.seals) == (size, &seals)
            && (size == 0 || !seals.is_empty() || !settled)
            && (before.state == State::Whole) == settled
            && !wants_tail
        {
            return Ok(before.clone());
        }
        if is_away {
            return left::content((committed, ino), (chain, before), (settled, bytes, seals));
        }
        // One that is damaged is read by each carrier, and by this one every now and then, in case it was mended.
        if let Some(before) = before.filter(|before| before.state == State::Damaged)
            && (before.segment, before.version) == bytes
            && self.doubts.get(&ino.0).is_some_and(|doubt| doubt.read.elapsed() < self.again)
        {
            return Ok(before.clone());
        }
        let put = cutter.put_bytes();
        let wanted = Wanted { committed, segment, chain, is_settled: settled, with_tail: wants_tail };
        let read = match is_damaged {
            true => Ok(Got::default()),
            false => {
                let alike = self.alike.parts(tree, size, &seals);
                wanted.read(cutter, (before, alike), self.compared(ino, before))
            }
        };
        self.open.remove(&ino.0);
        let open = if is_damaged { State::Damaged } else { State::Open };
        match read {
            Ok(got) if settled && !is_damaged => {
                self.doubts.remove(&ino.0);
                Ok(Content { state: State::Whole, size, segment: segment.0, version, parts: got.parts, tail: 0, seals })
            }
            Ok(got) => {
                // What has changed since it was sealed is as it was, if more of it was told of; and so is what stands
                // behind the seals, until it is read once more.
                let is_less = |before: &Content| {
                    let has_tail = before.tail > 0 && before.segment == segment.0 && before.bytes() <= size;
                    !got.has_tail() && before.bytes() > got.bytes() && (got.has_changed || has_tail)
                };
                if wants_tail {
                    let grown = size.saturating_sub(before.map_or(0, Content::bytes));
                    // The piece that it ends in is put again, however little it has grown.
                    let expected = grown.saturating_add(tails::PIECE);
                    self.tails.was_read(ino.0, cutter.put_bytes().saturating_sub(put) > expected);
                }
                let as_before = before.filter(|before| is_less(before));
                let compared = Compared { bytes, seals: got.seals, held: chain.sealed_end() };
                if let Some(before) = as_before {
                    // What is proved of it by now need not be read again.
                    self.open.insert(ino.0, compared.upto(same_bytes(&before.parts, &got.parts)));
                    return Ok(kept(chain, open, bytes, (Vec::new(), 0), Some(before)));
                }
                if !got.parts.is_empty() {
                    self.open.insert(ino.0, compared);
                }
                Ok(kept(chain, open, bytes, (got.parts, got.tail), before))
            }
            Err(Trouble::Remote(error)) => Err(error),
            Err(Trouble::Different { what, .. }) => {
                let now = Instant::now();
                let known = self.doubts.get(&ino.0).filter(|doubt| doubt.bytes == bytes);
                let since = known.map_or(now, |doubt| doubt.since);
                self.doubts.insert(ino.0, Doubt { bytes, since, read: now });
                // A tier that is not there comes back, and so does what is in another remote.
                let is_away = matches!(committed.gone(segment), Some(Gone::Missing { .. } | Gone::Away { .. }));
                let is_known = |before: &Content| {
                    (before.state, before.segment, before.version) == (State::Damaged, bytes.0, bytes.1)
                };
                let was = before.is_some_and(is_known);
                let sure = !is_away && (was || !committed.is_in_use() || since.elapsed() >= DOUBT);
                if sure && !was {
                    let path = committed.view().path_of(ino).unwrap_or_default();
                    log::error!("{}: damaged, and not carried: {what}", String::from_utf8_lossy(&path));
                }
                let state = if sure { State::Damaged } else { State::Open };
                Ok(kept(chain, state, bytes, (Vec::new(), 0), before))
            }
        }
    }

    /// What the bytes that were told of before were compared with.
    fn compared(&self, ino: Ino, before: Option<&Content>) -> Compared {
        let Some(before) = before else { return Compared::default() };
        let bytes = (before.segment, before.version);
        if before.state == State::Whole {
            let seals = before.seals.iter().map(|sealed| (sealed.0, sealed.1)).collect();
            return Compared { bytes, seals, held: u64::MAX };
        }
        self.open.get(&ino.0).filter(|open| open.bytes == bytes).cloned().unwrap_or_default()
    }
}

/// A file whose bytes are to be told of.
struct Wanted<'a> {
    committed: &'a Committed,
    segment: SegmentId,
    chain: &'a FileChain,
    is_settled: bool,
    /// What stands behind the seals is wanted, too.
    with_tail: bool,
}

/// What there is of it.
#[derive(Default)]
struct Got {
    parts: Vec<Part>,
    /// What they were compared with.
    seals: Vec<(u64, u32)>,
    /// What stands behind them is not what was sealed provisionally.
    has_changed: bool,
    /// So many of their last bytes are compared with nothing.
    tail: u64,
}

impl Got {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(Part::len).fold(0, u64::saturating_add)
    }

    fn has_tail(&self) -> bool {
        self.tail > 0
    }
}

impl Wanted<'_> {
    /// The bytes that are at rest, or else those that are sealed, and the tail if that is wanted.
    fn read(
        &self,
        cutter: &mut Cutter<'_>,
        (before, alike): (Option<&Content>, &[Part]),
        compared: Compared,
    ) -> Outcome<Got> {
        let got = self.proved(cutter, (before, alike), compared)?;
        // What was at rest is not given up for what may not be.
        let is_more = before.is_none_or(|before| before.bytes().saturating_sub(before.tail) <= got.bytes());
        match self.with_tail && is_more {
            true => self.and_tail(cutter, before, got),
            false => Ok(got),
        }
    }

    /// With what stands behind, as it is. Where that cannot be read, somebody has cut it meanwhile.
    fn and_tail(&self, cutter: &mut Cutter<'_>, before: Option<&Content>, got: Got) -> Outcome<Got> {
        let (runs, end) = (self.chain.runs(), self.chain.size());
        let from = got.bytes();
        if from >= end {
            return Ok(got);
        }
        let before = before.filter(|before| before.segment == self.segment.0).map_or(&[][..], |before| &before.parts);
        let ends = tails::ends(cuts::ends(&cuts::tensors(self.chain), end, before), from);
        let Ok(file) = self.committed.open(self.segment) else { return Ok(got) };
        match cutter.parts(&file, (runs, |_| None), (&got.parts, from), &ends) {
            Ok(parts) => Ok(Got { parts, tail: end - from, ..got }),
            Err(Trouble::Different { .. }) => Ok(got),
            Err(error) => Err(error),
        }
    }

    /// The bytes that are at rest, or else those that are sealed, up to the first that are not what was sealed
    /// provisionally. `compared` is what those of before were compared with, and `alike` are the parts of another file
    /// that has the same bytes.
    fn proved(
        &self,
        cutter: &mut Cutter<'_>,
        (before, alike): (Option<&Content>, &[Part]),
        compared: Compared,
    ) -> Outcome<Got> {
        let chain = self.chain;
        let held = chain.runs().iter().take_while(|run| run.seal().is_some()).count();
        let (mut runs, seal_of): (_, SealOf) = match self.is_settled {
            true => (chain.runs(), Run::seal),
            false => {
                let sealed = chain.runs().iter().take_while(|run| run.any_seal().is_some()).count();
                (&chain.runs()[..sealed], Run::any_seal)
            }
        };
        // What is in another segment by now was moved, or written anew.
        let is_there = before.is_some_and(|before| before.segment == self.segment.0);
        let same = if is_there { compared.same(runs, seal_of) } else { 0 };
        let is_alike = is_there || compared.alike(runs, seal_of).next().is_some();
        let before = before.filter(|_| is_alike).map_or(alike, |before| &before.parts[..]);
        let mut has_changed = false;
        loop {
            let parts = self.parts(cutter, (runs, seal_of), before, same);
            let Err(Trouble::Different { from, .. }) = &parts else {
                let seals = runs.iter().filter(|run| run.len > 0);
                let seals = seals.filter_map(|run| Some((run.len, seal_of(run)?.crc))).collect();
                return parts.map(|parts| Got { parts, seals, has_changed, tail: 0 });
            };
            let first = runs.partition_point(|run| run.end() <= *from);
            if !runs.get(first).is_some_and(|run| run.seal().is_none() && seal_of(run).is_some()) {
                return parts.map(|_| Got::default());
            }
            // If others change meanwhile, what holds has to do.
            runs = &runs[..if has_changed { held.min(first) } else { first }];
            has_changed = true;
        }
    }

    fn parts(
        &self,
        cutter: &mut Cutter<'_>,
        (runs, seal_of): (&[Run], SealOf),
        before: &[Part],
        same: u64,
    ) -> Outcome<Vec<Part>> {
        let Some(end) = runs.last().map(Run::end) else { return Ok(Vec::new()) };
        let ends = cuts::ends(&cuts::tensors(self.chain), end, before);
        let (count, from) = cuts::kept(before, same, &ends);
        let file = self.committed.open(self.segment).map_err(|error| different(&error, 0))?;
        cutter.parts(&file, (runs, seal_of), (&before[..count], from), &ends)
    }
}

/// So many bytes are the same in both, part by part from the first one on.
fn same_bytes(one: &[Part], other: &[Part]) -> u64 {
    let pairs = one.iter().zip(other);
    let same = pairs.take_while(|(one, other)| (one.len(), one.hash()) == (other.len(), other.hash()));
    same.map(|(part, _)| part.len()).fold(0, u64::saturating_add)
}

impl Compared {
    /// Of so many bytes alone.
    fn upto(mut self, end: u64) -> Self {
        let mut at = 0_u64;
        self.seals.retain(|(len, _)| {
            at = at.saturating_add(*len);
            at <= end
        });
        self
    }

    /// The runs, from the first one on, that have the same lengths and checksums.
    fn alike<'a>(&'a self, runs: &'a [Run], seal_of: SealOf) -> impl Iterator<Item = &'a Run> {
        let both = runs.iter().filter(|run| run.len > 0).zip(&self.seals);
        let is_alike = move |(run, (len, crc)): &(&Run, &(u64, u32))| {
            run.len == *len && seal_of(run).is_some_and(|seal| seal.crc == *crc)
        };
        both.take_while(is_alike).map(|(run, _)| run)
    }

    /// So many bytes, from the first one on, are what they were, if they are in the same segment. A checksum alone says
    /// nothing of that: other bytes may have it, and all that end in their own CRC32C do. But before bytes may change
    /// whose seals hold, a thaw voids these, and new ones are other records. So the record has to be the one of then. A
    /// seal that was provisional then and holds now was compared with bytes that may have been others by that time.
    fn same(&self, runs: &[Run], seal_of: SealOf) -> u64 {
        let is_same =
            |run: &&Run| run.version() <= self.bytes.1 && (run.provisional_seal().is_some() || run.end() <= self.held);
        self.alike(runs, seal_of).take_while(is_same).last().map_or(0, Run::end)
    }
}

/// What is told of a file that is not at rest: the parts that could be read, or else those that it had when it was.
fn kept(
    chain: &FileChain,
    state: State,
    bytes: Bytes,
    (parts, tail): (Vec<Part>, u64),
    before: Option<&Content>,
) -> Content {
    let (parts, tail) = match before {
        Some(before) if parts.is_empty() => (before.parts.clone(), before.tail),
        _ => (parts, tail),
    };
    Content { state, size: chain.size(), segment: bytes.0, version: bytes.1, parts, tail, seals: Vec::new() }
}

//! Storing the seals of a file.

use std::iter::Peekable;

use crate::error::Result;
use crate::ids::{Ino, SegmentId};
use crate::log::Origin;
use crate::log::frame;
use crate::log::length;
use crate::log::record::Record;
use crate::log::superblock::{INCOMPAT_GROWTH, INCOMPAT_PROVISIONAL};
use crate::log::transaction::Transaction;
use crate::pool::opened::Pool;
use crate::segment::examine::SealedRun;
use crate::tree::chain::FileChain;
use crate::tree::object::Object;
use crate::tree::view::View;

/// The most bytes of one seal's description.
const DESCRIPTION_MAX: usize = 16 << 10;

/// Seals are stored in frames of about this size, so that others need not wait long for their turn.
const SEAL_FRAME: usize = 256 << 10;

/// Room for the records behind the seals of a frame: of data that is not sealed yet, and that provisional seals hold.
const SEAL_REST: usize = 128;

impl Pool {
    /// The most bytes that the description of a seal may have, so that its record fits in a frame.
    pub fn description_room(&self) -> usize {
        (self.state.read().log.largest_frame() / 2).min(DESCRIPTION_MAX)
    }

    /// True if programs that know nothing of such files refuse the pool already.
    pub fn allows_growth(&self) -> bool {
        self.superblock.of(|superblock| superblock.features.incompat & INCOMPAT_GROWTH != 0)
    }

    /// Has programs refuse the pool that do not know of files which grow behind bytes that stay sealed: to be called
    /// before the first one may.
    pub fn allow_growth(&self) -> Result<()> {
        self.need(INCOMPAT_GROWTH)
    }

    /// Stores the seals of a file, which cover it to its last byte, from its first one or from where what is sealed
    /// already stays as it is, and holds from then on if it was provisional: then the caller has compared it. He sees
    /// to it that the file is committed, and that nothing can write it meanwhile. False if the file is not as it was
    /// any more: it has another size or segment, no name, or is damaged. Long lists take several transactions; a crash
    /// between them leaves the rest of the file unsealed.
    ///
    /// # Errors
    /// The pool's own.
    pub fn seal(&self, ino: Ino, segment: SegmentId, allocated: u64, runs: Vec<SealedRun>) -> Result<bool> {
        self.seal_as((ino, segment), allocated, runs, true)
    }

    /// As [`Pool::seal`], of a file that is away and has no name yet.
    pub(super) fn seal_unnamed(&self, ino: Ino, segment: SegmentId, runs: Vec<SealedRun>) -> Result<bool> {
        self.seal_as((ino, segment), 0, runs, false)
    }

    fn seal_as(
        &self,
        (ino, segment): (Ino, SegmentId),
        allocated: u64,
        runs: Vec<SealedRun>,
        is_named: bool,
    ) -> Result<bool> {
        let size = runs.last().map_or(0, |run| run.offset + run.len);
        let origins = Origins::of_file(&self.view(), ino);
        let mut runs = runs.into_iter().peekable();
        {
            // Each record cuts off what is behind it: those in front of the first that is new need not be stored again.
            let view = self.view();
            let there = view.object(ino).filter(|object| object.attributes.segment == Some(segment));
            let mut there = there.and_then(Object::chain).map_or(&[][..], FileChain::runs).iter();
            let first = runs.peek().map_or(0, |run| run.offset);
            let mut there = there.by_ref().skip_while(|run| run.offset < first);
            while let Some(run) = runs.peek()
                && there
                    .next()
                    .is_some_and(|old| (old.offset, old.len, old.seal()) == (run.offset, run.len, Some(&run.seal)))
            {
                runs.next();
            }
        }
        while runs.peek().is_some() {
            let mut edit = self.edit_with_room(SEAL_FRAME);
            let is_unnamed = || edit.object(ino).is_some_and(|object| object.names() == 0 && object.size() == size);
            if !(is_as_it_was(&edit, ino, segment, size) || !is_named && is_unnamed()) {
                return Ok(false);
            }
            let room = edit.state.log.largest_frame().min(SEAL_FRAME) - frame::HEADER - SEAL_REST;
            let mut tx = Transaction::new(0);
            let (mut used, mut end) = (0, 0);
            while let Some(run) = runs.next_if(|run| {
                used += length::sealed(run.seal.description.len()) + length::ORIGIN;
                used <= room || tx.is_empty()
            }) {
                end = run.offset + run.len;
                let SealedRun { offset, len, seal, origin } = run;
                let origin = if origin.is_known() { origin } else { origins.of(offset) };
                tx.push(Record::Sealed { ino, segment, offset, len, allocated, seal, origin });
            }
            // A data record ends the chain before it: what is not sealed yet stays part of the file.
            if end < size {
                tx.bytes_are_durable(segment);
                tx.push(Record::Data {
                    ino,
                    segment,
                    offset: end,
                    len: size - end,
                    allocated,
                    origin: origins.of(end),
                });
            }
            // With the first seals behind them the provisional ones hold: a thaw has to come before any changes.
            if edit.object(ino).and_then(Object::chain).is_some_and(FileChain::has_provisional_seals) {
                tx.push(Record::Provisional { ino, segment, from: size });
            }
            edit.store(tx)?;
        }
        Ok(true)
    }

    /// The provisional seals of a file of this size hold from now on: the caller has compared its bytes with them, and
    /// sees to it that nothing could write it since. False if the file is not as it was any more.
    ///
    /// # Errors
    /// The pool's own.
    pub fn let_seals_hold(&self, ino: Ino, segment: SegmentId, size: u64) -> Result<bool> {
        let mut edit = self.edit_with_room(SEAL_FRAME);
        let is_as_it_was = is_as_it_was(&edit, ino, segment, size);
        if is_as_it_was && edit.object(ino).and_then(Object::chain).is_some_and(FileChain::has_provisional_seals) {
            edit.store(Transaction::new(0).with(Record::Provisional { ino, segment, from: size }))?;
        }
        Ok(is_as_it_was)
    }

    /// Stores provisional seals of a file that somebody has open to write: of bytes that are durable, from somewhere in
    /// what is sealed, or its end, on. What is behind them stays as it is. False if the file is not as it was any more,
    /// has too many records, or the log has too short frames. Long lists take several transactions; a crash between
    /// them leaves the rest unsealed.
    ///
    /// # Errors
    /// The pool's own.
    pub fn seal_provisionally(&self, ino: Ino, segment: SegmentId, runs: Vec<SealedRun>) -> Result<bool> {
        self.need(INCOMPAT_GROWTH | INCOMPAT_PROVISIONAL)?;
        let mut runs = runs.into_iter().peekable();
        {
            // As those that were there before, which are believed.
            let view = self.view();
            let there = view.object(ino).and_then(Object::chain).map_or(&[][..], FileChain::runs);
            let is_there = |run: &SealedRun| {
                let old = there.get(there.partition_point(|old| old.offset < run.offset));
                old.is_some_and(|old| (old.offset, old.len, old.any_seal()) == (run.offset, run.len, Some(&run.seal)))
            };
            while runs.next_if(is_there).is_some() {}
        }
        self.seal_in_front((ino, segment), runs, true)
    }

    /// Stores the seals of a file's first bytes that have just become those of a new segment, which has the same. What
    /// is behind them stays as it is. False, and long lists, as of [`Pool::seal_provisionally`].
    ///
    /// # Errors
    /// The pool's own.
    pub(super) fn carry_seals(&self, ino: Ino, segment: SegmentId, runs: Vec<SealedRun>) -> Result<bool> {
        self.seal_in_front((ino, segment), runs.into_iter().peekable(), false)
    }

    fn seal_in_front(
        &self,
        file: (Ino, SegmentId),
        mut runs: Peekable<impl Iterator<Item = SealedRun>>,
        are_provisional: bool,
    ) -> Result<bool> {
        while runs.peek().is_some() {
            let mut edit = self.edit_with_room(SEAL_FRAME);
            let room = edit.state.log.largest_frame().min(SEAL_FRAME);
            let Some(tx) = in_front(&edit, file, room, &mut runs, are_provisional) else { return Ok(false) };
            edit.store(tx)?;
        }
        Ok(true)
    }
}

/// True if a file has this segment and this size, and can be sealed.
fn is_as_it_was(view: &View, ino: Ino, segment: SegmentId, size: u64) -> bool {
    view.object(ino).is_some_and(|object| {
        object.names() > 0
            && object.attributes.segment == Some(segment)
            && !object.attributes.damaged
            && object.size() == size
    })
}

/// The records of seals, as many as there is `room` for in a frame, and of what is behind them, as it is.
fn in_front(
    view: &View,
    (ino, segment): (Ino, SegmentId),
    room: usize,
    runs: &mut Peekable<impl Iterator<Item = SealedRun>>,
    are_provisional: bool,
) -> Option<Transaction> {
    let first = runs.peek()?.offset;
    let object = view.object(ino).filter(|object| {
        object.names() > 0
            && object.attributes.segment == Some(segment)
            && !object.attributes.damaged
            && !object.is_cut_unconfirmed()
    })?;
    // What holds stays: its bytes may be others by now, and nobody has compared them.
    let chain = object.chain().filter(|chain| (chain.sealed_end()..=chain.seals_end()).contains(&first))?;
    let there = chain.runs_behind(first);
    let rest = there.len() * (length::DATA + length::ORIGIN);
    let room = room.saturating_sub(frame::HEADER + SEAL_REST + rest);
    let (allocated, mut end) = (chain.allocated(), first);
    let (mut tx, mut used) = (Transaction::new(0), 0);
    while let Some(SealedRun { offset, len, seal, origin }) = runs.next_if(|run| {
        used += length::sealed(run.seal.description.len()) + length::ORIGIN;
        used <= room
    }) {
        end = offset + len;
        let at = there.partition_point(|run| run.offset <= offset);
        let of_there = || at.checked_sub(1).map_or(Origin::default(), |at| there[at].origin);
        let origin = if origin.is_known() { origin } else { of_there() };
        tx.push(Record::Sealed { ino, segment, offset, len, allocated, seal, origin });
    }
    if tx.is_empty() || end > chain.size() {
        return None;
    }
    // They are durable, or the next commit makes them so for the sake of the records that these take the place of.
    tx.bytes_are_durable(segment);
    for run in there.iter().filter(|run| run.end() > end) {
        let offset = run.offset.max(end);
        let (len, origin) = (run.end() - offset, run.origin);
        tx.push(Record::Data { ino, segment, offset, len, allocated, origin });
    }
    if are_provisional {
        tx.push(Record::Provisional { ino, segment, from: chain.sealed_end() });
    }
    Some(tx)
}

/// Where the runs of a file begin, and where they come from.
struct Origins(Vec<(u64, Origin)>);

impl Origins {
    fn of_file(view: &View, ino: Ino) -> Self {
        let chain = view.object(ino).and_then(Object::chain);
        Self(chain.map_or(&[][..], FileChain::runs).iter().map(|run| (run.offset, run.origin)).collect())
    }

    /// That of the byte at an offset.
    fn of(&self, offset: u64) -> Origin {
        let behind = self.0.partition_point(|(start, _)| *start <= offset);
        behind.checked_sub(1).map_or(Origin::default(), |at| self.0[at].1)
    }
}

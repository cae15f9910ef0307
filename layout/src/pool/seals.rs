//! Storing the seals of a file.

use crate::error::Result;
use crate::ids::{Ino, SegmentId};
use crate::log::Origin;
use crate::log::frame;
use crate::log::length;
use crate::log::record::Record;
use crate::log::superblock::INCOMPAT_GROWTH;
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

/// Room for the data record behind the seals of a frame.
const SEAL_REST: usize = 64;

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
    /// already stays as it is; the caller sees to it that the file is committed, and that nothing can write it
    /// meanwhile. False if the file is not as it was any more: it has another size or segment, no name, or is damaged.
    /// Long lists take several transactions; a crash between them leaves the rest of the file unsealed.
    pub fn seal(&self, ino: Ino, segment: SegmentId, allocated: u64, runs: Vec<SealedRun>) -> Result<bool> {
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
                && there.next().is_some_and(|old| {
                    (old.offset, old.len, old.seal.as_ref()) == (run.offset, run.len, Some(&run.seal))
                })
            {
                runs.next();
            }
        }
        while runs.peek().is_some() {
            let mut edit = self.edit_with_room(SEAL_FRAME);
            let as_it_was = edit.object(ino).is_some_and(|object| {
                object.names() > 0
                    && object.attributes.segment == Some(segment)
                    && !object.attributes.damaged
                    && object.size() == size
            });
            if !as_it_was {
                return Ok(false);
            }
            let room = edit.state.log.largest_frame().min(SEAL_FRAME) - frame::HEADER - SEAL_REST;
            let mut tx = Transaction::new(0);
            let (mut used, mut end) = (0, 0);
            while let Some(run) = runs.next_if(|run| {
                used += length::sealed(run.seal.description.len());
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
            edit.store(tx)?;
        }
        Ok(true)
    }
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

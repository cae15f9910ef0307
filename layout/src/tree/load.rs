//! Loading: the view that the kept frames of a log make.
//!
//! The records of a chain are applied in the order of their numbers, which is the order in which they stand in the log,
//! save for those that cleaning appended again. So the log is read twice, a few blocks at a time: once for the objects,
//! and to find the chains that are out of order; once for all other records, of which only those of such chains are
//! kept to be sorted. What is in memory at any time is little more than the view.

use std::collections::HashSet;
use std::io;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ids::{Ino, SegmentId};
use crate::log::blocks::{Block, Log};
use crate::log::record::Record;
use crate::log::scan::{self, Found, Located, Part, ScannedBlock};
use crate::log::superblock::Superblock;
use crate::medium::domain::Medium;
use crate::parallel::parallel;
use crate::tree::view::View;

/// So many blocks are decoded before their records are applied.
const BATCH: usize = 32;

/// The blocks in use, in the order in which they were written.
struct Blocks<'a> {
    medium: &'a dyn Medium,
    superblock: &'a Superblock,
    scanned: &'a [ScannedBlock],
    in_use: Vec<(u64, usize, u64)>,
}

impl<'a> Blocks<'a> {
    fn new(medium: &'a dyn Medium, superblock: &'a Superblock, scanned: &'a [ScannedBlock], log: &Log) -> Self {
        let mut in_use: Vec<_> = (log.blocks().iter().enumerate())
            .filter_map(|(index, block)| match block {
                Block::InUse { incarnation, last, .. } => Some((*incarnation, index, *last)),
                Block::Free => None,
            })
            .collect();
        in_use.sort_unstable();
        Self { medium, superblock, scanned, in_use }
    }

    /// What `part` names of the kept frames, block by block.
    fn each(&self, part: Part, mut take: impl FnMut(scan::Records)) -> io::Result<()> {
        for batch in self.in_use.chunks(BATCH) {
            let decoded = parallel(batch.len(), scan::BLOCKS_PER_THREAD, |at| {
                let (incarnation, index, last) = batch[at];
                let kept = |found: &&Found| found.sound && found.header.id <= last;
                let frames: Vec<Found> = self.scanned[index].frames.iter().filter(kept).copied().collect();
                scan::records(self.medium, self.superblock, index, incarnation, &frames, part)
            })?;
            decoded.into_iter().for_each(&mut take);
        }
        Ok(())
    }
}

/// Builds the view from the kept frames. Adds to `owned` every segment that some kept record says is a file's.
///
/// # Errors
/// `InvalidData` if a record cannot be read although its checksum is right; else what reading the log gave.
pub(crate) fn load(
    medium: &dyn Medium,
    superblock: &Superblock,
    scanned: &[ScannedBlock],
    log: &Log,
    next_id: u64,
    owned: &mut HashSet<SegmentId>,
) -> io::Result<View> {
    let blocks = Blocks::new(medium, superblock, scanned, log);
    let mut view = View::default();
    view.raise_next_id(next_id);
    // Objects first: a name counts for an object whose chain may come later.
    let mut newest: FxHashMap<Ino, u64> = FxHashMap::default();
    let mut disordered: FxHashSet<Ino> = FxHashSet::default();
    blocks.each(Part::Attributes, |records| {
        for one in records.located {
            if let Record::Attributes { attributes, .. } = &one.record {
                owned.extend(attributes.segment);
            }
            view.apply(one.record, one.placed);
        }
        for (ino, seq) in records.others {
            let newest = newest.entry(ino).or_default();
            if seq < *newest {
                disordered.insert(ino);
            }
            *newest = seq.max(*newest);
        }
    })?;
    drop(newest);
    let mut late: Vec<Located> = Vec::new();
    blocks.each(Part::Others, |records| {
        for one in records.located {
            // Of a segment that the file does not have: it was to be a copy of the one that it has.
            if let Record::Thaw { segment, .. } = &one.record {
                owned.insert(*segment);
            }
            if disordered.contains(&one.record.ino()) {
                late.push(one);
            } else {
                view.apply(one.record, one.placed);
            }
        }
    })?;
    late.sort_unstable_by_key(|one| (one.record.ino(), one.placed.seq, one.placed.incarnation));
    for one in late {
        view.apply(one.record, one.placed);
    }
    view.settle_parents();
    view.take_freed();
    Ok(view)
}

//! Reading the log back: every block, several at once, and what of it its checksums vouch for. Decides nothing.

use crate::ids::{Ino, TxId};
use crate::log::block;
use crate::log::codec::ALIGN;
use crate::log::encoding;
use crate::log::filled::{BlockBytes, Filled};
use crate::log::frame;
use crate::log::ledger::Placed;
use crate::log::record::Record;
use crate::log::superblock::{BLOCKS_OFFSET, Superblock};
use crate::medium::domain::Medium;
use crate::parallel::parallel;

/// A frame whose header is sound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub header: frame::Header,
    pub offset: usize,
    /// The records are sound as well.
    pub sound: bool,
}

impl Found {
    /// Where in the block it ends.
    pub fn end(&self) -> usize {
        self.offset + self.header.length
    }
}

/// One block as found.
#[derive(Debug, Default)]
pub(crate) struct ScannedBlock {
    pub header: Option<block::Header>,
    pub frames: Vec<Found>,
    /// The ranges of transactions that the block's own records say are retired, with the frame that says so.
    pub retired: Vec<(u64, TxId, TxId)>,
    /// Nothing but zeroes.
    pub empty: bool,
    /// Bytes in front of a sound frame, or behind the last one, that are neither a frame nor zeroes.
    pub garbage: bool,
}

/// A log that is not longer is not worth a thread.
pub(crate) const BLOCKS_PER_THREAD: usize = 8;

/// Reads all blocks. One that is a hole is empty.
pub(crate) fn scan(medium: &dyn Medium, superblock: &Superblock) -> std::io::Result<Vec<ScannedBlock>> {
    let filled = Filled::of_all(medium, superblock)?;
    let indices = filled.blocks(superblock);
    let scanned = parallel(indices.len(), BLOCKS_PER_THREAD, |at| {
        let index = indices[at];
        Ok(scan_block(&BlockBytes::read(medium, superblock, index, &filled)?, index as u32, superblock))
    })?;
    let mut blocks = Vec::new();
    blocks.resize_with(superblock.blocks as usize, || ScannedBlock { empty: true, ..ScannedBlock::default() });
    for (index, block) in indices.into_iter().zip(scanned) {
        blocks[index] = block;
    }
    Ok(blocks)
}

/// Reads one block: its header, then frame after frame. Where there is no frame but something else than zeroes, the
/// next sound header is looked for.
pub(crate) fn scan_block(bytes: &BlockBytes, index: u32, superblock: &Superblock) -> ScannedBlock {
    let mut found = ScannedBlock::default();
    let head = bytes.head::<{ block::HEADER }>(0);
    let Some(header) = block::decode(&head, index, |incarnation| superblock.seed(incarnation)) else {
        found.empty = bytes.is_zero_behind(0);
        found.garbage = !found.empty;
        return found;
    };
    found.header = Some(header);
    let seed = superblock.seed(header.incarnation);
    let frame_at = |at| frame::decode(&bytes.head::<{ frame::HEADER }>(at), bytes.len() - at, seed);
    let mut at = block::HEADER;
    while at < bytes.len() {
        if let Some(header) = frame_at(at) {
            // None that was stored whole has a long hole in it.
            let frame = bytes.get(at..at + header.length);
            let frame = frame.filter(|frame| frame::payload_is_sound(&header, frame, seed));
            if let Some(frame) = frame.filter(|_| header.flags & frame::FLAG_POOL != 0) {
                for (record, ..) in frame::records(&header, frame).flatten() {
                    if let Record::Retired { first, last } = record {
                        found.retired.push((header.id, first, last));
                    }
                }
            }
            found.frames.push(Found { header, offset: at, sound: frame.is_some() });
            at += header.length;
        } else if bytes.is_zero_behind(at) {
            break;
        } else {
            found.garbage = true;
            // Only a place that starts like a frame is worth a checksum.
            let next = |at: &usize| bytes.find(&frame::MAGIC, at + ALIGN);
            let mut like_frames = std::iter::successors(next(&at), next);
            at = like_frames.find(|at| frame_at(*at).is_some()).unwrap_or(bytes.len());
        }
    }
    found
}

/// A record and where it stands.
#[derive(Debug)]
pub(crate) struct Located {
    pub record: Record,
    pub placed: Placed,
}

/// Which records are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Those that say what objects there are.
    Attributes,
    /// All the others.
    Others,
}

/// Records of one block.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Those that were wanted.
    pub located: Vec<Located>,
    /// Chain and number of the others, where attributes were wanted.
    pub others: Vec<(Ino, u64)>,
}

/// The records of the given frames of a block. A frame whose records do not parse although their checksum is right was
/// written by a faulty program: it is reported as `InvalidData`.
pub(crate) fn records(
    medium: &dyn Medium,
    superblock: &Superblock,
    index: usize,
    incarnation: u64,
    frames: &[Found],
    part: Part,
) -> std::io::Result<Records> {
    let invalid = |reason| std::io::Error::new(std::io::ErrorKind::InvalidData, reason);
    let start = BLOCKS_OFFSET + index as u64 * u64::from(superblock.block_size);
    let mut records = Records::default();
    // Those that follow each other are read at once, and nothing else is.
    for run in frames.chunk_by(|one, next| one.end() == next.offset) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let mut bytes = vec![0; last.end() - first.offset];
        medium.read(start + first.offset as u64, &mut bytes)?;
        let all = run.iter().flat_map(|found| {
            frame::record_bytes(&found.header, &bytes[found.offset - first.offset..found.end() - first.offset])
        });
        for bytes in all {
            let bytes = bytes.map_err(invalid)?;
            let head = encoding::Head::decode(bytes).map_err(invalid)?;
            if head.is_attributes() == (part == Part::Attributes) {
                let (record, seq, _) = Record::decode(bytes).map_err(invalid)?;
                records.located.push(Located { record, placed: Placed { seq, incarnation } });
            } else if part == Part::Attributes {
                records.others.push((head.ino, head.seq));
            }
        }
    }
    Ok(records)
}

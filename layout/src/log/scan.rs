//! Reading the log back: every block, several at once, and what of it its checksums vouch for. Decides nothing.

use crate::ids::{Ino, TxId};
use crate::log::block;
use crate::log::codec::ALIGN;
use crate::log::encoding;
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

/// The bytes of one block.
pub(crate) fn read_block(medium: &dyn Medium, superblock: &Superblock, index: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; superblock.block_size as usize];
    medium.read(BLOCKS_OFFSET + index as u64 * u64::from(superblock.block_size), &mut bytes)?;
    Ok(bytes)
}

/// Reads all blocks.
pub(crate) fn scan(medium: &dyn Medium, superblock: &Superblock) -> std::io::Result<Vec<ScannedBlock>> {
    parallel(superblock.blocks as usize, BLOCKS_PER_THREAD, |index| {
        Ok(scan_block(&read_block(medium, superblock, index)?, index as u32, superblock))
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    // In words: blocks are aligned to them, and most of a young log is zeroes.
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Reads one block: its header, then frame after frame. Where there is no frame but something else than zeroes, the
/// next sound header is looked for.
pub(crate) fn scan_block(bytes: &[u8], index: u32, superblock: &Superblock) -> ScannedBlock {
    let mut found = ScannedBlock::default();
    let Some(header) = block::decode(bytes, index, |incarnation| superblock.seed(incarnation)) else {
        found.empty = is_zero(bytes);
        found.garbage = !found.empty;
        return found;
    };
    found.header = Some(header);
    let seed = superblock.seed(header.incarnation);
    let mut at = block::HEADER;
    while at < bytes.len() {
        if let Some(header) = frame::decode(&bytes[at..], seed) {
            let frame = &bytes[at..at + header.length];
            let sound = frame::payload_is_sound(&header, frame, seed);
            if sound && header.flags & frame::FLAG_POOL != 0 {
                for (record, ..) in frame::records(&header, frame).flatten() {
                    if let Record::Retired { first, last } = record {
                        found.retired.push((header.id, first, last));
                    }
                }
            }
            found.frames.push(Found { header, offset: at, sound });
            at += header.length;
        } else if is_zero(&bytes[at..]) {
            break;
        } else {
            found.garbage = true;
            at += ALIGN;
            // Only a place that starts like a frame is worth a checksum.
            while at < bytes.len() && frame::decode(&bytes[at..], seed).is_none() {
                at += ALIGN;
            }
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
    let bytes = read_block(medium, superblock, index)?;
    let mut records = Records::default();
    for found in frames {
        let frame = &bytes[found.offset..found.offset + found.header.length];
        for bytes in frame::record_bytes(&found.header, frame) {
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

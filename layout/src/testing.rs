//! For tests of this and other crates: what a real bad day does to a pool, done on purpose.

pub use crate::medium::anew::{LARGEST_BLOCK, write_anew};
pub use crate::medium::cacheline::lines as cache_lines;
pub use crate::medium::dax::Memory;
use std::path::Path;
use std::sync::Arc;

use crate::check::inspect::Contents;
use crate::error::{Error, Result};
use crate::log::block;
use crate::log::description;
use crate::log::file::{LOG, open_log, open_pool};
use crate::log::frame;
use crate::log::record::Record;
use crate::log::superblock::{self, BLOCKS_OFFSET, Superblock};
use crate::medium;
use crate::medium::dax::DaxMedium;
use crate::medium::domain::Medium;
use crate::pool::lock::{Holder, PoolLock};
use crate::segment::tier;

/// Makes the next open of a pool that is not in use believe that the machine was started anew since. Its volatile tiers
/// believe it too.
pub fn change_boot_id(pool: &Path) -> Result<()> {
    let contents = Contents::read(pool)?;
    let dir = open_pool(pool)?;
    for (_, tier) in contents.view().tiers().filter(|(_, tier)| tier.volatile) {
        tier::change_boot_id(tier.path(), dir.owner()).map_err(|error| Error::io(tier.path(), "change", error))?;
    }
    let lock = PoolLock::take(dir, &Holder::default())?;
    let io = |error| Error::in_pool(pool, LOG, "write", error);
    let medium: Arc<dyn Medium> = medium::open(open_log(lock.dir(), true)?).map_err(io)?.into();
    let (mut superblock, _) = Superblock::read(pool, &*medium)?;
    superblock.boot_id = superblock.boot_id.map(|byte| !byte);
    superblock.write(&*medium).map_err(io)
}

/// Gives everything in the image of a log the checksum that goes with its content: what was changed on purpose is then
/// believed, and what comes after checksums is put to the test.
pub fn vouch_for(image: &mut [u8]) {
    let Some(superblock) = superblock::vouch_for(image) else { return };
    let Some(blocks) = image.get_mut(BLOCKS_OFFSET as usize..) else { return };
    for block in blocks.chunks_exact_mut(superblock.block_size as usize) {
        let found = block::vouch_for(block, |incarnation| superblock.seed(incarnation));
        let Some(seed) = found.map(|incarnation| superblock.seed(incarnation)) else { continue };
        let mut rest = &mut block[block::HEADER..];
        while let Some(length) = frame::vouch_for(rest, seed) {
            rest = &mut rest[length..];
        }
    }
}

/// Decodes a record from bytes, and encodes it again.
///
/// # Panics
/// If that does not give the same record.
pub fn decode_record(bytes: &[u8]) {
    let Ok((record, seq, len)) = Record::decode(bytes) else { return };
    assert!(len <= bytes.len());
    let mut again = Vec::new();
    record.encode(seq, &mut again);
    assert_eq!(Record::decode(&again), Ok((record, seq, again.len())));
}

/// Decodes the description of a seal.
pub fn decode_description(bytes: &[u8]) {
    let _ = description::summary(bytes);
    for entry in description::entries(bytes) {
        let _ = (entry.tensor.range(), entry.tensor.bytes(), entry.tensor.label());
    }
}

/// Decodes a block of a log as it comes: its header and its frames, whose checksums are seeded with 0.
pub fn decode_block(bytes: &mut [u8]) {
    let _ = block::vouch_for(bytes, |_| 0);
    let _ = block::decode(bytes, 0, |_| 0);
    let mut rest = bytes.get_mut(block::HEADER..).unwrap_or_default();
    while let Some(length) = frame::vouch_for(rest, 0) {
        if let Some(header) = frame::decode(rest, rest.len(), 0) {
            assert!(frame::payload_is_sound(&header, rest, 0));
            let _ = frame::records(&header, rest).count();
        }
        rest = &mut rest[length..];
    }
}

/// The `dax` medium on memory of the caller's: which stores, write-backs and fences it makes, and in which order.
pub fn dax_medium(memory: impl Memory + 'static) -> Box<dyn Medium> {
    Box::new(DaxMedium::new(memory))
}

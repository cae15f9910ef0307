//! OCDBT: a tree of keys and values in a few files, which its manifest leads to. What orbax keeps arrays in.

use crate::fault::{Result, malformed, short};
use crate::source::{Source, read_exact};

use super::node::What;

/// What a manifest begins with, and what comes behind: its length, and at its end a checksum.
const MAGIC: [u8; 4] = [0x0c, 0xdb, 0x3a, 0x2a];
const HEAD: usize = 12;
const CHECKSUM: u64 = 4;
/// The longest manifest that is read.
const MANIFEST_MAX: u64 = 64 << 20;
const PIECE: usize = 64 << 10;

pub(super) fn read(source: &dyn Source) -> Result<What> {
    let size = source.size()?;
    let mut head = [0; HEAD];
    read_exact(source, 0, &mut head)?;
    let (magic, len) = head.split_at(MAGIC.len());
    if magic != MAGIC {
        return malformed("no manifest of OCDBT");
    }
    let len = len.iter().rev().fold(0, |len, byte| len << 8 | u64::from(*byte));
    if len > size {
        return short(format!("a manifest of OCDBT that is cut short: it has {size} bytes of {len}"));
    }
    if !(HEAD as u64 + CHECKSUM..=MANIFEST_MAX).contains(&len) || len != size {
        return malformed("a manifest of OCDBT that is not as long as it says");
    }
    let (mut at, end, mut crc) = (0, size - CHECKSUM, 0);
    let mut piece = vec![0; PIECE];
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        read_exact(source, at, &mut piece[..want])?;
        crc = crc32c::crc32c_append(crc, &piece[..want]);
        at += want as u64;
    }
    let mut checksum = [0; CHECKSUM as usize];
    read_exact(source, end, &mut checksum)?;
    match u32::from_le_bytes(checksum) == crc {
        true => Ok(What::Database),
        false => malformed("a manifest of OCDBT whose checksum is not that of its bytes"),
    }
}

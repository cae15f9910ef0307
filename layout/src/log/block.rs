//! A log block's own header, in front of its frames. Its checksum is seeded as those of the frames are.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ids::NUMBER_LIMIT;

/// Bytes of a block's header.
pub(crate) const HEADER: usize = 64;
const MAGIC: [u8; 8] = *b"TFSBLOCK";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    incarnation: U64,
    first: U64,
    index: U32,
    zero: [u8; 32],
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() == HEADER);

/// Which use of the block this is, and the transaction that it starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub incarnation: u64,
    pub first: u64,
    pub index: u32,
}

pub(crate) fn encode(header: Header, seed: u32) -> [u8; HEADER] {
    let mut raw = Raw {
        magic: MAGIC,
        incarnation: header.incarnation.into(),
        first: header.first.into(),
        index: header.index.into(),
        zero: [0; 32],
        crc: 0.into(),
    };
    raw.crc = crc32c::crc32c_append(seed, &raw.as_bytes()[..HEADER - 4]).into();
    zerocopy::transmute!(raw)
}

/// For tests: puts right the checksum of what looks like a block's header, and tells its incarnation.
pub(crate) fn vouch_for(bytes: &mut [u8], seed: impl Fn(u64) -> u32) -> Option<u64> {
    let (mut raw, _) = Raw::read_from_prefix(bytes).ok()?;
    if raw.magic != MAGIC {
        return None;
    }
    let incarnation = raw.incarnation.get();
    raw.crc = crc32c::crc32c_append(seed(incarnation), &raw.as_bytes()[..HEADER - 4]).into();
    bytes[..HEADER].copy_from_slice(raw.as_bytes());
    Some(incarnation)
}

/// Reads the header of the block at `index`; `seed` gives the checksum seed of an incarnation.
pub(crate) fn decode(bytes: &[u8], index: u32, seed: impl Fn(u64) -> u32) -> Option<Header> {
    let (raw, _) = Raw::read_from_prefix(bytes).ok()?;
    let header = Header { incarnation: raw.incarnation.get(), first: raw.first.get(), index: raw.index.get() };
    let crc = crc32c::crc32c_append(seed(header.incarnation), &raw.as_bytes()[..HEADER - 4]);
    let sound = raw.magic == MAGIC
        && crc == raw.crc.get()
        && header.index == index
        && header.incarnation != 0
        && header.incarnation.max(header.first) < NUMBER_LIMIT;
    sound.then_some(header)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEED: u32 = 7;

    #[test]
    fn every_flipped_bit_of_a_block_header_is_noticed() {
        let whole = encode(Header { incarnation: 9, first: 4, index: 2 }, SEED);
        assert!(decode(&whole, 2, |_| SEED).is_some());
        assert!(decode(&whole, 3, |_| SEED).is_none(), "a block in another's place");
        for bit in 0..whole.len() * 8 {
            let mut header = whole;
            header[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&header, 2, |_| SEED).is_none(), "bit {bit}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_pass_for_a_block_header(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode(&bytes, 0, |_| SEED).is_none());
        }
    }
}

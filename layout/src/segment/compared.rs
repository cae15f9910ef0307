//! Comparing what was sealed with the checksums that it had, while it is read to be cut anew: so that bytes that are
//! damaged do not come to new ones.

use std::ops::Range;

use tensorfs_formats::{crc32c_append, crc32c_zeroes};

/// Bytes of a file that have a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum {
    pub offset: u64,
    pub len: u64,
    pub crc: u32,
}

impl Checksum {
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Hears of bytes of a file, from front to back. What is left out is not compared.
pub(super) struct Compared {
    /// In order, and none overlaps another.
    checksums: Vec<Checksum>,
    /// Those in front of this one are done with.
    next: usize,
    /// So many bytes of it were heard of, from its first one on; none if the first ones were left out.
    heard: Option<u64>,
    crc: u32,
    unlike: Vec<Checksum>,
}

impl Compared {
    pub fn new(checksums: Vec<Checksum>) -> Self {
        Self { checksums, next: 0, heard: Some(0), crc: 0, unlike: Vec::new() }
    }

    /// These bytes are at an offset.
    pub fn bytes(&mut self, offset: u64, bytes: &[u8]) {
        self.hear(offset, bytes.len() as u64, |crc, range| {
            crc32c_append(crc, &bytes[range.start as usize..range.end as usize])
        });
    }

    /// So many zeroes are at an offset.
    pub fn zeroes(&mut self, offset: u64, count: u64) {
        self.hear(offset, count, |crc, range| crc32c_zeroes(crc, range.end - range.start));
    }

    /// What does not have the checksum that it had.
    pub fn unlike(&self) -> &[Checksum] {
        &self.unlike
    }

    fn hear(&mut self, offset: u64, len: u64, add: impl Fn(u32, Range<u64>) -> u32) {
        let end = offset + len;
        while let Some(known) = self.checksums.get(self.next).copied().filter(|known| known.offset < end) {
            let from = known.offset.max(offset);
            let upto = known.end().min(end);
            if from < upto {
                self.heard = self.heard.filter(|heard| known.offset + heard == from);
                if let Some(heard) = &mut self.heard {
                    *heard += upto - from;
                    self.crc = add(self.crc, from - offset..upto - offset);
                }
            }
            if known.end() > end {
                break;
            }
            if self.heard == Some(known.len) && self.crc != known.crc {
                self.unlike.push(known);
            }
            self.next += 1;
            (self.heard, self.crc) = (Some(0), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensorfs_formats::crc32c;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// However the bytes come, just those ranges are unlike that have a byte which was changed, and were heard of
        /// as a whole.
        #[test]
        fn what_was_changed_is_unlike_and_nothing_else(
            records in prop::collection::vec((0..30_u64, 1..50_u64), 1..12),
            pieces in prop::collection::vec((1..60_u64, 0..8_u8), 1..40),
            changed in prop::collection::vec(0..600_usize, 0..4),
        ) {
            let mut bytes: Vec<u8> = (0..700_u64).map(|n| ((n * n) >> 3) as u8).collect();
            bytes[200..400].fill(0);
            let mut at = 0;
            let checksums: Vec<Checksum> = records.iter().map(|(gap, len)| {
                let offset = at + gap;
                at = offset + len;
                let crc = crc32c(&bytes[offset as usize..at as usize]);
                Checksum { offset, len: *len, crc }
            }).filter(|known| known.end() <= 600).collect();
            let whole = bytes.clone();
            for at in &changed {
                bytes[*at] ^= 1 << (at % 8);
            }
            let mut compared = Compared::new(checksums.clone());
            let (mut at, mut heard) = (0, vec![false; 700]);
            for (len, how) in pieces {
                let range = at as usize..(at + len).min(700) as usize;
                let piece = &bytes[range.clone()];
                match how {
                    0 => {}
                    1.. if piece.iter().all(|byte| *byte == 0) => {
                        compared.zeroes(at, piece.len() as u64);
                        heard[range].fill(true);
                    }
                    _ => {
                        compared.bytes(at, piece);
                        heard[range].fill(true);
                    }
                }
                at = (at + len).min(700);
            }
            let is_unlike = |known: &&Checksum| {
                let range = known.offset as usize..known.end() as usize;
                heard[range.clone()].iter().all(|heard| *heard) && bytes[range.clone()] != whole[range]
            };
            let expected: Vec<Checksum> = checksums.iter().filter(is_unlike).copied().collect();
            prop_assert_eq!(compared.unlike(), expected);
        }
    }
}

//! Bytes that can be worked out again from a seed and an offset.

use crate::random::Random;

/// An endless file: the byte at each offset follows from the seed.
///
/// No byte is zero, so that a hole never passes for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(pub u64);

impl Pattern {
    fn word(self, n: u64) -> [u8; 8] {
        (Random::at(self.0, n) | 0x0101_0101_0101_0101).to_le_bytes()
    }

    /// The bytes `[offset, offset + len)`.
    pub fn bytes(self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 16);
        let mut word = offset / 8;
        out.extend_from_slice(&self.word(word)[(offset % 8) as usize..]);
        while out.len() < len {
            word += 1;
            out.extend_from_slice(&self.word(word));
        }
        out.truncate(len);
        out
    }

    /// The first offset, counted from `offset`, at which `got` is not this pattern.
    pub fn mismatch(self, offset: u64, got: &[u8]) -> Option<u64> {
        let want = self.bytes(offset, got.len());
        want.iter().zip(got).position(|(w, g)| w != g).map(|at| offset + at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn any_part_is_part_of_the_whole() {
        let whole = Pattern(7).bytes(0, 1000);
        for (offset, len) in [(0, 1), (1, 7), (5, 300), (8, 8), (993, 7), (4, 0)] {
            assert_eq!(Pattern(7).bytes(offset, len), whole[offset as usize..offset as usize + len]);
        }
        assert!(!whole.contains(&0));
        assert_eq!(Pattern(7).mismatch(0, &whole), None);
        assert!(Pattern(8).mismatch(0, &whole).is_some());
    }
}

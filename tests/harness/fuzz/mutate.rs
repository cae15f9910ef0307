//! Mutants: bytes that are nearly right.

use crate::random::Random;

/// Makes mutants of seeds; the same ones for the same number.
pub struct Mutator(Random);

/// Numbers at which counting goes wrong.
const EDGES: [u64; 12] =
    [0, 1, 2, 7, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 0xffff_ffff_ffff_ffff];

impl Mutator {
    /// The mutator of this number.
    pub fn new(number: u64) -> Self {
        Self(Random::new(number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1)))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit.max(1) as u64) as usize
    }

    /// A part of `len` bytes, mostly a short one.
    fn part(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        let longest = if self.below(4) == 0 { len } else { 16 };
        start..(start + 1 + self.below(longest)).min(len)
    }

    /// Some of the bytes of one seed, changed in a few places, perhaps with parts of another one.
    pub fn mutant(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..1 + self.below(6) {
            if bytes.is_empty() {
                bytes.push(self.0.bits() as u8);
                continue;
            }
            let len = bytes.len();
            match self.below(10) {
                0 | 1 => {
                    let at = self.below(len);
                    bytes[at] ^= 1 << self.below(8);
                }
                2 => {
                    let at = self.below(len);
                    bytes[at] = self.0.bits() as u8;
                }
                3 | 4 => {
                    let edge = EDGES[self.below(EDGES.len())].wrapping_add(self.below(3) as u64).wrapping_sub(1);
                    let width = [1, 2, 4, 8][self.below(4)];
                    let at = self.below(len);
                    let end = (at + width).min(len);
                    bytes[at..end].copy_from_slice(&edge.to_le_bytes()[..end - at]);
                }
                5 => drop(bytes.drain(self.part(len))),
                6 => {
                    let part = bytes[self.part(len)].to_vec();
                    let at = self.below(len);
                    bytes.splice(at..at, part);
                }
                7 => {
                    let part = bytes[self.part(len)].to_vec();
                    let at = self.below(len - part.len() + 1);
                    bytes[at..at + part.len()].copy_from_slice(&part);
                }
                8 => {
                    let other = &seeds[self.below(seeds.len())];
                    if !other.is_empty() {
                        let part = other[self.part(other.len())].to_vec();
                        let at = self.below(len);
                        let end = if self.below(2) == 0 { at } else { (at + part.len()).min(len) };
                        bytes.splice(at..end, part);
                    }
                }
                _ => bytes.truncate(self.below(len)),
            }
        }
        bytes
    }
}

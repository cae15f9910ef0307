//! The bytes of writes.

use crate::random::Random;

/// Bytes that tell which write they are of, and where in it.
pub fn fill(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::of(&[seed]);
    // Never zero, so that they are not taken for a hole.
    (0..len).map(|_| (random.bits() >> 17) as u8 | 1).collect()
}

//! Random numbers that are the same everywhere, for ever: a seed that failed once must fail again.

/// A generator (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// One that depends on all of these.
    pub fn new(seeds: &[u64]) -> Random {
        let mut random = Random(0);
        for seed in seeds {
            random.0 = random.bits().wrapping_add(*seed);
        }
        random
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below another.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// One of several, each with a weight.
    pub fn weighted<'a, T>(&mut self, from: &'a [(u64, T)]) -> &'a T {
        let mut at = self.below(from.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in from {
            if at < *weight {
                return value;
            }
            at -= weight;
        }
        unreachable!("weights cover their sum")
    }
}

/// Bytes that tell which write they are of, and where in it.
pub fn fill(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(&[seed]);
    // Never zero, so that they are not taken for a hole.
    (0..len).map(|_| (random.bits() >> 17) as u8 | 1).collect()
}

//! Random numbers that are the same everywhere, for ever: a seed that failed once must fail again.

/// What SplitMix64 adds to its state for each number.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator: SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A sequence that depends on all of these seeds.
    pub fn of(seeds: &[u64]) -> Random {
        let mut random = Random(0);
        for seed in seeds {
            random.0 = random.bits().wrapping_add(*seed);
        }
        random
    }

    /// The number with this index in the sequence of a seed.
    pub fn at(seed: u64, index: u64) -> u64 {
        Random(seed.wrapping_add(index.wrapping_mul(STEP))).bits()
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
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

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_number_is_found_by_its_index() {
        let mut random = Random::new(7);
        assert!((0..10).all(|index| random.bits() == Random::at(7, index)));
    }

    #[test]
    fn sequences_are_those_of_always() {
        assert_eq!(Random::new(0).bits(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(Random::of(&[0, 0]).bits(), Random::new(Random::new(Random::new(0).bits()).bits()).bits());
    }
}

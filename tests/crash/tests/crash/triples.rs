//! Triples of operations, and longer sequences: a seeded sample.

use tensorfs_crash::case::Case;
use tensorfs_crash::disk::Kind;
use tensorfs_crash::random::Random;

use crate::campaign::{USUAL, run, seed, sequence};

fn sample(count: usize, len: impl Fn(&mut Random) -> usize) -> Vec<Case> {
    let mut random = Random::new(seed());
    let kinds = [Kind::Cached, Kind::Dax];
    (0..count)
        .map(|n| {
            let len = len(&mut random);
            sequence(&mut random, kinds[n % 2], len)
        })
        .collect()
}

#[test]
fn sampled_triples() {
    run("sampled triples", sample(100, |_| 3), USUAL);
}

#[test]
fn sampled_longer_sequences() {
    run("sampled sequences of 8 to 40", sample(12, |random| 8 + random.below(33)), USUAL);
}

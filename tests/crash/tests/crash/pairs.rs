//! Ordered pairs of operations: each on one of the media in turn. A campaign tries all of them, each on all.

use tensorfs_crash::case::{Base, OPERATIONS};

use crate::campaign::{MOUNTS, USUAL, case, run, seed};

/// The suite tries one pair in so many: which, the seed says.
const SHARE: usize = 6;

#[test]
fn a_share_of_the_ordered_pairs() {
    let mut cases = Vec::new();
    for (i, (first, _)) in OPERATIONS.iter().enumerate() {
        for (j, (second, _)) in OPERATIONS.iter().enumerate() {
            if (i + 2 * j + seed() as usize).is_multiple_of(SHARE) {
                let (kind, close_commits) = MOUNTS[(i + j) % 2];
                cases.push(case(kind, close_commits, Base::Tree, vec![*first, *second]));
            }
        }
    }
    run("a share of the ordered pairs", cases, USUAL);
}

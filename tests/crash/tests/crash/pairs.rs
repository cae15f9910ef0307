//! Every ordered pair of operations: each on one of the media in turn. A campaign tries each on all.

use tensorfs_crash::case::{Base, OPERATIONS};

use crate::campaign::{MOUNTS, USUAL, case, run};

#[test]
fn every_ordered_pair() {
    let mut cases = Vec::new();
    for (i, (first, _)) in OPERATIONS.iter().enumerate() {
        for (j, (second, _)) in OPERATIONS.iter().enumerate() {
            let (kind, close_commits) = MOUNTS[(i + j) % 2];
            cases.push(case(kind, close_commits, Base::Tree, vec![*first, *second]));
        }
    }
    run("every ordered pair", cases, USUAL);
}

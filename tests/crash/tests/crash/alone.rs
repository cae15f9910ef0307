//! Every operation alone.

use tensorfs_crash::case::{Base, OPERATIONS};

use crate::campaign::{MOUNTS, USUAL, case, run};

#[test]
fn every_operation_alone() {
    let mut cases = Vec::new();
    for (kind, close_commits) in MOUNTS {
        for base in [Base::Tree, Base::Edge] {
            cases.extend(OPERATIONS.iter().map(|(name, _)| case(kind, close_commits, base, vec![*name])));
        }
    }
    run("every operation alone", cases, USUAL);
}

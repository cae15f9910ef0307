//! A sync fails once, and from then on the kernel says that all is well: of pages that never reached the medium.

use tensorfs_crash::case::{Base, Case, OPERATIONS};
use tensorfs_crash::disk::Kind;
use tensorfs_crash::explore::Effort;
use tensorfs_crash::medium::Failing;
use tensorfs_crash::random::Random;

use crate::campaign::{USUAL, run, seed};

fn cases(what: Failing) -> Vec<Case> {
    let mut random = Random::new(seed() + 1);
    let failing = (0..60).map(|n| {
        let mut operations: Vec<_> = (0..3).map(|_| OPERATIONS[random.below(OPERATIONS.len())].0).collect();
        // Something syncs for sure, before and behind it.
        operations.extend(["append-fsync", "sync", "overwrite-fsync", "sync"]);
        let kind = if what == Failing::Segment && n % 2 == 1 { Kind::Dax } else { Kind::Cached };
        let failing = Some((what, random.below(5)));
        Case { kind, close_commits: kind == Kind::Dax, base: Base::Tree, operations, failing }
    });
    failing.collect()
}

#[test]
fn a_sync_of_a_segment_fails_once() {
    run("a sync of a segment fails", cases(Failing::Segment), USUAL);
}

#[test]
fn a_sync_of_the_log_fails_once() {
    // What recovery then believes, the host may have in its memory alone.
    run("a sync of the log fails", cases(Failing::Log), Effort { recoveries: 40, ..USUAL });
}

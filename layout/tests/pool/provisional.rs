//! Provisional seals: stored while somebody can still write the file, and holding once they were compared.

use crate::common::*;
use tensorfs_layout::log::{Origin, Record, Seal};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::segment::SealedRun;
use tensorfs_layout::{Ino, SegmentId, Timestamp};

/// Offset, length and origin of each record, and whether it has a seal that holds, or one that is provisional.
type Links = Vec<(u64, u64, Option<(tensorfs_layout::TxId, Timestamp)>, bool, bool)>;

fn links(pool: &Pool, ino: Ino) -> Links {
    let view = pool.view();
    let runs = view.object(ino).unwrap().chain().unwrap().runs();
    let link = |run: &tensorfs_layout::tree::Run| {
        let (held, provisional) = (run.seal().is_some(), run.provisional_seal().is_some());
        (run.offset, run.len, run.origin.known(), held, provisional)
    };
    runs.iter().map(link).collect()
}

/// So many appends of so many bytes, each by a transaction of its own, all durable.
fn appended(pool: &Pool, count: u64, len: u64) -> (Ino, SegmentId) {
    let (ino, segment) = make_file(pool, "f", b"");
    write_unrecorded(pool, segment, &vec![7; (count * len) as usize]);
    for n in 0..count {
        let (offset, origin) = (n * len, Origin::at(Timestamp::new(1_700_000_000 + n as i64, 5)));
        store(pool, [Record::Data { ino, segment, offset, len, allocated: count * len, origin }]);
    }
    pool.commit(pool.newest()).unwrap();
    (ino, segment)
}

fn sealed(offset: u64, len: u64) -> SealedRun {
    let seal = Seal { crc: tensorfs_formats::crc32c(&vec![7; len as usize]), description: vec![1; 300].into() };
    SealedRun { offset, len, seal, origin: Origin::default() }
}

#[test]
fn what_is_behind_provisional_seals_stays_as_it_is_and_so_does_where_the_bytes_come_from() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = appended(&pool, 20, 1000);
    let before = links(&pool, ino);
    let (first, transaction) = (medium.history().len(), pool.newest());
    // The last one ends inside a record.
    let runs: Vec<SealedRun> = (0..12).map(|n| sealed(n * 1000, 1000)).chain([sealed(12_000, 300)]).collect();
    assert!(pool.seal_provisionally(ino, segment, runs).unwrap());
    assert!(pool.newest().0 > transaction.0 + 1, "in one transaction");
    let after = links(&pool, ino);
    assert_eq!(after.iter().map(|link| (link.0, link.2)).filter(|link| link.0 != 12_300).collect::<Vec<_>>(), {
        before.iter().map(|link| (link.0, link.2)).collect::<Vec<_>>()
    });
    assert_eq!((after[12].1, after[13].0, after[13].1, after[13].2), (300, 12_300, 700, before[12].2));
    let history = medium.history();
    drop(pool);
    let mut partly = 0;
    for count in first..=history.len() {
        let copy = scratch.copy();
        let (pool, _) = copy.open(history.killed(count), BOOT);
        let found = links(&pool, ino);
        let covered = found.iter().map(|link| link.1).sum::<u64>();
        assert_eq!(covered, 20_000);
        let seals = found.iter().take_while(|link| link.4).count();
        assert!(found[seals..].iter().all(|link| !link.4) && found.iter().all(|link| !link.3));
        assert!(
            found.iter().all(|link| link.0 == 12_300 || before.iter().any(|old| (old.0, old.2) == (link.0, link.2)))
        );
        partly += u32::from(seals > 0 && seals < 13);
    }
    assert!(partly > 0, "no image lies between two transactions");
}

/// Else somebody could open the file to write, and change bytes of a seal that holds without voiding it first: only
/// what is in front of the first one that does not hold is looked after.
#[test]
fn no_seal_ever_holds_behind_a_provisional_one() {
    let scratch = Scratch::new(8192);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = appended(&pool, 30, 1000);
    assert!(pool.seal_provisionally(ino, segment, (0..3).map(|n| sealed(n * 1000, 1000)).collect()).unwrap());
    let first = medium.history().len();
    assert!(pool.seal(ino, segment, 30_000, (3..30).map(|n| sealed(n * 1000, 1000)).collect()).unwrap());
    assert!(pool.view().object(ino).unwrap().chain().unwrap().is_sealed());
    let history = medium.history();
    drop(pool);
    let mut partly = 0;
    for count in first..=history.len() {
        let copy = scratch.copy();
        let (pool, _) = copy.open(history.killed(count), BOOT);
        let found = links(&pool, ino);
        let held = found.iter().take_while(|link| link.3).count();
        assert!(found[held..].iter().all(|link| !link.3), "{found:?}");
        partly += u32::from(held > 0 && held < found.len());
    }
    assert!(partly > 0, "no image lies between two transactions");
}

#[test]
fn seals_hold_when_somebody_says_so_of_the_file_as_it_was() {
    let scratch = Scratch::new(8192);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = appended(&pool, 3, 1000);
    assert!(pool.seal_provisionally(ino, segment, (0..3).map(|n| sealed(n * 1000, 1000)).collect()).unwrap());
    let is_sealed = |pool: &Pool| pool.view().object(ino).unwrap().chain().unwrap().is_sealed();
    assert!(!pool.let_seals_hold(ino, segment, 2999).unwrap() && !is_sealed(&pool));
    assert!(!pool.let_seals_hold(ino, SegmentId(segment.0 + 1), 3000).unwrap() && !is_sealed(&pool));
    assert!(pool.let_seals_hold(ino, segment, 3000).unwrap() && is_sealed(&pool));
    let stored = medium.stored();
    drop(pool);
    let (pool, _) = scratch.open(stored, BOOT);
    assert!(is_sealed(&pool));
}

/// Bytes of theirs may have been changed on the disk since: a new seal would say that they are as they were written.
#[test]
fn seals_that_hold_are_not_made_anew_in_part() {
    let scratch = Scratch::new(8192);
    let (pool, _) = scratch.first_open();
    let (ino, segment) = appended(&pool, 4, 1000);
    assert!(pool.seal_provisionally(ino, segment, (0..3).map(|n| sealed(n * 1000, 1000)).collect()).unwrap());
    assert!(pool.let_seals_hold(ino, segment, 4000).unwrap());
    let before = links(&pool, ino);
    assert!(before[..3].iter().all(|link| link.3), "{before:?}");
    for (offset, len) in [(0, 500), (1500, 1000), (2500, 500)] {
        assert!(!pool.seal_provisionally(ino, segment, vec![sealed(offset, len)]).unwrap(), "{offset}");
        assert_eq!(links(&pool, ino), before);
    }
    assert!(pool.seal_provisionally(ino, segment, vec![sealed(3000, 500)]).unwrap());
    assert_eq!(links(&pool, ino)[..3], before[..3]);
}

#[test]
fn a_file_that_was_cut_or_has_too_many_records_gets_no_provisional_seals() {
    let scratch = Scratch::new(8192);
    let (pool, _) = scratch.first_open();
    let (ino, segment) = appended(&pool, 200, 100);
    let before = links(&pool, ino);
    assert!(!pool.seal_provisionally(ino, segment, vec![sealed(0, 100)]).unwrap(), "200 records in a frame");
    assert!(!pool.seal_provisionally(ino, segment, vec![sealed(19_900, 200)]).unwrap(), "more than there is");
    assert!(!pool.seal_provisionally(ino, segment, vec![sealed(19_900, 100)]).unwrap(), "not what comes next");
    assert_eq!(links(&pool, ino), before);
}

//! Faults that a review found, each with the test that showed it, and crashes at every store of the log's housekeeping.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;

use common::*;
use tensorfs_layout::check::inspect;
use tensorfs_layout::log::{Attributes, PoolState, Record, Shutdown, Transaction};
use tensorfs_layout::pool::{CreateOptions, LIMIT_MIN, OpenOptions, Pool};
use tensorfs_layout::{Error, Ino, ROOT, SegmentId};

const DIR: u32 = libc::S_IFDIR | 0o755;
const THIRD_BOOT: [u8; 16] = [3; 16];

/// Choices of a power loss: a sequence that looks random and is the same in every run.
fn chance(seed: u64) -> impl FnMut() -> bool {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state & 1 == 0
    }
}

fn set_uid(pool: &Pool, ino: Ino, uid: u32) {
    let attributes = Attributes { uid, ..pool.view().object(ino).unwrap().attributes.clone() };
    store(pool, [Record::Attributes { ino, attributes }]);
}

fn xattr(ino: Ino, n: usize, len: usize) -> Record {
    Record::Xattr { ino, name: format!("user.{n}").into_bytes().into(), value: vec![7; len].into() }
}

fn no_xattr(ino: Ino, n: usize) -> Record {
    Record::XattrRemoval { ino, name: format!("user.{n}").into_bytes().into() }
}

fn store_from_reserve(pool: &Pool, record: Record) -> tensorfs_layout::Result<()> {
    pool.edit().store_from_reserve(Transaction::new(0).with(record)).map(drop)
}

/// A pool whose log has several blocks, most of them half dead, and what it holds.
fn churned(scratch: &Scratch) -> (Pool, std::sync::Arc<SimMedium>, BTreeMap<String, String>) {
    let (pool, medium) = scratch.first_open();
    let mut live = Vec::new();
    for n in 0..24 {
        live.push(make(&pool, &format!("live {n}"), DIR));
        make(&pool, &format!("gone {n}"), DIR);
    }
    for n in 0..24 {
        let name = format!("gone {n}");
        let ino = pool.view().lookup(ROOT, name.as_bytes()).unwrap();
        let mut edit = pool.edit();
        edit.store(Transaction::new(0).with(removal(ROOT, &name))).unwrap();
        edit.reap(ino);
    }
    for round in 0..140u32 {
        set_uid(&pool, live[round as usize % live.len()], round);
    }
    pool.commit(pool.newest()).unwrap();
    let expected = tree(&pool.view());
    (pool, medium, expected)
}

fn assert_whole(
    scratch: &Scratch,
    image: Vec<u8>,
    boot: [u8; 16],
    expected: &BTreeMap<String, String>,
    what: &str,
) -> History {
    let (pool, medium) = scratch.open(image, boot);
    assert_eq!(pool.is_read_only(), None, "{what}");
    assert_eq!(tree(&pool.view()), *expected, "{what}");
    medium.history()
}

/// Every crash of a history, and crashes of the recoveries behind them, leave the same tree.
fn assert_survives_every_crash(scratch: &Scratch, history: &History, from: usize, expected: &BTreeMap<String, String>) {
    for at in from..=history.len() {
        let seed = at as u64 + 1;
        let images = [
            ("killed", history.killed(at), BOOT),
            ("nothing reached", history.power_lost(at, || false), NEXT_BOOT),
            ("all reached", history.power_lost(at, || true), NEXT_BOOT),
            ("some reached", history.power_lost(at, chance(seed)), NEXT_BOOT),
            ("others reached", history.power_lost(at, chance(seed + 1000)), NEXT_BOOT),
        ];
        for (what, image, boot) in images {
            let what = format!("event {at}, {what}");
            let recovery = assert_whole(scratch, image, boot, expected, &what);
            // Power goes in the middle of that recovery.
            let steps = if boot == BOOT { 1 } else { 4 };
            for step in (0..=recovery.len()).skip(at % steps).step_by(steps) {
                let image = recovery.power_lost(step, chance(seed * 31 + step as u64));
                assert_whole(scratch, image, THIRD_BOOT, expected, &format!("{what}, recovery event {step}"));
            }
        }
    }
}

#[test]
fn a_crash_at_any_store_of_cleaning_or_of_the_recovery_behind_it_loses_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    let from = medium.history().len();
    for _ in 0..3 {
        pool.maintain().unwrap();
    }
    drop(pool);
    let history = medium.history();
    assert!(history.len() > from + 10, "nothing was cleaned");
    assert_survives_every_crash(&scratch, &history, from, &expected);
}

#[test]
fn a_crash_at_any_store_of_growth_idling_or_closing_loses_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    for n in 0..20 {
        make(&pool, &format!("dir {n}"), DIR);
    }
    let blocks = pool.usage().log_blocks;
    pool.commit(pool.newest()).unwrap();
    let expected = tree(&pool.view());
    let from = medium.history().len();
    // Transactions that change nothing that is seen, until the log has grown.
    while pool.usage().log_blocks == blocks {
        set_uid(&pool, ROOT, 0);
    }
    pool.idle().unwrap();
    pool.close().unwrap();
    drop(pool);
    assert_survives_every_crash(&scratch, &medium.history(), from, &expected);
}

#[test]
fn a_crash_at_any_store_of_opening_a_pool_loses_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    pool.close().unwrap();
    drop(pool);
    let (pool, medium) = scratch.open(medium.stored(), BOOT);
    assert_eq!(pool.recovery().kind, Shutdown::Clean);
    drop(pool);
    assert_survives_every_crash(&scratch, &medium.history(), 0, &expected);
}

#[test]
fn a_torn_superblock_leaves_the_other_copy() {
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    pool.close().unwrap();
    drop(pool);
    for offset in [0, 1 << 20] {
        for bit in (0..512 * 8).step_by(37) {
            let mut image = medium.stored();
            image[offset + bit / 8] ^= 1 << (bit % 8);
            assert_whole(&scratch, image, NEXT_BOOT, &expected, &format!("bit {bit} of the copy at {offset}"));
        }
    }
}

#[test]
fn a_shorter_log_is_refused_and_a_longer_one_is_an_interrupted_growth() {
    let scratch = Scratch::new(4096);
    let (pool, medium, expected) = churned(&scratch);
    drop(pool);
    let image = medium.stored();
    for len in [0, 1, 511, 512, 4096, 1 << 20, (1 << 20) + 512, 2 << 20, image.len() - 4096, image.len() - 1] {
        let (opened, medium) = scratch.try_open(image[..len].to_vec(), BOOT);
        assert!(matches!(opened.unwrap_err(), Error::NotAPool { .. }), "{len} bytes");
        assert_eq!(medium.stored(), image[..len]);
    }
    let mut longer = image;
    longer.extend_from_slice(&[0x5a; 10_000]);
    let (pool, medium) = scratch.open(longer, BOOT);
    let blocks = pool.usage().log_blocks;
    while pool.usage().log_blocks == blocks {
        set_uid(&pool, ROOT, 0);
    }
    for _ in 0..100 {
        set_uid(&pool, ROOT, 0);
    }
    drop(pool);
    assert_whole(&scratch, medium.stored(), BOOT, &expected, "grown over what was left behind the end");
}

#[test]
fn a_failed_persist_of_a_zeroed_block_makes_the_pool_read_only() {
    let scratch = Scratch::new(4096);
    let (pool, medium, _) = churned(&scratch);
    medium.fail_next_persist_behind(4096);
    assert!(matches!(pool.maintain(), Err(Error::ReadOnly { .. })));
    assert!(pool.is_read_only().is_some());
    assert!(try_store(&pool, [removal(ROOT, "live 1")]).is_err());
}

#[test]
fn a_damaged_pool_is_left_alone_by_housekeeping() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    // Nothing is worth cleaning, so that housekeeping would have the log grow.
    let mut n = 0;
    while n < 20 || pool.usage().free_blocks > 2 {
        make(&pool, &format!("{n:0200}"), DIR);
        n += 1;
    }
    make(&pool, "live 7", DIR);
    make(&pool, "behind it", DIR);
    let dirty = medium.stored();
    pool.close().unwrap();
    drop(pool);
    for (mut image, boot) in [(dirty, BOOT), (medium.stored(), BOOT)] {
        let at = image.windows(6).position(|bytes| bytes == b"live 7").unwrap();
        image[at] ^= 1;
        let (pool, medium) = scratch.open(image.clone(), boot);
        assert!(pool.is_read_only().is_some());
        for result in [pool.maintain(), pool.idle(), pool.close(), pool.reclaim().map(drop)] {
            let _ = result;
        }
        let _ = pool.commit(pool.newest());
        assert!(medium.stored() == image, "a damaged log was written to");
    }
}

#[test]
fn a_closed_pool_is_left_alone_and_may_be_closed_again() {
    let scratch = Scratch::new(4096);
    let (pool, medium, _) = churned(&scratch);
    while pool.usage().free_blocks > 2 {
        set_uid(&pool, ROOT, 0);
    }
    pool.close().unwrap();
    let image = medium.stored();
    pool.close().expect("closing may be repeated");
    for result in [pool.maintain(), pool.idle(), pool.reclaim().map(drop)] {
        let _ = result;
    }
    assert!(medium.stored() == image, "a closed log was written to");
}

#[test]
fn whatever_is_stored_while_the_pool_is_closed_is_refused_or_durable() {
    for round in 0..30 {
        let scratch = Scratch::new(4096);
        let (pool, medium) = scratch.first_open();
        let stored = std::thread::scope(|scope| {
            let storer = scope.spawn(|| {
                let mut stored = 0;
                for n in 0.. {
                    let ino = Ino(pool.edit().next_id());
                    let new = Record::Attributes { ino, attributes: attributes(DIR) };
                    if try_store(&pool, [new, named(ROOT, &format!("{n}"), ino)]).is_err() {
                        break;
                    }
                    stored += 1;
                }
                stored
            });
            std::thread::sleep(std::time::Duration::from_micros(100 * round));
            pool.close().unwrap();
            storer.join().unwrap()
        });
        drop(pool);
        let (pool, _) = scratch.open(medium.after_power_loss(|| false), NEXT_BOOT);
        assert_eq!(pool.is_read_only(), None);
        assert_eq!(tree(&pool.view()).len(), stored + 1, "a clean pool holds all that was answered");
    }
}

#[test]
fn closing_syncs_what_was_changed_in_place() {
    for ended in [true, false] {
        let scratch = Scratch::new(1 << 20);
        let (pool, medium) = scratch.first_open();
        let (_, segment) = make_file(&pool, "f", b"bytes");
        pool.commit(pool.newest()).unwrap();
        pool.segments().begin_write(segment).unwrap();
        let file = fs::File::from(pool.segments().open(segment, libc::O_RDWR).unwrap());
        file.write_all_at(b"BYTES", 0).unwrap();
        if ended {
            pool.segments().end_write(segment);
        }
        let syncs = medium.segment_syncs();
        pool.close().unwrap();
        assert_eq!(medium.segment_syncs(), syncs + 1, "no record speaks of these bytes, but a clean pool is durable");
    }
}

#[test]
fn the_reserve_that_a_deletion_opened_is_not_given_away() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let ino = make(&pool, "f", DIR);
    medium.set_host_full(true);
    let mut stored = 0;
    while try_store(&pool, [xattr(ino, stored, 100)]).is_ok() {
        stored += 1;
    }
    // Deletion goes on into the reserve.
    let mut removed = 0;
    while pool.usage().free_blocks == 2 {
        store_from_reserve(&pool, no_xattr(ino, removed)).unwrap();
        removed += 1;
    }
    let refused = try_store(&pool, [xattr(ino, 0, 100)]).unwrap_err();
    assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
    store_from_reserve(&pool, no_xattr(ino, removed)).unwrap();
}

#[test]
fn a_full_log_can_always_be_cleaned_and_committed() {
    for seed in 0..12u64 {
        let scratch = Scratch::new(4096);
        let (pool, medium) = scratch.first_open();
        let ino = make(&pool, "f", DIR);
        for n in 0..(seed as usize * 20) {
            store(&pool, [xattr(ino, 10_000 + n, 60)]);
        }
        while pool.usage().log_blocks < 16 {
            set_uid(&pool, ROOT, 0);
        }
        medium.set_host_full(true);
        let (mut next, mut live) = (0, std::collections::VecDeque::new());
        let mut random = chance(seed + 7);
        for round in 0..400 {
            // Fills the log to the brim, takes some away again, in small and in large records.
            let len = if random() { 40 } else { 700 };
            for _ in 0..20 {
                if try_store(&pool, [xattr(ino, next, len)]).is_err() {
                    break;
                }
                live.push_back(next);
                next += 1;
            }
            if random() {
                pool.commit(pool.newest()).expect("what is stored can be committed");
            }
            let some = if random() { 3 } else { 12 };
            for _ in 0..some {
                let Some(n) = (if random() { live.pop_front() } else { live.pop_back() }) else { break };
                if store_from_reserve(&pool, no_xattr(ino, n)).is_ok() {
                    continue;
                }
                pool.reclaim().expect("a full log can be cleaned");
                store_from_reserve(&pool, no_xattr(ino, n)).unwrap_or_else(|error| {
                    panic!("seed {seed}, round {round}: {error} with {} live, {:?}", live.len(), pool.usage())
                });
            }
            if random() {
                pool.maintain().expect("housekeeping goes on");
            }
        }
        while let Some(n) = live.pop_front() {
            if store_from_reserve(&pool, no_xattr(ino, n)).is_err() {
                pool.reclaim().unwrap();
                store_from_reserve(&pool, no_xattr(ino, n)).expect("everything can be deleted");
            }
        }
        while pool.reclaim().unwrap() && pool.usage().free_blocks <= 2 {}
        store(&pool, [xattr(ino, 0, 700)]);
        let expected = tree(&pool.view());
        drop(pool);
        assert_whole(&scratch, medium.stored(), BOOT, &expected, "full");
    }
}

#[test]
fn a_pool_without_room_recovers() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let files: Vec<_> = (0..200).map(|n| make_file(&pool, &format!("f{n}"), b"bytes")).collect();
    pool.commit(pool.newest()).unwrap();
    let ino = files[0].0;
    medium.set_host_full(true);
    let mut n = 0;
    // Full of records that are dead, to the last block that deletion may use.
    while store_from_reserve(&pool, xattr(ino, 0, 30)).is_ok() {
        n += 1;
    }
    assert!(n > 0);
    // The server is killed before it learns of these.
    for (_, segment) in &files {
        write_unrecorded(&pool, *segment, b"more");
    }
    let image = medium.stored();
    drop(pool);
    let medium = SimMedium::new(image);
    medium.set_host_full(true);
    let options = OpenOptions { boot_id: Some(BOOT), ..OpenOptions::default() };
    let pool = Pool::open_with_medium(&scratch.pool(), &options, medium).unwrap();
    assert_eq!(pool.recovery().learned_files, 200);
    assert!(files.iter().all(|(ino, _)| pool.view().object(*ino).unwrap().size() == 9));
}

#[test]
fn a_failed_sync_of_bytes_changed_in_place_marks_the_file() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    // No record speaks of the segment since it was synced.
    pool.segments().begin_write(segment).unwrap();
    pool.segments().end_write(segment);
    make(&pool, "other", DIR);
    medium.fail_next_segment_sync();
    pool.commit(pool.newest()).unwrap();
    assert!(pool.view().object(ino).unwrap().attributes.damaged);
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    assert!(again.view().object(ino).unwrap().attributes.damaged);
}

#[test]
fn a_failed_sync_of_a_replacement_marks_the_file_it_becomes() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, _) = make_file(&pool, "f", b"old");
    pool.commit(pool.newest()).unwrap();
    let segment = SegmentId(pool.edit().next_id());
    pool.segments().create(segment).unwrap();
    store(&pool, [Record::Replace { ino, segment }]);
    write_unrecorded(&pool, segment, b"new");
    medium.fail_next_segment_sync();
    pool.commit(pool.newest()).unwrap();
    assert!(!pool.view().object(ino).unwrap().attributes.damaged, "the old version is as it was");
    let attributes = Attributes { segment: Some(segment), ..pool.view().object(ino).unwrap().attributes.clone() };
    let data = Record::Data { ino, segment, offset: 0, len: 3, allocated: 4096 };
    store(&pool, [Record::Attributes { ino, attributes }, data]);
    pool.commit(pool.newest()).unwrap();
    assert!(pool.view().object(ino).unwrap().attributes.damaged, "the second sync says nothing about the first one");
}

#[test]
fn a_failed_sync_is_not_forgotten_for_want_of_room() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (file, segment) = make_file(&pool, "f", b"bytes");
    let ino = make(&pool, "d", DIR);
    pool.commit(pool.newest()).unwrap();
    medium.set_host_full(true);
    while store_from_reserve(&pool, xattr(ino, 0, 20)).is_ok() {}
    pool.segments().touch(segment).unwrap();
    medium.fail_next_segment_sync();
    let _ = pool.commit(pool.newest());
    let damaged = || pool.view().object(file).unwrap().attributes.damaged;
    assert!(pool.commit(pool.newest()).is_err() || damaged(), "the horizon passed without the word");
    pool.reclaim().unwrap();
    pool.commit(pool.newest()).unwrap();
    assert!(damaged());
}

#[test]
fn after_a_failed_sync_of_the_host_every_segment_is_asked_itself() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let many = |from: usize| {
        for n in from..from + 150 {
            make_file(&pool, &format!("f{n}"), b"bytes");
        }
    };
    many(0);
    medium.fail_next_sync_all();
    pool.commit(pool.newest()).unwrap();
    many(1000);
    medium.take_calls();
    pool.commit(pool.newest()).unwrap();
    // The host reports a failure once. It may have been that of a segment which is only due now.
    let syncs = medium.take_calls().iter().filter(|call| **call == Call::SyncSegment).count();
    assert_eq!(syncs, 150);
}

#[test]
fn a_record_of_a_segment_that_cannot_be_synced_is_refused() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    fs::remove_file(pool.segments().path_of(segment)).unwrap();
    let newest = pool.newest();
    let data = Record::Data { ino, segment, offset: 0, len: 9, allocated: 4096 };
    assert!(try_store(&pool, [data]).is_err(), "nobody could make its bytes durable");
    assert_eq!(pool.newest(), newest);
}

#[test]
fn a_truncation_is_durable_before_recovery_does_it() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"0123456789");
    pool.commit(pool.newest()).unwrap();
    store(&pool, [Record::Truncation { ino, segment, offset: 0, len: 4, allocated: 4096, cut_from: 10 }]);
    let image = medium.stored();
    drop(pool);
    // The server was killed before it committed that; its successor's log cannot be persisted, and power is lost.
    let medium = SimMedium::new(image);
    medium.fail_next_persist();
    let options = OpenOptions { boot_id: Some(BOOT), ..OpenOptions::default() };
    assert!(Pool::open_with_medium(&scratch.pool(), &options, medium.clone()).is_err());
    // The record did not reach the medium: the file is as it was.
    let sectors = medium.stored();
    let mut durable = sectors.clone();
    let at = durable.windows(8).rposition(|bytes| bytes == 10u64.to_le_bytes()).unwrap();
    let frame = (at - (2 << 20)) / 8 * 8 + (2 << 20);
    let start = durable[..frame].windows(4).rposition(|bytes| bytes == b"TFRM").unwrap();
    durable[start..].fill(0);
    let (pool, _) = scratch.open(durable, NEXT_BOOT);
    assert_eq!(pool.is_read_only(), None);
    let object_size = pool.view().object(ino).unwrap().size();
    assert_eq!(object_size, 10);
    assert!(!pool.view().object(ino).unwrap().attributes.damaged);
    assert_eq!(read_segment(&pool, segment), b"0123456789");
}

/// Changes both superblocks of an image.
fn patch_superblocks(image: &mut [u8], patch: impl Fn(&mut [u8])) {
    for offset in [0, 1 << 20] {
        let copy = &mut image[offset..offset + 512];
        patch(copy);
        let crc = crc32c::crc32c(&copy[..508]);
        copy[508..].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn features_that_forbid_writing_are_heeded_by_recovery_too() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make(&pool, "a", DIR);
    pool.commit(pool.newest()).unwrap();
    make(&pool, "b", DIR);
    let mut image = medium.after_power_loss(|| true);
    drop(pool);
    patch_superblocks(&mut image, |copy| copy[24] = 1);
    for boot in [BOOT, NEXT_BOOT] {
        let (pool, medium) = scratch.open(image.clone(), boot);
        assert!(pool.is_read_only().is_some());
        assert!(medium.stored() == image, "the log was written to");
    }
}

#[test]
fn a_superblock_from_anybody_costs_no_more_memory_than_a_pool_has() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    pool.close().unwrap();
    drop(pool);
    // The number of blocks, their size, the sequence, and the count of unsafe shutdowns, which is only a count.
    let gibibyte = (1u32 << 30).to_le_bytes();
    for (at, value) in [(164, &[0xff; 4][..]), (160, &gibibyte), (40, &[0xff; 8]), (176, &[0xff; 8])] {
        let mut image = medium.stored();
        patch_superblocks(&mut image, |copy| copy[at..at + value.len()].copy_from_slice(value));
        let (opened, _) = scratch.try_open(image, NEXT_BOOT);
        assert_eq!(opened.is_ok(), at == 176, "field at {at}");
    }
    let mut image = medium.stored();
    patch_superblocks(&mut image, |copy| {
        copy[8] = 2;
        copy[160..168].fill(0xff);
    });
    let (opened, _) = scratch.try_open(image, NEXT_BOOT);
    assert!(matches!(opened.unwrap_err(), Error::Unsupported { .. }), "a later version may count in its own way");
}

#[test]
fn a_removed_directory_does_not_become_a_parent_again() {
    for round in 0..8 {
        let scratch = Scratch::new(4096);
        let (pool, medium) = scratch.first_open();
        let old = make(&pool, "old", DIR);
        let sub = Ino(pool.edit().next_id());
        store(&pool, [Record::Attributes { ino: sub, attributes: attributes(DIR) }, named(old, "sub", sub)]);
        // Long-lived company, so that this block is not the one to be cleaned.
        let mut n = 0;
        while pool.usage().free_blocks == 3 {
            make(&pool, &format!("{n:0200}"), DIR);
            n += 1;
        }
        store(&pool, [removal(old, "sub"), named(ROOT, "sub", sub)]);
        let mut edit = pool.edit();
        edit.store(Transaction::new(0).with(removal(ROOT, "old"))).unwrap();
        edit.reap(old);
        drop(edit);
        // The log cannot grow, so that the block with the removal is what there is to clean.
        medium.set_host_full(true);
        while store_from_reserve(&pool, xattr(sub, 0, 30 + round)).is_ok() {}
        let expected = tree(&pool.view());
        let from = medium.history().len();
        pool.reclaim().unwrap();
        drop(pool);
        let history = medium.history();
        let images = (from..=history.len()).map(|at| history.killed(at));
        for image in images {
            let (pool, _) = scratch.open(image, BOOT);
            assert_eq!(pool.view().object(sub).unwrap().parent(), Some(ROOT));
            assert_eq!(tree(&pool.view()), expected);
        }
    }
}

/// Proves P3.
#[test]
fn a_record_that_could_not_be_read_back_is_refused() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    let link = make(&pool, "l", libc::S_IFLNK | 0o777);
    let long = |len: usize| -> Box<[u8]> { vec![b'n'; len].into() };
    let records = [
        named(ROOT, "", ino),
        named(ROOT, ".", ino),
        named(ROOT, "..", ino),
        named(ROOT, "a/b", ino),
        named(ROOT, "a\0b", ino),
        Record::Name { dir: ROOT, name: long(256), ino },
        Record::Removal { dir: ROOT, name: long(70_000) },
        Record::Target { ino: link, target: long(70_000) },
        Record::Xattr { ino, name: long(256), value: long(1) },
        Record::Xattr { ino, name: long(1), value: long(65_537) },
        Record::XattrRemoval { ino, name: long(0) },
        Record::Data { ino, segment, offset: u64::MAX, len: 2, allocated: 0 },
        Record::Truncation { ino, segment, offset: u64::MAX, len: 2, allocated: 0, cut_from: 0 },
    ];
    for record in records {
        let newest = pool.newest();
        // Also when it is not the first of its chain.
        let first = match record.ino() {
            ROOT => named(ROOT, "fine", ino),
            ino => Record::Xattr { ino, name: long(3), value: long(3) },
        };
        let short = format!("{record:?}").chars().take(60).collect::<String>();
        assert!(try_store(&pool, [record.clone()]).is_err(), "{short}");
        assert!(try_store(&pool, [first, record]).is_err(), "{short}");
        assert_eq!(pool.newest(), newest);
    }
    let expected = tree(&pool.view());
    drop(pool);
    assert_whole(&scratch, medium.stored(), BOOT, &expected, "after refusals");
}

#[test]
fn a_transaction_of_more_records_than_a_frame_counts_is_refused() {
    let scratch = Scratch::new(1 << 23);
    let (pool, _) = scratch.first_open();
    let (ino, _) = make_file(&pool, "f", b"bytes");
    let records = (0..70_000).map(|_| Record::XattrRemoval { ino, name: b"user.x".as_slice().into() });
    assert!(matches!(try_store(&pool, records), Err(Error::TooLarge { .. })));
}

#[test]
fn the_segment_of_a_file_that_was_open_and_nameless_at_close_is_removed() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (_, segment) = make_file(&pool, "f", b"bytes");
    let (_, stays) = make_file(&pool, "g", b"bytes");
    store(&pool, [removal(ROOT, "f")]);
    pool.close().unwrap();
    drop(pool);
    let (pool, _) = scratch.open(medium.stored(), BOOT);
    pool.unlink_covered();
    assert!(pool.segments().stat(segment).is_err(), "nothing would ever remove it");
    assert!(pool.segments().stat(stays).is_ok());
}

#[test]
fn a_replacement_that_was_given_up_is_removed() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    let (ino, old) = make_file(&pool, "f", b"old");
    let segments: Vec<SegmentId> = (0..3).map(|_| SegmentId(pool.edit().next_id())).collect();
    for segment in &segments {
        pool.segments().create(*segment).unwrap();
    }
    // One replacement gives way to another, and that one to a third segment.
    store(&pool, [Record::Replace { ino, segment: segments[0] }]);
    store(&pool, [Record::Replace { ino, segment: segments[1] }]);
    let attributes = Attributes { segment: Some(segments[2]), ..pool.view().object(ino).unwrap().attributes.clone() };
    store(&pool, [Record::Attributes { ino, attributes }]);
    pool.commit(pool.newest()).unwrap();
    assert_eq!(pool.unlink_covered(), 3);
    assert!([old, segments[0], segments[1]].iter().all(|gone| pool.segments().stat(*gone).is_err()));
    assert!(pool.segments().stat(segments[2]).is_ok());
}

#[test]
fn foreign_names_among_the_segments_do_not_stop_recovery() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    let expected = tree(&pool.view());
    drop(pool);
    let segments = scratch.pool().join("segments");
    for name in ["+f", "3F", "0", "lost+found"] {
        fs::create_dir(segments.join(name)).unwrap();
    }
    fs::write(segments.join("a0"), b"not a directory").unwrap();
    fs::create_dir(segments.join("ff")).unwrap();
    fs::write(segments.join("ff/ffffffffffffffff"), b"").unwrap();
    for boot in [BOOT, NEXT_BOOT] {
        let (pool, _) = scratch.open(medium.stored(), boot);
        assert_eq!(tree(&pool.view()), expected);
        assert!(pool.edit().next_id() < 1 << 32, "no file name uses up the numbers");
    }
    assert!(segments.join("ff/ffffffffffffffff").exists(), "what is no segment is left alone");
}

#[test]
fn a_boot_that_is_not_known_is_never_the_same_boot() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.open(scratch.log(), [0; 16]);
    make(&pool, "durable", DIR);
    pool.commit(pool.newest()).unwrap();
    make(&pool, "not durable", DIR);
    let image = medium.stored();
    drop(pool);
    let (pool, _) = scratch.open(image, [0; 16]);
    assert_eq!(pool.recovery().kind, Shutdown::PowerLoss);
}

#[test]
fn the_number_of_a_lost_segment_stays_taken_if_the_server_is_killed_next() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"one");
    pool.commit(pool.newest()).unwrap();
    let (_, lost) = make_file(&pool, "g", b"two");
    let image = medium.after_power_loss(|| true);
    drop(pool);
    let (pool, medium) = scratch.open(image, NEXT_BOOT);
    drop(pool);
    for (image, boot) in [(medium.stored(), NEXT_BOOT), (medium.after_power_loss(|| false), THIRD_BOOT)] {
        let (pool, _) = scratch.open(image, boot);
        assert!(pool.edit().next_id() > lost.0);
    }
}

#[test]
fn recovery_done_twice_sets_nothing_aside_twice() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"one");
    pool.commit(pool.newest()).unwrap();
    make_file(&pool, "g", b"two");
    let image = medium.after_power_loss(|| true);
    drop(pool);
    for count in 0..8 {
        let scratch = scratch.copy();
        // Recovery gets as far as its persist of that number.
        let medium = SimMedium::new(image.clone());
        medium.fail_persist_number(count);
        let options = OpenOptions { boot_id: Some(NEXT_BOOT), ..OpenOptions::default() };
        let interrupted = Pool::open_with_medium(&scratch.pool(), &options, medium.clone());
        assert!(interrupted.is_err() || medium.persists() <= count);
        drop(interrupted);
        let (pool, _) = scratch.open(image.clone(), NEXT_BOOT);
        assert_eq!(pool.quarantine().list().unwrap().len(), 1, "persist {count}");
    }
}

/// Every file below a directory with its bytes and its time of change.
fn files(dir: &std::path::Path) -> BTreeMap<std::path::PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let modified = fs::metadata(&path).unwrap().modified().unwrap();
            found.insert(path.clone(), (fs::read(&path).unwrap(), modified));
        }
    }
    found
}

#[test]
fn inspecting_a_pool_after_a_power_loss_sees_no_damage_and_changes_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    for n in 0..60 {
        make(&pool, &format!("{n}"), DIR);
    }
    // A hole behind the horizon, as an unfinished flush leaves it.
    let mut turn = 0;
    let image = medium.after_power_loss(|| {
        turn += 1;
        turn % 7 != 3
    });
    drop(pool);
    fs::write(scratch.pool().join("log"), image).unwrap();
    let before = files(&scratch.pool());
    let inspection = inspect(&scratch.pool()).unwrap();
    assert_eq!(inspection.state, PoolState::Dirty);
    assert_eq!(inspection.damage, None, "a mount would find none");
    assert_eq!(files(&scratch.pool()), before);
}

#[test]
fn the_log_never_grows_past_the_limit() {
    let scratch = Scratch::with(CreateOptions { block_size: 1 << 20, limit: Some(LIMIT_MIN), ..Default::default() });
    let (pool, _) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    let data = Record::Data { ino, segment, offset: 0, len: 5, allocated: u64::MAX };
    store(&pool, [data]);
    let mut n = 0;
    while try_store(&pool, [xattr(ino, n, 60_000)]).is_ok() {
        n += 1;
    }
    assert!(pool.usage().log_bytes <= LIMIT_MIN);
}

/// A pool whose server was killed while a file was being replaced.
fn replacing(scratch: &Scratch) -> (Vec<u8>, SegmentId) {
    let (pool, medium) = scratch.first_open();
    let (ino, old) = make_file(&pool, "f", b"old");
    pool.commit(pool.newest()).unwrap();
    let segment = SegmentId(pool.edit().next_id());
    pool.segments().create(segment).unwrap();
    store(&pool, [Record::Replace { ino, segment }]);
    write_unrecorded(&pool, segment, b"new");
    (medium.stored(), old)
}

#[test]
fn a_quarantine_entry_has_its_note_before_it_has_its_name() {
    let scratch = Scratch::new(1 << 20);
    let (image, old) = replacing(&scratch);
    // The note cannot be written.
    let entry = scratch.pool().join("quarantine").join(old.to_string());
    let note = entry.with_extension("json");
    fs::create_dir(&note).unwrap();
    drop(scratch.try_open(image.clone(), BOOT));
    assert!(!entry.exists(), "nobody could tell whose bytes these are");
    fs::remove_dir(&note).unwrap();
    let (pool, _) = scratch.open(image, BOOT);
    assert!(pool.quarantine().list().unwrap().iter().all(|entry| entry.note.is_some()));
}

#[test]
fn a_copy_into_quarantine_that_was_interrupted_is_no_entry_and_hurts_none() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (_, segment) = make_file(&pool, "f", b"recorded");
    pool.commit(pool.newest()).unwrap();
    write_unrecorded(&pool, segment, b" tail");
    let image = medium.after_power_loss(|| true);
    drop(pool);
    // An earlier copy got as far as its name, and its first name is still there.
    let quarantine = scratch.pool().join("quarantine");
    fs::write(quarantine.join(".partial"), b"another file's tail").unwrap();
    fs::hard_link(quarantine.join(".partial"), quarantine.join("00000000000000aa")).unwrap();
    let (pool, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(fs::read(quarantine.join("00000000000000aa")).unwrap(), b"another file's tail");
    assert_eq!(fs::read(quarantine.join(segment.to_string())).unwrap(), b" tail");
    assert_eq!(pool.quarantine().list().unwrap().len(), 2);
    assert!(!quarantine.join(".partial").exists());
}

#[test]
fn an_entry_whose_note_is_gone_does_not_stop_recovery() {
    let scratch = Scratch::new(1 << 20);
    let (image, old) = replacing(&scratch);
    // A recovery that was interrupted has set the old version aside. Power was lost then, so that it is the file's
    // again; and the next recovery was interrupted when it had taken back the note, and not the entry.
    let quarantine = scratch.pool().join("quarantine");
    let segments = scratch.pool().join("segments/00");
    fs::hard_link(segments.join(old.to_string()), quarantine.join(old.to_string())).unwrap();
    let (pool, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(pool.is_read_only(), None);
    assert!(!quarantine.join(old.to_string()).exists());
}

/// One block more than at first could stay for ever, by which lengths the log came down.
#[test]
fn an_emptied_log_gets_as_short_as_it_was_from_any_length() {
    let scratch = Scratch::new(4096);
    let (pool, _) = scratch.first_open();
    let at_first = pool.usage().log_blocks;
    for count in (1..40).step_by(3) {
        let names: Vec<String> = (0..count * 10).map(|n| format!("a directory {n}")).collect();
        let made: Vec<_> = names.iter().map(|name| (name, make(&pool, name, DIR))).collect();
        pool.maintain().unwrap();
        for (n, (name, ino)) in made.into_iter().enumerate() {
            store(&pool, [removal(ROOT, name)]);
            pool.edit().reap(ino);
            // The log comes down in steps.
            if n % 5 == 0 {
                pool.maintain().unwrap();
            }
        }
        for _ in 0..100 {
            pool.maintain().unwrap();
        }
        assert_eq!(pool.usage().log_blocks, at_first, "after {} directories", names.len());
    }
}

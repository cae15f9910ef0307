//! The rules of docs/FORMAT.md, each with a test named after it.

use std::fs;

use crate::common::*;
use tensorfs_layout::check::check_in_use;
use tensorfs_layout::log::{Attributes, Origin, PoolState, Record, Seal, Shutdown, Transaction};
use tensorfs_layout::pool::{CreateOptions, LIMIT_MIN, Pool, Usage};
use tensorfs_layout::{Error, Ino, ROOT, SegmentId, Timestamp, TxId};

const DIR: u32 = libc::S_IFDIR | 0o755;
const FILE: u32 = libc::S_IFREG | 0o644;
/// Where the first log block starts, and where it holds its first frame.
const BLOCKS: usize = 2 << 20;
const FIRST_FRAME: usize = BLOCKS + 64;

fn position(calls: &[Call], what: impl Fn(&Call) -> bool) -> usize {
    calls.iter().position(what).unwrap_or_else(|| panic!("no such call in {calls:?}"))
}

#[test]
fn rule_1_a_frame_is_stored_before_its_operation_is_answered() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make(&pool, "a", DIR);
    let persists = medium.persists();
    make(&pool, "b", DIR);
    let left = medium.stored();
    assert_eq!(medium.persists(), persists, "an answer does not wait for a persist");
    let before = tree(&pool.view());
    drop(pool);
    let (again, _) = scratch.open(left, BOOT);
    assert_eq!(again.recovery().kind, Shutdown::ServerKilled);
    assert_eq!(tree(&again.view()), before, "the server was killed, the machine stayed up: nothing is lost");
}

#[test]
fn rule_2_space_is_reserved_before_the_id_and_the_reserve_is_for_deletion() {
    // The limit is far above what fits the log's first blocks, and below what the log would grow to.
    let scratch = Scratch::with(CreateOptions { block_size: 1 << 20, limit: Some(LIMIT_MIN), ..Default::default() });
    let (pool, _) = scratch.first_open();
    let ino = make(&pool, "f", FILE);
    let value: Box<[u8]> = vec![7; 60_000].into();
    let mut stored = 0;
    let refused = loop {
        let name = format!("user.{stored}").into_bytes().into();
        let newest = pool.newest();
        match try_store(&pool, [Record::Xattr { ino, name, value: value.clone() }]) {
            Ok(_) => stored += 1,
            Err(error) => {
                assert_eq!(pool.newest(), newest, "no id is taken by what is refused");
                break error;
            }
        }
    };
    assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
    assert!(stored > 20);
    let name = |n: usize| -> Box<[u8]> { format!("user.{n}").into_bytes().into() };
    for n in 0..stored {
        let removal = Transaction::new(0).with(Record::XattrRemoval { ino, name: name(n) });
        pool.edit().store_from_reserve(removal).expect("deletion has room of its own");
    }
    assert!(pool.reclaim().unwrap());
    store(&pool, [Record::Xattr { ino, name: name(0), value }]);
}

#[test]
fn rule_3_segments_are_synced_before_a_frame_carries_the_horizon() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"bytes");
    let newest = pool.newest();
    assert!(pool.horizon() < newest);
    medium.take_calls();
    pool.commit(newest).unwrap();
    let calls = medium.take_calls();
    let directory = position(&calls, |call| *call == Call::SyncDirectory);
    let segment = position(&calls, |call| *call == Call::SyncSegment);
    let frame = position(&calls, |call| matches!(call, Call::Store { .. }));
    let persist = position(&calls, |call| *call == Call::Persist);
    assert!(directory < frame && segment < frame && frame < persist, "{calls:?}");
    assert_eq!(calls.iter().filter(|call| **call == Call::Persist).count(), 1, "one flush makes it durable");
    assert!(pool.horizon() >= newest);
}

#[test]
fn rule_3_what_the_horizon_does_not_cover_is_gone_after_a_power_loss() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make(&pool, "durable", DIR);
    pool.commit(pool.newest()).unwrap();
    let durable = tree(&pool.view());
    let newest = pool.newest();
    make(&pool, "not yet", DIR);
    // Every store reached the medium, but no horizon says so.
    let image = medium.after_power_loss(|| true);
    drop(pool);
    let (again, medium) = scratch.open(image, NEXT_BOOT);
    assert_eq!(again.recovery().kind, Shutdown::PowerLoss);
    assert_eq!(again.recovery().dropped_transactions, 1);
    assert_eq!(tree(&again.view()), durable);
    assert!(again.newest() >= newest);
    // What was zeroed stays away, whatever happens to the machine next.
    make(&again, "new", DIR);
    let image = medium.after_power_loss(|| true);
    drop(again);
    let (again, _) = scratch.open(image, BOOT);
    assert_eq!(tree(&again.view()), durable);
}

#[test]
fn rule_4_a_damaged_frame_in_front_of_the_horizon_is_damage_and_not_the_end() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    for name in ["a", "b", "c"] {
        make(&pool, name, DIR);
    }
    pool.close().unwrap();
    let whole = tree(&pool.view());
    drop(pool);
    let image = medium.stored();
    let used = image[BLOCKS..BLOCKS + 4096].iter().rposition(|byte| *byte != 0).unwrap();
    for offset in (FIRST_FRAME - BLOCKS..=used).step_by(7) {
        let mut damaged = image.clone();
        damaged[BLOCKS + offset] ^= 0x10;
        for boot in [BOOT, NEXT_BOOT] {
            let (opened, medium) = scratch.try_open(damaged.clone(), boot);
            match opened {
                Ok(pool) => {
                    let reason = pool.is_read_only().unwrap_or_else(|| panic!("byte {offset}: damage was not seen"));
                    assert!(reason.contains("damaged"), "{reason}");
                    let error = try_store(&pool, [removal(ROOT, "a")]).unwrap_err();
                    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
                }
                // The frame that holds the root directory itself.
                Err(error) => assert!(matches!(error, Error::NotAPool { .. }), "byte {offset}: {error}"),
            }
            assert_eq!(medium.stored(), damaged, "byte {offset}: a damaged log is not written to");
        }
    }
    assert_eq!(tree(&scratch.open(image, BOOT).0.view()), whole);
}

#[test]
fn rule_4_damaged_records_do_not_hide_the_frames_behind_them() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let start = medium.stored()[BLOCKS..BLOCKS + 4096].iter().rposition(|byte| *byte != 0).unwrap();
    make(&pool, "lost", DIR);
    make(&pool, "kept", DIR);
    pool.close().unwrap();
    drop(pool);
    let mut image = medium.stored();
    let lost = image.windows(4).position(|bytes| bytes == b"lost").unwrap();
    assert!(lost > BLOCKS + start);
    image[lost] ^= 1;
    let (pool, _) = scratch.open(image, BOOT);
    assert!(pool.is_read_only().is_some());
    assert!(tree(&pool.view()).contains_key("/kept"));
}

#[test]
fn rule_4_the_log_ends_at_zeroes_and_a_torn_last_frame_is_cut_off() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make(&pool, "a", DIR);
    let before = medium.stored();
    let tree_before = tree(&pool.view());
    make(&pool, "b", DIR);
    let after = medium.stored();
    drop(pool);
    let changed: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
    let (start, end) = (changed[0], changed[changed.len() - 1]);
    // A server that is killed inside pwrite leaves a part of its last frame.
    for cut in (start..end).step_by(5) {
        let mut torn = after.clone();
        torn[cut..].copy_from_slice(&before[cut..]);
        let (pool, medium) = scratch.open(torn, BOOT);
        assert_eq!(pool.is_read_only(), None, "cut at {cut}");
        assert_eq!(tree(&pool.view()), tree_before);
        make(&pool, "c", DIR);
        let left = medium.stored();
        drop(pool);
        let (pool, _) = scratch.open(left, BOOT);
        assert!(tree(&pool.view()).contains_key("/c"));
    }
}

#[test]
fn rule_4_an_idle_pool_has_its_horizon_in_two_places() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make(&pool, "acknowledged", DIR);
    pool.idle().unwrap();
    let image = medium.after_power_loss(|| false);
    let whole = tree(&pool.view());
    drop(pool);
    // The last frame, which proposed the horizon, is damaged: that must not pass for a shorter log.
    let last = image[BLOCKS..BLOCKS + 4096].iter().rposition(|byte| *byte != 0).unwrap();
    let mut damaged = image.clone();
    damaged[BLOCKS + last] ^= 1;
    let (pool, _) = scratch.open(damaged, NEXT_BOOT);
    assert!(pool.is_read_only().is_some());
    drop(pool);
    // One of the fixed places is damaged: the frame still says it.
    let mut damaged = image;
    damaged[4096 + 9] ^= 1;
    let (pool, _) = scratch.open(damaged, NEXT_BOOT);
    assert_eq!(pool.is_read_only(), None);
    assert_eq!(tree(&pool.view()), whole);
}

#[test]
fn rule_5_a_recorded_truncation_is_done_again_and_an_unrecorded_one_never_happened() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"0123456789");
    pool.commit(pool.newest()).unwrap();
    let truncation = Record::Truncation { ino, segment, offset: 0, len: 4, allocated: 4096, cut_from: 10 };
    let id = store(&pool, [truncation]);
    pool.commit(id).unwrap();
    // Killed, or without power, between the record and the deed.
    let images = [(medium.stored(), BOOT), (medium.after_power_loss(|| false), NEXT_BOOT)];
    drop(pool);
    for (image, boot) in images {
        let copy = scratch.copy();
        // Nobody has written it since.
        let found = fs::File::options().write(true).open(copy.pool().join(format!("segments/00/{segment}"))).unwrap();
        let mtime = attributes(0).mtime;
        let written = std::time::Duration::new(mtime.sec as u64, mtime.nsec);
        found.set_modified(std::time::UNIX_EPOCH + written).unwrap();
        drop(found);
        let (pool, _) = copy.open(image, boot);
        assert_eq!(pool.view().object(ino).unwrap().size(), 4);
        assert_eq!(read_segment(&pool, segment), b"0123");
        assert!(pool.recovery().quarantined.is_empty(), "what was truncated on purpose is not kept");
    }
}

#[test]
fn rule_5_a_segment_that_is_short_after_a_power_loss_was_cut_unless_it_is_sealed() {
    for sealed in [false, true] {
        let scratch = Scratch::new(1 << 20);
        let (pool, medium) = scratch.first_open();
        let (ino, segment) = make_file(&pool, "f", b"0123456789");
        if sealed {
            let seal = Seal { crc: 1, description: Box::default() };
            let (allocated, origin) = (4096, Origin::default());
            store(&pool, [Record::Sealed { ino, segment, offset: 0, len: 10, allocated, seal, origin }]);
        }
        pool.commit(pool.newest()).unwrap();
        // The record of the cut does not get to the medium, the cut does.
        store(&pool, [Record::Truncation { ino, segment, offset: 0, len: 4, allocated: 4096, cut_from: 10 }]);
        fs::File::from(pool.segments().open(segment, libc::O_RDWR).unwrap()).set_len(4).unwrap();
        let images = [(medium.stored(), BOOT, false, 4), (medium.after_power_loss(|| true), NEXT_BOOT, sealed, 10)];
        drop(pool);
        for (image, boot, damaged, recorded) in images {
            let copy = scratch.copy();
            let (pool, _) = copy.open(image, boot);
            let view = pool.view();
            let object = view.object(ino).unwrap();
            assert_eq!((object.attributes.damaged, object.size()), (damaged, if damaged { recorded } else { 4 }));
            assert_eq!(read_segment(&pool, segment), b"0123");
        }
    }
}

#[test]
fn rule_5_a_thaw_voids_the_seals_before_it_and_none_behind_it_wherever_the_log_is_cut_or_cleaned() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"aaaabbbb");
    let seal = |offset| {
        let seal = Seal { crc: 1, description: Box::default() };
        Record::Sealed { ino, segment, offset, len: 4, allocated: 4096, seal, origin: Origin::default() }
    };
    let sealed = |pool: &Pool| pool.view().object(ino).unwrap().chain().unwrap().is_sealed();
    let reopened = |image: Vec<u8>, boot| {
        let (again, _) = scratch.copy().open(image, boot);
        assert_eq!(again.is_read_only(), None);
        sealed(&again)
    };
    store(&pool, [seal(0), seal(4)]);
    pool.commit(pool.newest()).unwrap();
    assert!(sealed(&pool) && reopened(medium.stored(), BOOT));

    let id = store(&pool, [Record::Thaw { ino, segment, offset: 0, len: 8 }]);
    assert!(!sealed(&pool) && !reopened(medium.stored(), BOOT));
    assert!(reopened(medium.after_power_loss(|| true), NEXT_BOOT), "not committed, so the bytes were not changed");
    pool.commit(id).unwrap();
    assert!(!reopened(medium.after_power_loss(|| false), NEXT_BOOT));

    // Cleaning moves the old seals to newer blocks than the thaw was in; it goes on to void them.
    for round in 0..400u32 {
        let attributes = Attributes { uid: round, ..attributes(DIR) };
        store(&pool, [Record::Attributes { ino: ROOT, attributes }]);
        pool.maintain().unwrap();
    }
    assert!(!sealed(&pool) && !reopened(medium.stored(), BOOT));
    store(&pool, [seal(0), seal(4)]);
    assert!(sealed(&pool) && reopened(medium.stored(), BOOT));
}

#[test]
fn rule_5_seals_are_provisional_until_a_record_says_that_they_hold_wherever_the_log_is_cut_or_cleaned() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"aaaabbbbcccc");
    let seal = |offset| {
        let seal = Seal { crc: 1, description: Box::default() };
        Record::Sealed { ino, segment, offset, len: 4, allocated: 4096, seal, origin: Origin::default() }
    };
    let provisional = |from| Record::Provisional { ino, segment, from };
    // Up to where seals hold, and up to where there are any.
    let seals = |pool: &Pool| {
        let view = pool.view();
        let chain = view.object(ino).unwrap().chain().unwrap();
        (chain.sealed_end(), chain.seals_end(), chain.is_sealed())
    };
    let reopened = |image: Vec<u8>| {
        let (again, _) = scratch.copy().open(image, BOOT);
        assert_eq!(again.is_read_only(), None);
        seals(&again)
    };
    let clean = |from: u32| {
        for round in 0..400 {
            let attributes = Attributes { uid: from + round, ..attributes(DIR) };
            store(&pool, [Record::Attributes { ino: ROOT, attributes }]);
            pool.maintain().unwrap();
        }
    };
    store(&pool, [seal(0), seal(4), provisional(4)]);
    assert_eq!((seals(&pool), reopened(medium.stored())), ((4, 8, false), (4, 8, false)));
    clean(0);
    store(&pool, [seal(8), provisional(4)]);
    assert_eq!((seals(&pool), reopened(medium.stored())), ((4, 12, false), (4, 12, false)));
    clean(1000);
    assert_eq!(reopened(medium.stored()), (4, 12, false));
    store(&pool, [provisional(12)]);
    assert_eq!((seals(&pool), reopened(medium.stored())), ((12, 12, true), (12, 12, true)));
    // The record that says so outlives the ones before it.
    clean(2000);
    assert_eq!((seals(&pool), reopened(medium.stored())), ((12, 12, true), (12, 12, true)));
    store(&pool, [provisional(0)]);
    store(&pool, [Record::Thaw { ino, segment, offset: 0, len: 12 }]);
    store(&pool, [provisional(12)]);
    clean(3000);
    assert_eq!((seals(&pool), reopened(medium.stored())), ((0, 0, false), (0, 0, false)), "what is void stays so");
}

#[test]
fn rule_5_a_segment_goes_only_when_the_horizon_covers_its_removal() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    let mut edit = pool.edit();
    edit.store(Transaction::new(0).with(removal(ROOT, "f"))).unwrap();
    edit.reap(ino);
    drop(edit);
    assert_eq!(pool.unlink_covered(), 0);
    assert!(pool.segments().stat(segment).is_ok(), "a power loss now would bring the file back");
    pool.commit(pool.newest()).unwrap();
    assert_eq!(pool.unlink_covered(), 1);
    assert!(pool.segments().stat(segment).is_err());
}

#[test]
fn rule_6_cleaning_moves_live_records_and_zeroes_after_the_horizon() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let keep = make(&pool, "keep", DIR);
    for round in 0..400u32 {
        let attributes = Attributes { uid: round, ..attributes(DIR) };
        store(&pool, [Record::Attributes { ino: keep, attributes }]);
    }
    pool.commit(pool.newest()).unwrap();
    let before = tree(&pool.view());
    let used = pool.usage();
    medium.take_calls();
    let mut images = Vec::new();
    for _ in 0..64 {
        pool.maintain().unwrap();
        images.push(medium.stored());
        images.push(medium.after_power_loss(|| true));
        images.push(medium.after_power_loss(|| false));
    }
    let calls = medium.take_calls();
    let zeroed = |call: &Call| matches!(call, Call::Store { len: 4096, .. });
    let first = position(&calls, zeroed);
    assert!(calls[..first].contains(&Call::Persist), "zeroed before the horizon covered the copies");
    assert_eq!(calls[first + 1], Call::Persist);
    let in_use = |usage: Usage| usage.log_blocks - usage.free_blocks;
    assert!(in_use(pool.usage()) + 10 < in_use(used), "{used:?} then {:?}", pool.usage());
    assert_eq!(tree(&pool.view()), before);
    drop(pool);
    for image in images {
        for boot in [BOOT, NEXT_BOOT] {
            let (again, _) = scratch.open(image.clone(), boot);
            assert_eq!(again.is_read_only(), None);
            assert_eq!(tree(&again.view()), before);
        }
    }
}

#[test]
fn rule_6_records_that_cleaning_appended_again_keep_their_place_in_their_chain() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"");
    write_unrecorded(&pool, segment, b"three runs!!");
    let churn = || {
        for round in 0..100u32 {
            let attributes = Attributes { uid: round, ..attributes(DIR) };
            store(&pool, [Record::Attributes { ino: ROOT, attributes }]);
        }
    };
    for offset in [0, 4, 8] {
        store(&pool, [Record::Data { ino, segment, offset, len: 4, allocated: 4096, origin: Origin::default() }]);
        // The block of the first record is the one that is worth cleaning.
        for n in 0..offset * 2 {
            make(&pool, &format!("live {offset} {n}"), DIR);
        }
        churn();
    }
    let runs = |pool: &Pool| -> Vec<(u64, u64)> {
        let view = pool.view();
        let runs = view.object(ino).unwrap().chain().unwrap().runs();
        runs.iter().map(|run| (run.offset, run.len)).collect()
    };
    for _ in 0..40 {
        pool.maintain().unwrap();
        assert_eq!(runs(&pool), [(0, 4), (4, 4), (8, 4)]);
        let (again, _) = scratch.copy().open(medium.stored(), BOOT);
        assert_eq!(runs(&again), [(0, 4), (4, 4), (8, 4)]);
    }
}

#[test]
fn rule_6_a_removed_name_does_not_come_back_when_its_removal_is_cleaned() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    // Old names among long-lived ones, so that their blocks stay for long.
    let mut live = Vec::new();
    for n in 0..120 {
        live.push(make(&pool, &format!("live {n}"), DIR));
        make(&pool, &format!("gone {n}"), DIR);
    }
    for n in 0..120 {
        let ino = pool.view().lookup(ROOT, format!("gone {n}").as_bytes()).unwrap();
        let mut edit = pool.edit();
        edit.store(Transaction::new(0).with(removal(ROOT, &format!("gone {n}")))).unwrap();
        edit.reap(ino);
    }
    for round in 0..2000u32 {
        let ino = live[round as usize % live.len()];
        store(&pool, [Record::Attributes { ino, attributes: Attributes { uid: round, ..attributes(DIR) } }]);
        if round % 50 == 0 {
            pool.maintain().unwrap();
            let expected = tree(&pool.view());
            let copy = scratch.copy();
            let (again, _) = copy.open(medium.stored(), BOOT);
            assert_eq!(again.is_read_only(), None);
            assert_eq!(tree(&again.view()), expected, "round {round}");
        }
    }
    assert!(!tree(&pool.view()).keys().any(|path| path.contains("gone")));
    let usage = pool.usage();
    assert!(usage.log_blocks < 64, "cleaning keeps the log in bounds: {usage:?}");
}

#[test]
fn rule_7_growth_is_written_and_synced_before_it_is_used() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let blocks = pool.usage().log_blocks;
    medium.take_calls();
    let mut n = 0;
    while pool.usage().log_blocks == blocks {
        make(&pool, &format!("dir {n}"), DIR);
        n += 1;
    }
    let calls = medium.take_calls();
    let grow = position(&calls, |call| *call == Call::Grow);
    // Then both superblocks, each persisted before the next; only then a block of the new ones is used.
    let superblocks: Vec<_> = calls[grow + 1..grow + 5].to_vec();
    assert!(matches!(superblocks[0], Call::Store { len: 512, .. }), "{superblocks:?}");
    assert_eq!(superblocks[1], Call::Persist);
    assert!(matches!(superblocks[2], Call::Store { len: 512, .. }));
    assert_eq!(superblocks[3], Call::Persist);
    let expected = tree(&pool.view());
    let left = medium.stored();
    drop(pool);
    assert_eq!(tree(&scratch.open(left, BOOT).0.view()), expected);
}

#[test]
fn rule_7_a_log_that_is_mostly_free_gives_blocks_back_and_loses_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let names: Vec<String> = (0..600).map(|n| format!("dir {n}")).collect();
    for name in &names {
        make(&pool, name, DIR);
    }
    let grown = pool.usage().log_blocks;
    for name in &names[5..] {
        let ino = pool.view().lookup(ROOT, name.as_bytes()).unwrap();
        let mut edit = pool.edit();
        edit.store_from_reserve(Transaction::new(0).with(removal(ROOT, name))).unwrap();
        edit.reap(ino);
    }
    let whole = tree(&pool.view());
    let mut images = Vec::new();
    for _ in 0..100 {
        pool.maintain().unwrap();
        images.push((medium.stored(), BOOT));
        images.push((medium.after_power_loss(|| false), NEXT_BOOT));
    }
    let left = pool.usage().log_blocks;
    assert!(left <= 5 && grown > 30, "{grown} blocks, then {left}");
    assert!(medium.take_calls().contains(&Call::Shrink));
    pool.commit(pool.newest()).unwrap();
    drop(pool);
    for (image, boot) in images.into_iter().skip(2) {
        let (again, _) = scratch.open(image, boot);
        assert_eq!(again.is_read_only(), None);
        assert_eq!(tree(&again.view()), whole);
    }
}

#[test]
fn rule_8_recovery_that_is_interrupted_starts_again_from_the_same_word() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make(&pool, "a", DIR);
    pool.commit(pool.newest()).unwrap();
    let durable = tree(&pool.view());
    make(&pool, "b", DIR);
    let image = medium.after_power_loss(|| true);
    drop(pool);
    let (pool, medium) = scratch.open(image, NEXT_BOOT);
    let calls = medium.take_calls();
    assert_eq!(tree(&pool.view()), durable);
    let superblock = |call: &Call| matches!(call, Call::Store { offset: 0 | 0x10_0000, len: 512 });
    let first = position(&calls, superblock);
    assert!(calls[first..].iter().all(|call| superblock(call) || *call == Call::Persist), "{calls:?}");
    assert_eq!(pool.superblock().unsafe_shutdowns, 1);
    assert_eq!(pool.superblock().state, PoolState::Dirty);
}

/// Proves D12.
#[test]
fn rule_9_a_failed_log_sync_makes_the_pool_read_only_and_is_not_retried() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make(&pool, "safe", DIR);
    pool.commit(pool.newest()).unwrap();
    let durable = tree(&pool.view());
    make(&pool, "lost", DIR);
    medium.fail_next_persist();
    assert!(matches!(pool.commit(pool.newest()), Err(Error::ReadOnly { .. })));
    let persists = medium.persists();
    assert!(pool.commit(pool.newest()).is_err());
    assert!(pool.close().is_err());
    assert_eq!(medium.persists(), persists, "the kernel would call the lost pages clean");
    assert!(matches!(try_store(&pool, [removal(ROOT, "safe")]), Err(Error::ReadOnly { .. })));
    let image = medium.after_power_loss(|| false);
    drop(pool);
    assert_eq!(tree(&scratch.open(image, NEXT_BOOT).0.view()), durable);
}

#[test]
fn rule_9_a_failed_segment_sync_marks_that_file_and_no_other() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (bad, bad_segment) = make_file(&pool, "bad", b"bytes");
    medium.fail_next_segment_sync();
    pool.commit(pool.newest()).unwrap();
    let (good, good_segment) = make_file(&pool, "good", b"bytes");
    pool.commit(pool.newest()).unwrap();
    assert!(pool.segments().failed(bad_segment) && !pool.segments().failed(good_segment));
    assert!(pool.view().object(bad).unwrap().attributes.damaged);
    assert!(!pool.view().object(good).unwrap().attributes.damaged);
    // The word that it is damaged is durable with the horizon that passed it.
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    assert!(again.view().object(bad).unwrap().attributes.damaged);
}

#[test]
fn rule_9_the_descriptor_that_syncs_is_held_from_before_the_first_write_until_after_the_sync() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"");
    pool.commit(pool.newest()).unwrap();
    assert_eq!(pool.segments().dirty_count(), 0);
    pool.segments().begin_write(segment).unwrap();
    assert_eq!(pool.segments().dirty_count(), 1);
    pool.segments().end_write(segment);
    assert_eq!(pool.segments().dirty_count(), 1, "written to, and not yet synced");
    append(&pool, ino, segment, b"bytes");
    pool.commit(pool.newest()).unwrap();
    assert_eq!(pool.segments().dirty_count(), 0);
}

/// A check of a pool in use took what waited for its file for what no file has any more.
#[test]
fn a_spare_segment_belongs_to_no_file_and_that_is_no_finding() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    let spare = SegmentId(pool.edit().next_id());
    drop(pool.segments().create_spare(spare).unwrap());
    // As it will be when both have been there for a long time.
    let later = Timestamp::new(pool.segments().stat(spare).unwrap().ctime.sec + 1000, 0);
    let findings = || {
        let keep_still = |_: Ino, look: &mut dyn FnMut(bool)| look(false);
        let report = check_in_use(&pool, &keep_still, later, &|_, _, _| {}, &|| true).unwrap().unwrap();
        report.findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
    };
    assert_eq!(findings(), Vec::<String>::new());
    // One that got lost on its way to a file is one.
    pool.segments().no_spare(spare);
    assert_eq!(findings(), ["belongs to no file"]);
    pool.segments().remove_spare(spare).unwrap();
    assert_eq!(findings(), Vec::<String>::new());
}

#[test]
fn rule_10_a_segment_is_created_under_its_final_name_which_is_never_used_again() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (_, first) = make_file(&pool, "f", b"one");
    assert!(pool.segments().create(first).is_err(), "a segment is never created over another");
    pool.commit(pool.newest()).unwrap();
    let (_, lost) = make_file(&pool, "g", b"two");
    // Power goes before the horizon covers the second file: its number stays taken.
    let image = medium.after_power_loss(|| true);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(again.quarantine().list().unwrap()[0].name, lost.to_string());
    assert!(again.edit().next_id() > lost.0);
    assert!(fs::exists(again.path().join(format!("segments/00/{first}"))).unwrap());
}

#[test]
fn rule_11_a_value_stands_in_for_its_segment() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    medium.take_calls();
    let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
    let calls = medium.take_calls();
    assert!(!calls.contains(&Call::SyncSegment) && !calls.contains(&Call::SyncDirectory), "{calls:?}");
    let image = medium.after_power_loss(|| false);
    lose(&pool, segment);
    drop(pool);
    let (again, medium) = scratch.open(image, NEXT_BOOT);
    assert_eq!(read_segment(&again, segment), b"bytes of the file");
    assert!(!again.view().object(ino).unwrap().attributes.damaged);
    let calls = medium.take_calls();
    assert!(calls.contains(&Call::SyncSegment) && calls.contains(&Call::SyncDirectory), "it holds them durably now");
}

#[test]
fn rule_11_what_ends_a_value_has_the_segment_synced() {
    for end in 0..4 {
        let scratch = Scratch::new(1 << 20);
        let (pool, medium) = scratch.first_open();
        let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
        medium.take_calls();
        let seal = Seal { crc: 0, description: Box::default() };
        let (offset, len, allocated) = (0, 17, 4096);
        store(
            &pool,
            [match end {
                0 => Record::Data { ino, segment, offset, len, allocated, origin: Origin::default() },
                1 => Record::Truncation { ino, segment, offset, len: 5, allocated, cut_from: 17 },
                2 => Record::Sealed { ino, segment, offset, len, allocated, seal, origin: Origin::default() },
                _ => Record::Thaw { ino, segment, offset, len },
            }],
        );
        assert!(!pool.view().object(ino).unwrap().has_value());
        pool.commit(pool.newest()).unwrap();
        let calls = medium.take_calls();
        let synced = position(&calls, |call| *call == Call::SyncSegment);
        let named = position(&calls, |call| *call == Call::SyncDirectory);
        assert!(synced.max(named) < position(&calls, |call| *call == Call::Persist), "{calls:?}");
        // It does not come back: the segment's bytes are the file's from now on.
        let image = medium.after_power_loss(|| false);
        lose(&pool, segment);
        drop(pool);
        let (again, _) = scratch.open(image, NEXT_BOOT);
        assert!(again.view().object(ino).unwrap().attributes.damaged, "record {end}");
    }
}

/// Bytes that came after the sync may be durable by the value alone.
#[test]
fn rule_11_what_ends_a_value_has_the_segment_synced_also_if_others_were_synced_before() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
    medium.take_calls();
    let mut tx = Transaction::new(0).with(Record::Data {
        ino,
        segment,
        offset: 0,
        len: 17,
        allocated: 4096,
        origin: Origin::default(),
    });
    tx.bytes_are_durable(segment);
    pool.edit().store(tx).unwrap();
    pool.commit(pool.newest()).unwrap();
    let calls = medium.take_calls();
    let synced = position(&calls, |call| *call == Call::SyncSegment);
    assert!(synced < position(&calls, |call| *call == Call::Persist), "{calls:?}");
}

/// As one that is shorter than its file.
#[test]
fn rule_11_a_value_that_does_not_count_has_the_segment_synced() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
    append(&pool, ino, segment, b" and more");
    pool.commit(pool.newest()).unwrap();
    for (bytes, counts) in [(&b"bytes of the file"[..], false), (b"bytes of the file and more", true)] {
        medium.take_calls();
        let (offset, len, allocated, origin) = (17, 9, 4096, Origin::default());
        let mut tx = Transaction::new(0).with(Record::Data { ino, segment, offset, len, allocated, origin });
        tx.push(Record::Value { ino, segment, bytes: bytes.into() });
        tx.bytes_are_durable(segment);
        pool.edit().store(tx).unwrap();
        assert_eq!(pool.view().object(ino).unwrap().has_value(), counts);
        pool.commit(pool.newest()).unwrap();
        assert_eq!(medium.take_calls().contains(&Call::SyncSegment), !counts);
    }
    // It is all that there is of the bytes of both records.
    let image = medium.after_power_loss(|| false);
    lose(&pool, segment);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    assert!(!again.view().object(ino).unwrap().attributes.damaged);
    assert_eq!(read_segment(&again, segment), b"bytes of the file and more");
}

#[test]
fn rule_11_a_value_is_not_kept_once_the_segment_is_durable() {
    let scratch = Scratch::new(16 << 10);
    let (pool, _) = scratch.first_open();
    let bytes = vec![7; 6000];
    for n in 0..20 {
        file_by_value(&pool, &format!("f{n}"), &bytes);
    }
    let before = pool.flushes();
    pool.settle_values().unwrap();
    assert!(pool.flushes().segments + 64 * pool.flushes().host >= before.segments + 20);
    let settled = pool.flushes();
    pool.settle_values().unwrap();
    assert_eq!(pool.flushes(), settled, "once is enough");
    assert!(pool.reclaim().unwrap());
    for _ in 0..40 {
        pool.maintain().unwrap();
    }
    let usage = pool.usage();
    assert!((usage.log_blocks - usage.free_blocks) * (16 << 10) < 20 * 6000 / 2, "{usage:?}");
}

#[test]
fn horizon_is_monotonic_and_commits_are_shared() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let ids: Vec<TxId> = (0..50)
        .map(|n| {
            make(&pool, &format!("{n}"), DIR);
            pool.newest()
        })
        .collect();
    let persists = medium.persists();
    std::thread::scope(|scope| {
        for id in &ids {
            scope.spawn(|| pool.commit(*id).unwrap());
        }
    });
    assert!(pool.horizon() >= ids[49]);
    assert_eq!(medium.persists(), persists + 1, "one flush for all of them");
}

#[test]
fn a_pool_is_resized_durably_and_not_below_what_it_uses() {
    let scratch = Scratch::with(CreateOptions { block_size: 1 << 20, limit: Some(LIMIT_MIN), ..Default::default() });
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", &[7; 100_000]);
    let files = 30 << 20;
    let used = files + pool.usage().log_bytes;
    let refused = pool.resize(Some(used - 1), files, 0).unwrap_err();
    assert!(matches!(&refused, Error::Invalid { what, .. } if what.contains(&used.to_string())), "{refused}");
    assert!(pool.resize(Some(LIMIT_MIN - 1), 0, 0).is_err());
    assert_eq!(pool.usage().limit, Some(LIMIT_MIN));
    for limit in [Some(1 << 30), Some(LIMIT_MIN), None] {
        pool.resize(limit, 0, 0).unwrap();
        assert_eq!(pool.usage().limit, limit);
        let (again, _) = scratch.copy().open(medium.after_power_loss(|| false), NEXT_BOOT);
        assert_eq!(again.usage().limit, limit);
    }
    pool.close().unwrap();
    assert!(matches!(pool.resize(None, 0, 0), Err(Error::ReadOnly { .. })));
}

#[test]
fn rule_3_what_its_writer_has_synced_needs_no_sync_in_the_commit() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    pool.segments().begin_write(segment).unwrap();
    let data = |len| {
        let mut tx = Transaction::new(0).with(Record::Data {
            ino,
            segment,
            offset: 0,
            len,
            allocated: 4096,
            origin: Origin::default(),
        });
        tx.bytes_are_durable(segment);
        tx
    };
    let before = pool.flushes();
    assert!(pool.sync_early(segment).unwrap());
    pool.edit().store(data(6)).unwrap();
    pool.commit_stored(pool.newest()).unwrap();
    let after = pool.flushes();
    assert_eq!((after.segments, after.log, after.host), (before.segments + 1, before.log + 1, before.host));
    assert_eq!(after.directories, before.directories);
    // What is recorded of it without a sync goes on to be synced.
    medium.take_calls();
    store(&pool, [Record::Data { ino, segment, offset: 0, len: 7, allocated: 4096, origin: Origin::default() }]);
    pool.edit().store(data(7)).unwrap();
    pool.commit_stored(pool.newest()).unwrap();
    assert!(medium.take_calls().contains(&Call::SyncSegment));
}

#[test]
fn rule_9_an_early_sync_that_failed_is_recorded_before_anything_rests_on_it() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    pool.segments().begin_write(segment).unwrap();
    medium.fail_next_segment_sync();
    assert!(!pool.sync_early(segment).unwrap());
    assert!(pool.view().object(ino).unwrap().attributes.damaged);
    pool.commit(pool.newest()).unwrap();
    assert!(pool.segments().failed(segment), "a later sync proves nothing");
}

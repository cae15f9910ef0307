//! A sync or a persist that fails is told, is not forgotten, and is not tried again.

use crate::common::*;
use std::fs;
use tensorfs_layout::log::{Attributes, Origin, Record};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::{Error, Ino, ROOT, SegmentId};

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
    let data = Record::Data { ino, segment, offset: 0, len: 3, allocated: 4096, origin: Origin::default() };
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
fn a_commit_that_panics_is_not_passed_by_the_next() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    for n in 0..20 {
        make_file(&pool, &format!("f{n}"), b"bytes");
    }
    let horizon = pool.horizon();
    medium.during_next_segment_sync(Box::new(|| panic!("on purpose")));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.commit(pool.newest())));
    assert!(panicked.is_err());
    assert!(pool.commit(pool.newest()).is_err(), "what was to be synced is not known any more");
    assert_eq!(pool.horizon(), horizon);
}

#[test]
fn many_due_segments_are_asked_one_by_one() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    for n in 0..150 {
        make_file(&pool, &format!("f{n}"), b"bytes");
    }
    medium.take_calls();
    medium.fail_next_segment_sync();
    pool.commit(pool.newest()).unwrap();
    let calls = medium.take_calls();
    // A sync of the whole host cannot tell whose bytes it failed to write, and waits for everybody's.
    assert!(!calls.contains(&Call::SyncAll));
    assert!(calls.iter().filter(|call| **call == Call::SyncSegment).count() >= 150);
    let damaged = pool.view().objects().filter(|(_, object)| object.attributes.damaged).count();
    assert_eq!(damaged, 1);
}

#[test]
fn what_the_host_cannot_even_begin_to_write_counts_as_a_failed_sync() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    for n in 0..3 {
        make_file(&pool, &format!("f{n}"), b"bytes");
    }
    medium.fail_next_write_out();
    pool.commit(pool.newest()).unwrap();
    let damaged = || pool.view().objects().filter(|(_, object)| object.attributes.damaged).count();
    assert_eq!(damaged(), 1, "the sync behind it heard nothing");
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(again.view().objects().filter(|(_, object)| object.attributes.damaged).count(), 1);
}

/// A pool of one file, left by a killed server and opened again on a host that fails; and that file.
fn recovered_while(scratch: &Scratch, fail: impl Fn(&SimMedium)) -> (Pool, Ino) {
    let (pool, medium) = scratch.first_open();
    let (ino, _) = make_file(&pool, "f", b"bytes");
    let image = medium.stored();
    drop(pool);
    let medium = SimMedium::new(image);
    fail(&medium);
    (scratch.open_on(medium, BOOT).unwrap(), ino)
}

#[test]
fn what_failed_unheard_is_heard_by_the_recovery_of_a_killed_server() {
    let scratch = Scratch::new(1 << 20);
    let (pool, ino) = recovered_while(&scratch, |medium| medium.fail_next_write_out());
    assert!(pool.view().object(ino).unwrap().attributes.damaged);
    assert_eq!(pool.recovery().damaged_files, 1);
}

#[test]
fn an_old_failure_of_the_host_does_not_keep_a_killed_pool_from_being_recovered() {
    let scratch = Scratch::new(1 << 20);
    // It may have been anybody's, and is told once.
    let (pool, ino) = recovered_while(&scratch, |medium| medium.fail_next_sync_all());
    assert!(!pool.view().object(ino).unwrap().attributes.damaged);
}

#[test]
fn a_record_of_a_segment_that_cannot_be_synced_is_refused() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    fs::remove_file(pool.segments().path_of(segment)).unwrap();
    let newest = pool.newest();
    let data = Record::Data { ino, segment, offset: 0, len: 9, allocated: 4096, origin: Origin::default() };
    assert!(try_store(&pool, [data]).is_err(), "nobody could make its bytes durable");
    assert_eq!(pool.newest(), newest);
}

#[test]
fn what_the_host_has_in_memory_alone_is_written_again_by_recovery() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    make(&pool, "before", DIR);
    pool.commit(pool.newest()).unwrap();
    make(&pool, "in memory", DIR);
    medium.fail_next_persist();
    assert!(pool.commit(pool.newest()).is_err());
    drop(pool);
    let pool = scratch.open_on(medium.clone(), BOOT).unwrap();
    make(&pool, "after", DIR);
    pool.commit(pool.newest()).unwrap();
    let durable = tree(&pool.view());
    assert_eq!(durable.len(), 4);
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(again.is_read_only(), None);
    assert_eq!(tree(&again.view()), durable);
}

#[test]
fn a_segment_that_failed_when_the_log_did_is_told_by_the_next_server() {
    for log_first in [true, false] {
        let scratch = Scratch::new(1 << 20);
        let (pool, medium) = scratch.first_open();
        let (ino, segment) = make_file(&pool, "f", b"bytes");
        let (other, _) = make_file(&pool, "g", b"bytes");
        pool.commit(pool.newest()).unwrap();
        pool.segments().begin_write(segment).unwrap();
        if log_first {
            make(&pool, "d", DIR);
            medium.fail_next_persist();
            assert!(pool.commit(pool.newest()).is_err());
        }
        medium.fail_next_segment_sync();
        if log_first {
            assert!(pool.sync_early(segment).is_err(), "it cannot be recorded");
        } else {
            medium.fail_next_store();
            assert!(pool.sync_early(segment).is_err());
        }
        assert!(pool.close().is_err());
        drop(pool);
        let pool = scratch.open_on(medium.clone(), BOOT).unwrap();
        let damaged = |pool: &Pool, ino| pool.view().object(ino).unwrap().attributes.damaged;
        assert!(damaged(&pool, ino) && !damaged(&pool, other));
        assert_eq!(pool.recovery().damaged_files, 1);
        // It is in the log from now on, and nowhere else.
        assert!(!scratch.pool().join("failed").exists());
        let image = medium.after_power_loss(|| false);
        drop(pool);
        assert!(damaged(&scratch.open(image, NEXT_BOOT).0, ino));
    }
}

/// Nobody misses the bytes of a file that is no more: who makes all durable is not told that it had failed.
#[test]
fn a_failed_file_that_was_removed_is_told_to_nobody() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    for name in ["gone", "there"] {
        let (ino, segment) = make_file(&pool, name, b"bytes");
        pool.commit(pool.newest()).unwrap();
        pool.segments().begin_write(segment).unwrap();
        pool.segments().end_write(segment);
        medium.fail_next_segment_sync();
        make(&pool, &format!("beside {name}"), DIR);
        pool.commit(pool.newest()).unwrap();
        assert!(pool.view().object(ino).unwrap().attributes.damaged);
        if name == "gone" {
            store(&pool, [removal(ROOT, name)]);
            pool.edit().reap(ino);
        }
    }
    assert_eq!(pool.failed_syncs(), 2);
    assert_eq!(pool.tell_failures(), 1);
}

/// The host takes no changes any more, and has dropped bytes of small files that only the log holds now: that can be
/// recorded no more, but is known.
#[test]
fn what_a_host_that_fails_has_dropped_is_known_though_it_cannot_be_recorded() {
    for by_a_commit in [false, true] {
        let scratch = Scratch::new(1 << 20);
        let (pool, medium) = scratch.first_open();
        let (lost, segment) = file_by_value(&pool, "lost", b"bytes");
        let (kept, _) = file_by_value(&pool, "kept", b"bytes");
        pool.commit(pool.newest()).unwrap();
        assert!(pool.unrecorded_failures().is_empty());
        let file = std::fs::File::from(pool.segments().open(segment, libc::O_RDWR).unwrap());
        file.set_len(0).unwrap();
        file.set_len(5).unwrap();
        medium.fail_next_directory_sync();
        let failed = if by_a_commit { pool.close() } else { pool.settle_values() };
        assert!(failed.is_err() && pool.is_read_only().is_some());
        assert_eq!(pool.unrecorded_failures(), [lost], "by a commit: {by_a_commit}");
        assert!(pool.view().object(kept).unwrap().chain().unwrap().value().is_some());
        let image = medium.stored();
        drop(pool);
        let (again, _) = scratch.open(image, BOOT);
        assert_eq!(read_segment(&again, segment), b"bytes");
    }
}

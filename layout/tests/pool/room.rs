//! Room in the log: who may take the last of it, how it is won back, and how long the log gets.

use crate::common::*;
use tensorfs_layout::log::{Origin, Record};
use tensorfs_layout::pool::{CreateOptions, LIMIT_MIN, OpenOptions, Pool};
use tensorfs_layout::{Error, Ino, ROOT};

fn no_xattr(ino: Ino, n: usize) -> Record {
    Record::XattrRemoval { ino, name: format!("user.{n}").into_bytes().into() }
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
fn the_log_never_grows_past_the_limit() {
    let scratch = Scratch::with(CreateOptions { block_size: 1 << 20, limit: Some(LIMIT_MIN), ..Default::default() });
    let (pool, _) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    let data = Record::Data { ino, segment, offset: 0, len: 5, allocated: u64::MAX, origin: Origin::default() };
    store(&pool, [data]);
    let mut n = 0;
    while try_store(&pool, [xattr(ino, n, 60_000)]).is_ok() {
        n += 1;
    }
    assert!(pool.usage().log_bytes <= LIMIT_MIN);
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

//! Closing a pool: what is durable then, and what is left of what was open.

use crate::common::*;
use std::fs;
use std::os::unix::fs::FileExt;
use tensorfs_layout::log::Record;
use tensorfs_layout::{Ino, ROOT};

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
fn what_is_left_to_a_recovery_is_not_unsaid_by_closing_the_pool() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"bytes");
    write_unrecorded(&pool, segment, b" and more");
    pool.leave().unwrap();
    pool.close().unwrap();
    assert!(!pool.is_closed());
    drop(pool);
    let (pool, medium) = scratch.open(medium.stored(), BOOT);
    assert!(pool.recovery().left && !pool.recovery().outlived);
    assert_eq!((pool.view().object(ino).unwrap().size(), pool.superblock().unsafe_shutdowns), (14, 0));
    pool.close_watched(true).unwrap();
    pool.close().unwrap();
    drop(pool);
    let (pool, medium) = scratch.open(medium.stored(), BOOT);
    assert!(pool.recovery().outlived && !pool.recovery().left);
    pool.close().unwrap();
    assert!(pool.is_closed());
    drop(pool);
    assert_eq!(scratch.open(medium.stored(), BOOT).0.recovery().kind, Default::default());
}

//! Puts that fail in the middle of a pass: what has arrived by then is not put again.

use std::fs;
use std::sync::Arc;

use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_remote::carry::{Carrier, Passed};
use tensorfs_remote::gc::{Keep, collect};
use tensorfs_remote::place::{Access, Place};
use tensorfs_remote::repository::Repository;

use crate::pools::{TestPool, noise, restored, seen};
use crate::stores::Recorded;

/// Bytes of each file.
const LEN: usize = 2 << 20;

/// A pool with so many files, each an object of its own, and a store that takes some of them and no more.
fn interrupted(files: u64, arrive: i64) -> (TestPool, Arc<Recorded>, Carrier) {
    let mut pool = TestPool::new();
    pool.edit(|edit| {
        for seed in 0..files {
            edit.file(ROOT, seed.to_string().as_bytes(), &[&noise(seed, LEN)], true);
        }
    });
    let store = Recorded::new();
    let mut carrier = pool.carrier(store.place()).unwrap();
    store.fail_after(arrive);
    carrier.pass().unwrap_err();
    assert_eq!(store.objects().len(), arrive as usize);
    store.fail_after(i64::MAX);
    (pool, store, carrier)
}

fn is_whole(pool: &TestPool, store: &Arc<Recorded>, passed: Passed, files: usize) {
    assert_eq!(passed.put as usize, files * LEN);
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

/// Proves E2.
#[test]
fn a_carrier_goes_on_after_a_failure_where_it_was() {
    let (pool, store, mut carrier) = interrupted(20, 15);
    let passed = carrier.pass().unwrap();
    // Nor is what was proved to be as it was sealed read again.
    assert!(passed.read as usize <= 5 * LEN, "{passed:?}");
    is_whole(&pool, &store, passed, 5);
}

/// Proves E2.
#[test]
fn the_next_carrier_goes_on_where_the_last_one_was() {
    let (pool, store, carrier) = interrupted(20, 15);
    drop(carrier);
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    is_whole(&pool, &store, passed, 5);
    let objects = |pool: &TestPool| pool.carrier(store.place()).unwrap().note().unfinished;
    assert!(!objects(&pool), "nothing is left to go on with");
}

/// What was put long before the newest batch may be about to be removed, and is put again.
///
/// Proves E2, E6.
#[test]
fn what_garbage_collection_may_remove_is_put_again() {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let bytes = noise(100, LEN);
    pool.edit(|edit| edit.file(ROOT, b"file", &[&bytes], true));
    pool.carrier(store.place()).unwrap().pass().unwrap();
    pool.edit(|edit| {
        edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: b"file".as_slice().into() }));
    });
    pool.carrier(store.place()).unwrap().pass().unwrap();
    // The next carrier is killed; what it has put is from before the newest batch, by an hour and more.
    pool.edit(|edit| {
        for seed in 0..10 {
            edit.file(ROOT, seed.to_string().as_bytes(), &[&noise(seed, LEN)], true);
        }
    });
    let mut carrier = pool.carrier(store.place()).unwrap();
    store.fail_after(9);
    carrier.pass().unwrap_err();
    drop(carrier);
    store.fail_after(i64::MAX);
    store.age_objects(2 * 60 * 60);
    let repository = Repository::new(store.place());
    let mut carrier = pool.carrier(store.place()).unwrap();
    assert!(carrier.note().unfinished);
    // Somebody else does it, just now.
    let removed = collect(&repository, Keep { trees: 1000, last: 1, objects: 60 * 60 }, false, &|_, _| {}).unwrap();
    assert!(removed.objects >= 9, "{removed:?}");
    let passed = carrier.pass().unwrap();
    is_whole(&pool, &store, passed, 10);
}

/// As above, in a directory.
#[test]
fn a_directory_is_gone_on_with() {
    let (pool, store, carrier) = interrupted(20, 15);
    drop(carrier);
    let remote = pool.dir.path().join("remote");
    let place = || Place::make(&format!("file://{}", remote.display()), &Access::default()).unwrap();
    let made = place();
    for (path, bytes) in store.objects() {
        assert!(made.put_new(path.as_ref(), bytes).unwrap());
    }
    // One that is not whole yet is none.
    let found = fs::read_dir(remote.join("objects")).unwrap().next().unwrap().unwrap().path();
    fs::write(found.join(format!("{}#1", "0".repeat(64))), "some").unwrap();
    let passed = pool.carrier(place()).unwrap().pass().unwrap();
    assert_eq!(passed.put as usize, 5 * LEN);
    assert_eq!(restored(place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

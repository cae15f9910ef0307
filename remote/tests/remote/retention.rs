//! What garbage collection keeps.

use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_remote::check::check;
use tensorfs_remote::gc::{Keep, collect};
use tensorfs_remote::repository::Repository;

use crate::pools::{TestPool, noise, restored, seen};
use crate::stores::Recorded;

/// Proves E6.
#[test]
fn what_the_retention_names_stays_and_the_rest_goes() {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let carry = |pool: &TestPool| pool.carrier(store.place()).unwrap().pass().unwrap();
    pool.edit(|edit| edit.file(ROOT, b"old", &[&noise(1, 2 << 20)], true));
    carry(&pool);
    pool.edit(|edit| {
        edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: b"old".as_slice().into() }));
        edit.file(ROOT, b"new", &[&noise(2, 2 << 20)], true);
    });
    carry(&pool);
    let repository = Repository::new(store.place());
    // As long as the first batch is within the retention, or there is no base to begin at, all stays.
    for (trees, with_base) in [(1000, false), (0, false), (1000, true)] {
        if with_base {
            repository.put_base(&mut repository.newest().unwrap()).unwrap();
        }
        let removed = collect(&repository, Keep { trees, objects: -1 }, false).unwrap();
        assert_eq!((removed.trees, removed.objects), (0, 0), "{trees} {with_base}");
    }
    let would = collect(&repository, Keep { trees: 0, objects: -1 }, true).unwrap();
    assert_eq!((would.trees, would.objects, would.bytes), (2, 1, 2 << 20));
    assert_eq!(collect(&repository, Keep { trees: 0, objects: -1 }, false).unwrap(), would);
    let report = check(&repository, true, &|_, _| {}).unwrap();
    assert!(report.findings.is_empty() && report.others == 0, "{report:?}");
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
    // And the pool goes on where it was.
    pool.edit(|edit| edit.file(ROOT, b"newer", &[b"1"], true));
    carry(&pool);
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy-2")).unwrap().1, seen(&pool.path()));
}

/// What was removed while the carrier was at work is put again when a file has it.
///
/// Proves E6.
#[test]
fn a_carrier_knows_what_it_has_removed() {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let bytes = noise(1, 2 << 20);
    pool.edit(|edit| edit.file(ROOT, b"old", &[&bytes], true));
    let mut carrier = pool.carrier(store.place()).unwrap();
    carrier.pass().unwrap();
    pool.edit(|edit| {
        edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: b"old".as_slice().into() }));
    });
    carrier.pass().unwrap();
    carrier.repository().put_base(&mut carrier.repository().newest().unwrap()).unwrap();
    let removed = carrier.collect(Keep { trees: 0, objects: -1 }, false).unwrap();
    assert_eq!((removed.trees, removed.objects), (2, 1));
    pool.edit(|edit| edit.file(ROOT, b"again", &[&bytes], true));
    assert_eq!(carrier.pass().unwrap().put, 2 << 20);
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

/// As above, where the store failed in the middle.
///
/// Proves E6.
#[test]
fn a_carrier_does_not_rely_on_what_it_may_have_removed() {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let bytes = [noise(1, 2 << 20), noise(2, 2 << 20)];
    let removal = |name: &[u8]| Transaction::new(0).with(Record::Removal { dir: ROOT, name: name.into() });
    pool.edit(|edit| {
        edit.file(ROOT, b"a", &[&bytes[0]], true);
        edit.file(ROOT, b"b", &[&bytes[1]], true);
    });
    let mut carrier = pool.carrier(store.place()).unwrap();
    carrier.pass().unwrap();
    pool.edit(|edit| [b"a", b"b"].map(|name| edit.store(removal(name))));
    carrier.pass().unwrap();
    carrier.repository().put_base(&mut carrier.repository().newest().unwrap()).unwrap();
    // Two batches and one object.
    store.fail_after(3);
    carrier.collect(Keep { trees: 0, objects: -1 }, false).unwrap_err();
    store.fail_after(i64::MAX);
    assert!(!carrier.wants_collection() && carrier.note().collect_error.is_some());
    pool.edit(|edit| {
        edit.file(ROOT, b"a", &[&bytes[0]], true);
        edit.file(ROOT, b"b", &[&bytes[1]], true);
    });
    carrier.pass().unwrap();
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
    carrier.collect(Keep { trees: 0, objects: -1 }, false).unwrap();
    assert_eq!(carrier.note().collect_error, None);
}

/// A pool that does not change asks its remote nothing, and has lost it meanwhile.
///
/// Proves E5, E6.
#[test]
fn who_has_lost_a_remote_removes_nothing_from_it() {
    let (mut pool, mut other) = (TestPool::new(), TestPool::new());
    let store = Recorded::new();
    pool.edit(|edit| edit.file(ROOT, b"a", &[&noise(1, 2 << 20)], true));
    let mut carrier = pool.carrier(store.place()).unwrap();
    carrier.pass().unwrap();
    other.edit(|edit| edit.file(ROOT, b"b", &[&noise(2, 2 << 20)], true));
    crate::carrying::take_over(&other, &store);
    other.carrier(store.place()).unwrap().pass().unwrap();
    let repository = Repository::new(store.place());
    repository.put_base(&mut repository.newest().unwrap()).unwrap();
    let before = store.objects();
    let refused = carrier.collect(Keep { trees: 0, objects: -1 }, false).unwrap_err();
    assert!(matches!(refused, tensorfs_remote::Error::Fenced { .. }), "{refused}");
    assert!(store.objects() == before);
}

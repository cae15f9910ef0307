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

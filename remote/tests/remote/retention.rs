//! What garbage collection keeps.

use object_store::path::Path;
use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_remote::check::check;
use tensorfs_remote::gc::{Keep, Removed, collect, collect_for};
use tensorfs_remote::repository::{Repository, object_name};

use crate::pools::{TestPool, noise, restored, seen};
use crate::stores::Recorded;

/// What is left when the time is over goes the next time, which is soon, and batches may come between.
///
/// Proves E6.
#[test]
fn a_collection_that_has_no_time_left_goes_on_the_next_time() {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    pool.edit(|edit| edit.file(ROOT, b"file", &[&noise(1, 2 << 20)], true));
    let mut carrier = pool.carrier(store.place()).unwrap();
    carrier.pass().unwrap();
    let repository = Repository::new(store.place());
    let mut puts = repository.place().puts();
    for number in 0..2500_u32 {
        let bytes = bytes::Bytes::copy_from_slice(&number.to_le_bytes());
        puts.put(object_name(repository.hash(&bytes)), bytes).unwrap();
    }
    puts.finish().unwrap();
    let keep = Keep { trees: 0, last: 1, objects: -1 };
    let none = Some(std::time::Duration::ZERO);
    for (expected, more) in [(1000, true), (1000, true), (500, false)] {
        assert!(carrier.wants_collection());
        let removed = carrier.collect_for((keep, none), false, &|_, _| {}).unwrap();
        assert_eq!((removed.objects, removed.bytes, removed.more), (expected, 4 * expected, more));
        pool.edit(|edit| edit.file(ROOT, format!("new-{expected}-{more}").as_bytes(), &[b"bytes"], true));
        carrier.pass().unwrap();
    }
    assert!(!carrier.wants_collection());
    let nothing = collect_for(&repository, (keep, none), false, &|_, _| {}).unwrap();
    assert_eq!((nothing.objects, nothing.more), (0, false));
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

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
    // As long as the first batch is within the retention, all stays.
    for (trees, with_base) in [(1000, false), (1000, true)] {
        if with_base {
            repository.put_base(&mut repository.newest().unwrap()).unwrap();
        }
        let removed = collect(&repository, Keep { trees, last: 1, objects: -1 }, false, &|_, _| {}).unwrap();
        assert_eq!((removed.trees, removed.objects), (0, 0), "{trees} {with_base}");
    }
    let would = collect(&repository, Keep { trees: 0, last: 1, objects: -1 }, true, &|_, _| {}).unwrap();
    assert_eq!((would.trees, would.objects, would.bytes), (2, 1, 2 << 20));
    assert_eq!(collect(&repository, Keep { trees: 0, last: 1, objects: -1 }, false, &|_, _| {}).unwrap(), would);
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
    let removed = carrier.collect(Keep { trees: 0, last: 1, objects: -1 }, false, &|_, _| {}).unwrap();
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
    carrier.collect(Keep { trees: 0, last: 1, objects: -1 }, false, &|_, _| {}).unwrap_err();
    store.fail_after(i64::MAX);
    assert!(!carrier.wants_collection() && carrier.note().collection.collect_error.is_some());
    pool.edit(|edit| {
        edit.file(ROOT, b"a", &[&bytes[0]], true);
        edit.file(ROOT, b"b", &[&bytes[1]], true);
    });
    carrier.pass().unwrap();
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
    carrier.collect(Keep { trees: 0, last: 1, objects: -1 }, false, &|_, _| {}).unwrap();
    assert_eq!(carrier.note().collection.collect_error, None);
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
    let refused = carrier.collect(Keep { trees: 0, last: 1, objects: -1 }, false, &|_, _| {}).unwrap_err();
    assert!(matches!(refused, tensorfs_remote::Error::Fenced { .. }), "{refused}");
    assert!(store.objects() == before);
}

/// A pool with so many batches, in each of which one file of 2 MiB takes the place of the one before, and a store that
/// has put each an hour after the one before.
fn replaced(batches: u64) -> (TestPool, std::sync::Arc<Recorded>, Vec<crate::pools::Seens>) {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let mut trees = vec![crate::pools::Seens::new()];
    for round in 1..=batches {
        pool.edit(|edit| {
            if round > 1 {
                let name = format!("step-{}", round - 1).into_bytes();
                edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: name.into() }));
            }
            edit.file(ROOT, format!("step-{round}").as_bytes(), &[&noise(round, 2 << 20)], true);
        });
        pool.carrier(store.place()).unwrap().pass().unwrap();
        trees.push(seen(&pool.path()));
    }
    store.hour_each(true);
    (pool, store, trees)
}

/// Which trees can be had, and that those are what they were.
fn to_be_had(store: &std::sync::Arc<Recorded>, trees: &[crate::pools::Seens]) -> Vec<u64> {
    let repository = Repository::new(store.place());
    let (scratch, mut had) = (tempfile::tempdir().unwrap(), Vec::new());
    for number in 1..trees.len() as u64 {
        let Ok(tree) = repository.tree_at(Some(number)) else { continue };
        let copy = scratch.path().join(number.to_string());
        tensorfs_remote::restore::restore(&repository, &tree, &copy, &|_, _| {}).unwrap();
        assert!(seen(&copy) == trees[number as usize], "batch {number}");
        had.push(number);
    }
    let mut listed = Vec::new();
    repository.each_tree(|tree| listed.push(tree.number())).unwrap();
    assert_eq!(listed, had, "what is listed is what can be had");
    had
}

/// By age, by number, and by both: what either keeps, is kept; and all else goes, though the carrier has put no base.
///
/// Proves E6.
#[test]
fn so_many_trees_are_kept_however_old_they_are() {
    const HOUR: i64 = 3600;
    for (trees, last, had) in [
        (0, 1, vec![8]),
        (0, 3, vec![6, 7, 8]),
        (0, 100, (1..=8).collect()),
        (2 * HOUR, 1, vec![6, 7, 8]),
        (2 * HOUR + 1, 1, vec![5, 6, 7, 8]),
        (2 * HOUR, 5, vec![4, 5, 6, 7, 8]),
        (4 * HOUR, 2, vec![4, 5, 6, 7, 8]),
        (1000 * HOUR, 1, (1..=8).collect()),
    ] {
        let (mut pool, store, mut all) = replaced(8);
        let repository = Repository::new(store.place());
        let keep = Keep { trees, last, objects: -1 };
        let before = store.objects();
        let would = collect(&repository, keep, true, &|_, _| {}).unwrap();
        assert!(store.objects() == before, "who only looks changes nothing");
        assert_eq!(collect(&repository, keep, false, &|_, _| {}).unwrap(), would, "{trees} {last}");
        assert_eq!((would.trees == 0, would.objects), (had.len() == 8, 8 - had.len() as u64), "{trees} {last}");
        assert_eq!(to_be_had(&store, &all), had, "{trees} {last}");
        assert!(check(&repository, true, &|_, _| {}).unwrap().findings.is_empty());
        // Again, there is nothing to remove; and the pool goes on.
        assert_eq!(collect(&repository, keep, false, &|_, _| {}).unwrap().objects, 0);
        pool.edit(|edit| edit.file(ROOT, b"more", &[b"1"], true));
        pool.carrier(store.place()).unwrap().pass().unwrap();
        all.push(seen(&pool.path()));
        assert_eq!(to_be_had(&store, &all), [had, vec![9]].concat(), "{trees} {last}");
    }
}

/// A pool to which nothing happens keeps what it has: that a collection has put a base is no reason to remove anything.
///
/// Proves E6.
#[test]
fn what_one_collection_keeps_the_next_one_keeps() {
    const HOUR: i64 = 3600;
    let (_pool, store, all) = replaced(8);
    let repository = Repository::new(store.place());
    // What has arrived for a batch that is about to be: nobody names it yet.
    let early = tensorfs_remote::repository::Hash::of(b"early");
    let early = tensorfs_remote::repository::object_name(early);
    let keep = Keep { trees: 3 * HOUR, last: 1, objects: 9 * HOUR };
    store.spoil(&Path::from(early.as_str()), bytes::Bytes::from_static(b"early"));
    assert!(collect(&repository, keep, false, &|_, _| {}).unwrap().trees > 0);
    assert_eq!(to_be_had(&store, &all), [5, 6, 7, 8]);
    let before = store.objects();
    for _ in 0..2 {
        assert_eq!(collect(&repository, keep, false, &|_, _| {}).unwrap(), Removed::default());
        assert!(store.objects() == before);
    }
    assert_eq!(to_be_had(&store, &all), [5, 6, 7, 8]);
    assert!(before.iter().any(|(path, _)| path.as_ref() == early));
}

/// Once and again: what is kept moves on.
///
/// Proves E6.
#[test]
fn what_is_kept_moves_on_with_the_batches() {
    let (mut pool, store, mut all) = replaced(4);
    let repository = Repository::new(store.place());
    for number in 5..=12_u64 {
        collect(&repository, Keep { trees: 0, last: 3, objects: -1 }, false, &|_, _| {}).unwrap();
        assert_eq!(to_be_had(&store, &all), [number - 3, number - 2, number - 1]);
        let bases = store.objects().iter().filter(|(path, _)| path.as_ref().starts_with("base/")).count();
        assert_eq!(bases, 1, "there is one base, and not one for each time");
        pool.edit(|edit| edit.file(ROOT, format!("f-{number}").as_bytes(), &[&noise(number, 2000)], true));
        pool.carrier(store.place()).unwrap().pass().unwrap();
        all.push(seen(&pool.path()));
    }
}

/// At each change of a collection, the trees that it keeps are there.
///
/// Proves E6.
#[test]
fn a_collection_that_ends_at_any_moment_keeps_what_it_is_to_keep() {
    for changes in 0.. {
        let (_pool, store, all) = replaced(5);
        let repository = Repository::new(store.place());
        let keep = Keep { trees: 0, last: 2, objects: -1 };
        store.fail_after(changes);
        let failed = collect(&repository, keep, false, &|_, _| {}).is_err();
        store.fail_after(i64::MAX);
        let had = to_be_had(&store, &all);
        assert!(had.ends_with(&[4, 5]), "after {changes} changes: {had:?}");
        collect(&repository, keep, false, &|_, _| {}).unwrap();
        assert_eq!(to_be_had(&store, &all), [4, 5]);
        if !failed {
            assert!(changes >= 6, "{changes}");
            return;
        }
    }
}

/// What is to rest on a batch that cannot be read stays.
///
/// Proves E4, E6.
#[test]
fn nothing_is_removed_for_a_base_that_cannot_be_made() {
    let (_pool, store, _) = replaced(5);
    let objects = store.objects();
    let (path, whole) = objects.iter().find(|(path, _)| path.as_ref() == "log/000000000002").unwrap();
    store.spoil(path, whole.slice(..whole.len() - 1));
    let repository = Repository::new(store.place());
    let keep = Keep { trees: 0, last: 2, objects: -1 };
    let outcome = collect(&repository, keep, false, &|_, _| {});
    assert!(outcome.is_err() || outcome.unwrap().objects == 0);
    store.spoil(path, whole.clone());
    assert!(store.objects() == objects);
    // A base that is damaged is made anew where it is needed.
    repository.put_base(&mut repository.tree_at(Some(4)).unwrap()).unwrap();
    store.spoil(&"base/000000000004".into(), bytes::Bytes::from_static(b"spoiled"));
    assert!(collect(&repository, keep, false, &|_, _| {}).unwrap().objects > 0);
    repository.from_base(Some(4)).unwrap();
}

/// Whoever cannot read a base for a moment does not take it for damaged, and puts no other in its place.
///
/// Proves E6.
#[test]
fn a_base_that_cannot_be_read_for_a_moment_stays() {
    let (_pool, store, _) = replaced(5);
    let repository = Repository::new(store.place());
    repository.put_base(&mut repository.tree_at(Some(4)).unwrap()).unwrap();
    let (objects, events) = (store.objects(), store.events().len());
    store.fail_to_read("base/000000000004");
    let keep = Keep { trees: 0, last: 2, objects: -1 };
    let failed = collect(&repository, keep, false, &|_, _| {}).unwrap_err();
    assert!(matches!(failed, tensorfs_remote::Error::Store { .. }), "{failed}");
    assert!(store.objects() == objects && store.events().len() == events, "something was changed");
    assert!(collect(&repository, keep, false, &|_, _| {}).unwrap().objects > 0);
}

/// A listing of which a page was lost on its way is not what is there: what the batches on it name is needed.
///
/// Proves E6.
#[test]
fn nothing_is_removed_by_a_listing_with_a_gap() {
    let (mut pool, store, mut all) = replaced(8);
    for round in 9..=10 {
        pool.edit(|edit| edit.file(ROOT, format!("kept-{round}").as_bytes(), &[&noise(round, 2 << 20)], true));
        pool.carrier(store.place()).unwrap().pass().unwrap();
        all.push(seen(&pool.path()));
    }
    let repository = Repository::new(store.place());
    // What batch 9 alone names, the newest tree needs.
    let keep = Keep { trees: 0, last: 3, objects: -1 };
    let before = store.objects();
    for number in 2..=9 {
        store.leave_out(Some(&format!("log/{number:012}")));
        let refused = collect(&repository, keep, false, &|_, _| {}).unwrap_err().to_string();
        assert!(refused.contains("nothing is removed"), "{refused}");
        assert!(store.objects() == before, "batch {number}");
    }
    store.leave_out(None);
    assert!(collect(&repository, keep, false, &|_, _| {}).unwrap().objects > 0);
    assert_eq!(to_be_had(&store, &all), [8, 9, 10]);
}

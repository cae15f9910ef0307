//! Who has lost a remote, and hears of it when those who took it over have removed what he would have met.

use std::sync::Arc;

use tensorfs_layout::ROOT;
use tensorfs_remote::Error;
use tensorfs_remote::carry::Carrier;
use tensorfs_remote::check::check;
use tensorfs_remote::gc::{Keep, collect};
use tensorfs_remote::repository::{Hash, Repository, batch_name};

use crate::carrying::take_over;
use crate::pools::{TestPool, noise, restored, seen};
use crate::stores::Recorded;

const LAST: Keep = Keep { trees: 0, last: 1, objects: -1 };

/// A pool that stands at batch `at` with something more to carry, and another one that has taken its remote over, has
/// gone on to a later batch, and has removed all before that.
struct Lost {
    pool: TestPool,
    carrier: Carrier,
    other: TestPool,
    store: Arc<Recorded>,
}

impl Lost {
    fn new(at: u64) -> Self {
        let (mut pool, mut other) = (TestPool::new(), TestPool::new());
        let store = Recorded::new();
        let mut carrier = pool.carrier(store.place()).unwrap();
        for round in 0..at {
            pool.edit(|edit| edit.file(ROOT, format!("a-{round}").as_bytes(), &[&noise(round, 2 << 20)], true));
            carrier.pass().unwrap();
        }
        take_over(&other, &store);
        for round in 0..3 {
            other.edit(|edit| edit.file(ROOT, format!("b-{round}").as_bytes(), &[&noise(50 + round, 9000)], true));
            other.carrier(store.place()).unwrap().pass().unwrap();
        }
        other.carrier(store.place()).unwrap().collect(LAST, false, &|_, _| {}).unwrap();
        pool.edit(|edit| edit.file(ROOT, b"late", &[&noise(99, 2 << 20)], true));
        Self { pool, carrier, other, store }
    }
}

/// The names of bases and batches.
fn batches(store: &Arc<Recorded>) -> Vec<String> {
    let names = store.objects().into_iter().map(|(path, _)| path.to_string());
    names.filter(|name| !name.starts_with("objects/")).collect()
}

/// The remote is the other one's, and it goes on.
#[track_caller]
fn is_the_others(other: &mut TestPool, store: &Arc<Recorded>, at: u64) {
    let repository = Repository::new(store.place());
    assert_eq!(repository.newest().unwrap().number(), at);
    let copy = tempfile::tempdir().unwrap();
    let (_, found) = restored(store.place(), &copy.path().join("copy")).unwrap();
    assert!(found == seen(&other.path()));
    let mut listed = Vec::new();
    repository.each_tree(|tree| listed.push(tree.number())).unwrap();
    assert_eq!(listed, [at], "what was removed, and what is nobody's, is not listed");
    let report = check(&repository, true, &|_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    other.edit(|edit| edit.file(ROOT, format!("more-{at}").as_bytes(), &[b"1"], true));
    other.carrier(store.place()).unwrap().pass().unwrap();
    assert_eq!(repository.newest().unwrap().number(), at + 1);
    collect(&repository, LAST, false, &|_, _| {}).unwrap();
    assert_eq!(batches(store).len(), 1, "one base, and nothing else");
}

/// The number of its next batch is free again, and it does not get it.
///
/// Proves E5.
#[test]
fn who_has_lost_a_remote_is_refused_when_nothing_is_in_its_way_any_more() {
    for at in [0, 1, 3] {
        let mut lost = Lost::new(at);
        let (note, before) = (lost.carrier.note().clone(), batches(&lost.store));
        for _ in 0..2 {
            let refused = lost.carrier.pass().unwrap_err();
            assert!(matches!(refused, Error::Fenced { number, .. } if number > at), "{refused}");
            assert_eq!(batches(&lost.store), before, "at {at}");
        }
        let now = lost.carrier.note();
        assert_eq!((now.number, now.transaction, now.carried), (note.number, note.transaction, note.carried));
        assert!(now.error.is_some(), "`status` tells it");
        is_the_others(&mut lost.other, &lost.store, at + 3);
        drop(lost.carrier);
        let refused = lost.pool.carrier(lost.store.place()).unwrap_err();
        assert!(matches!(refused, Error::Fenced { .. }), "{refused}");
    }
}

/// At each change that it makes: what it leaves is in nobody's way, and goes with its next carrier, or with garbage.
///
/// Proves E5, E6.
#[test]
fn who_has_lost_a_remote_and_ends_at_any_moment_is_in_nobodys_way() {
    let mut strays = 0;
    // An object, the batch, and that this is taken back.
    for (at, changes, then) in (0..3).flat_map(|at| (0..4).flat_map(move |n| (0..3).map(move |then| (at, n, then)))) {
        let mut lost = Lost::new(at);
        let before = batches(&lost.store);
        lost.store.fail_after(changes);
        lost.carrier.pass().unwrap_err();
        lost.store.fail_after(i64::MAX);
        strays += usize::from(batches(&lost.store) != before);
        let Lost { pool, carrier, mut other, store } = lost;
        drop(carrier);
        match then {
            0 => {
                let refused = pool.carrier(store.place()).unwrap_err();
                assert!(matches!(refused, Error::Fenced { .. }), "{refused}");
                assert_eq!(batches(&store), before, "at {at}, {changes} changes");
            }
            1 => {
                let keep = Keep { trees: 1000, ..LAST };
                other.carrier(store.place()).unwrap().collect(keep, false, &|_, _| {}).unwrap();
                assert_eq!(batches(&store), before, "at {at}, {changes} changes");
            }
            _ => {}
        }
        is_the_others(&mut other, &store, at + 3);
    }
    assert!(strays > 0, "none was left");
}

/// Taken over right behind its batch, before it heard that this had arrived: the batch is what the others rest on.
///
/// Proves E5.
#[test]
fn a_batch_that_others_have_gone_on_behind_is_not_taken_back() {
    let (mut pool, mut other) = (TestPool::new(), TestPool::new());
    let store = Recorded::new();
    pool.edit(|edit| edit.file(ROOT, b"a", &[&noise(1, 2 << 20)], true));
    let mut carrier = pool.carrier(store.place()).unwrap();
    store.lose_answers(true);
    carrier.pass().unwrap_err();
    store.lose_answers(false);
    let repository = Repository::new(store.place());
    let bytes = repository.place().get(&batch_name(1)).unwrap().unwrap();
    take_over(&other, &store);
    for round in 0..2 {
        other.edit(|edit| edit.file(ROOT, format!("b-{round}").as_bytes(), &[&noise(2, 2000)], true));
        other.carrier(store.place()).unwrap().pass().unwrap();
    }
    repository.put_base(&mut repository.newest().unwrap()).unwrap();
    // It tries again, by itself or as somebody who comes back from a long sleep in the middle of it.
    assert!(matches!(repository.put_batch(1, &bytes), Err(Error::Fenced { .. })));
    assert!(matches!(carrier.pass(), Err(Error::Fenced { .. })));
    let there = repository.place().get(&batch_name(1)).unwrap().unwrap();
    assert_eq!(Hash::of(&there), Hash::of(&bytes));
    for number in 1..=3 {
        assert_eq!(repository.tree_at(Some(number)).unwrap().number(), number);
    }
}

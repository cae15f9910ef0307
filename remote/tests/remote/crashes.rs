//! Every put of a run, as events: whatever part of them a store has, a restore gives a tree that was promised, or says
//! what is missing.

use object_store::path::Path;
use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_remote::Error;
use tensorfs_remote::gc::{Keep, collect};
use tensorfs_remote::repository::Repository;

use crate::pools::{Seens, TestPool, noise, restored, seen};
use crate::stores::{Event, Recorded};

/// A run of several batches: the events, and the trees after 0, 1, 2 ... batches.
fn run() -> (TestPool, Vec<Event>, Vec<Seens>) {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let mut trees = vec![Seens::new()];
    for round in 0..4_u64 {
        pool.edit(|edit| {
            let dir = edit.make(ROOT, format!("step-{round}").as_bytes(), libc::S_IFDIR | 0o755, |_, _| {});
            edit.file(dir, b"model", &[&noise(7, 2 << 20), &noise(round, 2 << 20)], true);
            edit.file(dir, b"index.json", &[&noise(round + 100, 500)], true);
            if round > 1 {
                let (dir, name) = (edit.lookup("/step-0"), b"index.json".as_slice());
                let old = edit.pool.view().lookup(dir, name);
                old.into_iter().for_each(|_| {
                    edit.store(Transaction::new(0).with(Record::Removal { dir, name: name.into() }));
                });
            }
        });
        let mut carrier = pool.carrier(store.place()).unwrap();
        carrier.pass().unwrap();
        trees.push(seen(&pool.path()));
    }
    (pool, store.events(), trees)
}

fn is_batch(event: &Event) -> bool {
    matches!(event, Event::Put(path, _) if path.as_ref().starts_with("log/"))
}

/// The tree of a store, if it has one; an error must be of what is missing.
fn outcome(store: &std::sync::Arc<Recorded>, scratch: &tempfile::TempDir, count: &mut usize) -> Result<Seens, Error> {
    *count += 1;
    restored(store.place(), &scratch.path().join(count.to_string())).map(|(_, found)| found)
}

/// Proves E1, E2.
#[test]
fn after_every_put_the_tree_is_a_promised_one() {
    let (_pool, events, trees) = run();
    let scratch = tempfile::tempdir().unwrap();
    let mut count = 0;
    for len in 0..=events.len() {
        let batches = events[..len].iter().filter(|event| is_batch(event)).count();
        let found = outcome(&Recorded::of(&events[..len]), &scratch, &mut count);
        match batches {
            0 => assert!(matches!(found, Err(Error::Damaged { .. })), "{found:?}"),
            _ => assert!(found.unwrap() == trees[batches], "after {len} events"),
        }
    }
}

/// Proves E1, E4.
#[test]
fn without_any_one_put_the_tree_is_a_promised_one_or_it_is_said_what_is_missing() {
    let (_pool, events, trees) = run();
    let scratch = tempfile::tempdir().unwrap();
    let mut count = 0;
    for len in 1..=events.len() {
        // A batch comes after all of its objects. One that did not is what a store made of it which lost something.
        for without in 0..len {
            let mut some = events[..len].to_vec();
            some.remove(without);
            let batches = some.iter().filter(|event| is_batch(event)).count();
            match outcome(&Recorded::of(&some), &scratch, &mut count) {
                Ok(found) => assert!(batches > 0 && trees[1..].contains(&found), "{len} events without {without}"),
                Err(Error::Damaged { .. }) => {}
                Err(error) => panic!("{len} events without {without}: {error}"),
            }
        }
    }
}

/// Proves E2.
#[test]
fn a_carrier_that_ends_at_any_moment_is_gone_on_with() {
    for changes in 0.. {
        let mut pool = TestPool::new();
        let store = Recorded::new();
        let mut failed = false;
        for round in 0..3_u64 {
            pool.edit(|edit| {
                let runs: [&[u8]; 3] = [b"header", &noise(7, 1 << 20), &noise(round, 1 << 20)];
                edit.file(ROOT, format!("step-{round}").as_bytes(), &runs, true);
            });
            if round == 1 {
                store.fail_after(changes);
                failed = pool.carrier(store.place()).and_then(|mut carrier| carrier.pass()).is_err();
                store.fail_after(i64::MAX);
            }
            pool.carrier(store.place()).unwrap().pass().unwrap();
            let scratch = tempfile::tempdir().unwrap();
            assert!(restored(store.place(), &scratch.path().join("copy")).unwrap().1 == seen(&pool.path()));
        }
        if !failed {
            assert!(changes >= 2, "it failed only {changes} times");
            return;
        }
    }
}

/// A carrier goes on by itself after its store has failed, at whatever moment: nothing that it failed to put is taken
/// for put.
///
/// Proves E2, E3.
#[test]
fn a_carrier_goes_on_after_its_store_has_failed() {
    for changes in 0.. {
        let mut pool = TestPool::new();
        let store = Recorded::new();
        for round in 0..2_u64 {
            pool.edit(|edit| {
                let runs: [&[u8]; 4] =
                    [b"header", &noise(7, 1 << 20), &noise(round + 20, 1 << 20), &noise(round + 40, 90_000)];
                edit.file(ROOT, format!("step-{round}").as_bytes(), &runs, true);
                edit.file(ROOT, format!("other-{round}").as_bytes(), &[&noise(round + 60, 1 << 20)], true);
            });
            let mut carrier = pool.carrier(store.place()).unwrap();
            if round == 1 {
                store.fail_after(changes);
                let failed = carrier.pass().is_err();
                store.fail_after(i64::MAX);
                if !failed {
                    assert!(changes >= 3, "it failed only {changes} times");
                    return;
                }
            }
            carrier.pass().unwrap();
        }
        let scratch = tempfile::tempdir().unwrap();
        assert!(restored(store.place(), &scratch.path().join("copy")).unwrap().1 == seen(&pool.path()), "{changes}");
    }
}

/// A put that fails for whoever asked, and is done all the same.
#[test]
fn a_batch_that_is_there_though_its_put_failed_is_gone_on_behind() {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let mut carrier = pool.carrier(store.place()).unwrap();
    store.lose_answers(true);
    assert!(carrier.pass().is_err());
    store.lose_answers(false);
    drop(carrier);
    pool.edit(|edit| edit.file(ROOT, b"file", &[b"bytes"], true));
    let mut carrier = pool.carrier(store.place()).unwrap();
    store.lose_answers(true);
    assert!(carrier.pass().is_err());
    store.lose_answers(false);
    // It has another batch to put than that.
    pool.edit(|edit| edit.file(ROOT, b"later", &[b"more"], true));
    carrier.pass().unwrap();
    drop(carrier);
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

/// A batch that got there though its carrier never heard of it is its own.
#[test]
fn a_batch_whose_answer_was_lost_is_known() {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let before = std::fs::read(pool.path().join("remote")).unwrap();
    pool.edit(|edit| edit.file(ROOT, b"file", &[b"bytes"], true));
    // The carrier notes what it is going to put, puts it, and is killed.
    let mut carrier = pool.carrier(store.place()).unwrap();
    carrier.pass().unwrap();
    let hash = carrier.note().hash.unwrap();
    drop(carrier);
    let mut note: tensorfs_remote::carry::Note = serde_json::from_slice(&before).unwrap();
    note.intended = Some(tensorfs_remote::carry::Intended { number: 2, hash });
    std::fs::write(pool.path().join("remote"), serde_json::to_vec(&note).unwrap()).unwrap();
    assert_eq!(pool.carrier(store.place()).unwrap().note().number, 2);
    // With no such note it is somebody else's.
    std::fs::write(pool.path().join("remote"), before).unwrap();
    assert!(matches!(pool.carrier(store.place()), Err(Error::Fenced { .. })));
}

/// Proves E6.
#[test]
fn garbage_collection_may_end_at_any_moment() {
    let (_pool, events, trees) = run();
    let store = Recorded::of(&events);
    let repository = Repository::new(store.place());
    let mut newest = repository.newest().unwrap();
    repository.put_base(&mut newest).unwrap();
    store.spoil(&Path::from("objects/00/garbage"), bytes::Bytes::from_static(b"x"));
    collect(&repository, Keep { trees: 0, last: 1, objects: -1 }, false, &|_, _| {}).unwrap();
    let (all, scratch) = (store.events(), tempfile::tempdir().unwrap());
    let deletes = all.iter().filter(|event| matches!(event, Event::Delete(_))).count();
    assert!(deletes >= 5, "{deletes}");
    let mut count = 0;
    for len in events.len()..=all.len() {
        let found = outcome(&Recorded::of(&all[..len]), &scratch, &mut count).unwrap();
        assert!(found == *trees.last().unwrap(), "after {len} events");
    }
}

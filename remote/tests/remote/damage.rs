//! Flipped bits, cut and lost objects: found by `check --data`, and by whoever restores.

use std::sync::Arc;

use bytes::Bytes;
use tensorfs_remote::check::check;
use tensorfs_remote::place::Place;
use tensorfs_remote::repository::{MARK, Repository};

use crate::encrypted::KeyFile;
use crate::pools::{noise, restored, seen, varied};
use crate::stores::Recorded;

/// Proves E4.
#[test]
fn what_is_damaged_in_any_object_is_found_and_never_restored() {
    is_found(Recorded::place);
}

/// Proves E4, E19.
#[test]
fn what_is_damaged_in_any_object_of_an_encrypted_remote_is_found_and_never_restored() {
    let key = KeyFile::new();
    let made = std::cell::Cell::new(false);
    is_found(|store| if made.replace(true) { key.open(store) } else { key.make(store) });
}

/// Spoils every object of a remote, one after the other, which this opens.
fn is_found(place: impl Fn(&Arc<Recorded>) -> Place) {
    let mut pool = varied();
    let store = Recorded::new();
    pool.carrier(place(&store)).unwrap().pass().unwrap();
    pool.edit(|edit| edit.file(tensorfs_layout::ROOT, b"second", &[&noise(9, 70_000)], true));
    pool.carrier(place(&store)).unwrap().pass().unwrap();
    let repository = Repository::new(place(&store));
    repository.put_base(&mut repository.newest().unwrap()).unwrap();
    let sound = check(&repository, true, &|_, _| {}).unwrap();
    assert!(sound.findings.is_empty() && sound.files == 5, "{sound:?}");
    let expected = seen(&pool.path());
    let (scratch, mut count) = (tempfile::tempdir().unwrap(), 0);
    for (path, whole) in store.objects() {
        let mut spoiled: Vec<Bytes> = vec![Bytes::new(), whole.slice(..whole.len() - 1)];
        for at in [0, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 0x10;
            spoiled.push(bytes.into());
        }
        for bytes in spoiled {
            store.spoil(&path, bytes);
            let report = check(&repository, true, &|_, _| {}).unwrap();
            assert!(!report.findings.is_empty(), "{path} is spoiled, and nothing is found");
            count += 1;
            // The base may stand in for a batch, and the batches for the base: but nothing else is ever given.
            if let Ok((_, found)) = restored(place(&store), &scratch.path().join(count.to_string())) {
                assert!(found == expected, "{path} is spoiled");
                let stands_in = ["log/", "base/", MARK].iter().any(|part| path.as_ref().starts_with(part));
                assert!(stands_in, "{path} is spoiled, and nobody noticed");
            }
        }
        store.spoil(&path, whole);
    }
}

/// A restore that was interrupted is of a batch that is not the newest one any more.
///
/// Proves E2.
#[test]
fn who_goes_on_with_a_restore_is_told_of_which_batch_it_is() {
    let mut pool = varied();
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let expected = seen(&pool.path());
    let objects = store.objects();
    let (path, whole) = objects.iter().find(|(path, _)| path.as_ref().starts_with("objects/")).unwrap();
    store.spoil(path, Bytes::new());
    let copy = pool.dir.path().join("copy");
    restored(store.place(), &copy).unwrap_err();
    store.spoil(path, whole.clone());
    pool.edit(|edit| edit.file(tensorfs_layout::ROOT, b"second", &[&noise(9, 70_000)], true));
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let refused = restored(store.place(), &copy).unwrap_err().to_string();
    assert!(refused.contains("copy.restoring: is the restore of batch 1") && refused.contains("--at 1"), "{refused}");
    let repository = Repository::new(store.place());
    tensorfs_remote::restore::restore(&repository, &repository.tree_at(Some(1)).unwrap(), &copy, &|_, _| {}).unwrap();
    assert!(seen(&copy) == expected);
}

/// Bytes that are spoilt on their way, and what a gateway does not know of yet, are asked for again before anything is
/// called damaged.
///
/// Proves E4.
#[test]
fn what_is_spoilt_on_its_way_is_asked_for_again() {
    let mut pool = varied();
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    pool.edit(|edit| edit.file(tensorfs_layout::ROOT, b"second", &[&noise(9, 70_000)], true));
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let (expected, scratch) = (seen(&pool.path()), tempfile::tempdir().unwrap());
    let objects = store.objects();
    assert!(objects.len() > 4, "{objects:?}");
    for (count, (path, _)) in objects.iter().filter(|(path, _)| path.as_ref() != MARK).enumerate() {
        store.spoil_once(path);
        let (_, found) = restored(store.place(), &scratch.path().join(format!("spoilt-{count}")))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(found == expected, "{path}");
        store.insist_on(path, true);
        let (_, found) = restored(store.place(), &scratch.path().join(format!("late-{count}")))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(found == expected, "{path}");
    }
}

/// A store that refuses a put, and has nothing there yet, is not somebody else's.
///
/// Proves E5.
#[test]
fn a_put_that_is_on_its_way_is_nobody_elses() {
    let mut pool = varied();
    let store = Recorded::new();
    let mut carrier = pool.carrier(store.place()).unwrap();
    carrier.pass().unwrap();
    pool.edit(|edit| edit.file(tensorfs_layout::ROOT, b"second", &[&noise(9, 70_000)], true));
    store.insist_on(&"log/000000000002".into(), true);
    let refused = carrier.pass().unwrap_err();
    assert!(matches!(refused, tensorfs_remote::Error::NotYet(_)), "{refused}");
    store.insist_on(&"log/nothing".into(), false);
    carrier.pass().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    assert!(restored(store.place(), &scratch.path().join("copy")).unwrap().1 == seen(&pool.path()));
}

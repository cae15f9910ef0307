//! Round trips: what a pool has is what a pool has that was made from its remote.

use std::fs;
use std::sync::Arc;

use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_remote::Error;
use tensorfs_remote::carry::Outcome;
use tensorfs_remote::place::{Access, Place};

use crate::pools::{TestPool, noise, restored, seen, varied};
use crate::stores::Recorded;

/// Proves E1.
#[test]
fn what_is_restored_is_what_was_carried() {
    let pool = varied();
    let store = Recorded::new();
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    assert_eq!((passed.outcome, passed.incomplete), (Outcome::Carried, 0));
    let (restored, found) = restored(store.place(), &pool.dir.path().join("copy")).unwrap();
    assert_eq!(found, seen(&pool.path()));
    assert_eq!((restored.files, restored.incomplete.len()), (4, 0));
    // And nothing is left to carry. What has no checksum is read again: nothing else says that it is what it was.
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    assert_eq!((passed.outcome, passed.read, passed.put), (Outcome::Nothing, 11, 0));
}

/// An unsealed file is written in place, which changes neither its size nor its records.
///
/// Proves E1.
#[test]
fn what_is_written_in_place_is_carried() {
    let mut pool = varied();
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    pool.edit(|edit| {
        let ino = edit.lookup("/checkpoints/small");
        let segment = edit.pool.view().object(ino).unwrap().attributes.segment.unwrap();
        let file = edit.pool.segments().open(segment, libc::O_RDWR).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&std::fs::File::from(file), b"other", 0).unwrap();
    });
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    assert_eq!(passed.outcome, Outcome::Carried);
    let (_, found) = restored(store.place(), &pool.dir.path().join("copy")).unwrap();
    assert_eq!(found, seen(&pool.path()));
}

/// As above, in a directory; and what is there already is not overwritten.
#[test]
fn a_directory_is_a_store() {
    let pool = varied();
    let url = format!("file://{}/a b", pool.dir.path().display()).replace(' ', "%20");
    let place = || Place::make(&url, &Access::default()).unwrap();
    pool.carrier(place()).unwrap().pass().unwrap();
    let copy = pool.dir.path().join("copy");
    assert_eq!(restored(place(), &copy).unwrap().1, seen(&pool.path()));
    let again = restored(place(), &copy).unwrap_err().to_string();
    assert!(again.contains("there is something already"), "{again}");
}

/// A file in the format of safetensors.
fn safetensors(name: &str, tensors: &[Vec<u8>]) -> Vec<u8> {
    let mut offset = 0;
    let entries = tensors.iter().enumerate().map(|(at, tensor)| {
        let (start, end) = (offset, offset + tensor.len());
        offset = end;
        format!("\"{name}.{at}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}", tensor.len())
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    tensors.iter().for_each(|tensor| file.extend_from_slice(tensor));
    file
}

/// Proves E3.
#[test]
fn what_did_not_change_is_not_put_again() {
    let mut pool = TestPool::new();
    let mut tensors: Vec<Vec<u8>> = (0..8).map(|seed| noise(seed, 2 << 20)).collect();
    pool.edit(|edit| edit.tensors(ROOT, b"step-1", &safetensors("a", &tensors), &[]));
    let store = Recorded::new();
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    assert!(passed.put >= 16 << 20 && passed.put < (16 << 20) + 2000, "{passed:?}");
    // The next checkpoint has one tensor that is another one; all stand elsewhere in the file, which was written in
    // pieces that are none of the tensors.
    tensors[3] = noise(99, 2 << 20);
    let pieces = [5_000_000, 5_100_000, 11_000_001];
    pool.edit(|edit| edit.tensors(ROOT, b"step-2", &safetensors("a longer name", &tensors), &pieces));
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    assert!(passed.put >= 2 << 20 && passed.put < (2 << 20) + 2000, "{passed:?}");
    // Another name is no bytes at all.
    pool.edit(|edit| {
        let ino = edit.lookup("/step-1");
        edit.store(Transaction::new(0).with(Record::Name { dir: ROOT, name: b"best".as_slice().into(), ino }));
    });
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    assert_eq!((passed.outcome, passed.read, passed.put), (Outcome::Carried, 0, 0));
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

/// Removed, renamed, replaced, emptied, another mode.
#[test]
fn changes_of_every_kind_are_carried() {
    let mut pool = varied();
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    pool.edit(|edit| {
        let (dir, small, model) =
            (edit.lookup("/checkpoints"), edit.lookup("/checkpoints/small"), edit.lookup("/checkpoints/model"));
        let name = |name: &[u8]| name.into();
        edit.store(Transaction::new(0).with(Record::Removal { dir, name: name(b"fifo") }));
        let moved = Transaction::new(0).with(Record::Removal { dir, name: name(b"small") });
        edit.store(moved.with(Record::Name { dir: ROOT, name: name(b"moved"), ino: small }));
        edit.write(model, &[&noise(50, 4 << 20)], false, None);
        let other = edit.file(dir, b"other", &[b"x"], true);
        edit.store(Transaction::new(0).with(Record::Name { dir: ROOT, name: name(b"empty"), ino: other }));
    });
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    assert_eq!(passed.outcome, Outcome::Carried);
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

/// Proves E5.
#[test]
fn of_two_pools_with_one_remote_one_is_refused() {
    let (pool, other) = (varied(), varied());
    let store = Recorded::new();
    // Both believe that the remote is theirs, as both begin while nothing is there.
    let (mut first, mut second) = (pool.carrier(store.place()).unwrap(), other.carrier(store.place()).unwrap());
    first.pass().unwrap();
    let before = store.objects();
    let refused = second.pass().unwrap_err();
    assert!(matches!(refused, Error::Fenced { number: 1, .. }), "{refused}");
    drop(second);
    // It stays so, and what the first one put is as it was.
    assert!(matches!(other.carrier(store.place()).unwrap_err(), Error::Fenced { .. }));
    let named = |objects: &[(object_store::path::Path, bytes::Bytes)]| -> Vec<_> {
        objects.iter().filter(|(path, _)| !path.as_ref().starts_with("objects/")).cloned().collect()
    };
    assert_eq!(named(&before), named(&store.objects()));
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

/// Proves E5.
#[test]
fn a_copy_of_a_pool_cannot_go_on_where_the_pool_did() {
    let mut pool = varied();
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let copy = pool.dir.path().join("copied");
    let status = std::process::Command::new("cp").arg("-a").arg(pool.path()).arg(&copy).status().unwrap();
    assert!(status.success());
    pool.edit(|edit| edit.file(ROOT, b"newer", &[b"1"], true));
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let refused = crate::pools::carrier(&copy, store.place()).unwrap_err();
    assert!(matches!(refused, Error::Fenced { number: 2, .. }), "{refused}");
}

/// A pool that was put back from an old image is older than its copy, which stays.
#[test]
fn an_older_pool_does_not_turn_the_remote_back() {
    let mut pool = varied();
    let store = Recorded::new();
    let image = pool.dir.path().join("image");
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
        assert!(status.success());
    };
    copy(&pool.path(), &image);
    pool.edit(|edit| edit.file(ROOT, b"newer", &[b"1"], true));
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let note = fs::read(pool.path().join("remote")).unwrap();
    fs::remove_dir_all(pool.path()).unwrap();
    copy(&image, &pool.path());
    fs::write(pool.path().join("remote"), note).unwrap();
    let refused = pool.carrier(store.place()).unwrap().pass().unwrap_err().to_string();
    assert!(refused.contains("older than its copy"), "{refused}");
}

/// What a pool that cannot be read has of bytes is not taken for what was sealed.
#[test]
fn damaged_bytes_are_not_carried() {
    let mut pool = TestPool::new();
    let (good, bad) = (noise(1, 100_000), noise(2, 100_000));
    pool.edit(|edit| edit.file(ROOT, b"file", &[&good], true));
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    pool.edit(|edit| edit.file(ROOT, b"new", &[&bad], true));
    let segments = walk(&pool.path().join("segments"));
    for segment in segments.iter().filter(|segment| fs::read(segment).unwrap() == bad) {
        let mut bytes = bad.clone();
        bytes[70_000] ^= 1;
        fs::write(segment, bytes).unwrap();
    }
    let mut carrier = pool.carrier(store.place()).unwrap();
    let passed = carrier.pass().unwrap();
    assert_eq!((passed.outcome, passed.incomplete), (Outcome::Carried, 1));
    let copy = pool.dir.path().join("copy");
    let repository = tensorfs_remote::repository::Repository::new(store.place());
    let restored =
        tensorfs_remote::restore::restore(&repository, &repository.newest().unwrap(), &copy, &|_, _| {}).unwrap();
    assert_eq!(restored.incomplete.len(), 1, "{restored:?}");
    assert!(restored.incomplete[0].starts_with("/new: was damaged"), "{restored:?}");
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(walk(&path)),
            path => found.push(path),
        }
    }
    found
}

/// A tree that needs pages, and many batches, which are gathered in bases.
#[test]
fn long_lists_stand_in_pages_and_bases_gather_batches() {
    let mut pool = TestPool::new();
    let store: Arc<Recorded> = Recorded::new();
    for round in 0..6 {
        pool.edit(|edit| {
            let dir = edit.make(ROOT, format!("d{round}").as_bytes(), libc::S_IFDIR | 0o755, |_, _| {});
            for file in 0..1500 {
                edit.make(dir, format!("a-rather-long-name-{file}").as_bytes(), libc::S_IFREG | 0o600, |_, _| {});
            }
        });
        pool.carrier(store.place()).unwrap().pass().unwrap();
    }
    let names: Vec<String> = store.objects().iter().map(|(path, _)| path.to_string()).collect();
    assert!(names.iter().any(|name| name.starts_with("base/")), "{names:?}");
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

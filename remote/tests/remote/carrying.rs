//! Round trips: what a pool has is what a pool has that was made from its remote.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use tensorfs_layout::ROOT;
use tensorfs_layout::check::Committed;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::pool::Carrying;
use tensorfs_remote::Error;
use tensorfs_remote::carry::{Note, Outcome};
use tensorfs_remote::place::{Access, Place};
use tensorfs_remote::repository::{Repository, State};

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

/// What several files have is fetched once, whether it is an object of its own or in a pack with others.
///
/// Proves E1.
#[test]
fn a_restore_fetches_each_object_once() {
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let mut tensors: Vec<Vec<u8>> = (0..8).map(|seed| noise(seed, 1_100_000)).collect();
    for step in 0..8_u64 {
        tensors[step as usize] = noise(100 + step, 1_100_000);
        pool.edit(|edit| {
            let (model, small) = (safetensors("a", &tensors), noise(200 + step, 100_000));
            edit.tensors(ROOT, format!("step-{step}").as_bytes(), &model, &[]);
            // Of a pack that has them, one is wanted early and the other one late.
            edit.file(ROOT, format!("first-{step}").as_bytes(), &[&small], true);
            edit.file(ROOT, format!("last-{step}").as_bytes(), &[&noise(300 + step, 100_000)], true);
        });
        pool.carrier(store.place()).unwrap().pass().unwrap();
    }
    store.got();
    let copy = pool.dir.path().join("copy");
    assert_eq!(restored(store.place(), &copy).unwrap().1, seen(&pool.path()));
    let got: Vec<(String, usize)> = store.got().into_iter().filter(|(name, _)| name.contains("objects/")).collect();
    let twice: Vec<_> = got.iter().filter(|(_, times)| *times > 1).collect();
    assert!(twice.is_empty() && got.len() == 15 + 8, "{} objects; {twice:?}", got.len());
}

/// All that ends in its own CRC32C has the same one, whatever it is: chunks of arrays, slots of checkpoints.
///
/// Proves E1, E7.
#[test]
fn bytes_that_end_in_their_own_checksum_are_carried_when_they_change() {
    let slot = |seed| {
        let bytes = noise(seed, 300_000);
        let crc = tensorfs_formats::crc32c(&bytes);
        [bytes, crc.to_le_bytes().to_vec()].concat()
    };
    assert_eq!(tensorfs_formats::crc32c(&slot(1)), tensorfs_formats::crc32c(&slot(2)));
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let ino = pool.edit(|edit| edit.file(ROOT, b"slots", &[&slot(1), &slot(2)], true));
    let mut carrier = pool.carrier(store.place()).unwrap();
    carrier.pass().unwrap();
    for (seeds, read) in [([1, 3], 2), ([4, 3], 2), ([5, 6], 2)] {
        pool.edit(|edit| edit.rewrite(ino, 0, &seeds.map(slot).each_ref().map(|slot| &slot[..])));
        let passed = carrier.pass().unwrap();
        assert_eq!(passed.read, read * 300_004, "what was thawed is read");
        let scratch = tempfile::tempdir().unwrap();
        let (_, found) = restored(store.place(), &scratch.path().join("copy")).unwrap();
        assert!(found == seen(&pool.path()), "{seeds:?}");
    }
}

/// Appended to, changed in place, cut, moved and written anew, with carriers that fail, and others that go on: what is
/// not read again is what it was.
///
/// Proves E1, E2, E3.
#[test]
fn whatever_a_file_becomes_is_carried_though_not_all_of_it_is_read() {
    let mut state = 7_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let mut runs: Vec<Vec<u8>> = vec![noise(1, 700_000)];
    let ino = pool.edit(|edit| edit.file(ROOT, b"file", &[&runs[0]], true));
    let mut carrier = pool.carrier(store.place()).unwrap();
    let (mut all, mut read) = (0, 0);
    for step in 0..150 {
        let what = next(12);
        let place = next(runs.len() as u64) as usize;
        let stay = if what > 3 { runs.iter().map(|run| run.len() as u64).sum() } else { 0 };
        match what {
            0 if !runs[place].is_empty() => {
                let byte = next(runs[place].len() as u64) as usize;
                runs[place][byte] ^= 1;
            }
            1 => runs.truncate(place + 1),
            2 => {
                let len = 1 + next(runs[place].len() as u64) as usize;
                runs.truncate(place + 1);
                runs[place].truncate(len);
            }
            3 => runs = vec![runs.concat()],
            _ => runs.push(noise(step + 100, 1 + next(200_000) as usize)),
        }
        let parts: Vec<&[u8]> = runs.iter().map(|run| &**run).collect();
        let is_moved = next(10) == 0;
        pool.edit(|edit| if is_moved { edit.write(ino, &parts, true, None) } else { edit.rewrite(ino, stay, &parts) });
        if next(5) == 0 {
            drop(carrier);
            carrier = pool.carrier(store.place()).unwrap();
        }
        if next(4) == 0 {
            store.fail_after(next(4) as i64);
            let _ = carrier.pass();
            store.fail_after(i64::MAX);
        } else {
            let passed = carrier.pass().unwrap();
            (all, read) = (all + parts.iter().map(|run| run.len() as u64).sum::<u64>(), read + passed.read);
            let scratch = tempfile::tempdir().unwrap();
            let found = restored(store.place(), &scratch.path().join("copy")).unwrap().1;
            assert!(found == seen(&pool.path()), "step {step}: {what}");
        }
    }
    // What was thawed or moved is read, and nothing else.
    assert!(read < all * 2 / 3, "{read} of {all}");
    assert!(carrier.newest().tree.parts().count() < 40, "it has too many parts");
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

/// The note of a pool as `remote set --take-over` leaves it.
pub fn take_over(pool: &TestPool, store: &Arc<Recorded>) {
    let uuid = Committed::read(&pool.path()).unwrap().superblock().uuid_text();
    let newest = Repository::new(store.place()).newest().unwrap();
    let note = Note { pool: uuid, number: newest.number(), hash: newest.hash, ..Note::default() };
    note.keep(&Carrying::take(&pool.path()).unwrap().unwrap()).unwrap();
}

/// Of a sparse file, wherever its holes are, only what is stored is read and put, and comes back; holes that are too
/// short to be left out are zeroes.
///
/// Proves E1, F5.
#[test]
fn holes_are_stored_by_nothing() {
    const PAGE: usize = 4096;
    let mut pool = TestPool::new();
    // Holes of a page, and of a megabyte.
    let place = |n: u64| (n / 2) * (1 << 20) + (n % 2) * 2 * PAGE as u64;
    let pieces: Vec<(u64, Vec<u8>)> = (0..64).map(|n| (place(n), noise(n, PAGE))).collect();
    pool.edit(|edit| edit.sparse(ROOT, b"sparse", 33 << 20, &pieces));
    let store = Recorded::new();
    let passed = pool.carrier(store.place()).unwrap().pass().unwrap();
    let most = (64 + 32) * PAGE as u64;
    assert!(passed.read <= most && passed.put <= most + 4096, "{passed:?}");
    let copy = pool.dir.path().join("copy");
    assert_eq!(restored(store.place(), &copy).unwrap().1, seen(&pool.path()));
    let blocks = |pool: &std::path::Path| -> u64 {
        walk(&pool.join("segments")).iter().map(|path| fs::metadata(path).unwrap().blocks()).sum()
    };
    assert!(blocks(&copy) * 512 <= 2 * most, "{} of {}", blocks(&copy), blocks(&pool.path()));
}

/// Numbers of inodes are a pool's own: what another one had under a number is another file.
///
/// Proves E1, E4.
#[test]
fn a_file_that_cannot_be_read_has_no_bytes_of_the_pool_before() {
    let (mut first, mut second) = (TestPool::new(), TestPool::new());
    let store = Recorded::new();
    let number = first.edit(|edit| edit.file(ROOT, b"first", &[&noise(1, 100_000)], true));
    first.carrier(store.place()).unwrap().pass().unwrap();
    let bytes = noise(2, 100_000);
    let same = second.edit(|edit| edit.file(ROOT, b"second", &[&bytes], true));
    assert_eq!(number, same);
    flip(&second, &bytes);
    take_over(&second, &store);
    let passed = second.carrier(store.place()).unwrap().pass().unwrap();
    assert_eq!((passed.outcome, passed.incomplete), (Outcome::Carried, 1));
    let newest = Repository::new(store.place()).newest().unwrap();
    let file = newest.tree.entry(number.0).unwrap().file.clone().unwrap();
    assert_eq!((file.state, file.parts), (State::Damaged, Vec::new()));
}

/// A pool that was restored, and is as it was, takes its remote over with a batch of its own.
///
/// Proves E5.
#[test]
fn who_takes_over_puts_a_batch_of_its_own() {
    let pool = TestPool::new();
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let copy = TestPool::new();
    take_over(&copy, &store);
    let mut carrier = copy.carrier(store.place()).unwrap();
    let outcomes = [(); 2].map(|()| carrier.pass().unwrap().outcome);
    assert_eq!(outcomes, [Outcome::Carried, Outcome::Nothing]);
    let head = Repository::new(store.place()).newest().unwrap().head.unwrap();
    assert_eq!(head.pool, Committed::read(&copy.path()).unwrap().superblock().uuid_text());
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
    flip(&pool, &bad);
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

/// Flips a bit in the segment with these bytes; gives it and what it has now.
fn flip(pool: &TestPool, bytes: &[u8]) -> (std::path::PathBuf, Vec<u8>) {
    let segments = walk(&pool.path().join("segments"));
    let segment = segments.into_iter().find(|segment| fs::read(segment).unwrap() == bytes).unwrap();
    let mut flipped = bytes.to_vec();
    flipped[70_000] ^= 1;
    fs::write(&segment, &flipped).unwrap();
    (segment, flipped)
}

/// What could not be read once may have been a disk that was not there for a moment.
///
/// Proves E1.
#[test]
fn what_was_damaged_is_looked_at_again_by_the_same_carrier() {
    let mut pool = TestPool::new();
    let bytes = noise(1, 100_000);
    let ino = pool.edit(|edit| edit.file(ROOT, b"file", &[&bytes], true));
    let (segment, _) = flip(&pool, &bytes);
    let store = Recorded::new();
    let mut carrier = pool.carrier(store.place()).unwrap();
    carrier.look_again_after(Duration::ZERO);
    assert_eq!(carrier.pass().unwrap().incomplete, 1);
    // As long as nothing changes, nothing is told anew.
    assert_eq!(carrier.pass().unwrap().outcome, Outcome::Nothing);
    fs::write(segment, &bytes).unwrap();
    let passed = carrier.pass().unwrap();
    assert_eq!((passed.outcome, passed.incomplete), (Outcome::Carried, 0));
    assert_eq!(carrier.newest().tree.entry(ino.0).unwrap().file.as_ref().unwrap().state, State::Whole);
    assert_eq!(restored(store.place(), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
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

/// A store answers many requests at a time: objects of one file, and those of files that come next.
///
/// Proves E2.
#[test]
fn what_is_restored_is_fetched_beside_each_other() {
    for of_one_file in [true, false] {
        let mut pool = TestPool::new();
        pool.edit(|edit| {
            if of_one_file {
                let large = [1, 2].map(|byte| vec![byte; 48 << 20]);
                edit.file(ROOT, b"file", &[&large[0], &large[1]], true);
            } else {
                for at in 0..6 {
                    edit.file(ROOT, format!("file-{at}").as_bytes(), &[&noise(at, 6 << 20)], true);
                }
            }
        });
        let store = Recorded::new();
        pool.carrier(store.place()).unwrap().pass().unwrap();
        let objects = store.objects().iter().filter(|(path, _)| path.as_ref().starts_with("objects/")).count();
        let expected = if of_one_file { 2 } else { 3 };
        assert!(objects >= expected, "{objects}");
        let slow = Recorded::slow(&store.events());
        let restored = restored(slow.place(), &pool.dir.path().join("copy")).unwrap().1;
        assert!(restored == seen(&pool.path()));
        assert!(slow.most_reads() >= expected, "{of_one_file}: {} at a time", slow.most_reads());
    }
}

//! Files by value: faults that their recovery, their settling and the checks of a pool in use must not have.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tensorfs_layout::check::check_in_use;
use tensorfs_layout::log::{Attributes, Origin, Record};
use tensorfs_layout::pool::{CreateOptions, LIMIT_MIN, Pool};
use tensorfs_layout::segment::Reason;
use tensorfs_layout::{ROOT, SegmentId, Timestamp};

const FILE: u32 = libc::S_IFREG | 0o644;

fn overwrite(pool: &Pool, segment: SegmentId, bytes: &[u8]) {
    let file = fs::File::from(pool.segments().open(segment, libc::O_RDWR).unwrap());
    file.write_all_at(bytes, 0).unwrap();
}

/// Each segment that is to be synced holds a descriptor, of which there are 1024 by default.
#[test]
fn recovery_of_many_values_does_not_need_a_descriptor_for_each() {
    const ALONE: &str = "TENSORFS_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        // In a process of its own: the limit is that of all tests of a process.
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "values::recovery_of_many_values_does_not_need_a_descriptor_for_each"]).env(ALONE, "1");
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    for boot in [BOOT, NEXT_BOOT] {
        let scratch = Scratch::new(1 << 20);
        let (pool, medium) = scratch.first_open();
        for n in 0..600 {
            let (_, segment) = file_by_value(&pool, &format!("f{n}"), b"bytes");
            if n % 2 == 0 {
                overwrite(&pool, segment, b"other bytes");
            }
        }
        let image = medium.after_power_loss(|| false);
        drop(pool);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 450.min(hard), hard).unwrap();
        let (opened, _medium) = scratch.try_open(image, boot);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        opened.unwrap();
    }
}

/// Somebody may ask for a commit while the server closes its pool.
#[test]
fn a_value_stored_while_the_pool_is_closed_is_settled_or_refused() {
    for _ in 0..10 {
        let scratch = Scratch::new(1 << 20);
        let (pool, _medium) = scratch.first_open();
        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0.. {
                    let ino = make_or(&pool, n);
                    begun.store(true, Ordering::Release);
                    if ino.is_none() {
                        return;
                    }
                }
            });
            while !begun.load(Ordering::Acquire) {
                thread::yield_now();
            }
            pool.close().unwrap();
        });
        let view = pool.view();
        let held = view.objects().filter(|(_, object)| object.chain().is_some_and(|chain| chain.value().is_some()));
        assert_eq!(held.count(), 0, "bytes that only the log of a closed pool holds");
    }
}

/// A file by value, unless the pool takes no more changes.
fn make_or(pool: &Pool, n: u32) -> Option<()> {
    let ino = pool.edit().next_id();
    let segment = SegmentId(pool.edit().next_id());
    pool.segments().create(segment).ok()?;
    let ino = tensorfs_layout::Ino(ino);
    let attributes = Attributes { segment: Some(segment), ..attributes(FILE) };
    try_store(pool, [Record::Attributes { ino, attributes }, named(ROOT, &format!("f{n}"), ino)]).ok()?;
    pool.allow_values().ok()?;
    write_unrecorded(pool, segment, b"bytes");
    let mut tx = tensorfs_layout::log::Transaction::new(0);
    tx.push(Record::Data { ino, segment, offset: 0, len: 5, allocated: 4096, origin: Origin::default() });
    tx.push(Record::Value { ino, segment, bytes: b"bytes"[..].into() });
    tx.bytes_are_durable(segment);
    pool.edit().store(tx).ok().map(|_| ())
}

#[test]
fn a_value_whose_segment_cannot_be_synced_is_not_given_up() {
    for (close, boot) in [(true, BOOT), (true, NEXT_BOOT), (false, BOOT), (false, NEXT_BOOT)] {
        let scratch = Scratch::new(1 << 20);
        let (pool, medium) = scratch.first_open();
        let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
        medium.fail_next_segment_sync();
        pool.settle_values().unwrap();
        assert!(pool.view().object(ino).unwrap().attributes.damaged);
        pool.commit(pool.newest()).unwrap();
        if close {
            pool.close().unwrap();
        }
        overwrite(&pool, segment, &[0; 17]);
        let image = if boot == BOOT { medium.stored() } else { medium.after_power_loss(|| false) };
        drop(pool);
        let (again, medium) = scratch.open(image, boot);
        assert_eq!(read_segment(&again, segment), b"bytes of the file", "closed: {close}");
        assert!(!again.view().object(ino).unwrap().attributes.damaged);
        assert!(medium.take_calls().contains(&Call::SyncSegment));
    }
}

#[test]
fn bytes_that_a_value_is_written_over_are_set_aside() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
    let (_, torn) = file_by_value(&pool, "torn", b"bytes of another");
    overwrite(&pool, segment, b"newer");
    overwrite(&pool, torn, &[0; 8]);
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(read_segment(&again, segment), b"bytes of the file");
    assert_eq!(read_segment(&again, torn), b"bytes of another");
    // Zeroes are what a power loss leaves where nothing was written: they are no loss.
    let kept = again.quarantine().list().unwrap();
    let [entry] = &*kept else { panic!("{kept:?}") };
    let note = entry.note.as_ref().unwrap();
    assert_eq!((note.ino, note.reason, note.offset), (Some(ino), Reason::UncommittedBytes, 0));
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut again.quarantine().open(&entry.name).unwrap(), &mut bytes).unwrap();
    assert_eq!(bytes, b"newer of the file");
}

/// What programs wrote behind bytes that the host failed to write, and nobody recorded, goes with what they wrote in
/// their place. Behind the same bytes it is the file's.
#[test]
fn what_is_behind_other_bytes_than_a_value_is_set_aside_with_them() {
    let pieces: [(&[u8], bool); 3] = [(b"newer", true), (&[0; 17], true), (b"bytes", false)];
    for (first, differs) in pieces {
        let scratch = Scratch::new(1 << 20);
        let (pool, medium) = scratch.first_open();
        let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
        medium.fail_next_segment_sync();
        pool.settle_values().unwrap();
        pool.commit(pool.newest()).unwrap();
        overwrite(&pool, segment, b"bytes of the file and more");
        overwrite(&pool, segment, first);
        let written = read_segment(&pool, segment);
        // The server is killed: the host has all of that.
        let image = medium.stored();
        drop(pool);
        let (again, _) = scratch.open(image, BOOT);
        let kept: Vec<_> = again.quarantine().list().unwrap().into_iter().map(|entry| entry.name).collect();
        let read = |name: &String| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut again.quarantine().open(name).unwrap(), &mut bytes).unwrap();
            bytes
        };
        let found = (read_segment(&again, segment), kept.iter().map(read).collect::<Vec<_>>());
        let expected = match differs {
            true => (b"bytes of the file".to_vec(), vec![written]),
            false => (written, vec![]),
        };
        assert_eq!(found, expected);
        assert_eq!(again.view().object(ino).unwrap().size(), found.0.len() as u64);
    }
}

/// While a value is being settled its bytes are written again, over others that are just being synced, and somebody is
/// told that they are durable already.
#[test]
fn a_value_that_is_relied_on_again_is_not_settled_by_a_sync_that_began_before() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let pool = Arc::new(pool);
    let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
    let user = pool.clone();
    medium.during_next_segment_sync(Box::new(move || assert!(user.segments().hold_value(segment))));
    let needed = || pool.view().object(ino).unwrap().chain().unwrap().value().is_some();
    pool.settle_values().unwrap();
    assert!(needed());
    pool.settle_values().unwrap();
    assert!(!needed());
    assert!(!pool.segments().hold_value(segment));
}

/// What a file held before it was written in place is what the value stands for the replacement of.
#[test]
fn older_bytes_that_a_value_is_written_over_are_not_set_aside() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (_, segment) = file_by_value(&pool, "f", b"bytes of the file");
    overwrite(&pool, segment, b"older");
    let file = fs::File::from(pool.segments().open(segment, libc::O_RDWR).unwrap());
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    drop(file);
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(read_segment(&again, segment), b"bytes of the file");
    assert_eq!(again.quarantine().list().unwrap(), []);
}

/// The bytes are given back before the log says that the file is whole.
#[test]
fn giving_back_a_closed_pools_bytes_can_be_interrupted() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
    medium.fail_next_segment_sync();
    pool.settle_values().unwrap();
    pool.commit(pool.newest()).unwrap();
    pool.close().unwrap();
    let closed = medium.stored();
    drop(pool);
    let lost = || fs::write(scratch.pool().join(format!("segments/00/{segment}")), [0; 17]).unwrap();
    lost();
    let (again, medium) = scratch.open(closed, BOOT);
    assert_eq!(read_segment(&again, segment), b"bytes of the file");
    drop(again);
    let calls = medium.take_calls();
    let synced = calls.iter().position(|call| *call == Call::SyncSegment).unwrap();
    let logged = |call: &&Call| matches!(call, Call::Store { .. } | Call::Persist | Call::Grow);
    for count in 0..=calls[..synced].iter().filter(logged).count() {
        for reached in [false, true] {
            lost();
            let (again, _) = scratch.open(medium.history().power_lost(count, || reached), NEXT_BOOT);
            assert_eq!(read_segment(&again, segment), b"bytes of the file", "cut at {count}, {reached}");
            assert!(!again.view().object(ino).unwrap().attributes.damaged);
        }
    }
}

#[test]
fn a_restored_file_keeps_its_times() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = file_by_value(&pool, "f", b"bytes of the file");
    let recorded = pool.view().object(ino).unwrap().attributes.clone();
    let image = medium.after_power_loss(|| false);
    lose(&pool, segment);
    drop(pool);
    let (again, _) = scratch.open(image, NEXT_BOOT);
    let restored = again.segments().stat(segment).unwrap();
    assert_eq!((restored.atime, restored.mtime), (recorded.atime, recorded.mtime));
}

#[test]
fn a_pool_in_use_whose_values_are_settled_is_found_whole() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _medium) = scratch.first_open();
    file_by_value(&pool, "f", b"bytes of the file");
    let found = || {
        let report = check_in_use(&pool, &|_, look| look(false), Timestamp::new(1 << 40, 0), &|_, _, _| {}, &|| true)
            .unwrap()
            .unwrap();
        report.findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
    };
    assert_eq!(found(), Vec::<String>::new());
    pool.settle_values().unwrap();
    assert_eq!(found(), Vec::<String>::new());
}

#[test]
fn closing_makes_the_name_of_an_empty_files_segment_durable() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let ino = make(&pool, "empty", FILE);
    let segment = SegmentId(pool.edit().next_id());
    pool.segments().create(segment).unwrap();
    let attributes = Attributes { segment: Some(segment), ..attributes(FILE) };
    store(&pool, [Record::Attributes { ino, attributes }]);
    pool.commit(pool.newest()).unwrap();
    medium.take_calls();
    pool.close().unwrap();
    assert!(medium.take_calls().contains(&Call::SyncDirectory));
}

/// Its users want the space.
#[test]
fn the_log_of_a_pool_with_a_limit_takes_fewer_values() {
    let scratch = Scratch::with(CreateOptions { limit: Some(LIMIT_MIN), ..CreateOptions::default() });
    let (pool, _medium) = scratch.first_open();
    let bytes = vec![7; pool.value_room().unwrap()];
    let fit = LIMIT_MIN as usize / 32 / bytes.len();
    for n in 0..fit {
        assert!(pool.value_room().is_some(), "{n} of {fit}");
        file_by_value(&pool, &format!("f{n}"), &bytes);
    }
    assert_eq!(pool.value_room(), None);
    pool.settle_values().unwrap();
    pool.maintain().unwrap();
    assert!(pool.value_room().is_some());
}

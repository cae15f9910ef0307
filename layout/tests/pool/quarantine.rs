//! Entries of the quarantine and their notes, whatever interrupts the setting aside.

use crate::common::*;
use std::fs;
use tensorfs_layout::log::Record;
use tensorfs_layout::pool::Pool;
use tensorfs_layout::segment::{Note, Quarantine, Reason};
use tensorfs_layout::{Ino, SegmentId, Timestamp};

/// A pool whose server was killed while a file was being replaced.
fn replacing(scratch: &Scratch) -> (Vec<u8>, SegmentId) {
    let (pool, medium) = scratch.first_open();
    let (ino, old) = make_file(&pool, "f", b"old");
    pool.commit(pool.newest()).unwrap();
    let segment = SegmentId(pool.edit().next_id());
    pool.segments().create(segment).unwrap();
    store(&pool, [Record::Replace { ino, segment }]);
    write_unrecorded(&pool, segment, b"new");
    (medium.stored(), old)
}

#[test]
fn a_quarantine_entry_has_its_note_before_it_has_its_name() {
    let scratch = Scratch::new(1 << 20);
    let (image, old) = replacing(&scratch);
    // The note cannot be written.
    let entry = scratch.pool().join("quarantine").join(old.to_string());
    let note = entry.with_extension("json");
    fs::create_dir(&note).unwrap();
    drop(scratch.try_open(image.clone(), BOOT));
    assert!(!entry.exists(), "nobody could tell whose bytes these are");
    fs::remove_dir(&note).unwrap();
    let (pool, _) = scratch.open(image, BOOT);
    assert!(pool.quarantine().list().unwrap().iter().all(|entry| entry.note.is_some()));
}

#[test]
fn a_copy_into_quarantine_that_was_interrupted_is_no_entry_and_hurts_none() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (_, segment) = make_file(&pool, "f", b"recorded");
    pool.commit(pool.newest()).unwrap();
    write_unrecorded(&pool, segment, b" tail");
    let image = medium.after_power_loss(|| true);
    drop(pool);
    // An earlier copy got as far as its name, and its first name is still there.
    let quarantine = scratch.pool().join("quarantine");
    fs::write(quarantine.join(".partial"), b"another file's tail").unwrap();
    fs::hard_link(quarantine.join(".partial"), quarantine.join("00000000000000aa")).unwrap();
    let (pool, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(fs::read(quarantine.join("00000000000000aa")).unwrap(), b"another file's tail");
    assert_eq!(fs::read(quarantine.join(segment.to_string())).unwrap(), b" tail");
    assert_eq!(pool.quarantine().list().unwrap().len(), 2);
    assert!(!quarantine.join(".partial").exists());
}

#[test]
fn an_entry_whose_note_is_gone_does_not_stop_recovery() {
    let scratch = Scratch::new(1 << 20);
    let (image, old) = replacing(&scratch);
    // A recovery that was interrupted has set the old version aside. Power was lost then, so that it is the file's
    // again; and the next recovery was interrupted when it had taken back the note, and not the entry.
    let quarantine = scratch.pool().join("quarantine");
    let segments = scratch.pool().join("segments/00");
    fs::hard_link(segments.join(old.to_string()), quarantine.join(old.to_string())).unwrap();
    let (pool, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(pool.is_read_only(), None);
    assert!(!quarantine.join(old.to_string()).exists());
}

/// Makes the files of a user's that are to have old versions.
fn make_files(pool: &Pool, names: impl Iterator<Item = String>) -> Vec<(Ino, SegmentId)> {
    names.map(|name| make_file(pool, &name, name.as_bytes())).collect()
}

/// Sets a version aside at a time.
fn set_aside(pool: &Pool, (ino, segment): (Ino, SegmentId), time: i64, user: u32) -> String {
    let (reason, time) = (Reason::InterruptedReplace, Timestamp::new(time, 0));
    let note = Note { ino: Some(ino), path: None, path_bytes: None, reason, offset: 0, time };
    pool.quarantine().keep_version(pool.segments(), segment, segment, &note, Some(user)).unwrap()
}

fn entries(pool: &Pool) -> Vec<String> {
    let mut found: Vec<_> = pool.quarantine().list().unwrap().into_iter().map(|entry| entry.name).collect();
    found.sort();
    found
}

/// A user may make as many files as he likes, begin to replace them, die, and delete them. The one that was made first
/// may be the last that is replaced.
#[test]
fn of_a_users_old_versions_the_newest_stay() {
    const MOST: usize = 1000;
    let scratch = Scratch::new(16 << 20);
    let (mut pool, mut medium) = scratch.first_open();
    let others = make_files(&pool, ["of another".to_owned()].into_iter())[0];
    let mut files = make_files(&pool, (0..MOST + 5).map(|n| format!("f{n}")));
    let others = set_aside(&pool, others, 1, 8);
    let mut time = 1;
    let mut next = |pool: &Pool| {
        time += 1;
        set_aside(pool, files.pop().unwrap(), time, 7)
    };
    let mut names: Vec<String> = (0..MOST - 1).map(|_| next(&pool)).collect();
    for round in 0..2 {
        names.extend((0..3).map(|_| next(&pool)));
        let mut expected: Vec<_> = names.iter().rev().take(MOST).chain([&others]).cloned().collect();
        expected.sort();
        assert_eq!(entries(&pool), expected, "round {round}");
        // Who opens it next goes on from there.
        pool.close().unwrap();
        let image = medium.stored();
        drop(pool);
        (pool, medium) = scratch.open(image, BOOT);
    }
}

#[test]
fn what_others_have_discarded_makes_room_for_a_users_old_versions() {
    const MOST: usize = 1000;
    let scratch = Scratch::new(16 << 20);
    let (pool, _) = scratch.first_open();
    let files = make_files(&pool, (0..MOST + 6).map(|n| format!("f{n}")));
    let mut names: Vec<String> = (1..).zip(&files[..MOST]).map(|(at, file)| set_aside(&pool, *file, at, 7)).collect();
    let other_process = Quarantine::at(&scratch.pool(), "", []).unwrap();
    for name in names.drain(500..505) {
        other_process.discard(&name).unwrap();
    }
    names.extend(files[MOST..].iter().map(|file| set_aside(&pool, *file, 5000, 7)));
    // Of 1001 that are there, the first goes.
    names.remove(0);
    names.sort();
    assert_eq!(entries(&pool), names);
}

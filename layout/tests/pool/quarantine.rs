//! Entries of the quarantine and their notes, whatever interrupts the setting aside.

use crate::common::*;
use std::fs;
use tensorfs_layout::SegmentId;
use tensorfs_layout::log::Record;

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

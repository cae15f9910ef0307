//! Recovery: what it does again, what it leaves alone, and what it changes nothing of.

use crate::common::*;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::sync::Arc;
use tensorfs_layout::check::inspect;
use tensorfs_layout::log::{Attributes, Origin, PoolState, Record, Seal, Transaction};
use tensorfs_layout::pool::{Inherited, OpenOptions, Pool};
use tensorfs_layout::segment::Reason;
use tensorfs_layout::{Ino, ROOT, SegmentId, Timestamp};

#[test]
fn a_damaged_pool_is_left_alone_by_housekeeping() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    // Nothing is worth cleaning, so that housekeeping would have the log grow.
    let mut n = 0;
    while n < 20 || pool.usage().free_blocks > 2 {
        make(&pool, &format!("{n:0200}"), DIR);
        n += 1;
    }
    make(&pool, "live 7", DIR);
    make(&pool, "behind it", DIR);
    let dirty = medium.stored();
    pool.close().unwrap();
    drop(pool);
    for (mut image, boot) in [(dirty, BOOT), (medium.stored(), BOOT)] {
        let at = image.windows(6).position(|bytes| bytes == b"live 7").unwrap();
        image[at] ^= 1;
        let (pool, medium) = scratch.open(image.clone(), boot);
        assert!(pool.is_read_only().is_some());
        for result in [pool.maintain(), pool.idle(), pool.close(), pool.reclaim().map(drop)] {
            let _ = result;
        }
        let _ = pool.commit(pool.newest());
        assert!(medium.stored() == image, "a damaged log was written to");
    }
}

#[test]
fn a_truncation_is_durable_before_recovery_does_it() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"0123456789");
    pool.commit(pool.newest()).unwrap();
    store(&pool, [Record::Truncation { ino, segment, offset: 0, len: 4, allocated: 4096, cut_from: 10 }]);
    let image = medium.stored();
    drop(pool);
    // The server was killed before it committed that; its successor's log cannot be persisted, and power is lost.
    let medium = SimMedium::new(image);
    medium.fail_next_persist();
    let options = OpenOptions { boot_id: Some(BOOT), ..OpenOptions::default() };
    assert!(Pool::open_with_medium(&scratch.pool(), &options, medium.clone()).is_err());
    // The record did not reach the medium: the file is as it was.
    let sectors = medium.stored();
    let mut durable = sectors.clone();
    let at = durable.windows(8).rposition(|bytes| bytes == 10u64.to_le_bytes()).unwrap();
    let frame = (at - (2 << 20)) / 8 * 8 + (2 << 20);
    let start = durable[..frame].windows(4).rposition(|bytes| bytes == b"TFRM").unwrap();
    durable[start..].fill(0);
    let (pool, _) = scratch.open(durable, NEXT_BOOT);
    assert_eq!(pool.is_read_only(), None);
    let object_size = pool.view().object(ino).unwrap().size();
    assert_eq!(object_size, 10);
    assert!(!pool.view().object(ino).unwrap().attributes.damaged);
    assert_eq!(read_segment(&pool, segment), b"0123456789");
}

#[test]
fn a_removed_directory_does_not_become_a_parent_again() {
    for round in 0..8 {
        let scratch = Scratch::new(4096);
        let (pool, medium) = scratch.first_open();
        let old = make(&pool, "old", DIR);
        let sub = Ino(pool.edit().next_id());
        store(&pool, [Record::Attributes { ino: sub, attributes: attributes(DIR) }, named(old, "sub", sub)]);
        // Long-lived company, so that this block is not the one to be cleaned.
        let mut n = 0;
        while pool.usage().free_blocks == 3 {
            make(&pool, &format!("{n:0200}"), DIR);
            n += 1;
        }
        store(&pool, [removal(old, "sub"), named(ROOT, "sub", sub)]);
        let mut edit = pool.edit();
        edit.store(Transaction::new(0).with(removal(ROOT, "old"))).unwrap();
        edit.reap(old);
        drop(edit);
        // The log cannot grow, so that the block with the removal is what there is to clean.
        medium.set_host_full(true);
        while store_from_reserve(&pool, xattr(sub, 0, 30 + round)).is_ok() {}
        let expected = tree(&pool.view());
        let from = medium.history().len();
        pool.reclaim().unwrap();
        drop(pool);
        let history = medium.history();
        let images = (from..=history.len()).map(|at| history.killed(at));
        for image in images {
            let (pool, _) = scratch.open(image, BOOT);
            assert_eq!(pool.view().object(sub).unwrap().parent(), Some(ROOT));
            assert_eq!(pool.view().name_of_directory(sub), Some(&b"sub"[..]));
            assert_eq!(tree(&pool.view()), expected);
        }
    }
}

#[test]
fn a_directory_knows_what_it_is_called() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (one, other) = (make(&pool, "one", DIR), make(&pool, "other", DIR));
    let is_called = |pool: &Pool, dir, name: Option<&str>| {
        assert_eq!(pool.view().name_of_directory(dir), name.map(str::as_bytes));
    };
    is_called(&pool, one, Some("one"));
    store(&pool, [removal(ROOT, "one"), named(other, "moved", one)]);
    is_called(&pool, one, Some("moved"));
    // In the place of another name.
    let third = make(&pool, "third", DIR);
    store(&pool, [removal(ROOT, "other"), removal(ROOT, "third"), named(ROOT, "third", other)]);
    is_called(&pool, other, Some("third"));
    is_called(&pool, third, None);
    is_called(&pool, ROOT, None);
    let image = medium.stored();
    drop(pool);
    let (pool, _) = scratch.open(image, BOOT);
    is_called(&pool, one, Some("moved"));
    is_called(&pool, other, Some("third"));
}

#[test]
fn a_replacement_that_was_given_up_is_removed() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    let (ino, old) = make_file(&pool, "f", b"old");
    let segments: Vec<SegmentId> = (0..3).map(|_| SegmentId(pool.edit().next_id())).collect();
    for segment in &segments {
        pool.segments().create(*segment).unwrap();
    }
    // One replacement gives way to another, and that one to a third segment.
    store(&pool, [Record::Replace { ino, segment: segments[0] }]);
    store(&pool, [Record::Replace { ino, segment: segments[1] }]);
    let attributes = Attributes { segment: Some(segments[2]), ..pool.view().object(ino).unwrap().attributes.clone() };
    store(&pool, [Record::Attributes { ino, attributes }]);
    pool.commit(pool.newest()).unwrap();
    assert_eq!(pool.unlink_covered(), 3);
    assert!([old, segments[0], segments[1]].iter().all(|gone| pool.segments().stat(*gone).is_err()));
    assert!(pool.segments().stat(segments[2]).is_ok());
}

#[test]
fn foreign_names_among_the_segments_do_not_stop_recovery() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    let expected = tree(&pool.view());
    drop(pool);
    let segments = scratch.pool().join("segments");
    for name in ["+f", "3F", "0", "lost+found"] {
        fs::create_dir(segments.join(name)).unwrap();
    }
    fs::write(segments.join("a0"), b"not a directory").unwrap();
    fs::create_dir(segments.join("ff")).unwrap();
    fs::write(segments.join("ff/ffffffffffffffff"), b"").unwrap();
    for boot in [BOOT, NEXT_BOOT] {
        let (pool, _) = scratch.open(medium.stored(), boot);
        assert_eq!(tree(&pool.view()), expected);
        assert!(pool.edit().next_id() < 1 << 32, "no file name uses up the numbers");
    }
    assert!(segments.join("ff/ffffffffffffffff").exists(), "what is no segment is left alone");
}

#[test]
fn the_number_of_a_lost_segment_stays_taken_if_the_server_is_killed_next() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"one");
    pool.commit(pool.newest()).unwrap();
    let (_, lost) = make_file(&pool, "g", b"two");
    let image = medium.after_power_loss(|| true);
    drop(pool);
    let (pool, medium) = scratch.open(image, NEXT_BOOT);
    drop(pool);
    for (image, boot) in [(medium.stored(), NEXT_BOOT), (medium.after_power_loss(|| false), THIRD_BOOT)] {
        let (pool, _) = scratch.open(image, boot);
        assert!(pool.edit().next_id() > lost.0);
    }
}

#[test]
fn recovery_done_twice_sets_nothing_aside_twice() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"one");
    pool.commit(pool.newest()).unwrap();
    make_file(&pool, "g", b"two");
    let image = medium.after_power_loss(|| true);
    drop(pool);
    for count in 0..8 {
        let scratch = scratch.copy();
        // Recovery gets as far as its persist of that number.
        let medium = SimMedium::new(image.clone());
        medium.fail_persist_number(count);
        let options = OpenOptions { boot_id: Some(NEXT_BOOT), ..OpenOptions::default() };
        let interrupted = Pool::open_with_medium(&scratch.pool(), &options, medium.clone());
        assert!(interrupted.is_err() || medium.persists() <= count);
        drop(interrupted);
        let (pool, _) = scratch.open(image.clone(), NEXT_BOOT);
        assert_eq!(pool.quarantine().list().unwrap().len(), 1, "persist {count}");
    }
}

/// Every file below a directory with its bytes and its time of change.
fn files(dir: &std::path::Path) -> BTreeMap<std::path::PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let modified = fs::metadata(&path).unwrap().modified().unwrap();
            found.insert(path.clone(), (fs::read(&path).unwrap(), modified));
        }
    }
    found
}

#[test]
fn inspecting_a_pool_after_a_power_loss_sees_no_damage_and_changes_nothing() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    make_file(&pool, "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    for n in 0..60 {
        make(&pool, &format!("{n}"), DIR);
    }
    // A hole behind the horizon, as an unfinished flush leaves it.
    let mut turn = 0;
    let image = medium.after_power_loss(|| {
        turn += 1;
        turn % 7 != 3
    });
    drop(pool);
    fs::write(scratch.pool().join("log"), image).unwrap();
    let before = files(&scratch.pool());
    let inspection = inspect(&scratch.pool()).unwrap();
    assert_eq!(inspection.state, PoolState::Dirty);
    assert_eq!(inspection.damage, None, "a mount would find none");
    assert_eq!(files(&scratch.pool()), before);
}

#[test]
fn a_replacement_that_stands_outlives_a_power_loss_and_the_old_version_is_set_aside() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (ino, old) = make_file(&pool, "f", b"old");
    let new = SegmentId(pool.edit().next_id());
    pool.segments().create(new).unwrap();
    store(&pool, [Record::Replace { ino, segment: new }]);
    pool.commit(pool.newest()).unwrap();
    write_unrecorded(&pool, new, b"half");
    let begun = medium.stored();
    store(&pool, [Record::Data { ino, segment: new, offset: 0, len: 4, allocated: 4096, origin: Origin::default() }]);
    write_unrecorded(&pool, new, b" and more");
    pool.commit(pool.newest()).unwrap();
    assert_eq!(pool.view().object(ino).unwrap().size(), 3, "it is still the old version");
    let stands = medium.stored();
    // Cleaning carries what it rests on.
    for n in 0..600 {
        make(&pool, &format!("d{n}"), DIR);
        store(&pool, [removal(ROOT, &format!("d{n}"))]);
        if n % 20 == 0 {
            pool.commit(pool.newest()).unwrap();
            pool.maintain().unwrap();
        }
    }
    pool.commit(pool.newest()).unwrap();
    let cleaned = medium.stored();
    drop(pool);
    let entries = |pool: &Pool| -> Vec<(Vec<u8>, Reason)> {
        let list = pool.quarantine().list().unwrap();
        let mut found: Vec<_> = list
            .iter()
            .map(|entry| {
                let bytes = fs::read(pool.path().join("quarantine").join(&entry.name)).unwrap();
                (bytes, entry.note.as_ref().unwrap().reason)
            })
            .collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found
    };
    for image in [stands, cleaned] {
        let copy = scratch.copy();
        let (pool, medium) = copy.open(image.clone(), NEXT_BOOT);
        assert_eq!(pool.view().object(ino).unwrap().attributes.segment, Some(new));
        assert_eq!((pool.view().object(ino).unwrap().size(), read_segment(&pool, new)), (4, b"half".to_vec()));
        let set_aside =
            vec![(b" and more".to_vec(), Reason::UncommittedTail), (b"old".to_vec(), Reason::InterruptedReplace)];
        assert_eq!(entries(&pool), set_aside);
        // It is over: nothing is left to stand.
        let image = medium.after_power_loss(|| false);
        drop(pool);
        let (pool, _) = copy.open(image, BOOT);
        assert_eq!((read_segment(&pool, new), entries(&pool)), (b"half".to_vec(), set_aside));
        assert!(pool.segments().stat(old).is_err());
    }
    let copy = scratch.copy();
    let (pool, _) = copy.open(begun, NEXT_BOOT);
    assert_eq!(pool.view().object(ino).unwrap().attributes.segment, Some(old), "it did not stand yet");
    assert_eq!(entries(&pool), [(b"half and more".to_vec(), Reason::UnfinishedReplace)]);
}

#[test]
fn files_that_programs_can_still_write_are_found_and_sealed_ones_are_not_asked() {
    const FILES: usize = 3000;
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let files: Vec<(Ino, SegmentId)> = (0..FILES).map(|n| make_file(&pool, &format!("f{n}"), b"12345678")).collect();
    let (sealed, segment) = files[7];
    let seal = Seal { crc: 1, description: Box::default() };
    store(
        &pool,
        [Record::Sealed { ino: sealed, segment, offset: 0, len: 8, allocated: 4096, seal, origin: Origin::default() }],
    );
    pool.commit(pool.newest()).unwrap();
    let image = medium.stored();
    let open = |n: usize| fs::File::options().append(true).open(pool.segments().path_of(files[n].1)).unwrap();
    let mut open: Vec<fs::File> = [0, 7, 1500, FILES - 1].map(open).into();
    drop(pool);
    std::io::Write::write_all(&mut open[2], b" and more").unwrap();
    let (pool, medium) = scratch.open(image, BOOT);
    let found: Vec<Ino> = pool.recovery().open_segments.iter().map(|open| open.ino).collect();
    assert_eq!(found, [files[0].0, files[1500].0, files[FILES - 1].0]);
    assert_eq!(pool.view().object(files[1500].0).unwrap().size(), 17);
    // Who has not watched them leaves it to the next one to look again.
    std::io::Write::write_all(&mut open[2], b", and more").unwrap();
    drop(open);
    pool.close().unwrap();
    let image = medium.stored();
    drop(pool);
    let (pool, medium) = scratch.open(image, BOOT);
    assert_eq!((pool.recovery().outlived, pool.recovery().open_segments.len()), (true, 0));
    assert_eq!(pool.superblock().unsafe_shutdowns, 1);
    assert_eq!(pool.view().object(files[1500].0).unwrap().size(), 27);
    pool.close().unwrap();
    let image = medium.stored();
    drop(pool);
    let (pool, _) = scratch.open(image, BOOT);
    assert_eq!((pool.recovery().kind, pool.recovery().outlived), (Default::default(), false));
}

/// The host never had to make durable in the old segment what the log held of it.
#[test]
fn an_old_version_that_only_the_log_holds_is_set_aside_whole() {
    for power_loss in [true, false] {
        let scratch = Scratch::new(4096);
        let (pool, medium) = scratch.first_open();
        let (ino, old) = file_by_value(&pool, "f", b"the old version");
        let new = SegmentId(pool.edit().next_id());
        pool.segments().create(new).unwrap();
        store(&pool, [Record::Replace { ino, segment: new }]);
        write_unrecorded(&pool, new, b"new");
        let origin = Origin::default();
        store(&pool, [Record::Data { ino, segment: new, offset: 0, len: 3, allocated: 4096, origin }]);
        pool.commit(pool.newest()).unwrap();
        let image = medium.stored();
        // Lost with the power, or dropped by a host that found no place for it.
        match power_loss {
            true => lose(&pool, old),
            false => fs::File::create(pool.segments().path_of(old)).unwrap().set_len(15).unwrap(),
        }
        drop(pool);
        let (pool, medium) = scratch.open(image, if power_loss { NEXT_BOOT } else { BOOT });
        assert_eq!(pool.view().object(ino).unwrap().attributes.segment, Some(new));
        assert_eq!(read_segment(&pool, new), b"new");
        let entries = pool.quarantine().list().unwrap();
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!(entry.note.as_ref().unwrap().reason, Reason::InterruptedReplace);
        assert_eq!(fs::read(pool.path().join("quarantine").join(&entry.name)).unwrap(), b"the old version");
        let image = medium.after_power_loss(|| false);
        drop(pool);
        let (pool, _) = scratch.open(image, NEXT_BOOT);
        assert_eq!(pool.quarantine().list().unwrap().len(), 1);
        assert!(!pool.view().object(ino).unwrap().attributes.damaged);
    }
}

#[test]
fn a_truncation_that_was_not_done_undoes_no_write_behind_it() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (grown, grown_segment) = make_file(&pool, "grown", b"0123456789");
    let (open, open_segment) = make_file(&pool, "open", b"0123456789");
    pool.commit(pool.newest()).unwrap();
    for (ino, segment) in [(grown, grown_segment), (open, open_segment)] {
        store(&pool, [Record::Truncation { ino, segment, offset: 0, len: 4, allocated: 4096, cut_from: 10 }]);
    }
    let image = medium.stored();
    write_unrecorded(&pool, grown_segment, b"abc");
    let held = fs::File::options().write(true).open(pool.segments().path_of(open_segment)).unwrap();
    drop(pool);
    let (pool, _) = scratch.open(image, BOOT);
    assert_eq!(read_segment(&pool, grown_segment), b"0123456789abc");
    assert_eq!(read_segment(&pool, open_segment), b"0123456789");
    let size = |ino| pool.view().object(ino).unwrap().size();
    assert_eq!((size(grown), size(open)), (13, 10));
    drop(held);
}

/// It had been done, nobody could record that, and a program has written just as many bytes again.
#[test]
fn bytes_in_the_place_of_those_that_a_truncation_cut_are_not_cut_again() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"0123456789");
    let (other, other_segment) = make_file(&pool, "g", b"0123456789");
    pool.commit(pool.newest()).unwrap();
    for (ino, segment) in [(ino, segment), (other, other_segment)] {
        let mtime = pool.segments().stat(segment).unwrap().mtime;
        let attributes = Attributes { mtime, ..pool.view().object(ino).unwrap().attributes.clone() };
        let cut = Record::Truncation { ino, segment, offset: 0, len: 4, allocated: 4096, cut_from: 10 };
        store(&pool, [cut, Record::Attributes { ino, attributes }]);
    }
    let image = medium.stored();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let file = fs::File::options().write(true).open(pool.segments().path_of(segment)).unwrap();
    file.set_len(4).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"abcdef", 4).unwrap();
    drop((file, pool));
    let (pool, _) = scratch.open(image, BOOT);
    assert_eq!(read_segment(&pool, segment), b"0123abcdef");
    assert_eq!(pool.view().object(ino).unwrap().size(), 10);
    assert_eq!(read_segment(&pool, other_segment), b"0123", "nobody has written it since");
    assert_eq!(pool.view().object(other).unwrap().size(), 4);
}

#[test]
fn bytes_behind_a_truncation_that_power_loss_undid_are_set_aside() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let files = ["as it was", "written since"].map(|name| make_file(&pool, name, b"0123456789"));
    for (n, (ino, segment)) in files.into_iter().enumerate() {
        let mtime = pool.segments().stat(segment).unwrap().mtime;
        let mtime = if n == 0 { mtime } else { Timestamp::new(mtime.sec - 1, 0) };
        let attributes = Attributes { mtime, ..pool.view().object(ino).unwrap().attributes.clone() };
        let cut = Record::Truncation { ino, segment, offset: 0, len: 4, allocated: 4096, cut_from: 10 };
        store(&pool, [cut, Record::Attributes { ino, attributes }]);
    }
    pool.commit(pool.newest()).unwrap();
    let image = medium.after_power_loss(|| false);
    let behind = |segment| {
        // Without another time: the host may have lost that.
        let file = fs::File::options().write(true).open(pool.segments().path_of(segment)).unwrap();
        let written = file.metadata().unwrap().modified().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"behind", 10).unwrap();
        file.set_modified(written).unwrap();
    };
    files.iter().for_each(|(_, segment)| behind(*segment));
    drop(pool);
    let (pool, _) = scratch.open(image, NEXT_BOOT);
    let entries = pool.quarantine().list().unwrap();
    for ((ino, segment), (offset, bytes)) in files.into_iter().zip([(10, &b"behind"[..]), (4, b"456789behind")]) {
        assert_eq!((read_segment(&pool, segment), pool.view().object(ino).unwrap().size()), (b"0123".to_vec(), 4));
        let of_file = |entry: &&_| -> bool {
            let entry: &tensorfs_layout::segment::QuarantineEntry = entry;
            entry.note.as_ref().is_some_and(|note| note.ino == Some(ino))
        };
        let entry = entries.iter().find(of_file).expect("what was behind the cut is set aside");
        assert_eq!(entry.note.as_ref().map(|note| (note.reason, note.offset)), Some((Reason::UncommittedTail, offset)));
        assert_eq!(fs::read(pool.path().join("quarantine").join(&entry.name)).unwrap(), bytes);
    }
}

/// A server may be killed after it has stored what a request asks for and before it has answered, however long that
/// takes: the next one has to know that it was done.
#[test]
fn cleaning_keeps_the_numbers_of_requests_that_may_not_be_answered() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let since = pool.newest();
    let make_for = |unique: u64| {
        let mut edit = pool.edit();
        let (ino, name) = (Ino(edit.next_id()), format!("d{unique}"));
        let attributes = Record::Attributes { ino, attributes: attributes(DIR) };
        edit.store(Transaction::new(unique).with(attributes).with(named(ROOT, &name, ino))).unwrap();
        edit.store(Transaction::new(0).with(removal(ROOT, &name))).unwrap();
        edit.reap(ino);
    };
    // These threads are late with their answers.
    make_for(7);
    let [is_stored, is_looked_at] = [(); 2].map(|()| std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            make_for(8);
            is_stored.wait();
            is_looked_at.wait();
        });
        is_stored.wait();
        let busy = scope.spawn(|| {
            for unique in 1000..2500 {
                make_for(unique);
                if unique % 20 == 0 {
                    pool.commit(pool.newest()).unwrap();
                    pool.maintain().unwrap();
                }
            }
        });
        busy.join().unwrap();
        let lock = Arc::new(fs::File::open(scratch.pool().join("lock")).unwrap().into());
        let inherited = Inherited { lock, open: HashSet::new(), since, damaged: HashSet::new() };
        let options = OpenOptions { boot_id: Some(BOOT), inherited: Some(inherited), ..OpenOptions::default() };
        let copy = scratch.copy();
        let again = copy.open_as(SimMedium::new(medium.stored()), &options).unwrap();
        let requests = &again.recovery().requests;
        let done = [7, 8, 1000, 2499].map(|unique| requests.contains(&unique));
        is_looked_at.wait();
        assert_eq!(done, [true, true, false, true], "{} blocks", pool.usage().log_blocks);
    });
}

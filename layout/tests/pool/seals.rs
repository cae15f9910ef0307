//! Seals in a pool: stored, read back, voided, verified.

use crate::common::*;
use tensorfs_formats::Format;
use tensorfs_layout::check::{Depth, Subject, check, verify_runs};
use tensorfs_layout::log::{Origin, Record};
use tensorfs_layout::pool::Pool;
use tensorfs_layout::segment::{Before, Known, examine};
use tensorfs_layout::{Ino, ROOT, SegmentId, Timestamp, TxId};

/// A safetensors file of byte tensors called 0, 1, 2, ...
fn safetensors(lengths: &[usize]) -> Vec<u8> {
    let mut at = 0;
    let mut parts = Vec::new();
    for (name, len) in lengths.iter().enumerate() {
        parts.push(format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{at},{}]}}", at + len));
        at += len;
    }
    let header = format!("{{{}}}", parts.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend((0..at).map(|n| (n * 7 % 251) as u8));
    bytes
}

fn seal(pool: &Pool, ino: Ino, segment: SegmentId) -> bool {
    let bytes = read_segment(pool, segment);
    let runs = examine(
        &&bytes[..],
        bytes.len() as u64,
        pool.description_room(),
        &Before::default(),
        &|| true,
        &tensorfs_formats::recognise,
    )
    .unwrap()
    .unwrap();
    pool.seal(ino, segment, pool.segments().stat(segment).unwrap().allocated, runs).unwrap()
}

fn names(pool: &Pool, ino: Ino) -> Vec<String> {
    let view = pool.view();
    let mut entries: Vec<_> = view.object(ino).unwrap().chain().unwrap().tensors().collect();
    entries.sort_by_key(|entry| entry.index);
    entries.iter().map(|entry| entry.tensor.name_text().into_owned()).collect()
}

#[test]
fn seals_of_many_tensors_take_several_frames_and_are_read_back() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let bytes = safetensors(&(0..300).map(|n| if n % 3 == 0 { 5000 } else { 9 }).collect::<Vec<_>>());
    let (ino, segment) = make_file(&pool, "model", &bytes);
    pool.commit(pool.newest()).unwrap();
    let before = pool.newest();
    assert!(seal(&pool, ino, segment));
    assert!(pool.newest().0 > before.0 + 3, "in one frame");
    let expected: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    assert_eq!(names(&pool, ino), expected);
    let tree_before = tree(&pool.view());
    pool.commit(pool.newest()).unwrap();
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (pool, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(tree(&pool.view()), tree_before);
    assert_eq!(names(&pool, ino), expected);
    let view = pool.view();
    let chain = view.object(ino).unwrap().chain().unwrap();
    let summary = chain.summary().unwrap();
    assert_eq!((summary.format, summary.tensors, summary.complete), (Format::Safetensors, 300, true));
    assert!(chain.is_sealed());
    assert!(verify_runs(pool.segments(), segment, chain, &|_| {}).iter().all(|verdict| verdict.fault.is_none()));
}

#[test]
fn a_crash_between_the_frames_of_a_seal_leaves_the_file_whole() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let bytes = safetensors(&[5000; 60]);
    let (ino, segment) = make_file(&pool, "model", &bytes);
    pool.commit(pool.newest()).unwrap();
    let first = medium.history().len();
    assert!(seal(&pool, ino, segment));
    let history = medium.history();
    drop(pool);
    let mut partly = 0;
    for count in first..=history.len() {
        let copy = scratch.copy();
        let (pool, _) = copy.open(history.killed(count), BOOT);
        let view = pool.view();
        let chain = view.object(ino).unwrap().chain().unwrap();
        assert_eq!(chain.size(), bytes.len() as u64);
        partly += u32::from(chain.has_seals() && !chain.is_sealed());
        assert!(verify_runs(pool.segments(), segment, chain, &|_| {}).iter().all(|verdict| verdict.fault.is_none()));
    }
    assert!(partly > 0, "no image lies between two frames");
}

#[test]
fn a_file_that_has_become_another_one_is_not_sealed() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"some bytes");
    let runs = |bytes: &[u8]| {
        examine(&bytes, bytes.len() as u64, 4096, &Before::default(), &|| true, &tensorfs_formats::recognise)
            .unwrap()
            .unwrap()
    };
    assert!(!pool.seal(ino, segment, 4096, runs(b"more than some bytes")).unwrap(), "another size");
    assert!(!pool.seal(ino, SegmentId(segment.0 + 1), 4096, runs(b"some bytes")).unwrap(), "another segment");
    store(&pool, [removal(tensorfs_layout::ROOT, "f")]);
    assert!(!pool.seal(ino, segment, 4096, runs(b"some bytes")).unwrap(), "no name");
}

#[test]
fn a_thaw_voids_all_seals_and_the_file_can_be_sealed_again() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", &safetensors(&[5000, 7, 5000]));
    pool.commit(pool.newest()).unwrap();
    assert!(seal(&pool, ino, segment));
    let len = pool.view().object(ino).unwrap().size();
    store(&pool, [Record::Thaw { ino, segment, offset: 0, len }]);
    assert!(!pool.view().object(ino).unwrap().chain().unwrap().has_seals());
    append(&pool, ino, segment, b"more");
    pool.commit(pool.newest()).unwrap();
    assert_eq!(names(&pool, ino), Vec::<String>::new());
    assert!(seal(&pool, ino, segment));
    assert!(pool.view().object(ino).unwrap().chain().unwrap().is_sealed());
    let before = tree(&pool.view());
    let left = medium.stored();
    drop(pool);
    let (pool, _) = scratch.open(left, BOOT);
    assert_eq!(tree(&pool.view()), before);
}

/// Proves C4.
#[test]
fn one_flipped_byte_is_reported_as_that_tensor_and_as_no_other() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium) = scratch.first_open();
    let bytes = safetensors(&[5000, 7, 9, 4096, 1]);
    let (ino, segment) = make_file(&pool, "model", &bytes);
    pool.commit(pool.newest()).unwrap();
    assert!(seal(&pool, ino, segment));
    let ranges: Vec<(String, u64, u64)> = {
        let view = pool.view();
        let chain = view.object(ino).unwrap().chain().unwrap();
        chain.tensors().map(|e| (e.tensor.label(), e.tensor.range().0, e.tensor.range().1)).collect()
    };
    pool.close().unwrap();
    let path = pool.segments().path_of(segment);
    drop(pool);
    std::fs::write(scratch.pool().join("log"), medium.stored()).unwrap();
    let every = (0..bytes.len()).step_by(if cfg!(debug_assertions) { 13 } else { 1 });
    let edges = ranges.iter().flat_map(|(_, start, len)| [*start as usize, (start + len - 1) as usize]);
    for at in every.chain(edges) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        std::fs::write(&path, &flipped).unwrap();
        let report = check(&scratch.pool(), Depth::Data, &|_, _, _| {}).unwrap();
        assert_eq!(report.findings.len(), 1, "{at}: {:?}", report.findings);
        let finding = &report.findings[0];
        assert_eq!((finding.subject, finding.path.as_deref()), (Subject::File, Some("/model")));
        let inside = |(_, start, len): &&(String, u64, u64)| (*start..start + len).contains(&(at as u64));
        let expected: Vec<String> = ranges.iter().filter(inside).map(|(name, ..)| name.clone()).collect();
        assert_eq!(finding.tensors, expected, "byte {at}");
    }
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(check(&scratch.pool(), Depth::Data, &|_, _, _| {}).unwrap().findings, []);
}

/// Offset and length of a record, and where it comes from.
type Link = (u64, u64, Option<(TxId, Timestamp)>);

fn chain_of(pool: &Pool, ino: Ino) -> Vec<Link> {
    let view = pool.view();
    let chain = view.object(ino).unwrap().chain().unwrap();
    chain.runs().iter().map(|run| (run.offset, run.len, run.origin.known())).collect()
}

/// Three appends, each by a transaction of its own.
fn appended(pool: &Pool) -> (Ino, SegmentId, Vec<Link>) {
    let (ino, segment) = make_file(pool, "f", b"");
    let mut expected = Vec::new();
    for n in 0..3_u64 {
        write_unrecorded(pool, segment, &vec![n as u8; 5000 * (n as usize + 1)]);
        let time = Timestamp::new(1_700_000_000 + n as i64, n as u32);
        let stat = pool.segments().stat(segment).unwrap();
        let offset = pool.view().object(ino).unwrap().next_record(stat.size);
        let (len, allocated, origin) = (stat.size - offset, stat.allocated, Origin::at(time));
        let id = store(pool, [Record::Data { ino, segment, offset, len, allocated, origin }]);
        expected.push((offset, len, Some((id, time))));
    }
    pool.commit(pool.newest()).unwrap();
    (ino, segment, expected)
}

#[test]
fn what_was_appended_at_once_is_a_record_and_stays_one() {
    let scratch = Scratch::new(4096);
    let (pool, medium) = scratch.first_open();
    let (ino, segment, expected) = appended(&pool);
    assert_eq!(expected.iter().map(|(offset, ..)| *offset).collect::<Vec<_>>(), [0, 5000, 15_000]);
    assert_eq!(chain_of(&pool, ino), expected, "as stored");
    // Sealing adds checksums.
    assert!(seal_records(&pool, ino, segment));
    assert_eq!(chain_of(&pool, ino), expected, "sealed");
    // Cleaning carries it to other blocks.
    for n in 0..400 {
        make(&pool, &format!("other-{n}"), libc::S_IFREG | 0o600);
        store(&pool, [removal(ROOT, &format!("other-{n}"))]);
        pool.commit(pool.newest()).unwrap();
        pool.maintain().unwrap();
    }
    assert_eq!(chain_of(&pool, ino), expected, "cleaned");
    // Voiding the seals leaves it as it is.
    let thaw = store(&pool, [Record::Thaw { ino, segment, offset: 0, len: u64::MAX }]);
    assert_eq!(chain_of(&pool, ino), expected, "thawed");
    pool.commit(thaw).unwrap();
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (pool, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(chain_of(&pool, ino), expected, "recovered");
    assert!(seal_records(&pool, ino, segment));
    assert_eq!(chain_of(&pool, ino), expected, "sealed again");
}

fn seal_records(pool: &Pool, ino: Ino, segment: SegmentId) -> bool {
    let bytes = read_segment(pool, segment);
    let known = chain_of(pool, ino).into_iter().map(|(offset, len, _)| Known { offset, len, seal: None });
    let before = Before { records: known.collect(), ..Before::default() };
    let room = pool.description_room();
    let runs = examine(&&bytes[..], bytes.len() as u64, room, &before, &|| true, &tensorfs_formats::recognise)
        .unwrap()
        .unwrap();
    pool.seal(ino, segment, pool.segments().stat(segment).unwrap().allocated, runs).unwrap()
}

#[test]
fn short_pieces_share_a_record_and_long_files_have_few() {
    let scratch = Scratch::new(1 << 20);
    let (pool, _) = scratch.first_open();
    let (ino, segment) = make_file(&pool, "f", b"");
    let (mut size, mut most) = (0_u64, 0);
    for n in 0..40_000_u64 {
        size += if n < 30_000 { 4096 } else { 1 << (12 + n % 8) };
        let offset = pool.view().object(ino).unwrap().next_record(size);
        let origin = Origin::at(Timestamp::new(1, 0));
        store(&pool, [Record::Data { ino, segment, offset, len: size - offset, allocated: size, origin }]);
        if n % 1000 == 999 {
            most = most.max(chain_of(&pool, ino).len());
        }
    }
    assert!((16_384..40_000).contains(&most), "{most} records of {size} bytes");
    let (short, of) = make_file(&pool, "g", b"");
    for size in (100..=30_000).step_by(100) {
        let offset = pool.view().object(short).unwrap().next_record(size);
        let origin = Origin::default();
        store(&pool, [Record::Data { ino: short, segment: of, offset, len: size - offset, allocated: 4096, origin }]);
    }
    // The first ones are what they were made of, then some are put together.
    let lens: Vec<_> = chain_of(&pool, short).into_iter().map(|(_, len, _)| len).collect();
    assert_eq!((&lens[..255], &lens[255..]), (&[100; 255][..], &[4100, 400][..]));
}

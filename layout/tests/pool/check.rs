//! `check` finds what is wrong, names it, and finds nothing in a pool that is whole.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::*;
use tensorfs_layout::check::{Depth, Repair, Report, Subject, check, repair};
use tensorfs_layout::log::{Origin, Record, Seal};
use tensorfs_layout::pool::{OpenOptions, Pool};
use tensorfs_layout::segment::Reason;
use tensorfs_layout::{ROOT, Timestamp};

const DIR: u32 = libc::S_IFDIR | 0o755;

fn run(scratch: &Scratch) -> Report {
    check(&scratch.pool(), Depth::Metadata, &|_, _, _| {}).unwrap()
}

fn open(scratch: &Scratch) -> tensorfs_layout::Result<Pool> {
    Pool::open(&scratch.pool(), &OpenOptions { boot_id: Some(BOOT), ..OpenOptions::default() })
}

/// A closed pool with directories and two files, and their segments' paths.
fn pool_with_files() -> (Scratch, [std::path::PathBuf; 2]) {
    let scratch = Scratch::new(4096);
    let pool = open(&scratch).unwrap();
    make(&pool, "dir", DIR);
    let (_, one) = make_file(&pool, "one", b"first file");
    let (_, two) = make_file(&pool, "two", b"second file");
    let gone = make(&pool, "gone", DIR);
    let mut edit = pool.edit();
    edit.store(tensorfs_layout::log::Transaction::new(0).with(removal(ROOT, "gone"))).unwrap();
    edit.reap(gone);
    drop(edit);
    let paths = [one, two].map(|segment| pool.segments().path_of(segment));
    pool.close().unwrap();
    drop(pool);
    (scratch, paths)
}

fn flip(log: &Path, offset: u64, bit: u8) {
    let file = fs::File::options().read(true).write(true).open(log).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ bit], offset).unwrap();
}

#[test]
fn a_whole_pool_has_no_findings_and_is_not_changed() {
    let (scratch, _) = pool_with_files();
    let before = scratch.log();
    let report = run(&scratch);
    assert_eq!(report.findings, []);
    assert!(!report.unclean);
    assert_eq!((report.objects, report.segments), (4, 2));
    assert!(report.frames > 6 && report.records > 6, "{report:?}");
    assert!(scratch.log() == before);
}

#[test]
fn a_pool_whose_server_was_killed_has_no_findings_but_says_so() {
    let scratch = Scratch::new(4096);
    let pool = open(&scratch).unwrap();
    // One that is recorded as empty has nothing that could be sealed.
    for (name, recorded) in [("f", &b"recorded"[..]), ("empty", b"")] {
        let (_, segment) = make_file(&pool, name, recorded);
        write_unrecorded(&pool, segment, b" and not recorded");
    }
    drop(pool);
    let report = run(&scratch);
    assert_eq!(report.findings, []);
    assert!(report.unclean);
}

#[test]
fn a_flipped_bit_anywhere_in_the_log_is_found_and_never_shows_a_tree_that_was_not() {
    let (scratch, _) = pool_with_files();
    let log = scratch.pool().join("log");
    let image = fs::read(&log).unwrap();
    let whole = tree(&open(&scratch).unwrap().view());
    fs::write(&log, &image).unwrap();
    let places =
        [0..512, 4096..4160, 1 << 20..(1 << 20) + 512, (1 << 20) + 4096..(1 << 20) + 4160, 2 << 20..(2 << 20) + 4096];
    let mut flips = 0;
    for offset in places.into_iter().flatten() {
        // Of the zeroes one in eight will do.
        if image[offset as usize] == 0 && offset % 8 != 3 {
            continue;
        }
        let bit = 1 << (offset % 8);
        flip(&log, offset, bit);
        let found = check(&scratch.pool(), Depth::Metadata, &|_, _, _| {});
        match found {
            Ok(report) => assert!(!report.findings.is_empty(), "byte {offset}: not found"),
            Err(error) => assert!(error.to_string().contains("not a tensorfs pool"), "byte {offset}: {error}"),
        }
        match open(&scratch) {
            Ok(pool) if pool.is_read_only().is_some() => {}
            Ok(pool) => assert_eq!(tree(&pool.view()), whole, "byte {offset}"),
            Err(error) => assert!(error.to_string().contains("not a tensorfs pool"), "byte {offset}: {error}"),
        }
        fs::write(&log, &image).unwrap();
        flips += 1;
    }
    assert!(flips > 1000, "{flips}");
}

#[test]
fn each_fault_of_a_segment_is_named() {
    let (scratch, [one, two]) = pool_with_files();
    fs::remove_file(&one).unwrap();
    fs::File::options().write(true).open(&two).unwrap().set_len(3).unwrap();
    let stray = two.with_file_name("0000000000000fff");
    let shard = stray.parent().unwrap().with_file_name("0f");
    fs::create_dir(&shard).unwrap();
    fs::write(shard.join("0000000000000fff"), b"stray").unwrap();
    fs::write(shard.join("readme"), b"foreign").unwrap();
    fs::write(scratch.pool().join("segments/readme"), b"foreign").unwrap();
    fs::create_dir(scratch.pool().join("segments/other")).unwrap();
    std::os::unix::fs::symlink("0f", scratch.pool().join("segments/aa")).unwrap();
    let mut found: Vec<_> = run(&scratch)
        .findings
        .into_iter()
        .map(|finding| (finding.subject, finding.path.unwrap_or(finding.host_file), finding.offset, finding.what))
        .collect();
    found.sort_by(|a, b| a.1.cmp(&b.1));
    let expected = [
        (Subject::File, "/one", None, "its segment is missing"),
        (Subject::File, "/two", Some(3), "its segment ends at 3, the file at 11"),
        (Subject::Segment, "segments/0f/0000000000000fff", None, "belongs to no file"),
        (Subject::Segment, "segments/0f/readme", None, "is no segment"),
        (Subject::Segment, "segments/aa", None, "is no segment: it is a symbolic link"),
        (Subject::Segment, "segments/other", None, "is no segment: it is a directory"),
        (Subject::Segment, "segments/readme", None, "is no segment"),
    ];
    let expected = expected.map(|(subject, path, offset, what)| (subject, path.to_owned(), offset, what.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn bytes_behind_the_end_of_a_closed_file_are_found() {
    let (scratch, [one, _]) = pool_with_files();
    fs::File::options().write(true).open(&one).unwrap().set_len(100).unwrap();
    let report = run(&scratch);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].what, "its segment has 90 bytes behind the end of the file");
}

#[test]
fn a_quarantine_entry_without_a_note_is_found() {
    let (scratch, _) = pool_with_files();
    fs::write(scratch.pool().join("quarantine/0000000000000042"), b"whose?").unwrap();
    let report = run(&scratch);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].subject, Subject::Quarantine);
}

#[test]
fn what_stands_in_the_place_of_a_part_of_the_pool_is_found_and_set_aside() {
    let (scratch, [one, _]) = pool_with_files();
    let whole = tree(&open(&scratch).unwrap().view());
    let at = |name: &str| scratch.pool().join(name);
    let fifo = |path: &std::path::Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::remove_file(at("lock")).unwrap();
    fs::create_dir(at("lock")).unwrap();
    fifo(&at("log.new"));
    fifo(&at("quarantine/0000000000000043"));
    fs::write(at("quarantine/0000000000000042"), b"whose?").unwrap();
    fifo(&at("quarantine/0000000000000042.json"));
    let bytes = fs::read(&one).unwrap();
    fs::remove_file(&one).unwrap();
    fifo(&one);
    let mut found: Vec<_> = run(&scratch)
        .findings
        .into_iter()
        .map(|finding| format!("{:?} {}: {}", finding.subject, finding.path.unwrap_or(finding.host_file), finding.what))
        .collect();
    found.sort();
    let segment = one.strip_prefix(scratch.pool()).unwrap().display().to_string();
    let mut expected = [
        "File /one: its segment is missing".to_owned(),
        "Part lock: it is a directory, not a regular file".to_owned(),
        "Part log.new: it is a FIFO, not a regular file".to_owned(),
        "Quarantine quarantine/0000000000000042.json: it is a FIFO, and no note says whose".to_owned(),
        "Quarantine quarantine/0000000000000042: has no note that can be read".to_owned(),
        "Quarantine quarantine/0000000000000043: it is a FIFO, and no note says whose".to_owned(),
        format!("Segment {segment}: is no segment: it is a FIFO"),
    ];
    expected.sort();
    assert_eq!(found, expected);
    let error = open(&scratch).unwrap_err().to_string();
    assert!(error.contains("lock: open: it is a directory, not a regular file"), "{error}");
    let done = mend(&scratch);
    for name in ["lock", "log.new", "quarantine/0000000000000042.json", &segment] {
        let moved = |action: &String| action.starts_with(&format!("moved {name} to quarantine/foreign"));
        assert!(done.actions.iter().any(moved), "{name}: {:?}", done.actions);
    }
    let left = tree(&open(&scratch).unwrap().view());
    assert!(left.len() == whole.len() && left != whole, "all but the bytes of one file: {left:?}");
    assert_eq!(bytes.len(), 10);
    // A lock that is gone is made again, unless somebody has the pool's log open.
    fs::remove_file(at("lock")).unwrap();
    let log = fs::File::open(at("log")).unwrap();
    let refused = repair(&scratch.pool(), Timestamp::new(1_700_000_001, 0), &|_, _, _| {}).unwrap_err().to_string();
    assert!(refused.contains("another process has its log open"), "{refused}");
    drop(log);
    assert_eq!(mend(&scratch).actions[0], "made the lock again");
    open(&scratch).unwrap();
}

fn mend(scratch: &Scratch) -> Repair {
    let done = repair(&scratch.pool(), Timestamp::new(1_700_000_001, 0), &|_, _, _| {}).unwrap();
    assert_eq!(done.after.findings, [], "{:?}", done.actions);
    let again = repair(&scratch.pool(), Timestamp::new(1_700_000_002, 0), &|_, _, _| {}).unwrap();
    assert_eq!(again.actions, Vec::<String>::new(), "repairing again finds nothing to do");
    done
}

#[test]
fn repair_leaves_a_whole_pool_alone() {
    let (scratch, _) = pool_with_files();
    let before = scratch.log();
    assert!(mend(&scratch).actions.is_empty());
    assert!(scratch.log() == before);
}

#[test]
fn a_repaired_pool_is_whole_whichever_bit_was_flipped() {
    let (scratch, _) = pool_with_files();
    let whole = tree(&open(&scratch).unwrap().view());
    let image = {
        let pool = open(&scratch).unwrap();
        pool.close().unwrap();
        scratch.log()
    };
    let blocks = 2 << 20;
    let used: Vec<usize> = (0..image.len()).filter(|at| image[*at] != 0).collect();
    for offset in used.into_iter().step_by(9) {
        let copy = scratch.copy();
        let mut damaged = image.clone();
        damaged[offset] ^= 1 << (offset % 8);
        fs::write(copy.pool().join("log"), &damaged).unwrap();
        if let Err(error) = check(&copy.pool(), Depth::Metadata, &|_, _, _| {}) {
            panic!("byte {offset}: one flipped bit makes the pool unreadable: {error}");
        }
        let done = mend(&copy);
        let pool = open(&copy).unwrap();
        assert_eq!(pool.is_read_only(), None);
        if offset < blocks {
            assert_eq!(tree(&pool.view()), whole, "byte {offset}");
        } else {
            let kept = done.actions.iter().any(|action| action.contains("the old one is quarantine/log"));
            assert!(kept, "byte {offset}: {:?}", done.actions);
        }
        // Whatever became of the names, no byte of a file is thrown away.
        let in_files = pool.view().objects().filter(|(_, object)| object.is_file() && object.size() > 0).count();
        let kept = pool.quarantine().list().unwrap();
        let set_aside = kept.iter().filter(|entry| entry.bytes == 10 || entry.bytes == 11).count();
        assert_eq!(in_files + set_aside, 2, "byte {offset}: {:?} {kept:?}", done.actions);
    }
}

#[test]
fn repair_sets_aside_what_does_not_fit_and_notes_what_is_lost() {
    let (scratch, [one, two]) = pool_with_files();
    fs::remove_file(&one).unwrap();
    fs::File::options().write(true).open(&two).unwrap().set_len(3).unwrap();
    let shard = two.parent().unwrap().with_file_name("0f");
    fs::create_dir(&shard).unwrap();
    fs::write(shard.join("0000000000000fff"), b"stray").unwrap();
    fs::write(shard.join("readme"), b"foreign").unwrap();
    let done = mend(&scratch);
    assert_eq!(done.before.findings.len(), 4);
    let pool = open(&scratch).unwrap();
    let sizes = |name: &str| {
        let view = pool.view();
        let ino = view.lookup(ROOT, name.as_bytes()).unwrap();
        view.object(ino).unwrap().size()
    };
    assert_eq!((sizes("one"), sizes("two")), (0, 3));
    let kept: Vec<_> = pool.quarantine().list().unwrap();
    let reasons: Vec<_> = kept.iter().map(|entry| (entry.bytes, entry.note.as_ref().unwrap().reason)).collect();
    for expected in [(5, Reason::UnknownSegment), (7, Reason::UnknownSegment), (0, Reason::LostBytes)] {
        assert!(reasons.contains(&expected), "{expected:?} is not in {reasons:?}");
    }
    assert!(pool.edit().next_id() > 0xfff, "the stray segment's number is not given out");
}

#[test]
fn a_flipped_bit_in_a_sealed_file_is_found_in_its_run_and_in_no_other() {
    let scratch = Scratch::new(1 << 20);
    let pool = open(&scratch).unwrap();
    let (ino, segment) = make_file(&pool, "f", b"aaaabbbbcccc");
    let (_, other) = make_file(&pool, "unsealed", b"dddd");
    pool.commit(pool.newest()).unwrap();
    let sealed = |offset: u64, bytes: &[u8]| Record::Sealed {
        ino,
        segment,
        offset,
        len: bytes.len() as u64,
        allocated: 4096,
        seal: Seal { crc: crc32c::crc32c(bytes), description: Box::default() },
        origin: Origin::default(),
    };
    store(&pool, [sealed(0, b"aaaa"), sealed(4, b"bbbb"), sealed(8, b"cccc")]);
    assert!(pool.view().object(ino).unwrap().chain().unwrap().is_sealed());
    let paths = [segment, other].map(|segment| pool.segments().path_of(segment));
    pool.close().unwrap();
    drop(pool);
    let data = || check(&scratch.pool(), Depth::Data, &|_, _, _| {}).unwrap();
    let whole = data();
    assert_eq!((whole.findings.len(), whole.verified_bytes, whole.unsealed_bytes), (0, 12, 4));
    for path in &paths {
        flip(path, 2, 1);
        flip(path, 3, 1);
    }
    let report = data();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!((report.findings[0].path.as_deref(), report.findings[0].offset), (Some("/f"), Some(0)));
}

#[test]
fn what_is_none_of_the_pools_beside_the_log_is_found_and_set_aside() {
    let (scratch, _) = pool_with_files();
    fs::write(scratch.pool().join("notes.txt"), b"mine").unwrap();
    // Any filesystem may have one.
    fs::create_dir(scratch.pool().join("lost+found")).unwrap();
    let report = run(&scratch);
    let found: Vec<_> = report.findings.iter().map(|one| (one.subject, one.host_file.as_str())).collect();
    assert_eq!(found, [(Subject::Part, "notes.txt")]);
    let done = repair(&scratch.pool(), Timestamp::new(1_700_000_001, 0), &|_, _, _| {}).unwrap();
    assert_eq!(done.after.findings, [], "{:?}", done.actions);
    assert_eq!(fs::read(scratch.pool().join("quarantine/foreign")).unwrap(), b"mine");
    assert!(scratch.pool().join("lost+found").exists());
}

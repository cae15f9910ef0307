//! Files in the pool's directory that are missing, empty, cut, swapped or there twice: each gives an error or a finding
//! that names it, nothing panics, what it does not concern stays readable, and repair and then check come out clean.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use tensorfs_layout::check::{Depth, Report, check, inspect, repair};
use tensorfs_layout::log::{Origin, Record, Seal};
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::{Error, SegmentId, Timestamp};

fn open(pool: &Path) -> tensorfs_layout::Result<Pool> {
    Pool::open(pool, &OpenOptions { boot_id: Some(BOOT), ..OpenOptions::default() })
}

fn verify(pool: &Path) -> tensorfs_layout::Result<Report> {
    check(pool, Depth::Data, &|_, _, _| {})
}

const NAMES: [&str; 3] = ["one", "two", "three"];

fn bytes_of(name: &str) -> Vec<u8> {
    name.repeat(50).into_bytes()
}

/// A closed pool with three sealed files, and their segments.
fn pool() -> (Scratch, [PathBuf; 3]) {
    let scratch = Scratch::new(4096);
    let pool = open(&scratch.pool()).unwrap();
    let segments = NAMES.map(|name| {
        let bytes = bytes_of(name);
        let (ino, segment) = make_file(&pool, name, &bytes);
        pool.commit(pool.newest()).unwrap();
        let seal = Seal { crc: crc32c::crc32c(&bytes), description: Box::default() };
        store(
            &pool,
            [Record::Sealed {
                ino,
                segment,
                offset: 0,
                len: bytes.len() as u64,
                allocated: 4096,
                seal,
                origin: Origin::default(),
            }],
        );
        pool.segments().path_of(segment)
    });
    pool.close().unwrap();
    drop(pool);
    assert_eq!(verify(&scratch.pool()).unwrap().findings, []);
    (scratch, segments)
}

fn assert_readable(pool: &Path, names: &[&str]) {
    let pool = open(pool).unwrap();
    for name in names {
        let segment = {
            let view = pool.view();
            let ino = view.lookup(tensorfs_layout::ROOT, name.as_bytes()).unwrap();
            view.object(ino).unwrap().attributes.segment.unwrap()
        };
        assert_eq!(read_segment(&pool, segment), bytes_of(name), "{name}");
    }
}

/// What check finds, then repairs it.
fn found_and_repaired(pool: &Path) -> Vec<String> {
    let found = verify(pool).unwrap().findings;
    let mut found: Vec<String> = found.into_iter().map(|one| one.path.unwrap_or(one.host_file)).collect();
    found.sort();
    repair(pool, Timestamp::new(1_700_000_001, 0), &|_, _, _| {}).unwrap();
    found
}

#[test]
fn a_log_that_is_missing_empty_or_cut_is_not_a_pool_and_says_why() {
    let (scratch, _) = pool();
    let log = scratch.pool().join("log");
    let image = fs::read(&log).unwrap();
    for len in [0, 1, 511, 512, 4095, 1 << 20, 2 << 20, image.len() - 4096, image.len() - 1] {
        fs::write(&log, &image[..len]).unwrap();
        let error = open(&scratch.pool()).unwrap_err();
        assert!(matches!(error, Error::NotAPool { .. }), "{len} bytes: {error}");
        assert!(inspect(&scratch.pool()).is_err(), "{len} bytes");
        match verify(&scratch.pool()) {
            Ok(report) => assert!(!report.findings.is_empty(), "{len} bytes"),
            Err(error) => assert!(matches!(error, Error::NotAPool { .. }), "{len} bytes: {error}"),
        }
        assert_eq!(fs::read(&log).unwrap().len(), len, "it was changed");
    }
    fs::remove_file(&log).unwrap();
    assert!(matches!(open(&scratch.pool()).unwrap_err(), Error::NotAPool { .. }));
    assert!(matches!(verify(&scratch.pool()).unwrap_err(), Error::NotAPool { .. }));
    fs::create_dir(&log).unwrap();
    assert!(matches!(open(&scratch.pool()).unwrap_err(), Error::NotAPool { .. }));
    fs::remove_dir(&log).unwrap();
    fs::write(&log, vec![0; image.len()]).unwrap();
    assert!(matches!(open(&scratch.pool()).unwrap_err(), Error::NotAPool { .. }), "zeroes");
    fs::write(&log, vec![0x5a; image.len()]).unwrap();
    assert!(matches!(open(&scratch.pool()).unwrap_err(), Error::NotAPool { .. }), "something else");
    fs::write(&log, &image).unwrap();
    assert_readable(&scratch.pool(), &NAMES);
}

#[test]
fn the_log_of_another_pool_shows_no_file_of_either_with_wrong_bytes() {
    let (scratch, _) = pool();
    let other = Scratch::with(CreateOptions { block_size: 4096, layout: "other".into(), ..CreateOptions::default() });
    let pool = open(&other.pool()).unwrap();
    make(&pool, "elsewhere", libc::S_IFDIR | 0o755);
    make_file(&pool, "longer", &[7; 5000]);
    pool.close().unwrap();
    drop(pool);
    fs::copy(other.pool().join("log"), scratch.pool().join("log")).unwrap();
    // Who says which pool it should be is told.
    let named = OpenOptions { layout: Some("tensorfs".into()), boot_id: Some(BOOT), ..OpenOptions::default() };
    assert!(matches!(Pool::open(&scratch.pool(), &named).unwrap_err(), Error::LayoutName { .. }));
    let found = found_and_repaired(&scratch.pool());
    assert!(found.contains(&"/longer".to_owned()), "{found:?}");
    assert_eq!(found.len(), 4, "the three segments that the other log knows nothing of, as well: {found:?}");
    assert_eq!(verify(&scratch.pool()).unwrap().findings, []);
    // The bytes of the first pool are kept.
    let kept = open(&scratch.pool()).unwrap().quarantine().list().unwrap();
    assert!(kept.iter().filter(|entry| entry.bytes > 0).count() >= 3, "{kept:?}");
}

#[test]
fn an_older_copy_of_the_log_is_an_older_tree_or_a_finding() {
    let (scratch, _) = pool();
    let log = scratch.pool().join("log");
    let older = fs::read(&log).unwrap();
    let pool = open(&scratch.pool()).unwrap();
    make_file(&pool, "later", b"bytes");
    pool.close().unwrap();
    drop(pool);
    fs::write(&log, &older).unwrap();
    assert_eq!(found_and_repaired(&scratch.pool()).len(), 1, "the segment of the later file");
    assert_eq!(verify(&scratch.pool()).unwrap().findings, []);
    assert_readable(&scratch.pool(), &NAMES);
}

#[test]
fn two_segments_that_changed_places_are_both_found() {
    let (scratch, [one, two, _]) = pool();
    let aside = one.with_extension("aside");
    fs::rename(&one, &aside).unwrap();
    fs::rename(&two, &one).unwrap();
    fs::rename(&aside, &two).unwrap();
    let found = verify(&scratch.pool()).unwrap().findings;
    let paths: std::collections::BTreeSet<_> = found.iter().filter_map(|one| one.path.as_deref()).collect();
    assert_eq!(paths.into_iter().collect::<Vec<_>>(), ["/one", "/two"]);
    assert_readable(&scratch.pool(), &["three"]);
}

#[test]
fn segments_that_are_missing_empty_or_cut_are_found_and_the_others_read() {
    for what in ["missing", "empty", "cut", "a directory"] {
        let (scratch, [one, ..]) = pool();
        match what {
            "missing" => fs::remove_file(&one).unwrap(),
            "empty" => fs::write(&one, b"").unwrap(),
            "cut" => fs::File::options().write(true).open(&one).unwrap().set_len(20).unwrap(),
            _ => {
                fs::remove_file(&one).unwrap();
                fs::create_dir(&one).unwrap();
            }
        }
        assert_readable(&scratch.pool(), &["two", "three"]);
        let pool = open(&scratch.pool()).unwrap();
        pool.close().unwrap();
        drop(pool);
        let found = found_and_repaired(&scratch.pool());
        assert!(found.contains(&"/one".to_owned()), "{what}: {found:?}");
        assert_eq!(verify(&scratch.pool()).unwrap().findings, [], "{what}");
        assert_readable(&scratch.pool(), &["two", "three"]);
    }
}

#[test]
fn a_second_copy_of_a_segment_is_found_and_set_aside() {
    let (scratch, [one, ..]) = pool();
    fs::copy(&one, one.with_file_name("00000000000000aa")).unwrap();
    fs::copy(&one, one.with_extension("bak")).unwrap();
    assert_eq!(found_and_repaired(&scratch.pool()).len(), 2);
    assert_eq!(verify(&scratch.pool()).unwrap().findings, []);
    assert_readable(&scratch.pool(), &NAMES);
    assert_eq!(open(&scratch.pool()).unwrap().quarantine().list().unwrap().len(), 2, "nothing is thrown away");
}

#[test]
fn directories_that_are_missing_give_an_error_that_names_them() {
    for part in ["segments", "quarantine", "lock"] {
        let (scratch, _) = pool();
        let path = scratch.pool().join(part);
        if part == "lock" { fs::remove_file(&path) } else { fs::remove_dir_all(&path) }.unwrap();
        let checked = verify(&scratch.pool()).map(|report| report.findings.len());
        let opened = open(&scratch.pool());
        if let Err(error) = &opened {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        if let Err(error) = &checked {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        // Without its bytes the pool must not pass for whole.
        assert!(part != "segments" || opened.is_err() && !matches!(checked, Ok(0)), "{part}");
    }
}

/// Who made the first segment of a directory found there what another thread had just made, and took it for somebody
/// else's directory.
#[test]
fn segments_of_another_users_pool_are_made_side_by_side() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("pool");
    Pool::create(&path, &CreateOptions::default()).unwrap();
    for part in ["", "log", "lock", "segments", "quarantine"] {
        let part = path.join(part);
        if part.exists() {
            std::os::unix::fs::chown(part, Some(12_345), Some(23_456)).unwrap();
        }
    }
    let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for n in 1..=4 {
            let (pool, start) = (&pool, &start);
            scope.spawn(move || {
                let made = (0..256).map(|shard| {
                    start.wait();
                    pool.segments().create(SegmentId((shard << 8) + n)).map(drop)
                });
                let failed: Vec<_> = made.filter_map(Result::err).collect();
                assert!(failed.is_empty(), "{failed:?}");
            });
        }
    });
    pool.close().unwrap();
}

//! Tiers: segments in other directories than the pool's own, which may be gone when the pool is opened again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::*;
use tensorfs_layout::check::{Contents, Depth, Subject, check, repair};
use tensorfs_layout::log::{Attributes, Origin, Record, Seal, Shutdown};
use tensorfs_layout::pool::{Known, OpenOptions, Pool, digest};
use tensorfs_layout::segment::{Before, Gone, Note, Reason, SealedRun, examine};
use tensorfs_layout::testing::change_boot_id;
use tensorfs_layout::{Error, Ino, ROOT, SegmentId, Timestamp};

const FILE: u32 = libc::S_IFREG | 0o644;
const QUIET: &(dyn Fn(&'static str, u64, u64) + Sync) = &|_, _, _| {};

/// A directory that survives, as far as the pool can see.
fn durable() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// One that does not.
fn volatile() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A pool in a directory of its own, with its real log.
struct Real {
    dir: tempfile::TempDir,
}

impl Real {
    fn new() -> Self {
        let dir = durable();
        Pool::create(&dir.path().join("pool"), &Default::default()).unwrap();
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    fn open(&self) -> Pool {
        Pool::open(&self.path(), &OpenOptions::default()).unwrap()
    }

    /// Adds tiers and opens the pool with them.
    fn with_tiers<const N: usize>(&self, tiers: [(&str, &Path); N]) -> Pool {
        let pool = self.open();
        for (name, directory) in tiers {
            pool.add_tier(name, directory).unwrap();
        }
        pool.close().unwrap();
        drop(pool);
        self.open()
    }

    fn findings(&self) -> Vec<String> {
        let report = check(&self.path(), Depth::Data, QUIET).unwrap();
        report.findings.into_iter().map(|finding| finding.what).collect()
    }
}

fn close(pool: Pool) {
    pool.close().unwrap();
}

/// A file in a tier, recorded, not yet committed.
fn file_in(pool: &Pool, tier: &str, name: &str, bytes: &[u8]) -> (Ino, SegmentId) {
    let number = pool.view().tier_named(tier).unwrap();
    let (ino, segment) = {
        let mut edit = pool.edit();
        (Ino(edit.next_id()), SegmentId::in_tier(number, edit.next_id()).unwrap())
    };
    pool.segments().create(segment).unwrap();
    let attributes = Attributes { segment: Some(segment), ..attributes(FILE) };
    store(pool, [Record::Attributes { ino, attributes }, named(ROOT, name, ino)]);
    append(pool, ino, segment, bytes);
    (ino, segment)
}

fn segment_of(pool: &Pool, name: &str) -> SegmentId {
    let view = pool.view();
    let ino = view.lookup(ROOT, name.as_bytes()).unwrap();
    view.object(ino).unwrap().attributes.segment.unwrap()
}

/// Segments below a directory.
fn segments_in(tier: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for shard in fs::read_dir(tier.join("segments")).unwrap() {
        for entry in fs::read_dir(shard.unwrap().path()).unwrap() {
            names.push(entry.unwrap().file_name().into_string().unwrap());
        }
    }
    names.sort();
    names
}

#[test]
fn only_a_pool_with_tiers_or_a_map_says_so() {
    let real = Real::new();
    let pool = real.open();
    assert_eq!(pool.superblock().features.incompat, 0, "older programs use it");
    pool.set_placement("*.bin dram\n").unwrap();
    assert_eq!(pool.superblock().features.incompat, 1, "older programs refuse it");
    close(pool);
    let pool = real.open();
    assert_eq!((pool.superblock().features.incompat, pool.view().placement()), (1, "*.bin dram\n"));
    close(pool);
}

#[test]
fn what_is_no_place_for_a_tier_is_refused_with_one_line() {
    let real = Real::new();
    let other = Real::new();
    let (ssd, busy) = (durable(), durable());
    fs::write(busy.path().join("x"), b"").unwrap();
    let pool = real.with_tiers([("ssd", ssd.path())]);
    let refused = |name: &str, path: &Path| match pool.add_tier(name, path) {
        Err(Error::Invalid { what, .. }) => {
            assert!(!what.contains('\n'));
            what
        }
        other => panic!("{name} in {}: {other:?}", path.display()),
    };
    let free = durable();
    for (name, path, why) in [
        ("a", busy.path().to_owned(), "it is not empty"),
        ("a", busy.path().join("x"), "not a directory"),
        ("a", real.path().join("tier"), "inside the pool"),
        ("a", real.dir.path().to_owned(), "or the pool inside it"),
        ("a", other.path(), "there is a pool in it"),
        ("a", ssd.path().join("more"), "inside tier ssd"),
        ("a", ssd.path().to_owned(), "inside tier ssd"),
        ("a", PathBuf::from("relative"), "not absolute"),
        ("ssd", free.path().to_owned(), "there is a tier ssd already"),
        ("pm", free.path().to_owned(), "there is a tier pm already"),
        ("A b", free.path().to_owned(), "a tier's name has"),
    ] {
        let what = refused(name, &path);
        assert!(what.contains(why), "{name} in {}: {what}", path.display());
    }
    assert_eq!(fs::read_dir(free.path()).unwrap().count(), 0, "what is refused is not touched");
    close(pool);
    // Another pool does not get it either.
    let pool = other.open();
    let refused = pool.add_tier("ssd", ssd.path()).unwrap_err().to_string();
    assert!(refused.contains("it is a tier of a pool already"), "{refused}");
    close(pool);
    // And the mount point is not to hide it.
    let options = OpenOptions { mountpoint: Some(ssd.path().join("mnt")), ..OpenOptions::default() };
    let refused = Pool::open(&real.path(), &options).unwrap_err().to_string();
    assert!(refused.contains("tier ssd"), "{refused}");
}

#[test]
fn another_directory_in_the_place_of_a_tier_is_not_taken_for_it() {
    let real = Real::new();
    let ssd = durable();
    let path = ssd.path().join("tier");
    let pool = real.with_tiers([("ssd", &path)]);
    let (_, segment) = file_in(&pool, "ssd", "f", b"bytes");
    close(pool);
    let away = ssd.path().join("away");
    fs::rename(&path, &away).unwrap();
    let reason = |real: &Real| {
        let pool = real.open();
        let Some(Gone::Missing { tier, reason }) = pool.segments().gone(segment) else { panic!("it is there") };
        assert_eq!(tier, "ssd");
        assert_eq!(pool.segments().open(segment, libc::O_RDONLY).unwrap_err().raw_os_error(), Some(libc::EIO));
        close(pool);
        reason
    };
    assert!(reason(&real).contains("is not there"));
    // An empty mount point, say.
    fs::create_dir(&path).unwrap();
    assert!(reason(&real).contains("it has no tier.json"));
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    fs::remove_dir(&path).unwrap();
    // A link to the right one is none either: who can make one decides where it leads.
    std::os::unix::fs::symlink(&away, &path).unwrap();
    reason(&real);
    fs::remove_file(&path).unwrap();
    // That of another pool.
    let other = Real::new();
    close(other.with_tiers([("ssd", &path)]));
    assert!(reason(&real).contains("another pool"));
    fs::remove_dir_all(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    let pool = real.open();
    assert_eq!(read_segment(&pool, segment), b"bytes");
    close(pool);
    assert_eq!(real.findings(), [""; 0]);
}

/// Tiers and map survive cleaning, a killed server, and a log that is written anew.
#[test]
fn the_table_of_tiers_survives_whatever_the_log_goes_through() {
    let scratch = Scratch::new(4096);
    let (ssd, dram) = (durable(), volatile());
    let (pool, medium) = scratch.first_open();
    pool.add_tier("ssd", ssd.path()).unwrap();
    pool.add_tier("dram", dram.path()).unwrap();
    pool.set_placement("*.bin ssd\n").unwrap();
    pool.set_placement("*.tmp dram\n").unwrap();
    let at = |view: &tensorfs_layout::tree::View| {
        let tiers: Vec<_> = view.tiers().map(|(number, tier)| (number, tier.name.to_string(), tier.volatile)).collect();
        (tiers, view.placement().to_owned())
    };
    let expected = (vec![(1, "ssd".to_owned(), false), (2, "dram".to_owned(), true)], "*.tmp dram\n".to_owned());
    let ino = make(&pool, "d", libc::S_IFDIR | 0o755);
    for n in 0..2000 {
        store(&pool, [Record::Attributes { ino, attributes: attributes(libc::S_IFDIR | 0o755) }]);
        if n % 50 == 0 {
            pool.maintain().unwrap();
        }
    }
    // Every block is left with something in it, the first one with least: it is cleaned, too.
    let many: Vec<Ino> = (0..400).map(|n| make(&pool, &format!("n{n}"), libc::S_IFDIR | 0o755)).collect();
    for (n, ino) in many.iter().enumerate().filter(|(n, _)| n % 8 > 0) {
        store(&pool, [removal(ROOT, &format!("n{n}"))]);
        pool.edit().reap(*ino);
    }
    (0..50).for_each(|_| pool.maintain().unwrap());
    pool.commit(pool.newest()).unwrap();
    assert!(pool.usage().log_blocks < 20, "the log was cleaned: {:?}", pool.usage());
    assert_eq!(at(&pool.view()), expected);
    let image = medium.stored();
    drop(pool);
    let (pool, medium) = scratch.open(image, BOOT);
    assert_eq!(at(&pool.view()), expected);
    pool.remove_tier("dram").unwrap();
    let image = medium.after_power_loss(|| false);
    drop(pool);
    let (pool, _) = scratch.open(image, NEXT_BOOT);
    assert_eq!(at(&pool.view()).0, expected.0[..1], "what was said to be done is durable");
    assert_eq!(fs::read_dir(dram.path()).unwrap().count(), 0);
    // A number is used again, a name too.
    pool.add_tier("dram", dram.path()).unwrap();
    assert_eq!(at(&pool.view()), expected);
    drop(pool);

    let real = Real::new();
    let pool = real.with_tiers([("ssd", ssd.path().join("x").as_path())]);
    pool.set_placement("*.bin ssd\n").unwrap();
    file_in(&pool, "ssd", "f", b"bytes");
    let segment = segment_of(&pool, "f");
    close(pool);
    damage_last_frame(&real.path());
    let repaired = repair(&real.path(), Timestamp::default(), QUIET).unwrap();
    assert!(repaired.actions.iter().any(|action| action.contains("wrote the log anew")), "{repaired:?}");
    let pool = real.open();
    assert_eq!(pool.view().tier_named("ssd"), Some(1));
    assert_eq!(pool.view().placement(), "*.bin ssd\n");
    assert_eq!(read_segment(&pool, segment), b"bytes");
    close(pool);
}

/// Flips a bit in the last frame of the first block of a log.
fn damage_last_frame(pool: &Path) {
    let path = pool.join("log");
    let mut log = fs::read(&path).unwrap();
    let block = &log[2 << 20..3 << 20];
    let end = block.iter().rposition(|byte| *byte != 0).unwrap();
    log[(2 << 20) + end - 8] ^= 1;
    fs::write(&path, log).unwrap();
}

#[test]
fn segments_of_a_volatile_tier_are_never_synced_and_those_of_another_are() {
    let scratch = Scratch::new(1 << 20);
    let (ssd, dram) = (durable(), volatile());
    let (pool, medium) = scratch.first_open();
    pool.add_tier("ssd", ssd.path()).unwrap();
    pool.add_tier("dram", dram.path()).unwrap();
    drop(pool);
    let (pool, medium) = scratch.open(medium.stored(), BOOT);
    let syncs = |pool: &Pool| {
        medium.take_calls();
        pool.commit(pool.newest()).unwrap();
        let calls = medium.take_calls();
        let count = |what: Call| calls.iter().filter(|call| **call == what).count();
        (count(Call::SyncSegment), count(Call::SyncDirectory), count(Call::SyncAll))
    };
    syncs(&pool);
    file_in(&pool, "dram", "a", b"bytes");
    assert_eq!(syncs(&pool), (0, 0, 0));
    file_in(&pool, "ssd", "b", b"bytes");
    let (segments, directories, all) = syncs(&pool);
    assert_eq!((segments, all), (1, 0));
    assert!(directories >= 1, "its name too");
    // Many: still each by itself.
    for n in 0..130 {
        file_in(&pool, "ssd", &format!("s{n}"), b"x");
        file_in(&pool, "dram", &format!("v{n}"), b"x");
        make_file(&pool, &format!("p{n}"), b"x");
    }
    let (segments, _, all) = syncs(&pool);
    assert_eq!((segments, all), (260, 0));
    drop(pool);
}

#[test]
fn files_of_a_volatile_tier_are_lost_with_the_boot_and_nothing_else_is() {
    let real = Real::new();
    let dram = volatile();
    // Once with the directory gone, once with one that another boot has filled.
    for keep_directory in [true, false] {
        let path = dram.path().join(if keep_directory { "a" } else { "b" });
        let name = if keep_directory { "kept" } else { "gone" };
        let pool = real.with_tiers([(name, path.as_path())]);
        let (_, lost) = file_in(&pool, name, &format!("{name}.bin"), b"bytes");
        let (_, empty) = file_in(&pool, name, &format!("{name}.empty"), b"");
        let (_, safe) = make_file(&pool, &format!("{name}.safe"), b"safe");
        close(pool);
        assert_eq!(real.findings().iter().filter(|what| what.contains(name)).count(), 0);
        change_boot_id(&real.path()).unwrap();
        if !keep_directory {
            fs::remove_dir_all(&path).unwrap();
        }
        // Looking changes nothing.
        let contents = Contents::read(&real.path()).unwrap();
        assert_eq!(contents.segments().gone(lost), Some(Gone::Lost { tier: name.into() }));
        assert_eq!(path.exists(), keep_directory);
        assert!(real.findings().contains(&format!("lost: tier {name} was volatile")));
        for _ in 0..2 {
            let pool = real.open();
            assert_eq!(pool.segments().gone(lost), Some(Gone::Lost { tier: name.into() }));
            assert!(pool.segments().open(lost, libc::O_RDONLY).is_err());
            assert_eq!(read_segment(&pool, empty), b"", "nothing of an empty file is lost");
            assert_eq!(read_segment(&pool, safe), b"safe");
            let view = pool.view();
            let ino = view.lookup(ROOT, format!("{name}.bin").as_bytes()).unwrap();
            assert_eq!(view.object(ino).unwrap().size(), 5, "its size is still known");
            assert!(!view.object(ino).unwrap().attributes.damaged);
            drop(view);
            let tier = pool.tiers().into_iter().find(|tier| tier.name == name).unwrap();
            assert_eq!((tier.files, tier.lost), (2, 1));
            close(pool);
        }
        // Deleting it is all there is to do.
        let pool = real.open();
        store(&pool, [removal(ROOT, &format!("{name}.bin"))]);
        let ino = pool.view().objects().find(|(_, object)| object.attributes.segment == Some(lost)).unwrap().0;
        pool.edit().reap(ino);
        assert_eq!(pool.tiers().into_iter().find(|tier| tier.name == name).unwrap().lost, 0);
        close(pool);
    }
    assert_eq!(real.findings(), [""; 0]);
}

/// A power loss: recovery does not take a lost file for a damaged one.
#[test]
fn recovery_leaves_lost_files_alone() {
    let real = Real::new();
    let dram = volatile();
    let pool = real.with_tiers([("dram", dram.path())]);
    let (_, lost) = file_in(&pool, "dram", "f", b"bytes");
    pool.commit(pool.newest()).unwrap();
    drop(pool);
    change_boot_id(&real.path()).unwrap();
    let pool = real.open();
    assert_eq!(pool.recovery().kind, Shutdown::PowerLoss);
    assert_eq!(pool.recovery().damaged_files, 0);
    assert!(pool.segments().gone(lost).is_some());
    assert_eq!(pool.quarantine().list().unwrap(), []);
    // A new file in the tier is as any other.
    let (_, new) = file_in(&pool, "dram", "g", b"new");
    drop(pool);
    let pool = real.open();
    assert_eq!(pool.recovery().kind, Shutdown::ServerKilled);
    assert_eq!(read_segment(&pool, new), b"new");
    assert!(pool.segments().gone(lost).is_some());
    assert_eq!(pool.recovery().open_segments, []);
    close(pool);
}

/// A tier that is away is not recovered with the rest, but when it is back, from the worst that happened meanwhile.
/// Each removed what the others had begun, and gave it its own name: files came back with the bytes of others.
#[test]
fn versions_of_files_in_a_tier_are_set_aside_side_by_side() {
    let (real, tier) = (Real::new(), durable());
    let pool = real.with_tiers([("fast", tier.path())]);
    let bytes = |n: u8| vec![n; 4 << 20];
    let files: Vec<_> = (0..6).map(|n| (n, file_in(&pool, "fast", &format!("f{n}"), &bytes(n)))).collect();
    pool.commit(pool.newest()).unwrap();
    let quarantine = tier.path().join("quarantine");
    std::thread::scope(|scope| {
        for (n, (ino, segment)) in &files {
            let (pool, quarantine, tier) = (&pool, &quarantine, &tier);
            scope.spawn(move || {
                let time = Timestamp::new(1, 0);
                let note = Note {
                    ino: Some(*ino),
                    path: None,
                    path_bytes: None,
                    reason: Reason::InterruptedReplace,
                    offset: 0,
                    time,
                };
                let name = pool.quarantine().keep(pool.segments(), *segment, &note).unwrap();
                assert!(fs::read(quarantine.join(&name)).unwrap() == bytes(*n), "file {n}");
                let inode = |path: &Path| fs::metadata(path).unwrap().ino();
                let theirs = tier.path().join(format!("segments/{:02x}/{segment}", (segment.0 >> 8) as u8));
                assert_eq!(inode(&quarantine.join(&name)), inode(&theirs), "a second name, and no copy");
            });
        }
    });
    assert_eq!(pool.quarantine().list().unwrap().len(), 6);
    assert!(fs::read_dir(&quarantine).unwrap().count() == 12, "each has a note, and nothing is left over");
    assert!(fs::read_dir(pool.path().join("quarantine")).unwrap().next().is_none());
    close(pool);
}

/// What is in quarantine of a tier is nobody's but the operator's: it is not removed with the tier.
#[test]
fn a_tier_with_something_in_quarantine_is_not_removed() {
    let (real, ssd) = (Real::new(), durable());
    let pool = real.with_tiers([("ssd", ssd.path())]);
    let (ino, segment) = file_in(&pool, "ssd", "f", b"version");
    pool.commit(pool.newest()).unwrap();
    let time = Timestamp::new(1, 0);
    let note =
        Note { ino: Some(ino), path: None, path_bytes: None, reason: Reason::InterruptedReplace, offset: 0, time };
    let name = pool.quarantine().keep(pool.segments(), segment, &note).unwrap();
    store(&pool, [removal(ROOT, "f")]);
    pool.edit().reap(ino);
    close(pool);
    let pool = real.open();
    let refused = pool.remove_tier("ssd").unwrap_err().to_string();
    assert!(refused.contains("1 versions of files are set aside in it"), "{refused}");
    pool.quarantine().discard(&name).unwrap();
    // An interrupted setting aside leaves such.
    fs::write(ssd.path().join("quarantine/.partial"), b"").unwrap();
    fs::create_dir(ssd.path().join("quarantine/mine")).unwrap();
    let refused = pool.remove_tier("ssd").unwrap_err().to_string();
    assert!(refused.contains("something is in") && refused.contains("quarantine"), "{refused}");
    fs::remove_dir(ssd.path().join("quarantine/mine")).unwrap();
    pool.remove_tier("ssd").unwrap();
    assert!(fs::read_dir(ssd.path()).unwrap().next().is_none());
    close(pool);
}

/// Pools of earlier servers have no quarantine in their tiers, and copies of segments of tiers in their own.
#[test]
fn what_earlier_servers_set_aside_of_a_tier_is_there_too() {
    let (real, ssd) = (Real::new(), durable());
    let pool = real.with_tiers([("ssd", ssd.path())]);
    let (ino, segment) = file_in(&pool, "ssd", "f", b"new version");
    pool.commit(pool.newest()).unwrap();
    close(pool);
    fs::remove_dir(ssd.path().join("quarantine")).unwrap();
    assert_eq!(real.findings(), [""; 0]);
    let pool = real.open();
    fs::write(pool.path().join("quarantine").join(segment.to_string()), b"old").unwrap();
    let time = Timestamp::new(1, 0);
    let note =
        Note { ino: Some(ino), path: None, path_bytes: None, reason: Reason::InterruptedReplace, offset: 0, time };
    let name = pool.quarantine().keep(pool.segments(), segment, &note).unwrap();
    assert_eq!(name, format!("{segment}.1"), "no name is there twice");
    let entries = pool.quarantine().list().unwrap();
    let found: Vec<_> = entries.iter().map(|entry| (entry.name.clone(), entry.bytes)).collect();
    assert_eq!(found, [(segment.to_string(), 3), (name.clone(), 11)]);
    assert!(pool.quarantine().recount() > 0);
    for name in [segment.to_string(), name] {
        pool.quarantine().discard(&name).unwrap();
    }
    assert_eq!(pool.quarantine().list().unwrap(), []);
    assert_eq!(pool.quarantine().recount(), 0);
    assert_eq!(read_segment(&pool, segment), b"new version");
    close(pool);
}

#[test]
fn a_tier_that_was_away_is_recovered_when_it_is_back() {
    for (kind, tail) in [(Shutdown::ServerKilled, true), (Shutdown::PowerLoss, false)] {
        let real = Real::new();
        let ssd = durable();
        let path = ssd.path().join("tier");
        let pool = real.with_tiers([("ssd", path.as_path())]);
        let (_, whole) = file_in(&pool, "ssd", "whole", b"whole");
        let (_, deleted) = file_in(&pool, "ssd", "deleted", b"deleted");
        let (ino, written) = file_in(&pool, "ssd", "written", b"recorded");
        pool.commit(pool.newest()).unwrap();
        write_unrecorded(&pool, written, b"+more");
        drop(pool);
        let away = ssd.path().join("away");
        fs::rename(&path, &away).unwrap();
        if kind == Shutdown::PowerLoss {
            change_boot_id(&real.path()).unwrap();
        }
        let pool = real.open();
        assert_eq!(pool.recovery().kind, kind);
        assert_eq!((pool.recovery().damaged_files, pool.recovery().open_segments.len()), (0, 0));
        assert!(matches!(pool.segments().gone(whole), Some(Gone::Missing { .. })));
        store(&pool, [removal(ROOT, "deleted")]);
        let gone = pool.view().objects().find(|(_, object)| object.attributes.segment == Some(deleted)).unwrap().0;
        pool.edit().reap(gone);
        close(pool);
        assert_eq!(real.findings().len(), 1, "the tier, and not each file: {:?}", real.findings());
        assert_eq!(check(&real.path(), Depth::Data, QUIET).unwrap().findings[0].subject, Subject::Tier);
        // Closed in order meanwhile, and opened again.
        close(real.open());
        fs::rename(&away, &path).unwrap();
        let pool = real.open();
        assert_eq!(pool.recovery().kind, Shutdown::Clean);
        assert_eq!(read_segment(&pool, whole), b"whole");
        let expected: &[u8] = if tail { b"recorded+more" } else { b"recorded" };
        assert_eq!(read_segment(&pool, written), expected);
        assert_eq!(pool.view().object(ino).unwrap().size(), expected.len() as u64);
        let quarantine = pool.quarantine().list().unwrap();
        let reasons: Vec<_> = quarantine.iter().map(|entry| entry.note.as_ref().unwrap().reason).collect();
        assert_eq!(reasons, if tail { vec![] } else { vec![Reason::UncommittedTail] });
        close(pool);
        assert_eq!(segments_in(&path), [whole.to_string(), written.to_string()], "what was deleted meanwhile is gone");
        assert_eq!(real.findings(), [""; 0]);
        close(real.open());
    }
}

#[test]
fn a_tier_with_files_is_not_removed() {
    let real = Real::new();
    let ssd = durable();
    let pool = real.with_tiers([("ssd", ssd.path())]);
    let (ino, _) = file_in(&pool, "ssd", "f", b"bytes");
    let refused = pool.remove_tier("ssd").unwrap_err().to_string();
    assert!(refused.contains("holds 1 files"), "{refused}");
    assert!(pool.remove_tier("none").unwrap_err().to_string().contains("no tier none"));
    assert!(pool.remove_tier("pm").is_err());
    store(&pool, [removal(ROOT, "f")]);
    pool.edit().reap(ino);
    pool.remove_tier("ssd").unwrap();
    assert_eq!(fs::read_dir(ssd.path()).unwrap().count(), 0);
    close(pool);
    assert_eq!(real.findings(), [""; 0]);
}

/// The sealed file that is moved in the tests below, and its bytes.
fn model() -> Vec<u8> {
    let header = br#"{"a":{"dtype":"U8","shape":[9000],"data_offsets":[0,9000]}}"#;
    let bytes: Vec<u8> = (0..9000u32).map(|n| n as u8).collect();
    [&(header.len() as u64).to_le_bytes()[..], header, &bytes].concat()
}

/// What moving a file does to the pool, in order; `step` is called in between.
fn move_file(pool: &Pool, ino: Ino, to: &str, step: &mut dyn FnMut()) -> SegmentId {
    let from = pool.view().object(ino).unwrap().attributes.segment.unwrap();
    let number = pool.view().tier_named(to).unwrap();
    let copy = SegmentId::in_tier(number, pool.edit().next_id()).unwrap();
    pool.segments().create(copy).unwrap();
    step();
    pool.announce_copy(ino, copy).unwrap();
    step();
    let bytes = read_segment(pool, from);
    fs::write(pool.segments().path_of(copy), &bytes[..bytes.len() / 2]).unwrap();
    step();
    fs::write(pool.segments().path_of(copy), &bytes).unwrap();
    step();
    assert!(pool.switch_to_copy(ino, (from, copy), bytes.len() as u64, false).unwrap());
    step();
    pool.commit(pool.newest()).unwrap();
    step();
    pool.unlink_covered();
    step();
    copy
}

/// At each step, as the server does them.
#[test]
fn a_move_that_is_interrupted_anywhere_leaves_one_whole_copy() {
    let steps = 7;
    for stop in 0..=steps {
        for power in [false, true] {
            let scratch = Scratch::new(1 << 20);
            let ssd = durable();
            let (pool, medium) = scratch.first_open();
            pool.add_tier("ssd", ssd.path()).unwrap();
            drop(pool);
            let (pool, medium) = scratch.open(medium.stored(), BOOT);
            let bytes = model();
            let (ino, from) = make_file(&pool, "model", &bytes);
            pool.commit(pool.newest()).unwrap();
            let source: &dyn tensorfs_formats::Source = &&bytes[..];
            let runs = examine(
                source,
                bytes.len() as u64,
                pool.description_room(),
                &Before::default(),
                &|| true,
                &tensorfs_formats::recognise,
            )
            .unwrap()
            .unwrap();
            assert!(pool.seal(ino, from, 4096, runs).unwrap());
            pool.commit(pool.newest()).unwrap();
            let mut images = Vec::new();
            let mut at = 0;
            // Both kinds of image, of this moment; what the host holds is kept beside.
            let copy = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                move_file(&pool, ino, "ssd", &mut || {
                    if at == stop {
                        images.push((medium.stored(), medium.after_power_loss(|| false)));
                        std::panic::resume_unwind(Box::new(()));
                    }
                    at += 1;
                })
            }));
            assert_eq!(copy.is_ok(), stop == steps, "it went through to its end, or was stopped");
            let (killed, lost) = images.pop().unwrap_or_else(|| (medium.stored(), medium.after_power_loss(|| false)));
            drop(pool);
            let (image, boot) = if power { (lost, NEXT_BOOT) } else { (killed, BOOT) };
            let (pool, _) = scratch.open(image, boot);
            let what = format!("stopped behind step {stop}, power {power}");
            let segment = segment_of(&pool, "model");
            assert_eq!(read_segment(&pool, segment), bytes, "{what}");
            let object_size = pool.view().object(ino).unwrap().size();
            assert_eq!(object_size, bytes.len() as u64, "{what}");
            if stop >= 5 {
                assert_eq!(segment.tier(), 1, "{what}: it was committed");
            }
            assert_eq!(pool.quarantine().list().unwrap().len(), 0, "{what}");
            pool.unlink_covered();
            let (pm, tier) = (segments_in(&scratch.pool()), segments_in(ssd.path()));
            assert_eq!(pm.len() + tier.len(), 1, "{what}: {pm:?} {tier:?}");
            let sealed = pool.view().object(ino).unwrap().chain().unwrap().is_sealed();
            if stop != 4 {
                assert!(sealed, "{what}: its checksums are there");
            }
            let verdicts = {
                let chain = pool.view().object(ino).unwrap().chain().unwrap().clone();
                tensorfs_layout::check::verify_runs(pool.segments(), segment, &chain, &|_| {})
            };
            assert!(verdicts.iter().all(|verdict| verdict.fault.is_none()), "{what}: {verdicts:?}");
        }
    }
}

/// The seals come after the switch. That there was no room for them was heard as a move that had failed, and the copy
/// was discarded, which was the file's own by then.
#[test]
fn a_move_whose_seals_find_no_room_has_been_made() {
    // The log is full but for one record: the switch takes less, the seals of a hundred parts more.
    let all = log_full_beside_a_sealed_file(usize::MAX).attributes;
    let full = log_full_beside_a_sealed_file(all - 1);
    let (pool, ino) = (&full.pool, full.ino);
    let copy = move_file(pool, ino, "ssd", &mut || {});
    assert!(!pool.view().object(ino).unwrap().chain().unwrap().is_sealed(), "there was room after all");
    assert_eq!(segment_of(pool, "model"), copy);
    assert_eq!(read_segment(pool, copy), full.bytes);
}

struct Full {
    pool: Pool,
    ino: Ino,
    bytes: Vec<u8>,
    _ssd: tempfile::TempDir,
    _scratch: Scratch,
    attributes: usize,
}

/// A pool with a sealed file, into whose log no more attributes fit, or with so many of them.
fn log_full_beside_a_sealed_file(most: usize) -> Full {
    let scratch = Scratch::new(4096);
    let ssd = durable();
    let (pool, medium) = scratch.first_open();
    pool.add_tier("ssd", ssd.path()).unwrap();
    drop(pool);
    let (pool, medium) = scratch.open(medium.stored(), BOOT);
    let bytes = vec![7; 300];
    let (ino, from) = make_file(&pool, "model", &bytes);
    let sealed = |offset| SealedRun {
        offset,
        len: 3,
        seal: Seal { crc: 1, description: Box::default() },
        origin: Origin::default(),
    };
    assert!(pool.seal(ino, from, 4096, (0..100).map(|n| sealed(n * 3)).collect()).unwrap());
    pool.commit(pool.newest()).unwrap();
    medium.set_host_full(true);
    let name = |n: usize| format!("user.{n}").into_bytes().into();
    let attribute = |n| Record::Xattr { ino: ROOT, name: name(n), value: [7; 900].into() };
    let attributes = (0..most).take_while(|n| try_store(&pool, [attribute(*n)]).is_ok()).count();
    Full { pool, ino, bytes, _ssd: ssd, _scratch: scratch, attributes }
}

/// A move that a crash interrupts at any store or persist of the log leaves the file whole, where it was or where it
/// goes.
#[test]
fn a_move_survives_a_crash_between_any_two_stores() {
    let scratch = Scratch::new(1 << 20);
    let ssd = durable();
    let (pool, medium) = scratch.first_open();
    pool.add_tier("ssd", ssd.path()).unwrap();
    drop(pool);
    let (pool, medium) = scratch.open(medium.stored(), BOOT);
    let bytes = model();
    let (ino, _) = make_file(&pool, "model", &bytes);
    pool.commit(pool.newest()).unwrap();
    let begin = medium.history().len();
    let kept = scratch.copy();
    let copy = move_file(&pool, ino, "ssd", &mut || {});
    let history = medium.history();
    let segment_bytes = fs::read(pool.segments().path_of(copy)).unwrap();
    let copy_path = pool.segments().path_of(copy);
    drop(pool);
    assert!(history.len() > begin + 4);
    for at in begin..=history.len() {
        for power in [false, true] {
            // The host as it was before the first step that removes anything; the copy is whole or was never begun.
            let host = kept.copy();
            fs::write(&copy_path, &segment_bytes).unwrap();
            let image = if power { history.power_lost(at, || false) } else { history.killed(at) };
            let (pool, _) = host.open(image, if power { NEXT_BOOT } else { BOOT });
            let segment = segment_of(&pool, "model");
            assert_eq!(read_segment(&pool, segment), bytes, "event {at}, power {power}");
            pool.unlink_covered();
            let left = segments_in(&host.pool()).len() + segments_in(ssd.path()).len();
            assert_eq!(left, 1, "event {at}, power {power}: {segment}");
        }
    }
}

/// A copy that changed under way is not taken.
#[test]
fn a_file_that_changed_is_not_switched() {
    let real = Real::new();
    let ssd = durable();
    let pool = real.with_tiers([("ssd", ssd.path())]);
    let (ino, from) = make_file(&pool, "f", b"bytes");
    let copy = SegmentId::in_tier(1, pool.edit().next_id()).unwrap();
    pool.segments().create(copy).unwrap();
    fs::write(pool.segments().path_of(copy), b"byte").unwrap();
    assert!(!pool.switch_to_copy(ino, (from, copy), 5, false).unwrap(), "too short");
    fs::write(pool.segments().path_of(copy), b"bytes").unwrap();
    append(&pool, ino, from, b"+");
    assert!(!pool.switch_to_copy(ino, (from, copy), 5, false).unwrap(), "the file has grown");
    assert_eq!(segment_of(&pool, "f"), from);
    close(pool);
}

/// A sealed file of a pool on a medium whose events are known, durably.
fn sealed_model(scratch: &Scratch) -> (Pool, std::sync::Arc<SimMedium>, Ino) {
    let (pool, medium) = scratch.first_open();
    let bytes = model();
    let (ino, from) = make_file(&pool, "model", &bytes);
    pool.commit(pool.newest()).unwrap();
    let source: &dyn tensorfs_formats::Source = &&bytes[..];
    let (len, room) = (bytes.len() as u64, pool.description_room());
    let runs = examine(source, len, room, &Before::default(), &|| true, &tensorfs_formats::recognise);
    assert!(pool.seal(ino, from, 4096, runs.unwrap().unwrap()).unwrap());
    pool.commit(pool.newest()).unwrap();
    (pool, medium, ino)
}

/// What a remote that was carried to now has of a file.
fn known(pool: &Pool, ino: Ino) -> Known {
    let view = pool.view();
    let object = view.object(ino).unwrap();
    let chain = object.chain().unwrap();
    let seals = chain.runs().iter().filter_map(|run| Some((run.len, run.seal()?.crc)));
    let segment = object.attributes.segment.unwrap();
    Known { segment, version: chain.version(), size: chain.size(), seals: digest(seals) }
}

fn is_away(pool: &Pool, ino: Ino) -> bool {
    let segment = pool.view().object(ino).unwrap().attributes.segment.unwrap();
    matches!(pool.segments().gone(segment), Some(Gone::Away { .. }))
}

/// Proves E26.
#[test]
fn a_file_that_leaves_is_here_or_away_whatever_happens_between_any_two_stores() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium, ino) = sealed_model(&scratch);
    let (begin, kept) = (medium.history().len(), scratch.copy());
    let tier = pool.own_remote("file:///remote", b"note").unwrap();
    let left = known(&pool, ino);
    let tensors = |pool: &Pool| pool.view().object(ino).unwrap().chain().unwrap().tensors().count();
    let had = tensors(&pool);
    assert_eq!(pool.let_go(ino, &left, tier).unwrap(), Ok(()));
    // Nothing is removed before it is durable.
    let stored = medium.history().len();
    pool.unlink_covered();
    assert_eq!(segments_in(&scratch.pool()).len(), 1);
    pool.commit(pool.newest()).unwrap();
    let durable = medium.history().len();
    pool.unlink_covered();
    assert_eq!(segments_in(&scratch.pool()), Vec::<String>::new());
    assert!(is_away(&pool, ino) && had > 0 && tensors(&pool) == had);
    assert_eq!((pool.view().tier_totals(tier).files, pool.view().tier_totals(tier).bytes), (1, left.size));
    let history = medium.history();
    drop(pool);
    for at in begin..=history.len() {
        for power in [false, true] {
            let host = kept.copy();
            let image = if power { history.power_lost(at, || false) } else { history.killed(at) };
            let (pool, _) = host.open(image, if power { NEXT_BOOT } else { BOOT });
            let what = format!("event {at}, power {power}");
            let chain = pool.view().object(ino).unwrap().chain().unwrap().clone();
            assert!(chain.is_sealed() && chain.size() == left.size && tensors(&pool) == had, "{what}");
            assert_eq!(pool.quarantine().list().unwrap().len(), 0, "{what}");
            let away = is_away(&pool, ino);
            assert!(away || at < if power { durable } else { stored }, "{what}: it was done");
            if !away {
                assert_eq!(read_segment(&pool, segment_of(&pool, "model")), model(), "{what}");
            }
            pool.commit(pool.newest()).unwrap();
            pool.unlink_covered();
            assert_eq!(segments_in(&host.pool()).len(), usize::from(!away), "{what}");
        }
    }
}

/// Proves E25.
#[test]
fn a_file_leaves_only_as_it_was_carried() {
    let scratch = Scratch::new(1 << 20);
    let (pool, medium, ino) = sealed_model(&scratch);
    let tier = pool.own_remote("file:///remote", b"note").unwrap();
    let right = known(&pool, ino);
    let refused = |pool: &Pool, known: &Known| pool.let_go(ino, known, tier).unwrap().unwrap_err();
    for wrong in [
        Known { segment: SegmentId(right.segment.0 + 1), ..right },
        Known { version: right.version + 1, ..right },
        Known { size: right.size - 1, ..right },
        Known { seals: right.seals ^ 1, ..right },
    ] {
        assert!(refused(&pool, &wrong).contains("changed"), "{wrong:?}");
    }
    let segment = right.segment;
    // A replacement that was completed, and whose records may be in the log for long: it does not come back.
    let (new, bytes) = (SegmentId(pool.edit().next_id()), model());
    pool.segments().create(new).unwrap();
    store(&pool, [Record::Replace { ino, segment: new }]);
    assert!(refused(&pool, &right).contains("changed"), "it is being replaced");
    let attributes = Attributes { segment: Some(new), ..pool.view().object(ino).unwrap().attributes.clone() };
    store(&pool, [Record::Attributes { ino, attributes }]);
    append(&pool, ino, new, &bytes);
    assert!(refused(&pool, &right).contains("sealed"));
    pool.commit(pool.newest()).unwrap();
    let seal = Seal { crc: 7, description: Box::default() };
    let run = SealedRun { offset: 0, len: bytes.len() as u64, seal, origin: Origin::default() };
    assert!(pool.seal(ino, new, 4096, vec![run]).unwrap());
    assert!(refused(&pool, &right).contains("changed") && segment != new);
    let now = known(&pool, ino);
    assert_eq!(pool.let_go(ino, &now, tier).unwrap(), Ok(()));
    pool.commit(pool.newest()).unwrap();
    drop(pool);
    let (pool, _) = scratch.open(medium.stored(), BOOT);
    assert!(is_away(&pool, ino));
    assert!(refused(&pool, &now).contains("changed"), "it has left");
    assert_eq!(pool.quarantine().list().unwrap().len(), 0);
    // It is one remote as long as files are there.
    assert_eq!(pool.own_remote("file:///remote", b"another note").unwrap(), tier);
    assert!(pool.own_remote("file:///elsewhere", b"").unwrap_err().to_string().contains("another remote"));
}

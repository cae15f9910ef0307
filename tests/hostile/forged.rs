//! Pools of somebody who has written their logs himself: what they say is possible, and nothing that a server writes.
//! What root does with them ends, and takes no more than the bytes that are there.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sys::resource::{Resource, setrlimit};
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::{Ino, ROOT, testing};
use tensorfs_tests::{Passthrough, Setup, run, run_ok, scratch, tensorfs};

/// Memory that a command may map, and processor time in seconds: for debug builds. What ends takes some of it, and what
/// does not end takes all.
const MEMORY: u64 = 3 << 30;
const TIME: u64 = 60;

/// Runs a command of which it is not known that it ends.
fn bounded(command: &mut Command) -> Output {
    let limit = || {
        setrlimit(Resource::RLIMIT_AS, MEMORY, MEMORY)?;
        Ok(setrlimit(Resource::RLIMIT_CPU, TIME, TIME)?)
    };
    // SAFETY: two system calls.
    run(unsafe { command.pre_exec(limit) })
}

/// As [`bounded`]. Fails if the command did not end by itself.
#[track_caller]
fn ends(command: &mut Command) -> Output {
    let output = bounded(command);
    let text = String::from_utf8_lossy(&output.stderr).chars().take(500).collect::<String>();
    assert!(output.status.code().is_some_and(|code| code < 100), "{command:?}: {}: {text}", output.status);
    output
}

/// A pool, and what its log says besides: each list of records is one transaction.
fn forge(pool: &Path, transactions: impl FnOnce(&Pool) -> Vec<Vec<Record>>) {
    Pool::create(pool, &CreateOptions::default()).unwrap();
    let opened = Pool::open(pool, &OpenOptions::default()).unwrap();
    for records in transactions(&opened) {
        let transaction = || records.iter().cloned().fold(Transaction::new(0), Transaction::with);
        let stored = opened.edit().store(transaction());
        stored.or_else(|_| opened.reclaim().and_then(|_| opened.edit().store(transaction()))).unwrap();
    }
    opened.close().unwrap();
}

/// Objects that are directories, as the root is; or files that nobody has written.
fn object(pool: &Pool, is_dir: bool) -> (Ino, Record) {
    let ino = Ino(pool.edit().next_id());
    let mut attributes = pool.view().object(ROOT).unwrap().attributes.clone();
    if !is_dir {
        attributes.mode = libc::S_IFREG | 0o644;
    }
    (ino, Record::Attributes { ino, attributes })
}

fn name(dir: Ino, name: &str, ino: Ino) -> Record {
    Record::Name { dir, name: name.as_bytes().into(), ino }
}

/// Makes the log of a closed pool as long as this many blocks of another size, without writing any of it. What its
/// first block holds stays there.
fn stretch(pool: &Path, block_size: u32, blocks: u32) {
    let log = File::options().read(true).write(true).open(pool.join("log")).unwrap();
    let mut image = vec![0; (2 << 20) + 65_536];
    log.read_exact_at(&mut image, 0).unwrap();
    for copy in [0, 1 << 20] {
        image[copy + 160..copy + 164].copy_from_slice(&block_size.to_le_bytes());
        image[copy + 164..copy + 168].copy_from_slice(&blocks.to_le_bytes());
    }
    testing::vouch_for(&mut image);
    log.set_len(0).unwrap();
    log.set_len((2 << 20) + u64::from(block_size) * u64::from(blocks)).unwrap();
    log.write_all_at(&image, 0).unwrap();
}

/// How much of a file is in the page cache.
fn cached(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping, which nobody reads through.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let mut pages = vec![0_u8; len.div_ceil(4096)];
    // SAFETY: a byte for each page of the mapping.
    assert_eq!(unsafe { libc::mincore(start, len, pages.as_mut_ptr()) }, 0);
    // SAFETY: unmaps what was mapped.
    unsafe { libc::munmap(start, len) };
    pages.iter().filter(|page| **page & 1 != 0).count() as u64 * 4096
}

/// True if the host tells of holes in files of this directory.
fn tells_of_holes(dir: &Path) -> bool {
    let file = File::create_new(dir.join("hole")).unwrap();
    file.set_len(1 << 20).unwrap();
    nix::unistd::lseek(&file, 0, nix::unistd::Whence::SeekData) == Err(nix::errno::Errno::ENXIO)
}

fn pool_of(dir: &Path) -> PathBuf {
    dir.join("pool")
}

/// What each command of root's on a pool at rest does.
const AT_REST: [&[&str]; 7] =
    [&["info"], &["ls"], &["ls", "-R"], &["check"], &["tier", "list"], &["verify"], &["tensors"]];

#[test]
fn the_holes_of_a_log_are_not_read() {
    let dir = scratch();
    if !tells_of_holes(dir.path()) {
        return tensorfs_tests::skip("the_holes_of_a_log_are_not_read", "the host tells of no holes");
    }
    let pool = pool_of(dir.path());
    forge(&pool, |pool| {
        let (file, record) = object(pool, false);
        vec![vec![record, name(ROOT, "f", file)]]
    });
    let served = |what: &str| {
        let setup = Setup::new("the_holes_of_a_log_are_not_read", Passthrough::Off).pool_at(pool.clone());
        let mut mount = setup.mount();
        assert_eq!(fs::metadata(mount.at("f")).unwrap().len(), 0, "{what}");
        fs::write(mount.at("g"), what).unwrap();
        run_ok(tensorfs().arg("check").arg(mount.path()));
        mount.umount();
    };
    // Not so long that its pages could not be looked for.
    stretch(&pool, 16 << 20, 256);
    let at_first = cached(&pool.join("log"));
    for command in AT_REST {
        let output = ends(tensorfs().args(command).arg(&pool));
        assert!(output.status.success(), "{command:?}: {output:?}");
        let read = cached(&pool.join("log")) - at_first;
        assert!(read < 64 << 20, "{command:?} has read {read} bytes");
    }
    served("short");
    let read = cached(&pool.join("log"));
    assert!(read < 256 << 20, "{read} bytes were read");
    stretch(&pool, 8 << 20, 1 << 20);
    for command in AT_REST {
        let output = ends(tensorfs().args(command).arg(&pool));
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
    served("long");
    let taken = pool.join("log").metadata().unwrap().blocks() * 512;
    assert!(taken < 256 << 20, "{taken} bytes are taken now");
}

/// A directory that has the root, itself, and one that leads back to it in it.
fn circle(pool: &Pool) -> Vec<Vec<Record>> {
    let ((a, made_a), (b, made_b), (file, made_file)) = (object(pool, true), object(pool, true), object(pool, false));
    let names = [name(ROOT, "a", a), name(a, "self", a), name(a, "up", ROOT), name(a, "b", b), name(b, "back", a)];
    vec![[made_a, made_b, made_file, name(b, "f", file)].into_iter().chain(names).collect()]
}

/// Directories each of which has two names in the one before: the last one has 2^42 paths.
fn two_names(pool: &Pool) -> Vec<Vec<Record>> {
    let mut above = ROOT;
    let mut records = Vec::new();
    for _ in 0..42 {
        let (ino, made) = object(pool, true);
        records.extend([made, name(above, "n0", ino), name(above, "n1", ino)]);
        above = ino;
    }
    let (file, made) = object(pool, false);
    records.extend([made, name(above, "f", file)]);
    vec![records]
}

/// Directories in each other, with a file in each. Whoever uses a mount can make such.
fn nested(pool: &Pool) -> Vec<Vec<Record>> {
    let mut above = ROOT;
    let mut level = || {
        let ((ino, made), (file, made_file)) = (object(pool, true), object(pool, false));
        let records = [made, made_file, name(above, &"n".repeat(200), ino), name(above, "z", file)];
        above = ino;
        records
    };
    (0..20).map(|_| (0..1000).flat_map(|_| level()).collect()).collect()
}

/// What walks through a pool at rest, and how often it complains of what in it.
const WALKS: [&[&str]; 4] = [&["ls", "-R"], &["verify"], &["tensors"], &["seal"]];

#[test]
fn a_directory_that_is_found_again_is_walked_once() {
    for (how, forged) in [("circle", circle as fn(&Pool) -> Vec<Vec<Record>>), ("two names", two_names)] {
        let dir = scratch();
        let pool = pool_of(dir.path());
        forge(&pool, forged);
        for command in WALKS {
            let output = ends(tensorfs().args(command).arg(&pool));
            let said = String::from_utf8_lossy(&output.stderr);
            let times = said.lines().filter(|line| line.contains("a directory that has another name already")).count();
            assert_eq!(times, if how == "circle" { 3 } else { 42 }, "{how}: {command:?}: {said}");
            assert!(!output.status.success(), "{how}: {command:?}");
        }
        let listed = ends(tensorfs().args(["ls", "-R"]).arg(&pool));
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert_eq!(text.lines().filter(|line| line.ends_with("/f")).count(), 1, "{how}: {text}");
        let setup = Setup::new("a_directory_that_is_found_again_is_walked_once", Passthrough::Off);
        let mut mount = setup.pool_at(pool).mount();
        for command in WALKS.into_iter().chain([&["latest"] as &[&str], &["ls", "-R", "--complete"], &["rollback"]]) {
            ends(tensorfs().args(command).arg(mount.path()));
        }
        mount.umount();
    }
}

#[test]
fn the_paths_of_nested_directories_take_no_memory() {
    let dir = scratch();
    let pool = pool_of(dir.path());
    forge(&pool, nested);
    for command in WALKS {
        let output = ends(tensorfs().args(command).arg(&pool));
        assert!(!output.status.success(), "{command:?}: {output:?}");
        // What has a path that is longer than any call takes is not left out in silence.
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&"n".repeat(200)), "{command:?}: {said}");
        assert!(said.lines().count() <= 3, "{command:?}: {said}");
    }
}

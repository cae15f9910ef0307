//! Several pools that were carried to places below one URL, as one.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tensorfs_layout::ROOT;
use tensorfs_layout::check::{Depth, check};
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_remote::place::{Access, Place};
use tensorfs_remote::repository::{Entry, FORMAT, Head, Line, Repository};

use crate::pools::{Editor, Seen, Seens, TestPool, noise, seen};
use crate::program::{command, ok, run, text};

/// Pools whose remotes are below one directory.
struct Job {
    pools: Vec<TestPool>,
    dir: tempfile::TempDir,
    url: String,
}

impl Job {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}/job", dir.path().display());
        Self { pools: Vec::new(), dir, url }
    }

    /// One more, which was written later than the ones before.
    fn pool(&mut self, name: &str, more: &[&str], fill: impl FnOnce(&mut Editor<'_>)) {
        let mut pool = TestPool::since(1_000_000 * (self.pools.len() as i64 + 1));
        pool.edit(fill);
        ok(&[&["set", text(&pool.path()), &format!("{}/{name}", self.url)], more].concat());
        ok(&["carry", text(&pool.path()), "--patience", "0"]);
        self.pools.push(pool);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What a restore makes of them, and what it tells.
    fn restored(&self, more: &[&str]) -> (Seens, Value) {
        let to = self.at("made");
        let told = ok(&[&["restore", &self.url, text(&to), "--json"], more].concat());
        let report = check(&to, Depth::Data, &|_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let found = seen(&to);
        fs::remove_dir_all(&to).unwrap();
        (found, serde_json::from_str(&told).unwrap())
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], words: &[&str]) {
        let output = run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
        assert!(!self.at("made").exists(), "{said}");
    }
}

/// Two files of one length and CRC32C with different bytes.
fn collision() -> [Vec<u8>; 2] {
    let mut found: HashMap<u32, Vec<u8>> = HashMap::new();
    for n in 0_u64.. {
        let bytes = noise(n, 40);
        match found.insert(tensorfs_formats::crc32c(&bytes), bytes.clone()) {
            Some(other) if other != bytes => return [bytes, other],
            _ => {}
        }
    }
    unreachable!()
}

/// Proves E29.
#[test]
fn several_trees_are_one_with_what_differs_twice() {
    let mut job = Job::new();
    let large = noise(77, 3 << 20);
    let long = [b'n'; 250];
    let [one, other] = collision();
    job.pool("a", &[], |edit| {
        let dir = edit.make(ROOT, b"step", libc::S_IFDIR | 0o755, |_, _| {});
        edit.file(dir, b"shard-0", &[&noise(1, 2 << 20)], true);
        // One file of two names.
        let two = edit.file(ROOT, b"x", &[b"linked"], true);
        edit.store(Transaction::new(0).with(Record::Name { dir: ROOT, name: b"y".as_slice().into(), ino: two }));
        edit.file(ROOT, b"large", &[&large], true);
        edit.file(ROOT, b"log", &[b"of a"], true);
        edit.file(ROOT, b"kind", &[b"a file"], true);
        edit.file(ROOT, &long, &[b"1"], true);
        edit.file(ROOT, b"alike", &[&one], true);
        edit.make(ROOT, b"fifo", libc::S_IFIFO | 0o600, |_, _| {});
        edit.file(ROOT, b"unsealed", &[b"no seals"], false);
        edit.file(ROOT, b"empty", &[], false);
    });
    job.pool("b", &[], |edit| {
        let dir = edit.make(ROOT, b"step", libc::S_IFDIR | 0o750, |_, _| {});
        edit.file(dir, b"shard-1", &[&noise(2, 70_000)], true);
        edit.file(ROOT, b"x", &[b"linked"], true);
        edit.file(ROOT, b"large", &[&large[..2 << 20]], true);
        edit.file(ROOT, b"log", &[b"of b"], true);
        edit.file(ROOT, b"log.a", &[b"another one"], true);
        let kind = edit.make(ROOT, b"kind", libc::S_IFDIR | 0o700, |_, _| {});
        edit.file(kind, b"below", &[b"it"], true);
        edit.file(ROOT, b"alike", &[&other], true);
        edit.make(ROOT, b"fifo", libc::S_IFIFO | 0o600, |_, _| {});
        edit.file(ROOT, b"unsealed", &[b"no seals"], false);
        edit.file(ROOT, b"empty", &[], false);
    });
    job.pool("c%", &[], |edit| {
        let dir = edit.make(ROOT, b"step", libc::S_IFDIR | 0o777, |tx, ino| {
            tx.push(Record::Xattr { ino, name: b"user.of".as_slice().into(), value: b"c".as_slice().into() });
        });
        edit.file(dir, b"shard-2", &[&noise(3, 100)], true);
        edit.file(ROOT, b"log", &[b"of c"], true);
        edit.make(ROOT, b"kind", libc::S_IFLNK | 0o777, |tx, ino| {
            tx.push(Record::Target { ino, target: b"step".as_slice().into() });
        });
        edit.file(ROOT, &long, &[b"2"], true);
    });
    // It has grown, and so has other parts than that of the first one.
    job.pools[1].edit(|edit| edit.rewrite(edit.lookup("large"), 2 << 20, &[&large[..2 << 20], &large[2 << 20..]]));
    ok(&["carry", text(&job.pools[1].path()), "--patience", "0"]);
    // None of these is a pool.
    fs::create_dir_all(job.at("job/nothing")).unwrap();
    fs::write(job.at("job/file"), b"").unwrap();
    std::os::unix::fs::symlink(job.at("job/a"), job.at("job/link")).unwrap();
    let (found, told) = job.restored(&[]);
    let bytes =
        |name: &[u8]| found.get(name).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(name))).bytes.clone();
    let is =
        |name: &[u8], expected: &[u8]| assert!(bytes(name).unwrap() == expected, "{}", String::from_utf8_lossy(name));
    is(b"step/shard-0", &noise(1, 2 << 20));
    is(b"step/shard-1", &noise(2, 70_000));
    is(b"step/shard-2", &noise(3, 100));
    is(b"large", &large);
    let Seen { mode, xattrs, .. } = &found[&b"step"[..]];
    assert_eq!((mode & 0o7777, xattrs.len()), (0o750, 1));
    is(b"x", b"linked");
    assert_eq!((found[&b"x"[..]].links, found[&b"y"[..]].links), (2, 2));
    is(b"log", b"of c");
    is(b"log.b", b"of b");
    is(b"log.a", b"another one");
    is(b"log.a.2", b"of a");
    is(b"kind/below", b"it");
    is(b"kind.a", b"a file");
    assert_eq!(found[&b"kind.c%"[..]].target.as_deref(), Some(&b"step"[..]));
    is(&long, b"2");
    is(&[&long[..], b".a"].concat(), b"1");
    is(b"alike", &other);
    is(b"alike.a", &one);
    let names: Vec<_> = found.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names.len(), 23, "{names:?}");
    let differing: Vec<&str> =
        told["differing"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert_eq!(differing.len(), 4, "{differing:?}");
    assert!(differing.iter().any(|line| line.contains("/log.a.2") && line.contains("of a")), "{differing:?}");
    let pools: Vec<&str> =
        told["pools"].as_array().unwrap().iter().map(|pool| pool["name"].as_str().unwrap()).collect();
    assert_eq!(pools, ["a", "b", "c%"]);
    let listed = ok(&["list", &job.url]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert_eq!(ok(&["list", &job.url, "--json"]).lines().count(), 3);
    // One of them.
    for way in [format!("{}#c%25", job.url), format!("{}/c%25", job.url), format!("{}#c%25@1", job.url)] {
        assert!(ok(&["list", &way]).contains("/step/shard-2"), "{way}");
    }
    job.refused(&["get", &job.url, "/log"], &["a, b, c%", "#POOL"]);
    job.refused(&["check", &job.url], &["a, b, c%"]);
    job.refused(&["list", &job.url, "/step"], &["a, b, c%"]);
    let made = job.at("made");
    job.refused(&["restore", &job.url, text(&made), "--at", "1"], &["a, b, c%", "one pool's"]);
    job.refused(&["restore", &job.url, text(&made), "--at", "2001-01-01"], &["nothing there is as old"]);
}

/// What has one name and other cuts is known by its bytes, also where nothing else is the same.
///
/// Proves E29.
#[test]
fn encrypted_trees_are_one_and_need_one_key() {
    let mut job = Job::new();
    let key = |job: &Job, name: &str| {
        ok(&["key", text(&job.at(name))]);
        text(&job.at(name)).to_owned()
    };
    let (one, other) = (key(&job, "one.key"), key(&job, "other.key"));
    let fill = |edit: &mut Editor<'_>, own: &[u8]| {
        edit.file(ROOT, b"same", &[&noise(5, 2 << 20)], true);
        edit.file(ROOT, b"own", &[own], true);
    };
    job.pool("a", &["--key-file", &one], |edit| fill(edit, b"1"));
    job.pool("b", &["--key-file", &one], |edit| fill(edit, b"2"));
    let (found, _) = job.restored(&["--key-file", &one]);
    let names: Vec<_> = found.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names, ["", "own", "own.a", "same"]);
    let made = job.at("made");
    job.refused(&["restore", &job.url, text(&made)], &["job/a: it is encrypted", "job/b: it is encrypted"]);
    let id = serde_json::from_str::<Value>(&ok(&["status", text(&job.pools[0].path()), "--json"])).unwrap();
    let id = id["id"].as_str().map(str::to_owned);
    if let Some(id) = id {
        job.refused(&["restore", &job.url, text(&made), "--key-file", &one, "--id", &id], &["--id", "a, b"]);
    }
    job.pool("c", &[], |edit| fill(edit, b"3"));
    job.refused(&["restore", &job.url, text(&made)], &["job/a: it is encrypted", "no key is needed for c", "#POOL"]);
    job.refused(&["restore", &job.url, text(&made), "--key-file", &one], &["job/c: it is not encrypted", "a, b"]);
    job.refused(
        &["restore", &job.url, text(&made), "--key-file", &other],
        &["job/a: it is encrypted with another key"],
    );
}

/// Proves E4, E29.
#[test]
fn a_hostile_tree_among_several_makes_nothing() {
    let mut job = Job::new();
    job.pool("good", &[], |edit| {
        let dir = edit.make(ROOT, b"d", libc::S_IFDIR | 0o755, |_, _| {});
        edit.file(dir, b"a", &[b"of it"], true);
    });
    let newest = |name: &str| {
        let place = Place::open(&format!("{}/{name}", job.url), &Access::default()).unwrap();
        Repository::new(place).newest().unwrap()
    };
    let good = newest("good");
    let root = good.tree.entry(1).unwrap().clone();
    let dir = |ino: u64| Line::Object(Box::new(Entry { ino, ..root.clone() }));
    let file = good.tree.entries().find(|entry| entry.is_file()).unwrap().clone();
    let name = |dir: u64, name: &str, ino: u64| Line::Name(dir, name.into(), ino);
    let file = |ino: u64| Line::Object(Box::new(Entry { ino, ..file.clone() }));
    let hostile = [
        ("dots", vec![dir(1), file(7), name(1, "..", 7)], "no name"),
        ("dot", vec![dir(1), file(7), name(1, ".", 7)], "no name"),
        ("way", vec![dir(1), file(7), name(1, "../../x", 7)], "no name"),
        ("way-2", vec![dir(1), file(7), name(1, "a%2Fb", 7)], "no name"),
        ("none", vec![dir(1), file(7), name(1, "", 7)], "no name"),
        ("zero", vec![dir(1), file(7), name(1, "a%00", 7)], "no name"),
        ("twice", vec![dir(1), file(7), name(1, "a", 7), name(1, "%61", 7)], "twice"),
        ("nothing", vec![dir(1), name(1, "a", 7)], "name of nothing"),
        ("root", vec![file(1)], "no root"),
        ("loop", vec![dir(1), dir(2), name(1, "d", 2), name(2, "d", 2)], "two names"),
        ("loop-2", vec![dir(1), dir(2), name(1, "d", 2), name(2, "d", 1)], "two names"),
        ("two", vec![dir(1), dir(2), name(1, "d", 2), name(1, "e", 2)], "two names"),
        ("numbers", vec![dir(1), file(u64::MAX), name(1, "a", u64::MAX)], "impossible numbers"),
    ];
    for (called, lines, what) in hostile {
        let place = Place::make(&format!("{}/{called}", job.url), &Access::default()).unwrap();
        let repository = Repository::new(place);
        let head = Head { tensorfs_remote: FORMAT, number: 1, before: None, base: false, ..good.head.clone().unwrap() };
        let (bytes, _) = repository.compose(head, lines.into_iter()).unwrap();
        repository.put_batch(1, &bytes).unwrap();
        let made = job.at("made");
        job.refused(&["restore", &job.url, text(&made)], &[called, what]);
        job.refused(&["restore", &job.url, text(&made), "--later"], &[called, what]);
        fs::remove_dir_all(job.at("job").join(called)).unwrap();
    }
    // A directory where an object is to be, and a place that leads elsewhere.
    std::os::unix::fs::symlink(job.dir.path(), job.at("job/elsewhere")).unwrap();
    job.pool("empty", &[], |_| {});
    let (found, _) = job.restored(&[]);
    assert_eq!(found.len(), 3);
}

/// Proves E2, E29.
#[test]
fn a_restore_of_several_that_was_killed_is_gone_on_with() {
    let mut job = Job::new();
    for name in ["a", "b", "c"] {
        job.pool(name, &[], |edit| {
            for n in 0..8_u64 {
                edit.file(ROOT, format!("{name}-{n}").as_bytes(), &[&noise(n, 2 << 20)], true);
            }
            edit.file(ROOT, b"own", &[name.as_bytes()], true);
        });
    }
    let made = job.at("made");
    let mut child = command(&["restore", &job.url, text(&made)]).spawn().unwrap();
    let staged = job.at("made.restoring");
    while !staged.join("remote").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it was too fast");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(staged.exists() && !made.exists());
    // One goes on meanwhile: it is not the state any more that was being restored.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    job.pools[0].edit(|edit| edit.file(ROOT, b"new", &[b"new"], true));
    ok(&["carry", text(&job.pools[0].path()), "--patience", "0"]);
    let output = run(&["restore", &job.url, text(&made)]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("go on with it (--at 20"), "{said}");
    let at = said.split("--at ").nth(1).unwrap().split(')').next().unwrap().to_owned();
    let (found, _) = job.restored(&["--at", &at]);
    assert_eq!(found.len(), 1 + 24 + 3);
}

/// Proves E29.
#[test]
fn of_too_many_pools_nothing_is_left_behind() {
    let mut job = Job::new();
    job.pool("a", &[], |edit| {
        edit.file(ROOT, b"f", &[b"of all"], true);
    });
    let long = "n".repeat(200);
    for n in 0..20 {
        let mut copy = std::process::Command::new("cp");
        copy.arg("-r").arg(job.at("job/a")).arg(job.at(&format!("job/{long}-{n}")));
        assert!(copy.status().unwrap().success());
    }
    let made = job.at("made");
    job.refused(&["restore", &job.url, text(&made), "--later"], &["of so many pools", "tensorfs remote restore"]);
    assert!(!job.at("made.restoring").exists());
    // So what it says can be done.
    assert_eq!(job.restored(&[]).0.len(), 2);
}

/// Names that are all cut to one, and differ in two pools.
///
/// Proves E29.
#[test]
fn names_that_are_cut_alike_are_all_there() {
    let mut job = Job::new();
    let name = |n: usize| [vec![b'n'; 250], format!("{n:05}").into_bytes()].concat();
    for (pool, bytes) in [("host-a", b"1"), ("host-b", b"2")] {
        job.pool(pool, &[], |edit| {
            for n in 0..120 {
                edit.file(ROOT, &name(n), &[bytes], true);
            }
        });
    }
    let (found, _) = job.restored(&[]);
    assert_eq!(found.len(), 1 + 2 * 120);
    let end = |end: &str| [&vec![b'n'; 255 - end.len()], end.as_bytes()].concat();
    for (number, is_there) in [("", true), (".2", true), (".9", true), (".120", true), (".121", false)] {
        assert_eq!(found.contains_key(&end(&format!(".host-a{number}"))), is_there, "{number}");
    }
}

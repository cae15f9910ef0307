//! An encrypted remote: what a store can tell of it, what it can do to it, and what whoever has the key notices.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use tensorfs_layout::ROOT;
use tensorfs_layout::check::Committed;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_remote::check::check;
use tensorfs_remote::crypt::Key;
use tensorfs_remote::gc::{Keep, collect};
use tensorfs_remote::place::{Access, Place};
use tensorfs_remote::repository::{Hash, MARK, Repository, marked, unlocked};

use crate::pools::{Seens, TestPool, carrier, noise, restored, seen, varied};
use crate::stores::{Event, Recorded};

/// A key, in a file that goes away.
pub struct KeyFile {
    dir: tempfile::TempDir,
}

impl KeyFile {
    pub fn new() -> Self {
        let made = Self { dir: tempfile::tempdir().unwrap() };
        Key::make(&made.path()).unwrap();
        made
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("key")
    }

    pub fn key(&self) -> Key {
        Key::read(&self.path()).unwrap()
    }

    /// A store, which becomes a remote with this key.
    pub fn make(&self, store: &Arc<Recorded>) -> Place {
        marked(store.place(), Some(&self.key()), None).unwrap()
    }

    /// A remote with this key, as whoever reads it opens it.
    pub fn open(&self, store: &Arc<Recorded>) -> Place {
        unlocked(store.place(), Some(&self.key()), None).unwrap()
    }
}

/// All that is in a directory: paths from it on, and bytes.
pub fn all_in(top: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut left) = (Vec::new(), vec![top.to_owned()]);
    while let Some(dir) = left.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => left.push(path),
                false => {
                    let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
                    found.push((name, fs::read(&path).unwrap()));
                }
            }
        }
    }
    found.sort();
    found
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A pool whose every name, text and byte is looked for elsewhere; and what of it might be in a store.
fn telling() -> (TestPool, Vec<(&'static str, Vec<u8>)>) {
    let mut pool = varied();
    let large = noise(21, 3 << 20);
    let words = b"words that are in a small file. ".repeat(40);
    pool.edit(|edit| {
        let dir = edit.make(ROOT, b"directory-of-secrets", libc::S_IFDIR | 0o755, |_, _| {});
        edit.file(dir, b"weights-of-secrets", &[&large[..1 << 20], &large[1 << 20..]], true);
        edit.file(dir, b"words-of-secrets", &[&words], true);
        edit.make(dir, b"link-of-secrets", libc::S_IFLNK | 0o777, |tx, ino| {
            tx.push(Record::Target { ino, target: b"../where-secrets-are".as_slice().into() });
            tx.push(Record::Xattr { ino, name: b"user.secrets".as_slice().into(), value: noise(22, 300).into() });
        });
        // So many that they need a page.
        for file in 0..2000 {
            edit.make(dir, format!("a-rather-long-name-{file}").as_bytes(), libc::S_IFREG | 0o600, |_, _| {});
        }
    });
    let uuid = Committed::read(&pool.path()).unwrap().superblock().uuid_text();
    let looked_for = vec![
        ("a directory's name", b"directory-of-secrets".to_vec()),
        ("a file's name", b"weights-of-secrets".to_vec()),
        ("a name in a page", b"a-rather-long-name-1234".to_vec()),
        ("a target", b"where-secrets-are".to_vec()),
        ("an attribute's name", b"user.secrets".to_vec()),
        ("an attribute", BASE64_STANDARD.encode(noise(22, 300)).into_bytes()[..32].to_vec()),
        ("the pool's number", uuid.into_bytes()),
        ("the pool's name", b"run-7".to_vec()),
        ("a line", br#"{"object":"#.to_vec()),
        ("bytes of a large file", large[..32].to_vec()),
        ("bytes further in", large[(2 << 20) + 77..][..32].to_vec()),
        ("bytes of a small file", b"words that are in a".to_vec()),
        ("bytes of another one", b"a few bytes".to_vec()),
    ];
    (pool, looked_for)
}

/// Carries a pool twice, with a base and a collection, to a directory; what is there then.
fn carried_to(pool: &mut TestPool, name: &str, key: Option<&Key>) -> Vec<(String, Vec<u8>)> {
    let at = pool.dir.path().join(name);
    let url = format!("file://{}", at.display());
    let place = || marked(Place::make(&url, &Access::default()).unwrap(), key, None).unwrap();
    carrier(&pool.path(), place()).unwrap().pass().unwrap();
    pool.edit(|edit| edit.file(ROOT, format!("second {name}").as_bytes(), &[&noise(9, 70_000)], true));
    carrier(&pool.path(), place()).unwrap().pass().unwrap();
    let repository = Repository::new(place());
    repository.put_base(&mut repository.newest().unwrap()).unwrap();
    collect(&repository, Keep { trees: 0, last: 2, objects: 0 }, false, &|_, _| {}).unwrap();
    let report = check(&repository, true, &|_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    fs::remove_file(pool.path().join("remote")).unwrap();
    all_in(&at)
}

/// Proves E19.
#[test]
fn nothing_of_a_pool_can_be_read_in_the_store_of_an_encrypted_remote() {
    let (mut pool, looked_for) = telling();
    let key = KeyFile::new();
    let plain = carried_to(&mut pool, "plain", None);
    let encrypted = carried_to(&mut pool, "encrypted", Some(&key.key()));
    for (what, part) in &looked_for {
        assert!(plain.iter().any(|(_, bytes)| has(bytes, part)), "{what} is not even in what is not encrypted");
        for (name, bytes) in &encrypted {
            assert!(!has(bytes, part) && !has(name.as_bytes(), part), "{what} is in {name}");
        }
    }
    // What objects are called tells nothing either: none is called as its bytes would have it, nor as in another one.
    let named = |all: &[(String, Vec<u8>)]| -> BTreeSet<String> {
        all.iter().map(|(name, _)| name.clone()).filter(|name| name.starts_with("objects/")).collect()
    };
    assert!(named(&plain).is_disjoint(&named(&encrypted)) && named(&encrypted).len() > 3);
    let other = carried_to(&mut pool, "other", Some(&key.key()));
    assert!(named(&other).is_disjoint(&named(&encrypted)), "two remotes of one key have an object of one name");
    for (name, bytes) in &encrypted {
        let hash = Hash::of(&bytes[bytes.len().min(40)..bytes.len().saturating_sub(16)]).to_string();
        assert!(!name.contains(&hash), "{name}");
    }
    // What there is of each, is told by docs/REMOTE.md.
    let kinds: BTreeSet<&str> = encrypted.iter().map(|(name, _)| name.split('/').next().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["base", "log", "objects", MARK]));
    let lens = |all: &[(String, Vec<u8>)], more: usize| -> Vec<usize> {
        let objects = all.iter().filter(|(name, _)| name.starts_with("objects/"));
        let mut lens: Vec<usize> = objects.map(|(_, bytes)| bytes.len() + more).collect();
        lens.sort_unstable();
        lens
    };
    assert_eq!(lens(&plain, 56).last(), lens(&encrypted, 0).last());
}

/// Proves E3, E19.
#[test]
fn what_an_encrypted_remote_has_is_not_put_again() {
    let mut pool = TestPool::new();
    let (key, store) = (KeyFile::new(), Recorded::new());
    let tensor = noise(1, 2 << 20);
    pool.edit(|edit| edit.file(ROOT, b"one", &[&tensor], true));
    pool.carrier(key.make(&store)).unwrap().pass().unwrap();
    pool.edit(|edit| edit.file(ROOT, b"again", &[&tensor], true));
    let passed = pool.carrier(key.open(&store)).unwrap().pass().unwrap();
    assert_eq!(passed.put, 0);
    assert_eq!(restored(key.open(&store), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

/// Whatever the store gives in the place of an object, be it of the same remote, or of another one of the same key.
///
/// Proves E4, E19.
#[test]
fn what_was_put_in_anothers_place_is_found_and_never_restored() {
    let key = KeyFile::new();
    let fill = |seed: u64| {
        let mut pool = TestPool::new();
        let store = Recorded::new();
        for round in 0..2 {
            pool.edit(|edit| {
                edit.file(ROOT, format!("large-{round}").as_bytes(), &[&noise(seed + round, 1 << 20)], true);
                edit.file(ROOT, format!("small-{round}").as_bytes(), &[&noise(seed + 9 + round, 999)], true);
            });
            let place = if round == 0 { key.make(&store) } else { key.open(&store) };
            pool.carrier(place).unwrap().pass().unwrap();
        }
        let repository = Repository::new(key.open(&store));
        repository.put_base(&mut repository.newest().unwrap()).unwrap();
        (pool, store)
    };
    let ((pool, store), (_, other)) = (fill(1), fill(100));
    let repository = Repository::new(key.open(&store));
    let expected = seen(&pool.path());
    let (scratch, mut count) = (tempfile::tempdir().unwrap(), 0);
    let own = store.objects();
    for (path, whole) in &own {
        let foreign = other.objects().into_iter().filter(|(foreign, _)| {
            foreign == path || foreign.as_ref().starts_with("objects/") && path.as_ref().starts_with("objects/")
        });
        let others = own.iter().filter(|(other, _)| other != path).cloned().chain(foreign);
        for (moved, bytes) in others {
            store.spoil(path, bytes);
            let report = check(&repository, true, &|_, _| {}).unwrap();
            assert!(!report.findings.is_empty(), "{moved} stands in for {path}, and nothing is found");
            count += 1;
            if let Ok((_, found)) = restored(key.open(&store), &scratch.path().join(count.to_string())) {
                assert!(found == expected, "{moved} stands in for {path}");
                assert!(!path.as_ref().starts_with("objects/"), "{moved} stands in for {path}, and nobody noticed");
            }
        }
        store.spoil(path, whole.clone());
    }
    assert!(count > 60 && check(&repository, true, &|_, _| {}).unwrap().findings.is_empty(), "{count}");
}

/// Proves E2, E19.
#[test]
fn after_every_put_an_encrypted_remote_has_a_promised_tree() {
    let mut pool = TestPool::new();
    let (key, store) = (KeyFile::new(), Recorded::new());
    let mut trees = vec![Seens::new()];
    for round in 0..4_u64 {
        pool.edit(|edit| {
            let dir = edit.make(ROOT, format!("step-{round}").as_bytes(), libc::S_IFDIR | 0o755, |_, _| {});
            edit.file(dir, b"model", &[&noise(7, 1 << 20), &noise(round, 1 << 20)], true);
            edit.file(dir, b"index.json", &[&noise(round + 100, 500)], true);
        });
        pool.carrier(key.make(&store)).unwrap().pass().unwrap();
        trees.push(seen(&pool.path()));
    }
    let (events, scratch) = (store.events(), tempfile::tempdir().unwrap());
    let is_batch = |event: &&Event| matches!(event, Event::Put(path, _) if path.as_ref().starts_with("log/"));
    for len in 1..=events.len() {
        let batches = events[..len].iter().filter(is_batch).count();
        // The first event is the file that says what the place is; what holds without it holds for each batch.
        for from in [0, 1] {
            let store = Recorded::of(&events[from..len.max(from)]);
            let to = scratch.path().join(format!("{len}-{from}"));
            match (unlocked(store.place(), Some(&key.key()), None), batches) {
                (Err(error), 0) => assert!(from == 1, "{error}"),
                (place, 0) => drop(restored(place.unwrap(), &to).unwrap_err()),
                (place, _) => assert!(restored(place.unwrap(), &to).unwrap().1 == trees[batches], "{len} events"),
            }
        }
    }
}

/// The file that says what a place is may be lost, spoiled, or made to say something else: the key does without it.
///
/// Proves E19.
#[test]
fn what_becomes_of_the_file_of_a_remote_keeps_nobody_from_it() {
    let mut pool = varied();
    let (key, store) = (KeyFile::new(), Recorded::new());
    let strange = KeyFile::new().key();
    pool.carrier(key.make(&store)).unwrap().pass().unwrap();
    let expected = seen(&pool.path());
    let path = object_store::path::Path::from(MARK);
    let whole = store.objects().into_iter().find(|(found, _)| *found == path).unwrap().1;
    let plain = Bytes::from_static(b"{\"tensorfs_remote\":1}\n");
    let flips = (0..whole.len()).step_by(7).map(|at| {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    });
    let changed: Vec<Bytes> = [Bytes::new(), whole.slice(..30), plain].into_iter().chain(flips).collect();
    for (count, bytes) in changed.into_iter().enumerate() {
        store.spoil(&path, bytes.clone());
        let repository = Repository::new(key.open(&store));
        let findings = check(&repository, true, &|_, _| {}).unwrap().findings;
        assert!(matches!(&findings[..], [one] if one.starts_with("tensorfs-remote: ")), "{bytes:?}: {findings:?}");
        // Whoever has another key, or none, gets nothing.
        unlocked(store.place(), Some(&strange), None).unwrap_err();
        if count < 3 {
            assert!(restored(key.open(&store), &pool.dir.path().join(count.to_string())).unwrap().1 == expected);
            let without = unlocked(store.place(), None, None);
            assert!(without.and_then(|place| Repository::new(place).newest()).is_err());
        }
        // And `remote set` mends it.
        drop(key.make(&store));
        assert!(store.objects().contains(&(path.clone(), whole.clone())));
        assert!(check(&repository, false, &|_, _| {}).unwrap().findings.is_empty());
    }
    // That of another remote of the same key makes this one's objects strange ones, and nothing is taken for its own.
    let other = Recorded::new();
    drop(key.make(&other));
    store.spoil(&path, other.objects().remove(0).1);
    let said = Repository::new(key.open(&store)).newest().unwrap_err().to_string();
    assert!(said.contains("of another remote"), "{said}");
    store.spoil(&path, whole);
    pool.edit(|edit| edit.file(ROOT, b"more", &[b"bytes"], true));
    pool.carrier(key.open(&store)).unwrap().pass().unwrap();
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
    command.args(arguments).env("RUST_LOG", "trace");
    command
}

pub fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// What a command says that succeeds.
#[track_caller]
pub fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The one line that a command says that fails.
#[track_caller]
pub fn fails(arguments: &[&str]) -> String {
    let output = command(arguments).env_remove("RUST_LOG").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{arguments:?}: {said}");
    said
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// All commands with the key, from the first one to a restored pool.
///
/// Proves E9, E19.
#[test]
fn every_command_works_with_a_key_and_tells_nothing_of_it() {
    let mut pool = varied();
    let (own, at) = (pool.path(), pool.dir.path().join("remote"));
    let (url, key) = (format!("file://{}", at.display()), pool.dir.path().join("key"));
    let (url, key) = (url.as_str(), text(&key));
    ok(&["key", key]);
    let secret = fs::read_to_string(key).unwrap();
    let secret = secret.lines().last().unwrap().split_once(':').unwrap().1.to_owned();
    let bytes = BASE64_STANDARD.decode(&secret).unwrap();
    let said = fails(&["key", key]);
    assert!(said.contains("there already"), "{said}");
    let expected = seen(&own);
    let (got, copy) = (pool.dir.path().join("got"), pool.dir.path().join("copy"));
    let mut outputs = Vec::new();
    for arguments in [
        &["set", text(&own), url, "--key-file", key][..],
        &["carry", text(&own)],
        &["wait", text(&own)],
        &["status", text(&own), "--json"],
        &["list", url, "--key-file", key],
        &["list", text(&own), "--batches"],
        &["get", url, "/checkpoints/model", "--key-file", key, "--to", text(&got)],
        &["get", text(&own), "/checkpoints/small"],
        &["check", url, "--data", "--key-file", key],
        &["check", text(&own), "--data"],
        &["gc", text(&own), "--keep-last", "1"],
        &["restore", url, text(&copy), "--key-file", key],
    ] {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        outputs.push([output.stdout, output.stderr].concat());
    }
    assert!(has(&outputs[3], format!("\"key_file\":\"{key}\"").as_bytes()));
    assert!(fs::read(&got).unwrap() == [noise(2, 100), noise(3, 3 << 20), noise(4, 200_000)].concat());
    assert!(has(&outputs[7], b"a few bytes"));
    assert!(seen(&copy) == expected);
    // Neither what was said, nor what is in the pool, its copy or the store, has the key.
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let is_told = |said: &[u8]| [secret.as_bytes(), hex.as_bytes(), &bytes].iter().any(|form| has(said, form));
    for (number, said) in outputs.iter().enumerate() {
        assert!(!is_told(said), "{number}");
    }
    for (name, held) in [&at, &own, &copy].into_iter().flat_map(|top| all_in(top)) {
        assert!(!is_told(&held), "{name}");
    }
    // The key may be elsewhere from now on; what is carried goes on.
    let moved = pool.dir.path().join("moved");
    fs::rename(key, &moved).unwrap();
    assert!(fails(&["carry", text(&own)]).contains("read the key"));
    let status: serde_json::Value = serde_json::from_slice(&run(&["status", text(&own), "--json"]).stdout).unwrap();
    assert!(status["error"].as_str().unwrap().contains("read the key"), "{status}");
    ok(&["list", text(&own), "--key-file", text(&moved)]);
    ok(&["set", text(&own), url, "--key-file", text(&moved)]);
    pool.edit(|edit| edit.file(ROOT, b"more", &[b"bytes"], true));
    ok(&["carry", text(&own)]);
    assert!(ok(&["list", url, "--key-file", text(&moved)]).contains("/more"));
}

/// Proves E19.
#[test]
fn a_key_that_does_not_fit_is_told_in_a_line_and_nothing_is_put() {
    let mut pool = varied();
    let (own, dir) = (pool.path(), pool.dir.path().to_owned());
    let beside = |name: &str| dir.join(name);
    let [key, other, open] = ["key", "other", "open"].map(beside);
    for path in [&key, &other, &open] {
        ok(&["key", text(path)]);
    }
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let [encrypted, plain, none] = ["encrypted", "plain", "none"].map(|name| format!("file://{}", text(&beside(name))));
    fs::create_dir(beside("none")).unwrap();
    let plain_at = beside("plain");
    ok(&["set", text(&own), &plain]);
    ok(&["carry", text(&own)]);
    ok(&["set", text(&own), &encrypted, "--key-file", text(&key)]);
    ok(&["carry", text(&own)]);
    let (missing, copy) = (beside("missing"), beside("copy"));
    let there = |name: &str| all_in(&dir.join(name));
    let before = ["encrypted", "plain"].map(there);
    let to = text(&copy);
    for (url, with, expected) in [
        (&encrypted, None, "is encrypted; name the file of its key with --key-file"),
        (&encrypted, Some(&other), "with another key"),
        (&encrypted, Some(&missing), "read the key: No such file"),
        (&encrypted, Some(&open), "others than its owner"),
        (&encrypted, Some(&own), "not in a regular file"),
        (&plain, Some(&key), "not encrypted, and stays so"),
        (&none, Some(&key), "no remote that is encrypted with this key"),
    ] {
        for arguments in [
            &["list", url][..],
            &["list", url, "--batches"],
            &["get", url, "/empty"],
            &["check", url, "--data"],
            &["restore", url, to],
            &["set", text(&own), url],
        ] {
            if arguments[0] == "set" && *url == none {
                continue;
            }
            let mut arguments = arguments.to_vec();
            arguments.extend(with.iter().flat_map(|path| ["--key-file", text(path)]));
            let said = fails(&arguments);
            assert!(said.contains(expected), "{arguments:?}: {said}");
        }
    }
    assert!(!copy.exists() && before == ["encrypted", "plain"].map(there));
    assert_eq!(fs::read(plain_at.join(MARK)).unwrap(), b"{\"tensorfs_remote\":1}\n");
    // The carrier of the pool has what it is told in its settings: a key that is another one by now fits no more.
    fs::copy(&other, &key).unwrap();
    let change = Record::Removal { dir: ROOT, name: b"empty".as_slice().into() };
    pool.edit(|edit| edit.store(Transaction::new(0).with(change)));
    for arguments in [&["carry", text(&own)][..], &["gc", text(&own)], &["wait", text(&own)], &["list", text(&own)]] {
        let said = fails(arguments);
        assert!(said.contains("with another key"), "{said}");
    }
    assert!(before == ["encrypted", "plain"].map(there));
}

//! Stores that show another remote than the one that was set, or one as it was before; and settings that do not fit.

use std::fs;
use std::path::Path;

use tensorfs_layout::ROOT;
use tensorfs_remote::Error;
use tensorfs_remote::gc::Keep;
use tensorfs_remote::repository::{MARK, Repository, marked, unlocked};

use crate::encrypted::{KeyFile, all_in, fails, ok, text};
use crate::pools::{TestPool, noise, restored, seen};
use crate::stores::Recorded;

/// What a place says that it is.
fn mark_of(store: &Recorded) -> Option<bytes::Bytes> {
    store.objects().into_iter().find(|(path, _)| path.as_ref() == MARK).map(|(_, bytes)| bytes)
}

/// Which remote begins, is not for the store to say: two of one key would have the same names and the same keys.
///
/// Proves E19.
#[test]
fn a_remote_that_begins_is_not_another_one_of_its_key() {
    let key = KeyFile::new();
    let (own, other) = (key.key(), Recorded::new());
    let id = |place: &tensorfs_remote::place::Place| place.cipher().unwrap().id();
    let others = id(&key.make(&other));
    let path = object_store::path::Path::from(MARK);
    let bytes = mark_of(&other).unwrap();
    // It is at an empty place, as if that were the other one.
    let store = Recorded::new();
    store.spoil(&path, bytes.clone());
    let place = marked(store.place(), Some(&own), None).unwrap();
    assert!(id(&place) != others && mark_of(&store).unwrap() != bytes);
    assert!(id(&key.open(&store)) == id(&place));
    // Or the store stays with it, be it there at once, or only when something was put.
    for is_hidden in [false, true] {
        let store = Recorded::new();
        store.spoil(&path, bytes.clone());
        store.insist_on(&path, is_hidden);
        let said = marked(store.place(), Some(&own), None).unwrap_err().to_string();
        assert!(said.contains("another remote") && !said.contains('\n'), "{said}");
    }
    // Who knows which one it is, reads no other; that its file is another one's, keeps nobody from his own.
    let store = Recorded::new();
    let place = key.make(&store);
    let known = id(&place);
    assert!(unlocked(store.place(), Some(&own), Some(known)).is_ok());
    let said = unlocked(store.place(), Some(&own), Some(others)).unwrap_err().to_string();
    assert!(said.contains(&known.text()) && said.contains(&others.text()), "{said}");
    let mut pool = TestPool::new();
    pool.edit(|edit| edit.file(ROOT, b"file", &[b"bytes"], true));
    pool.carrier(place).unwrap().pass().unwrap();
    store.spoil(&path, bytes);
    assert!(id(&unlocked(store.place(), Some(&own), Some(known)).unwrap()) == known);
    assert!(id(&marked(store.place(), Some(&own), Some(known)).unwrap()) == known);
    assert!(id(&key.open(&store)) == known);
}

/// Two pools with a remote each, of one key: directories, URLs, and what `status` says that they are.
struct Two {
    pools: [TestPool; 2],
    urls: [String; 2],
    ids: [String; 2],
    key: KeyFile,
}

impl Two {
    fn new() -> Self {
        let key = KeyFile::new();
        let mut pools = [TestPool::new(), TestPool::new()];
        let [mut urls, mut ids] = [[String::new(), String::new()], [String::new(), String::new()]];
        for (at, pool) in pools.iter_mut().enumerate() {
            pool.edit(|edit| edit.file(ROOT, format!("file-{at}").as_bytes(), &[&noise(at as u64, 70_000)], true));
            urls[at] = format!("file://{}", text(&pool.dir.path().join("remote")));
            let said = ok(&["set", text(&pool.path()), &urls[at], "--key-file", text(&key.path())]);
            ok(&["carry", text(&pool.path())]);
            let status = ok(&["status", text(&pool.path()), "--json"]);
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            ids[at] = status["id"].as_str().unwrap().to_owned();
            assert!(said.contains(&ids[at]), "{said}");
        }
        Self { pools, urls, ids, key }
    }

    fn remote(&self, at: usize) -> std::path::PathBuf {
        self.pools[at].dir.path().join("remote")
    }

    /// Has the first place be all that the second is.
    fn swap(&self) {
        fs::remove_dir_all(self.remote(0)).unwrap();
        for (name, bytes) in all_in(&self.remote(1)) {
            let path = self.remote(0).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
}

/// Proves E19.
#[test]
fn another_remote_of_the_same_key_is_told_from_the_one_that_is_meant() {
    let mut two = Two::new();
    let [key, own] = [two.key.path(), two.pools[0].path()];
    let (key, own, dir) = (text(&key), text(&own), two.pools[0].dir.path().to_owned());
    let copy = |name: &str| dir.join(name);
    let [id, others] = &two.ids;
    let url = two.urls[0].clone();
    ok(&["list", &url, "--key-file", key, "--id", id]);
    ok(&["list", own]);
    let said = fails(&["list", &url, "--id", id]);
    assert!(said.contains("--key-file"), "{said}");
    two.swap();
    two.pools[0].edit(|edit| edit.file(ROOT, b"more", &[b"bytes"], true));
    let before = all_in(&two.remote(0));
    let to = copy("refused");
    for arguments in [
        &["carry", own][..],
        &["list", own],
        &["get", own, "/file-1"],
        &["check", own],
        &["gc", own],
        &["wait", own],
        &["set", own, &url, "--key-file", key],
        &["list", &url, "--key-file", key, "--id", id],
        &["restore", &url, text(&to), "--key-file", key, "--id", id],
    ] {
        let said = fails(arguments);
        assert!(said.contains(others) && said.contains(id), "{arguments:?}: {said}");
    }
    assert!(!to.exists() && before == all_in(&two.remote(0)));
    // Who does not say which one he means, is told which one he gets.
    let to = copy("told");
    let said = ok(&["restore", &url, text(&to), "--key-file", key]);
    let uuid = tensorfs_layout::check::Committed::read(&two.pools[1].path()).unwrap().superblock().uuid_text();
    assert!(said.contains(others) && said.contains(&uuid), "{said}");
    let got = crate::encrypted::run(&["get", &url, "/file-1", "--key-file", key]);
    let said = String::from_utf8_lossy(&got.stderr).into_owned();
    assert!(got.status.success() && said.contains(others) && said.contains(&uuid), "{said}");
}

/// What is there once nothing says any more that a place is a remote.
fn without_mark(at: &Path) -> Vec<(String, Vec<u8>)> {
    fs::remove_file(at.join(MARK)).unwrap();
    all_in(at)
}

/// Where the file of a remote is lost, what is there says whether it is encrypted, and with what.
///
/// Proves E19.
#[test]
fn what_is_refused_puts_nothing_at_a_place_whose_file_is_lost() {
    let mut pool = TestPool::new();
    pool.edit(|edit| edit.file(ROOT, b"file", &[&noise(1, 70_000)], true));
    let other = TestPool::new();
    let (own, others, dir) = (pool.path(), other.path(), pool.dir.path().to_owned());
    let (key, wrong) = (KeyFile::new(), KeyFile::new());
    let [key, wrong] = [key.path(), wrong.path()].map(|path| fs::read(path).unwrap()).map(|bytes| {
        let path = dir.join(format!("key-{}", blake3_of(&bytes)));
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    });
    let (own, others, key, wrong) = (text(&own), text(&others), text(&key), text(&wrong));
    let [plain, encrypted] = ["plain", "encrypted"].map(|name| dir.join(name));
    let [plain_url, encrypted_url] = [&plain, &encrypted].map(|at| format!("file://{}", text(at)));
    let expected = seen(Path::new(own));
    ok(&["set", own, &plain_url]);
    ok(&["carry", own]);
    let before = without_mark(&plain);
    for pool in [own, others] {
        let said = fails(&["set", pool, &plain_url, "--key-file", key]);
        assert!(said.contains("not encrypted with this key") && all_in(&plain) == before, "{said}");
    }
    ok(&["restore", &plain_url, text(&dir.join("copy"))]);
    assert!(seen(&dir.join("copy")) == expected);
    ok(&["set", own, &plain_url]);
    ok(&["set", own, &encrypted_url, "--key-file", key]);
    ok(&["carry", own]);
    let before = without_mark(&encrypted);
    for (arguments, expected) in [
        (&["set", others, &encrypted_url][..], "cannot be read"),
        (&["set", others, &encrypted_url, "--key-file", wrong], "not encrypted with this key"),
        (&["set", own, &encrypted_url, "--key-file", wrong], "not encrypted with this key"),
        (&["set", others, &encrypted_url, "--key-file", key], "a copy of pool"),
    ] {
        let said = fails(arguments);
        assert!(said.contains(expected) && all_in(&encrypted) == before, "{arguments:?}: {said}");
    }
    ok(&["set", own, &encrypted_url, "--key-file", key]);
    assert!(all_in(&encrypted).len() == before.len() + 1);
}

fn blake3_of(bytes: &[u8]) -> String {
    tensorfs_remote::repository::Hash::of(bytes).to_string()
}

/// Proves E19.
#[test]
fn a_key_is_not_given_up_by_setting_a_remote_again_without_it() {
    let mut pool = TestPool::new();
    pool.edit(|edit| edit.file(ROOT, b"file", &[b"bytes"], true));
    let (own, key, dir) = (pool.path(), KeyFile::new(), pool.dir.path().to_owned());
    let (own, path) = (text(&own), key.path());
    let [at, elsewhere] = ["remote", "elsewhere"].map(|name| dir.join(name));
    let [url, other] = [&at, &elsewhere].map(|at| format!("file://{}", text(at)));
    ok(&["set", own, &url, "--key-file", text(&path)]);
    // Nothing is carried yet, and the store forgets what it is.
    assert!(without_mark(&at).is_empty());
    for arguments in [
        &["set", own, &url, "--bandwidth", "9"][..],
        &["set", own, &url, "--take-over"],
        &["set", own, &format!("{url}/")],
        &["set", own, &other],
    ] {
        let said = fails(arguments);
        assert!(said.contains("remote off") && said.contains(text(&path)), "{arguments:?}: {said}");
    }
    assert!(all_in(&at).is_empty() && !elsewhere.exists());
    ok(&["set", own, &url, "--key-file", text(&path), "--bandwidth", "9"]);
    ok(&["off", own]);
    ok(&["set", own, &other]);
    assert_eq!(fs::read(elsewhere.join(MARK)).unwrap(), b"{\"tensorfs_remote\":1}\n");
}

/// Proves E7, E19.
#[test]
fn a_carrier_at_work_does_not_go_on_from_what_was_there_before() {
    let mut pool = TestPool::new();
    let (key, store) = (KeyFile::new(), Recorded::new());
    pool.edit(|edit| edit.file(ROOT, b"file-0", &[&noise(0, 70_000)], true));
    let mut carrier = pool.carrier(key.make(&store)).unwrap();
    carrier.pass().unwrap();
    for round in 1..3 {
        let name = format!("file-{round}");
        pool.edit(|edit| edit.file(ROOT, name.as_bytes(), &[&noise(round, 70_000)], true));
        carrier.pass().unwrap();
    }
    let newest = object_store::path::Path::from("log/000000000003");
    let bytes = store.objects().into_iter().find(|(path, _)| *path == newest).unwrap().1;
    store.place().delete(newest.as_ref()).unwrap();
    let before = store.objects();
    let rolled = |error: Error| {
        assert!(matches!(error, Error::RolledBack { number: 2, put: 3, .. }), "{error}");
    };
    rolled(carrier.collect(Keep { trees: 0, last: 1, objects: 0 }, false, &|_, _| {}).unwrap_err());
    pool.edit(|edit| edit.file(ROOT, b"file-3", &[&noise(3, 70_000)], true));
    for _ in 0..2 {
        rolled(carrier.pass().unwrap_err());
    }
    assert!(store.objects() == before && carrier.note().number == 3);
    assert!(carrier.note().error.as_ref().unwrap().contains("its newest batch is 2"));
    // Once the remote is what it was, so is its carrier.
    store.spoil(&newest, bytes);
    carrier.pass().unwrap();
    drop(carrier);
    assert_eq!(Repository::new(key.open(&store)).newest().unwrap().number(), 4);
    assert_eq!(restored(key.open(&store), &pool.dir.path().join("copy")).unwrap().1, seen(&pool.path()));
}

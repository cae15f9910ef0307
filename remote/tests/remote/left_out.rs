//! What is left out of the remote, by globs and by an attribute of a directory.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::{Ino, ROOT};
use tensorfs_remote::carry::{Carrier, Note, Outcome, Settings};
use tensorfs_remote::check::check;
use tensorfs_remote::repository::{Part, Repository};

use crate::pools::{Seen, Seens, TestPool, noise, restored, seen};
use crate::stores::Recorded;

const DIR: u32 = libc::S_IFDIR | 0o755;
const NO: &str = "user.tensorfs.remote";

/// Its carrier, as `remote set --exclude` has it.
fn carrier(pool: &Path, store: &Arc<Recorded>, globs: &[&str]) -> Carrier {
    let settings = Settings { exclude: globs.iter().map(|glob| (*glob).to_owned()).collect(), ..Settings::default() };
    let with = |note: Note| Note { settings: settings.clone(), ..note };
    crate::pools::carrier_with(pool, store.place(), with).unwrap()
}

/// What a restore gives, and the paths in it.
fn got(store: &Arc<Recorded>) -> (Seens, BTreeSet<String>) {
    let scratch = tempfile::tempdir().unwrap();
    let found = restored(store.place(), &scratch.path().join("copy")).unwrap().1;
    let paths = found.keys().filter(|path| !path.is_empty()).map(|path| String::from_utf8_lossy(path).into_owned());
    let paths = paths.collect();
    (found, paths)
}

fn paths(paths: &[&str]) -> BTreeSet<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// What is carried is as it is.
#[track_caller]
fn is_part_of(found: &Seens, all: &Seens) {
    for (path, seen) in found {
        assert_eq!(Some(seen.but_for_links()), all.get(path).map(Seen::but_for_links), "{path:?}");
    }
}

/// True if an object of the store has bytes of these, as a part of its own or anywhere in it.
fn has_bytes(store: &Arc<Recorded>, bytes: &[u8]) -> bool {
    store.objects().iter().any(|(_, object)| object.windows(64).any(|window| window == &bytes[..64]))
}

fn mark(pool: &mut TestPool, dir: Ino) {
    let set = Record::Xattr { ino: dir, name: NO.as_bytes().into(), value: b"no".as_slice().into() };
    pool.edit(|edit| edit.store(Transaction::new(0).with(set)));
}

fn rename(pool: &mut TestPool, (dir, name): (Ino, &str), (to, new): (Ino, &str)) {
    pool.edit(|edit| {
        let ino = edit.pool.view().lookup(dir, name.as_bytes()).unwrap();
        let moved = Transaction::new(0).with(Record::Removal { dir, name: name.as_bytes().into() });
        edit.store(moved.with(Record::Name { dir: to, name: new.as_bytes().into(), ino }));
    });
}

/// Proves E16.
#[test]
fn what_fits_a_glob_is_not_carried_and_all_else_is() {
    let mut pool = TestPool::new();
    let secret = noise(77, 5000);
    pool.edit(|edit| {
        let run = edit.make(ROOT, b"run", DIR, |_, _| {});
        let cache = edit.make(run, b"cache", DIR, |_, _| {});
        let deep = edit.make(cache, b"deep", DIR, |_, _| {});
        edit.file(run, b"model", &[&noise(1, 3000)], true);
        edit.file(run, b"model.tmp", &[&secret], true);
        edit.file(ROOT, b"odd\xff.tmp", &[&secret], false);
        edit.file(deep, b"file", &[&secret], true);
        edit.file(ROOT, b"cache", &[&noise(2, 100)], true);
        edit.make(cache, b"fifo", libc::S_IFIFO | 0o600, |_, _| {});
    });
    let store = Recorded::new();
    let passed = carrier(&pool.path(), &store, &["*.tmp", "/run/cache"]).pass().unwrap();
    assert_eq!((passed.outcome, passed.left_out.files, passed.left_out.bytes), (Outcome::Carried, 3, 15_000));
    let (found, names) = got(&store);
    assert_eq!(names, paths(&["run", "run/model", "cache"]));
    let all = seen(&pool.path());
    is_part_of(&found, &all);
    assert!(!has_bytes(&store, &secret), "bytes of what is left out are there");
    let report = check(&Repository::new(store.place()), true, &|_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    // Nothing changes by itself.
    assert_eq!(carrier(&pool.path(), &store, &["*.tmp", "/run/cache"]).pass().unwrap().outcome, Outcome::Nothing);
    // A glob of what is below a directory leaves the directory.
    carrier(&pool.path(), &store, &["*.tmp", "/run/cache/**"]).pass().unwrap();
    assert_eq!(got(&store).1, paths(&["run", "run/model", "run/cache", "cache"]));
    // And without globs all of it is there.
    let passed = carrier(&pool.path(), &store, &[]).pass().unwrap();
    assert_eq!((passed.outcome, passed.left_out.files), (Outcome::Carried, 0));
    assert_eq!(got(&store).0, all);
}

/// The directory itself is carried, so that what a restore gives goes on as it was.
///
/// Proves E16.
#[test]
fn what_is_below_a_directory_that_says_so_is_not_carried() {
    let mut pool = TestPool::new();
    let secret = noise(77, 5000);
    let (scratch, inner) = pool.edit(|edit| {
        let scratch = edit.make(ROOT, b"scratch", DIR, |_, _| {});
        let inner = edit.make(scratch, b"inner", DIR, |_, _| {});
        edit.file(inner, b"file", &[&secret], true);
        edit.file(ROOT, b"kept", &[&noise(1, 100)], true);
        (scratch, inner)
    });
    mark(&mut pool, scratch);
    let store = Recorded::new();
    let passed = carrier(&pool.path(), &store, &[]).pass().unwrap();
    assert_eq!((passed.left_out.files, passed.left_out.bytes), (1, 5000));
    let (found, names) = got(&store);
    assert_eq!(names, paths(&["kept", "scratch"]));
    is_part_of(&found, &seen(&pool.path()));
    assert!(!has_bytes(&store, &secret));
    // Moved out with what is in it, and in again.
    rename(&mut pool, (scratch, "inner"), (ROOT, "outer"));
    carrier(&pool.path(), &store, &[]).pass().unwrap();
    assert_eq!(got(&store).1, paths(&["kept", "scratch", "outer", "outer/file"]));
    let listed = Repository::new(store.place()).newest().unwrap();
    assert!(listed.tree.entry(inner.0).is_some());
    rename(&mut pool, (ROOT, "outer"), (scratch, "inner"));
    rename(&mut pool, (ROOT, "kept"), (scratch, "kept"));
    let passed = carrier(&pool.path(), &store, &[]).pass().unwrap();
    assert_eq!(passed.left_out.files, 2);
    assert_eq!(got(&store).1, paths(&["scratch"]));
    // Any other value says nothing, and removing the attribute has all of it carried.
    let other = Record::Xattr { ino: scratch, name: NO.as_bytes().into(), value: b"yes".as_slice().into() };
    pool.edit(|edit| edit.store(Transaction::new(0).with(other)));
    carrier(&pool.path(), &store, &[]).pass().unwrap();
    assert_eq!(got(&store).0, seen(&pool.path()));
}

/// A file is carried if any of its names is, under those.
///
/// Proves E16.
#[test]
fn a_hard_link_is_carried_under_the_names_that_are_not_left_out() {
    let mut pool = TestPool::new();
    let bytes = noise(5, 5000);
    let (dir, ino) = pool.edit(|edit| {
        let dir = edit.make(ROOT, b"scratch", DIR, |_, _| {});
        let ino = edit.file(dir, b"file", &[&bytes], true);
        edit.store(Transaction::new(0).with(Record::Name { dir: ROOT, name: b"best".as_slice().into(), ino }));
        edit.store(Transaction::new(0).with(Record::Name { dir: ROOT, name: b"x.tmp".as_slice().into(), ino }));
        (dir, ino)
    });
    mark(&mut pool, dir);
    let store = Recorded::new();
    let passed = carrier(&pool.path(), &store, &["*.tmp"]).pass().unwrap();
    assert_eq!(passed.left_out.files, 0);
    assert_eq!(got(&store).1, paths(&["best", "scratch"]));
    // With its last name that is carried, it goes; the pool has it still.
    pool.edit(|edit| {
        edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: b"best".as_slice().into() }));
    });
    let passed = carrier(&pool.path(), &store, &["*.tmp"]).pass().unwrap();
    assert_eq!((passed.left_out.files, passed.left_out.bytes), (1, 5000));
    assert_eq!(got(&store).1, paths(&["scratch"]));
    assert!(Repository::new(store.place()).newest().unwrap().tree.entry(ino.0).is_none());
}

/// A file that is open and has lost its last name had one, which may have been left out.
///
/// Proves E16.
#[test]
fn what_has_no_name_any_more_is_not_carried_where_anything_is_left_out() {
    let mut pool = TestPool::new();
    let secret = noise(77, 5000);
    let store = Recorded::new();
    let own = pool.path();
    pool.edit(|edit| {
        let ino = edit.file(ROOT, b"gone.tmp", &[&secret], true);
        edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: b"gone.tmp".as_slice().into() }));
        edit.file(ROOT, b"kept", &[&noise(1, 100)], true);
        edit.pool.commit(edit.pool.newest()).unwrap();
        assert!(edit.pool.view().object(ino).is_some(), "it is open, as far as the pool knows");
        carrier(&own, &store, &["*.tmp"]).pass().unwrap();
    });
    assert_eq!(got(&store).1, paths(&["kept"]));
    assert!(!has_bytes(&store, &secret));
}

/// As above, of a directory that has not even its attribute any more: nothing is left out by then, and still nobody
/// knows which name the file had. What is open and has no name is in no tree that a carrier sees.
///
/// Proves E16.
#[test]
fn what_has_no_name_any_more_is_not_carried_when_nothing_is_left_out_any_more() {
    let mut pool = TestPool::new();
    let secret = noise(77, 5000);
    let store = Recorded::new();
    let (scratch, file) = pool.edit(|edit| {
        let scratch = edit.make(ROOT, b"scratch", DIR, |_, _| {});
        (scratch, edit.file(scratch, b"secret", &[&secret], true))
    });
    mark(&mut pool, scratch);
    let own = pool.path();
    carrier(&own, &store, &[]).pass().unwrap();
    pool.edit(|edit| {
        let removed = Transaction::new(0).with(Record::Removal { dir: scratch, name: b"secret".as_slice().into() });
        edit.store(removed.with(Record::XattrRemoval { ino: scratch, name: NO.as_bytes().into() }));
        edit.pool.commit(edit.pool.newest()).unwrap();
        assert!(edit.pool.view().object(file).is_some(), "it is open, as far as the pool knows");
        assert_eq!(carrier(&own, &store, &[]).pass().unwrap().outcome, Outcome::Carried);
        assert_eq!(carrier(&own, &store, &[]).pass().unwrap().outcome, Outcome::Nothing);
    });
    assert_eq!(got(&store).1, paths(&["scratch"]));
    assert!(!has_bytes(&store, &secret));
    let tree = Repository::new(store.place()).newest().unwrap().tree;
    assert!(tree.entry(file.0).is_none() && tree.entry(scratch.0).unwrap().xattrs.is_empty());
}

/// What is left out only now stays in the batches that have it, and no newer one names it.
///
/// Proves E16.
#[test]
fn what_is_left_out_later_is_gone_from_the_newest_tree_alone() {
    let mut pool = TestPool::new();
    pool.edit(|edit| {
        edit.file(ROOT, b"a.tmp", &[&noise(1, 2 << 20)], true);
        edit.file(ROOT, b"b", &[&noise(2, 2 << 20)], true);
    });
    let store = Recorded::new();
    carrier(&pool.path(), &store, &[]).pass().unwrap();
    let mut later = carrier(&pool.path(), &store, &["*.tmp"]);
    assert_eq!(later.pass().unwrap().outcome, Outcome::Carried, "though the pool has not changed");
    let repository = Repository::new(store.place());
    let parts = |at| repository.tree_at(at).unwrap().tree.parts().filter_map(Part::object).count();
    assert_eq!((parts(Some(1)), parts(None)), (2, 1));
}

/// Proves E16.
#[test]
fn directories_that_are_deeper_than_any_path_are_gone_through() {
    let mut pool = TestPool::new();
    pool.edit(|edit| {
        let mut dir = ROOT;
        for _ in 0..60 {
            dir = edit.make(dir, &[b'd'; 100], DIR, |_, _| {});
        }
        edit.file(dir, b"file", &[b"a"], true);
        edit.file(dir, b"file.tmp", &[b"b"], true);
    });
    let store = Recorded::new();
    let passed = carrier(&pool.path(), &store, &["*.tmp", "/x/**"]).pass().unwrap();
    assert_eq!(passed.left_out.files, 1);
    let tree = Repository::new(store.place()).newest().unwrap().tree;
    assert_eq!(tree.entries().filter(|entry| entry.is_file()).count(), 1);
}

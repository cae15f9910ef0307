//! Stores in directories that somebody else may write to: what stands there leads nowhere, and nobody waits for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use bytes::Bytes;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tensorfs_layout::ROOT;
use tensorfs_remote::check::check;
use tensorfs_remote::gc::{Keep, collect};
use tensorfs_remote::place::{Access, Place};
use tensorfs_remote::repository::{Hash, Repository, base_name, batch_name, object_name};

use crate::pools::{TestPool, noise, restored};

/// A pool with a copy in the directory beside it.
struct Copied {
    pool: TestPool,
    store: PathBuf,
}

impl Copied {
    fn new() -> Self {
        let mut pool = TestPool::new();
        pool.edit(|edit| edit.file(ROOT, b"f", &[&noise(1, 2 << 20)], true));
        let store = pool.dir.path().join("store");
        let copied = Self { pool, store };
        let place = Place::make(&copied.url(), &Access::default()).unwrap();
        copied.pool.carrier(place).unwrap().pass().unwrap();
        copied.repository().put_base(&mut copied.repository().newest().unwrap()).unwrap();
        copied
    }

    fn url(&self) -> String {
        format!("file://{}", self.store.display())
    }

    fn place(&self) -> Place {
        Place::open(&self.url(), &Access::default()).unwrap()
    }

    fn repository(&self) -> Repository {
        Repository::new(self.place())
    }

    /// A directory that has nothing to do with the store, with files in it.
    fn victim(&self, files: &[&str]) -> PathBuf {
        let victim = self.pool.dir.path().join("victim");
        for file in files.iter().map(|file| victim.join(file)) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "precious").unwrap();
        }
        victim
    }

    fn gc(&self) {
        collect(&self.repository(), Keep { trees: 0, last: 1, objects: -1000 }, false, &|_, _| {}).unwrap();
    }
}

/// Proves E12.
#[test]
fn garbage_collection_goes_through_no_link_and_knows_its_own() {
    let copied = Copied::new();
    let hash = Hash::of(b"precious");
    let name = object_name(hash);
    let below = name.strip_prefix("objects/").unwrap();
    let victim = copied.victim(&["file", "dir/file", below, "000000000001"]);
    let objects = copied.store.join("objects");
    symlink(&victim, objects.join("x")).unwrap();
    let (two, _) = below.split_once('/').unwrap();
    let _ = fs::remove_dir_all(objects.join(two));
    symlink(victim.join(two), objects.join(two)).unwrap();
    // What lies there under names that are not of objects is somebody's, too.
    let others = [objects.join("notes"), objects.join("zz").join(hash.to_string()), copied.store.join("base/notes")];
    for other in &others {
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        fs::write(other, "precious").unwrap();
    }
    copied.gc();
    for file in ["file", "dir/file", below, "000000000001"] {
        assert!(victim.join(file).exists(), "{file} was removed");
    }
    for other in &others {
        assert!(other.exists(), "{} was removed", other.display());
    }
    // One of its own is removed all the same.
    fs::remove_file(objects.join(two)).unwrap();
    copied.place().put_new(&name, Bytes::from_static(b"precious")).unwrap();
    copied.gc();
    assert!(!copied.store.join(&name).exists());
    // And of whole directories that are links nothing.
    fs::rename(&objects, copied.store.join("elsewhere")).unwrap();
    symlink(&victim, &objects).unwrap();
    let refused = collect(&copied.repository(), Keep { trees: 0, last: 1, objects: -1000 }, false, &|_, _| {})
        .unwrap_err()
        .to_string();
    assert!(refused.contains("link") && !refused.contains('\n'), "{refused}");
    assert!(victim.join(below).exists());
}

/// Proves E12.
#[test]
fn nothing_is_put_behind_a_link() {
    let copied = Copied::new();
    let bytes = Bytes::from_static(b"what root has");
    let name = object_name(Hash::of(&bytes));
    let victim = copied.victim(&["file"]);
    let above = copied.store.join(&name).parent().unwrap().to_owned();
    let _ = fs::remove_dir_all(&above);
    symlink(&victim, &above).unwrap();
    let place = copied.place();
    let mut puts = place.puts();
    let _ = puts.put(name.clone(), bytes.clone());
    let refused = puts.finish().unwrap_err().to_string();
    assert!(refused.contains("there is a link"), "{refused}");
    assert!(place.put_new(&name, bytes.clone()).is_err());
    let through = format!("{}/file", name.rsplit_once('/').unwrap().0);
    assert!(place.delete(&through).is_err());
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    // A link in the place of an object is replaced, not followed; and nobody reads through it.
    fs::remove_file(&above).unwrap();
    fs::create_dir(&above).unwrap();
    symlink(victim.join("file"), copied.store.join(&name)).unwrap();
    assert!(place.get(&name).is_err());
    puts.put(name.clone(), bytes.clone()).unwrap();
    puts.finish().unwrap();
    assert_eq!(place.get(&name).unwrap(), Some(bytes));
    assert_eq!(fs::read(victim.join("file")).unwrap(), b"precious");
}

/// Proves E12.
#[test]
fn nobody_waits_for_a_fifo() {
    let object = object_name(Hash::of(&noise(1, 2 << 20)));
    // Of a base and a batch the tree can do without, nothing is missed; an object is, and a batch that cannot be read.
    for (what, missed) in [(base_name(1), false), (batch_name(1), false), (object, true), (batch_name(2), true)] {
        let copied = Copied::new();
        let _ = fs::remove_file(copied.store.join(&what));
        mkfifo(&copied.store.join(&what), Mode::S_IRWXU).unwrap();
        assert!(copied.place().get(&what).is_err(), "{what}");
        let checked = check(&copied.repository(), true, &|_, _| {});
        assert_eq!(checked.map_or(true, |report| !report.findings.is_empty()), missed, "{what}");
        let copy = copied.pool.dir.path().join("copy");
        assert_eq!(restored(copied.place(), &copy).is_err(), missed, "{what}");
    }
}

/// Proves E12.
#[test]
fn a_store_that_is_not_there_is_not_made() {
    let copied = Copied::new();
    let away = copied.store.with_file_name("away");
    fs::rename(&copied.store, &away).unwrap();
    let said = Place::open(&copied.url(), &Access::default()).unwrap_err().to_string();
    assert!(said.ends_with("the store is not there"), "{said}");
    assert!(!copied.store.exists());
}

//! What other users put where root carries and restores.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::unistd::geteuid;
use tensorfs_layout::ROOT;
use tensorfs_layout::check::Committed;
use tensorfs_layout::pool::Carrying;
use tensorfs_remote::carry::{Note, Settings};

use crate::pools::{TestPool, noise, restored};
use crate::stores::Recorded;

/// Anybody but root.
const STRANGER: u32 = 12345;

fn give(path: &Path) {
    chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path()));
    }
}

/// Proves E13.
#[test]
fn root_believes_no_note_that_is_swapped_for_another() {
    if !geteuid().is_root() {
        return println!("SKIPPED: needs root, to give a pool to somebody else");
    }
    let pool = TestPool::new();
    let uuid = Committed::read(&pool.path()).unwrap().superblock().uuid_text();
    let note = |url: &str| Note {
        settings: Settings { url: url.into(), ..Settings::default() },
        pool: uuid.clone(),
        ..Note::default()
    };
    let strange = pool.dir.path().join("strange");
    let copied = std::process::Command::new("cp").arg("-a").args([pool.path(), strange.clone()]).status().unwrap();
    assert!(copied.success());
    for (dir, url) in [(pool.path(), "file:///own"), (strange.clone(), "file:///strange")] {
        note(url).keep(&Carrying::take(&dir).unwrap().unwrap()).unwrap();
    }
    give(&strange);
    let swap = || renameat2(AT_FDCWD, &pool.path(), AT_FDCWD, &strange, RenameFlags::RENAME_EXCHANGE);
    swap().unwrap();
    swap().unwrap();
    let done = AtomicBool::new(false);
    let (mut believed, mut refused, mut wrong) = (0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let _ = swap();
            }
        });
        while believed < 1000 || refused < 1000 {
            match Note::of(&pool.path(), &uuid) {
                Ok(Some(note)) if note.settings.url == "file:///own" => believed += 1,
                Ok(_) => wrong += 1,
                Err(_) => refused += 1,
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(wrong, 0, "a note of another user's was believed");
}

/// Proves E13.
#[test]
fn nothing_is_restored_into_a_directory_of_somebody_elses() {
    let mut pool = TestPool::new();
    pool.edit(|edit| edit.file(ROOT, b"f", &[&noise(1, 100_000)], true));
    let store = Recorded::new();
    pool.carrier(store.place()).unwrap().pass().unwrap();
    let copy = pool.dir.path().join("copy");
    let staged = pool.dir.path().join("copy.restoring");
    let victim = pool.dir.path().join("victim");
    fs::create_dir(&victim).unwrap();
    symlink(&victim, &staged).unwrap();
    let refused = restored(store.place(), &copy).err().unwrap().to_string();
    assert!(refused.contains("copy.restoring") && refused.contains("remove it"), "{refused}");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    fs::remove_file(&staged).unwrap();
    if geteuid().is_root() {
        fs::create_dir(&staged).unwrap();
        give(&staged);
        let refused = restored(store.place(), &copy).err().unwrap().to_string();
        assert!(refused.contains(&format!("user {STRANGER}")) && refused.contains("remove it"), "{refused}");
        assert_eq!(fs::read_dir(&staged).unwrap().count(), 0);
        fs::remove_dir(&staged).unwrap();
    }
    // One's own that is empty will do.
    fs::create_dir(&staged).unwrap();
    assert_eq!(restored(store.place(), &copy).unwrap().0.files, 1);
    assert!(!staged.exists());
}

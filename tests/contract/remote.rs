//! The second copy of a pool that is mounted: what is carried of it, and when that is said to be so.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tensorfs_tests::{Mount, Pattern, Setup, on_mounts};

on_mounts!(
    what_was_waited_for_is_in_the_remote,
    a_file_that_stays_open_is_carried_as_far_as_it_is_sealed,
    a_pool_that_changes_all_the_time_is_carried_whole,
    who_waits_for_so_long_is_told,
);

const SIZE: usize = 3 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Gives the pool a remote in a directory, and returns its URL.
fn with_remote(mount: &Mount) -> String {
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url]);
    url
}

/// What the remote has of a file.
fn file_of(mount: &Mount, url: &str, path: &str) -> Value {
    let listed = mount.tensorfs_ok(["remote", "list", url, path, "--json"]);
    serde_json::from_str::<Value>(listed.trim()).unwrap()["file"].clone()
}

/// What is below a directory: mode, time and bytes of each file, target of each link.
fn tree_of(top: &Path) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
    let (mut found, mut left) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(dir) = left.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let stat = fs::symlink_metadata(&path).unwrap();
            let bytes = match stat.file_type() {
                kind if kind.is_file() => fs::read(&path).unwrap(),
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
                _ => Vec::new(),
            };
            let name = path.strip_prefix(top).unwrap().to_owned();
            found.insert(name, (stat.mode(), stat.mtime_nsec(), bytes));
            if stat.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

/// A pool made from the remote, mounted, has the same files as this one.
#[track_caller]
fn restores(mount: &mut Mount, url: &str) {
    let expected = tree_of(mount.path());
    mount.umount();
    let other = mount.pool().with_file_name("restored");
    mount.tensorfs_ok(["remote", "restore", url, text(&other)]);
    mount.tensorfs_ok(["check", "--data", text(&other)]);
    mount.tensorfs_ok(["mount", text(&other), text(mount.path())]);
    let found = tree_of(mount.path());
    mount.tensorfs_ok(["umount", text(mount.path())]);
    assert_eq!(found, expected);
}

/// Proves E1, E8.
fn what_was_waited_for_is_in_the_remote(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    for step in 0..3 {
        let dir = mount.at(format!("step-{step}"));
        fs::create_dir(&dir).unwrap();
        for shard in 0..3 {
            fs::write(dir.join(format!("shard-{shard}")), Pattern(step * 10 + shard).bytes(0, SIZE)).unwrap();
        }
        symlink("shard-0", dir.join("first")).unwrap();
        fs::write(dir.join("note.tmp"), b"text").unwrap();
        fs::rename(dir.join("note.tmp"), dir.join("note")).unwrap();
        mount.tensorfs_ok(["remote", "wait", text(&dir)]);
        // At once: whatever was waited for is there.
        for shard in 0..3 {
            let file = file_of(&mount, &url, &format!("/step-{step}/shard-{shard}"));
            assert_eq!((file["state"].as_str(), file["size"].as_u64()), (Some("whole"), Some(SIZE as u64)), "{file}");
        }
    }
    mount.tensorfs_ok(["remote", "check", &url, "--data"]);
    restores(&mut mount, &url);
}

fn setup_needs_a_mount() {
    println!("SKIPPED: an ordinary directory has no remote");
}

/// Proves E7.
fn a_file_that_stays_open_is_carried_as_far_as_it_is_sealed(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    fs::write(mount.at("log"), Pattern(1).bytes(0, SIZE)).unwrap();
    mount.wait_for_seals(1);
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("log"))]);
    // It is written in place from now on, and what it was at rest is kept.
    let mut held = OpenOptions::new().write(true).open(mount.at("log")).unwrap();
    held.write_all(&Pattern(2).bytes(0, SIZE)).unwrap();
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(mount.at("new")).unwrap();
    new.write_all(b"not sealed").unwrap();
    mount.sync();
    mount.tensorfs_ok(["remote", "carry", text(mount.pool()), "--patience", "3"]);
    let (file, new_file) = (file_of(&mount, &url, "/log"), file_of(&mount, &url, "/new"));
    assert_eq!(file["state"], "open", "{file}");
    assert_eq!(new_file["state"], "open", "{new_file}");
    assert_eq!(new_file["parts"], serde_json::json!([]), "{new_file}");
    let other = mount.pool().with_file_name("other");
    let restored = mount.tensorfs(["remote", "restore", &url, text(&other), "--json"]);
    let told: Value = serde_json::from_slice(&restored.stdout).unwrap();
    assert_eq!(told["incomplete"].as_array().map(Vec::len), Some(2), "{told}");
    drop((held, new));
    mount.tensorfs_ok(["remote", "wait", text(mount.path())]);
    assert_eq!(file_of(&mount, &url, "/log")["state"], "whole");
    restores(&mut mount, &url);
}

/// A file that stays open, and a store that does not answer.
///
/// Proves E8.
fn who_waits_for_so_long_is_told(setup: Setup) {
    let mount = setup.clone().mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    // The store is on another mount, whose server can be stopped.
    let store = setup.mount();
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &format!("file://{}", store.at("remote").display())]);
    fs::write(mount.at("closed"), "text").unwrap();
    let mut held = OpenOptions::new().write(true).create_new(true).open(mount.at("held")).unwrap();
    held.write_all(b"text").unwrap();
    let (closed, open) = (mount.at("closed"), mount.at("held"));
    let wait = |paths: &[&Path], timeout: &str| {
        let paths = paths.iter().map(|path| text(path));
        mount.tensorfs(["remote", "wait", "--timeout", timeout].into_iter().chain(paths))
    };
    let is_late = |ended: Output, path: &Path, seconds: &str| {
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(3), "{said}");
        assert_eq!(said, format!("tensorfs remote: {}: not in the remote after {seconds} seconds\n", path.display()));
    };
    is_late(wait(&[&open], "1.5"), &open, "1.5");
    let server = Pid::from_raw(store.pid().unwrap());
    kill(server, Signal::SIGSTOP).unwrap();
    let ended = wait(&[&closed, &open], "0.5");
    kill(server, Signal::SIGCONT).unwrap();
    is_late(ended, &closed, "0.5");
    drop(held);
    let ended = wait(&[&closed, &open], "600");
    assert!(ended.status.success(), "{ended:?}");
    let wrong = wait(&[&closed], "a while");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

/// Files come, go and are written over while one pass comes after the other.
///
/// Proves E1, E7.
fn a_pool_that_changes_all_the_time_is_carried_whole(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let pool = mount.pool().to_owned();
    let mut carrier = mount.program();
    carrier.args(["remote", "carry", "--watch", "--interval=0", "--patience=2"]).arg(&pool);
    let mut carrier = carrier.stdout(std::process::Stdio::null()).spawn().unwrap();
    for round in 0..60_u64 {
        let (name, next) = (mount.at(format!("f{}", round % 7)), mount.at("f.tmp"));
        match round % 4 {
            0 => drop(fs::remove_file(&name)),
            1 => fs::write(&name, Pattern(round).bytes(0, SIZE / 3)).unwrap(),
            _ => {
                fs::write(&next, Pattern(round).bytes(0, SIZE / 2)).unwrap();
                fs::rename(&next, &name).unwrap();
            }
        }
        if round % 20 == 19 {
            mount.tensorfs_ok(["remote", "wait", text(mount.path())]);
            mount.tensorfs_ok(["remote", "check", &url, "--data"]);
        }
    }
    assert!(carrier.try_wait().unwrap().is_none(), "the carrier has ended");
    carrier.kill().unwrap();
    carrier.wait().unwrap();
    restores(&mut mount, &url);
}

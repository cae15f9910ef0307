//! A store that is full: a filesystem in memory, which gets a little larger each time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use serde_json::Value;
use tensorfs_layout::ROOT;

use crate::pools::{TestPool, noise, seen};
use crate::program::{command, ok, run, text};
use crate::skipping::skipped;

/// A filesystem in memory; it ends with the test.
struct Disk(PathBuf);

impl Disk {
    /// One of so many KiB, if that can be had here.
    fn new(at: &Path, kib: u64) -> Option<Self> {
        fs::create_dir(at).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "none"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(at.to_owned()))
    }

    fn resize(&self, kib: u64) {
        let options = format!("remount,size={kib}k");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn status(own: &str) -> Value {
    serde_json::from_slice(&run(&["status", own, "--json"]).stdout).unwrap()
}

/// Wherever it has no more room, in an object, a pack or a batch: one line says so, what was carried before can be had
/// all the while, and it goes on when there is room, by itself if it watches.
///
/// Proves E2, E4, E14.
#[test]
fn a_store_that_is_full_says_so_and_goes_on_when_there_is_room() {
    const NAME: &str = "a_store_that_is_full_says_so_and_goes_on_when_there_is_room";
    let mut pool = TestPool::new();
    let disk = pool.dir.path().join("disk");
    let mut size = 2 << 10;
    let Some(disk) = Disk::new(&disk, size) else { return skipped(NAME, "a tmpfs cannot be mounted (needs root)") };
    let (own, copy) = (pool.path(), pool.dir.path().join("copy"));
    let (own, url) = (text(&own).to_owned(), format!("file://{}/remote", disk.0.display()));
    pool.edit(|edit| edit.file(ROOT, b"first", &[&noise(1, 1 << 20)], true));
    ok(&["set", &own, &url]);
    ok(&["carry", &own]);
    let first = seen(&pool.path());
    pool.edit(|edit| {
        for file in 0..3 {
            edit.file(ROOT, format!("large-{file}").as_bytes(), &[&noise(10 + file, 1 << 20)], true);
        }
        // A batch that has a page for itself.
        for file in 0..3000 {
            edit.make(ROOT, format!("{}-{file}", "n".repeat(100)).as_bytes(), libc::S_IFREG | 0o600, |_, _| {});
        }
        edit.file(ROOT, b"small", &[&noise(20, 300_000)], true);
    });
    let mut full = 0;
    loop {
        let output = run(&["carry", &own]);
        if output.status.success() {
            break;
        }
        full += 1;
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("No space left on device") && said.lines().count() == 1, "{said}");
        let told = status(&own);
        assert!(told["error"].as_str().is_some_and(|error| said.contains(error)) && told["batch"] == 1, "{told}");
        // What there was is there, and nothing else: not half of a batch either.
        ok(&["check", &url, "--data"]);
        ok(&["restore", &url, text(&copy)]);
        assert!(seen(&copy) == first);
        fs::remove_dir_all(&copy).unwrap();
        size += 250;
        disk.resize(size);
    }
    assert!(full > 6, "it was full {full} times");
    assert!(status(&own)["error"].is_null() && status(&own)["batch"] == 2, "{}", status(&own));
    // Whoever watches goes on by himself, and whoever waits hears when it is there.
    pool.edit(|edit| edit.file(ROOT, b"last", &[&noise(30, 2 << 20)], true));
    let mut watching = command(&["carry", &own, "--watch", "--interval", "1"]);
    let mut watching = watching.stderr(Stdio::null()).spawn().unwrap();
    let until = |done: &dyn Fn(&Value) -> bool| {
        while !done(&status(&own)) {
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until(&|told| told["error"].as_str().is_some_and(|error| error.contains("No space left on device")));
    disk.resize(size + (8 << 10));
    until(&|told| told["error"].is_null() && told["batch"] == 3);
    watching.kill().unwrap();
    watching.wait().unwrap();
    ok(&["restore", &url, text(&copy)]);
    assert!(seen(&copy) == seen(&pool.path()));
    ok(&["check", &url, "--data"]);
}

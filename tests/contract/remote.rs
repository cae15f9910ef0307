//! The second copy of a pool that is mounted: what is carried of it, and when that is said to be so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tensorfs_layout::pool::Carrying;
use tensorfs_tests::{Mount, Mounted, Pattern, Setup, is_root, on_mounts, wait_until, xattr};

use crate::grown::{frames, records};

on_mounts!(
    what_was_waited_for_is_in_the_remote,
    what_was_waited_for_is_in_an_encrypted_remote_and_cannot_be_read_there,
    a_file_that_stays_open_is_carried_as_far_as_it_is_sealed,
    what_stands_behind_the_seals_of_a_file_that_stays_open_is_carried_as_it_is,
    what_a_file_that_stays_open_has_at_rest_is_not_read_for_its_tail,
    what_has_just_come_to_rest_is_carried_once,
    what_was_put_before_it_waited_is_told,
    a_pool_that_changes_all_the_time_is_carried_whole,
    who_waits_for_so_long_is_told,
    a_file_that_was_written_again_is_waited_for_again,
    who_gets_a_file_that_was_open_is_told,
    a_bind_mount_of_a_directory_is_on_the_mount,
    who_waits_for_a_damaged_file_is_told,
    a_file_of_a_missing_tier_is_not_damaged,
    a_file_of_the_pool_before_is_not_got,
    a_carrier_that_fails_shows_in_the_health_of_the_mount,
    what_did_not_arrive_is_not_told_to_have_been_put,
    what_was_undone_before_it_was_carried_is_not_waited_for,
    what_a_file_has_grown_by_is_put_and_not_its_last_part_again,
    an_event_file_that_stays_open_is_carried_as_far_as_its_frames_are_sealed,
    a_directory_says_whether_it_is_carried,
    what_is_left_out_is_not_waited_for,
    what_comes_and_goes_where_it_is_left_out_keeps_nobody_waiting,
);

const SIZE: usize = 3 << 20;

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Gives the pool a remote in a directory, and returns its URL.
pub fn with_remote(mount: &Mount) -> String {
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url]);
    url
}

/// What the remote has of a file.
pub fn file_of(mount: &Mount, url: &str, path: &str) -> Value {
    let listed = mount.tensorfs_ok(["remote", "list", url, path, "--json"]);
    serde_json::from_str::<Value>(listed.trim()).unwrap()["file"].clone()
}

/// What is below a directory: mode, time and bytes of each file, target of each link.
pub fn tree_of(top: &Path) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
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
pub fn restores(mount: &mut Mount, url: &str) {
    restores_with(mount, url, &[]);
}

/// As [`restores`], if that is told more.
#[track_caller]
fn restores_with(mount: &mut Mount, url: &str, more: &[&str]) {
    let expected = tree_of(mount.path());
    mount.umount();
    let other = mount.pool().with_file_name("restored");
    mount.tensorfs_ok([&["remote", "restore", url, text(&other)], more].concat());
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

/// Proves E8, E10, E19.
fn what_was_waited_for_is_in_an_encrypted_remote_and_cannot_be_read_there(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let (at, key) = (mount.pool().with_file_name("remote"), mount.pool().with_file_name("key"));
    let (url, key) = (format!("file://{}", at.display()), text(&key).to_owned());
    mount.tensorfs_ok(["remote", "key", &key]);
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url, "--key-file", &key]);
    let watching = Watching::start(&mount);
    let dir = mount.at("hidden-directory");
    fs::create_dir(&dir).unwrap();
    let bytes = Pattern(7).bytes(0, SIZE);
    fs::write(dir.join("hidden-file"), &bytes).unwrap();
    fs::write(dir.join("hidden-text"), "what nobody is to read. ".repeat(99)).unwrap();
    symlink("hidden-file", dir.join("hidden-link")).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&dir)]);
    drop(watching);
    let listed = mount.tensorfs_ok(["remote", "list", &url, "--key-file", &key]);
    assert!(listed.contains("/hidden-directory/hidden-file"), "{listed}");
    assert!(get(&mount, &dir.join("hidden-file")).0 == bytes);
    mount.tensorfs_ok(["remote", "check", text(mount.pool()), "--data"]);
    let refused = mount.tensorfs(["remote", "list", &url]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("--key-file") && said.lines().count() == 1, "{said}");
    let stored = tree_of(&at);
    assert!(stored.len() > 4, "{stored:?}");
    for (path, (_, _, stored)) in &stored {
        let middle = &bytes[SIZE / 2..][..32];
        for part in [&b"hidden"[..], b"what nobody", middle] {
            let is_there = stored.windows(part.len()).any(|window| window == part);
            assert!(!is_there && !text(path).contains("hidden"), "{}", path.display());
        }
    }
    let secret = fs::read_to_string(&key).unwrap();
    let secret = secret.lines().last().unwrap().split_once(':').unwrap().1;
    for told in [mount.tensorfs_ok(["info", text(mount.path())]), mount.info().to_string(), mount.log()] {
        assert!(!told.contains(secret), "{told}");
    }
    restores_with(&mut mount, &url, &["--key-file", &key]);
}

pub fn setup_needs_a_mount() {
    println!("SKIPPED: an ordinary directory has no remote");
}

/// The batch is held back for a file that is open, while what is at rest is put already.
fn what_was_put_before_it_waited_is_told(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::write(mount.at("whole"), Pattern(1).bytes(0, SIZE)).unwrap();
    let mut open = fs::File::create(mount.at("open")).unwrap();
    open.write_all(&Pattern(2).bytes(0, SIZE)).unwrap();
    mount.sync();
    let told = mount.tensorfs_ok(["remote", "carry", "--json", "--patience", "2", text(mount.pool())]);
    let told: Value = serde_json::from_str(told.trim()).unwrap();
    assert_eq!(told["incomplete_files"], 1, "{told}");
    assert!(["read_bytes", "put_bytes"].iter().all(|field| told[field].as_u64() >= Some(SIZE as u64)), "{told}");
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
    mount.tensorfs_ok(["remote", "carry", text(mount.pool()), "--patience", "3", "--open-every", "0"]);
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

/// A log, of which nothing is sealed while it is open, one that was at rest and is appended to, and a file that was at
/// rest and is written in place. Carried by one carrier after the other, and by one that goes on.
///
/// Proves E7.
fn what_stands_behind_the_seals_of_a_file_that_stays_open_is_carried_as_it_is(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    for name in ["grown", "placed"] {
        fs::write(mount.at(name), Pattern(1).bytes(0, SIZE)).unwrap();
        mount.tensorfs_ok(["seal", text(&mount.at(name))]);
    }
    carried(&mount, "60");
    let new = File::create_new(mount.at("log")).unwrap();
    let grown = OpenOptions::new().append(true).open(mount.at("grown")).unwrap();
    let placed = OpenOptions::new().write(true).open(mount.at("placed")).unwrap();
    let go_on = |n: u64| {
        for mut file in [&new, &grown] {
            file.write_all(&Pattern(n).bytes(0, 60_000)).unwrap();
            file.sync_all().unwrap();
        }
        placed.write_all_at(&Pattern(n).bytes(0, SIZE / 2), 0).unwrap();
        placed.sync_all().unwrap();
        mount.sync();
    };
    let shown = |name: &str| fs::read(mount.at(name)).unwrap();
    let got = |name: &str| mount.tensorfs(["remote", "get", text(&mount.at(name))]);
    for n in 2..5 {
        go_on(n);
        let (_, put) = carried(&mount, "0");
        assert!(put < 6 * 60_000, "{put}");
        for name in ["log", "grown"] {
            let (file, got) = (file_of(&mount, &url, &format!("/{name}")), got(name));
            let told = String::from_utf8_lossy(&got.stderr);
            assert_eq!((file["state"].as_str(), file["tail"].as_u64() >= Some(60_000)), (Some("open"), true), "{file}");
            assert!(!got.status.success() && told.contains("as they were found then"), "{told}");
            assert!(got.stdout == shown(name), "{name}: {} bytes", got.stdout.len());
        }
        // What was at rest is not given up for what is being changed.
        assert!(got("placed").stdout == Pattern(1).bytes(0, SIZE), "{}", file_of(&mount, &url, "/placed"));
    }
    let carrier = Watching::with(&mount, "--open-every=1");
    for n in 5..8 {
        go_on(n);
        wait_until("what was appended is carried", || {
            ["log", "grown"].iter().all(|name| got(name).stdout == shown(name))
        });
        assert!(got("placed").stdout == Pattern(1).bytes(0, SIZE));
    }
    let other = mount.pool().with_file_name("other");
    let restored = mount.tensorfs(["remote", "restore", &url, text(&other), "--json"]);
    let told: Value = serde_json::from_slice(&restored.stdout).unwrap();
    assert!(told["incomplete"].to_string().contains("as they were found then"), "{told}");
    drop((new, grown, placed));
    mount.tensorfs_ok(["remote", "wait", text(mount.path())]);
    drop(carrier);
    for name in ["log", "grown", "placed"] {
        let file = file_of(&mount, &url, &format!("/{name}"));
        assert_eq!((&file["state"], &file["tail"]), (&"whole".into(), &Value::Null), "{file}");
    }
    restores(&mut mount, &url);
}

/// Proves E7.
fn what_a_file_that_stays_open_has_at_rest_is_not_read_for_its_tail(setup: Setup) {
    const AT_REST: usize = 16 << 20;
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::write(mount.at("log"), Pattern(1).bytes(0, AT_REST)).unwrap();
    mount.tensorfs_ok(["seal", text(&mount.at("log"))]);
    carried(&mount, "60");
    let mut open = OpenOptions::new().append(true).open(mount.at("log")).unwrap();
    let mut carrier = mount.program();
    carrier.args(["remote", "carry", "--watch", "--json", "--interval=0", "--patience=0", "--open-every=1"]);
    let mut carrier = Watching(carrier.arg(mount.pool()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let told = carrier.0.stdout.take().unwrap();
    for n in 0..6 {
        open.write_all(&Pattern(n).bytes(0, 1000)).unwrap();
        open.sync_all().unwrap();
        let all = fs::read(mount.at("log")).unwrap();
        let got = || mount.tensorfs(["remote", "get", text(&mount.at("log"))]).stdout;
        wait_until("what was appended is carried", || got() == all);
    }
    drop(carrier);
    let lines = BufReader::new(told).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let read: u64 = lines.map(|told| told["read_bytes"].as_u64().unwrap()).sum();
    assert!((6000..AT_REST as u64 / 8).contains(&read), "{read} bytes read for 6000");
}

/// Its seals are in no commit yet, so that it could be taken for a file that stays open; and one that is about to come
/// to rest is not put as a tail before.
///
/// Proves E7.
fn what_has_just_come_to_rest_is_carried_once(setup: Setup) {
    const SIZE: u64 = 8 << 20;
    let mount = setup.mount_with(["--commit", "3600"]).mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    fs::write(mount.at("sealed"), Pattern(1).bytes(0, SIZE as usize)).unwrap();
    mount.tensorfs_ok(["seal", text(&mount.at("sealed"))]);
    assert_eq!(carried(&mount, "60"), (SIZE, SIZE));
    let mut open = File::create(mount.at("open")).unwrap();
    open.write_all(&Pattern(2).bytes(0, SIZE as usize)).unwrap();
    open.sync_all().unwrap();
    let carrier = thread::scope(|scope| {
        let carrier = scope.spawn(|| carried(&mount, "60"));
        thread::sleep(Duration::from_secs(2));
        drop(open);
        mount.tensorfs_ok(["seal", text(&mount.at("open"))]);
        carrier.join()
    });
    assert_eq!(carrier.unwrap(), (SIZE, SIZE));
}

/// What one carrier has read and put.
fn carried(mount: &Mount, patience: &str) -> (u64, u64) {
    let told = mount.tensorfs_ok(["remote", "carry", text(mount.pool()), "--patience", patience, "--json"]);
    let told: Value = serde_json::from_str(told.trim()).unwrap();
    (told["read_bytes"].as_u64().unwrap(), told["put_bytes"].as_u64().unwrap())
}

/// Through descriptors that can only append, through others, and by tensors that are too short to be parts.
///
/// Proves E3.
fn what_a_file_has_grown_by_is_put_and_not_its_last_part_again(setup: Setup) {
    const GROWN: usize = 100_000;
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let npy = |n: u64| {
        let header = format!("{:<117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (33000,), }");
        [&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes(), &Pattern(n).bytes(0, 33_000)].concat()
    };
    let arrays = |n: u64| [npy(3 * n), npy(3 * n + 1), npy(3 * n + 2)].concat();
    let files = ["appended", "written", "arrays"];
    let more = |name: &str, n: u64| match name {
        "arrays" => arrays(n),
        _ => Pattern(n).bytes(0, GROWN),
    };
    fs::write(mount.at("appended"), Pattern(1).bytes(0, 12 << 20)).unwrap();
    fs::write(mount.at("written"), Pattern(2).bytes(0, 12 << 20)).unwrap();
    fs::write(mount.at("arrays"), (0..100).flat_map(arrays).collect::<Vec<_>>()).unwrap();
    let all_sealed =
        |mount: &Mount| files.iter().for_each(|name| drop(mount.tensorfs_ok(["seal", text(&mount.at(name))])));
    all_sealed(&mount);
    carried(&mount, "60");
    let (mut grown, mut put) = (0, 0);
    for n in 200..212 {
        for name in files {
            let mut file = OpenOptions::new().write(true).append(name != "written").open(mount.at(name)).unwrap();
            file.seek(SeekFrom::End(0)).unwrap();
            file.write_all(&more(name, n)).unwrap();
            grown += more(name, n).len() as u64;
        }
        all_sealed(&mount);
        put += carried(&mount, "60").1;
    }
    assert!(put >= grown && put < 5 * grown, "{put} bytes put for {grown}");
    for name in files {
        let file = file_of(&mount, &url, &format!("/{name}"));
        assert_eq!(file["state"], "whole", "{file}");
        assert!(file["parts"].as_array().unwrap().len() < 16, "{file}");
    }
    restores(&mut mount, &url);
}

/// Proves E7.
fn an_event_file_that_stays_open_is_carried_as_far_as_its_frames_are_sealed(setup: Setup) {
    const NAME: &str = "events.out.tfevents.1";
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let mut held = File::create_new(mount.at(NAME)).unwrap();
    let mut written = Vec::new();
    let mut go_on = |steps: std::ops::Range<u64>| {
        held.write_all(&frames(steps.clone(), 8192)).unwrap();
        written.extend(frames(steps, 8192));
        wait_until("all frames are sealed", || {
            let sealed = records(&mount, NAME).into_iter().filter(|record| record["crc32c"].is_string());
            sealed.map(|record| record["len"].as_u64().unwrap()).sum::<u64>() == written.len() as u64
        });
        mount.sync();
        let (read, put) = carried(&mount, "1");
        let file = file_of(&mount, &url, &format!("/{NAME}"));
        assert_eq!(file["state"], "open", "{file}");
        let output = mount.tensorfs(["remote", "get", text(&mount.at(NAME))]);
        assert!(!output.status.success(), "it is open");
        (read, put, output.stdout, written.clone())
    };
    let (_, _, got, written) = go_on(0..40);
    assert!(got == written, "{} of {}", got.len(), written.len());
    let (_, put, got, written) = go_on(40..50);
    assert!(got == written, "{} of {}", got.len(), written.len());
    assert!(put < frames(40..50, 8192).len() as u64 * 3, "{put}");
    // While it is open, bytes that are no more what was sealed are no damage: it is in the remote as it was.
    let changed = File::options().write(true).open(mount.at(NAME)).unwrap();
    changed.write_all_at(b"changed", 5000).unwrap();
    let (_, _, got, _) = go_on(50..60);
    assert!(got == written, "{} of {}", got.len(), written.len());
    drop((changed, held));
    mount.tensorfs_ok(["remote", "wait", text(mount.path())]);
    assert_eq!(file_of(&mount, &url, &format!("/{NAME}"))["state"], "whole");
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
        let late = format!("tensorfs remote: {}: not in the remote after {seconds} seconds", path.display());
        assert!(said.starts_with(&late) && said.lines().count() == 1, "{said}");
        said
    };
    is_late(wait(&[&open], "1.5"), &open, "1.5");
    // And what for, as soon as that is known.
    let mut seconds = 2;
    while !is_late(wait(&[&open], &seconds.to_string()), &open, &seconds.to_string()).contains("come to rest: 1") {
        seconds *= 2;
        assert!(seconds < 1000, "it never says so");
    }
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

/// A carrier that goes on until it is ended here.
pub struct Watching(Child);

impl Watching {
    pub fn start(mount: &Mount) -> Self {
        Self::with(mount, "--open-every=60")
    }

    fn with(mount: &Mount, more: &str) -> Self {
        let mut carrier = mount.program();
        carrier.args(["remote", "carry", "--watch", "--interval=1", "--patience=2", more]).arg(mount.pool());
        Self(carrier.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `remote get` gives of a file, and whether it is content with that.
fn get(mount: &Mount, path: &Path) -> (Vec<u8>, bool, String) {
    let output = mount.tensorfs(["remote", "get", text(path)]);
    (output.stdout, output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// With the same size and the same time, as `rsync -t` and `tar` leave it; and what is changed of a file but its bytes.
///
/// Proves E8.
fn a_file_that_was_written_again_is_waited_for_again(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let path = mount.at("f");
    let write = |bytes: &[u8]| {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1000))).unwrap();
    };
    for with_carrier in [false, true] {
        let watching = with_carrier.then(|| Watching::start(&mount));
        for round in 0..3 {
            let bytes = format!("round {round} {with_carrier:5}");
            write(bytes.as_bytes());
            xattr::set(&path, "user.round", bytes.as_bytes(), 0).unwrap();
            mount.tensorfs_ok(["remote", "wait", text(&path)]);
            let (found, well, said) = get(&mount, &path);
            assert_eq!((String::from_utf8(found).unwrap(), well), (bytes.clone(), true), "{said}");
            xattr::set(&path, "user.round", b"other", 0).unwrap();
            mount.tensorfs_ok(["remote", "wait", text(&path)]);
            let listed = mount.tensorfs_ok(["remote", "list", &url, "/f", "--json"]);
            let listed: Value = serde_json::from_str(listed.trim()).unwrap();
            assert_eq!(listed["xattrs"]["user.round"], "b3RoZXI=", "{listed}");
        }
        drop(watching);
    }
}

/// Proves E10.
fn who_gets_a_file_that_was_open_is_told(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    let path = mount.at("log");
    let (before, after) = (Pattern(1).bytes(0, SIZE), Pattern(2).bytes(0, SIZE));
    fs::write(&path, &before).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&path)]);
    assert!(get(&mount, &path) == (before.clone(), true, String::new()));
    // As long as before, which alone would say that all is there.
    let mut held = OpenOptions::new().write(true).open(&path).unwrap();
    held.write_all(&after).unwrap();
    mount.sync();
    mount.tensorfs_ok(["remote", "carry", text(mount.pool()), "--patience", "1"]);
    let (found, well, said) = get(&mount, &path);
    assert!(found == before);
    assert!(!well && said.contains("was open to write when batch 2") && said.lines().count() == 1, "{said}");
    drop(held);
    mount.tensorfs_ok(["remote", "wait", text(&path)]);
    assert!(get(&mount, &path) == (after, true, String::new()));
}

/// As containers have it.
///
/// Proves E8, E10.
fn a_bind_mount_of_a_directory_is_on_the_mount(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    if !is_root() {
        return println!("SKIPPED: needs root, to mount something");
    }
    with_remote(&mount);
    let below = mount.at("run 7/checkpoints");
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("f"), "text").unwrap();
    let data = mount.pool().with_file_name("data");
    fs::create_dir(&data).unwrap();
    let bound = Mounted::new(Command::new("mount").arg("--bind").arg(&below), &data).unwrap();
    let file = data.join("f");
    mount.tensorfs_ok(["remote", "wait", "--timeout", "600", text(&file), text(&data)]);
    fs::remove_file(&file).unwrap();
    assert_eq!(get(&mount, &file), (b"text".to_vec(), true, String::new()));
    drop(bound);
}

/// Waiting does not bring it to the remote.
///
/// Proves E8.
fn who_waits_for_a_damaged_file_is_told(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    let path = mount.at("f");
    let bytes = Pattern(1).bytes(0, SIZE);
    fs::write(&path, &bytes).unwrap();
    mount.wait_for_seals(1);
    mount.sync();
    let files = tree_of(&mount.pool().join("segments"));
    let (segment, _) = files.iter().find(|(_, (_, _, found))| *found == bytes).unwrap();
    let segment = OpenOptions::new().write(true).open(mount.pool().join("segments").join(segment)).unwrap();
    segment.write_all_at(&[!bytes[100]], 100).unwrap();
    let waited = mount.tensorfs(["remote", "wait", text(&path)]);
    let said = String::from_utf8(waited.stderr).unwrap();
    assert_eq!(waited.status.code(), Some(1), "{said}");
    assert!(said.lines().last().unwrap().contains("is damaged, and not in the remote"), "{said}");
}

/// Proves E7.
fn a_file_of_a_missing_tier_is_not_damaged(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let tier = mount.pool().with_file_name("ssd");
    mount.umount();
    mount.add_tier("ssd", &tier);
    mount.mount();
    let url = with_remote(&mount);
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    xattr::set(&dir, "user.tensorfs.tier", b"ssd", 0).unwrap();
    fs::write(dir.join("f"), Pattern(1).bytes(0, SIZE)).unwrap();
    mount.wait_for_seals(1);
    mount.umount();
    let away = tier.with_file_name("away");
    fs::rename(&tier, &away).unwrap();
    mount.tensorfs_ok(["remote", "carry", text(mount.pool()), "--patience", "0"]);
    let file = file_of(&mount, &url, "/d/f");
    assert_eq!((file["state"].as_str(), &file["parts"]), (Some("open"), &serde_json::json!([])), "{file}");
    fs::rename(&away, &tier).unwrap();
    mount.tensorfs_ok(["remote", "carry", text(mount.pool())]);
    assert_eq!(file_of(&mount, &url, "/d/f")["state"], "whole");
}

/// Numbers of files are a pool's own: another one that had the remote before has others under them.
///
/// Proves E5, E10.
fn a_file_of_the_pool_before_is_not_got(setup: Setup) {
    let (first, second) = (setup.clone().mount(), setup.mount());
    if first.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&first);
    // Which numbers there are depends on what was made ahead.
    let (mut numbers, mut files) = (BTreeSet::new(), 0);
    let path = loop {
        let (one, other) = (first.at(format!("first-{files}")), second.at(format!("second-{files}")));
        fs::write(&one, "of the first").unwrap();
        fs::write(&other, "of the second").unwrap();
        numbers.insert(fs::metadata(&one).unwrap().ino());
        if numbers.contains(&fs::metadata(&other).unwrap().ino()) {
            break other;
        }
        files += 1;
    };
    first.tensorfs_ok(["remote", "wait", text(first.path())]);
    second.tensorfs_ok(["remote", "set", text(second.pool()), &url, "--take-over"]);
    let (found, well, said) = get(&second, &path);
    assert!(found.is_empty() && !well && said.contains("not in the remote's tree"), "{said}");
    second.tensorfs_ok(["remote", "wait", text(&path)]);
    assert_eq!(get(&second, &path), (b"of the second".to_vec(), true, String::new()));
}

/// Proves E14.
fn a_carrier_that_fails_shows_in_the_health_of_the_mount(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let health = || {
        let output = mount.tensorfs(["health", text(mount.path())]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let carry = || mount.tensorfs(["remote", "carry", text(mount.pool()), "--patience", "0"]).status.code();
    fs::write(mount.at("f"), "text").unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("f"))]);
    assert_eq!(health().0, Some(0));
    let told = mount.tensorfs_ok(["info", text(mount.path())]);
    assert!(told.contains("second copy") && told.contains(&url), "{told}");
    let (remote, away) = (mount.pool().with_file_name("remote"), mount.pool().with_file_name("away"));
    fs::rename(&remote, &away).unwrap();
    assert_eq!(carry(), Some(1));
    let (code, said) = health();
    assert!(code == Some(1) && said.contains("second copy is not carried on") && said.contains("not there"), "{said}");
    fs::rename(&away, &remote).unwrap();
    assert_eq!((carry(), health().0), (Some(0), Some(0)));
}

/// A batch that waits for an open file, while the store comes and goes: each pass puts what is not there.
fn what_did_not_arrive_is_not_told_to_have_been_put(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    let (objects, away) = (mount.pool().with_file_name("remote/objects"), mount.pool().with_file_name("away"));
    let open = File::create(mount.at("open")).unwrap();
    open.write_all_at(b"text", 0).unwrap();
    mount.sync();
    let mut carrier = mount.program();
    carrier.args(["remote", "carry", "--json", "--patience=3600", "--interval=0", "--progress=none", "--watch"]);
    let log = mount.host().join("carrier");
    carrier.arg(mount.pool()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
    let mut carrier = Watching(carrier.spawn().unwrap());
    let told = BufReader::new(carrier.0.stdout.take().unwrap());
    // It waits for the open file from here on.
    let status = || mount.tensorfs(["remote", "status", "--json", text(mount.pool())]).stdout;
    wait_until("the carrier waits", || String::from_utf8_lossy(&status()).contains(r#""carrier":true"#));
    let had_objects = fs::rename(&objects, &away).is_ok();
    fs::write(&objects, "no directory").unwrap();
    fs::write(mount.at("whole"), Pattern(1).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["seal", text(&mount.at("whole"))]);
    wait_until("it has failed three times", || fs::read_to_string(&log).unwrap().matches("trying again").count() >= 3);
    fs::remove_file(&objects).unwrap();
    if had_objects {
        fs::rename(&away, &objects).unwrap();
    }
    drop(open);
    let line = told.lines().next().unwrap().unwrap();
    drop(carrier);
    let told: Value = serde_json::from_str(&line).unwrap();
    let put = told["put_bytes"].as_u64().unwrap() as usize;
    assert!((SIZE..SIZE + 10_000).contains(&put), "{told}");
}

/// A lock file beside what is waited for, say: whoever carries the pool finds nothing to carry.
///
/// Proves E8.
fn what_was_undone_before_it_was_carried_is_not_waited_for(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), "text").unwrap();
    mount.tensorfs_ok(["remote", "wait", text(&dir)]);
    // This is the carrier from now on, and has seen everything.
    let carrying = Carrying::take(mount.pool()).unwrap().unwrap();
    let mut note: Value = serde_json::from_slice(&carrying.note().unwrap().unwrap().note).unwrap();
    let mut seen = |transaction: u64| {
        note["transaction"] = transaction.into();
        carrying.write(&serde_json::to_vec(&note).unwrap()).unwrap();
    };
    fs::write(dir.join("lock"), "").unwrap();
    seen(1 << 40);
    let mut waiting = mount.program().args(["remote", "wait"]).arg(&dir).spawn().unwrap();
    // It has looked by then, as a rule.
    std::thread::sleep(Duration::from_secs(3));
    assert!(waiting.try_wait().unwrap().is_none());
    fs::remove_file(dir.join("lock")).unwrap();
    seen((1 << 40) + 1);
    assert!(waiting.wait().unwrap().success());
}

/// The attribute of a directory, as a user sees it.
///
/// Proves E16, T8.
fn a_directory_says_whether_it_is_carried(setup: Setup) {
    const NAME: &str = "user.tensorfs.remote";
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let (dir, file) = (mount.at("d"), mount.at("f"));
    fs::create_dir_all(dir.join("inner")).unwrap();
    fs::write(&file, b"bytes").unwrap();
    symlink("d", mount.at("link")).unwrap();
    assert_eq!(xattr::get(&dir, NAME), Err(Errno::ENODATA));
    assert_eq!(xattr::remove(&dir, NAME), Err(Errno::ENODATA));
    assert_eq!(xattr::set(&dir, NAME, b"no", libc::XATTR_REPLACE), Err(Errno::ENODATA));
    for value in [&b"yes"[..], b"", b"No", b"no\0", b"no ", b"\xff", &[b'n'; 70_000 >> 1]] {
        assert_eq!(xattr::set(&dir, NAME, value, 0), Err(Errno::EINVAL), "{value:?}");
    }
    xattr::set(&dir, NAME, b"no", 0).unwrap();
    assert_eq!(xattr::set(&dir, NAME, b"no", libc::XATTR_CREATE), Err(Errno::EEXIST));
    assert_eq!(xattr::get(&dir, NAME).unwrap(), b"no");
    // It is of this directory; what is below it need not have it.
    fs::create_dir(dir.join("made")).unwrap();
    assert_eq!(xattr::get(&dir.join("made"), NAME), Err(Errno::ENODATA));
    assert!(xattr::list(&dir).unwrap().is_empty(), "it is not listed, and so not copied");
    assert_eq!(xattr::set(&file, NAME, b"no", 0), Err(Errno::EPERM));
    assert_eq!(xattr::remove(&file, NAME), Err(Errno::EPERM));
    assert_eq!(xattr::get(&file, NAME), Err(Errno::ENODATA));
    assert!(xattr::set(&mount.at("link"), NAME, b"no", 0).is_err());
    mount.remount();
    assert_eq!(xattr::get(&dir, NAME).unwrap(), b"no");
    xattr::remove(&dir, NAME).unwrap();
    assert_eq!(xattr::get(&dir, NAME), Err(Errno::ENODATA));
}

/// Proves E8, E16.
fn what_is_left_out_is_not_waited_for(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url, "--exclude", "*.tmp", "--exclude", "/run/cache/**"]);
    for dir in ["run/cache/deep", "run/scratch/deep", "x"] {
        fs::create_dir_all(mount.at(dir)).unwrap();
    }
    xattr::set(&mount.at("run/scratch"), "user.tensorfs.remote", b"no", 0).unwrap();
    let out = ["run/a.tmp", "run/cache/deep/file", "run/scratch/deep/file"];
    let all = ["run/kept", "x/cache"].into_iter().chain(out);
    all.for_each(|path| fs::write(mount.at(path), Pattern(1).bytes(0, SIZE)).unwrap());
    // One of them stays open, and is open for ever as far as anybody knows.
    let _held = OpenOptions::new().append(true).open(mount.at("run/a.tmp")).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(mount.path()), "--timeout", "100"]);
    mount.tensorfs_ok(["remote", "wait", text(&mount.at("run")), text(&mount.at("x/cache")), "--timeout", "100"]);
    let listed = mount.tensorfs_ok(["remote", "list", &url]);
    let listed: BTreeSet<&str> = listed.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(listed, BTreeSet::from(["/", "/run/", "/run/kept", "/run/cache/", "/run/scratch/", "/x/", "/x/cache"]));
    // Who asks for what never comes is told why, at once, in a line.
    for (path, why) in [
        ("run/a.tmp", "as --exclude says of /run/a.tmp"),
        ("run/cache/deep", "as --exclude says of /run/cache/deep"),
        ("run/cache/deep/file", "as --exclude says of /run/cache/deep"),
        ("run/scratch", "by the attribute user.tensorfs.remote of /run/scratch"),
        ("run/scratch/deep/file", "by the attribute user.tensorfs.remote of /run/scratch"),
    ] {
        let output = mount.tensorfs(["remote", "wait", text(&mount.at(path))]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{path}: {said}");
    }
    let status = mount.tensorfs_ok(["remote", "status", text(mount.pool()), "--json"]);
    let status: Value = serde_json::from_str(status.trim()).unwrap();
    assert_eq!(
        (status["left_out_files"].as_u64(), status["left_out_bytes"].as_u64()),
        (Some(3), Some(3 * SIZE as u64))
    );
    let shown = mount.tensorfs_ok(["remote", "status", text(mount.pool())]);
    assert!(shown.contains("left out    3 files"), "{shown}");
    mount.tensorfs_ok(["remote", "check", &url, "--data"]);
    // A restore has the rest, and its directories say what these said.
    let other = mount.pool().with_file_name("other");
    mount.tensorfs_ok(["remote", "restore", &url, text(&other)]);
    mount.tensorfs_ok(["check", "--data", text(&other)]);
    // Out of there, it is carried.
    fs::rename(mount.at("run/scratch/deep"), mount.at("x/deep")).unwrap();
    fs::rename(mount.at("run/kept"), mount.at("run/scratch/kept")).unwrap();
    mount.tensorfs_ok(["remote", "wait", text(mount.path()), "--timeout", "100"]);
    assert_eq!(file_of(&mount, &url, "/x/deep/file")["state"], "whole");
    assert!(!mount.tensorfs(["remote", "list", &url, "/run/scratch/kept"]).status.success());
}

/// Files that are made and removed all the time, where nothing is carried, while others are waited for.
///
/// Proves E8, E16.
fn what_comes_and_goes_where_it_is_left_out_keeps_nobody_waiting(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    mount.tensorfs_ok(["remote", "set", text(mount.pool()), &url, "--exclude", "*.tmp"]);
    fs::create_dir(mount.at("scratch")).unwrap();
    xattr::set(&mount.at("scratch"), "user.tensorfs.remote", b"no", 0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0_u64.. {
                let paths = [mount.at(format!("{}.tmp", n % 7)), mount.at(format!("scratch/{}", n % 5))];
                paths.iter().for_each(|path| fs::write(path, b"bytes").unwrap());
                std::thread::sleep(Duration::from_millis(5));
                paths.iter().for_each(|path| fs::remove_file(path).unwrap());
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for round in 0..3 {
            fs::write(mount.at(format!("kept-{round}")), Pattern(round).bytes(0, SIZE)).unwrap();
            let waited = mount.tensorfs(["remote", "wait", text(mount.path()), "--timeout", "100"]);
            if !waited.status.success() {
                done.store(true, Ordering::Relaxed);
                panic!("{}", String::from_utf8_lossy(&waited.stderr));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let listed = mount.tensorfs_ok(["remote", "list", &url]);
    assert_eq!(listed.lines().count(), 5, "{listed}");
}

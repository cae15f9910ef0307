//! The second copy of a mounted pool where something is killed, where a clock is wrong, and what whoever waits hears.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tensorfs_tests::random::Random;
use tensorfs_tests::{HostCalls, Mount, Mounted, Pattern, Setup, is_root, on_mounts, run_ok, tensorfs};

use crate::remote::{Watching, file_of, restores, setup_needs_a_mount, text, with_remote};

on_mounts!(
    what_is_carried_is_whole_whoever_is_killed,
    a_clock_that_is_wrong_by_an_hour_loses_and_hides_nothing,
    whoever_waits_hears_how_far_it_has_come,
    a_mount_stands_for_its_pool,
    a_carrier_makes_way_for_who_writes,
);

const SIZE: usize = 1 << 20;
const HOUR: i64 = 3600;

/// Makes files, appends to them, writes over them, and removes them, until it is told to end, or the server has.
fn write_until(end: &AtomicBool, (mount, round): (&Path, u64)) -> Option<()> {
    let dir = mount.join(format!("d{}", round % 3));
    fs::create_dir_all(&dir).ok()?;
    for n in 0_u64.. {
        if end.load(Ordering::Relaxed) {
            break;
        }
        let (path, new) = (dir.join(format!("f{}", n % 9)), dir.join("new"));
        let bytes = Pattern(round * 1000 + n).bytes(0, SIZE / 2 + n as usize * 1001 % SIZE);
        match n % 4 {
            0 => {
                fs::write(&new, bytes).ok()?;
                fs::rename(&new, &path).ok()?;
            }
            1 => fs::write(&path, bytes).ok()?,
            2 => File::options().append(true).create(true).open(&path).ok()?.write_all(&bytes[..9999]).ok()?,
            _ => drop(fs::remove_file(&path)),
        }
    }
    Some(())
}

/// The server of the mount, its carrier, or both at once, at any moment while files are written and carried.
///
/// Proves E1, E2, E8, E14.
fn what_is_carried_is_whole_whoever_is_killed(setup: Setup) {
    let rounds = std::env::var("TENSORFS_REMOTE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6_u64);
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let mut watching = Some(Watching::start(&mount));
    for round in 0..rounds {
        let mut random = Random::of(&[18, 5, round]);
        let (end, at) = (AtomicBool::new(false), mount.path().to_owned());
        thread::scope(|scope| {
            let writing = scope.spawn(|| write_until(&end, (&at, round)));
            // So long it takes until some files are carried.
            thread::sleep(Duration::from_millis(random.below(2500)));
            if round % 3 != 0 {
                drop(watching.take());
            }
            if round % 3 != 1 {
                mount.kill9();
            }
            end.store(true, Ordering::Relaxed);
            writing.join().unwrap();
        });
        if round % 3 != 1 {
            mount.mount();
        }
        watching.get_or_insert_with(|| Watching::start(&mount));
        mount.tensorfs_ok(["remote", "wait", text(mount.path()), "--timeout", "600"]);
        mount.tensorfs_ok(["remote", "check", &url, "--data"]);
    }
    drop(watching);
    restores(&mut mount, &url);
}

/// One of the commands, with a clock that is off by so many seconds.
#[track_caller]
fn off_by(seconds: i64, arguments: &[&str]) -> String {
    let mut command = tensorfs();
    HostCalls::clock_off(&mut command, seconds);
    let output = command.arg("remote").args(arguments).output().unwrap();
    assert!(output.status.success(), "{seconds} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// Put forward, and put back: the machine's own, and not that of the store, which counts for what may be removed.
///
/// Proves E6, E8, E14, E15.
fn a_clock_that_is_wrong_by_an_hour_loses_and_hides_nothing(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let pool = text(mount.pool()).to_owned();
    let write = |mount: &Mount, name: &str| {
        fs::write(mount.at(name), Pattern(name.len() as u64).bytes(0, 2 * SIZE)).unwrap();
        mount.tensorfs_ok(["seal", text(&mount.at(name))]);
    };
    let names = ["right", "forward", "put-back"];
    for (name, off) in names.into_iter().zip([0, HOUR, -HOUR]) {
        write(&mount, name);
        off_by(off, &["carry", &pool]);
        off_by(off, &["wait", text(&mount.at(name)), "--timeout", "600"]);
        assert_eq!(file_of(&mount, &url, &format!("/{name}"))["state"], "whole");
        // It was carried just now, or, as those see it whose clock is right, when it was by the other one; never before
        // it was.
        for seen in [off, 0] {
            let status: Value = serde_json::from_str(off_by(seen, &["status", &pool, "--json"]).trim()).unwrap();
            let since = status["seconds_since"].as_i64().unwrap();
            assert!(((seen - off).max(0)..(seen - off).max(0) + HOUR / 2).contains(&since), "{off} {seen}: {status}");
        }
    }
    // Each tree has its number, and says when it was, by the clock of whoever carried it.
    let listed = mount.tensorfs_ok(["remote", "list", &url, "--batches", "--json"]);
    let batches = listed.lines().map(|line| {
        let batch: Value = serde_json::from_str(line).unwrap();
        (batch["batch"].as_u64().unwrap(), batch["time"].as_i64().unwrap())
    });
    let batches: Vec<(u64, i64)> = batches.collect();
    let is_of = |time: i64, off: i64| (time - off - now()).abs() < HOUR / 2;
    let (first, last) = (batches[0].1, batches.last().unwrap().1);
    assert!(is_of(first, 0) && is_of(last, -HOUR), "{listed}");
    assert!(batches.is_sorted() && batches.iter().any(|(_, time)| is_of(*time, HOUR)), "{listed}");
    for (number, _) in &batches {
        let listed = mount.tensorfs_ok(["remote", "list", &url, "--at", &number.to_string()]);
        assert!(listed.contains("/right"), "{number}: {listed}");
    }
    // The newest tree is the newest one whatever its time says, also where a time is asked for that is behind it.
    let at = run_ok(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d", &format!("@{last}")]));
    for off in [0, HOUR, -HOUR] {
        for more in [&[][..], &["--at", at.trim()]] {
            let listed = off_by(off, &[&["list", &url], more].concat());
            assert!(names.iter().all(|name| listed.contains(name)), "{off} {more:?}: {listed}");
        }
    }
    // What nothing names was put just now: whoever collects keeps it for an hour, by the store's clock.
    fs::remove_file(mount.at("forward")).unwrap();
    mount.sync();
    off_by(0, &["carry", &pool]);
    for (off, keep) in [(HOUR, ["--keep", "0"]), (-HOUR, ["--keep", "0"]), (HOUR, ["--keep-last", "1"])] {
        let removed: Value =
            serde_json::from_str(off_by(off, &[&["gc", &pool, "--json"], &keep[..]].concat()).trim()).unwrap();
        assert_eq!(removed["objects"], 0, "{off} {keep:?}: {removed}");
    }
    off_by(HOUR, &["check", &url, "--data"]);
    write(&mount, "last one");
    off_by(0, &["wait", text(mount.path()), "--timeout", "600"]);
    restores(&mut mount, &url);
}

/// What is told of how far it has come, in lines of JSON on standard error: how much of how much.
fn told(output: &Output) -> Vec<(u64, u64)> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let numbers = said.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        let come = &line["progress"];
        assert_eq!((come["what"].as_str(), come["unit"].as_str()), (Some("carried"), Some("bytes")), "{come}");
        (come["done"].as_u64().unwrap(), come["total"].as_u64().unwrap())
    });
    numbers.collect()
}

/// Of what this very command carries, and of what another one does.
///
/// Proves E18.
fn whoever_waits_hears_how_far_it_has_come(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    with_remote(&mount);
    for is_watched in [false, true] {
        let watching = is_watched.then(|| Watching::start(&mount));
        for n in 0..3 {
            let path = mount.at(format!("{is_watched}-{n}"));
            fs::write(&path, Pattern(n).bytes(0, 4 * SIZE)).unwrap();
            mount.tensorfs_ok(["seal", text(&path)]);
        }
        let wait = ["remote", "wait", text(mount.path()), "--timeout", "600", "--progress", "json"];
        let come = told(&mount.tensorfs(wait));
        let (done, total) = *come.last().unwrap();
        assert!(done == total && (is_watched || total >= 4 * SIZE as u64), "{come:?}");
        assert!(come.is_sorted(), "{come:?}");
        drop(watching);
    }
    let quiet = mount.tensorfs(["remote", "wait", text(mount.path()), "--timeout", "600"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{}", String::from_utf8_lossy(&quiet.stderr));
}

/// Where a pool is mounted is what its users know of it.
///
/// Proves E24.
fn a_mount_stands_for_its_pool(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let at = text(mount.path()).to_owned();
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    mount.tensorfs_ok(["remote", "set", &at, &url]);
    fs::write(mount.at("f"), Pattern(1).bytes(0, SIZE)).unwrap();
    mount.tensorfs_ok(["seal", text(&mount.at("f"))]);
    mount.tensorfs_ok(["remote", "carry", &at]);
    let by = |path: &str| {
        let told = mount.tensorfs_ok(["remote", "status", path, "--json"]);
        let told: Value = serde_json::from_str(told.trim()).unwrap();
        (told["url"].clone(), told["batch"].clone())
    };
    assert_eq!(by(&at), (url.clone().into(), 1.into()));
    assert_eq!(by(&at), by(text(mount.pool())));
    assert!(mount.tensorfs_ok(["remote", "list", &at]).contains("/f"));
    mount.tensorfs_ok(["remote", "check", &at, "--data"]);
    mount.tensorfs_ok(["remote", "gc", &format!("{at}/."), "--keep-last", "1"]);
    mount.tensorfs_ok(["remote", "off", &at]);
    let none = mount.tensorfs(["remote", "status", &at]);
    let said = String::from_utf8(none.stderr).unwrap();
    assert!(said.contains(text(mount.pool())) && said.contains("has no remote"), "{said}");
    // What is below it is no pool.
    fs::create_dir(mount.at("d")).unwrap();
    assert!(!mount.tensorfs(["remote", "status", text(&mount.at("d"))]).status.success());
    // Nor is a directory of it that is mounted elsewhere, which has a pool's mount below it.
    mount.tensorfs_ok(["remote", "set", &at, &url, "--take-over"]);
    let other = mount.host().join("other");
    fs::create_dir(&other).unwrap();
    if is_root() {
        let bound = Mounted::new(Command::new("mount").arg("--bind").arg(mount.at("d")), &other).unwrap();
        let off = mount.tensorfs(["remote", "off", text(bound.path())]);
        assert!(!off.status.success(), "{off:?}");
        assert_eq!(by(&at).0, Value::from(url));
    }
}

/// Has somebody end.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Proves E33.
fn a_carrier_makes_way_for_who_writes(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return setup_needs_a_mount();
    }
    let url = with_remote(&mount);
    let mut carried = 0;
    let mut carry = |mount: &Mount| {
        // Something that takes a little.
        let large = mount.at(format!("large-{carried}"));
        fs::write(&large, Pattern(carried).bytes(0, 64 * SIZE)).unwrap();
        mount.tensorfs_ok(["seal", text(&large)]);
        carried += 1;
        let mut carrier = mount.program();
        carrier.args(["remote", "carry", "--patience=0", "--progress=none", text(mount.pool())]);
        let output = carrier.env("RUST_LOG", "tensorfs_remote=debug").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said.contains("stands still while files of the pool are written")
    };
    assert!(!carry(&mount), "it stands still though nobody writes");
    // Who adds a little now and then is no reason.
    let end = AtomicBool::new(false);
    let beside = |path: &Path, len: usize, pause: Duration| {
        let mut file = File::create(path).unwrap();
        while !end.load(Ordering::Relaxed) {
            file.write_all(&vec![1; len]).unwrap();
            if file.metadata().unwrap().len() > 64 << 20 {
                file.set_len(0).unwrap();
                file.rewind().unwrap();
            }
            thread::sleep(pause);
        }
    };
    let (slow, fast) = (mount.at("slow"), mount.at("fast"));
    let beside_writer = |carry: &mut dyn FnMut() -> bool, path: &Path, len, pause| {
        end.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| beside(path, len, pause));
            // Also if this fails.
            let _ends = Ends(&end);
            carry()
        })
    };
    let held = beside_writer(&mut || carry(&mount), &slow, 100, Duration::from_millis(200));
    assert!(!held, "it stands still for who adds a little");
    // It may be that it comes to its end before he gets to write.
    let mut tries = 0..9;
    let is_seen = tries.any(|_| beside_writer(&mut || carry(&mount), &fast, SIZE, Duration::ZERO));
    assert!(is_seen, "it does not see who writes");
    mount.tensorfs_ok(["remote", "wait", text(mount.path())]);
    restores(&mut mount, &url);
}

//! Damage that is mended without anybody's asking, while a carrier watches.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tensorfs_tests::{Mount, Pattern, Setup, on_mounts, xattr};

use crate::verify::{flip, lines, report, seal, segment};

on_mounts!(
    what_a_scrub_finds_is_mended_by_itself,
    a_file_whose_segment_is_gone_is_mended_by_itself,
    what_the_remote_has_not_got_is_told_once_and_keeps_nothing_waiting,
    what_was_written_since_is_left_alone,
    a_file_that_was_lost_with_its_tier_is_mended_when_it_is_wanted,
    nothing_is_mended_by_itself_if_that_is_not_wanted,
);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A carrier that goes on until it is ended here.
pub(crate) struct Watching {
    carrier: Child,
    log: PathBuf,
}

impl Watching {
    pub(crate) fn start(mount: &Mount, more: &[&str]) -> Self {
        let log = mount.pool().with_file_name("carrier.log");
        let mut carrier = mount.program();
        carrier.args(["remote", "carry", "--watch", "--interval=1", "--patience=1"]).args(more).arg(mount.pool());
        carrier.stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Self { carrier: carrier.spawn().unwrap(), log }
    }

    fn said(&self, what: &str) -> usize {
        fs::read_to_string(&self.log).unwrap().lines().filter(|line| line.contains(what)).count()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.carrier.kill();
        let _ = self.carrier.wait();
    }
}

/// Gives the pool a remote in a directory, and carries it there.
pub(crate) fn carry(mount: &Mount, more: &[&str]) {
    seal(mount, mount.path());
    mount.sync();
    let url = format!("file://{}", mount.pool().with_file_name("remote").display());
    mount.tensorfs_ok([&["remote", "set", text(mount.pool()), &url], more].concat());
    mount.tensorfs_ok(["remote", "carry", text(mount.pool())]);
}

/// Has damage found.
#[track_caller]
fn scrub(mount: &Mount) {
    assert_eq!(report(mount, &["scrub", "--no-limit", "--json"], mount.path()).0, Some(4));
}

/// What came of mending, as `remote status` tells it, and whether that is content.
fn status(mount: &Mount) -> (Value, bool) {
    let output = mount.tensorfs(["remote", "status", "--json", text(mount.pool())]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    (told["healing"].clone(), output.status.success())
}

/// Waits until it tells something, and fails only long after it should have.
#[track_caller]
fn wait_for(mount: &Mount, what: &str, done: impl Fn(&Value) -> bool) {
    for _ in 0..1200 {
        if done(&status(mount).0) {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("not told: {what}: {}", status(mount).0);
}

fn mended(mount: &Mount) -> u64 {
    mount.info()["counters"]["mended"].as_u64().unwrap()
}

/// Proves E11, E23.
fn what_a_scrub_finds_is_mended_by_itself(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 3 << 20);
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/f"), &bytes).unwrap();
    fs::write(mount.at("whole"), Pattern(2).bytes(0, 100_000)).unwrap();
    carry(&mount, &[]);
    flip(&segment(&mount, &bytes), 2 << 20);
    let watching = Watching::start(&mount, &[]);
    scrub(&mount);
    mount.wait_for("mending", |info| info["counters"]["mended"] == 1);
    assert!(fs::read(mount.at("d/f")).unwrap() == bytes);
    assert_eq!(lines(&mount, &["verify", "--json"], mount.path()).0, Some(0));
    assert_eq!(mount.info()["damage_found"], serde_json::json!([]));
    // Which one it was, and with what.
    wait_for(&mount, "the note says so", |healing| healing["mended"] == 1);
    let (healing, is_content) = status(&mount);
    assert_eq!((healing["last"]["path"].as_str(), healing["last"]["batch"].as_u64()), (Some("/d/f"), Some(1)));
    assert!(is_content && healing["unmended_files"] == 0, "{healing}");
    assert_eq!(watching.said("/d/f: was damaged, and is mended"), 1);
    let told = mount.tensorfs_ok(["remote", "status", text(mount.pool())]);
    assert!(told.contains("mended      1 files, /d/f the last"), "{told}");
    assert!(mount.log().contains("/d/f: mended"), "{}", mount.log());
    mount.tensorfs_ok(["health", text(mount.path())]);
}

/// Nobody has to look for it: whoever opens it finds that out.
///
/// Proves C4, E23.
fn a_file_whose_segment_is_gone_is_mended_by_itself(setup: Setup) {
    let mut mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 100_000);
    fs::write(mount.at("f"), &bytes).unwrap();
    carry(&mount, &[]);
    // No server has it open.
    mount.remount();
    let _watching = Watching::start(&mount, &[]);
    fs::remove_file(segment(&mount, &bytes)).unwrap();
    File::open(mount.at("f")).unwrap_err();
    mount.wait_for("mending", |info| info["counters"]["mended"] == 1);
    assert!(fs::read(mount.at("f")).unwrap() == bytes);
    assert_eq!(lines(&mount, &["verify", "--json"], mount.path()).0, Some(0));
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// Proves E23.
fn what_the_remote_has_not_got_is_told_once_and_keeps_nothing_waiting(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let [left_out, one, other] = [1, 2, 3].map(|n| Pattern(n).bytes(0, 100_000));
    for (name, bytes) in [("a.tmp", &left_out), ("f", &one), ("g", &other)] {
        fs::write(mount.at(name), bytes).unwrap();
    }
    carry(&mount, &["--exclude", "*.tmp"]);
    let begun = Instant::now();
    let watching = Watching::start(&mount, &[]);
    let damaged = segment(&mount, &left_out);
    flip(&damaged, 5);
    let bytes = fs::read(&damaged).unwrap();
    scrub(&mount);
    wait_for(&mount, "it is told", |healing| healing["unmended_files"] == 1);
    let (healing, is_content) = status(&mount);
    let why = healing["unmended"][0]["why"].as_str().unwrap();
    assert!(!is_content && why.contains("not in the remote's tree"), "{healing}");
    let health = mount.tensorfs(["health", text(mount.path())]);
    let said = String::from_utf8(health.stdout).unwrap();
    assert!(health.status.code() == Some(1) && said.contains("does not mend /a.tmp: "), "{said}");
    let told = mount.tensorfs_ok(["info", text(mount.path())]);
    assert!(told.contains("does not mend /a.tmp"), "{told}");
    // Two others come behind it, so that its turn would have come again and again.
    [&one, &other].iter().for_each(|bytes| flip(&segment(&mount, bytes), 50_000));
    scrub(&mount);
    mount.wait_for("mending", |info| info["counters"]["mended"] == 2);
    assert!(fs::read(mount.at("f")).unwrap() == one && fs::read(mount.at("g")).unwrap() == other);
    let tries = status(&mount).0["unmended"][0]["tries"].as_u64().unwrap();
    // After 10 seconds, 20 more, and so on.
    let most = 2 + u64::from((begun.elapsed().as_secs() / 10 + 1).ilog2());
    assert!((1..=most).contains(&tries), "{tries} tries, and at most {most} were due");
    assert_eq!(watching.said("/a.tmp: is damaged, and not mended"), 1);
    assert!(fs::read(&damaged).unwrap() == bytes);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 3);
    fs::remove_file(mount.at("a.tmp")).unwrap();
    wait_for(&mount, "it is no more", |healing| healing["unmended_files"] == 0);
    assert!(status(&mount).1);
}

/// Proves E11, E23.
fn what_was_written_since_is_left_alone(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let [old, new, other] = [1, 2, 3].map(|n| Pattern(n).bytes(0, 100_000));
    fs::write(mount.at("a"), &old).unwrap();
    fs::write(mount.at("other"), &other).unwrap();
    carry(&mount, &[]);
    flip(&segment(&mount, &old), 5);
    flip(&segment(&mount, &other), 5);
    scrub(&mount);
    // Its number and its path are those that were found.
    fs::write(mount.at("a"), &new).unwrap();
    let watching = Watching::start(&mount, &[]);
    mount.wait_for("mending", |info| info["counters"]["mended"] == 1);
    assert!(fs::read(mount.at("other")).unwrap() == other && fs::read(mount.at("a")).unwrap() == new);
    wait_for(&mount, "the note says so", |healing| healing["mended"] == 1);
    assert_eq!((watching.said("/a: "), status(&mount).0["unmended_files"].as_u64()), (0, Some(0)));
    assert_eq!(mended(&mount), 1);
}

/// Proves M7, M8, E11, E23.
fn a_file_that_was_lost_with_its_tier_is_mended_when_it_is_wanted(setup: Setup) {
    if setup.mount_is_plain() {
        return;
    }
    let Some(memory) = setup.in_memory() else { return };
    let mut mount = setup.mount();
    let (dram, ssd) = (memory.path().join("dram"), mount.host().join("ssd"));
    mount.umount();
    mount.add_tier("dram", &dram);
    mount.add_tier("ssd", &ssd);
    mount.mount();
    let bytes = Pattern(1).bytes(0, 100_000);
    for (name, tier) in [("wanted", "dram"), ("other", "dram"), ("elsewhere", "ssd")] {
        let path = mount.at(name);
        File::create(&path).unwrap();
        xattr::set(&path, "user.tensorfs.tier", tier.as_bytes(), 0).unwrap();
        fs::write(&path, &bytes).unwrap();
    }
    carry(&mount, &[]);
    mount.power_loss();
    fs::remove_dir_all(&dram).unwrap();
    fs::rename(&ssd, ssd.with_file_name("away")).unwrap();
    mount.mount();
    let _watching = Watching::start(&mount, &[]);
    File::open(mount.at("elsewhere")).unwrap_err();
    File::open(mount.at("wanted")).unwrap_err();
    mount.wait_for("mending", |info| info["counters"]["mended"] == 1);
    assert!(fs::read(mount.at("wanted")).unwrap() == bytes);
    wait_for(&mount, "the note says so", |healing| healing["last"]["path"] == "/wanted");
    // What nobody wants takes no room, and what will be back with its tier is not given up for that.
    let state = |name: &str| xattr::get(&mount.at(name), "user.tensorfs.state").unwrap();
    assert_eq!((state("other"), state("elsewhere")), (b"lost".to_vec(), b"missing".to_vec()));
    assert_eq!((status(&mount).0["unmended_files"].as_u64(), mended(&mount)), (Some(0), 1));
    for name in ["other", "elsewhere"] {
        mount.tensorfs_ok(["verify", "--mend", text(&mount.at(name))]);
        assert!(fs::read(mount.at(name)).unwrap() == bytes);
    }
    assert_eq!(xattr::get(&mount.at("elsewhere"), "user.tensorfs.tier").unwrap(), b"pm");
}

/// Proves E23.
fn nothing_is_mended_by_itself_if_that_is_not_wanted(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let bytes = Pattern(1).bytes(0, 100_000);
    fs::write(mount.at("f"), &bytes).unwrap();
    carry(&mount, &[]);
    flip(&segment(&mount, &bytes), 5);
    scrub(&mount);
    let watching = Watching::start(&mount, &["--no-mend"]);
    // Several passes.
    for name in ["a", "b"] {
        fs::write(mount.at(name), name).unwrap();
        mount.tensorfs_ok(["remote", "wait", text(&mount.at(name))]);
    }
    assert_eq!((mended(&mount), watching.said("/f: ")), (0, 0));
    drop(watching);
    let _watching = Watching::start(&mount, &[]);
    mount.wait_for("mending", |info| info["counters"]["mended"] == 1);
}

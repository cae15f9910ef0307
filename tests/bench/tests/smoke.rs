//! The benchmark itself: that all of it works, and that it leaves nothing behind. Its numbers are nobody's business
//! here.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tensorfs_tests::{is_root, scratch, skip, skip_all, tensorfs};

fn bench(room: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-bench"));
    command.arg("--smoke").arg("--dir").arg(room).arg("--tensorfs").arg(tensorfs().get_program());
    command
}

fn cannot(name: &str) -> bool {
    if skip_all(name) {
        return true;
    }
    if !is_root() {
        skip(name, "mounting tmpfs needs root");
    }
    !is_root()
}

/// Mounts below a directory.
fn mounts(room: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = |line: &&str| line.split(' ').nth(4).is_some_and(|path| Path::new(path).starts_with(room));
    table.lines().filter(below).map(str::to_owned).collect()
}

fn assert_nothing_left(room: &Path) {
    assert_eq!(mounts(room), Vec::<String>::new());
    let left: Vec<_> = room.read_dir().unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Every measure runs on every target, its report can be read again, and nothing stays.
#[test]
fn every_measure_works() {
    if cannot("bench: every measure") {
        return;
    }
    let (room, out) = (scratch(), scratch());
    let room = room.path();
    let (json, docs) = (out.path().join("figures.json"), out.path().join("docs"));
    let output = bench(room)
        .args(["--backings", "tmpfs", "--families", "data,metadata,durability,scale", "--json"])
        .arg(&json)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_nothing_left(room);

    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let figures = report["figures"].as_array().unwrap();
    let has = |measure: &str, target: &str| {
        figures.iter().any(|figure| figure["measure"] == measure && figure["target"] == target)
    };
    for measure in ["write-1m", "read", "stat", "create", "append", "small-files", "writers-64"] {
        assert!(has(measure, "native") && has(measure, "tensorfs"), "{measure}: {text}");
    }
    assert!(has("create", "server") && has("smdebug-step", "close") && has("mount", "tensorfs"), "{text}");
    let created = figures.iter().find(|f| f["measure"] == "create" && f["target"] == "tensorfs").unwrap();
    let counted = created["counts"]["create"].as_f64().unwrap();
    assert_eq!(counted, 1.0, "one CREATE a file: {created}");

    // The tables and plots of a report that was saved.
    let mut again = bench(room);
    again.arg("--from").arg(&json).arg("--docs").arg(&docs);
    assert!(again.output().unwrap().status.success());
    let tables = std::fs::read_to_string(docs.join("RESULTS.md")).unwrap();
    assert!(tables.contains("| **write, 1 MiB calls** | native | tensorfs |"), "{tables}");
    let plot = std::fs::read_to_string(docs.join("data.svg")).unwrap();
    assert!(plot.starts_with("<svg ") && plot.contains("write, 1 MiB calls: tmpfs"), "{plot}");
}

/// Interrupts a run once its first server is mounted, so many times; what it printed.
fn interrupted(room: &Path, times: usize) -> String {
    let mut command = bench(room);
    command.args(["--backings", "tmpfs", "--only", "stat,create", "--targets", "native,tensorfs,server,mergerfs"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    while !mounts(room).iter().any(|line| line.contains("fuse")) {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it mounted anything");
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..times {
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        // Signals that arrive together are one.
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    String::from_utf8(output.stdout).unwrap()
}

/// Ctrl-C ends a run with a report of what it has, and leaves no mount, no server and no file.
#[test]
fn an_interrupted_run_leaves_nothing() {
    if cannot("bench: interrupted") {
        return;
    }
    let room = scratch();
    let text = interrupted(room.path(), 1);
    assert!(text.contains("goals reached"), "{text}");
    assert_nothing_left(room.path());
}

/// Ctrl-C a second time ends it wherever it is, and leaves nothing either.
#[test]
fn a_run_that_is_interrupted_twice_leaves_nothing() {
    if cannot("bench: interrupted twice") {
        return;
    }
    let room = scratch();
    interrupted(room.path(), 2);
    assert_nothing_left(room.path());
}

/// What a run that was killed left behind, the next one in the same place removes.
#[test]
fn what_a_killed_run_left_is_swept_by_the_next() {
    if cannot("bench: killed") {
        return;
    }
    let room = scratch();
    let mut command = bench(room.path());
    command.args(["--backings", "tmpfs", "--only", "create", "--targets", "native,tensorfs"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while !mounts(room.path()).iter().any(|line| line.contains("fuse")) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(mounts(room.path()), Vec::<String>::new(), "nothing to sweep");
    let mut next = bench(room.path());
    next.args(["--backings", "tmpfs", "--only", "sparse", "--targets", "native"]);
    assert!(next.output().unwrap().status.success());
    assert_nothing_left(room.path());
}

//! The benchmark itself: that all of it works, and that it leaves nothing behind. Its numbers are nobody's business here.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

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
    for measure in ["write-1m", "read", "mmap", "stat", "create", "append", "small-files", "writers-64"] {
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

/// Ctrl-C in the middle of a measure leaves no mount, no server and no file.
#[test]
fn an_interrupted_run_leaves_nothing() {
    if cannot("bench: interrupted") {
        return;
    }
    let room = scratch();
    let room = room.path();
    let mut command = bench(room);
    // Rounds without end, so that it is interrupted before it is done.
    command.args(["--backings", "tmpfs", "--only", "create,append", "--targets", "native,tensorfs,server"]);
    let mut child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while !mounts(room).iter().any(|line| line.contains("fuse")) {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it mounted anything");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_nothing_left(room);
}

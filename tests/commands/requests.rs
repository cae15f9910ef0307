//! `.tensorfs/trace`, `tensorfs trace` and `tensorfs top`: who asks for what, and why it takes long.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tensorfs_tests::{Call, HostCalls, Mount, Rule, Setup, on_mounts, run_ok, wait_until};

on_mounts!(
    a_request_is_told_with_who_asked_what_for_and_what_came_of_it,
    a_slow_request_is_told_with_the_reason,
    work_is_told_by_process_and_by_directory,
    so_many_may_look_and_no_more,
    paths_that_are_no_text_are_told_as_they_are,
);

/// What was told since the last time.
fn told(trace: &mut File) -> Vec<Value> {
    let mut text = String::new();
    trace.read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn find<'a>(told: &'a [Value], kind: &str, path: &str) -> &'a Value {
    let found = told.iter().find(|request| request["kind"] == kind && request["path"] == path);
    found.unwrap_or_else(|| panic!("no {kind} of {path} in {told:#?}"))
}

fn has_passthrough(mount: &Mount) -> bool {
    mount.info()["passthrough"].as_bool().unwrap()
}

/// A command that looks at a mount, and does so already.
struct Looking {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Looking {
    fn at(mount: &Mount, arguments: &[&str]) -> Self {
        let mut child = mount.program().args(arguments).arg(mount.path()).stdout(Stdio::piped()).spawn().unwrap();
        let open = format!("/proc/{}/fd", child.id());
        wait_until("it looks", || {
            fs::read_dir(&open)
                .unwrap()
                .flatten()
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.ends_with("trace")))
        });
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

fn a_request_is_told_with_who_asked_what_for_and_what_came_of_it(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::write(mount.at("before"), "x").unwrap();
    let mut trace = File::open(mount.at(".tensorfs/trace")).unwrap();
    assert_eq!(told(&mut trace).iter().filter(|request| request["path"] == "/before").count(), 0, "from now on");
    let mut shell = Command::new("sh");
    shell.args(["-c", "mkdir d; echo hello > d/f; echo $$; cat missing 2> /dev/null; true"]).current_dir(mount.path());
    let shell: u64 = run_ok(&mut shell).trim().parse().unwrap();
    let told = told(&mut trace);
    let created = find(&told, "create", "/d/f");
    assert_eq!((&created["pid"], &created["process"], &created["uid"]), (&shell.into(), &"sh".into(), &0.into()));
    assert_eq!(created["passthrough"], has_passthrough(&mount));
    assert!(created["error"].is_null() && created["seconds"].as_f64().unwrap() > 0.0, "{created}");
    assert_eq!(
        (&find(&told, "mkdir", "/d")["process"], find(&told, "lookup", "/missing")["error"].as_str()),
        (&"mkdir".into(), Some("ENOENT"))
    );
    if !has_passthrough(&mount) {
        assert_eq!(find(&told, "write", "/d/f")["bytes"], 6);
    }
    // Also of one whose name nobody has used since.
    let kept = File::options().write(true).open(mount.at("d/f")).unwrap();
    let mut other = File::open(mount.at(".tensorfs/trace")).unwrap();
    fs::rename(mount.at("d"), mount.at("e")).unwrap();
    kept.sync_all().unwrap();
    find(&self::told(&mut other), "fsync", "/e/f");
    assert!(told.iter().all(|request| request["path"] != "/.tensorfs/trace"), "looking is not told of");
}

fn a_slow_request_is_told_with_the_reason(setup: Setup) {
    let calls = HostCalls::new();
    let mount = setup.host_calls(&calls).mount();
    if mount.is_plain() {
        return;
    }
    let mut file = File::create(mount.at("f")).unwrap();
    let mut looking = Looking::at(&mount, &["trace", "--slow", "0.3", "-n", "1"]);
    let slow = calls.add(Rule::of_any([Call::Fdatasync, Call::Fsync]).delay(Duration::from_millis(500)));
    // A commit of the background may have done one's work.
    for _ in 0..5 {
        file.write_all(&[7; 50_000]).unwrap();
        file.sync_all().unwrap();
    }
    drop(slow);
    let line = looking.line();
    assert!(line.contains(" fsync ") && line.contains(&format!("[{}]", std::process::id())), "{line}");
    assert!(line.contains("  waited ") && line.contains(" for ") && line.contains(" /f "), "{line}");
    assert_eq!(looking.line(), "", "one is all that was asked for");
}

fn work_is_told_by_process_and_by_directory(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    fs::create_dir_all(mount.at("a/b")).unwrap();
    let mut looking = Looking::at(&mount, &["top", "--json", "--interval", "0.5"]);
    // Where another directory is has just been looked for.
    fs::read_dir(mount.at("a")).unwrap().for_each(drop);
    while serde_json::from_str::<Value>(&looking.line()).unwrap()["requests"] == 0 {}
    for n in 0..30 {
        fs::write(mount.at(format!("a/b/{n}")), "x").unwrap();
    }
    let (mut here, mut by_us, mut opened) = (0, 0, 0);
    while by_us < 30 || here < 30 {
        let told: Value = serde_json::from_str(&looking.line()).unwrap();
        let rows = |name: &str| told[name].as_array().unwrap().clone();
        for row in rows("directories").iter().filter(|row| row["name"] == "/a/b") {
            here += row["requests"].as_u64().unwrap();
        }
        for row in rows("processes").iter().filter(|row| row["pid"] == std::process::id()) {
            by_us += row["requests"].as_u64().unwrap();
            let by = if has_passthrough(&mount) { "opened_passthrough" } else { "opened_server" };
            opened += row[by].as_u64().unwrap();
        }
    }
    assert!(opened > 0);
    // People are told of the same directory.
    let mut looking = Looking::at(&mount, &["top", "--interval", "0.5"]);
    wait_until("the directory is named", || {
        fs::write(mount.at("a/b/more"), "x").unwrap();
        looking.line().contains("/a/b")
    });
}

/// Of two files and directories that are the same as text each is told. Proves N1.
fn paths_that_are_no_text_are_told_as_they_are(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let name = |byte: u8| OsString::from_vec(vec![b'm', byte, b'\n', b'x']);
    let is = |line: &Value, key: &str, path: &Path| {
        let bytes = serde_json::to_value(path.as_os_str().as_bytes()).unwrap();
        assert_eq!(line[key], path.to_string_lossy().into_owned());
        line[format!("{key}_bytes")] == bytes
    };
    let mut trace = File::open(mount.at(".tensorfs/trace")).unwrap();
    let mut lines = Looking::at(&mount, &["trace", "--json"]);
    let mut shown = Looking::at(&mount, &["trace"]);
    let mut top = Looking::at(&mount, &["top", "--json", "--interval", "0.5"]);
    for byte in [0xfe, 0xff] {
        fs::create_dir(mount.path().join(name(byte))).unwrap();
        fs::write(mount.path().join(name(byte)).join(name(byte)), "x").unwrap();
    }
    fs::write(mount.at("text"), "x").unwrap();
    let told = told(&mut trace);
    let of = |all: &[Value], kind: &str| {
        let made = all.iter().filter(|request| request["kind"] == kind);
        made.filter(|request| request["path"] != "/text").cloned().collect::<Vec<_>>()
    };
    let paths = |byte: u8| Path::new("/").join(name(byte)).join(name(byte));
    let (files, dirs) = (of(&told, "create"), of(&told, "mkdir"));
    assert_eq!((files.len(), dirs.len()), (2, 2), "{told:#?}");
    for (n, byte) in [0xfe, 0xff].into_iter().enumerate() {
        assert!(is(&files[n], "path", &paths(byte)), "{files:#?}");
        assert!(is(&dirs[n], "path", paths(byte).parent().unwrap()), "{dirs:#?}");
    }
    // What is text has no bytes beside it.
    assert!(find(&told, "create", "/text").get("path_bytes").is_none());
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let line: Value = serde_json::from_str(&lines.line()).unwrap();
        seen.extend(of(&[line], "create"));
    }
    assert_eq!(seen, files, "the program passes it on");
    // A name with a line's end in it is no line.
    while {
        let line = shown.line();
        assert!(line.is_empty() || line.contains("us ") || line.contains("ms ") || line.contains("s "), "{line:?}");
        !line.contains("/m\u{fffd}\\nx/m\u{fffd}\\nx  ")
    } {}
    let mut left = vec![0xfe, 0xff];
    while !left.is_empty() {
        let told: Value = serde_json::from_str(&top.line()).unwrap();
        for row in told["directories"].as_array().unwrap().iter().filter(|row| row["name"] == "/m\u{fffd}\nx") {
            left.retain(|byte| !is(row, "name", paths(*byte).parent().unwrap()));
        }
    }
    let used = fs::read_to_string(mount.at(".tensorfs/accesses")).unwrap();
    let used: Vec<Value> = used.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for byte in [0xfe, 0xff] {
        let same = used.iter().filter(|line| line["path"] == paths(byte).to_string_lossy().into_owned());
        assert_eq!(same.filter(|line| is(line, "path", &paths(byte))).count(), 1, "{used:#?}");
    }
    assert!(used.iter().any(|line| line["path"] == "/text" && line.get("path_bytes").is_none()), "{used:#?}");
}

/// Proves B14.
fn so_many_may_look_and_no_more(setup: Setup) {
    let mount = setup.mount();
    if mount.is_plain() {
        return;
    }
    let path = mount.at(".tensorfs/trace");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o400);
    let mut all: Vec<File> = (0..8).map(|_| File::open(&path).unwrap()).collect();
    assert_eq!(File::open(&path).unwrap_err().raw_os_error(), Some(libc::ENFILE));
    let output = mount.program().args(["trace", "-n", "1"]).arg(mount.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("eight others look already"));
    all.pop();
    wait_until("one is gone", || File::open(&path).is_ok());
}

//! The program from outside: what it says, and when it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::unistd::geteuid;
use serde_json::Value;
use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::pool::Carrying;
use tensorfs_remote::place::{Access, Place};
use tensorfs_remote::repository::Repository;

use crate::pools::{TestPool, noise};

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
    command.args(arguments);
    command
}

pub fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

#[track_caller]
pub fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A pool whose remote is a directory beside it.
struct Remote {
    pool: TestPool,
    own: PathBuf,
    at: PathBuf,
    url: String,
}

impl Remote {
    fn new() -> Self {
        let pool = TestPool::new();
        let at = pool.dir.path().join("remote");
        let url = format!("file://{}", at.display());
        let own = pool.path();
        ok(&["set", text(&own), &url]);
        Self { pool, own, at, url }
    }

    fn file(&mut self, name: &str) {
        self.pool.edit(|edit| edit.file(ROOT, name.as_bytes(), &[&noise(name.len() as u64, 70_000)], true));
    }

    fn remove(&mut self, name: &str) {
        let removal = Record::Removal { dir: ROOT, name: name.as_bytes().into() };
        self.pool.edit(|edit| edit.store(Transaction::new(0).with(removal)));
    }

    fn carry(&self) {
        ok(&["carry", text(&self.own)]);
    }

    /// What `status` says, and whether it finds all well.
    fn status(&self, more: &[&str]) -> (Value, bool) {
        let output = run(&[&["status", text(&self.own), "--json"], more].concat());
        (serde_json::from_slice(&output.stdout).unwrap(), output.status.success())
    }

    fn repository(&self) -> Repository {
        Repository::new(Place::open(&self.url, &Access::default()).unwrap())
    }
}

/// A program that goes on until it is ended here, also where a test fails.
pub struct Watching(pub Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Watching {
    fn start(remote: &Remote, more: &[&str]) -> Self {
        let mut watching = command(&[&["carry", text(&remote.own), "--watch", "--interval", "1"], more].concat());
        Self(watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// The next line that it says is wrong.
    fn complains(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    /// Waits until it has done something.
    fn until(&mut self, done: impl Fn() -> bool) {
        while !done() {
            assert!(self.0.try_wait().unwrap().is_none(), "it has ended");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// As two pools with URLs that differ in nothing else would have one place.
#[test]
fn a_url_with_more_than_a_place_is_refused() {
    let pool = TestPool::new();
    let own = pool.path();
    let below = |name: &str| format!("file://{}/{name}", pool.dir.path().display());
    for url in [below("z#1"), below("z?x=1"), "s3://bucket/a?b".into(), "az://box/a?sig=secret".into()] {
        let output = run(&["set", text(&own), &url]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("names no place"), "{url}: {said}");
        assert!(!said.contains("secret") && !pool.dir.path().join("z").exists(), "{said}");
    }
    ok(&["set", text(&own), &below("z%231")]);
    assert!(pool.dir.path().join("z#1").is_dir());
}

/// What fails before the first pass is what a carrier that is started every hour fails with for a week.
///
/// Proves E14.
#[test]
fn a_store_that_is_not_there_shows_in_the_status() {
    let mut remote = Remote::new();
    remote.carry();
    assert!(remote.status(&[]).1);
    fs::rename(&remote.at, remote.at.with_file_name("elsewhere")).unwrap();
    remote.file("new");
    assert_eq!(run(&["carry", text(&remote.own)]).status.code(), Some(1));
    let (said, well) = remote.status(&[]);
    assert!(said["error"].as_str().is_some_and(|error| error.contains("not there")) && !well, "{said}");
    fs::rename(remote.at.with_file_name("elsewhere"), &remote.at).unwrap();
    remote.carry();
    let (said, well) = remote.status(&[]);
    assert!(said["error"].is_null() && well, "{said}");
}

/// Proves E14.
#[test]
fn another_pool_on_the_remote_shows_in_the_status() {
    let mut remote = Remote::new();
    remote.carry();
    let mut other = TestPool::new();
    other.edit(|edit| edit.file(ROOT, b"other", &[&noise(1, 100)], true));
    ok(&["set", text(&other.path()), &remote.url, "--take-over"]);
    ok(&["carry", text(&other.path())]);
    remote.file("new");
    assert_eq!(run(&["carry", text(&remote.own)]).status.code(), Some(1));
    let (said, well) = remote.status(&[]);
    assert!(said["error"].as_str().is_some_and(|error| error.contains("put by another")) && !well, "{said}");
}

/// Proves E14.
#[test]
fn the_status_says_who_is_at_work_and_what_is_too_old() {
    let remote = Remote::new();
    assert!(!remote.status(&["--max-age", "1000000"]).1, "nothing was ever carried");
    remote.carry();
    let (said, well) = remote.status(&["--max-age", "1000000"]);
    assert!(well && said["carrier"] == false, "{said}");
    let held = Carrying::take(&remote.own).unwrap().unwrap();
    assert_eq!(remote.status(&[]).0["carrier"], true);
    drop(held);
    std::thread::sleep(Duration::from_millis(2100));
    assert!(!remote.status(&["--max-age", "1"]).1);
}

/// What a pool has put somewhere is its own, also when it did without a remote meanwhile.
///
/// Proves E5.
#[test]
fn a_pool_comes_back_to_its_own_remote() {
    let mut remote = Remote::new();
    remote.file("file");
    remote.carry();
    ok(&["off", text(&remote.own)]);
    remote.file("another");
    ok(&["set", text(&remote.own), &remote.url]);
    remote.carry();
    assert_eq!(remote.status(&[]).0["batch"], 2);
    ok(&["check", &remote.url, "--data"]);
}

/// Proves E14.
#[test]
fn who_watches_waits_for_its_store_and_its_turn() {
    let mut remote = Remote::new();
    remote.file("file");
    let elsewhere = remote.at.with_file_name("elsewhere");
    fs::rename(&remote.at, &elsewhere).unwrap();
    let mut watching = Watching::start(&remote, &[]);
    let said = watching.complains();
    assert!(said.contains("not there") && said.contains("trying again"), "{said}");
    fs::rename(&elsewhere, &remote.at).unwrap();
    watching.until(|| remote.status(&[]).0["batch"] == 1);
    drop(watching);
    let held = Carrying::take(&remote.own).unwrap().unwrap();
    let mut watching = Watching::start(&remote, &[]);
    let said = watching.complains();
    assert!(said.contains("another carrier") && said.contains("trying again"), "{said}");
    drop(held);
    remote.file("another");
    watching.until(|| remote.status(&[]).0["batch"] == 2);
    // What waiting does not mend ends it.
    drop(watching);
    ok(&["off", text(&remote.own)]);
    assert_eq!(run(&["carry", text(&remote.own), "--watch"]).status.code(), Some(1));
}

/// Proves E6.
#[test]
fn who_watches_removes_what_the_retention_does_not_need() {
    let mut remote = Remote::new();
    for round in 0..2 {
        remote.file(&format!("file-{round}"));
        remote.carry();
    }
    let repository = remote.repository();
    repository.put_base(&mut repository.newest().unwrap()).unwrap();
    let first = remote.at.join("log/000000000001");
    assert!(first.exists());
    // Without being asked it removes nothing.
    remote.file("another");
    let mut watching = Watching::start(&remote, &[]);
    watching.until(|| remote.status(&[]).0["batch"] == 3);
    drop(watching);
    assert!(first.exists());
    let mut watching = Watching::start(&remote, &["--keep", "0"]);
    watching.until(|| !first.exists());
    // And goes on.
    remote.file("one more");
    watching.until(|| remote.status(&[]).0["batch"] == 4);
    drop(watching);
    ok(&["check", &remote.url, "--data"]);
}

/// Of an object that was being put when its carrier was killed, a directory has some bytes.
///
/// Proves E6.
#[test]
fn what_killed_carriers_have_left_in_a_directory_is_removed() {
    let mut remote = Remote::new();
    remote.file("file");
    remote.carry();
    let name = "0".repeat(64);
    let dir = remote.at.join("objects/00");
    fs::create_dir_all(&dir).unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(2 * 60 * 60);
    for (name, time) in [
        (format!("{name}#1"), Some(old)),
        (format!("{name}#2"), None),
        ("mine#1".into(), Some(old)),
        (format!("{name}#x"), Some(old)),
    ] {
        fs::write(dir.join(&name), "some").unwrap();
        if let Some(time) = time {
            fs::File::options().write(true).open(dir.join(&name)).unwrap().set_modified(time).unwrap();
        }
    }
    assert!(ok(&["gc", text(&remote.own), "--dry-run"]).contains("1 objects"));
    assert!(ok(&["gc", text(&remote.own)]).contains("1 objects"));
    let left = ["#1", "#2", "#x"].map(|end| dir.join(format!("{name}{end}")).exists());
    assert_eq!((left, dir.join("mine#1").exists()), ([false, true, true], true));
}

/// What came of a command says its exit status, whoever reads what it prints.
///
/// Proves E15.
#[test]
fn what_cannot_be_printed_does_not_make_a_success() {
    let mut remote = Remote::new();
    remote.file("a");
    ok(&["carry", text(&remote.own)]);
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["list", &remote.url]).stdout(full()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("No space left on device"), "{said}");
    fs::remove_dir_all(remote.at.join("objects")).unwrap();
    let status = |to: Stdio| command(&["check", &remote.url]).stdout(to).stderr(Stdio::null()).status().unwrap();
    let expected = status(Stdio::null());
    assert!(!expected.success());
    assert!(!status(full().into()).success());
    // Nobody reads it.
    let (read, write) = nix::unistd::pipe().unwrap();
    drop(read);
    assert_eq!(status(write.into()), expected);
}

#[test]
fn batches_are_listed_with_their_times() {
    let mut remote = Remote::new();
    for round in 0..3 {
        remote.file(&format!("file-{round}"));
        remote.carry();
    }
    remote.remove("file-0");
    remote.carry();
    let listed = ok(&["list", &remote.url, "--batches", "--json"]);
    let batches: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = batches.iter().map(|batch| batch["batch"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let files: Vec<u64> = batches.iter().map(|batch| batch["files"].as_u64().unwrap()).collect();
    assert_eq!(files, [1, 2, 3, 2]);
    assert_eq!(batches[3]["bytes"], 140_000);
    assert!(batches.iter().all(|batch| batch["time"].as_i64().unwrap() > 1_600_000_000), "{listed}");
    // Each that is listed can be had, and none but these.
    let repository = remote.repository();
    repository.put_base(&mut repository.newest().unwrap()).unwrap();
    ok(&["gc", text(&remote.own), "--keep", "0"]);
    let listed = ok(&["list", &remote.url, "--batches"]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(listed.trim_start().starts_with("4 "), "{listed}");
    ok(&["list", &remote.url, "--at", "4"]);
}

/// Lines of JSON about how far something has come, and nothing else on standard error: what, and how much of how much.
fn progress(arguments: &[&str]) -> (Vec<(String, u64, u64)>, String) {
    let output = run(&[arguments, &["--progress", "json"]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}");
    let lines = said.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let come = &line["progress"];
        let number = |key: &str| come[key].as_u64().unwrap();
        (come["what"].as_str().unwrap().to_owned(), number("done"), number("total"))
    });
    (lines.collect(), String::from_utf8(output.stdout).unwrap())
}

/// Proves E18.
#[test]
fn whoever_asks_hears_how_far_it_has_come_and_nobody_else_does() {
    let mut remote = Remote::new();
    let own = text(&remote.own).to_owned();
    let [copy, tree, file] = ["copy", "tree", "got"].map(|name| remote.at.with_file_name(name));
    for name in ["a", "bb", "ccc"] {
        remote.file(name);
    }
    let (told, out) = progress(&["carry", &own, "--json"]);
    assert_eq!(told.last(), Some(&("read".into(), 210_000, 0)), "{told:?}");
    assert_eq!(serde_json::from_str::<Value>(out.trim()).unwrap()["read_bytes"], 210_000);
    remote.remove("ccc");
    remote.carry();
    let url = remote.url.clone();
    for (arguments, what, total) in [
        (&["check", &*url, "--data"][..], "checking", Some(3)),
        (&["check", &url], "checking", Some(2)),
        (&["get", &url, "a", "--to", text(&file)], "fetched", Some(70_000)),
        (&["restore", &url, text(&copy), "--json"], "restored", Some(140_000)),
        (&["restore", &url, text(&tree), "--later"], "tree", Some(140_000)),
        (&["gc", &own, "--keep-last", "1", "--json"], "removing", None),
    ] {
        let (told, _) = progress(arguments);
        assert!(told.iter().all(|(said, ..)| said == what) && !told.is_empty(), "{arguments:?}: {told:?}");
        assert!(told.is_sorted_by_key(|(_, done, _)| *done), "{told:?}");
        let (_, done, all) = told.last().unwrap();
        assert!(done == all && total.is_none_or(|total| total == *all), "{arguments:?}: {told:?}");
    }
    // Of what is read to list it nobody knows how much there is.
    for more in [&[][..], &["--batches"]] {
        let (told, _) = progress(&[&["list", &*url], more].concat());
        let is_read = |told: &(String, u64, u64)| told.0 == "read" && told.1 > 100 && told.2 == 0;
        assert!(told.last().is_some_and(is_read), "{told:?}");
    }
    // Nobody carries but whoever waits, and it has all of a file to go.
    remote.file("dddd");
    let (told, _) = progress(&["wait", &own, "--timeout", "600"]);
    assert!(told.iter().all(|(said, ..)| said == "carried"), "{told:?}");
    assert_eq!(told.last(), Some(&("carried".into(), 70_000, 70_000)), "{told:?}");
    // Elsewhere than on a terminal nothing is said unless somebody asks for it.
    for more in [&[][..], &["--progress", "none"], &["--progress", "auto"]] {
        let output = run(&[&["check", &*url, "--data"][..], more].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Who reads no progress, or cannot, gets what was asked for all the same.
///
/// Proves E18.
#[test]
fn progress_that_nobody_can_read_stops_nothing() {
    let mut remote = Remote::new();
    remote.file("a");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let (read, write) = nix::unistd::pipe().unwrap();
    drop(read);
    for to in [Stdio::from(full), write.into()] {
        let status = command(&["carry", text(&remote.own), "--progress", "json"]).stderr(to).status().unwrap();
        assert!(status.success());
        remote.file("bb");
    }
}

/// Proves E13.
#[test]
fn nothing_is_restored_over_a_mount_point() {
    if !geteuid().is_root() {
        return println!("SKIPPED: needs root, to mount something");
    }
    let mut remote = Remote::new();
    remote.file("file");
    remote.carry();
    let scratch = remote.pool.dir.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    for kind in [&["-t", "tmpfs", "none"][..], &["--bind", text(&scratch)]] {
        let to = remote.pool.dir.path().join("disk");
        fs::create_dir(&to).unwrap();
        let mounted = Command::new("mount").args(kind).arg(&to).status().unwrap();
        if !mounted.success() {
            return println!("SKIPPED: nothing can be mounted here");
        }
        let refused = run(&["restore", &remote.url, text(&to)]);
        let staged = to.with_file_name("disk.restoring").exists();
        let inside = run(&["restore", &remote.url, text(&to.join("pool"))]);
        assert!(Command::new("umount").arg(&to).status().unwrap().success());
        fs::remove_dir(&to).unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("a mount point") && said.lines().count() == 1, "{said}");
        assert!(!staged, "something was restored beside it");
        assert!(inside.status.success(), "{}", String::from_utf8_lossy(&inside.stderr));
    }
}

/// In a directory that one may write to and not read, the file has its name, and nothing is told that failed.
///
/// Proves E18.
#[test]
fn a_file_is_got_into_a_directory_that_cannot_be_read() {
    let mut remote = Remote::new();
    remote.file("file");
    remote.carry();
    let to = remote.pool.dir.path().join("to");
    fs::create_dir(&to).unwrap();
    let program = remote.pool.dir.path().join("carrier");
    fs::copy(env!("CARGO_BIN_EXE_tensorfs-carrier"), &program).unwrap();
    let mut get = Command::new(&program);
    get.args(["get", &remote.url, "file", "--to", text(&to.join("file"))]);
    if geteuid().is_root() {
        // Root may read everything.
        fs::set_permissions(remote.pool.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(&to, Some(12345), Some(12345)).unwrap();
        get.uid(12345).gid(12345);
    }
    fs::set_permissions(&to, fs::Permissions::from_mode(0o300)).unwrap();
    let output = get.output().unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(to.join("file")).unwrap() == noise(4, 70_000));
}

/// Proves E18.
#[test]
fn a_file_is_got_without_proc() {
    if !geteuid().is_root() {
        return println!("SKIPPED: needs root, to be without /proc");
    }
    let mut remote = Remote::new();
    remote.file("file");
    remote.carry();
    let to = remote.pool.dir.path().join("to");
    let script = "mount -t tmpfs none /proc || exit 77; exec \"$0\" \"$@\"";
    let mut get = Command::new("unshare");
    get.args(["--mount", "--propagation", "private", "sh", "-c", script, env!("CARGO_BIN_EXE_tensorfs-carrier")]);
    let output = get.args(["get", &remote.url, "file", "--to", text(&to)]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || said.contains("unshare") {
        return println!("SKIPPED: nothing is mounted here: {said}");
    }
    assert!(output.status.success(), "{said}");
    assert!(fs::read(&to).unwrap() == noise(4, 70_000));
}

/// What is not said again is none any more, which nobody is to find out by what is carried.
///
/// Proves E16.
#[test]
fn set_tells_what_was_said_before_and_is_no_more() {
    let remote = Remote::new();
    let set = |more: &[&str]| {
        let output = run(&[&["set", text(&remote.own), &remote.url], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(set(&["--exclude", "*.tmp", "--exclude", "secret", "--bandwidth", "5"]), "");
    assert_eq!(set(&["--exclude", "secret", "--exclude", "*.tmp", "--bandwidth", "7"]), "");
    let said = set(&["--exclude", "*.tmp"]);
    assert!(said.contains("--exclude \"secret\"") && said.contains("--bandwidth 7"), "{said}");
    assert!(!said.contains("*.tmp") && said.lines().count() == 1, "{said}");
    assert_eq!(set(&["--exclude", "*.tmp"]), "");
}

/// Proves E15, E24.
#[test]
fn an_older_tree_is_named_by_its_batch_or_by_a_time() {
    let mut remote = Remote::new();
    let mut times: Vec<i64> = Vec::new();
    for name in ["a", "b", "c"] {
        remote.file(name);
        // A batch is of a second of its own.
        while times.last().is_some_and(|last| chrono::Utc::now().timestamp() <= *last) {
            std::thread::sleep(Duration::from_millis(50));
        }
        remote.carry();
        times.push(remote.repository().newest().unwrap().head.unwrap().time);
    }
    let utc = |time: i64| chrono::DateTime::from_timestamp(time, 0).unwrap().format("%Y-%m-%dT%H:%M:%SZ").to_string();
    let tokyo = |time: i64| utc(time + 9 * 3600).replace('Z', "").replace('T', " ");
    let newest_of = |listed: String| listed.lines().last().unwrap().rsplit('/').next().unwrap().to_owned();
    let listed = |at: &str| ok(&["list", &remote.url, "--at", at]);
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        let at = utc(times[n]);
        assert_eq!(newest_of(listed(&at)), name, "{at}");
        assert_eq!(newest_of(listed(&(n + 1).to_string())), name);
        assert_eq!(newest_of(ok(&["list", &format!("{}@{at}", remote.url)])), name);
        let output =
            command(&["list", &remote.url, "--at", &tokyo(times[n])]).env("TZ", "Asia/Tokyo").output().unwrap();
        assert_eq!(newest_of(String::from_utf8(output.stdout).unwrap()), name, "local");
        let pool = remote.pool.dir.path().join(format!("made-{n}"));
        let told = ok(&["restore", &format!("{}@{at}", remote.url), text(&pool), "--json"]);
        assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["batch"], n as u64 + 1);
    }
    assert_eq!(newest_of(listed("2999-01-01")), "c");
    // As `list --batches` has it.
    let batches = ok(&["list", &remote.url, "--batches"]);
    let second = batches.lines().nth(1).unwrap().split("  ").map(str::trim).find(|word| word.ends_with("UTC")).unwrap();
    assert_eq!(newest_of(listed(second)), "b", "{batches}");
    let one_line = |arguments: &[&str], words: &[&str]| {
        let output = run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    one_line(&["list", &remote.url, "--at", &utc(times[0] - 1)], &["nothing there is as old", "oldest", "batch 1"]);
    one_line(&["list", &format!("{}@9", remote.url)], &["there is no batch 9"]);
    one_line(&["list", &format!("{}@2", remote.url), "--at", "1"], &["--at"]);
    one_line(&["check", &format!("{}@2", remote.url)], &["newest"]);
    one_line(&["list", &format!("{}#..", remote.url)], &["not the name"]);
    assert_eq!(run(&["list", &remote.url, "--at", "yesterday"]).status.code(), Some(2));
    // A place that has such a name is that place, and one below another is found by its pool's name.
    let beside = remote.url.rsplit_once('/').unwrap().0.to_owned();
    let named = format!("{}@2", remote.url);
    fs::rename(&remote.at, remote.at.with_file_name("remote@2")).unwrap();
    assert_eq!(newest_of(ok(&["list", &named])), "c");
    assert_eq!(newest_of(ok(&["list", &format!("{named}@2")])), "b");
    assert_eq!(newest_of(ok(&["list", &format!("{beside}#remote@2")])), "c");
    let to = remote.pool.dir.path().join("b");
    ok(&["get", &format!("{beside}/#remote@2@2"), "/b", "--to", text(&to)]);
    assert_eq!(fs::read(&to).unwrap(), noise(1, 70_000));
}

/// Whoever mounts the places below would see that one alone.
///
/// Proves E29.
#[test]
fn a_place_above_others_is_no_remotes() {
    let remote = Remote::new();
    let other = TestPool::new();
    let above = format!("file://{}", remote.at.parent().unwrap().display());
    let refused = run(&["set", text(&other.path()), &above]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains(&remote.url), "{said}");
    assert!(!remote.at.parent().unwrap().join("log").exists());
    ok(&["set", text(&other.path()), &format!("{above}/beside")]);
    // As often as one likes.
    ok(&["set", text(&remote.own), &remote.url]);
}

/// Proves E1.
#[test]
fn what_a_store_cannot_do_is_refused() {
    let remote = Remote::new();
    let own = remote.pool.path();
    for (url, option, value) in [
        (remote.url.as_str(), "--endpoint", "http://127.0.0.1:9"),
        (&remote.url, "--region", "here"),
        ("gs://bucket/x", "--region", "here"),
        ("az://container/x", "--region", "here"),
    ] {
        let refused = run(&["set", text(&own), url, option, value]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(&format!("{option} is for")), "{url}: {said}");
    }
}

//! A carrier that is locked in, seen from its store, from its files and from where it is told of them.

use std::collections::BTreeMap;
use std::fs::{self, read_dir, read_to_string, rename};
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use serde_json::Value;
use tensorfs_layout::ROOT;

use crate::asked::listen;
use crate::many::Store;
use crate::pools::{TestPool, noise, seen};
use crate::program::{Watching, text};
use crate::skipping::skipped;

const KEYS: &str = "[default]\naws_access_key_id = x\naws_secret_access_key = y\n";

/// A pool and its remote, in a store of which the test hears all that is asked.
struct Carried {
    pool: TestPool,
    endpoint: String,
    /// Nobody is answered.
    is_away: Arc<AtomicBool>,
    /// Whose threads are looked at with each request, and what they said of themselves.
    watched: Arc<Mutex<(Option<u32>, Threads)>>,
}

/// With each request, of each thread: its new privileges, and its filter of calls.
type Threads = Vec<Vec<[String; 2]>>;

/// Of all threads that are there yet.
fn threads(pid: u32) -> Vec<[String; 2]> {
    let value = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    let all = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let said = all.filter_map(|thread| read_to_string(thread.path().join("status")).ok());
    said.map(|said| ["NoNewPrivs", "Seccomp"].map(|name| value(&said, name))).collect()
}

impl Carried {
    fn new() -> Self {
        let (is_away, watched): (Arc<AtomicBool>, Arc<Mutex<(_, Threads)>>) = Default::default();
        let (store, away, looks) = (Store::new(BTreeMap::new(), 0), is_away.clone(), watched.clone());
        let endpoint = listen(move |request, stream| {
            let mut looks = looks.lock().unwrap();
            if let (Some(pid), seen) = &mut *looks {
                seen.push(threads(*pid));
            }
            drop(looks);
            if away.load(Ordering::Relaxed) { None } else { store.answer(request, stream) }
        });
        let carried = Self { pool: TestPool::new(), endpoint, is_away, watched };
        fs::create_dir_all(carried.room().join(".aws")).unwrap();
        fs::write(carried.room().join(".aws/credentials"), KEYS).unwrap();
        carried.ok(&["set", &carried.own(), "s3://bucket/run", "--endpoint", &carried.endpoint, "--region", "x"]);
        carried
    }

    fn room(&self) -> &Path {
        self.pool.dir.path()
    }

    fn own(&self) -> String {
        text(&self.pool.path()).to_owned()
    }

    /// As somebody whose keys are in a file.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
        command.env_clear().env("HOME", self.room()).args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.run(&["status", &self.own(), "--json"]).stdout).unwrap()
    }

    fn has_error(&self, words: &str) -> bool {
        self.status()["error"].as_str().is_some_and(|error| error.contains(words))
    }

    fn file(&mut self, name: &str) {
        self.pool.edit(|edit| edit.file(ROOT, name.as_bytes(), &[&noise(name.len() as u64, 70_000)], true));
    }

    /// A carrier that goes on and on, at which is looked with each request.
    fn watch(&self) -> Watching {
        let mut command = self.command(&["carry", &self.own(), "--watch", "--interval", "1", "--patience", "0"]);
        let mut watched = self.watched.lock().unwrap();
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        *watched = (Some(child.id()), Vec::new());
        Watching(child)
    }

    #[track_caller]
    fn restores(&self, more: &[&str]) {
        let copy = tempfile::tempdir().unwrap();
        let copy = copy.path().join("copy");
        self.ok(&[&["restore"][..], more, &[text(&copy)]].concat());
        assert!(seen(&copy) == seen(&self.pool.path()));
    }
}

/// What it has said, once it has ended by itself.
#[track_caller]
fn ended(mut watching: Watching) -> (bool, String) {
    let process = &mut watching.0;
    until("it ends", || process.try_wait().unwrap().is_some());
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (process.wait().unwrap().success(), said)
}

/// The limit ends a test that has failed, and no other.
#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not after a minute");
}

/// A carrier says what it could not give up, if it is told to.
fn has_landlock(carried: &Carried, test: &str) -> bool {
    let output = carried.command(&["carry", &carried.own()]).env("RUST_LOG", "tensorfs_remote=debug").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let is_there = !said.contains("could not give up all rights");
    if !is_there {
        skipped(test, &said);
    }
    is_there
}

/// The first request comes from one who is, and so do all others, whichever of its threads are there.
///
/// Proves E32.
#[test]
fn whoever_carries_is_locked_in_before_it_speaks_with_its_store() {
    let mut carried = Carried::new();
    carried.file("file");
    let _watching = carried.watch();
    until("a batch", || carried.status()["batch"] == 1);
    let (_, asked) = std::mem::take(&mut *carried.watched.lock().unwrap());
    assert!(asked.len() > 4 && asked.iter().all(|threads| threads.len() > 1), "{asked:?}");
    let is_locked_in = |thread: &[String; 2]| thread == &["1".to_owned(), "2".to_owned()];
    assert!(asked.iter().flatten().all(is_locked_in), "{asked:?}");
}

/// Led elsewhere by a link where it reads, a carrier that is at work reads nothing there. Who is not locked in does.
///
/// Proves E32.
#[test]
fn whoever_carries_reads_nothing_elsewhere_though_a_link_leads_there() {
    let mut carried = Carried::new();
    if !has_landlock(&carried, "whoever_carries_reads_nothing_elsewhere_though_a_link_leads_there") {
        return;
    }
    carried.file("first");
    let mut watching = carried.watch();
    until("a batch with it", || carried.status()["incomplete_files"] == 0 && carried.status()["batch"] == 2);
    let (elsewhere, file) = (carried.room().join("elsewhere"), carried.room().join(".aws/credentials"));
    let new = carried.room().join(".aws/new");
    fs::write(&elsewhere, KEYS).unwrap();
    symlink(&elsewhere, &new).unwrap();
    rename(&new, &file).unwrap();
    carried.file("second");
    until("it may not read them", || carried.has_error("the keys of profile default: Permission denied"));
    carried.ok(&["check", "s3://bucket/run", "--endpoint", &carried.endpoint, "--region", "x"]);
    assert!(watching.0.try_wait().unwrap().is_none(), "it has ended");
    // It goes on with what is renewed where it may read.
    fs::write(&new, KEYS).unwrap();
    rename(&new, &file).unwrap();
    until("a batch with the other", || carried.status()["batch"] == 3);
    carried.restores(&["s3://bucket/run", "--endpoint", &carried.endpoint, "--region", "x"]);
}

/// While it is carried, a pool gets no other remote. Where its carrier comes to nothing it may, and then that one ends.
///
/// Proves E32.
#[test]
fn a_pool_that_gets_another_remote_is_carried_by_the_next_carrier() {
    let mut carried = Carried::new();
    carried.file("file");
    let (own, other) = (carried.own(), format!("file://{}/other", carried.room().display()));
    let set = || carried.run(&["set", &own, &other]);
    let mut watching = carried.watch();
    until("a batch", || carried.status()["batch"] == 1);
    let refused = set();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("its carrier is at work; end that first"), "{said}");
    assert!(!carried.room().join("other").exists() && watching.0.try_wait().unwrap().is_none());
    assert_eq!(carried.status()["url"], "s3://bucket/run");
    drop(watching);
    // One that cannot begin, between two tries.
    carried.is_away.store(true, Ordering::Relaxed);
    let watching = carried.watch();
    until("it is tried", || carried.status()["error"].is_string());
    until("it is set", || {
        let output = set();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("its carrier is at work"), "{said}");
        output.status.success()
    });
    let (is_well, said) = ended(watching);
    assert!(!is_well && said.contains("it has another remote") && said.contains("start it again"), "{said}");
    carried.ok(&["carry", &own]);
    carried.restores(&[&other]);
}

/// Proves E32.
#[test]
fn whoever_cannot_be_locked_in_carries_all_the_same() {
    let mut carried = Carried::new();
    let no_landlock = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_landlock_create_ruleset, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = no_landlock.unwrap().try_into().unwrap();
    for (level, name) in [(None, "a"), (Some("tensorfs_remote=debug"), "b")] {
        carried.file(name);
        let mut command = carried.command(&["carry", &carried.own()]);
        command.envs(level.map(|level| ("RUST_LOG", level)));
        let program = program.clone();
        // SAFETY: two calls of the kernel, which may be made between fork and exec.
        unsafe { command.pre_exec(move || apply_filter(&program).map_err(|_| io::ErrorKind::Unsupported.into())) };
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("could not give up all rights: Landlock"), level.is_some(), "{said}");
    }
    carried.restores(&["s3://bucket/run", "--endpoint", &carried.endpoint, "--region", "x"]);
}

//! A mount whose second copy is in an S3 store that keeps its objects on disk; and machines one after the other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tensorfs_tests::proxy::Proxy;
use tensorfs_tests::s3::{S3, keys, s3};
use tensorfs_tests::{
    Mount, Mounted, Passthrough, Pattern, Setup, needs_mount, on_mounts, safetensors, skip, tensorfs, wait_until, xattr,
};

on_mounts!(a_mount_from_s3_has_its_files_and_lets_them_leave_and_come_back, each_object_is_asked_for_once);

const SIZE: usize = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn state(path: &Path) -> String {
    String::from_utf8(xattr::get(path, "user.tensorfs.state").unwrap()).unwrap()
}

/// The server, or the test counts as skipped.
fn server(test: &str) -> Option<&'static S3> {
    s3().inspect_err(|why| skip(test, why)).ok()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = tensorfs();
    command.envs(keys()).args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

#[track_caller]
fn ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn status(pool: &Path) -> Value {
    serde_json::from_slice(&run(&["remote", "status", text(pool), "--json"]).stdout).unwrap()
}

/// How many files of a pool are elsewhere.
fn away(pool: &Path) -> u64 {
    let info: Value = serde_json::from_str(&ok(&["info", text(pool), "--json"])).unwrap();
    let tiers = info["tiers"].as_array().unwrap().clone();
    let away = tiers.iter().find(|tier| tier["name"] == "remote" && tier["state"] == "away");
    away.map_or(0, |away| away["files"].as_u64().unwrap())
}

/// A mount whose pool has a place in the store, reached through a proxy.
struct Carried {
    mount: Mount,
    proxy: Arc<Proxy>,
    url: String,
}

impl Carried {
    fn new(server: &S3, setup: Setup) -> Self {
        let (mount, proxy, url) = (setup.mount(), Proxy::start(server.address()), server.new_place());
        ok(&["remote", "set", text(mount.pool()), &url, "--endpoint", &proxy.endpoint()]);
        Self { mount, proxy, url }
    }

    fn file(&self, n: u64) {
        fs::write(self.mount.at(format!("f{n}")), Pattern(n).bytes(0, SIZE)).unwrap();
    }

    fn carry(&self) {
        self.mount.sync();
        ok(&["seal", text(self.mount.path())]);
        ok(&["remote", "carry", text(self.mount.pool())]);
    }
}

/// Ended with the test.
struct Goes(Child);

impl Goes {
    fn start(arguments: &[&str]) -> Self {
        Self(command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Goes {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Proves E20, E21, E22, E25, E27.
fn a_mount_from_s3_has_its_files_and_lets_them_leave_and_come_back(setup: Setup) {
    let Some(server) = server("a_mount_from_s3_has_its_files_and_lets_them_leave_and_come_back") else { return };
    let how = if setup.passthrough() == Passthrough::On { "on" } else { "off" };
    let carried = Carried::new(server, setup);
    (0..5).for_each(|n| carried.file(n));
    carried.carry();
    let base = carried.mount.host();
    let (pool, at, log) = (base.join("pool"), base.join("at"), base.join("log"));
    fs::create_dir(&at).unwrap();
    let more = ["--endpoint", &carried.proxy.endpoint(), "--passthrough", how, "--log", text(&log)];
    ok(&[&["mount", "--from", &carried.url, text(&pool), text(&at)][..], &more].concat());
    let mounted = Mounted::adopt(&at);
    for n in [4, 0, 2] {
        assert!(fs::read(at.join(format!("f{n}"))).unwrap() == Pattern(n).bytes(0, SIZE), "f{n}");
    }
    wait_until("all files", || away(&pool) == 0);
    assert!(fs::read(at.join("f3")).unwrap() == Pattern(3).bytes(0, SIZE));
    drop(mounted);
    // What has left the first mount is in the store alone.
    let left = carried.mount.at("f1");
    ok(&["tier", "move", "--check-data", text(&left), "remote"]);
    assert_eq!((state(&left).as_str(), fs::metadata(&left).unwrap().blocks()), ("away", 0));
    carried.file(9);
    carried.carry();
    assert!(fs::read(&left).unwrap() == Pattern(1).bytes(0, SIZE));
    assert_ne!(state(&left), "away");
    ok(&["remote", "check", &carried.url, "--data", "--endpoint", &carried.proxy.endpoint()]);
}

/// Checkpoints with tensors that do not change, and small files that share a pack: what comes by itself asks for each
/// object once, however many files have it.
///
/// Proves E22.
fn each_object_is_asked_for_once(setup: Setup) {
    let Some(server) = server("each_object_is_asked_for_once") else { return };
    let how = if setup.passthrough() == Passthrough::On { "on" } else { "off" };
    let carried = Carried::new(server, setup);
    let tensors: Vec<Vec<u8>> = (0..4).map(|n| Pattern(n).bytes(0, 2 * SIZE)).collect();
    let checkpoint = |step: u64| {
        let own = Pattern(100 + step).bytes(0, 2 * SIZE);
        let named = ["a", "b", "c", "d"].iter().zip(&tensors).map(|(name, bytes)| (*name, bytes.as_slice()));
        safetensors(&named.chain([("own", own.as_slice())]).collect::<Vec<_>>())
    };
    for step in 0..6 {
        fs::write(carried.mount.at(format!("step-{step}.safetensors")), checkpoint(step)).unwrap();
    }
    for n in 0..50 {
        fs::write(carried.mount.at(format!("small-{n}")), Pattern(1000 + n).bytes(0, 40_000)).unwrap();
    }
    carried.carry();
    let base = carried.mount.host();
    let (pool, at, log) = (base.join("pool"), base.join("at"), base.join("log"));
    fs::create_dir(&at).unwrap();
    drop(carried.proxy.asked());
    let more = ["--endpoint", &carried.proxy.endpoint(), "--passthrough", how, "--log", text(&log)];
    ok(&[&["mount", "--from", &carried.url, text(&pool), text(&at)][..], &more].concat());
    let _mounted = Mounted::adopt(&at);
    wait_until("all files", || away(&pool) == 0);
    let mut asked = BTreeMap::<String, u32>::new();
    for line in carried.proxy.asked() {
        if line.starts_with("GET ") && line.contains("/objects/") {
            *asked.entry(line).or_default() += 1;
        }
    }
    // Ten tensors, and the pack or packs of what is short.
    assert!((11..16).contains(&asked.len()), "{asked:?}");
    assert!(asked.values().all(|times| *times == 1), "{asked:?}");
    for step in 0..6 {
        assert!(fs::read(at.join(format!("step-{step}.safetensors"))).unwrap() == checkpoint(step));
    }
}

/// Whatever becomes of requests meanwhile: once it says so, all of the mount is there.
///
/// Proves E8, E14.
#[test]
fn all_of_a_mount_is_waited_for_over_a_bad_way() {
    needs_mount!();
    let Some(server) = server("all_of_a_mount_is_waited_for_over_a_bad_way") else { return };
    let carried = Carried::new(server, Setup::new("all_of_a_mount_is_waited_for", Passthrough::Off));
    let (pool, endpoint) = (text(carried.mount.pool()).to_owned(), carried.proxy.endpoint());
    let _watching = Goes::start(&["remote", "carry", &pool, "--watch", "--interval", "1", "--patience", "0"]);
    for round in 0..2 {
        carried.proxy.draw(10, round);
        carried.file(round);
        fs::create_dir(carried.mount.at(format!("d{round}"))).unwrap();
        ok(&["seal", text(carried.mount.path())]);
        // Without a path, it is all of the mount that one is in.
        let mut wait = command(&["remote", "wait", "--timeout", "300"]);
        let waited = wait.current_dir(carried.mount.at(format!("d{round}"))).output().unwrap();
        carried.proxy.faults(&[]);
        assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
        for n in 0..=round {
            let got = run(&["remote", "get", &carried.url, &format!("/f{n}"), "--endpoint", &endpoint]);
            assert!(got.status.success() && got.stdout == Pattern(n).bytes(0, SIZE), "f{n} after {round}");
        }
    }
    let elsewhere = command(&["remote", "wait"]).current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&elsewhere.stderr);
    assert!(elsewhere.status.code() == Some(1) && said.contains("on no mount") && said.lines().count() == 1, "{said}");
}

/// Who waits while others carry reads the tree once, and then what has come since.
///
/// Proves E8.
#[test]
fn who_waits_reads_each_batch_once() {
    needs_mount!();
    let Some(server) = server("who_waits_reads_each_batch_once") else { return };
    let carried = Carried::new(server, Setup::new("who_waits_reads_each_batch_once", Passthrough::Off));
    let pool = text(carried.mount.pool()).to_owned();
    let open = File::create(carried.mount.at("open")).unwrap();
    open.write_all_at(b"not all of it yet", 0).unwrap();
    let _watching = Goes::start(&["remote", "carry", &pool, "--watch", "--interval", "1", "--patience", "0"]);
    let batch = || status(carried.mount.pool())["batch"].as_u64().unwrap();
    carried.file(0);
    carried.mount.sync();
    wait_until("the first batch", || batch() > 0);
    carried.proxy.asked();
    let mut waiting = Goes::start(&["remote", "wait", text(&carried.mount.at("open"))]);
    let mut asked = Vec::new();
    let mut reads = |number: u64| {
        asked.extend(carried.proxy.asked());
        let name = format!("/log/{number:012}");
        asked.iter().filter(|asked| asked.starts_with("GET") && asked.contains(&name)).count()
    };
    wait_until("it has read the tree", || reads(1) > 0);
    for n in 1..4 {
        let before = batch();
        carried.file(n);
        carried.mount.sync();
        wait_until("another batch", || batch() > before);
        wait_until("it has read that", || reads(before + 1) > 0);
    }
    assert!(waiting.0.try_wait().unwrap().is_none(), "the file is open yet");
    drop(open);
    let ended = |waiting: &mut Goes| waiting.0.try_wait().unwrap();
    wait_until("it has come", || ended(&mut waiting).is_some());
    assert!(ended(&mut waiting).unwrap().success());
    assert_eq!(reads(1), 1, "the first batch was read again");
}

/// A machine that goes on from another's second copy puts nothing before it has all of it: so a third one that goes on
/// from its second copy finds nothing or all.
///
/// Proves E14, E22.
#[test]
fn a_chain_of_machines_loses_nothing() {
    needs_mount!();
    let mut first = Setup::new("a_chain_of_machines_loses_nothing", Passthrough::Off).mount();
    for n in 0..3 {
        fs::write(first.at(format!("f{n}")), Pattern(n).bytes(0, SIZE)).unwrap();
    }
    first.sync();
    first.tensorfs_ok(["seal", text(first.path())]);
    first.umount();
    let base = first.host();
    let place = |name: &str| format!("file://{}", base.join(name).display());
    ok(&["remote", "set", text(first.pool()), &place("one")]);
    ok(&["remote", "carry", text(first.pool())]);
    let pool = base.join("second");
    ok(&["remote", "restore", "--later", &place("one"), text(&pool)]);
    fs::rename(base.join("one"), base.join("elsewhere")).unwrap();
    let second = Setup::new("a_chain_of_machines_loses_nothing", Passthrough::Off).pool_at(&pool).mount();
    fs::write(second.at("new"), b"of the second").unwrap();
    second.tensorfs_ok(["seal", text(second.path())]);
    ok(&["remote", "set", text(&pool), &place("two")]);
    let refused = run(&["remote", "carry", text(&pool)]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.lines().count() == 1, "{said}");
    assert!(said.contains("3 of its files are in") && said.contains("/one"), "{said}");
    let told = status(&pool);
    assert!(told["error"].as_str().is_some_and(|error| said.contains(error)) && told["batch"] == 0, "{told}");
    let late = run(&["remote", "wait", text(&second.at("new")), "--timeout", "2"]);
    let said = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(late.status.code() == Some(3) && said.contains("3 of its files are in"), "{said}");
    assert!(!base.join("two/log").exists() || fs::read_dir(base.join("two/log")).unwrap().next().is_none());
    // Who waits long enough hears yes when they have come.
    let mut waiting = Goes::start(&["remote", "wait", text(second.path())]);
    fs::rename(base.join("elsewhere"), base.join("one")).unwrap();
    for n in 0..3 {
        wait_until("it comes", || fs::read(second.at(format!("f{n}"))).is_ok());
    }
    wait_until("they are there", || waiting.0.try_wait().unwrap().is_some());
    assert!(waiting.0.wait().unwrap().success());
    // Both machines are gone.
    fs::remove_dir_all(base.join("one")).unwrap();
    let third = base.join("third");
    ok(&["remote", "restore", &place("two"), text(&third)]);
    for n in 0..3 {
        let got = run(&["remote", "get", &place("two"), &format!("/f{n}")]);
        assert!(got.status.success() && got.stdout == Pattern(n).bytes(0, SIZE), "f{n}");
    }
    ok(&["check", "--data", text(&third)]);
    assert!(status(&pool)["error"].is_null());
}

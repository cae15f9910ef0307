//! Over a real S3 server that keeps its objects on disk: all that is done with a remote, who may do it, and what it
//! costs in requests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};

use crate::encrypted::KeyFile;
use crate::pools::{TestPool, noise, seen, varied};
use crate::program::text;
use crate::proxy::{BELOW, Proxy};
use crate::s3::{READER, S3, s3};
use crate::skipping::skipped;

/// The server, or the test counts as skipped.
pub fn server(test: &str) -> Option<&'static S3> {
    let why = match s3() {
        Ok(server) => return Some(server),
        Err(why) => why,
    };
    skipped(test, &why);
    None
}

/// Variables of the environment.
pub type Keys = Vec<(&'static str, &'static str)>;

/// A store, as the tests need to know it.
pub trait Reached {
    /// Where it listens.
    fn address(&self) -> &str;
    /// The path there that it is below; none, or one with a slash before it.
    fn path(&self) -> &str;
    /// Who may do everything.
    fn keys(&self) -> Keys;
    /// A prefix that no other test has.
    fn new_place(&self) -> String;
    /// Whether it compares what has arrived with what was said of it.
    fn looks_at_bytes(&self) -> bool;

    /// As `--endpoint` takes it.
    fn endpoint(&self) -> String {
        format!("http://{}{}", self.address(), self.path())
    }
}

impl Reached for S3 {
    fn address(&self) -> &str {
        self.address()
    }

    fn path(&self) -> &str {
        ""
    }

    fn keys(&self) -> Keys {
        crate::s3::keys().to_vec()
    }

    fn new_place(&self) -> String {
        self.new_place()
    }

    fn looks_at_bytes(&self) -> bool {
        true
    }
}

/// A pool, its place in the store, and how it is reached.
pub struct Over {
    pub pool: TestPool,
    pub own: PathBuf,
    pub url: String,
    pub proxy: Arc<Proxy>,
    path: String,
    keys: Keys,
}

impl Over {
    pub fn of(server: &impl Reached, pool: TestPool) -> Self {
        let (own, url, proxy) = (pool.path(), server.new_place(), Proxy::start(server.address()));
        let over = Self { pool, own, url, proxy, path: server.path().to_owned(), keys: server.keys() };
        over.proxy.spoil_puts(server.looks_at_bytes());
        over.ok(&["set", text(&over.own), &over.url, "--endpoint", &over.endpoint()]);
        over.proxy.asked();
        over
    }

    /// Where the proxy has the store.
    pub fn endpoint(&self) -> String {
        format!("{}{}", self.proxy.endpoint(), self.path)
    }

    pub fn new(server: &impl Reached) -> Self {
        Self::of(server, TestPool::new())
    }

    /// One of the program's commands, as somebody with these keys has it.
    pub fn command<'a>(keys: impl IntoIterator<Item = (&'a str, &'a str)>, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
        command.env_remove("AWS_ENDPOINT_URL").env_remove("AWS_REGION").envs(keys).args(arguments).stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        Self::command(self.keys.iter().copied(), arguments).output().unwrap()
    }

    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What fails says why in one line.
    #[track_caller]
    pub fn why(output: &Output) -> String {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{:?}: {said}", output.status);
        said
    }

    /// One of the commands that take a URL.
    pub fn at<'a>(&'a self, endpoint: &'a str, command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&[command, &*self.url][..], more, &["--endpoint", endpoint]].concat()
    }

    pub fn file(&mut self, name: &str, len: usize) {
        let bytes = noise(name.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte)), len);
        self.pool.edit(|edit| edit.file(ROOT, name.as_bytes(), &[&bytes], true));
    }

    pub fn remove(&mut self, name: &str) {
        let removal = Record::Removal { dir: ROOT, name: name.as_bytes().into() };
        self.pool.edit(|edit| edit.store(Transaction::new(0).with(removal)));
    }

    pub fn carry(&self) -> Value {
        serde_json::from_str(self.ok(&["carry", text(&self.own), "--json"]).trim()).unwrap_or_default()
    }

    pub fn status(&self) -> Value {
        serde_json::from_slice(&self.run(&["status", text(&self.own), "--json"]).stdout).unwrap()
    }

    /// A pool made from what is there has what this one has.
    #[track_caller]
    pub fn restores(&self, endpoint: &str, more: &[&str]) {
        let copy = tempfile::tempdir().unwrap();
        let copy = copy.path().join("copy");
        self.ok(&self.at(endpoint, "restore", &[&[text(&copy)], more].concat()));
        assert!(seen(&copy) == seen(&self.own));
    }

    /// How many requests of each kind there were since this was asked last: puts of objects, batches and bases,
    /// listings, other reads, and removals.
    fn requests(&self) -> Requests {
        let asked = self.proxy.asked();
        let count = |is: &dyn Fn(&str) -> bool| asked.iter().filter(|request| is(request)).count();
        Requests {
            objects: count(&|asked| asked.starts_with("PUT ") && asked.contains("/objects/")),
            batches: count(&|asked| asked.starts_with("PUT ") && (asked.contains("/log/") || asked.contains("/base/"))),
            listings: count(&|asked| asked.contains("list-type=")),
            reads: count(&|asked| !asked.starts_with("P") && !asked.contains("list-type=")),
            removals: count(&|asked| asked.starts_with("POST ")),
            all: asked.len(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Requests {
    objects: usize,
    batches: usize,
    listings: usize,
    reads: usize,
    removals: usize,
    all: usize,
}

/// The prefix and the names in it are as odd as they may be.
///
/// Proves E1, E2, E3, E4, E6, E10, E15, E24.
#[test]
fn all_that_is_done_with_a_remote_is_done_over_s3() {
    let Some(server) = server("all_that_is_done_with_a_remote_is_done_over_s3") else { return };
    all_is_done(server);
}

pub fn all_is_done(server: &impl Reached) {
    let mut over = Over::of(server, varied());
    over.url = format!("{}/pre fix/a+b&c=d,e;f'g(h)!@$~ü%25%20/host", server.new_place());
    let endpoint = format!("{}/", server.endpoint());
    let own = text(&over.own).to_owned();
    over.ok(&["off", &own]);
    over.ok(&["set", &own, &over.url, "--endpoint", &endpoint]);
    let first = over.carry();
    assert_eq!((first["batch"].as_u64(), first["incomplete_files"].as_u64()), (Some(1), Some(0)), "{first}");
    over.restores(&endpoint, &[]);
    // What is there is not put again.
    over.file("one more", 70_000);
    let again = over.carry();
    assert_eq!((again["batch"].as_u64(), again["put_bytes"].as_u64()), (Some(2), Some(70_000)), "{again}");
    over.ok(&["wait", &own]);
    over.restores(&endpoint, &[]);
    let listed = over.ok(&over.at(&endpoint, "list", &["/checkpoints"]));
    assert!(listed.contains("/checkpoints/model") && listed.contains("5%25 %FF%0A/again"), "{listed}");
    let batches = over.ok(&over.at(&endpoint, "list", &["--batches"]));
    assert_eq!(batches.lines().count(), 2, "{batches}");
    let got = over.run(&over.at(&endpoint, "get", &["/checkpoints/model", "--at", "1"]));
    assert!(got.stdout == [noise(2, 100), noise(3, 3 << 20), noise(4, 200_000)].concat());
    over.ok(&over.at(&endpoint, "check", &["--data"]));
    // What is above it has it as one pool of those that were carried there.
    let place = over.url.rsplit_once('/').unwrap().0.to_owned();
    let named = format!("{place}#host@1");
    assert_eq!(over.ok(&["list", &named, "--endpoint", &endpoint]).lines().count(), listed_of(&over, &endpoint, "1"));
    let removed: Value = serde_json::from_str(over.ok(&["gc", &own, "--keep-last", "1", "--json"]).trim()).unwrap();
    assert_eq!(removed["trees"], 2, "{removed}");
    assert_eq!(over.ok(&over.at(&endpoint, "list", &["--batches"])).lines().count(), 1);
    over.ok(&over.at(&endpoint, "check", &["--data"]));
    over.restores(&endpoint, &[]);
    over.file("last", 100);
    over.carry();
    over.restores(&endpoint, &[]);
}

fn listed_of(over: &Over, endpoint: &str, at: &str) -> usize {
    over.ok(&over.at(endpoint, "list", &["--at", at])).lines().count()
}

/// Proves E19.
#[test]
fn what_is_encrypted_is_carried_over_s3() {
    let Some(server) = server("what_is_encrypted_is_carried_over_s3") else { return };
    encrypted_is_carried(server);
}

pub fn encrypted_is_carried(server: &impl Reached) {
    let key = KeyFile::new();
    let mut over = Over::of(server, varied());
    let (own, endpoint) = (text(&over.own).to_owned(), server.endpoint());
    over.ok(&["off", &own]);
    over.url = server.new_place();
    let file = key.path();
    let with_key = ["--key-file", text(&file)];
    over.ok(&[&["set", &own, &over.url, "--endpoint", &endpoint][..], &with_key].concat());
    over.carry();
    over.file("more", 100_000);
    over.carry();
    over.restores(&endpoint, &with_key);
    over.ok(&over.at(&endpoint, "check", &[&["--data"][..], &with_key].concat()));
    let refused = Over::why(&over.run(&over.at(&endpoint, "list", &[])));
    assert!(refused.contains("--key-file"), "{refused}");
}

/// Of eight pools that are carried to one place at the same moment, one puts the first batch, as the store heeds
/// `If-None-Match`; what is there is that one's alone.
///
/// Proves E5.
#[test]
fn of_pools_with_one_place_in_s3_one_puts() {
    let Some(server) = server("of_pools_with_one_place_in_s3_one_puts") else { return };
    one_of_eight_puts(server);
}

pub fn one_of_eight_puts(server: &impl Reached) {
    let (url, endpoint, keys) = (server.new_place(), server.endpoint(), || server.keys());
    let mut pools: Vec<TestPool> = (0..8).map(|_| TestPool::new()).collect();
    for (number, pool) in pools.iter_mut().enumerate() {
        let bytes = noise(number as u64, 2 << 20);
        pool.edit(|edit| edit.file(ROOT, format!("of-{number}").as_bytes(), &[&bytes], true));
        let own = pool.path();
        let set = Over::command(keys(), &["set", text(&own), &url, "--endpoint", &endpoint]).output().unwrap();
        assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    }
    let carry = |own: &Path| {
        let mut carry = Over::command(keys(), &["carry", text(own)]);
        carry.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let carriers: Vec<_> = pools.iter().map(|pool| carry(&pool.path())).collect();
    let outputs: Vec<Output> = carriers.into_iter().map(|carrier| carrier.wait_with_output().unwrap()).collect();
    let winners: Vec<usize> = (0..8).filter(|number| outputs[*number].status.success()).collect();
    let [winner] = winners[..] else { panic!("{outputs:?}") };
    for output in outputs.iter().filter(|output| !output.status.success()) {
        let why = Over::why(output);
        assert!(why.contains("put by another pool") || why.contains("there is a copy of pool"), "{why}");
    }
    let copy = pools[winner].dir.path().join("copy");
    let restored = Over::command(keys(), &["restore", &url, text(&copy), "--endpoint", &endpoint]).output().unwrap();
    assert!(restored.status.success() && seen(&copy) == seen(&pools[winner].path()));
    // Whoever takes it over is the one that puts from then on.
    let other = pools[(winner + 1) % 8].path();
    let taken = Over::command(keys(), &["set", text(&other), &url, "--endpoint", &endpoint, "--take-over"]).output();
    assert!(taken.unwrap().status.success());
    assert!(carry(&other).wait_with_output().unwrap().status.success());
    pools[winner].edit(|edit| edit.file(ROOT, b"new", &[b"bytes"], true));
    let why = Over::why(&carry(&pools[winner].path()).wait_with_output().unwrap());
    assert!(why.contains("put by another pool"), "{why}");
}

/// A store may be below a path of its server; a slash at its end is none of it.
#[test]
fn an_endpoint_has_a_path_or_a_slash_at_its_end() {
    let Some(server) = server("an_endpoint_has_a_path_or_a_slash_at_its_end") else { return };
    let mut over = Over::new(server);
    over.file("file", 100_000);
    let (own, plain) = (text(&over.own).to_owned(), over.proxy.endpoint());
    // Not all of them believe a proxy that it has a path of its own.
    let below = format!("{plain}{}", if server.is_other() { "" } else { BELOW });
    for endpoint in [below.clone(), format!("{below}/"), format!("{plain}/")] {
        over.ok(&["off", &own]);
        over.url = server.new_place();
        over.ok(&["set", &own, &over.url, "--endpoint", &endpoint]);
        over.proxy.asked();
        over.carry();
        let asked = over.proxy.asked();
        assert!(asked.iter().all(|asked| asked.contains(BELOW) == endpoint.contains(BELOW)), "{asked:?}");
        for endpoint in [format!("{plain}/"), format!("{below}/")] {
            over.restores(&endpoint, &[]);
        }
    }
}

/// Whoever may not do it, or is somebody else, hears what he can do about it, in one line.
///
/// Proves E14.
#[test]
fn who_may_not_carry_hears_why() {
    let Some(server) = server("who_may_not_carry_hears_why").filter(|server| !server.is_other()) else { return };
    let mut over = Over::new(server);
    over.file("file", 100_000);
    over.carry();
    over.file("new", 100_000);
    let (own, endpoint) = (text(&over.own).to_owned(), server.endpoint());
    let [own_id, own_secret] = crate::s3::keys();
    let wrong = [own_id, ("AWS_SECRET_ACCESS_KEY", "not it")];
    let unknown = [("AWS_ACCESS_KEY_ID", "nobody"), own_secret];
    for (keys, hint) in [
        (READER, "these credentials may not do that here"),
        (wrong, "look at the credentials (AWS_ACCESS_KEY_ID"),
        (unknown, "look at the credentials (AWS_ACCESS_KEY_ID"),
    ] {
        let why = Over::why(&Over::command(keys, &["carry", &own]).output().unwrap());
        assert!(why.contains(hint), "{keys:?}: {why}");
        let status = over.status();
        assert!(status["error"].as_str().is_some_and(|error| error.contains(hint)), "{status}");
        assert!(!why.contains("not it") && !why.contains(own_secret.1), "{why}");
    }
    // Who may read can restore what is there.
    let copy = over.pool.dir.path().join("copy");
    let restored = Over::command(READER, &over.at(&endpoint, "restore", &[text(&copy)])).output().unwrap();
    assert!(restored.status.success() && seen(&copy).len() == 2, "{}", String::from_utf8_lossy(&restored.stderr));
    let nowhere = over.run(&["list", "s3://there-is-none/x", "--endpoint", &endpoint]);
    assert!(!nowhere.status.success());
    over.carry();
    assert!(over.status()["error"].is_null());
}

/// What docs/OPERATIONS.md says of it: an object for each 64 MiB, each tensor of 1 MiB, and each pack of what is
/// smaller; a batch, and two listings.
#[test]
fn a_checkpoint_costs_a_request_for_each_object_and_three_more() {
    let Some(server) = server("a_checkpoint_costs_a_request_for_each_object_and_three_more") else { return };
    let mut over = Over::new(server);
    over.file("before", 1000);
    over.carry();
    over.requests();
    over.pool.edit(|edit| {
        let dir = edit.make(ROOT, b"step-1", libc::S_IFDIR | 0o755, |_, _| {});
        for large in 0..3 {
            edit.file(dir, format!("large-{large}").as_bytes(), &[&noise(large, 2 << 20)], true);
        }
        for small in 0..20 {
            edit.file(dir, format!("small-{small}").as_bytes(), &[&noise(100 + small, 5000)], true);
        }
    });
    // A carrier that stays knows what is there; one that begins reads that first.
    over.carry();
    let cost = over.requests();
    println!("a checkpoint, and a carrier that begins: {cost:?}");
    assert_eq!((cost.objects, cost.batches), (3 + 1, 1), "{cost:?}");
    over.carry();
    let idle = over.requests();
    println!("a carrier that begins, and has nothing to carry: {idle:?}");
    assert_eq!((idle.objects, idle.batches, idle.removals), (0, 0, 0), "{idle:?}");
    // Whether somebody else has put one, is looked for behind each batch.
    assert_eq!((cost.listings - idle.listings, cost.removals), (2, 0), "{cost:?} {idle:?}");
    // What is removed, is with many others in one request: the oldest batch first, and then all others.
    for name in ["a", "b", "c"] {
        over.file(name, 10);
        over.carry();
    }
    over.requests();
    over.ok(&["gc", text(&over.own), "--keep-last", "1"]);
    assert_eq!(over.requests().removals, 2);
    over.restores(&over.proxy.endpoint(), &[]);
    assert!(cost.reads <= idle.reads && cost.all == cost.objects + 1 + cost.listings + cost.reads, "{cost:?} {idle:?}");
}

//! A repository of very many objects. Its store makes its listings up, and has bytes of few of them: how much memory
//! and how many requests a list, a check and a collection take.
//!
//! `TENSORFS_REMOTE_OBJECTS` is how many there are (10,000).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tensorfs_layout::ROOT;
use tensorfs_remote::repository::{Content, Entry, FORMAT, Hash, Head, Line, Part, Repository, marked, object_name};

use crate::asked::{Request, listen};
use crate::pools::TestPool;
use crate::program::text;
use crate::stores::Recorded;

/// What a store gives of a listing at once.
const PAGE: usize = 1000;
/// Where the repository is.
const TOP: &str = "run/";
/// Parts of a file.
const PARTS: u64 = 1000;

/// Which hash an object has of those that are made up: they are in order.
fn made_up(number: u64, of: u64) -> Hash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&(number * (u64::MAX / of)).to_be_bytes());
    Hash(hash)
}

/// The store: keys and bytes of those that have some, and so many that are made up.
pub struct Store {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    many: u64,
    gone: Mutex<BTreeSet<String>>,
    asked: Mutex<BTreeMap<&'static str, u64>>,
}

impl Store {
    pub fn new(objects: BTreeMap<String, Vec<u8>>, many: u64) -> Arc<Self> {
        let (objects, gone, asked) = (Mutex::new(objects), Mutex::default(), Mutex::default());
        Arc::new(Self { objects, many, gone, asked })
    }

    fn start(objects: BTreeMap<String, Vec<u8>>, many: u64) -> (Arc<Self>, String) {
        let store = Self::new(objects, many);
        let this = store.clone();
        (store, listen(move |request, stream| this.answer(request, stream)))
    }

    /// How many requests of each kind there were since this was asked last.
    fn asked(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Does what a request asks for.
    pub fn answer(&self, request: Request, mut stream: &TcpStream) -> Option<()> {
        let is_new = request.is_new();
        let Request { method, target, body, .. } = request;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let key = path.strip_prefix("/bucket")?.trim_start_matches('/').replace("%2F", "/");
        let (kind, status, answer) = match &*method {
            "PUT" => ("put", self.put(key, body, is_new), Vec::new()),
            "DELETE" => {
                self.objects.lock().unwrap().remove(&key);
                ("removal", "204 No Content", Vec::new())
            }
            "POST" => ("removal", "200 OK", self.remove(&String::from_utf8_lossy(&body)).into_bytes()),
            _ if query.contains("list-type=") => ("listing", "200 OK", self.listed(query).into_bytes()),
            _ => match self.objects.lock().unwrap().get(&key) {
                Some(bytes) => ("read", "200 OK", bytes.clone()),
                None => ("read", "404 Not Found", Vec::new()),
            },
        };
        *self.asked.lock().unwrap().entry(kind).or_default() += 1;
        let time = "ETag: \"x\"\r\nLast-Modified: Tue, 24 Nov 2026 10:00:00 GMT";
        write!(stream, "HTTP/1.1 {status}\r\n{time}\r\nContent-Length: {}\r\n\r\n", answer.len()).ok()?;
        if method != "HEAD" {
            stream.write_all(&answer).ok()?;
        }
        Some(())
    }

    fn put(&self, key: String, bytes: Vec<u8>, is_new: bool) -> &'static str {
        let mut objects = self.objects.lock().unwrap();
        if is_new && objects.contains_key(&key) {
            return "412 Precondition Failed";
        }
        objects.insert(key, bytes);
        "200 OK"
    }

    fn remove(&self, asked: &str) -> String {
        let keys = asked.split("<Key>").skip(1).filter_map(|key| Some(key.split_once("</Key>")?.0));
        let mut answer = "<DeleteResult>".to_owned();
        for key in keys {
            write!(answer, "<Deleted><Key>{key}</Key></Deleted>").unwrap();
            if self.objects.lock().unwrap().remove(key).is_none() {
                self.gone.lock().unwrap().insert(key.to_owned());
            }
        }
        answer + "</DeleteResult>"
    }

    /// Those that are made up, from one on, or behind another.
    fn made_up_after<'a>(&'a self, after: &str) -> impl Iterator<Item = String> + 'a {
        let step = u64::MAX / self.many.max(1);
        let digits = after.strip_prefix(TOP).and_then(|name| name.rsplit('/').next());
        let at = digits.and_then(|digits| u64::from_str_radix(digits.get(..16)?, 16).ok());
        let first = at.map_or(0, |at| at / step);
        let after = after.to_owned();
        let keys = (first..self.many).map(|number| format!("{TOP}{}", object_name(made_up(number, self.many))));
        keys.filter(move |key| *key > after)
    }

    fn listed(&self, query: &str) -> String {
        let value = |of: &str| query.split('&').find_map(|part| part.strip_prefix(of)).map(|it| it.replace("%2F", "/"));
        let prefix = value("prefix=").unwrap_or_default();
        let after = value("continuation-token=").or_else(|| value("start-after=")).unwrap_or_default();
        let (objects, gone) = (self.objects.lock().unwrap(), self.gone.lock().unwrap());
        let sizes = objects.iter().map(|(key, bytes)| (key.clone(), bytes.len()));
        let mut page: BTreeMap<String, usize> =
            sizes.filter(|(key, _)| *key > after && key.starts_with(&prefix)).take(PAGE + 1).collect();
        if prefix.starts_with(&format!("{TOP}objects")) {
            let many = self.made_up_after(&after).filter(|key| !gone.contains(key));
            page.extend(many.take(PAGE + 1).map(|key| (key, 1 << 20)));
        }
        let is_cut = page.len() > PAGE;
        let mut answer = format!("<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>");
        for (key, size) in page.iter().take(PAGE) {
            // What is made up has long been there.
            let day = if objects.contains_key(key) { 24 } else { 20 };
            let time = format!("<LastModified>2026-11-{day}T10:00:00.000Z</LastModified><ETag>x</ETag>");
            write!(answer, "<Contents><Key>{key}</Key><Size>{size}</Size>{time}</Contents>").unwrap();
        }
        if let Some(last) = page.keys().take(PAGE).next_back().filter(|_| is_cut) {
            write!(answer, "<NextContinuationToken>{last}</NextContinuationToken>").unwrap();
        }
        answer + "</ListBucketResult>"
    }
}

/// Runs a program, and tells of its memory at the most, in KiB, behind what it says itself.
const MEASURED: &str = "import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(child, 0)
sys.stderr.write(f'\\n{used.ru_maxrss}')
sys.exit(os.waitstatus_to_exitcode(status))";

/// What a command says, and how many KiB of memory it took.
fn measured(arguments: &[&str]) -> (String, u64) {
    let mut command = Command::new("python3");
    command.args(["-c", MEASURED, env!("CARGO_BIN_EXE_tensorfs-carrier")]).args(arguments).stdin(Stdio::null());
    command.env("AWS_ACCESS_KEY_ID", "x").env("AWS_SECRET_ACCESS_KEY", "y");
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}");
    let memory = said.rsplit('\n').next().unwrap().parse().unwrap();
    (String::from_utf8(output.stdout).unwrap(), memory)
}

fn objects() -> u64 {
    std::env::var("TENSORFS_REMOTE_OBJECTS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

/// A collection removes what nothing names, with a request for each thousand; a check counts it.
///
/// Proves E6.
#[test]
fn very_many_objects_that_nothing_names_are_removed() {
    let many = objects();
    let (store, endpoint) = Store::start(BTreeMap::new(), many);
    let mut pool = TestPool::new();
    pool.edit(|edit| edit.file(ROOT, b"file", &[b"some bytes"], true));
    let own = pool.path();
    let own = text(&own);
    let at = ["--endpoint", &endpoint, "--region", "x"];
    measured(&[&["set", own, "s3://bucket/run"], &at[..]].concat());
    measured(&["carry", own]);
    store.asked();
    let checked = measured(&[&["check", "s3://bucket/run", "--json"], &at[..]].concat());
    let report: Value = serde_json::from_str(&checked.0).unwrap();
    println!("check of {many} objects that nothing names: {} KiB, {:?}", checked.1, store.asked());
    assert_eq!(report["others"], many, "{report}");
    let collected = measured(&["gc", own, "--keep-last", "1", "--json"]);
    let removed: Value = serde_json::from_str(&collected.0).unwrap();
    let asked = store.asked();
    println!("gc of them: {} KiB, {asked:?}", collected.1);
    assert_eq!(removed["objects"], many, "{removed}");
    assert_eq!(store.gone.lock().unwrap().len() as u64, many);
    assert!(asked["removal"] <= many / 1000 + 2 && asked["listing"] <= many / 1000 + 12, "{asked:?}");
    assert!(collected.1 * 1024 < (96 << 20) + many * 600 && checked.1 * 1024 < (96 << 20), "{collected:?} {checked:?}");
    let report = measured(&[&["check", "s3://bucket/run", "--json"], &at[..]].concat()).0;
    assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["others"], 0, "{report}");
}

/// A check finds each object that is named, and a list reads what the tree needs, however many there are.
///
/// Proves E4.
#[test]
fn very_many_objects_that_are_named_are_found() {
    let many = objects();
    let mut pool = TestPool::new();
    let small = Recorded::new();
    pool.edit(|edit| edit.file(ROOT, b"file", &[b"some bytes"], true));
    pool.carrier(small.place()).unwrap().pass().unwrap();
    let small = Repository::new(small.place()).newest().unwrap();
    let root = small.tree.entry(ROOT.0).unwrap().clone();
    let file = small.tree.entries().find(|entry| entry.is_file()).unwrap().clone();
    let files = many.div_ceil(PARTS);
    let lines = (0..files).flat_map(|number| {
        let (ino, from) = (2 + number, number * PARTS);
        let parts = (from..many.min(from + PARTS)).map(|number| Part::Alone((1 << 20, made_up(number, many))));
        let parts: Vec<Part> = parts.collect();
        let size = (parts.len() as u64) << 20;
        let content = Content { size, parts, seals: Vec::new(), ..file.file.clone().unwrap() };
        let entry = Entry { ino, file: Some(content), ..file.clone() };
        [Line::Object(Box::new(entry)), Line::Name(ROOT.0, format!("f{number}"), ino)]
    });
    let made = Recorded::new();
    let repository = Repository::new(marked(made.place(), None, None).unwrap());
    let head = Head { tensorfs_remote: FORMAT, number: 1, before: None, base: false, ..small.head.unwrap() };
    let (bytes, _) = repository.compose(head, [Line::Object(Box::new(root))].into_iter().chain(lines)).unwrap();
    repository.put_batch(1, &bytes).unwrap();
    let objects = made.objects().into_iter().map(|(path, bytes)| (format!("{TOP}{path}"), bytes.to_vec()));
    let (store, endpoint) = Store::start(objects.collect(), many);
    let at = ["--endpoint", &endpoint, "--region", "x"];
    let checked = measured(&[&["check", "s3://bucket/run", "--json"], &at[..]].concat());
    let asked = store.asked();
    println!("check of {many} objects that are named: {} KiB, {asked:?}", checked.1);
    let report: Value = serde_json::from_str(&checked.0).unwrap();
    let expected = (report["files"].as_u64(), report["objects"].as_u64(), report["findings"].as_array().map(Vec::len));
    assert_eq!(expected, (Some(files), Some(many), Some(0)), "{report}");
    assert!(asked["listing"] <= many / 1000 + 8, "{asked:?}");
    let listed = measured(&[&["list", "s3://bucket/run"], &at[..]].concat());
    let asked = store.asked();
    println!("list of them: {} KiB, {asked:?}", listed.1);
    assert_eq!(listed.0.lines().count() as u64, files + 1, "{}", listed.0);
    assert!(asked["listing"] < 8, "{asked:?}");
    assert!(
        [checked.1, listed.1].iter().all(|memory| memory * 1024 < (96 << 20) + many * 900),
        "{checked:?} {listed:?}"
    );
}

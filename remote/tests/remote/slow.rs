//! A store behind a slow link: what takes long arrives all the same.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::asked::{Request, listen};
use crate::pools::TestPool;

/// Longer than any library waits for an answer by itself.
const LONG: Duration = Duration::from_secs(33);
/// An answer to any listing.
const EMPTY: &str = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";

/// The one class that a store has beside the usual one.
const CLASS: &str = "x-amz-storage-class: standard_ia";

/// An S3 store with one bucket. It is asked for everything by HTTP, and takes long over some of it.
pub struct Store {
    objects: Mutex<HashMap<String, Vec<u8>>>,
    /// Requests, and what they say of how what is put is to be kept.
    asked: Mutex<Vec<String>>,
    slow_put: bool,
    slow_get: bool,
}

impl Store {
    /// Starts one, and gives its address.
    pub fn start(slow_put: bool, slow_get: bool) -> (Arc<Self>, String) {
        let store = Arc::new(Self { objects: Mutex::default(), asked: Mutex::default(), slow_put, slow_get });
        let this = store.clone();
        (store, listen(move |request, stream| this.answer(request, stream)))
    }

    /// True if any of these words is in what it has, or was asked for.
    pub fn has_any(&self, words: &[&str]) -> bool {
        let has =
            |bytes: &[u8]| words.iter().any(|word| bytes.windows(word.len()).any(|window| window == word.as_bytes()));
        let asked = self.asked.lock().unwrap();
        let objects = self.objects.lock().unwrap();
        asked.iter().any(|asked| has(asked.as_bytes())) || objects.values().any(|bytes| has(bytes))
    }

    fn answer(&self, request: Request, mut stream: &TcpStream) -> Option<()> {
        let is_new = request.is_new();
        let Request { method, target: path, headers, body } = request;
        let is_told = |header: &String| header.starts_with("x-amz-server-side") || header.starts_with("x-amz-storage");
        let mut told: Vec<String> = headers.into_iter().filter(is_told).collect();
        told.sort();
        let is_unknown = told.iter().any(|header| header.starts_with("x-amz-storage") && header != CLASS);
        self.asked.lock().unwrap().push([vec![format!("{method} {path}")], told].concat().join("; "));
        if is_unknown {
            let refused = "HTTP/1.1 400 Bad Request\r\nContent-Length: 33\r\n\r\n<Code>InvalidStorageClass</Code>\n";
            return write!(stream, "{refused}").ok();
        }
        let said = |status: &str, len: usize| format!("HTTP/1.1 {status}\r\nETag: \"x\"\r\nContent-Length: {len}\r\n");
        let time = "Last-Modified: Tue, 24 Nov 2026 10:00:00 GMT\r\n\r\n";
        if method == "PUT" {
            // The first one.
            if self.slow_put && self.objects.lock().unwrap().is_empty() {
                std::thread::sleep(LONG);
            }
            let mut objects = self.objects.lock().unwrap();
            let status = if is_new && objects.contains_key(&path) { "412 Precondition Failed" } else { "200 OK" };
            objects.entry(path).or_insert(body);
            return write!(stream, "{}\r\n", said(status, 0)).ok();
        }
        if path.contains('?') {
            return write!(stream, "{}{time}{EMPTY}", said("200 OK", EMPTY.len())).ok();
        }
        let Some(found) = self.objects.lock().unwrap().get(&path).cloned() else {
            return write!(stream, "{}\r\n", said("404 Not Found", 0)).ok();
        };
        write!(stream, "{}{time}", said("200 OK", found.len())).ok()?;
        // Some bytes every now and then.
        for byte in &found {
            if self.slow_get {
                std::thread::sleep(LONG / found.len() as u32);
            }
            stream.write_all(&[*byte]).ok()?;
        }
        Some(())
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
    command.env("AWS_ACCESS_KEY_ID", "x").env("AWS_SECRET_ACCESS_KEY", "y").args(arguments);
    command
}

/// `remote set` puts, and reads back what it has put.
fn set(slow_put: bool) -> Vec<String> {
    let pool = TestPool::new();
    let (store, address) = Store::start(slow_put, !slow_put);
    let mut command = command(&["set"]);
    command.arg(pool.path()).args(["s3://bucket/run", "--endpoint", &address, "--region", "x"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    store.asked.lock().unwrap().clone()
}

#[test]
fn a_put_that_takes_long_arrives() {
    let asked = set(true);
    assert_eq!(asked.iter().filter(|request| request.starts_with("PUT ")).count(), 2, "{asked:?}");
}

#[test]
fn an_object_that_takes_long_to_be_read_is_read() {
    let asked = set(false);
    // Before anything is put, and after that: neither is asked for again.
    assert_eq!(asked.iter().filter(|request| request.starts_with("GET /bucket/run/t")).count(), 2, "{asked:?}");
}

/// Every put says how the store is to encrypt it, and those of objects alone of which class they are: batches are read
/// by everybody who begins.
///
/// Proves E17.
#[test]
fn the_store_is_told_how_to_keep_what_is_put() {
    let kms = ["--sse", "aws:kms", "--sse-kms-key", "key-7"];
    for (more, expected, class) in [
        (&[][..], vec![], None),
        (&["--sse", "AES256"], vec!["x-amz-server-side-encryption: aes256"], None),
        (&["--storage-class", "STANDARD_IA"], vec![], Some("x-amz-storage-class: standard_ia")),
        (
            &[&kms[..], &["--storage-class", "STANDARD_IA"]].concat(),
            vec!["x-amz-server-side-encryption-aws-kms-key-id: key-7", "x-amz-server-side-encryption: aws:kms"],
            Some("x-amz-storage-class: standard_ia"),
        ),
    ] {
        let mut pool = TestPool::new();
        pool.edit(|edit| edit.file(tensorfs_layout::ROOT, b"file", &[&crate::pools::noise(1, 2 << 20)], true));
        let (store, address) = Store::start(false, false);
        let own = pool.path();
        let own = own.to_str().unwrap();
        let at = ["set", own, "s3://bucket/run", "--endpoint", &address, "--region", "x"];
        for arguments in [&[&at[..], more].concat()[..], &["carry", own]] {
            let output = command(arguments).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let asked = store.asked.lock().unwrap().clone();
        let puts: Vec<&String> = asked.iter().filter(|request| request.starts_with("PUT ")).collect();
        assert!(puts.len() >= 4, "the mark, twice; an object; a batch: {asked:?}");
        for put in puts {
            let told: Vec<&str> = put.split("; ").skip(1).collect();
            let is_object = put.starts_with("PUT /bucket/run/objects/");
            let class = class.filter(|_| is_object);
            assert_eq!(told, expected.iter().copied().chain(class).collect::<Vec<_>>(), "{put}");
        }
    }
}

/// Of a class that nobody knows, `set` hears from the store, and not the first carrier.
///
/// Proves E17.
#[test]
fn a_class_that_the_store_does_not_know_is_refused_by_set() {
    let pool = TestPool::new();
    let (store, address) = Store::start(false, false);
    let own = pool.path();
    let own = own.to_str().unwrap();
    let at = ["set", own, "s3://bucket/run", "--endpoint", &address, "--region", "x", "--storage-class"];
    let output = command(&[&at[..], &["STANDARD-IA"]].concat()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("cannot put") && said.lines().count() == 1, "{said}");
    assert!(!pool.path().join("remote").exists());
    let output = command(&[&at[..], &["STANDARD_IA"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(pool.path().join("remote").exists());
    assert!(store.asked.lock().unwrap().iter().any(|request| request.starts_with("PUT /bucket/run/objects/")));
}

/// Proves E17.
#[test]
fn what_a_store_cannot_be_told_is_refused() {
    let pool = TestPool::new();
    let own = pool.path();
    let directory = format!("file://{}/remote", pool.dir.path().display());
    for (url, more, why) in [
        (&*directory, &["--sse", "AES256"][..], "for s3"),
        (&*directory, &["--storage-class", "STANDARD_IA"], "a directory has none"),
        ("gs://bucket/x", &["--sse", "aws:kms"], "for s3"),
        ("s3://bucket/x", &["--sse-kms-key", "k"], "--sse aws:kms"),
        ("s3://bucket/x", &["--sse", "AES256", "--sse-kms-key", "k"], "--sse aws:kms"),
        ("s3://bucket/x", &["--storage-class", "DEEP_ARCHIVE"], "cannot be read at once"),
        ("s3://bucket/x", &["--storage-class", "glacier"], "cannot be read at once"),
        ("az://container/x", &["--storage-class", "Archive"], "cannot be read at once"),
        ("az://container/x", &["--storage-class", "archive"], "cannot be read at once"),
        ("az://container/x", &["--storage-class", "STANDARD_IA"], "there are Hot, Cool, Cold"),
        ("gs://bucket/x", &["--storage-class", "NEAR-LINE"], "there are STANDARD, NEARLINE, COLDLINE, ARCHIVE"),
    ] {
        let output = command(&[&["set", own.to_str().unwrap(), url], more].concat()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(why), "{url} {more:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert!(!pool.path().join("remote").exists());
    let output = command(&["set", own.to_str().unwrap(), "s3://bucket/x", "--sse", "rot13"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

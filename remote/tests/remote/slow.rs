//! A store behind a slow link: what takes long arrives all the same.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::pools::TestPool;

/// Longer than any library waits for an answer by itself.
const LONG: Duration = Duration::from_secs(33);
/// An answer to any listing.
const EMPTY: &str = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";

/// An S3 store with one bucket. It is asked for everything by HTTP, and takes long over some of it.
struct Store {
    objects: Mutex<HashMap<String, Vec<u8>>>,
    /// Requests with bodies, and others.
    asked: Mutex<Vec<String>>,
    slow_put: bool,
}

impl Store {
    /// Starts one, and gives its address.
    fn start(slow_put: bool) -> (Arc<Self>, String) {
        let store = Arc::new(Self { objects: Mutex::default(), asked: Mutex::default(), slow_put });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let this = store.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let this = this.clone();
                std::thread::spawn(move || this.serve(&stream));
            }
        });
        (store, address)
    }

    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut requests = BufReader::new(stream);
        loop {
            let mut line = String::new();
            requests.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let request = line.trim().to_owned();
            let (mut len, mut is_new) = (0, false);
            loop {
                let mut line = String::new();
                requests.read_line(&mut line).ok()?;
                let header = line.trim().to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                len = header.strip_prefix("content-length: ").map_or(len, |len| len.parse().unwrap());
                is_new |= header == "if-none-match: *";
            }
            let mut body = vec![0; len];
            requests.read_exact(&mut body).ok()?;
            self.asked.lock().unwrap().push(request.clone());
            self.answer(stream, &request, body, is_new)?;
        }
    }

    fn answer(&self, mut stream: &TcpStream, request: &str, body: Vec<u8>, is_new: bool) -> Option<()> {
        let mut words = request.split(' ');
        let (method, path) = (words.next()?, words.next()?.to_owned());
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
            if !self.slow_put {
                std::thread::sleep(LONG / found.len() as u32);
            }
            stream.write_all(&[*byte]).ok()?;
        }
        Some(())
    }
}

/// `remote set` puts, and reads back what it has put.
fn set(slow_put: bool) -> Vec<String> {
    let pool = TestPool::new();
    let (store, address) = Store::start(slow_put);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
    command.env("AWS_ACCESS_KEY_ID", "x").env("AWS_SECRET_ACCESS_KEY", "y");
    command.arg("set").arg(pool.path()).args(["s3://bucket/run", "--endpoint", &address, "--region", "x"]);
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
    assert_eq!(asked.iter().filter(|request| request.starts_with("GET /bucket/run/t")).count(), 1, "{asked:?}");
}

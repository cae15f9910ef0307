//! Who carries makes way for who writes, also with what it is putting: seen from the store.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use tensorfs_layout::ROOT;

use crate::asked::listen;
use crate::many::Store;
use crate::over_s3::Over;
use crate::pools::{TestPool, noise};
use crate::program::{Watching, text};

/// One object, a part of it that is there before anybody writes, and how long a file is that is written to.
const OBJECT: usize = 56 << 20;
const PART: u64 = 4 << 20;
const WRITTEN: usize = 100_000;
/// Way is made for five seconds in a row at the most; that is looked at for so long, and nothing comes for this long.
const HELD: Duration = Duration::from_secs(4);
const NOTHING: Duration = Duration::from_secs(1);
/// So often it is looked at, and seen in so many of them.
const ROUNDS: u64 = 5;
const MOST: usize = 3;

/// A narrow way to a store, on which it is counted what arrives.
fn narrow(store: &str, arrived: Arc<AtomicU64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let store = store["http://".len()..].to_owned();
    let pass = move |client: TcpStream| -> Option<()> {
        let (mut from, mut to) = (client.try_clone().ok()?, TcpStream::connect(&store).ok()?);
        let (mut answers, mut back) = (to.try_clone().ok()?, client);
        thread::spawn(move || std::io::copy(&mut answers, &mut back));
        let mut some = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut some).ok().filter(|read| *read > 0);
            let Some(read) = read else { return to.shutdown(Shutdown::Both).ok() };
            arrived.fetch_add(read as u64, Ordering::Relaxed);
            to.write_all(&some[..read]).ok()?;
            sleep(Duration::from_millis(4));
        }
    };
    let pass = Arc::new(pass);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let pass = pass.clone();
            thread::spawn(move || pass(client));
        }
    });
    address
}

/// The segment of the one file of this length.
fn segment(pool: &Path) -> PathBuf {
    let shards = std::fs::read_dir(pool.join("segments")).unwrap().map(|shard| shard.unwrap().path());
    let files = shards.flat_map(|shard| std::fs::read_dir(shard).unwrap().map(|file| file.unwrap().path()));
    files.into_iter().find(|file| file.metadata().unwrap().len() == WRITTEN as u64).unwrap()
}

/// Writes at a pace behind what is recorded, as the kernel does for a program, until that is to end.
fn write_behind(segment: &Path, ends: &AtomicBool) {
    let mut file = File::options().append(true).open(segment).unwrap();
    while !ends.load(Ordering::Relaxed) {
        file.write_all(&vec![1; 1 << 20]).unwrap();
        if file.metadata().unwrap().len() > 64 << 20 {
            file.set_len(WRITTEN as u64).unwrap();
        }
        sleep(Duration::from_millis(1));
    }
    file.set_len(WRITTEN as u64).unwrap();
}

/// Has somebody end, also where a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Once it says so nothing more of an object arrives for a while; when nobody writes any more, all of it does.
///
/// Proves E33.
#[test]
fn what_is_being_put_stands_still_while_somebody_writes() {
    let (store, arrived) = (Store::new(BTreeMap::new(), 0), Arc::new(AtomicU64::new(0)));
    let address = narrow(&listen(move |request, stream| store.answer(request, stream)), arrived.clone());
    let mut pool = TestPool::new();
    pool.edit(|edit| edit.file(ROOT, b"written", &[&noise(1, WRITTEN)], true));
    let (own, keys) = (pool.path(), [("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y")]);
    let run = |arguments: &[&str]| {
        let output = Over::command(keys, arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["set", text(&own), "s3://bucket/run", "--endpoint", &address, "--region", "x"]);
    run(&["carry", text(&own)]);
    let segment = segment(&own);
    // It may be now and then that this process does not get to look, or to write, in time.
    let seen = (0..ROUNDS).filter(|round| {
        pool.edit(|edit| edit.file(ROOT, format!("{round}").as_bytes(), &[&noise(*round + 2, OBJECT)], true));
        let mut carrier = Over::command(keys, &["carry", text(&own)]);
        carrier.env("RUST_LOG", "tensorfs_remote=debug").stdout(Stdio::null()).stderr(Stdio::piped());
        let before = arrived.load(Ordering::Relaxed);
        let comes = || arrived.load(Ordering::Relaxed) - before;
        let mut carrier = Watching(carrier.spawn().unwrap());
        let mut says = BufReader::new(carrier.0.stderr.take().unwrap()).lines();
        while comes() < PART && carrier.0.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(1));
        }
        let ends = AtomicBool::new(false);
        let seen = thread::scope(|scope| {
            scope.spawn(|| write_behind(&segment, &ends));
            let _ends = Ends(&ends);
            let says = says.by_ref().map_while(Result::ok);
            says.into_iter().find(|line| line.contains("stands still while files of the pool are written"))?;
            // What is in sockets by then arrives.
            let since = Instant::now();
            let mut last = (comes(), since);
            while since.elapsed() < HELD && last.1.elapsed() < NOTHING {
                sleep(Duration::from_millis(20));
                let now = comes();
                last = if now == last.0 { last } else { (now, Instant::now()) };
            }
            Some(last.0).filter(|_| last.1.elapsed() >= NOTHING)
        });
        let rest: Vec<String> = says.map_while(Result::ok).collect();
        assert!(carrier.0.wait().unwrap().success(), "{rest:?}");
        assert!(comes() > OBJECT as u64);
        seen.is_some_and(|came| came < OBJECT as u64)
    });
    // Most are enough.
    assert_eq!(seen.take(MOST).count(), MOST, "it does not stand still while it puts");
}

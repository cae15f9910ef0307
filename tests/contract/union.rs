//! A job's pools, each carried to its own place below one URL, and mounted as one tree.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tensorfs_tests::{Mount, Mounted, Passthrough, Pattern, Setup, as_user, on_mounts, wait_until, xattr};

on_mounts!(
    several_pools_below_one_url_are_one_mount,
    a_merged_directory_lets_nobody_in_whom_one_of_them_keeps_out,
    files_of_several_come_whoever_was_killed_and_whichever_is_away,
    a_store_that_does_not_answer_holds_up_no_file_of_another,
);

const SIZE: usize = 2 << 20;
const POOLS: [&str; 3] = ["host-0", "host-1", "host-2"];
/// Files that a pool alone has.
const OWN: u64 = 6;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The pools of a job, carried, and the place of one that is made of all.
struct Job {
    /// Of the first one; it is not mounted.
    origin: Mount,
    at: PathBuf,
    url: String,
    pool: PathBuf,
    setup: Setup,
}

impl Job {
    /// Nothing if there are no mounts.
    fn new(setup: Setup) -> Option<Self> {
        Self::of(setup, &POOLS, |n, origin| {
            fs::create_dir(origin.at("run")).unwrap();
            for file in 0..OWN {
                let bytes = Pattern(100 * n as u64 + file).bytes(0, SIZE);
                fs::write(origin.at(format!("run/{}-{file}", POOLS[n])), bytes).unwrap();
            }
            fs::write(origin.at("run/config"), Pattern(7).bytes(0, 100_000)).unwrap();
            fs::write(origin.at("run/log"), format!("of {}\n", POOLS[n])).unwrap();
        })
    }

    /// Pools that are filled so, one after the other.
    fn of(setup: Setup, pools: &[&str], mut fill: impl FnMut(usize, &Mount)) -> Option<Self> {
        let mut job: Option<Self> = None;
        for (n, name) in pools.iter().enumerate() {
            let mut origin = setup.clone().mount();
            if origin.is_plain() {
                setup.skip("needs a mount");
                return None;
            }
            fill(n, &origin);
            origin.sync();
            origin.tensorfs_ok(["seal", text(origin.path())]);
            origin.umount();
            let at = job.as_ref().map_or_else(|| origin.pool().with_file_name("job"), |job: &Self| job.at.clone());
            let url = format!("file://{}", at.display());
            origin.tensorfs_ok(["remote", "set", text(origin.pool()), &format!("{url}/{name}")]);
            origin.tensorfs_ok(["remote", "carry", text(origin.pool())]);
            // The first one has the place of all in its directory, and stays.
            let pool = at.with_file_name("made");
            job.get_or_insert_with(|| Self { origin, at, url, pool, setup: setup.clone() });
        }
        job
    }

    fn expected(&self) -> Vec<(String, Vec<u8>)> {
        let own = |n: usize| (0..OWN).map(move |file| (n, file));
        let files = (0..POOLS.len()).flat_map(own);
        files.map(|(n, f)| (format!("run/{}-{f}", POOLS[n]), Pattern(100 * n as u64 + f).bytes(0, SIZE))).collect()
    }

    fn check(&self, top: &Path) {
        for (name, bytes) in self.expected() {
            assert!(fs::read(top.join(&name)).unwrap() == bytes, "{name}");
        }
        assert!(fs::read(top.join("run/config")).unwrap() == Pattern(7).bytes(0, 100_000));
        let logs =
            ["run/log", "run/log.host-0", "run/log.host-1"].map(|name| fs::read_to_string(top.join(name)).unwrap());
        assert_eq!(logs, ["of host-2\n", "of host-0\n", "of host-1\n"]);
        assert_eq!(fs::read_dir(top.join("run")).unwrap().count(), POOLS.len() * OWN as usize + 4);
    }
}

/// How many files are away.
fn away(info: &Value) -> Option<u64> {
    remote(info)["files"].as_u64()
}

fn remote(info: &Value) -> &Value {
    info["tiers"].as_array().unwrap().iter().find(|tier| tier["name"] == "remote").unwrap()
}

/// The processes that fetch files of a mount.
fn bringers(at: &Path) -> Vec<Pid> {
    let is_one = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words.contains(&&b"bring"[..]) && words.contains(&text(at).as_bytes())
    };
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(is_one).map(Pid::from_raw).collect()
}

/// Proves E29.
fn several_pools_below_one_url_are_one_mount(setup: Setup) {
    let Some(job) = Job::new(setup) else { return };
    let base = job.origin.host();
    let (at, log) = (base.join("at"), base.join("log"));
    fs::create_dir(&at).unwrap();
    let passthrough = if job.setup.passthrough() == Passthrough::On { "on" } else { "off" };
    let pool = text(&job.pool);
    let line = ["mount", "--from", &job.url, pool, text(&at), "--passthrough", passthrough, "--log", text(&log)];
    let output = job.origin.tensorfs(line);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let mounted = Mounted::adopt(&at);
    // What differs is told.
    assert!(said.contains("/run/log is not the same in host-0, host-1, host-2"), "{said}");
    assert!(said.contains("that of host-0 is /run/log.host-0"), "{said}");
    job.check(&at);
    let info = job.origin.tensorfs_ok(["info", pool, "--json"]);
    let info: Value = serde_json::from_str(&info).unwrap();
    let told = remote(&info)["directory"].as_str().unwrap();
    assert!(told.contains(&job.url) && told.contains("3 pools, 1 name with different bytes"), "{told}");
    // As any other mount.
    fs::write(at.join("run/new"), b"new").unwrap();
    fs::rename(at.join("run/host-1-0"), at.join("elsewhere")).unwrap();
    assert_eq!(xattr::get(&at.join("elsewhere"), "user.tensorfs.state").unwrap(), b"sealed");
    drop(mounted);
    wait_until("the pool's end", || tensorfs_layout::pool::holder(&job.pool).is_ok_and(|holder| holder.is_none()));
    job.origin.tensorfs_ok(["check", "--data", pool]);
}

/// Proves E29.
fn a_merged_directory_lets_nobody_in_whom_one_of_them_keeps_out(setup: Setup) {
    const NAMED: u32 = 4001;
    const ELSE: u32 = 4002;
    // A name, and what is done to it in the older pool and in the newer one: its mode, and entries of its list.
    let shared = "u:4001:rwx,g:4003:r-x";
    let directories: [(&str, [(&str, &str); 2]); 9] = [
        ("list-in-newer", [("0750", ""), ("0755", "u:4001:rwx")]),
        ("list-in-older", [("0755", "u:4001:rwx"), ("0750", "")]),
        ("two-lists", [("0700", "u:4001:r-x"), ("0700", "u:4002:r-x")]),
        ("one-list", [("0750", shared), ("0750", shared)]),
        ("shut-out", [("0755", "u:4001:---"), ("0755", "")]),
        ("default-in-newer", [("0777", ""), ("0777", "d:u::rwx,d:u:4001:rwx,d:g::rwx,d:o::rwx")]),
        ("default-in-older", [("0777", "d:u::rwx,d:g::---,d:o::---"), ("0777", "")]),
        ("open", [("0755", ""), ("0755", "")]),
        ("group-shut-out", [("0705", ""), ("0755", "")]),
    ];
    // Who reads what is in one, and who makes a file that others read then.
    let reads = |top: &Path, uid: u32, name: &str| {
        let read = as_user(uid, uid).args(["cat", name]).current_dir(top).output().unwrap();
        read.status.success()
    };
    let open = |top: &Path| -> Vec<(String, u32)> {
        let made = |name: &str| {
            let make = format!("umask 022; echo made > {name}/made");
            as_user(ELSE, ELSE).args(["sh", "-c", &make]).current_dir(top).output().unwrap();
        };
        let all = directories.iter().map(|(name, _)| *name);
        all.clone().filter(|name| name.starts_with("default")).for_each(made);
        let files = all.flat_map(|name| [format!("{name}/f"), format!("{name}/made")]);
        let who = files.flat_map(|file| [NAMED, ELSE].map(|uid| (file.clone(), uid)));
        who.filter(|(file, uid)| reads(top, *uid, file)).collect()
    };
    let mut seen = Vec::new();
    let fill = |n: usize, origin: &Mount| {
        for (name, how) in &directories {
            let (path, (mode, list)) = (origin.at(name), how[n]);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("f"), b"of both").unwrap();
            let mut calls = vec![Command::new("chmod")];
            calls[0].arg(mode).arg(&path);
            if *name == "group-shut-out" {
                // In the older one that of a group of its own.
                calls.push(Command::new("chgrp"));
                calls[1].arg(if n == 0 { NAMED.to_string() } else { "0".to_owned() }).arg(&path);
            }
            if !list.is_empty() {
                let mut call = Command::new("setfacl");
                call.args(["-m", list]).arg(&path);
                calls.push(call);
            }
            calls.iter_mut().for_each(|call| assert!(call.status().unwrap().success(), "{call:?}"));
        }
        seen.push(open(origin.path()));
        for (name, _) in directories.iter().filter(|(name, _)| name.starts_with("default")) {
            fs::remove_file(origin.at(name).join("made")).unwrap();
        }
        // The newest is the last one.
        let later = nix::sys::time::TimeSpec::new(2_000_000_000 + n as i64, 0);
        let flag = nix::sys::stat::UtimensatFlags::FollowSymlink;
        for (name, _) in &directories {
            nix::sys::stat::utimensat(nix::fcntl::AT_FDCWD, &origin.at(name), &later, &later, flag).unwrap();
        }
    };
    let Some(job) = Job::of(setup, &["host-0", "host-1"], fill) else { return };
    job.origin.tensorfs_ok(["remote", "restore", &job.url, text(&job.pool)]);
    let mount = job.setup.clone().pool_at(&job.pool).mount();
    let found = open(mount.path());
    for (file, uid) in &found {
        let lets: Vec<bool> = seen.iter().map(|seen| seen.contains(&(file.clone(), *uid))).collect();
        assert_eq!(lets, [true, true], "user {uid} reads {file}: {found:?}");
    }
    let is_open = |file: &str, uid| found.contains(&(file.to_owned(), uid));
    assert!(is_open("one-list/f", NAMED) && is_open("open/f", NAMED) && is_open("open/f", ELSE), "{found:?}");
    // Its maker alone.
    assert!(is_open("default-in-newer/made", ELSE), "{found:?}");
}

/// Proves E21, E22, E29.
fn files_of_several_come_whoever_was_killed_and_whichever_is_away(setup: Setup) {
    let Some(job) = Job::new(setup) else { return };
    job.origin.tensorfs_ok(["remote", "restore", "--later", &job.url, text(&job.pool)]);
    // One of them is not reached.
    let (place, elsewhere) = (job.at.join("host-1"), job.at.with_file_name("elsewhere"));
    fs::rename(&place, &elsewhere).unwrap();
    let mut mount = job.setup.clone().pool_at(&job.pool).mount();
    assert_eq!(away(&mount.info()), Some(POOLS.len() as u64 * OWN + 4));
    let waits = {
        let path = mount.at("run/host-1-3");
        thread::spawn(move || fs::read(path))
    };
    for name in ["run/host-2-5", "run/host-0-5"] {
        let (_, expected) = job.expected().into_iter().find(|(of, _)| of == name).unwrap();
        assert!(fs::read(mount.at(name)).unwrap() == expected, "{name}");
    }
    assert!(!waits.is_finished());
    let host_1 = |n: u64| mount.at(format!("run/host-1-{n}"));
    assert_eq!(xattr::get(&host_1(3), "user.tensorfs.state").unwrap(), b"away");
    fs::rename(&elsewhere, &place).unwrap();
    assert!(waits.join().unwrap().unwrap() == Pattern(103).bytes(0, SIZE));
    for round in 0..4 {
        for pid in bringers(mount.path()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        match round % 2 {
            0 => mount.remount(),
            _ => {
                mount.kill9();
                mount.mount();
            }
        }
        let wanted = format!("run/{}-{round}", POOLS[round % 3]);
        let (_, expected) = job.expected().into_iter().find(|(of, _)| *of == wanted).unwrap();
        assert!(fs::read(mount.at(&wanted)).unwrap() == expected, "{wanted}");
    }
    mount.wait_for("files", |info| away(info) == Some(0));
    job.check(mount.path());
    assert_eq!(mount.quarantine(), Vec::<Value>::new());
    mount.umount();
    mount.tensorfs_ok(["check", "--data", text(mount.pool())]);
}

/// What was carried to a directory, as an S3 store with one bucket, which can be read. It answers nobody who asks for
/// an object with a word in its path, until it is let go of.
struct Store {
    top: PathBuf,
    held: &'static str,
    /// How many wait, and whether they are to.
    waiting: Mutex<(usize, bool)>,
    let_go: Condvar,
}

impl Store {
    /// Starts one, and gives its address.
    fn start(top: &Path, held: &'static str) -> (Arc<Self>, String) {
        let (waiting, let_go) = (Mutex::new((0, true)), Condvar::new());
        let store = Arc::new(Self { top: top.to_owned(), held, waiting, let_go });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let this = store.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let this = this.clone();
                thread::spawn(move || this.serve(&stream));
            }
        });
        (store, address)
    }

    fn serve(&self, mut stream: &TcpStream) -> Option<()> {
        let mut requests = BufReader::new(stream);
        loop {
            let mut request = String::new();
            requests.read_line(&mut request).ok().filter(|read| *read > 0)?;
            let mut header = String::new();
            while header.trim_end() != "" || header.is_empty() {
                header.clear();
                requests.read_line(&mut header).ok().filter(|read| *read > 0)?;
            }
            let mut words = request.split(' ');
            let (method, target) = (words.next()?, words.next()?);
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let found = match query {
                "" => self.object(&decoded(path)),
                query => Some(self.listed(query).into_bytes()),
            };
            let (status, body) = found.map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
            let time = "Last-Modified: Tue, 24 Nov 2026 10:00:00 GMT";
            write!(stream, "HTTP/1.1 {status}\r\nETag: \"x\"\r\n{time}\r\nContent-Length: {}\r\n\r\n", body.len())
                .ok()?;
            if method != "HEAD" {
                stream.write_all(&body).ok()?;
            }
        }
    }

    fn object(&self, path: &str) -> Option<Vec<u8>> {
        if path.contains(self.held) {
            let mut waiting = self.waiting.lock().unwrap();
            waiting.0 += 1;
            while waiting.1 {
                waiting = self.let_go.wait(waiting).unwrap();
            }
        }
        fs::read(self.top.join(path.strip_prefix("/bucket/")?)).ok()
    }

    fn listed(&self, query: &str) -> String {
        let value = |of: &str| query.split('&').find_map(|part| part.strip_prefix(of)).map(decoded);
        let (prefix, delimiter) = (value("prefix=").unwrap_or_default(), value("delimiter="));
        let (mut left, mut found) = (vec![prefix], String::new());
        while let Some(way) = left.pop() {
            for entry in fs::read_dir(self.top.join(&way)).into_iter().flatten().flatten() {
                let key = format!("{way}{}", entry.file_name().to_str().unwrap());
                match entry.metadata().unwrap() {
                    dir if dir.is_dir() && delimiter.is_none() => left.push(format!("{key}/")),
                    dir if dir.is_dir() => {
                        found += &format!("<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>");
                    }
                    file => {
                        let time = "<LastModified>2026-11-24T10:00:00.000Z</LastModified><ETag>x</ETag>";
                        found += &format!("<Contents><Key>{key}</Key><Size>{}</Size>{time}</Contents>", file.len());
                    }
                }
            }
        }
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>")
    }

    fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().0
    }

    fn let_go(&self) {
        self.waiting.lock().unwrap().1 = false;
        self.let_go.notify_all();
    }
}

fn decoded(text: &str) -> String {
    text.replace("%2F", "/").replace("%20", " ")
}

/// Proves E29.
fn a_store_that_does_not_answer_holds_up_no_file_of_another(setup: Setup) {
    let Some(job) = Job::new(setup) else { return };
    let base = job.origin.host();
    let (at, log) = (base.join("at"), base.join("log"));
    fs::create_dir(&at).unwrap();
    let (store, address) = Store::start(job.at.parent().unwrap(), "/host-1/objects/");
    let passthrough = if job.setup.passthrough() == Passthrough::On { "on" } else { "off" };
    let mut mount = job.origin.program();
    mount.env("AWS_ACCESS_KEY_ID", "x").env("AWS_SECRET_ACCESS_KEY", "y");
    mount.args(["mount", "--from", "s3://bucket/job", "--endpoint", &address]).arg(&job.pool).arg(&at);
    mount.args(["--passthrough", passthrough, "--log"]).arg(&log);
    let output = mount.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mounted = Mounted::adopt(&at);
    let reads: Vec<_> = (0..OWN)
        .map(|n| {
            let path = at.join(format!("run/host-1-{n}"));
            thread::spawn(move || fs::read(path))
        })
        .collect();
    wait_until("somebody waits for that store", || store.waiting() > 0);
    for (name, bytes) in job.expected().iter().filter(|(name, _)| name.ends_with("host-0-5") || name.contains("2-0")) {
        assert!(fs::read(at.join(name)).unwrap() == *bytes, "{name}");
    }
    assert!(reads.iter().all(|read| !read.is_finished()));
    store.let_go();
    for (n, read) in reads.into_iter().enumerate() {
        assert!(read.join().unwrap().unwrap() == Pattern(100 + n as u64).bytes(0, SIZE), "{n}");
    }
    job.check(&at);
    drop(mounted);
}

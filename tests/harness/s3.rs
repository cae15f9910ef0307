//! An S3 server that keeps its objects on disk: SeaweedFS, which `tests/run` installs. `remote/tests` have it, too.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Keys, as the environment has them.
pub type Keys = [(&'static str, &'static str); 2];

/// Who may do everything there.
const KEYS: Keys = [("AWS_ACCESS_KEY_ID", "all"), ("AWS_SECRET_ACCESS_KEY", "all-secret")];
/// Who may only read.
pub const READER: Keys = [("AWS_ACCESS_KEY_ID", "reader"), ("AWS_SECRET_ACCESS_KEY", "reader-secret")];
/// The bucket of all tests, each of which has a prefix of its own.
const BUCKET: &str = "tensorfs";

const USERS: &str = r#"{"identities":[
    {"name":"all","credentials":[{"accessKey":"all","secretKey":"all-secret"}],"actions":["Admin"]},
    {"name":"reader","credentials":[{"accessKey":"reader","secretKey":"reader-secret"}],"actions":["Read","List"]}]}"#;

/// Runs the server until nobody holds the other end of its standard input, and leaves nothing behind.
const RUN: &str = r#"dir=$1 ports=$2; shift 2
"$@" > "$dir/log" 2>&1 < /dev/null & server=$!
cat > /dev/null
kill -9 $server; wait $server
rm -rf "$dir"
for port in $ports; do rm -f /tmp/seaweedfs-*-"$port".sock; done"#;

/// A server, which ends with whoever started it; or one that is there.
#[derive(Debug)]
pub struct S3 {
    address: String,
    bucket: String,
    alive: Option<ChildStdin>,
}

/// The server that is to be taken, in place of one that is started: its address and a bucket, as `127.0.0.1:7480,x` in
/// `TENSORFS_S3`. Its keys are in the usual variables.
fn other() -> Option<S3> {
    let said = std::env::var("TENSORFS_S3").ok()?;
    let (address, bucket) = said.split_once(',').expect("TENSORFS_S3=ADDRESS,BUCKET");
    Some(S3 { address: address.to_owned(), bucket: bucket.to_owned(), alive: None })
}

/// Who may do everything at the server of this process.
pub fn keys() -> Keys {
    static OWN: OnceLock<Keys> = OnceLock::new();
    let own = |(name, value): (&'static str, &'static str)| {
        let said = std::env::var(name).ok().filter(|_| std::env::var_os("TENSORFS_S3").is_some());
        (name, said.map_or(value, |said| &*said.leak()))
    };
    *OWN.get_or_init(|| KEYS.map(own))
}

/// The server of this process; what is missing if there is none.
pub fn s3() -> Result<&'static S3, String> {
    static SHARED: OnceLock<Result<S3, String>> = OnceLock::new();
    SHARED.get_or_init(|| other().map_or_else(S3::start, Ok)).as_ref().map_err(Clone::clone)
}

/// Where `tests/run` installs a store's programs.
pub fn environment(name: &str) -> Option<PathBuf> {
    let environments = match std::env::var_os("TENSORFS_VENV") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe().ok()?.ancestors().nth(3)?.join("venv"),
    };
    Some(environments.join(name))
}

/// The program, where `tests/run` puts it.
fn program() -> Option<PathBuf> {
    environment("s3").map(|at| at.join("bin/weed")).filter(|program| program.exists())
}

/// Starts a store, which ends with whoever holds what is returned; then its directory is removed.
pub fn held(dir: &Path, ports: &str, store: &Command) -> Option<ChildStdin> {
    let mut command = Command::new("bash");
    command.args(["-c", RUN, "s3"]).arg(dir).arg(ports).arg(store.get_program()).args(store.get_args());
    command.env("HOME", dir).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = command.spawn().ok()?;
    let alive = server.stdin.take()?;
    std::thread::spawn(move || server.wait());
    Some(alive)
}

/// So many ports that nobody uses; the protocol between its parts has one of its own for each of theirs.
pub fn ports(ip: &str) -> Vec<u16> {
    let held: Vec<TcpListener> = (0..8).map(|_| TcpListener::bind((ip, 0)).unwrap()).collect();
    held.iter().map(|one| one.local_addr().unwrap().port()).collect()
}

impl S3 {
    fn start() -> Result<Self, String> {
        Self::start_on("127.0.0.1")
    }

    /// One that listens at an address of this machine.
    ///
    /// # Errors
    /// What is missing, if there can be none.
    pub fn start_on(ip: &str) -> Result<Self, String> {
        let program = program().ok_or("no S3 server: tests/run installs one")?;
        // Somebody else may take a port just now.
        (0..3)
            .find_map(|_| Self::start_at(&program, ip, &ports(ip)))
            .ok_or_else(|| "the S3 server does not start".to_owned())
    }

    fn start_at(program: &Path, ip: &str, ports: &[u16]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap().keep();
        let users = dir.join("users.json");
        std::fs::write(&users, USERS).unwrap();
        let all: Vec<String> = ports.iter().map(u16::to_string).collect();
        let mut command = Command::new(program);
        command.args(["server", "-master.telemetry=false", "-filer", "-s3"]);
        command.args(["ip", "ip.bind"].map(|what| format!("-{what}={ip}")));
        command.args(["-volume.max=50", "-master.volumeSizeLimitMB=256", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.arg(format!("-dir={}", dir.display())).arg(format!("-s3.config={}", users.display()));
        let parts = ["master.port", "volume.port", "filer.port", "s3.port"];
        for (part, pair) in parts.iter().zip(all.chunks(2)) {
            command.args([format!("-{part}={}", pair[0]), format!("-{part}.grpc={}", pair[1])]);
        }
        let alive = held(&dir, &all.join(" "), &command)?;
        let address = format!("{ip}:{}", ports[6]);
        // Whoever keeps bytes has told of himself, and S3 is spoken.
        let bucket = format!("/buckets/{BUCKET}/");
        let is_there = || {
            says((ip, ports[0]), "GET", "/dir/assign", "\"fid\"")
                && says((ip, ports[6]), "GET", "/", "HTTP/1.1 ")
                && says((ip, ports[4]), "POST", &bucket, "HTTP/1.1 201")
        };
        for _ in 0..600 {
            if is_there() {
                return Some(Self { address, bucket: BUCKET.to_owned(), alive: Some(alive) });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        None
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// True if it was there before, and has other users.
    pub fn is_other(&self) -> bool {
        self.alive.is_none()
    }

    /// A prefix that no other test has.
    pub fn new_place(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("s3://{}/{}-{number}", self.bucket, std::process::id())
    }

    /// As `--endpoint` takes it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// True if a server says this to whoever asks it.
pub fn says(at: (&str, u16), method: &str, path: &str, word: &str) -> bool {
    let answer = || {
        let mut stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&said).into_owned())
    };
    answer().is_ok_and(|said| said.contains(word))
}

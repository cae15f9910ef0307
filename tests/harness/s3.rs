//! An S3 server that keeps its objects on disk: SeaweedFS, which `tests/run` installs. `remote/tests` have it, too.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Who may do everything there.
pub const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "all"), ("AWS_SECRET_ACCESS_KEY", "all-secret")];
/// Who may only read.
pub const READER: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "reader"), ("AWS_SECRET_ACCESS_KEY", "reader-secret")];
/// The bucket of all tests, each of which has a prefix of its own.
pub const BUCKET: &str = "tensorfs";

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

/// A server, which ends with whoever started it.
#[derive(Debug)]
pub struct S3 {
    address: String,
    _alive: ChildStdin,
}

/// The server of this process; what is missing if there is none.
pub fn s3() -> Result<&'static S3, String> {
    static SHARED: OnceLock<Result<S3, String>> = OnceLock::new();
    SHARED.get_or_init(S3::start).as_ref().map_err(Clone::clone)
}

/// The program, where `tests/run` puts it.
fn program() -> Option<PathBuf> {
    let environments = match std::env::var_os("TENSORFS_VENV") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe().ok()?.ancestors().nth(3)?.join("venv"),
    };
    let program = environments.join("s3/bin/weed");
    program.exists().then_some(program)
}

/// So many ports that nobody uses; the protocol between its parts has one of its own for each of theirs.
fn ports() -> Vec<u16> {
    let held: Vec<TcpListener> = (0..8).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|one| one.local_addr().unwrap().port()).collect()
}

impl S3 {
    fn start() -> Result<Self, String> {
        let program = program().ok_or("no S3 server: tests/run installs one")?;
        // Somebody else may take a port just now.
        (0..3).find_map(|_| Self::start_at(&program, &ports())).ok_or_else(|| "the S3 server does not start".to_owned())
    }

    fn start_at(program: &Path, ports: &[u16]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap().keep();
        let users = dir.join("users.json");
        std::fs::write(&users, USERS).unwrap();
        let all: Vec<String> = ports.iter().map(u16::to_string).collect();
        let mut command = Command::new("bash");
        command.args(["-c", RUN, "s3"]).arg(&dir).arg(all.join(" ")).arg(program);
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-filer", "-s3"]);
        command.args(["-volume.max=50", "-master.volumeSizeLimitMB=256", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.arg(format!("-dir={}", dir.display())).arg(format!("-s3.config={}", users.display()));
        let parts = ["master.port", "volume.port", "filer.port", "s3.port"];
        for (part, pair) in parts.iter().zip(all.chunks(2)) {
            command.args([format!("-{part}={}", pair[0]), format!("-{part}.grpc={}", pair[1])]);
        }
        command.env("HOME", &dir).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = command.spawn().ok()?;
        let alive = server.stdin.take()?;
        std::thread::spawn(move || server.wait());
        let address = format!("127.0.0.1:{}", ports[6]);
        // Whoever keeps bytes has told of himself, and S3 is spoken.
        let bucket = format!("/buckets/{BUCKET}/");
        let is_there = || {
            says(ports[0], "GET", "/dir/assign", "\"fid\"")
                && says(ports[6], "GET", "/", "HTTP/1.1 ")
                && says(ports[4], "POST", &bucket, "HTTP/1.1 201")
        };
        for _ in 0..600 {
            if is_there() {
                return Some(Self { address, _alive: alive });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        None
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// As `--endpoint` takes it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A prefix that no other test has, in the bucket.
pub fn new_place() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("s3://{BUCKET}/{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// True if a server says this to whoever asks it.
fn says(port: u16, method: &str, path: &str, word: &str) -> bool {
    let answer = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
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

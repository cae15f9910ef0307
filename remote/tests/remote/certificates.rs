//! Over TLS: a store whose certificate an authority has signed that this machine does not know, and then does.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::over_s3::{Over, server};
use crate::program::text;
use crate::s3::keys;
use crate::skipping::has;

/// Says its port, ends what it is spoken with by TLS there, and hands it on to a store.
const RELAY: &str = r#"
import socket, ssl, sys, threading

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
host, port = sys.argv[3].rsplit(":", 1)

def hand_on(one, other):
    try:
        while some := one.recv(65536):
            other.sendall(some)
    except OSError:
        pass
    for end in (one, other):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

def serve(client):
    try:
        client = context.wrap_socket(client, server_side=True)
        store = socket.create_connection((host, int(port)))
    except OSError:
        client.close()
        return
    threading.Thread(target=hand_on, args=(store, client), daemon=True).start()
    hand_on(client, store)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Makes an authority, and a certificate of it for 127.0.0.1.
const CERTIFICATES: &str = "
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout own.key -out authority.pem
openssl req -newkey rsa:2048 -nodes -subj /CN=store -keyout store.key -out asked
echo subjectAltName=IP:127.0.0.1 > for
openssl x509 -req -in asked -CA authority.pem -CAkey own.key -set_serial 7 -days 2 -extfile for -out store.pem";

/// A relay that ends with the test.
struct Relay {
    server: Child,
    endpoint: String,
    authority: PathBuf,
}

impl Relay {
    fn start(dir: &Path, store: &str) -> Self {
        let made = Command::new("bash").args(["-e", "-c", CERTIFICATES]).current_dir(dir).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut server = Command::new("python3");
        server.args(["-c", RELAY]).args([dir.join("store.pem"), dir.join("store.key")]).arg(store);
        let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let endpoint = format!("https://127.0.0.1:{}", port.trim());
        Self { server, endpoint, authority: dir.join("authority.pem") }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Whoever carries, lists, restores or sets hears one line; the status has it, too. With the authority's file in the
/// environment all of it is done.
///
/// Proves E14.
#[test]
fn a_certificate_that_is_not_trusted_is_told_in_one_line() {
    const NAME: &str = "a_certificate_that_is_not_trusted_is_told_in_one_line";
    if !has(NAME, &[("openssl", "version"), ("python3", "--version"), ("bash", "--version")]) {
        return;
    }
    let Some(server) = server(NAME) else { return };
    let mut over = Over::new(server);
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path(), server.address());
    let (own, copy) = (text(&over.own).to_owned(), dir.path().join("copy"));
    over.ok(&["off", &own]);
    over.file("file", 100_000);
    let run = |is_trusted: bool, arguments: &[&str]| -> Output {
        let mut command = Over::command(keys(), arguments);
        command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR").env_remove("RUST_LOG");
        if is_trusted {
            command.env("SSL_CERT_FILE", &relay.authority);
        }
        command.output().unwrap()
    };
    let said = |arguments: &[&str]| {
        let why = Over::why(&run(false, arguments));
        assert!(why.contains("the store's certificate is not trusted by this machine"), "{why}");
        why
    };
    let ok = |arguments: &[&str]| {
        let output = run(true, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let set = ["set", &own, &over.url, "--endpoint", &relay.endpoint];
    said(&set);
    ok(&set);
    let why = said(&["carry", &own]);
    let error = over.status()["error"].as_str().unwrap().to_owned();
    assert!(why.contains(&error), "{why}: {error}");
    ok(&["carry", &own]);
    assert!(over.status()["error"].is_null() && over.status()["batch"] == 1, "{}", over.status());
    said(&over.at(&relay.endpoint, "list", &[]));
    let restore = over.at(&relay.endpoint, "restore", &[text(&copy)]);
    said(&restore);
    ok(&restore);
    ok(&over.at(&relay.endpoint, "check", &["--data"]));
    assert!(crate::pools::seen(&copy) == crate::pools::seen(&over.own));
}

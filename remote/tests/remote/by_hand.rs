//! The script of docs/REMOTE.md, as it stands there, on a plain HTTP server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use tensorfs_layout::ROOT;
use tensorfs_remote::place::{Access, Place};
use tensorfs_remote::repository::Repository;

use crate::pools::{TestPool, noise};
use crate::skipping::has;

#[test]
fn a_file_comes_back_with_curl_alone() {
    let programs = ["curl", "jq", "b3sum", "python3", "bash"].map(|program| (program, "--version"));
    if !has("a_file_comes_back_with_curl_alone", &programs) {
        return;
    }
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/REMOTE.md")).unwrap();
    let behind = text.split_once("## A file with curl alone").unwrap().1;
    let script = behind.split_once("```sh\n").unwrap().1.split_once("```").unwrap().0;
    let mut pool = TestPool::new();
    let runs = [noise(1, 70), noise(2, 2 << 20), vec![0; 1 << 20], noise(3, 100_000)];
    let remote = pool.dir.path().join("remote");
    for last in 0..2 {
        pool.edit(|edit| {
            let dir = edit.make(ROOT, format!("d{last}").as_bytes(), libc::S_IFDIR | 0o755, |_, _| {});
            for file in 0..2000 {
                edit.make(dir, format!("something-{file}").as_bytes(), libc::S_IFREG | 0o600, |_, _| {});
            }
            let runs: Vec<&[u8]> = runs.iter().map(Vec::as_slice).collect();
            edit.file(ROOT, format!("model {last}.bin").as_bytes(), &runs, true);
        });
        let place = Place::make(&format!("file://{}", remote.display()), &Access::default()).unwrap();
        pool.carrier(place).unwrap().pass().unwrap();
    }
    let mut server = Command::new("python3");
    server.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]).current_dir(&remote);
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let url = said.split_once('(').unwrap().1.split_once(')').unwrap().0.trim_end_matches('/').to_owned();
    let by_hand = |name: &str, from: &[&str]| {
        let scratch = tempfile::tempdir().unwrap();
        let mut bash = Command::new("bash");
        bash.args(["-e", "-c", script, "bash", &url, name]).args(from);
        let output = bash.current_dir(scratch.path()).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        (output.status.success(), fs::read(scratch.path().join(name)).unwrap_or_default())
    };
    let from_nothing = by_hand("model 1.bin", &["log/000000000001", "log/000000000002"]);
    // From a base on, which a carrier or a collection puts, and without what is before it.
    let repository = Repository::new(Place::open(&format!("file://{}", remote.display()), &Access::default()).unwrap());
    repository.put_base(&mut repository.tree_at(Some(2)).unwrap()).unwrap();
    pool.edit(|edit| edit.file(ROOT, b"behind", &[&runs[3]], true));
    let place = Place::open(&format!("file://{}", remote.display()), &Access::default()).unwrap();
    pool.carrier(place).unwrap().pass().unwrap();
    for gone in ["log/000000000001", "log/000000000002"] {
        fs::remove_file(remote.join(gone)).unwrap();
    }
    let with_base = ["base/000000000002", "log/000000000003"];
    let from_base = ["model 0.bin", "model 1.bin", "behind"].map(|name| by_hand(name, &with_base));
    let _ = server.kill();
    server.wait().unwrap();
    let all = runs.concat();
    assert!(from_nothing == (true, all.clone()));
    assert!(from_base == [(true, all.clone()), (true, all), (true, runs[3].clone())]);
}

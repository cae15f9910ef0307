//! The program itself, killed at any moment.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};

use crate::pools::{TestPool, noise, seen};

fn carrier(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
    command.args(arguments).stdout(Stdio::null());
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Proves E2.
#[test]
fn carriers_and_restores_that_are_killed_are_gone_on_with() {
    let rounds: u64 = std::env::var("TENSORFS_REMOTE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let mut pool = TestPool::new();
    let url = format!("file://{}/remote", pool.dir.path().display());
    let own = pool.path();
    assert!(carrier(&["set", text(&own), &url]).status().unwrap().success());
    for round in 0..rounds {
        pool.edit(|edit| {
            for file in 0..4 {
                let runs = [noise(round * 10 + file, 3 << 20), noise(round, 40_000)];
                edit.file(ROOT, format!("{round}-{file}").as_bytes(), &[&runs[0], &runs[1]], true);
            }
        });
        let copy = pool.dir.path().join(format!("copy-{round}"));
        for (number, arguments) in
            [["carry", text(&own), "--interval=1"], ["restore", &url, text(&copy)]].iter().enumerate()
        {
            let mut killed = carrier(arguments).spawn().unwrap();
            std::thread::sleep(Duration::from_millis((round * 37 + number as u64 * 11) % 300));
            let _ = killed.kill();
            killed.wait().unwrap();
            if number == 0 {
                assert!(carrier(arguments).status().unwrap().success());
            }
        }
        if !copy.exists() {
            assert!(carrier(&["restore", &url, text(&copy)]).status().unwrap().success());
        }
        assert!(seen(&copy) == seen(&own), "round {round}");
        assert!(carrier(&["check", &url, "--data"]).status().unwrap().success());
    }
}

/// Proves E9.
#[test]
fn credentials_are_kept_and_told_nowhere() {
    const SECRETS: [&str; 2] = ["AKIDNOTTOBESEEN", "not-to-be-seen-secret"];
    let mut pool = TestPool::new();
    pool.edit(|edit| edit.file(ROOT, b"file", &[b"bytes"], true));
    let remote = pool.dir.path().join("remote");
    let own = pool.path();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
        command.env("AWS_ACCESS_KEY_ID", SECRETS[0]).env("AWS_SECRET_ACCESS_KEY", SECRETS[1]).env("RUST_LOG", "trace");
        command.args(arguments).output().unwrap()
    };
    let url = format!("file://{}", remote.display());
    let outputs = [
        run(&["set", text(&own), "s3://bucket/x", "--endpoint", "http://127.0.0.1:1", "--region", "x"]),
        run(&["set", text(&own), &url]),
        run(&["carry", text(&own)]),
        run(&["status", text(&own), "--json"]),
    ];
    assert_eq!(outputs.each_ref().map(|output| output.status.success()), [false, true, true, true]);
    for output in &outputs {
        let said = [&output.stdout[..], &output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!SECRETS.iter().any(|secret| said.contains(secret)), "{said}");
    }
    let grep = Command::new("grep").args(["-rlF", "-e", SECRETS[0], "-e", SECRETS[1]]).arg(pool.dir.path()).output();
    assert!(grep.unwrap().stdout.is_empty());
}

/// By whatever signal: what was put stays, a file that is fetched has its name only with all its bytes, and a
/// collection and a check begin anew.
///
/// Proves E6, E18.
#[test]
fn whatever_is_interrupted_is_done_when_it_is_called_again() {
    let rounds: u64 = std::env::var("TENSORFS_REMOTE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(9);
    let mut pool = TestPool::new();
    let url = format!("file://{}/remote", pool.dir.path().display());
    let own = pool.path();
    assert!(carrier(&["set", text(&own), &url]).status().unwrap().success());
    for round in 0..rounds {
        let bytes = noise(round, 6 << 20);
        pool.edit(|edit| {
            if round > 0 {
                let name = format!("f-{}", round - 1).into_bytes();
                edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: name.into() }));
            }
            edit.file(ROOT, format!("f-{round}").as_bytes(), &[&bytes], true);
        });
        let signal = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL][round as usize % 3];
        let name = format!("f-{round}");
        let got = pool.dir.path().join(format!("got-{round}"));
        for (number, arguments) in [
            &["carry", text(&own)][..],
            &["get", &url, &name, "--to", text(&got)],
            &["check", &url, "--data"],
            &["gc", text(&own), "--keep-last", "2"],
        ]
        .iter()
        .enumerate()
        {
            let mut killed = carrier(arguments).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis((round * 23 + number as u64 * 7) % 60));
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(killed.id() as i32), signal);
            let done = killed.wait().unwrap().success();
            let is_there = got.exists();
            assert!(!is_there || fs::read(&got).unwrap() == bytes, "a part of a file has its name");
            let is_got = number == 1 && is_there;
            if !done && !is_got {
                assert!(carrier(arguments).status().unwrap().success(), "{arguments:?}");
            }
        }
        assert!(fs::read(&got).unwrap() == bytes);
        let beside = fs::read_dir(pool.dir.path()).unwrap().count();
        assert_eq!(beside as u64, 2 + round + 1, "something is left beside what was asked for");
        for at in round.max(1)..=round + 1 {
            assert!(carrier(&["list", &url, "--at", &at.to_string()]).status().unwrap().success(), "{round} {at}");
        }
        assert!(carrier(&["check", &url, "--data"]).status().unwrap().success());
    }
}

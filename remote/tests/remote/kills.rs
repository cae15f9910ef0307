//! The program itself, killed at any moment.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tensorfs_layout::ROOT;
use tensorfs_layout::log::{Record, Transaction};
use tensorfs_remote::place::{Access, Place};
use tensorfs_remote::repository::Repository;
use tensorfs_remote::restore::restore;

use crate::pools::{TestPool, noise, seen};
use crate::random::Random;
use crate::slow::Store;

fn carrier(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorfs-carrier"));
    command.args(arguments).stdout(Stdio::null());
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// How many rounds, if a variable says so.
fn rounds(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How long something takes that is killed at a moment of that.
struct Length(Duration);

impl Length {
    /// Some moment of it; of four, one is close to its end.
    fn moment(&self, random: &mut Random) -> Duration {
        let all = (self.0.as_micros() as u64).max(1);
        let from = if random.below(4) == 0 { all - all / 5 } else { 0 };
        Duration::from_micros(from + random.below(all - from))
    }

    /// Kills it there. True if it had not ended by then, of which more is known of its length: it is an average that
    /// follows what comes.
    fn kill(&mut self, killed: &mut Child, moment: Duration) -> bool {
        let begun = Instant::now();
        let mut ended = None;
        while begun.elapsed() < moment && ended.is_none() {
            std::thread::sleep(Duration::from_millis(1).min(moment.saturating_sub(begun.elapsed())));
            ended = killed.try_wait().unwrap();
        }
        if ended.is_some() {
            self.0 = (self.0 * 7 + begun.elapsed()) / 8;
        } else if moment > self.0 * 9 / 10 {
            // It may take longer than was thought.
            self.0 = self.0 * 17 / 16;
        }
        let _ = killed.kill();
        killed.wait().unwrap();
        ended.is_none()
    }
}

/// A carrier, and then a restore, is killed at any moment up to its end, again and again.
///
/// Proves E2.
#[test]
fn carriers_and_restores_that_are_killed_are_gone_on_with() {
    let rounds = rounds("TENSORFS_REMOTE_KILLS", 6);
    let mut pool = TestPool::new();
    let url = format!("file://{}/remote", pool.dir.path().display());
    let (own, copy) = (pool.path(), pool.dir.path().join("copy"));
    assert!(carrier(&["set", text(&own), &url]).status().unwrap().success());
    let carry = ["carry", text(&own), "--interval=1"];
    let restore = ["restore", &*url, text(&copy)];
    let next = |pool: &mut TestPool, round: u64| {
        pool.edit(|edit| {
            for file in 0..4 {
                // Not all that was ever carried is to stay in the remote, which has what it had some rounds before.
                let runs = [noise(round % 8 * 10 + file, 1 << 20), noise(round, 40_000)];
                edit.file(ROOT, format!("{round}-{file}").as_bytes(), &[&runs[0], &runs[1]], true);
                if let Some(gone) = round.checked_sub(2) {
                    let name = format!("{gone}-{file}").into_bytes();
                    edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: name.into() }));
                }
            }
        });
    };
    let took = |arguments: &[&str]| {
        let begun = Instant::now();
        assert!(carrier(arguments).status().unwrap().success(), "{arguments:?}");
        begun.elapsed()
    };
    next(&mut pool, 0);
    let mut lengths = [Length(took(&carry)), Length(took(&restore))];
    fs::remove_dir_all(&copy).unwrap();
    let mut killed = [0; 2];
    for round in 1..=rounds {
        let mut random = Random::of(&[18, 4, round]);
        next(&mut pool, round);
        for (number, arguments) in [&carry[..], &restore].into_iter().enumerate() {
            let mut child = carrier(arguments).spawn().unwrap();
            let moment = lengths[number].moment(&mut random);
            killed[number] += u64::from(lengths[number].kill(&mut child, moment));
            if number == 0 {
                took(arguments);
            }
        }
        // One that has its name is whole.
        if !copy.exists() {
            took(&restore);
        }
        assert!(seen(&copy) == seen(&own), "round {round}");
        assert!(!copy.with_file_name("copy.restoring").exists(), "round {round}");
        fs::remove_dir_all(&copy).unwrap();
        took(&["check", &url, "--data"]);
        if round % 16 == 0 {
            took(&["gc", text(&own), "--keep-last", "2"]);
        }
    }
    println!("of {rounds} each {} carriers and {} restores were killed before their ends", killed[0], killed[1]);
}

/// Whoever ends between the last byte and the name leaves what the next one goes on with; and behind that, a pool with
/// the mark of its restore, which says nothing.
///
/// Proves E2.
#[test]
fn a_restore_that_ends_before_its_pool_has_its_name_is_gone_on_with() {
    let mut pool = TestPool::new();
    let copy = pool.dir.path().join("copy");
    let staged = copy.with_file_name("copy.restoring");
    pool.edit(|edit| edit.file(ROOT, b"file", &[&noise(1, 1 << 20), &noise(2, 40_000)], true));
    let url = format!("file://{}/remote", pool.dir.path().display());
    let own = pool.path();
    for arguments in [&["set", text(&own), &url][..], &["carry", text(&own)]] {
        assert!(carrier(arguments).status().unwrap().success(), "{arguments:?}");
    }
    let repository = Repository::new(Place::open(&url, &Access::default()).unwrap());
    let newest = repository.newest().unwrap();
    let mark = std::cell::RefCell::new(Vec::new());
    // The name is taken meanwhile, by what is there for a time.
    let takes_the_name = |_, _| {
        fs::create_dir_all(copy.join("x")).unwrap();
        *mark.borrow_mut() = fs::read(staged.join("remote")).unwrap();
    };
    restore(&repository, &newest, &copy, &takes_the_name).unwrap_err();
    assert!(staged.join("log").exists() && copy.join("x").exists());
    fs::remove_dir_all(&copy).unwrap();
    let restore = ["restore", &*url, text(&copy)];
    assert!(carrier(&restore).status().unwrap().success());
    assert!(seen(&copy) == seen(&own) && !staged.exists() && !copy.join("remote").exists());

    fs::write(copy.join("remote"), &*mark.borrow()).unwrap();
    assert!(!carrier(&["status", text(&copy)]).stderr(Stdio::null()).status().unwrap().success(), "it has no remote");
    let other = format!("file://{}/other", pool.dir.path().display());
    for arguments in [&["set", text(&copy), &other][..], &["carry", text(&copy)], &["check", &other, "--data"]] {
        assert!(carrier(arguments).status().unwrap().success(), "{arguments:?}");
    }
    assert!(seen(&copy) == seen(&own));
}

/// Not in a trace either: of a store that is not reached, of a directory, and of one that takes what is put and gives
/// it back.
///
/// Proves E9.
#[test]
fn credentials_are_kept_and_told_nowhere() {
    const SECRETS: [&str; 3] = ["AKIDNOTTOBESEEN", "not-to-be-seen-secret", "not-to-be-seen-token"];
    let mut pool = TestPool::new();
    pool.edit(|edit| edit.file(ROOT, b"file", &[b"bytes"], true));
    let (remote, copy) = (pool.dir.path().join("remote"), pool.dir.path().join("copy"));
    let (own, url) = (pool.path(), format!("file://{}", remote.display()));
    let (store, endpoint) = Store::start(false, false);
    let run = |arguments: &[&str]| {
        let mut command = carrier(arguments);
        command.env("AWS_ACCESS_KEY_ID", SECRETS[0]).env("AWS_SECRET_ACCESS_KEY", SECRETS[1]);
        command.env("AWS_SESSION_TOKEN", SECRETS[2]).env("RUST_LOG", "trace");
        command.stdout(Stdio::piped()).output().unwrap()
    };
    let nowhere = ["set", text(&own), "s3://bucket/x", "--endpoint", "http://127.0.0.1:1", "--region", "x"];
    let reach = ["--endpoint", &*endpoint, "--region", "x"];
    let of = |command: &str, more: &[&str]| run(&[&[command, "s3://bucket/x"], more, &reach].concat());
    let all = [
        (run(&nowhere), false),
        (run(&["set", text(&own), &url]), true),
        (run(&["carry", text(&own)]), true),
        (run(&["status", text(&own), "--json"]), true),
        (run(&["off", text(&own)]), true),
        (run(&[&["set", text(&own), "s3://bucket/x"], &reach[..]].concat()), true),
        (run(&["carry", text(&own)]), true),
        (run(&["status", text(&own), "--json"]), true),
        (of("list", &[]), true),
        (of("get", &["/file"]), true),
        (of("restore", &[text(&copy)]), true),
        (of("get", &["/none"]), false),
    ];
    for (number, (output, is_well)) in all.iter().enumerate() {
        let said = [&output.stdout[..], &output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.success(), *is_well, "{number}: {said}");
        assert!(!SECRETS.iter().any(|secret| said.contains(secret)), "{number}: {said}");
    }
    let traced = String::from_utf8_lossy(&all[6].0.stderr);
    assert!(traced.contains("TRACE") && traced.contains("127.0.0.1"), "nothing is traced: {traced}");
    let mut grep = Command::new("grep");
    let grep =
        grep.arg("-rlF").args(SECRETS.map(|secret| format!("-e{secret}"))).arg(pool.dir.path()).output().unwrap();
    assert!(grep.stdout.is_empty(), "{}", String::from_utf8_lossy(&grep.stdout));
    assert!(!store.has_any(&SECRETS));
}

/// By whatever signal: what was put stays, a file that is fetched has its name only with all its bytes, and a
/// collection and a check begin anew.
///
/// Proves E6, E18.
#[test]
fn whatever_is_interrupted_is_done_when_it_is_called_again() {
    let rounds = rounds("TENSORFS_REMOTE_INTERRUPTS", 9);
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

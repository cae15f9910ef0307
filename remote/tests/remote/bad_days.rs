//! Over S3, and over others, on bad days: answers that come late, cut, spoiled, old or not at all. What was carried
//! stays, nothing is torn, whoever waits hears no yes too early, and all goes on afterwards.

use std::time::Duration;

use serde_json::Value;

use crate::over_s3::{Over, Reached, server};
use crate::pools::{TestPool, noise, seen};
use crate::program::{Watching, text};
use crate::proxy::Fault::{CutAnswer, CutRequest, Delay, Say, SpoilAnswer, SpoilRequest, Stale};
use crate::proxy::{Fault, LISTING, Rule};
use crate::random::Random;

/// What is at the place now is what the pool has, each byte of it.
#[track_caller]
fn is_whole(over: &Over) {
    let endpoint = over.endpoint();
    over.ok(&over.at(&endpoint, "check", &["--data"]));
    over.restores(&endpoint, &[]);
}

/// Of each request one in eight has a fault that is drawn. Whatever the carrier, a restore, a check, a wait and a
/// collection make of it: what succeeds is right, what fails says so in one line, and once the store is well again all
/// of it is there.
///
/// Proves E2, E4, E6, E8, E18.
#[test]
fn whatever_becomes_of_requests_nothing_is_lost_or_torn() {
    let Some(server) = server("whatever_becomes_of_requests_nothing_is_lost_or_torn") else { return };
    nothing_is_lost_or_torn(server);
}

pub fn nothing_is_lost_or_torn(server: &impl Reached) {
    let rounds = std::env::var("TENSORFS_REMOTE_FAULTS").ok().and_then(|text| text.parse().ok()).unwrap_or(3_u64);
    let mut over = Over::new(server);
    let (own, endpoint) = (text(&over.own).to_owned(), over.endpoint());
    let (mut well, mut failed) = (0, 0);
    for round in 0..rounds {
        let mut random = Random::of(&[18, round]);
        over.file(&format!("large-{round}"), (1 << 20) + random.below(1 << 20) as usize);
        over.file(&format!("small-{round}"), random.below(90_000) as usize);
        if round > 1 {
            over.remove(&format!("large-{}", round - 2));
        }
        over.proxy.draw(12, round);
        let copy = over.pool.dir.path().join(format!("copy-{round}"));
        for (number, command) in ["carry", "restore", "wait", "gc", "check"].into_iter().enumerate() {
            let arguments = match command {
                "carry" | "wait" => vec![command, &own],
                "gc" => vec![command, &own, "--keep-last", "2"],
                "check" => over.at(&endpoint, command, &["--data"]),
                _ => over.at(&endpoint, command, &[text(&copy)]),
            };
            let before = over.status()["batch"].as_u64();
            let output = over.run(&arguments);
            if !output.status.success() {
                failed += 1;
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                // What a check finds are lines of its own, before what it says of them all.
                assert!(output.status.code() == Some(1) && !said.is_empty(), "{command}: {said}");
                assert!(command == "check" || said.lines().filter(|line| line.starts_with("tensorfs")).count() == 1);
                let is_told = over.status()["error"].as_str().is_some_and(|error| said.contains(error));
                assert!(number != 0 || is_told, "{said}: {}", over.status());
                continue;
            }
            well += 1;
            over.proxy.faults(&[]);
            match command {
                "carry" | "wait" => over.restores(&endpoint, &[]),
                "restore" => assert!(seen(&copy) == seen(&over.own) || before < over.status()["batch"].as_u64()),
                _ => {}
            }
            over.proxy.draw(12, round * 10 + number as u64 + 1000);
        }
        over.proxy.faults(&[]);
        over.carry();
        over.ok(&["gc", &own, "--keep-last", "2"]);
        assert!(over.status()["error"].is_null(), "round {round}: {}", over.status());
        is_whole(&over);
    }
    println!("of {} commands {failed} failed", well + failed);
    assert!(failed > 0 || rounds < 3, "there were no faults");
}

/// What a store says of a put, and what its carrier says of that.
const WORDS: [(Fault, &str); 5] = [
    // Another put of it is on its way, as the store sees it.
    (Say(409, "ConditionalRequestConflict"), "another put of it is on its way"),
    (Say(403, "RequestTimeTooSkewed"), "the clock of this machine is wrong"),
    (Say(403, "AccessDenied"), "these credentials may not do that here"),
    (Say(400, "AuthorizationHeaderMalformed"), "the bucket is in another region (--region)"),
    (Say(507, "InsufficientStorage"), "507"),
];

/// A batch whose put is answered with a conflict, or whose answer is lost, is nobody else's.
///
/// Proves E2, E5, E14.
#[test]
fn a_batch_that_nobody_heard_of_is_the_own_one() {
    let Some(server) = server("a_batch_that_nobody_heard_of_is_the_own_one") else { return };
    a_batch_is_the_own_one(server, WORDS);
}

pub fn a_batch_is_the_own_one(server: &impl Reached, said: [(Fault, &'static str); 5]) {
    let mut over = Over::new(server);
    let own = text(&over.own).to_owned();
    let unsaid = [CutAnswer(None), CutRequest(100), Delay(Duration::from_millis(300))].map(|fault| (fault, None));
    let said = said.into_iter().map(|(fault, hint)| (fault, Some(hint)));
    for (round, (fault, hint)) in said.chain(unsaid).enumerate() {
        over.file(&format!("file-{round}"), 100_000);
        let always = Rule::all("PUT", "/log/", fault);
        over.proxy.faults(&[if hint.is_some() { always } else { Rule { times: 1, ..always } }]);
        let output = over.run(&["carry", &own]);
        assert!(output.status.success() == (over.status()["batch"] == round + 1), "{fault:?}: {}", over.status());
        if let Some(hint) = hint {
            let why = Over::why(&output);
            assert!(why.contains(hint), "{fault:?}: {why}");
            assert!(over.status()["error"].as_str().is_some_and(|error| error.contains(hint)));
        }
        over.proxy.faults(&[]);
        over.carry();
        assert_eq!(over.status()["batch"], round + 1, "{fault:?}");
    }
    is_whole(&over);
}

/// What is spoiled on its way to the store is not taken for what was put, and what is spoiled on its way back not for
/// what is there: once is asked for again, always is damage, in one line.
///
/// Proves E4.
#[test]
fn what_is_spoiled_on_its_way_is_not_believed() {
    let Some(server) = server("what_is_spoiled_on_its_way_is_not_believed") else { return };
    what_is_spoiled_is_not_believed(server);
}

pub fn what_is_spoiled_is_not_believed(server: &impl Reached) {
    let mut over = Over::new(server);
    let (own, endpoint) = (text(&over.own).to_owned(), over.endpoint());
    over.file("file", 3 << 20);
    if server.looks_at_bytes() {
        for part in ["/objects/", "/log/"] {
            over.proxy.faults(&[Rule::all("PUT", part, SpoilRequest)]);
            Over::why(&over.run(&["carry", &own]));
        }
    }
    over.proxy.faults(&[]);
    over.carry();
    is_whole(&over);
    for (part, fault) in [
        ("/objects/", SpoilAnswer),
        ("/log/", SpoilAnswer),
        ("/objects/", Say(404, "NoSuchKey")),
        ("/objects/", CutAnswer(Some(1000))),
    ] {
        over.proxy.faults(&[Rule::once("GET", part, fault)]);
        over.restores(&endpoint, &[]);
        over.proxy.faults(&[Rule::all("GET", part, fault)]);
        let copy = over.pool.dir.path().join("spoiled");
        let why = Over::why(&over.run(&over.at(&endpoint, "restore", &[text(&copy)])));
        assert!(!copy.exists(), "{part} {fault:?}: {why}");
        let got = over.run(&over.at(&endpoint, "get", &["/file"]));
        assert!(got.status.code() == Some(1) && got.stdout.len() < 3 << 20, "{part} {fault:?}");
        over.proxy.faults(&[]);
        over.ok(&over.at(&endpoint, "restore", &[text(&copy)]));
        assert!(seen(&copy) == seen(&over.own));
        std::fs::remove_dir_all(&copy).unwrap();
    }
}

/// A store whose listings are older than what is there makes nobody go on from an older tree, nor put what others have,
/// nor remove what is needed.
///
/// Proves E2, E5, E6.
#[test]
fn a_listing_that_is_old_loses_nothing() {
    let Some(server) = server("a_listing_that_is_old_loses_nothing") else { return };
    an_old_listing_loses_nothing(server);
}

pub fn an_old_listing_loses_nothing(server: &impl Reached) {
    let mut over = Over::new(server);
    let (own, endpoint) = (text(&over.own).to_owned(), over.endpoint());
    over.file("before", 70_000);
    over.carry();
    // What was listed up to here is what is listed from here on.
    let listings = [Rule::all("GET", LISTING, Stale)];
    for round in 0..5 {
        over.proxy.faults(&listings);
        over.file(&format!("file-{round}"), 70_000);
        let carried = over.carry();
        assert_eq!(carried["batch"], round + 2, "{carried}");
        let copy = over.pool.dir.path().join(format!("copy-{round}"));
        over.ok(&over.at(&endpoint, "restore", &[text(&copy)]));
        assert!(seen(&copy) == seen(&over.own), "an older tree was restored");
        let collected = over.run(&["gc", &own, "--keep-last", "1"]);
        assert!(collected.status.success() || Over::why(&collected).contains("nothing is removed"));
        over.proxy.faults(&[]);
        is_whole(&over);
    }
}

/// Whoever watches goes on when the store is well again, and tells meanwhile what is wrong with it; whoever waits hears
/// no yes before.
///
/// Proves E8, E14.
#[test]
fn whoever_watches_goes_on_when_the_store_is_well_again() {
    let Some(server) = server("whoever_watches_goes_on_when_the_store_is_well_again") else { return };
    whoever_watches_goes_on(server);
}

pub fn whoever_watches_goes_on(server: &impl Reached) {
    let mut over = Over::new(server);
    over.file("file", 100_000);
    over.carry();
    let own = text(&over.own).to_owned();
    let mut watching = Over::command(server.keys(), &["carry", &own, "--watch", "--interval", "1"]);
    let mut watching = Watching(watching.stderr(std::process::Stdio::null()).spawn().unwrap());
    for (round, fault, hint) in
        [(0, Say(403, "AccessDenied"), "may not do that"), (1, Say(404, "NoSuchBucket"), "the bucket is not there")]
    {
        over.proxy.faults(&[Rule::all("", "", fault)]);
        over.file(&format!("new-{round}"), 2 << 20);
        until(|| over.status()["error"].as_str().is_some_and(|error| error.contains(hint)));
        let waited = over.run(&["wait", &own, "--timeout", "1"]);
        assert!(!waited.status.success());
        assert_eq!(over.status()["batch"], round + 1);
        over.proxy.faults(&[]);
        until(|| over.status()["error"].is_null() && over.status()["batch"] == round + 2);
        assert!(watching.0.try_wait().unwrap().is_none(), "it has ended");
    }
    drop(watching);
    is_whole(&over);
}

/// The limit ends a test that has failed, and no other.
#[track_caller]
fn until(done: impl Fn() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("not after five minutes");
}

/// Nothing is put faster than was asked for.
#[test]
fn bandwidth_is_held() {
    let Some(server) = server("bandwidth_is_held") else { return };
    let took = |mib: &str| {
        let mut pool = TestPool::new();
        pool.edit(|edit| {
            for file in 0..2 {
                edit.file(tensorfs_layout::ROOT, format!("{file}").as_bytes(), &[&noise(file, 1 << 20)], true);
            }
        });
        let over = Over::of(server, pool);
        let own = text(&over.own).to_owned();
        over.ok(&["set", &own, &over.url, "--endpoint", &over.proxy.endpoint(), "--bandwidth", mib]);
        let begun = std::time::Instant::now();
        let carried: Value = over.carry();
        assert_eq!(carried["put_bytes"], 2 << 20, "{carried}");
        begun.elapsed()
    };
    // Nothing makes it faster.
    let (one, two) = (took("1"), took("2"));
    assert!(one >= Duration::from_secs(2) && two >= Duration::from_secs(1), "{one:?} {two:?}");
}

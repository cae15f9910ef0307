//! What the log does by itself: it grows, is cleaned, and gives blocks back, while power may go at any moment.

use tensorfs_crash::call::Call;
use tensorfs_crash::case::Start;
use tensorfs_crash::disk::{Event, Kind};
use tensorfs_crash::explore::{Effort, Tally};
use tensorfs_crash::image::Budget;
use tensorfs_crash::scratch::Scratch;

use crate::campaign::{calls, tell};

/// Calls that fill several blocks of 4 KiB, most of them with what is soon dead.
fn churn(rounds: u32) -> Vec<Call> {
    const NAMES: [&str; 4] = ["/k1", "/k2", "/k3", "/k4"];
    let mut calls: Vec<Call> = NAMES.iter().map(|name| Call::Mkdir(name)).collect();
    calls.extend([Call::Create(1, "/f"), Call::Write(1, 0, 1500), Call::Close(1)]);
    for round in 0..rounds {
        calls.push(Call::Chown(NAMES[round as usize % 4], round));
        if round % 5 == 0 {
            calls.push(Call::SetXattr("/k1", "user.x", 40 + round as usize % 200));
        }
        if round % 7 == 3 {
            calls.extend([Call::Mkdir("/gone"), Call::Rmdir("/gone")]);
        }
    }
    calls
}

const EFFORT: Effort = Effort {
    full: Budget { exhaustive: 16, single: 3, sampled: 4 },
    brief: Budget { exhaustive: 1, single: 0, sampled: 1 },
    recoveries: 200,
};

/// Prepares a pool with some calls, and crashes others on it.
fn crash(what: &str, before: &[Call], crashed: &[Call], must_happen: impl Fn(&Event) -> bool) {
    let mut total = Tally::default();
    for kind in [Kind::Cached, Kind::Dax] {
        let mut scratch = Scratch::new();
        let start = Start::after(kind, before, &mut scratch);
        let (tally, events) = calls(what, &start, crashed, EFFORT, &mut scratch);
        assert!(events.iter().any(&must_happen), "{what} did not happen");
        total.add(tally);
    }
    tell(what, total);
}

#[test]
fn the_log_grows() {
    crash("growth of the log", &churn(20), &churn(60)[7..], |event| matches!(event, Event::Grow(..)));
}

#[test]
fn the_log_is_cleaned() {
    let mut crashed = vec![Call::Chown("/k1", 1)];
    crashed.extend([
        Call::Round,
        Call::Round,
        Call::Mkdir("/new"),
        Call::Idle,
        Call::Reclaim,
        Call::Unlink("/f"),
        Call::Round,
    ]);
    // A whole block is zeroed.
    crash(
        "cleaning of the log",
        &churn(120),
        &crashed,
        |event| matches!(event, Event::Store(_, bytes) if bytes.len() == 4096 && bytes.iter().all(|byte| *byte == 0)),
    );
}

#[test]
fn the_log_gets_shorter() {
    let mut before = churn(200);
    before.push(Call::Sync);
    let crashed: Vec<Call> = std::iter::repeat_n([Call::Round, Call::Idle], 14).flatten().collect();
    crash("shortening of the log", &before, &crashed, |event| matches!(event, Event::Shrink(_)));
}

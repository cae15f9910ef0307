//! One commit of many files: from some number on the host is synced as a whole instead of each file.

use tensorfs_crash::call::Call;
use tensorfs_crash::case::Start;
use tensorfs_crash::disk::{Event, Kind};
use tensorfs_crash::explore::Effort;
use tensorfs_crash::image::Budget;
use tensorfs_crash::scratch::Scratch;

use crate::campaign::{calls, tell};

/// Beyond layout's bound for syncing one by one.
const FILES: usize = 132;

const EFFORT: Effort = Effort {
    full: Budget { exhaustive: 4, single: 2, sampled: 6 },
    // Of the many places where nothing but one more file comes, the ends of the stretch stand for all.
    brief: Budget::NONE,
    recoveries: usize::MAX,
};

#[test]
fn a_commit_of_many_files() {
    let names: Vec<&'static str> = (0..FILES).map(|n| &*format!("/f{n}").leak()).collect();
    let mut scratch = Scratch::new();
    // The files are there and empty; a write to each is all that is due.
    let made: Vec<Call> =
        names.iter().flat_map(|name| [Call::Create(1, name), Call::Close(1)]).chain([Call::Sync]).collect();
    let start = Start::after(Kind::Cached, &made, &mut scratch);
    let write = |name: &&'static str| [Call::Open(1, name), Call::Write(1, 0, 9), Call::Close(1)];
    let crashed: Vec<Call> = names.iter().flat_map(write).chain([Call::Round]).collect();
    let (tally, events) = calls("a commit of many files", &start, &crashed, EFFORT, &mut scratch);
    assert!(events.iter().any(|event| matches!(event, Event::SyncAll(_))), "each file was synced by itself");
    tell("a commit of many files", tally);
}

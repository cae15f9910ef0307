//! One commit of many files: each is synced by itself, as a sync of the whole host does not tell what failed.

use tensorfs_crash::call::Call;
use tensorfs_crash::case::Start;
use tensorfs_crash::disk::{Event, Kind};
use tensorfs_crash::explore::Effort;
use tensorfs_crash::image::Budget;
use tensorfs_crash::scratch::Scratch;

use crate::campaign::{calls, tell};

/// More than are synced at a time.
const FILES: usize = 68;

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
    assert!(!events.iter().any(|event| matches!(event, Event::SyncAll(_))), "the host was synced as a whole");
    let synced = events.iter().filter(|event| matches!(event, Event::SyncFile(..))).count();
    assert!(synced >= FILES, "{synced} of {FILES} files were synced");
    tell("a commit of many files", tally);
}

//! How much is tried, and the counts.
//!
//! `TENSORFS_CRASH_IMAGES=N` makes a campaign of at least N images on each medium: every operation alone, every pair,
//! and then sampled triples and longer sequences without end; `TENSORFS_CRASH_SEED` says which.

use std::collections::HashMap;
use std::sync::Mutex;

use tensorfs_crash::call::Call;
use tensorfs_crash::case::{Base, Case, OPERATIONS, Run, Start};
use tensorfs_crash::disk::{Event, Kind};
use tensorfs_crash::explore::{Effort, Tally, explore, record, recorded};
use tensorfs_crash::image::Budget;
use tensorfs_crash::random::Random;
use tensorfs_crash::scratch::Scratch;

/// Where chance starts: `TENSORFS_CRASH_SEED`.
pub fn seed() -> u64 {
    std::env::var("TENSORFS_CRASH_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// What the suite does at each run.
pub const USUAL: Effort = Effort {
    full: Budget { exhaustive: 8, single: 2, sampled: 2 },
    brief: Budget { exhaustive: 1, single: 0, sampled: 1 },
    recoveries: 400,
};

/// What a campaign does.
pub const THOROUGH: Effort = Effort {
    full: Budget { exhaustive: 64, single: 8, sampled: 16 },
    brief: Budget { exhaustive: 4, single: 1, sampled: 3 },
    recoveries: 150,
};

/// Tries cases on all processors, and panics with the first failures.
pub fn run(what: &str, cases: Vec<Case>, effort: Effort) {
    until(what, cases.into_iter(), effort, u64::MAX);
}

/// Tries cases on all processors until so many images were tried, and panics with the first failures.
pub fn until(what: &str, cases: impl Iterator<Item = Case> + Send, effort: Effort, images: u64) {
    let cases = Mutex::new(cases);
    let total = Mutex::new(Tally::default());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut scratch = Scratch::new();
                let mut starts: HashMap<(Kind, Base), Start> = HashMap::new();
                loop {
                    let Some(case) = cases.lock().unwrap().next() else { break };
                    let start = starts
                        .entry((case.kind, case.base))
                        .or_insert_with(|| Start::new(case.kind, case.base, &mut scratch));
                    let tried = record(&case, start, &mut scratch)
                        .map_err(|why| format!("{case}\n  {why}\n"))
                        .and_then(|recorded| explore(&recorded, effort, &mut scratch));
                    match tried {
                        Ok(tally) => {
                            let mut total = total.lock().unwrap();
                            total.add(tally);
                            if images < u64::MAX && total.cases % 100 == 0 {
                                tell(&format!("{what}, so far"), *total);
                            }
                        }
                        Err(why) => {
                            println!("{why}");
                            failures.lock().unwrap().push(why);
                        }
                    }
                    if failures.lock().unwrap().len() >= 8 || total.lock().unwrap().images() >= images {
                        break;
                    }
                }
            });
        }
    });
    tell(what, total.into_inner().unwrap());
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

/// Says how much was tried.
pub fn tell(what: &str, total: Tally) {
    println!(
        "{what}: {} cases, {} images ({} of a power loss, {} of a killed server, {} of a crash during recovery)",
        total.cases,
        total.images(),
        total.power,
        total.killed,
        total.recovery
    );
}

/// Does calls on a pool and crashes them; returns what happened to the medium, too.
pub fn calls(what: &str, start: &Start, calls: &[Call], effort: Effort, scratch: &mut Scratch) -> (Tally, Vec<Event>) {
    let mut run = Run::new(start, false, scratch);
    let mut answers = Vec::new();
    for call in calls {
        run.perform(*call).unwrap_or_else(|why| panic!("{what}: {why}"));
        answers.push(run.answered(*call));
    }
    let name = format!("{what} on {:?}", start.disk.kind);
    let recorded = recorded(name, seed(), false, start, run, answers);
    let tally = explore(&recorded, effort, scratch).unwrap_or_else(|why| panic!("{why}"));
    (tally, recorded.events)
}

/// Every medium and every way to mount: `dax` commits at close by default, `cached` at fsync.
pub const MOUNTS: [(Kind, bool); 4] =
    [(Kind::Cached, false), (Kind::Dax, true), (Kind::Cached, true), (Kind::Dax, false)];

/// A case on the base tree.
pub fn case(kind: Kind, close_commits: bool, base: Base, operations: Vec<&'static str>) -> Case {
    Case { kind, close_commits, base, operations, failing: None }
}

/// Images that a campaign is to try on each medium, if one is asked for.
fn asked() -> Option<u64> {
    std::env::var("TENSORFS_CRASH_IMAGES").ok().and_then(|text| text.parse().ok())
}

fn campaign(kind: Kind) {
    let Some(images) = asked() else { return };
    let mounts = || MOUNTS.into_iter().filter(move |(medium, _)| *medium == kind);
    let all = OPERATIONS.iter().map(|(name, _)| *name);
    let mut cases = Vec::new();
    for (kind, close_commits) in mounts() {
        for base in [Base::Tree, Base::Edge] {
            cases.extend(all.clone().map(|one| case(kind, close_commits, base, vec![one])));
        }
    }
    for first in all.clone() {
        for second in all.clone() {
            cases.extend(mounts().map(|(kind, commits)| case(kind, commits, Base::Tree, vec![first, second])));
        }
    }
    let mut random = Random::new(seed());
    let endless = std::iter::repeat_with(move || {
        let len = if random.one_in(8) { 4 + random.below(20) } else { 3 };
        sequence(&mut random, kind, len)
    });
    until(&format!("campaign on {kind:?}"), cases.into_iter().chain(endless), THOROUGH, images);
}

/// Operations by chance.
pub fn sequence(random: &mut Random, kind: Kind, len: usize) -> Case {
    let operations = (0..len).map(|_| OPERATIONS[random.below(OPERATIONS.len())].0).collect();
    let close_commits = kind == Kind::Dax && random.one_in(2);
    case(kind, close_commits, [Base::Tree, Base::Edge, Base::Tree, Base::Empty][random.below(4)], operations)
}

#[test]
fn campaign_on_cached() {
    campaign(Kind::Cached);
}

#[test]
fn campaign_on_dax() {
    campaign(Kind::Dax);
}

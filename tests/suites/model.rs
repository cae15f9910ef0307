//! Random operations, compared with a reference model and with ext4.
//!
//! # `lockstep`
//!
//! Several actors, threads of several processes, load one mount. Each has a directory of its own on tensorfs and one on
//! the filesystem that holds the pool (ext4 here), and does the same random steps in both, one after the other; a
//! reference model (`tensorfs_tests::model::reference`) does them in memory. So everything an actor sees is determined,
//! though others are at work, and it is compared exactly: results and errors; what is read; mode, owner, group, links,
//! device and size; times that were set, and of some steps which times they move; extended attributes and access lists;
//! listings, also after seeking. The model says the same of names, permissions, attributes and bytes, and trusts ext4
//! with the order in which some errors are told. Steps are all the operations of `tensorfs_tests::model::op`, by four
//! users with different groups, by paths, by directory descriptors, through links, to files that have lost their names,
//! through shared mappings.
//!
//! Between rounds of steps the pool is synced, unmounted and mounted again, or the server is killed: with nothing open,
//! with files open that are closed before the pool is mounted again, or after. Then everything that is there is
//! compared. In the end the pool is unmounted, `tensorfs check` must find nothing, and the server's log no error.
//!
//! `lockstep_under_kills` is the same on a mount with a keeper whose server is killed at any moment, in the midst of
//! steps, and followed by another one: nobody may notice. Only what a server does not leave to the next one (K6 in
//! docs/SEMANTICS.md) is closed by the actors once it has lost its name. What it finds may hang on the moment, and then
//! it cannot be made smaller.
//!
//! A failure is made smaller (delta debugging) with the actor alone, and printed with the command that plays it again.
//!
//! # `shared_names`
//!
//! Threads of several processes use the same six names in two directories at the same time, in short bursts: exclusive
//! creation, directories, links, removal, renames with and without flags, `stat`, appends, truncation, listings. What
//! they saw must have an order, one after the other, that explains it and what is there in the end (linearizability,
//! `tensorfs_tests::model::history`). That proves, for what was seen: an exclusive creation has one winner; a rename
//! never loses or doubles a name; no stale name, link count or size is seen after the call that changed it has
//! returned; appended records are whole, each there once, in an order that everybody's calls agree with. Operations by
//! path may find an object first and act on it later, and a link count changes before the name does, while the call
//! that changes both is under way, as on every Linux filesystem. In some bursts the server is killed; what was in
//! flight then may have happened or not, everything else must be there. The same bursts run on ext4, which holds the
//! checker to account. `shared_names_under_kills` has a keeper, the server is killed in every third burst, and no call
//! may be cut short. A failure of this kind depends on chance and cannot be made smaller; the whole history is printed.
//!
//! # What is not compared
//!
//! What docs/SEMANTICS.md says is different, and what no program can rely on: access times; directory sizes and
//! positions; where the host has allocated blocks (what `SEEK_DATA` and `SEEK_HOLE` say must be true of the bytes); the
//! modification time of a file that was stored to through a mapping; bytes stored behind the end of a file; attributes
//! changed through a descriptor of a directory or special file that has been removed; the locks of a descriptor that
//! was closed while a mapping of it lives.
//!
//! # Campaigns
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TENSORFS_MODEL_SEED` | the first seed; it also chooses the durability mode: `fsync`, `close` or `write` | 1 |
//! | `TENSORFS_MODEL_SEEDS` | how many seeds | 3 (the others: 1) |
//! | `TENSORFS_MODEL_STEPS` | steps of each actor | 300 (`lockstep_under_kills`: 600) |
//! | `TENSORFS_MODEL_BURSTS` | bursts of each seed | 50 |
//! | `TENSORFS_MODEL_PROCESSES`, `TENSORFS_MODEL_THREADS` | processes, and actors in each | 2, 2 |
//! | `TENSORFS_MODEL_KILLS` | milliseconds, on average, after which `lockstep_under_kills` kills the server | 60 |
//! | `TENSORFS_MODEL_SHRINK` | how often a failing list is tried to make it smaller | 300 |
//! | `TENSORFS_MODEL_ONLY` | `ACTOR:ITEM,...`: plays these alone; a failure prints it | |

use std::time::Duration;

use tensorfs_tests::killing;
use tensorfs_tests::model::generate;
use tensorfs_tests::model::history::{Verdict, explain};
use tensorfs_tests::model::play::{self, Item, Plan, play};
use tensorfs_tests::model::shared::{self, Answer, Event};
use tensorfs_tests::model::shrink::shrink;
use tensorfs_tests::random::Random;
use tensorfs_tests::{Child, Mount, Passthrough, Setup, is_root, on_mounts, start};

on_mounts!(lockstep, lockstep_under_kills, shared_names, shared_names_under_kills);

/// Steps between two events.
const ROUND: usize = 50;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: not a number: {text:?}")),
        Err(_) => default,
    }
}

/// The seeds to run.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let first = number("TENSORFS_MODEL_SEED", 1);
    first..first + number("TENSORFS_MODEL_SEEDS", default)
}

fn durability(seed: u64) -> &'static str {
    ["fsync", "close", "write"][(seed % 3) as usize]
}

/// The actors or workers of each process.
fn processes() -> Vec<Vec<u64>> {
    let threads = number("TENSORFS_MODEL_THREADS", 2);
    (0..number("TENSORFS_MODEL_PROCESSES", 2)).map(|p| (p * threads..(p + 1) * threads).collect()).collect()
}

// --- lockstep ------------------------------------------------------------------------------------

fn lockstep(setup: Setup) {
    in_lockstep(setup, killing::wanted(), 3, 300);
}

/// Nobody notices, whatever he does.
///
/// Proves K1, K3.
fn lockstep_under_kills(setup: Setup) {
    let average = number("TENSORFS_MODEL_KILLS", 60);
    in_lockstep(setup, Some(Duration::from_millis(average)), 1, 600);
}

fn in_lockstep(setup: Setup, kills: Option<Duration>, default_seeds: u64, default_steps: u64) {
    if !is_root() {
        return setup.skip("only root can act as several users");
    }
    let count = number("TENSORFS_MODEL_STEPS", default_steps) as usize;
    let only = std::env::var("TENSORFS_MODEL_ONLY").ok();
    let mut all_killed = 0;
    for seed in seeds(default_seeds) {
        let mut plan = Plan {
            passthrough: setup.passthrough(),
            durability: durability(seed),
            seed,
            count,
            processes: processes(),
            kills,
        };
        let mut items = items(seed, count, kills.is_some());
        if let Some(only) = &only {
            let (actor, list) = only.split_once(':').expect("ACTOR:ITEM,...");
            plan.processes = vec![vec![actor.parse().expect("the actor's number")]];
            items = list.split(',').map(|item| Item::parse(item).unwrap_or_else(|| panic!("item: {item:?}"))).collect();
        }
        match play(&plan, &items) {
            Ok(([done, failed, skipped], killed)) => {
                all_killed += killed;
                eprintln!(
                    "{:?}, durability {}, seed {seed}: {done} operations done, {failed} failed as on ext4, {skipped} \
                     had nothing to work on, {} events, {killed} servers killed",
                    plan.passthrough,
                    plan.durability,
                    items.iter().filter(|item| matches!(item, Item::Event(_))).count()
                );
            }
            Err(text) => report(&plan, &items, &text),
        }
    }
    assert!(kills.is_none() || all_killed > 0 || setup.mount_is_plain(), "no server was killed");
}

/// Steps, with an event after each round. Where servers are killed at any moment, no event kills one.
fn items(seed: u64, count: usize, under_kills: bool) -> Vec<Item> {
    let mut random = Random::of(&[seed, u64::MAX]);
    let mut items = Vec::new();
    for step in 0..count {
        items.push(Item::Step(step));
        if (step + 1) % ROUND == 0 {
            let killed = u64::from(!under_kills);
            let event = *random.weighted(&[
                (3, play::Event::Compare),
                (1, play::Event::Sync),
                (2, play::Event::Remount),
                (killed, play::Event::KillClosed),
                (killed, play::Event::KillOpen),
                (killed, play::Event::KillHeld),
            ]);
            items.push(Item::Event(event));
        }
    }
    items
}

/// Makes the failure smaller and says how to see it again.
fn report(plan: &Plan, items: &[Item], failure: &str) -> ! {
    eprintln!("seed {}: {failure}\n--- making it smaller", plan.seed);
    let mut last = String::new();
    let mut fails = |actor: u64, items: &[Item]| {
        let alone = Plan { processes: vec![vec![actor]], ..plan.clone() };
        play(&alone, items).map_err(|text| last = text).is_err()
    };
    // A failure tells whose it is, unless `tensorfs check` found it.
    let named = |actor: &u64| !failure.contains("actor") || failure.contains(&format!("actor{actor}"));
    let actors: Vec<u64> = plan.processes.iter().flatten().copied().filter(named).collect();
    let Some(actor) = actors.iter().copied().find(|actor| fails(*actor, items)) else {
        panic!(
            "seed {} fails with {:?} ({} steps, durability {}), but with none of {actors:?} alone:\n{failure}",
            plan.seed, plan.processes, plan.count, plan.durability
        );
    };
    let budget = number("TENSORFS_MODEL_SHRINK", 300) as usize;
    let smallest = shrink(items.to_vec(), budget, |items| fails(actor, items));
    let steps = generate::steps(plan.seed, actor, plan.count);
    let lines: Vec<String> = smallest
        .iter()
        .map(|item| match item {
            Item::Step(number) => format!("  {number}: {}", steps[*number]),
            Item::Event(event) => format!("  {event:?}"),
        })
        .collect();
    let only: Vec<String> = smallest.iter().map(Item::to_string).collect();
    panic!(
        "{last}\n\n{} of {} are enough (durability {}):\n{}\n\nagain:\n  TENSORFS_MODEL_SEED={} TENSORFS_MODEL_SEEDS=1 \
         TENSORFS_MODEL_STEPS={} \\\n  TENSORFS_MODEL_ONLY={actor}:{} \\\n  cargo test -p tensorfs-tests --test suites \
         model::{}::passthrough_{} -- --nocapture\n",
        smallest.len(),
        items.len(),
        plan.durability,
        lines.join("\n"),
        plan.seed,
        plan.count,
        only.join(","),
        if plan.kills.is_some() { "lockstep_under_kills" } else { "lockstep" },
        if plan.passthrough == Passthrough::On { "on" } else { "off" }
    );
}

// --- shared names --------------------------------------------------------------------------------

/// What the bursts of a seed came to.
#[derive(Debug, Default)]
#[allow(dead_code)] // Read by `Debug`.
struct Counts {
    bursts: u64,
    operations: usize,
    kills: u64,
    cut_short_by_kills: usize,
    undecided_bursts: u64,
}

fn shared_names(setup: Setup) {
    on_shared_names(setup);
}

/// Each call returns what it would have, and has done once what it did.
///
/// Proves K1, K3.
fn shared_names_under_kills(setup: Setup) {
    on_shared_names(setup.mount_with(["-o", "keeper"]));
}

fn on_shared_names(setup: Setup) {
    for seed in seeds(1) {
        let mut mount = setup.clone().mount_with(["--durability", durability(seed)]).mount();
        let mut workers: Vec<Child> = processes()
            .into_iter()
            .map(|workers| {
                let arguments = ["shared".to_owned(), seed.to_string()];
                start("tensorfs-test-actors", arguments.into_iter().chain(workers.iter().map(u64::to_string)))
            })
            .collect();
        let mut random = Random::of(&[seed, 1234]);
        let mut counts = Counts::default();
        for burst in 0..number("TENSORFS_MODEL_BURSTS", 50) {
            run_burst(&mut workers, seed, burst, &mut mount, On::Ext4, &mut counts);
            let kills = burst % if mount.is_watched() { 3 } else { 10 } == 1 && !mount.is_plain();
            let kill = kills.then(|| random.below(600_000));
            run_burst(&mut workers, seed, burst, &mut mount, On::Tensorfs { kill }, &mut counts);
            counts.kills += u64::from(kill.is_some());
            counts.bursts += 1;
        }
        workers.into_iter().for_each(Child::end);
        eprintln!("{:?}, durability {}, seed {seed}: {counts:?}", mount.passthrough(), durability(seed));
    }
}

#[derive(Debug, Clone, Copy)]
enum On {
    Ext4,
    /// The server may be killed so many nanoseconds after the beginning.
    Tensorfs {
        kill: Option<u64>,
    },
}

/// Runs a burst, and looks for an order that explains what was seen.
fn run_burst(workers: &mut [Child], seed: u64, burst: u64, mount: &mut Mount, on: On, counts: &mut Counts) {
    let path = match on {
        On::Ext4 => mount.host().join("burst"),
        On::Tensorfs { .. } => mount.at("burst"),
    };
    shared::prepare(&path);
    let begin = shared::now() + 2_000_000;
    workers.iter_mut().for_each(|child| child.tell(&format!("burst {burst} {begin} {}", path.display())));
    if let On::Tensorfs { kill: Some(delay) } = on {
        while shared::now() < begin + delay {
            std::hint::spin_loop();
        }
        match mount.is_watched() {
            true => mount.kill_server(),
            false => mount.kill9(),
        }
    }
    let answers: Vec<String> = workers.iter_mut().map(Child::answer).collect();
    let words: Vec<&str> = answers.iter().map(|answer| answer.strip_prefix("ok").expect("ok")).collect();
    let mut events = shared::of_words(&words.join(" "), seed, burst);
    for event in &mut events {
        (event.from, event.to) = (event.from.saturating_sub(begin), event.to.saturating_sub(begin));
    }
    events.sort_by_key(|event| event.from);
    match on {
        On::Tensorfs { kill: Some(_) } if !mount.is_watched() => mount.mount(),
        On::Tensorfs { .. } if mount.is_watched() => {
            let unknown = events.iter().find(|event| event.answer == Answer::Unknown);
            assert!(unknown.is_none(), "seed {seed}, burst {burst}: {}", unknown.unwrap());
        }
        _ => {}
    }
    let found = shared::read_final(&path);
    let verdict = match &found {
        Ok(found) => explain(&shared::initial(), &events, found),
        Err(_) => Verdict::Impossible,
    };
    counts.operations += events.len();
    counts.cut_short_by_kills += events.iter().filter(|event| event.answer == Answer::Unknown).count();
    counts.undecided_bursts += u64::from(verdict == Verdict::Undecided);
    if verdict == Verdict::Impossible {
        let list: Vec<String> = events.iter().map(Event::to_string).collect();
        panic!("seed {seed}, burst {burst}, {on:?}: no order explains this:\n{}\nand then {found:#?}", list.join("\n"));
    }
    std::fs::remove_dir_all(&path).unwrap();
}

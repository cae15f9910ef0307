//! Drawn states of a repository. A pool changes, and is carried again and again; some carriers end in the middle, some
//! collections of garbage, too. At every moment of that, whatever of what is on its way has got to the store, the
//! newest tree is that of the newest batch which is there, and all that it names is there.
//!
//! `TENSORFS_REMOTE_STATES` is how many states are looked at, `TENSORFS_REMOTE_STATES_SEED` which.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::LazyLock;

use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::{Ino, ROOT};
use tensorfs_remote::Error;
use tensorfs_remote::gc::{Keep, collect};
use tensorfs_remote::repository::{Hash, Newest, Repository, number_in, object_in};

use crate::pools::{Editor, Seens, TestPool, noise, restored, seen};
use crate::random::Random;
use crate::stores::{Event, Recorded};

/// Times that a pool is changed and carried.
const ROUNDS: u64 = 9;
/// Of so many states one is restored, and compared byte by byte.
const RESTORED: usize = 64;
/// States that are drawn of one run; and of more than so many in all, which is where a run costs more than its states.
const OF_A_RUN: usize = 50;
const OF_A_LONG_RUN: usize = 200;
const MANY: usize = 10_000;

/// What a run did, and what its pool held.
struct Run {
    events: Vec<Event>,
    /// Where in the events another pass or another collection begins.
    starts: Vec<usize>,
    /// Which of these were passes.
    passes: BTreeSet<usize>,
    /// What the pool held when a pass began: what each of its batches promises.
    trees: HashMap<usize, Seens>,
}

/// Some bytes: of one of few tensors, so that many files share them, or of none.
fn bytes(random: &mut Random) -> Vec<u8> {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| noise(1, 2 << 20));
    let len = *random.pick(&[300, 5_000, 70_000, 200_000, 1 << 20, 3 << 19]);
    let from = random.below(4) as usize * 4099;
    NOISE[from..from + len].to_vec()
}

fn change(edit: &mut Editor<'_>, random: &mut Random, number: u64) {
    let view = edit.pool.view();
    let files: Vec<(Vec<u8>, Ino)> = view.entries_after(ROOT, 0).map(|(_, name, ino)| (name.to_vec(), ino)).collect();
    drop(view);
    let name = format!("f{number}").into_bytes();
    match random.below(8) {
        0 | 4 if !files.is_empty() => {
            let (name, _) = random.pick(&files);
            edit.store(Transaction::new(0).with(Record::Removal { dir: ROOT, name: name.as_slice().into() }));
        }
        1 if !files.is_empty() => {
            let (old, ino) = random.pick(&files);
            let mut tx = Transaction::new(0).with(Record::Removal { dir: ROOT, name: old.as_slice().into() });
            tx.push(Record::Name { dir: ROOT, name: name.into(), ino: *ino });
            edit.store(tx);
        }
        2 if !files.is_empty() => {
            let (_, ino) = random.pick(&files);
            edit.write(*ino, &[&bytes(random), &bytes(random)], true, None);
        }
        3 => drop(edit.file(ROOT, &name, &[&bytes(random)], false)),
        _ => drop(edit.file(ROOT, &name, &[&bytes(random), &bytes(random)], true)),
    }
}

fn run(seed: u64) -> Run {
    let mut random = Random::new(seed);
    let mut pool = TestPool::new();
    let store = Recorded::new();
    let mut run = Run { events: Vec::new(), starts: Vec::new(), passes: BTreeSet::new(), trees: HashMap::new() };
    for round in 0..ROUNDS {
        pool.edit(|edit| (0..1 + random.below(5)).for_each(|n| change(edit, &mut random, round * 10 + n)));
        let ends_early = random.once_in(3);
        run.trees.insert(run.starts.len(), seen(&pool.path()));
        run.passes.insert(run.starts.len());
        run.starts.push(store.events().len());
        store.fail_after(if ends_early { random.below(8) as i64 } else { i64::MAX });
        let passed = pool.carrier(store.place()).and_then(|mut carrier| carrier.pass());
        assert!(ends_early || passed.is_ok(), "seed {seed}: {passed:?}");
        store.fail_after(i64::MAX);
        if !random.once_in(3) && Repository::is_there(&store.place()).unwrap() {
            run.starts.push(store.events().len());
            store.fail_after(if random.once_in(3) { random.below(8) as i64 } else { i64::MAX });
            let repository = Repository::new(store.place());
            if random.once_in(3) {
                let _ = repository.newest().and_then(|mut newest| repository.put_base(&mut newest));
            }
            let keep = Keep { trees: 0, last: 1 + random.below(2), objects: -1 };
            let _ = collect(&repository, keep, false, &|_, _| {});
            store.fail_after(i64::MAX);
        }
    }
    run.events = store.events();
    run
}

fn batch_of(event: &Event) -> Option<u64> {
    match event {
        Event::Put(path, _) if path.as_ref().starts_with("log/") => number_in(path.as_ref()),
        _ => None,
    }
}

/// A state, and which pass has put the newest batch in it.
fn draw(run: &Run, random: &mut Random) -> (Vec<Event>, Option<usize>) {
    let len = random.below(run.events.len() as u64 + 1) as usize;
    let mut state = run.events[..len].to_vec();
    let of = |event: usize| run.starts.partition_point(|start| *start <= event) - 1;
    let newest = (0..len).rev().find(|event| batch_of(&run.events[*event]).is_some()).map(of);
    // Objects of a batch are put beside each other: those behind may be there before the one that is missing.
    if len < run.events.len() && run.passes.contains(&of(len)) {
        let more = run.events[len..].iter().enumerate();
        let more = more.take_while(|(n, event)| of(len + n) == of(len) && is_object(event));
        state.extend(more.filter(|_| random.once_in(2)).map(|(_, event)| event.clone()));
    }
    (state, newest)
}

fn is_object(event: &Event) -> bool {
    matches!(event, Event::Put(path, _) if path.as_ref().starts_with("objects/"))
}

/// All that a tree says, to compare.
fn lines(newest: &Newest) -> Vec<String> {
    let mut lines: Vec<String> = newest.tree.lines().map(|line| serde_json::to_string(&line).unwrap()).collect();
    lines.sort();
    lines
}

/// Objects that a state has; each has the bytes that it is named after.
fn objects(state: &[Event]) -> BTreeMap<Hash, usize> {
    let mut there = BTreeMap::new();
    for event in state {
        match event {
            Event::Put(path, bytes) => object_in(path.as_ref()).map(|hash| there.insert(hash, bytes.len())),
            Event::Delete(path) => object_in(path.as_ref()).and_then(|hash| there.remove(&hash)).map(Some),
        };
    }
    there
}

/// Proves E1, E2, E6.
#[test]
fn at_every_moment_the_newest_tree_is_that_of_the_newest_batch() {
    let from = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let wanted: usize = from("TENSORFS_REMOTE_STATES").unwrap_or(400);
    let first = from("TENSORFS_REMOTE_STATES_SEED").unwrap_or(1) as u64;
    let of_a_run = if wanted > MANY { OF_A_LONG_RUN } else { OF_A_RUN };
    let (mut count, mut compared, mut torn, mut deleted) = (0, 0, 0, 0);
    for seed in first.. {
        if count >= wanted {
            break;
        }
        let (run, mut random) = (run(seed), Random::of(&[seed, 1]));
        let put = run.events.iter().filter_map(|event| match event {
            Event::Put(path, bytes) => object_in(path.as_ref()).map(|hash| (hash, bytes)),
            Event::Delete(_) => None,
        });
        put.for_each(|(hash, bytes)| assert_eq!(Hash::of(bytes), hash));
        deleted += run
            .events
            .iter()
            .filter(|event| matches!(event, Event::Delete(path) if object_in(path.as_ref()).is_some()))
            .count();
        // What each pass promised, as a restore of it has shown.
        let mut promised: HashMap<usize, Vec<String>> = HashMap::new();
        for _ in 0..of_a_run.min(wanted - count) {
            let (state, pass) = draw(&run, &mut random);
            let what = || format!("seed {seed}, {} events", state.len());
            let store = Recorded::of(&state);
            let repository = Repository::new(store.place());
            count += 1;
            let Some(pass) = pass else {
                assert!(
                    matches!(repository.newest(), Err(Error::Damaged { .. })) || is_empty(&repository),
                    "{}",
                    what()
                );
                continue;
            };
            let newest = repository.newest().unwrap_or_else(|error| panic!("{}: {error}", what()));
            let there = objects(&state);
            let named = newest.tree.parts().filter_map(|part| part.object());
            named.for_each(|(object, _)| assert!(there.contains_key(&object), "{}: {object} is not there", what()));
            torn += usize::from(there.len() > newest.tree.parts().filter_map(|part| part.object()).count());
            let found = lines(&newest);
            if promised.get(&pass) != Some(&found) || count % RESTORED == 0 {
                let scratch = tempfile::tempdir().unwrap();
                let (_, seens) = restored(store.place(), &scratch.path().join("copy")).unwrap();
                assert!(seens == run.trees[&pass], "{}", what());
                promised.insert(pass, found);
                compared += 1;
            }
        }
    }
    let found = format!("{torn} with objects that nothing names, {deleted} objects removed, {compared} compared");
    assert!(torn > 0 && deleted > 0 && compared > 0, "{found}");
    println!("{count} states, {found}");
}

fn is_empty(repository: &Repository) -> bool {
    repository.newest().is_ok_and(|newest| newest.head.is_none())
}

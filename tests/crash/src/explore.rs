//! Crashes a case at every event, in every way that the budget allows, and looks at what is recovered.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use tensorfs_layout::check::{Depth, Subject, check};
use tensorfs_layout::log::Shutdown as Left;
use tensorfs_layout::pool::{OpenOptions, Pool};

use crate::blob::Choice;
use crate::case::{Answered, BOOT, Case, Outcome, Run, Start, operation};
use crate::disk::{Disk, Event};
use crate::image::{self, Budget};
use crate::medium::Simulation;
use crate::model::{Bounds, Fate, Model, Moment};
use crate::random::Random;
use crate::scratch::Scratch;
use crate::snapshot::{self, Snapshot};

const NEXT_BOOT: [u8; 16] = [2; 16];
const THIRD_BOOT: [u8; 16] = [3; 16];

/// How hard to try.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Images right before a sync, where most is open.
    pub full: Budget,
    /// Images anywhere else.
    pub brief: Budget,
    /// One recovery in so many is itself crashed, at every event of it.
    pub recoveries: usize,
}

/// What was tried. An image that is like one that was tried before for the same case is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cases.
    pub cases: u64,
    /// Images that a power loss may leave.
    pub power: u64,
    /// Images that a killed server leaves.
    pub killed: u64,
    /// Images of crashes during recovery, of both kinds.
    pub recovery: u64,
}

impl Tally {
    /// All images.
    pub fn images(&self) -> u64 {
        self.power + self.killed + self.recovery
    }

    /// Adds what another one tried.
    pub fn add(&mut self, other: Self) {
        self.cases += other.cases;
        self.power += other.power;
        self.killed += other.killed;
        self.recovery += other.recovery;
    }
}

/// What a case left behind for its crashes.
#[derive(Debug)]
pub struct Recorded {
    /// The case, in words.
    pub name: String,
    /// The disk at the start.
    pub disk: Disk,
    /// What happened to it.
    pub events: Vec<Event>,
    /// The calls, and when they were answered.
    pub answers: Vec<Answered>,
    /// The model at the end.
    pub model: Model,
    /// A seed.
    pub seed: u64,
    /// A sync was made to fail.
    pub damage: bool,
}

/// Runs a case once.
pub fn record(case: &Case, start: &Start, scratch: &mut Scratch) -> Result<Recorded, String> {
    let mut run = Run::new(start, case.close_commits, scratch);
    let mut answers = Vec::new();
    if case.failing.is_some() {
        run.allow_failures();
    }
    'all: for (index, name) in case.operations.iter().enumerate() {
        if let Some((what, at)) = case.failing
            && at == index
        {
            run.simulation().fail_next(what);
        }
        for call in operation(name).ok_or_else(|| format!("no operation is called {name}"))? {
            let outcome = run.perform(*call)?;
            let mut answered = run.answered(*call);
            if outcome == Outcome::Failed {
                // Not acknowledged: it may have been done or not, and nothing is said of durability.
                if run.pool().is_read_only().is_some() {
                    answered.events = usize::MAX;
                    answers.push(answered);
                    break 'all;
                }
            }
            answers.push(answered);
        }
    }
    Ok(recorded(case.to_string(), case.seed(), case.failing.is_some(), start, run, answers))
}

/// Takes stock of a run.
pub fn recorded(name: String, seed: u64, damage: bool, start: &Start, run: Run, answers: Vec<Answered>) -> Recorded {
    run.simulation().look();
    let events = run.simulation().events();
    Recorded { name, disk: start.disk.clone(), events, answers, model: run.model.clone(), seed, damage }
}

/// What an image may be.
#[derive(Clone, Debug)]
enum Expected {
    /// The tree after a step within the bounds.
    Step(Bounds),
    /// Exactly this tree.
    Exactly(Snapshot),
}

struct Explorer<'a> {
    recorded: &'a Recorded,
    effort: Effort,
    scratch: &'a mut Scratch,
    random: Random,
    tally: Tally,
    /// The newest step that each image fits, by the image and what stopped.
    known: HashMap<(u64, bool), usize>,
}

/// Crashes a case that was recorded. An error tells everything about the first image that was not recovered as it
/// should.
pub fn explore(recorded: &Recorded, effort: Effort, scratch: &mut Scratch) -> Result<Tally, String> {
    let random = Random::new(recorded.seed);
    let mut explorer = Explorer { recorded, effort, scratch, random, tally: Tally::default(), known: HashMap::new() };
    explorer.tally.cases = 1;
    let mut disk = recorded.disk.clone();
    for at in 0..=recorded.events.len() {
        explorer.crash_at(&disk, at)?;
        if let Some(event) = recorded.events.get(at) {
            disk.apply(event);
        }
    }
    Ok(explorer.tally)
}

impl Recorded {
    /// What may be left where something stops before this event.
    pub fn bounds(&self, at: usize, fate: Fate) -> Bounds {
        let answers = &self.answers;
        let done = answers.iter().take_while(|answer| answer.events <= at).count();
        let last = done.checked_sub(1).map(|index| &answers[index]);
        let flying = answers.get(done).or(last);
        Bounds {
            answered: last.map_or_else(Moment::default, |answer| answer.moment),
            latest: flying.map_or_else(Moment::default, |answer| answer.moment),
            durable: last.map_or(0, |answer| answer.durable),
            fate,
            damage: self.damage,
        }
    }
}

impl Explorer<'_> {
    fn crash_at(&mut self, disk: &Disk, at: usize) -> Result<(), String> {
        let settles = self.recorded.events.get(at).is_none_or(Event::settles);
        let budget = if settles { self.effort.full } else { self.effort.brief };
        if budget == Budget::NONE {
            return Ok(());
        }
        for choices in image::choose(disk, budget, &mut self.random) {
            let image = disk.after_power_loss(&choices);
            let bounds = self.recorded.bounds(at, Fate::Power);
            if self.is_known(&image, &bounds) {
                continue;
            }
            self.tally.power += 1;
            let what = || format!("power lost before event {at}, {}", shown(disk, &choices));
            let crashed = self.random.one_in(self.effort.recoveries);
            let snapshot = self.recover(&image, NEXT_BOOT, &Expected::Step(bounds), &what)?;
            if crashed {
                self.crash_recovery(&image, NEXT_BOOT, &snapshot, &Expected::Exactly(snapshot.clone()), &what)?;
            }
        }
        let bounds = self.recorded.bounds(at, Fate::Killed);
        if !self.is_known(disk, &bounds) {
            self.tally.killed += 1;
            let what = || format!("server killed before event {at}");
            let crashed = self.random.one_in(self.effort.recoveries.div_ceil(4));
            let snapshot = self.recover(disk, BOOT, &Expected::Step(bounds), &what)?;
            if crashed {
                let either = Expected::Step(self.recorded.bounds(at, Fate::KilledThenPower));
                self.crash_recovery(disk, BOOT, &snapshot, &either, &what)?;
            }
        }
        Ok(())
    }

    /// True if the same image was recovered before, and to a tree that will do here, too.
    fn is_known(&self, image: &Disk, bounds: &Bounds) -> bool {
        let lowest = if bounds.fate == Fate::Killed { bounds.answered.step } else { bounds.durable };
        self.known.get(&(image.digest(), bounds.fate == Fate::Killed)).is_some_and(|step| *step >= lowest)
    }

    /// Has an image recovered and compares what comes out, then closes the pool and has it checked.
    fn recover(
        &mut self,
        image: &Disk,
        boot: [u8; 16],
        expected: &Expected,
        what: &dyn Fn() -> String,
    ) -> Result<Snapshot, String> {
        let (path, _) = self.scratch.write(image).map_err(|error| error.to_string())?;
        let simulation = Simulation::unwatched(image.clone());
        let recovered = recovered(&path, &simulation, boot, self.recorded.damage);
        let judged = recovered.and_then(|snapshot| match expected {
            Expected::Step(bounds) => {
                let step = self.recorded.model.find(&snapshot, bounds)?;
                if bounds.fate != Fate::KilledThenPower {
                    self.known.insert((image.digest(), bounds.fate == Fate::Killed), step);
                }
                Ok(snapshot)
            }
            Expected::Exactly(other) => same(&snapshot, other, self.recorded.damage).map(|()| snapshot),
        });
        match judged {
            Ok(snapshot) => {
                let _ = fs::remove_dir_all(&path);
                Ok(snapshot)
            }
            Err(why) => Err(self.report(image, why, what)),
        }
    }

    /// Crashes a recovery at every event of it: `snapshot` is what it leads to if it is not.
    fn crash_recovery(
        &mut self,
        image: &Disk,
        boot: [u8; 16],
        snapshot: &Snapshot,
        interrupted: &Expected,
        what: &dyn Fn() -> String,
    ) -> Result<(), String> {
        let (path, files) = self.scratch.write(image).map_err(|error| error.to_string())?;
        let simulation = Simulation::watched(image.clone(), &path, files);
        let options = OpenOptions { boot_id: Some(boot), ..OpenOptions::default() };
        let pool = Pool::open_with_medium(&path, &options, simulation.medium()).map_err(|error| error.to_string())?;
        drop(pool);
        simulation.look();
        let _ = fs::remove_dir_all(&path);
        let events = simulation.events();
        let listed = || -> String {
            events
                .iter()
                .enumerate()
                .map(|(index, event)| format!("\n  event {index} of recovery: {}", brief(event)))
                .collect()
        };
        let mut disk = image.clone();
        let budget = Budget { exhaustive: 8, single: 2, sampled: 3 };
        for at in 0..=events.len() {
            let settles = events.get(at).is_none_or(Event::settles);
            if settles || self.random.one_in(4) {
                // Once the recovery is over, what it showed is durable.
                let exactly = Expected::Exactly(snapshot.clone());
                let expected = if at == events.len() { &exactly } else { interrupted };
                for choices in image::choose(&disk, budget, &mut self.random) {
                    let image = disk.after_power_loss(&choices);
                    self.tally.recovery += 1;
                    let second = || {
                        let shown = shown(&disk, &choices);
                        format!("{}; then power lost before event {at} of recovery, {shown}{}", what(), listed())
                    };
                    let again = self.recover(&image, THIRD_BOOT, expected, &second)?;
                    if self.random.one_in(24) {
                        self.crash_once_more(&image, &again, &second)?;
                    }
                }
                // The recovering server is killed, too, and its successor has the same boot.
                self.tally.recovery += 1;
                let second = || format!("{}; then killed before event {at} of recovery", what());
                let same = Expected::Exactly(snapshot.clone());
                self.recover(&disk, boot, &same, &second)?;
            }
            if let Some(event) = events.get(at) {
                disk.apply(event);
            }
        }
        Ok(())
    }

    /// The recovery behind an interrupted recovery is interrupted, too.
    fn crash_once_more(&mut self, image: &Disk, snapshot: &Snapshot, what: &dyn Fn() -> String) -> Result<(), String> {
        let (path, files) = self.scratch.write(image).map_err(|error| error.to_string())?;
        let simulation = Simulation::watched(image.clone(), &path, files);
        let options = OpenOptions { boot_id: Some(THIRD_BOOT), ..OpenOptions::default() };
        drop(Pool::open_with_medium(&path, &options, simulation.medium()).map_err(|error| error.to_string())?);
        simulation.look();
        let _ = fs::remove_dir_all(&path);
        let events = simulation.events();
        let until = self.random.below(events.len() + 1);
        let mut disk = image.clone();
        events[..until].iter().for_each(|event| disk.apply(event));
        let budget = Budget { exhaustive: 1, single: 1, sampled: 1 };
        for choices in image::choose(&disk, budget, &mut self.random) {
            let image = disk.after_power_loss(&choices);
            self.tally.recovery += 1;
            let third = || format!("{}; then power lost before event {until} of that recovery", what());
            self.recover(&image, [4; 16], &Expected::Exactly(snapshot.clone()), &third)?;
        }
        Ok(())
    }

    /// Everything about a failure, and the image beside it.
    fn report(&self, image: &Disk, why: String, what: &dyn Fn() -> String) -> String {
        let kept = keep(image);
        let mut text = format!("{}\n  {}\n  {why}\n", self.recorded.name, what());
        for (index, answer) in self.recorded.answers.iter().enumerate() {
            let _ = writeln!(
                text,
                "  call {index} {:?}: answered at event {}, step {}, durable {}",
                answer.call, answer.events, answer.moment.step, answer.durable
            );
        }
        for (index, event) in self.recorded.events.iter().enumerate() {
            let _ = writeln!(text, "  event {index}: {}", brief(event));
        }
        let _ = writeln!(text, "  the image: {}", kept.display());
        let _ = writeln!(
            text,
            "  again: TENSORFS_CRASH_CASE='{}' cargo test -p tensorfs-crash --test crash -- --nocapture replay",
            self.recorded.name
        );
        text
    }
}

/// Writes an image out where it stays.
pub(crate) fn keep(image: &Disk) -> PathBuf {
    let kept = tempfile::Builder::new().prefix("tensorfs-crash-").tempdir().map(|dir| dir.keep());
    let Ok(kept) = kept else { return PathBuf::new() };
    let pool = kept.join("pool");
    let written = Scratch::write_at(image, &pool).and_then(|_| Scratch::write_log(&pool, image));
    if written.is_ok() { pool } else { kept }
}

fn shown(disk: &Disk, choices: &[Choice]) -> String {
    let axes = disk.axes();
    let mut text = String::new();
    for (versions, choice) in axes.iter().zip(choices).filter(|(versions, _)| **versions > 1) {
        let _ = match choice {
            Choice::Whole(version) => write!(text, "{version}/{} ", versions - 1),
            Choice::Torn(version, mask) => write!(text, "{version}+{:x} ", mask & 0xff),
        };
    }
    format!("image [{}]", text.trim_end())
}

fn brief(event: &Event) -> String {
    match event {
        Event::Store(offset, bytes) => format!("store {} bytes in the log at {offset}", bytes.len()),
        Event::Write(id, offset, bytes) => format!("write {} bytes in file {} at {offset}", bytes.len(), id.0),
        other => format!("{other:?}"),
    }
}

/// `damage`: nothing is known of the bytes of files that are marked as damaged.
fn same(found: &Snapshot, expected: &Snapshot, damage: bool) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    if damage {
        let known = |snapshot: &Snapshot| {
            let mut snapshot = snapshot.clone();
            for seen in snapshot.values_mut().filter(|seen| seen.damaged) {
                seen.content = None;
            }
            snapshot
        };
        return same(&known(found), &known(expected), false);
    }
    for (path, seen) in expected {
        match found.get(path) {
            None => return Err(format!("{path} was there after the first recovery, and is not after the second")),
            Some(other) if other != seen => {
                let short = |seen: &snapshot::Seen| {
                    let mut seen = seen.clone();
                    seen.content = seen.content.map(|content| content.len().to_le_bytes().to_vec());
                    format!("{seen:?}")
                };
                return Err(format!(
                    "{path} was {} after the first recovery, and is {} now",
                    short(seen),
                    short(other)
                ));
            }
            Some(_) => {}
        }
    }
    Err("there are paths that the first recovery did not show".to_owned())
}

/// Opens what a crash left, reads all of it, closes it, and has it checked with its data.
pub(crate) fn recovered(
    path: &std::path::Path,
    simulation: &Simulation,
    boot: [u8; 16],
    damage: bool,
) -> Result<Snapshot, String> {
    let options = OpenOptions { boot_id: Some(boot), ..OpenOptions::default() };
    let pool = Pool::open_with_medium(path, &options, simulation.medium()).map_err(|error| format!("open: {error}"))?;
    if let Some(reason) = pool.is_read_only() {
        return Err(format!("opened read-only: {reason}"));
    }
    let recovery = pool.recovery();
    if recovery.damaged_files > 0 && !damage {
        return Err(format!("{} files lost bytes", recovery.damaged_files));
    }
    if recovery.kind == Left::PowerLoss && !recovery.open_segments.is_empty() {
        return Err("segments are said to be open after a power loss".to_owned());
    }
    let snapshot = snapshot::take(&pool)?;
    pool.close().map_err(|error| format!("close: {error}"))?;
    drop(pool);
    Scratch::write_log(path, &simulation.disk()).map_err(|error| error.to_string())?;
    let report = check(path, Depth::Data, &|_, _, _| {}).map_err(|error| format!("check: {error}"))?;
    let known = |subject: Subject| damage && subject == Subject::File;
    if let Some(finding) = report.findings.iter().find(|finding| !known(finding.subject)) {
        return Err(format!("check finds: {finding:?}"));
    }
    if report.unclean {
        return Err("check says that the pool was not closed".to_owned());
    }
    Ok(snapshot)
}

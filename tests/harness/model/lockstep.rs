//! An actor: does each step on tensorfs and on ext4, and compares.

use super::generate;
use super::op::{ANY, At, Op, Outcome, Step, agree, difference};
use super::reference::Reference;
use super::system::{FileTimes, System};
use super::users::User;
use nix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::time::Duration;

/// A directory on either side, a model of it, and the steps to do in both.
pub struct Actor {
    name: String,
    steps: Vec<Step>,
    ours: System,
    theirs: System,
    reference: Reference,
    /// Servers are killed meanwhile, and followed by others.
    under_kills: bool,
    /// Steps that were done, and the failed and the skipped among them.
    pub counts: Counts,
}

/// What became of an actor's steps.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct Counts {
    pub done: u64,
    pub failed: u64,
    pub skipped: u64,
}

type Times = Vec<Option<FileTimes>>;

impl Actor {
    /// One whose steps follow from the seed and its number.
    ///
    /// Where servers are killed meanwhile, it holds nothing that they do not leave to each other.
    pub fn new(seed: u64, number: u64, count: usize, ours: &Path, theirs: &Path, under_kills: bool) -> Actor {
        let name = format!("actor{number}");
        Actor {
            steps: generate::steps(seed, number, count),
            ours: System::new(&ours.join(&name), false),
            theirs: System::new(&theirs.join(&name), true),
            reference: Reference::new(),
            under_kills,
            counts: Counts::default(),
            name,
        }
    }

    /// Does a step. Says how the sides differ, if they do.
    pub fn run(&mut self, number: usize) -> Result<(), String> {
        let mut step = self.steps[number].clone();
        if let Op::Store { map, offset, len, .. } = &mut step.op {
            // What is stored behind the end of a file may be seen there, or not.
            *len = (*len).min(self.reference.mapped_size(*map).unwrap_or(0).saturating_sub(*offset));
        }
        let said = |text: String| format!("{} step {number}: {step}\n{text}", self.name);
        let watched = if step.watched { paths(&step.op) } else { Vec::new() };
        let before = step.watched.then(|| (self.times(&watched, &step.op), self.theirs_times(&watched, &step.op)));
        if before.is_some() {
            tick();
        }
        let theirs = self.theirs.apply(&step);
        let ours = self.ours.apply(&step);
        match &theirs {
            Outcome::Skipped => self.counts.skipped += 1,
            Outcome::Failed(_) => self.counts.failed += 1,
            Outcome::Done(..) => self.counts.done += 1,
        }
        if let Some(difference) = difference(("tensorfs", &ours), ("ext4", &theirs)) {
            return Err(said(difference));
        }
        if theirs == Outcome::Skipped {
            return Ok(());
        }
        let expected = self.reference.apply(&step, Some(&theirs));
        if let Some(difference) = expected.and_then(|expected| difference(("model", &expected), ("ext4", &theirs))) {
            return Err(said(difference));
        }
        if let Some((ours_before, theirs_before)) = before {
            let ours_after = self.times(&watched, &step.op);
            let ours = moved(&ours_before, &ours_after, self.under_kills);
            let theirs = moved(&theirs_before, &self.theirs_times(&watched, &step.op), false);
            if !agree(&ours, &theirs) {
                let here = format!("before: {ours_before:?}\nafter:  {ours_after:?}");
                return Err(said(format!("times that it moved\ntensorfs: {ours}\next4:     {theirs}\n{here}")));
            }
        }
        if self.under_kills {
            self.let_go();
        }
        Ok(())
    }

    /// Closes what a server does not leave to the next one (K6): on both sides, by what ext4 says.
    fn let_go(&mut self) {
        for slot in self.theirs.outlived_by_servers() {
            let close = Step { user: User::Root, watched: false, op: Op::Close { slot } };
            let outcome = self.theirs.apply(&close);
            self.ours.apply(&close);
            self.reference.apply(&close, Some(&outcome));
        }
    }

    fn times(&self, paths: &[At], op: &Op) -> Times {
        times(&self.ours, paths, op)
    }

    fn theirs_times(&self, paths: &[At], op: &Op) -> Times {
        times(&self.theirs, paths, op)
    }

    /// Compares everything that is there.
    pub fn compare(&self) -> Result<(), String> {
        let (ours, theirs) = (self.ours.snapshot(), self.theirs.snapshot());
        let expected = self.reference.snapshot();
        for path in expected.keys().chain(theirs.keys()) {
            let nothing = String::from("nothing");
            let (expected, theirs) = (expected.get(path).unwrap_or(&nothing), theirs.get(path).unwrap_or(&nothing));
            // The real ones say more.
            let count = expected.split(' ').count();
            let theirs = theirs.split(' ').take(count).collect::<Vec<_>>().join(" ");
            if !agree(expected, theirs.trim_end_matches(',')) {
                return Err(format!("{}: {path:?}\nmodel: {expected}\next4: {theirs}", self.name));
            }
        }
        for path in ours.keys().chain(theirs.keys()) {
            let nothing = String::from("nothing");
            let (ours, theirs) = (ours.get(path).unwrap_or(&nothing), theirs.get(path).unwrap_or(&nothing));
            if !agree(ours, theirs) {
                return Err(format!("{}: {path:?}\ntensorfs: {ours}\next4:     {theirs}", self.name));
            }
        }
        Ok(())
    }

    /// Opens its directories.
    pub fn enter(&mut self) {
        self.ours.enter();
        self.theirs.enter();
    }

    /// Closes all it has open.
    pub fn leave(&mut self) {
        self.ours.leave();
        self.theirs.leave();
        self.reference.leave();
    }

    /// Takes its mappings down.
    pub fn unmap(&mut self) {
        self.ours.unmap();
        self.theirs.unmap();
        self.reference.unmap();
    }
}

/// Whose times a step may move.
fn paths(op: &Op) -> Vec<At> {
    match op {
        Op::Link { from, to, .. } | Op::Rename { from, to, .. } => vec![from.clone(), to.clone()],
        Op::Open { at, .. }
        | Op::Truncate { at, .. }
        | Op::Mkdir { at, .. }
        | Op::Rmdir { at }
        | Op::Mknod { at, .. }
        | Op::Unlink { at }
        | Op::Symlink { at, .. }
        | Op::Chmod { at, .. }
        | Op::Chown { at, .. }
        | Op::Utimens { at, .. }
        | Op::SetXattr { at, .. }
        | Op::RemoveXattr { at, .. }
        | Op::Stat { at, .. } => vec![at.clone()],
        _ => Vec::new(),
    }
}

fn times(side: &System, paths: &[At], op: &Op) -> Times {
    let mut times: Times = paths.iter().flat_map(|at| side.times(at)).collect();
    if let Op::Write { slot, .. }
    | Op::Pwrite { slot, .. }
    | Op::Ftruncate { slot, .. }
    | Op::Fallocate { slot, .. }
    | Op::CopyRange { to: slot, .. }
    | Op::Fchmod { slot, .. }
    | Op::Fchown { slot, .. }
    | Op::Futimens { slot, .. }
    | Op::FsetXattr { slot, .. }
    | Op::Read { slot, .. }
    | Op::Fsync { slot, .. } = op
    {
        times.extend(side.slot_times(*slot));
    }
    times
}

/// Which times moved, of what was there before and after. The host dates a change by its last tick, and a change time
/// that is later already may be said to stay where a server is followed by another one (`under_kills`).
fn moved(before: &Times, after: &Times, under_kills: bool) -> String {
    let texts = before.iter().zip(after).map(|(before, after)| match (before, after) {
        (Some(before), Some(after)) if before.ino == after.ino => {
            let word = |stayed: bool| if stayed { "stayed" } else { "moved" };
            let (mtime, ctime) = (word(before.mtime == after.mtime), word(before.ctime == after.ctime));
            if under_kills && mtime == "moved" && ctime == "stayed" && after.mtime < before.ctime {
                return format!("mtime-{mtime} {ANY}");
            }
            format!("mtime-{mtime} ctime-{ctime}")
        }
        _ => "~ ~".to_owned(),
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// Waits until a file's time, which the kernel may take from its clock's last tick, is another one.
fn tick() {
    let now = || clock_gettime(ClockId::CLOCK_REALTIME_COARSE).map(|time| (time.tv_sec(), time.tv_nsec())).ok();
    let start = now();
    while now() == start {
        std::thread::sleep(Duration::from_millis(1));
    }
}

//! The run: backing by backing, measure by measure, and within a measure round by round over all targets in turn, so
//! that whatever else the machine does falls on all of them.

use std::collections::BTreeMap;
use std::path::Path;

use indicatif::ProgressBar;

use crate::backing::{Backing, Mounted, free_memory};
use crate::error::{Missing, Result};
use crate::measure::{Context, Measure, Place, Sample};
use crate::outcome::{Figure, Left, Outcome};
use crate::pin::Pinned;
use crate::room::stopped;
use crate::target::{Kind, Programs, Target};

/// What to run.
pub struct Plan {
    pub measures: Vec<&'static Measure>,
    pub backings: Vec<Backing>,
    pub targets: Vec<Kind>,
    /// Rounds at most.
    pub rounds: usize,
    /// Whether measures of latency run pinned, too.
    pub pinned: bool,
}

impl Plan {
    /// Measures on a backing.
    fn on(&self, backing: Backing) -> impl Iterator<Item = &'static Measure> {
        self.measures.iter().copied().filter(move |measure| measure.backings.contains(&backing))
    }

    /// Runs everything. What fails or cannot be is left out, and noted.
    pub fn run(&self, cx: &Context, room: &Path, programs: &Programs) -> Outcome {
        let mut outcome = Outcome::default();
        let steps = self.backings.iter().map(|backing| self.on(*backing).count() as u64).sum();
        let bar = ProgressBar::new(steps);
        bar.set_style(
            indicatif::ProgressStyle::with_template("[{elapsed_precise}] {pos}/{len} {wide_msg}").expect("a template"),
        );
        for backing in &self.backings {
            if self.on(*backing).next().is_none() || stopped() {
                continue;
            }
            if cx.scale.steady {
                free_memory();
            }
            match Mounted::new(*backing, room, cx.scale.steady) {
                Ok(mounted) => self.run_on(&mounted, cx, room, programs, &bar, &mut outcome),
                Err(error) => outcome.left.push(Left::new(format!("everything on {backing}"), &*error)),
            }
        }
        bar.finish_and_clear();
        outcome
    }

    fn run_on(
        &self,
        backing: &Mounted,
        cx: &Context,
        room: &Path,
        programs: &Programs,
        bar: &ProgressBar,
        outcome: &mut Outcome,
    ) {
        let mut targets: Vec<Target> = Vec::new();
        for kind in &self.targets {
            if self.on(backing.kind).any(|measure| measure.targets.contains(kind)) {
                match Target::new(*kind, backing, room, programs) {
                    Ok(target) => targets.push(target),
                    Err(error) => outcome.left.push(Left::new(format!("{kind} on {}", backing.kind), &*error)),
                }
            }
        }
        for measure in self.on(backing.kind).take_while(|_| !stopped()) {
            bar.set_message(format!("{} on {}", measure.id, backing.kind));
            let targets: Vec<&Target> =
                measure.targets.iter().filter_map(|kind| targets.iter().find(|target| target.kind == *kind)).collect();
            Doing { measure, cx, bar, places: Vec::new() }.run(self, backing.kind, &targets, outcome);
            bar.inc(1);
            if bar.is_hidden() {
                // For logs.
                eprintln!("{:6.1} s  {} on {}", bar.elapsed().as_secs_f64(), measure.id, backing.kind);
            }
        }
    }
}

/// A measure on a backing, at work.
struct Doing<'a> {
    measure: &'static Measure,
    cx: &'a Context,
    bar: &'a ProgressBar,
    places: Vec<Place<'a>>,
}

impl<'a> Doing<'a> {
    fn run(mut self, plan: &Plan, backing: Backing, targets: &[&'a Target], outcome: &mut Outcome) {
        for target in targets {
            let place = Place { target, backing, dir: target.dir.join(self.measure.id) };
            match self.prepare(&place) {
                Ok(()) => self.places.push(place),
                Err(error) => {
                    let _ = target.remove(self.measure.id);
                    outcome.left.push(Left::new(self.name(&place), &*error));
                }
            }
        }
        let rounds = plan.rounds.min(self.measure.rounds);
        self.rounds(rounds, false, outcome);
        if self.measure.latency && plan.pinned {
            match Pinned::new(targets) {
                Ok(_pinned) => self.rounds(rounds, true, outcome),
                Err(error) => outcome.left.push(Left::new(format!("{}, pinned", self.measure.id), &*error)),
            }
        }
        for place in &self.places {
            let done = place.target.remove(self.measure.id).and_then(|()| place.target.settle());
            if let Err(error) = done {
                outcome.left.push(Left::new(format!("clearing up after {}", self.name(place)), &*error));
            }
        }
    }

    fn name(&self, place: &Place) -> String {
        format!("{} of {} on {}", self.measure.id, place.kind(), place.backing)
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        std::fs::create_dir(&place.dir).map_err(|e| format!("{}: {e}", place.dir.display()))?;
        (self.measure.prepare)(self.cx, place)
    }

    fn rounds(&mut self, rounds: usize, pinned: bool, outcome: &mut Outcome) {
        let mut values: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); self.measure.rows.len()]; self.places.len()];
        let mut counts = vec![BTreeMap::new(); self.places.len()];
        let mut failed = vec![false; self.places.len()];
        for round in 0..rounds {
            for (n, place) in self.places.iter().enumerate().filter(|(n, _)| !failed[*n]).collect::<Vec<_>>() {
                if stopped() {
                    break;
                }
                let pin = if pinned { ", pinned" } else { "" };
                let (measure, kind) = (self.measure.id, place.kind());
                self.bar.set_message(format!("{measure} on {}{pin}: {kind}, {}/{rounds}", place.backing, round + 1));
                match self.once(place) {
                    Ok((sample, counted)) => {
                        for (row, value) in values[n].iter_mut().zip(sample.values) {
                            row.push(value);
                        }
                        counts[n] = counted;
                    }
                    Err(error) => {
                        failed[n] = true;
                        outcome.left.push(Left::new(format!("{}{pin}", self.name(place)), &*error));
                    }
                }
            }
        }
        for ((place, rows), counts) in self.places.iter().zip(values).zip(counts) {
            for (row, rounds) in self.measure.rows.iter().zip(rows) {
                // A target for which a row means nothing gives no numbers.
                if rounds.iter().any(|value| value.is_finite()) {
                    outcome.figures.push(Figure {
                        measure: self.measure.id.to_owned(),
                        row: row.id.to_owned(),
                        unit: row.unit,
                        backing: place.backing,
                        pinned,
                        target: place.kind(),
                        rounds,
                        counts: counts.clone(),
                    });
                }
            }
        }
    }

    /// One round on one target, and what the server counted meanwhile, for each operation.
    fn once(&self, place: &Place) -> Result<(Sample, BTreeMap<String, f64>)> {
        place.target.settle()?;
        let before = counters(place)?;
        let sample = (self.measure.round)(self.cx, place)?;
        let mut counted = BTreeMap::new();
        if sample.operations > 0 {
            // RELEASE and FORGET come when nobody waits for them.
            std::thread::sleep(std::time::Duration::from_millis(10));
            for (name, after) in counters(place)? {
                let more = after - before.get(&name).copied().unwrap_or(0.0);
                if more > 0.0 {
                    counted.insert(name, more / sample.operations as f64);
                }
            }
        }
        Ok((sample, counted))
    }
}

/// The server's counters; empty without a server of ours.
fn counters(place: &Place) -> Result<BTreeMap<String, f64>> {
    if !place.kind().is_tensorfs() {
        return Ok(BTreeMap::new());
    }
    let info = place.target.info()?;
    let counters = info["counters"].as_object().ok_or_else(|| Missing("info without counters".to_owned()))?;
    Ok(counters.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect())
}

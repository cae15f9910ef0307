//! One crash after the other: what one leaves is recovered and used, and crashes again. A fault may take two of them:
//! what recovery makes of the first is sound, and what is done with that is not.

use std::fmt::Write as _;

use crate::call::Call;
use crate::case::{Base, OPERATIONS, Run, Start};
use crate::disk::Kind;
use crate::explore::{Recorded, keep, recorded, recovered};
use crate::image::{Budget, choose};
use crate::medium::Simulation;
use crate::model::{Fate, Model};
use crate::random::Random;
use crate::scratch::Scratch;

/// Of images of a lost power, one of these is gone on with.
const BUDGET: Budget = Budget { exhaustive: 4, single: 2, sampled: 4 };

/// Lets a pool crash so often, at moments and after calls by chance. An error tells all about the last crash.
pub fn live(kind: Kind, crashes: usize, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut scratch = Scratch::new();
    let base = if random.one_in(2) { Base::Edge } else { Base::Tree };
    let mut start = Start::new(kind, base, &mut scratch);
    let mut boot = 9_u128;
    for crash in 0..crashes {
        scratch = Scratch::new();
        let name = format!("crash {crash} of seed {seed} on {kind:?}");
        let close_commits = kind == Kind::Dax && random.one_in(2);
        let run = Run::in_boot(boot.to_le_bytes(), &start, close_commits, &mut scratch);
        let mut run = run.map_err(|error| format!("{name}: {error}\n  {}", keep(&start.disk).display()))?;
        let opened = run.simulation().look();
        // All that is seen when a recovery is over is durable.
        let mut answers = vec![run.answered(Call::Idle)];
        for _ in 0..random.below(8) {
            // Housekeeping as often as all else.
            let calls = match random.below(4) {
                0 => &[Call::Round][..],
                1 => &[Call::Reclaim],
                _ => OPERATIONS[random.below(OPERATIONS.len())].1,
            };
            for call in calls {
                let done = run.perform(*call);
                done.map_err(|why| format!("{name}: {why}\n  {}", keep(&start.disk).display()))?;
                answers.push(run.answered(*call));
            }
        }
        let recorded = recorded(name, seed, false, &start, run, answers);
        let at = opened + random.below(recorded.events.len() + 1 - opened);
        let mut disk = start.disk.clone();
        recorded.events[..at].iter().for_each(|event| disk.apply(event));
        let (image, fate) = if random.one_in(4) {
            let choices = choose(&disk, BUDGET, &mut random);
            boot += 1;
            (disk.after_power_loss(&choices[random.below(choices.len())]), Fate::Power)
        } else {
            (disk, Fate::Killed)
        };
        let (path, _) = scratch.write(&image).map_err(|error| error.to_string())?;
        let seen = recovered(&path, &Simulation::unwatched(image.clone()), boot.to_le_bytes(), false);
        let judged = seen.and_then(|seen| recorded.model.find(&seen, &recorded.bounds(at, fate)).map(|_| seen));
        let seen = judged.map_err(|why| told(&recorded, (at, fate), &why, &keep(&image).display().to_string()))?;
        start = Start { disk: image, model: Model::of(&seen) };
    }
    Ok(())
}

fn told(recorded: &Recorded, (at, fate): (usize, Fate), why: &str, kept: &str) -> String {
    let mut text = format!("{}: {fate:?} before event {at}\n  {why}\n", recorded.name);
    for answer in &recorded.answers {
        let _ = writeln!(text, "  {:?}: answered at event {}, durable {}", answer.call, answer.events, answer.durable);
    }
    let _ = writeln!(text, "  the image: {kept}");
    text
}

//! `tensorfs health`: whether a mount serves, for probes.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorfs_fs::{Info, State};
use tensorfs_layout::check::LastScrub;
use tensorfs_layout::pool::READ_ONLY_HOST;
use tensorfs_layout::segment::{TierInfo, TierState};

use crate::ask::about;
use crate::cli::Health;
use crate::mounting::target::Target;
use crate::mounting::{apart, foreign};
use crate::show::failure::Failure;
use crate::show::info::UNWATCHED;
use crate::show::{following, output, second_copy, size};

/// Of what a pool can hold, less than one part in so many is left: it is nearly full.
const NEARLY_FULL: u64 = 20;

/// What comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// It serves.
    Serves,
    /// It serves, and something is wrong.
    Degraded,
    /// It does not serve.
    Down,
}

/// What is said.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    health: Verdict,
    /// What is wrong, a line each.
    problems: Vec<String>,
    /// The last scrub that came to its end, if that is known.
    #[serde(default)]
    last_scrub: Option<LastScrub>,
}

impl Answer {
    fn down(why: impl Into<String>) -> Self {
        Self { health: Verdict::Down, problems: vec![why.into()], last_scrub: None }
    }
}

/// Runs the command.
pub fn run(arguments: &Health) -> ExitCode {
    let answer = if arguments.ask {
        look(&arguments.target).unwrap_or_else(|failure| Answer::down(failure.to_string()))
    } else {
        ask(&arguments.target, arguments.timeout.unwrap_or(apart::PATIENCE))
    };
    let printed = match serde_json::to_string(&answer) {
        Ok(json) if arguments.json || arguments.ask => output::print(&format!("{json}\n")),
        _ => output::print(&lines(&arguments.target, &answer)),
    };
    // Who reads nothing has the exit status.
    let health = answer.health as u8;
    match printed {
        Ok(()) => ExitCode::from(health),
        Err(failure) => {
            output::complain(failure);
            ExitCode::from(health.max(Verdict::Degraded as u8))
        }
    }
}

fn lines(target: &Path, answer: &Answer) -> String {
    let target = target.display();
    match answer.health {
        Verdict::Serves => format!("{target}: serves\n"),
        Verdict::Degraded => answer.problems.iter().map(|what| format!("{target}: serves, but {what}\n")).collect(),
        // They say where.
        Verdict::Down => answer.problems.iter().map(|what| format!("{what}\n")).collect(),
    }
}

/// Has another process look, for so long.
fn ask(target: &Path, patience: Duration) -> Answer {
    let arguments = ["health".as_ref(), "--ask".as_ref(), "--".as_ref(), target.as_os_str()];
    apart::ask(&arguments, patience).unwrap_or_else(|why| Answer::down(format!("{}: {why}", target.display())))
}

/// Asks the server.
fn look(target: &Path) -> Result<Answer, Failure> {
    foreign::check_below(target)?;
    let mount = Target::of(target)?.mount()?;
    if mount.is_dead() {
        return Ok(Answer::down(about::gone(&mount)));
    }
    let json = about::of_live(&mount)?;
    let info: Info = serde_json::from_str(&json)
        .map_err(|error| Failure::at(target, format!("its server speaks of something unknown here ({error})")))?;
    if info.state != State::Mounted {
        return Ok(Answer::down(format!("{}: not mounted", target.display())));
    }
    let mut problems = problems(&info);
    problems.extend(info.following.iter().flat_map(following::problems));
    problems.extend(info.second_copy.iter().flat_map(second_copy::problems));
    let health = if problems.is_empty() { Verdict::Serves } else { Verdict::Degraded };
    Ok(Answer { health, problems, last_scrub: info.last_scrub })
}

/// What is wrong with a mount that serves.
fn problems(info: &Info) -> Vec<String> {
    let mut found = Vec::new();
    if info.keeper.as_ref().is_some_and(|keeper| keeper.pid.is_none()) {
        found.push(UNWATCHED.to_owned());
    }
    if let Some(reason) = info.read_only.as_ref().filter(|reason| *reason != READ_ONLY_HOST) {
        found.push(format!("it takes no changes: {reason}"));
    }
    let files = |count: usize| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
    if let Some(first) = info.damaged_files.first() {
        found.push(format!("{} may have lost bytes, such as {first}", files(info.damaged_files.len())));
    }
    if !info.damage_found.is_empty() {
        found.push(format!("scrubbing found damage in {} places (tensorfs info)", info.damage_found.len()));
    }
    for (name, reason) in info.tiers.iter().filter_map(|tier| Some((&tier.name, tier.reason.as_ref()?))) {
        found.push(format!("tier {name} is missing: {reason}"));
    }
    if info.refused_removals > 0 {
        let what = files(usize::try_from(info.refused_removals).unwrap_or(usize::MAX));
        found.push(format!("the host does not remove the bytes of {what} that were deleted"));
    }
    // Where one filesystem has so little, writers to its tier are refused, whatever the others have; but no limit lets
    // anybody come so far who has less left than that.
    let is_tight = |tier: &&TierInfo| {
        tier.state == TierState::Ready && tier.free < tier.total / NEARLY_FULL && Some(tier.free) < info.available
    };
    for tier in info.tiers.iter().filter(is_tight) {
        let (name, left, whole) = (&tier.name, size::humane(tier.free), size::humane(tier.total));
        found.push(format!("the filesystem of tier {name} is nearly full: {left} of {whole} are left"));
    }
    if let Some(available) = info.available.filter(|available| *available < info.capacity / NEARLY_FULL) {
        let (left, whole) = (size::humane(available), size::humane(info.capacity));
        found.push(format!("it is nearly full: {left} of {whole} are left"));
    }
    found
}

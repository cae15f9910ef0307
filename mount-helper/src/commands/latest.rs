//! `tensorfs latest`: the newest checkpoint that is all there, which is what a run that goes on should load.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tensorfs_fs::{are_whole, is_called_as_trainers, is_unfinished};

use crate::cli::Latest;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::paths;
use crate::show::failure::Failure;
use crate::show::{output, text};
use crate::tensors::attribute;
use crate::tensors::place::{Entered, Kind, Place};

/// What a checkpoint of one file is called, also with `.tar` behind it, as if it were an archive: `best.pth.tar`.
const ENDINGS: [&str; 5] = ["pt", "pth", "ckpt", "safetensors", "npz"];

/// What weights are called that a trainer exports, if they are one file.
const EXPORTED: &str = "model.safetensors";
/// How files end that stand beside exported weights, those of configurations and tokenizers among them.
const OF_WEIGHTS: [&str; 8] = [".safetensors", ".bin", ".json", ".txt", ".model", ".md", ".jinja", ".py"];
/// How files begin, or directories, from which a run can go on.
const STATES: [&str; 10] = [
    "optim",
    "scheduler",
    "rng_state",
    "random_states",
    "scaler",
    "sampler",
    "training_state",
    "global_step",
    "latest",
    ".metadata",
];
/// What a trainer leaves in the directory of its run, too, without what it could go on from.
const TRAINER_STATE: &str = "trainer_state.json";
/// Where Accelerate has the checkpoints of a run.
const CHECKPOINTS: &str = "checkpoints";

/// Runs the command.
pub fn run(arguments: &Latest) -> Result<ExitCode, Failure> {
    let found = find(&arguments.dir)?;
    let newest = found.complete(&arguments.dir)?;
    let path = newest.place.path();
    if arguments.json {
        let modified = newest.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let passed = found.candidates.iter().take_while(|other| !std::ptr::eq(*other, newest));
        let passed = passed.filter(|other| other.said != Some(Said::Complete));
        let line = json!({
            "kind": if newest.is_dir { "directory" } else { "file" },
            "modified": modified.as_secs_f64(),
            "incomplete": passed.map(|other| other.place.path().to_string_lossy().into_owned()).collect::<Vec<_>>(),
        });
        output::print(&format!("{}\n", text::with_path(line, path)))?;
    } else {
        // A shell hands it on as it is.
        output::print_bytes(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What may be checkpoints below a directory.
#[derive(Default)]
pub struct Found {
    /// The newest first.
    candidates: Vec<Candidate>,
    /// Which is the newest that is complete.
    complete: Option<usize>,
    /// A directory of whose files it cannot be told which are one.
    unclear: Option<Place>,
    /// What cannot be looked into, and may have newer ones.
    unseen: Vec<Place>,
    /// Whether something was removed before it was looked at.
    has_missed: bool,
}

/// How often it is looked for checkpoints where some are removed meanwhile.
const LOOKS: u32 = 100;

/// Looks for checkpoints below a directory on a mount. What cannot be looked at is told to the user.
pub fn find(dir: &Path) -> Result<Found, Failure> {
    let real = paths::real(dir)?;
    let table = Table::here()?;
    if !table.around(&real).is_some_and(Mount::is_tensorfs) {
        return Err(Failure::at(dir, "not on a tensorfs mount"));
    }
    let place = Place::of(dir)?;
    if place.about(true)?.kind() != Kind::Directory {
        return Err(Failure::at(dir, "not a directory"));
    }
    let mut told = HashSet::new();
    let mut tell = |failure: Failure| {
        let line = failure.to_string();
        if !told.contains(&line) {
            output::complain(&line);
            told.insert(line);
        }
    };
    let mut looks = 0;
    loop {
        looks += 1;
        let mut found = Found::default();
        found.gather(&place, &mut tell)?;
        found.choose(&mut tell);
        // Those that are kept are others by now.
        if found.complete.is_some() || !found.has_missed || looks >= LOOKS {
            return Ok(found);
        }
    }
}

impl Found {
    /// Asks of one after the other, the newest first, whether it is complete, until one is.
    fn choose(&mut self, tell: &mut dyn FnMut(Failure)) {
        let candidates = &mut self.candidates;
        // Of those that are equally new the one with the larger number comes first.
        candidates.sort_by_cached_key(|found| std::cmp::Reverse((found.modified, natural(found.place.path()))));
        let mut all = 0..candidates.len();
        let is_next = |at: &usize| self.ask(*at, tell) == Said::Complete && !self.is_passed_for_trainers(*at, tell);
        self.complete = all.find(is_next);
    }

    /// What is said of a candidate, asked once.
    fn ask(&mut self, at: usize, tell: &mut dyn FnMut(Failure)) -> Said {
        let found = &mut self.candidates[at];
        if let Some(said) = found.said {
            return said;
        }
        let mut said = told_of(&found.place, tell);
        match said {
            Said::Complete | Said::Incomplete | Said::Unknown => {}
            Said::Gone => self.has_missed = true,
            Said::Nothing if found.place.is_gone() => self.has_missed = true,
            Said::Nothing => {
                tell(cannot_tell(&found.place, &"nothing in it says where it ends"));
                said = Said::Unknown;
            }
        }
        found.said = Some(said);
        said
    }

    /// Whether a candidate is what a trainer's run has exported beside the checkpoints that it goes on from, and one of
    /// those is complete.
    fn is_passed_for_trainers(&mut self, at: usize, tell: &mut dyn FnMut(Failure)) -> bool {
        let found = &self.candidates[at];
        if is_trainers(&found.place) {
            return false;
        }
        let path = found.place.path();
        let dir = if found.is_dir { Some(path) } else { path.parent() };
        let above = dir.and_then(Path::parent).filter(|_| found.exported == Exported::Alone);
        let run = dir.filter(|_| found.exported != Exported::No);
        let is_of_one = |place: &Place| {
            is_trainers(place) && runs_of(place).iter().flatten().any(|of| run == Some(*of) || above == Some(*of))
        };
        let ones: Vec<usize> = (0..self.candidates.len()).filter(|at| is_of_one(&self.candidates[*at].place)).collect();
        ones.into_iter().any(|at| self.ask(at, tell) == Said::Complete)
    }

    /// Finds what may be checkpoints below a directory. What belongs to one that is a directory is none of its own, and
    /// neither is what seems to belong to one that is not all there yet.
    fn gather(&mut self, top: &Place, tell: &mut dyn FnMut(Failure)) -> Result<(), Failure> {
        let mut entered = Entered::default();
        entered.enter(top, &top.about(true)?)?;
        let mut left = vec![(top.clone(), false)];
        while let Some((dir, is_below_run)) = left.pop() {
            let mut why = None;
            let Some(inside) = dir.looked_at(Place::inside, &mut |failure| why = Some(failure)) else {
                match why {
                    Some(failure) if dir.path() == top.path() => return Err(failure),
                    Some(failure) => {
                        tell(failure);
                        self.unseen.push(dir);
                    }
                    None => self.has_missed = true,
                }
                continue;
            };
            let said = told_of(&dir, tell);
            if said == Said::Gone {
                self.has_missed = true;
                continue;
            }
            // A trainer's own of which nothing is known is one, too.
            let is_checkpoint = is_below_run || said != Said::Nothing || is_trainers(&dir);
            let mut files = Vec::new();
            let (mut is_hidden, mut exported) = (false, Exported::Alone);
            for place in inside {
                let name = name(&place);
                exported = exported.min(beside(&name));
                if name.starts_with('.') || is_unfinished(name.as_bytes()) {
                    continue;
                }
                let mut why = None;
                let Some(about) = place.looked_at(Place::about_itself, &mut |failure| why = Some(failure)) else {
                    match why {
                        Some(failure) => {
                            tell(failure);
                            is_hidden = true;
                        }
                        None => self.has_missed = true,
                    }
                    continue;
                };
                match about.kind() {
                    // A run that is one itself may have its checkpoints there, and nothing else that counts.
                    Kind::Directory if !is_checkpoint || is_trainers(&place) || name == CHECKPOINTS => {
                        let is_below_run = is_checkpoint && !is_trainers(&place);
                        let go_on = |()| left.push((place.clone(), is_below_run));
                        entered.enter(&place, &about).map_or_else(&mut *tell, go_on);
                    }
                    Kind::File if !is_checkpoint && is_called_one(place.path()) => {
                        files.push((name, place, about.modified()));
                    }
                    _ => {}
                }
            }
            if is_hidden {
                self.unseen.push(dir.clone());
            }
            if is_below_run {
                continue;
            }
            if is_checkpoint {
                let (modified, said) = (newest(&dir, tell), (said == Said::Unknown).then_some(said));
                self.candidates.push(Candidate { place: dir, is_dir: true, modified, said, exported });
            } else if are_whole(&files.iter().map(|(name, ..)| &**name).collect::<Vec<_>>()) {
                let one = |(name, place, modified): (String, _, _)| Candidate {
                    place,
                    is_dir: false,
                    modified,
                    said: None,
                    exported: if name == EXPORTED { exported } else { Exported::No },
                };
                self.candidates.extend(files.into_iter().map(one));
            } else {
                self.unclear = Some(dir);
            }
        }
        Ok(())
    }

    /// What cannot be looked into, and may have newer ones.
    pub fn unseen(&self) -> &[Place] {
        &self.unseen
    }

    /// The newest that is complete.
    pub fn complete(&self, dir: &Path) -> Result<&Candidate, Failure> {
        let found = self.complete.and_then(|at| self.candidates.get(at));
        found.ok_or_else(|| {
            let none = "no complete checkpoint below it";
            let why = match &self.unclear {
                Some(other) => {
                    format!("{none}; of the files in {} it cannot be told which are one", other.path().display())
                }
                None => match self.unseen.first() {
                    Some(other) => format!("{none}; {} cannot be looked into", other.path().display()),
                    None => none.to_owned(),
                },
            };
            Failure::at(dir, why)
        })
    }

    /// Those that are newer than the newest that is complete, the newest first; and what is called, in the same
    /// directory, as one that is newer would be, also if nothing tells yet that it is a checkpoint.
    pub fn newer(&self) -> Vec<Candidate> {
        let Some(at) = self.complete else { return Vec::new() };
        let (newer, complete) = (&self.candidates[..at], &self.candidates[at]);
        let path = complete.place.path();
        let mut all = newer.to_vec();
        let Some(Ok(beside)) = path.parent().map(|parent| Place::of(parent).and_then(|parent| parent.inside())) else {
            return all;
        };
        let would_be = |place: &Place| {
            let (one, other) = (natural(path), natural(place.path()));
            let alike = one.iter().map(|part| &part.0).eq(other.iter().map(|part| &part.0));
            let holds_one = |found: &Candidate| found.place.path() != place.path() && found.is_in(place.path());
            alike && other > one && !self.candidates.iter().any(holds_one)
        };
        let mut later: Vec<Place> = beside.into_iter().filter(would_be).collect();
        later.retain(|place| newer.iter().all(|known| known.place.path() != place.path()));
        later.sort_by_cached_key(|place| std::cmp::Reverse(natural(place.path())));
        let one = |place: Place| {
            let known = self.candidates.iter().find(|known| known.place.path() == place.path());
            let modified = SystemTime::UNIX_EPOCH;
            let of_its_own = || Candidate { place, is_dir: true, modified, said: None, exported: Exported::No };
            known.cloned().unwrap_or_else(of_its_own)
        };
        all.extend(later.into_iter().map(one));
        all
    }
}

/// Why a directory is incomplete that lacks nothing that is named in it.
pub const LACKING: &str = "what is written last or the weights are not there, or something below it is not whole";

/// What the server says of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is all there.
    Complete,
    /// It is not.
    Incomplete,
    /// It is none, as far as is known.
    Nothing,
    /// Nobody knows, which was told to the user.
    Unknown,
    /// It was removed meanwhile, or is a link that leads nowhere.
    Gone,
}

/// What the server says of a checkpoint. Why it cannot tell is told to the user.
pub fn said_of(place: &Place) -> Said {
    told_of(place, &mut |failure| output::complain(failure))
}

/// As [`said_of`]; `tell` hears why it cannot be told.
fn told_of(place: &Place, tell: &mut dyn FnMut(Failure)) -> Said {
    match attribute::get(place.path(), COMPLETE) {
        Ok(Some(said)) if said == "complete" => Said::Complete,
        Ok(Some(_)) => Said::Incomplete,
        Ok(None) => Said::Nothing,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Said::Gone,
        Err(error) => {
            tell(cannot_tell(place, &error));
            Said::Unknown
        }
    }
}

fn cannot_tell(place: &Place, why: &dyn std::fmt::Display) -> Failure {
    Failure::at(place.path(), format!("whether it is complete cannot be told: {why}"))
}

const COMPLETE: &str = "user.tensorfs.complete";

/// What may be a checkpoint.
#[derive(Clone)]
pub struct Candidate {
    place: Place,
    is_dir: bool,
    /// When a file of it was last changed.
    modified: SystemTime,
    /// What was said of it.
    said: Option<Said>,
    exported: Exported,
}

/// Whether something is exported weights, as far as names tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Exported {
    /// Something is beside it from which a run can go on, or nobody knows.
    No,
    /// If it stands in the directory of the run, where other things of that are.
    OfRun,
    /// Nothing else is beside it.
    Alone,
}

impl Candidate {
    fn is_in(&self, directory: &Path) -> bool {
        self.place.path().starts_with(directory)
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// True if the server cannot tell whether it is complete.
    pub fn is_unknown(&self) -> bool {
        self.said == Some(Said::Unknown)
    }

    /// Whether it is complete now.
    pub fn is_complete(&self) -> bool {
        !self.is_unknown() && said_of(&self.place) == Said::Complete
    }
}

fn name(place: &Place) -> String {
    place.name().to_string_lossy().into_owned()
}

/// Whether a directory is called as a trainer's own.
pub fn is_trainers(place: &Place) -> bool {
    is_called_as_trainers(name(place).as_bytes())
}

/// The directory of the run that a trainer's own directory is in; of one of Accelerate's also that above, if it stands
/// in the directory that Accelerate makes for them.
fn runs_of(place: &Place) -> [Option<&Path>; 2] {
    let run = place.path().parent();
    let is_accelerates = name(place).starts_with("checkpoint_");
    let inner = run.filter(|run| is_accelerates && run.file_name().is_some_and(|name| name == CHECKPOINTS));
    [run, inner.and_then(Path::parent)]
}

/// What exported weights are if they stand beside something that is called so.
fn beside(name: &str) -> Exported {
    if STATES.iter().any(|state| name.starts_with(state)) {
        return Exported::No;
    }
    let is_of_weights = name != TRAINER_STATE && OF_WEIGHTS.iter().any(|ending| name.ends_with(ending));
    if is_of_weights { Exported::Alone } else { Exported::OfRun }
}

fn is_called_one(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let name = name.strip_suffix(b".tar").unwrap_or(name);
    let ending = name.iter().rposition(|byte| *byte == b'.').map(|dot| &name[dot + 1..]);
    ending.is_some_and(|ending| ENDINGS.iter().any(|known| ending == known.as_bytes()))
}

/// When a file below was last changed, those of other checkpoints left out.
fn newest(dir: &Place, tell: &mut dyn FnMut(Failure)) -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    let mut entered = Entered::default();
    let mut left = vec![dir.clone()];
    while let Some(dir) = left.pop() {
        for place in dir.looked_at(Place::inside, tell).unwrap_or_default() {
            let Some(about) = place.looked_at(Place::about_itself, tell) else { continue };
            match about.kind() {
                Kind::Directory if !is_trainers(&place) => {
                    entered.enter(&place, &about).map_or_else(&mut *tell, |()| left.push(place.clone()));
                }
                Kind::File => newest = newest.max(about.modified()),
                _ => {}
            }
        }
    }
    newest
}

/// A path as people order them: `checkpoint-9` in front of `checkpoint-10`.
fn natural(path: &Path) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0_u64)];
    let mut in_number = false;
    for char in path.to_string_lossy().chars() {
        match (char.to_digit(10), parts.last_mut()) {
            (Some(digit), Some((_, number))) => {
                *number = number.saturating_mul(10).saturating_add(digit.into());
                in_number = true;
            }
            (None, Some((text, _))) if !in_number => text.push(char),
            (None, _) => {
                parts.push((char.to_string(), 0));
                in_number = false;
            }
            (Some(_), None) => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers() {
        let order = |a: &str, b: &str| natural(Path::new(a)).cmp(&natural(Path::new(b)));
        assert!(order("run/checkpoint-9", "run/checkpoint-10").is_lt());
        assert!(order("run2/a-1.pt", "run10/a-0.pt").is_lt());
        assert!(order("e-3-s-99", "e-3-s-100").is_lt() && order("x", "x").is_eq());
    }
}

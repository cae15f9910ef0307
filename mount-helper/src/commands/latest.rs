//! `tensorfs latest`: the newest checkpoint that is all there, which is what a run that goes on should load.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use tensorfs_fs::{are_whole, is_called_as_trainers, is_unfinished};

use crate::cli::Latest;
use crate::mounting::mountinfo::{Mount, Table};
use crate::mounting::paths;
use crate::show::failure::Failure;
use crate::show::output;
use crate::tensors::attribute;
use crate::tensors::place::{Kind, Place};

/// What a checkpoint of one file is called, also with `.tar` behind it, as if it were an archive: `best.pth.tar`.
const ENDINGS: [&str; 5] = ["pt", "pth", "ckpt", "safetensors", "npz"];

/// Runs the command.
pub fn run(arguments: &Latest) -> Result<ExitCode, Failure> {
    let found = find(&arguments.dir)?;
    let newest = found.complete(&arguments.dir)?;
    let path = newest.place.path();
    if arguments.json {
        let modified = newest.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let passed = found.candidates.iter().take_while(|other| !std::ptr::eq(*other, newest));
        let line = json!({
            "path": path.to_string_lossy(),
            "kind": if newest.is_dir { "directory" } else { "file" },
            "modified": modified.as_secs_f64(),
            "incomplete": passed.map(|other| other.place.path().to_string_lossy().into_owned()).collect::<Vec<_>>(),
        });
        output::print(&format!("{line}\n"))?;
    } else {
        output::print(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What may be checkpoints below a directory.
pub struct Found {
    /// The newest first.
    candidates: Vec<Candidate>,
    /// Which is the newest that is complete.
    complete: Option<usize>,
    /// A directory of whose files it cannot be told which are one.
    unclear: Option<Place>,
}

/// Looks for checkpoints below a directory on a mount.
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
    let mut candidates = Vec::new();
    let unclear = gather(&place, &mut candidates)?;
    // The newest first, and of those that are equally new the one with the larger number.
    candidates.sort_by_cached_key(|found| std::cmp::Reverse((found.modified, natural(found.place.path()))));
    let mut complete = None;
    for (at, found) in candidates.iter_mut().enumerate() {
        if found.is_unknown {
            continue;
        }
        match said_of(&found.place) {
            Said::Complete => {
                complete = Some(at);
                break;
            }
            Said::Incomplete => {}
            Said::Nothing => {
                output::complain(cannot_tell(&found.place, &"nothing in it says where it ends"));
                found.is_unknown = true;
            }
            Said::Unknown => found.is_unknown = true,
        }
    }
    Ok(Found { candidates, complete, unclear })
}

impl Found {
    /// The newest that is complete.
    pub fn complete(&self, dir: &Path) -> Result<&Candidate, Failure> {
        let found = self.complete.and_then(|at| self.candidates.get(at));
        found.ok_or_else(|| {
            let none = "no complete checkpoint below it";
            let why = match &self.unclear {
                Some(other) => {
                    format!("{none}; of the files in {} it cannot be told which are one", other.path().display())
                }
                None => none.to_owned(),
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
            let of_its_own = || Candidate { place, is_dir: true, modified: SystemTime::UNIX_EPOCH, is_unknown: false };
            known.cloned().unwrap_or_else(of_its_own)
        };
        all.extend(later.into_iter().map(one));
        all
    }
}

/// Why a directory is incomplete that lacks nothing that is named in it.
pub const LACKING: &str = "what is written last is not there, or something below it is not whole";

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
}

/// What the server says of a checkpoint. Why it cannot tell is told to the user.
pub fn said_of(place: &Place) -> Said {
    match attribute::get(place.path(), COMPLETE) {
        Ok(Some(said)) if said == "complete" => Said::Complete,
        Ok(Some(_)) => Said::Incomplete,
        Ok(None) => Said::Nothing,
        // Gone since, or a link that leads nowhere.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Said::Incomplete,
        Err(error) => {
            output::complain(cannot_tell(place, &error));
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
    /// Whether it is known already that nobody knows whether it is complete.
    is_unknown: bool,
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
        self.is_unknown
    }

    /// Whether it is complete now.
    pub fn is_complete(&self) -> bool {
        !self.is_unknown && said_of(&self.place) == Said::Complete
    }
}

/// What may be checkpoints below a directory. What belongs to one that is a directory is none of its own, and neither
/// is what seems to belong to one that is not all there yet. Returns a directory of which that was so.
fn gather(dir: &Place, candidates: &mut Vec<Candidate>) -> Result<Option<Place>, Failure> {
    let mut unclear = None;
    let mut left = vec![dir.clone()];
    while let Some(dir) = left.pop() {
        // Of another owner, or gone since.
        let Ok(inside) = dir.inside() else { continue };
        let said = said_of(&dir);
        // A trainer's own of which nothing is known is one, too.
        let is_checkpoint = said != Said::Nothing || is_trainers(&dir);
        let mut files = Vec::new();
        for place in inside {
            let Ok(about) = place.about(false) else { continue };
            let name = name(&place);
            let hidden = name.starts_with('.') || is_unfinished(name.as_bytes());
            match about.kind() {
                Kind::Directory if !hidden && (!is_checkpoint || is_trainers(&place)) => left.push(place),
                Kind::File if !is_checkpoint && !hidden && is_called_one(place.path()) => {
                    files.push((name, place, about.modified()));
                }
                _ => {}
            }
        }
        if is_checkpoint {
            let modified = newest(&dir);
            candidates.push(Candidate { place: dir, is_dir: true, modified, is_unknown: said == Said::Unknown });
        } else if are_whole(&files.iter().map(|(name, ..)| &**name).collect::<Vec<_>>()) {
            let one = |(_, place, modified)| Candidate { place, is_dir: false, modified, is_unknown: false };
            candidates.extend(files.into_iter().map(one));
        } else {
            unclear = Some(dir);
        }
    }
    Ok(unclear)
}

fn name(place: &Place) -> String {
    place.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a directory is called as a trainer's own.
pub fn is_trainers(place: &Place) -> bool {
    is_called_as_trainers(name(place).as_bytes())
}

fn is_called_one(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let name = name.strip_suffix(b".tar").unwrap_or(name);
    let ending = name.iter().rposition(|byte| *byte == b'.').map(|dot| &name[dot + 1..]);
    ending.is_some_and(|ending| ENDINGS.iter().any(|known| ending == known.as_bytes()))
}

/// When a file below was last changed, those of other checkpoints left out.
fn newest(dir: &Place) -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    let mut left = vec![dir.clone()];
    while let Some(dir) = left.pop() {
        for place in dir.inside().unwrap_or_default() {
            let Ok(about) = place.about(false) else { continue };
            match about.kind() {
                Kind::Directory if !is_trainers(&place) => left.push(place),
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

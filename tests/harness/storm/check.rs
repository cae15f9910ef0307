//! Compares what is there after a crash with what the writers were told.
//!
//! After the server was killed, each writer's directory must be as the plan says after the steps that had returned; the
//! step that was under way may be done, or not, or a write in part.
//!
//! After a power loss (docs/SEMANTICS.md, D1 to D10, R1 to R3)
//!
//! * names and modes must be as after some number of steps, at least as many as were promised, and if a step that
//!   changes names is there, so is each of another writer that had returned before it began;
//! * a file must hold at least what was in it when it was last synced, or got a name that is there. What was written
//!   later may be there, in part, or not: each byte must be one that the file had at that place since then;
//! * a file that was opened with `O_TRUNC` must hold a version whole that was closed, synced or named, never an
//!   unfinished one, and none older than promised.

use super::plan::{Entry, Event, Names};
use super::{Durability, Ledger, Op, Plan};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The server was killed; the machine stayed up.
    ServerKilled,
    /// The machine went down; the mount had promised this much.
    PowerLoss(Durability),
}

/// Someone who wrote until the crash.
#[derive(Debug, Clone)]
pub struct Writer {
    /// What it was to do.
    pub plan: Plan,
    /// What of it had returned.
    pub ledger: Ledger,
    /// How many steps more it may have begun.
    pub begun: usize,
}

impl Writer {
    /// Someone who may have begun one step more.
    pub fn new(plan: Plan, ledger: Ledger) -> Writer {
        Writer { plan, ledger, begun: 1 }
    }
}

/// What the check saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Steps that had returned.
    pub steps: usize,
    /// Files that were compared.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Steps that a power loss undid, as it may.
    pub undone: usize,
}

#[derive(Debug)]
enum Found {
    Dir,
    File { ino: u64, mode: u32, bytes: Vec<u8> },
}

/// A writer's directory as it is found.
#[derive(Debug)]
pub struct Observed(BTreeMap<String, Found>);

impl Observed {
    /// Reads everything below `directory`, which need not exist.
    pub fn read(directory: &Path) -> io::Result<Observed> {
        let mut found = BTreeMap::new();
        let mut todo = vec![String::new()];
        while let Some(name) = todo.pop() {
            let path = if name.is_empty() { directory.to_owned() } else { directory.join(&name) };
            let context = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            let meta = match std::fs::symlink_metadata(&path) {
                Err(error) if name.is_empty() && error.kind() == io::ErrorKind::NotFound => break,
                other => other.map_err(context)?,
            };
            if meta.is_dir() {
                for entry in std::fs::read_dir(&path).map_err(context)? {
                    let part = entry.map_err(context)?.file_name().to_string_lossy().into_owned();
                    todo.push(if name.is_empty() { part } else { format!("{name}/{part}") });
                }
                found.insert(name, Found::Dir);
            } else {
                let bytes = std::fs::read(&path).map_err(context)?;
                if bytes.len() as u64 != meta.len() {
                    let text = format!("stat says {} bytes, reading gives {}", meta.len(), bytes.len());
                    return Err(context(io::Error::other(text)));
                }
                found.insert(name, Found::File { ino: meta.ino(), mode: meta.mode() & 0o7777, bytes });
            }
        }
        Ok(Observed(found))
    }

    /// Which inode is which file of the plan, if names, kinds, modes and links are as they should be.
    fn compare(&self, names: &Names) -> Result<BTreeMap<usize, &[u8]>, String> {
        if let Some(name) = names.keys().find(|name| !self.0.contains_key(*name)) {
            return Err(format!("{name:?} is missing"));
        }
        if let Some(name) = self.0.keys().find(|name| !names.contains_key(*name)) {
            return Err(format!("{name:?} is too much"));
        }
        let mut inodes: HashMap<u64, usize> = HashMap::new();
        let mut files: BTreeMap<usize, (u64, &[u8])> = BTreeMap::new();
        for (name, expected) in names {
            match (&self.0[name], expected) {
                (Found::Dir, Entry::Dir) => {}
                (Found::File { ino, mode, bytes }, Entry::File(file, wanted)) => {
                    if mode != wanted {
                        return Err(format!("{name:?} has mode {mode:o} instead of {wanted:o}"));
                    }
                    if *inodes.entry(*ino).or_insert(*file) != *file {
                        return Err(format!("{name:?} is another name of a file that it should not be"));
                    }
                    if files.entry(*file).or_insert((*ino, bytes)).0 != *ino {
                        return Err(format!("{name:?} is not the same file as its other name"));
                    }
                }
                (found, expected) => {
                    let kind = if matches!(found, Found::Dir) { "a directory" } else { "a file" };
                    return Err(format!("{name:?} is {kind} instead of {expected:?}"));
                }
            }
        }
        Ok(files.into_iter().map(|(file, (_, bytes))| (file, bytes)).collect())
    }
}

/// A file's content after some number of steps.
struct Version {
    since: usize,
    /// How often it was replaced before.
    epoch: usize,
    bytes: Vec<u8>,
}

/// What is known about one writer.
struct Case<'a> {
    plan: &'a mut Plan,
    ledger: &'a Ledger,
    /// Steps that may be there: those that had returned, and those that had begun.
    high: usize,
    crash: Crash,
    /// Steps that must be there as far as names go.
    promised: usize,
    /// Everything that was done up to this number of steps was made durable, whatever file it was.
    settled: usize,
}

impl Case<'_> {
    fn versions(&self, file: usize) -> Vec<Version> {
        let mut versions = vec![Version { since: 0, epoch: 0, bytes: Vec::new() }];
        for &(step, event) in self.plan.history(file).iter().filter(|(step, _)| *step < self.high) {
            let last = versions.last().unwrap();
            let (mut epoch, mut bytes) = (last.epoch, last.bytes.clone());
            match event {
                Event::Write { offset, len } | Event::Store { offset, len } => {
                    let end = (offset + len) as usize;
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[offset as usize..end].copy_from_slice(&self.plan.bytes(step, offset, len));
                }
                Event::Size(size) => bytes.resize(size as usize, 0),
                Event::Replace => (epoch, bytes) = (epoch + 1, Vec::new()),
                Event::Sync | Event::Close | Event::Named => continue,
            }
            versions.push(Version { since: step + 1, epoch, bytes });
        }
        versions
    }

    /// What each file must hold at least, in steps, if names are as after `names` steps.
    fn floor(&self, file: usize, names: usize) -> usize {
        let acked = self.ledger.steps.len();
        let Crash::PowerLoss(durability) = self.crash else { return acked };
        let promises = |(step, event): &(usize, Event)| match event {
            Event::Sync => *step < acked,
            Event::Close => *step < acked && durability == Durability::Close,
            Event::Write { .. } => *step < acked && durability == Durability::Write,
            Event::Named => *step < names,
            _ => false,
        };
        let own = self.plan.history(file).iter().filter(|one| promises(one)).map(|(step, _)| step + 1).max();
        own.unwrap_or(0).max(self.settled)
    }

    /// From how many steps on a file's replacements may, and from how many they must be what it holds.
    fn stands(&self, file: usize) -> Vec<(usize, usize)> {
        let mut stands = vec![(0, 0)];
        let durability = match self.crash {
            Crash::ServerKilled => None,
            Crash::PowerLoss(durability) => Some(durability),
        };
        for &(step, event) in self.plan.history(file) {
            if event == Event::Replace {
                stands.push((usize::MAX, usize::MAX));
            }
            let last = stands.last_mut().unwrap();
            // With `durability=write` already a part of the first write makes it stand: the kernel may split a write.
            let each_write = durability == Some(Durability::Write);
            let (may, must) = match event {
                Event::Replace if durability.is_none() => (Some(step + 1), Some(step + 1)),
                Event::Sync | Event::Close | Event::Named => (Some(step + 1), Some(step + 1)),
                Event::Write { .. } if each_write => (Some(step), Some(step + 1)),
                Event::Store { .. } if each_write => (Some(step), None),
                // Where the server sees it, it is an fsync.
                Event::Store { .. } => (Some(step + 1), None),
                Event::Replace | Event::Write { .. } | Event::Size(_) => (None, None),
            };
            last.0 = last.0.min(may.unwrap_or(usize::MAX));
            last.1 = last.1.min(must.unwrap_or(usize::MAX));
        }
        stands
    }

    fn content(&self, file: usize, names: usize, bytes: &[u8]) -> Result<(), String> {
        let floor = self.floor(file, names);
        let versions = self.versions(file);
        let stands = self.stands(file);
        let oldest = stands.iter().rposition(|(_, must)| *must <= floor).unwrap();
        let mut reasons = Vec::new();
        for (epoch, (may, _)) in stands.iter().enumerate().skip(oldest) {
            if epoch > oldest && *may > self.high {
                continue;
            }
            let from = if epoch == oldest { floor } else { (*may).max(floor) };
            let all: Vec<&Version> = versions.iter().filter(|version| version.epoch == epoch).collect();
            // The last of the versions that were there by then, and all later ones.
            let first = all.iter().rposition(|version| version.since <= from).unwrap_or(0);
            let Some(candidates) = all.get(first..).filter(|rest| !rest.is_empty()) else { continue };
            match self.mixed(file, epoch, candidates, bytes) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(format!(
                    "not version {epoch} as of step {} to {}: {reason}",
                    candidates[0].since,
                    candidates.last().unwrap().since
                )),
            }
        }
        Err(format!("{} bytes, floor {floor}, {}", bytes.len(), reasons.join("; ")))
    }

    /// Whether each byte is one that the file had there in some of the versions.
    fn mixed(&self, file: usize, epoch: usize, versions: &[&Version], bytes: &[u8]) -> Result<(), String> {
        let lens = versions.iter().map(|version| version.bytes.len());
        let (min, max) = (lens.clone().min().unwrap(), lens.max().unwrap());
        if bytes.len() < min || bytes.len() > max {
            return Err(format!("its size should be {min} to {max}"));
        }
        if versions.iter().any(|version| version.bytes == bytes) && versions.len() == 1 {
            return Ok(());
        }
        // Stores that msync made durable: nothing older may be in their place.
        let acked = self.ledger.steps.len();
        let pins: Vec<(usize, usize, usize)> = self
            .plan
            .history(file)
            .iter()
            .filter(|(step, _)| *step < acked)
            .filter(|(step, _)| versions.iter().any(|v| v.since == step + 1 && v.epoch == epoch))
            .filter_map(|(step, event)| match event {
                Event::Store { offset, len } => Some((*offset as usize, (offset + len) as usize, step + 1)),
                _ => None,
            })
            .collect();
        let mut usual = versions.len() - 1;
        for (at, byte) in bytes.iter().enumerate() {
            let pin = pins.iter().filter(|(from, to, _)| (*from..*to).contains(&at)).map(|(.., since)| *since).max();
            let fits = |version: &&Version| {
                version.bytes.get(at) == Some(byte) && pin.is_none_or(|since| version.since >= since)
            };
            if fits(&versions[usual]) {
                continue;
            }
            match versions.iter().position(fits) {
                Some(other) => usual = other,
                None => {
                    let zero = if *byte == 0 { " (it is zero)" } else { "" };
                    return Err(format!("byte {at} is of none of its versions{zero}"));
                }
            }
        }
        Ok(())
    }
}

/// Checks the directories of all writers below `mount`; says in words what is wrong.
pub fn check(writers: &mut [Writer], mount: &Path, crash: Crash) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let ledgers: Vec<Ledger> = writers.iter().map(|writer| writer.ledger.clone()).collect();
    // When calls began that make everything durable that had been done before.
    let mut barriers: Vec<u64> = Vec::new();
    for writer in writers.iter_mut() {
        // Works the plan out as far as it is needed.
        writer.plan.op(writer.ledger.steps.len() + writer.begun);
        for (n, step) in writer.ledger.steps.iter().enumerate() {
            if matches!(writer.plan.op(n), Op::FsyncDir(_)) {
                barriers.push(step.began);
            }
        }
    }
    let barrier = barriers.into_iter().max().unwrap_or(0);

    // How many steps of each writer its names may be the result of.
    let mut possible: Vec<Vec<usize>> = Vec::new();
    for (writer, ledger) in writers.iter_mut().zip(&ledgers) {
        let acked = ledger.steps.len();
        let (promised, settled) = match crash {
            Crash::ServerKilled => (acked, acked),
            Crash::PowerLoss(durability) => {
                let settled = ledger.before(barrier);
                let own = (0..acked).rfind(|n| match writer.plan.op(*n) {
                    Op::Fsync | Op::Fdatasync | Op::FsyncDir(_) => true,
                    Op::Close => durability == Durability::Close,
                    Op::Write { .. } => durability == Durability::Write,
                    _ => false,
                });
                (own.map_or(0, |n| n + 1).max(settled), settled)
            }
        };
        let directory = writer.plan.directory();
        let observed = Observed::read(&mount.join(&directory)).map_err(|error| format!("{directory}: {error}"))?;
        let high = acked + writer.begun;
        let case = Case { plan: &mut writer.plan, ledger, high, crash, promised, settled };
        let (fits, files, bytes) = fits(case, &observed)
            .map_err(|reason| format!("{directory}: {acked} steps had returned, {promised} were promised; {reason}"))?;
        possible.push(fits);
        outcome.steps += acked;
        outcome.files += files;
        outcome.bytes += bytes;
    }
    let chosen = consistent(writers, &ledgers, &possible)?;
    for (k, ledger) in chosen.iter().zip(&ledgers) {
        outcome.undone += ledger.steps.len().saturating_sub(*k);
    }
    Ok(outcome)
}

/// The numbers of steps that fit what is there, the number of files, and of their bytes.
fn fits(case: Case<'_>, observed: &Observed) -> Result<(Vec<usize>, usize, u64), String> {
    let mut fits = Vec::new();
    let mut reasons = Vec::new();
    let mut known: HashMap<(usize, usize), Result<(), String>> = HashMap::new();
    let mut totals = (0, 0);
    for k in case.promised..=case.high {
        let names = case.plan.names(k);
        let files = match observed.compare(&names) {
            Ok(files) => files,
            Err(reason) => {
                reasons.push(format!("after {k} steps: {reason}"));
                continue;
            }
        };
        let wrong = files.iter().find_map(|(file, bytes)| {
            let key = (*file, case.floor(*file, k));
            let result = known.entry(key).or_insert_with(|| case.content(*file, k, bytes));
            let name = names.iter().find(|(_, entry)| matches!(entry, Entry::File(one, _) if one == file));
            result.clone().err().map(|reason| format!("{:?}: {reason}", name.unwrap().0))
        });
        match wrong {
            None => {
                totals = (files.len(), files.values().map(|bytes| bytes.len() as u64).sum());
                fits.push(k);
            }
            // Closer to the truth than wrong names.
            Some(reason) => reasons.insert(0, format!("after {k} steps: {reason}")),
        }
    }
    if fits.is_empty() {
        let count = reasons.len();
        reasons.truncate(4);
        let names: Vec<String> = observed
            .0
            .iter()
            .map(|(name, found)| match found {
                Found::Dir => format!("{name}/"),
                Found::File { bytes, ino, .. } => format!("{name} (inode {ino}, {} bytes)", bytes.len()),
            })
            .collect();
        return Err(format!("nothing fits, of {count}:\n  {}\n  there is: {}", reasons.join("\n  "), names.join(", ")));
    }
    Ok((fits, totals.0, totals.1))
}

/// The fewest steps of each writer that fit together: what had returned before another began is there if that is.
fn consistent(writers: &mut [Writer], ledgers: &[Ledger], possible: &[Vec<usize>]) -> Result<Vec<usize>, String> {
    let mut chosen: Vec<usize> = possible.iter().map(|fits| fits[0]).collect();
    loop {
        let mut changed = false;
        for one in 0..writers.len() {
            // The last step of names that is there, and when it began, or not before.
            let Some(last) = (0..chosen[one]).rfind(|n| writers[one].plan.op(*n).is_of_names()) else { continue };
            let steps = &ledgers[one].steps;
            let Some(began) = steps.get(last).map(|step| step.began).or(steps.last().map(|step| step.ended)) else {
                continue;
            };
            for other in 0..writers.len() {
                let before = ledgers[other].before(began);
                let needed = (0..before).rfind(|n| writers[other].plan.op(*n).is_of_names()).map_or(0, |n| n + 1);
                if chosen[other] >= needed {
                    continue;
                }
                let names = |seed: usize| writers[seed].plan.directory();
                let Some(more) = possible[other].iter().find(|k| **k >= needed) else {
                    return Err(format!(
                        "step {last} of {} is there, but not step {} of {}, which had returned before",
                        names(one),
                        needed - 1,
                        names(other)
                    ));
                };
                chosen[other] = *more;
                changed = true;
            }
        }
        if !changed {
            return Ok(chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    /// Two writers on an ordinary directory, the second after the first, which follow their plans for so many steps,
    /// and on to where no file is open. (In one that is being replaced, a power loss must leave another version.)
    fn written(steps: usize) -> (tempfile::TempDir, Vec<Writer>) {
        let directory = tempfile::tempdir().unwrap();
        let mut writers = Vec::new();
        for seed in [11, 12] {
            let ledger = directory.path().join(format!("ledger-{seed}"));
            let mut plan = Plan::new(seed);
            let steps = (steps..).find(|n| *n == 1 || *plan.op(*n - 1) == Op::Close).unwrap();
            let error = super::super::write(plan, directory.path(), &ledger, steps, None).unwrap();
            assert!(error.is_none(), "{error:?}");
            writers.push(Writer::new(Plan::new(seed), Ledger::read(&ledger).unwrap()));
        }
        (directory, writers)
    }

    const ALL: [Crash; 4] = [
        Crash::ServerKilled,
        Crash::PowerLoss(Durability::Write),
        Crash::PowerLoss(Durability::Close),
        Crash::PowerLoss(Durability::Fsync),
    ];

    /// The largest file below a directory.
    fn largest(directory: &Path) -> std::path::PathBuf {
        let mut all = Vec::new();
        let mut todo = vec![directory.to_owned()];
        while let Some(directory) = todo.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { todo.push(path) } else { all.push((path.metadata().unwrap().len(), path)) }
            }
        }
        all.into_iter().max().unwrap().1
    }

    #[test]
    fn what_was_written_is_right() {
        for steps in [1, 2, 60, 400] {
            let (directory, mut writers) = written(steps);
            for crash in ALL {
                let outcome = check(&mut writers, directory.path(), crash).unwrap();
                assert!(outcome.steps >= 2 * steps);
            }
        }
    }

    #[test]
    fn one_wrong_byte_is_seen() {
        let (directory, mut writers) = written(200);
        let path = largest(directory.path());
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 70).unwrap();
        // Neither zero, nor what any pattern has there by chance.
        file.write_all_at(&[byte[0] ^ 0x10], 70).unwrap();
        for crash in ALL {
            let reason = check(&mut writers, directory.path(), crash).unwrap_err();
            assert!(reason.contains("byte 70 is of none of its versions"), "{reason}");
        }
    }

    #[test]
    fn a_missing_a_foreign_and_a_changed_name_are_seen() {
        let (directory, mut writers) = written(200);
        let path = largest(directory.path());
        let mut seen = |words: &str| {
            for crash in ALL {
                let reason = check(&mut writers, directory.path(), crash).unwrap_err();
                assert!(reason.contains(words), "{reason}");
            }
        };
        let aside = directory.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        seen("is missing");
        std::fs::rename(&aside, &path).unwrap();
        let foreign = directory.path().join("w11/foreign");
        std::fs::write(&foreign, "").unwrap();
        seen("is too much");
        std::fs::remove_file(&foreign).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode ^ 0o001)).unwrap();
        seen("has mode");
    }

    #[test]
    fn a_tree_from_before_the_last_sync_is_seen() {
        let (directory, mut writers) = written(200);
        std::fs::remove_dir_all(directory.path().join("w11")).unwrap();
        let again = directory.path().join("again");
        super::super::write(Plan::new(11), directory.path(), &again, 100, None).unwrap();
        for crash in ALL {
            check(&mut writers, directory.path(), crash).unwrap_err();
        }
    }

    #[test]
    fn a_step_without_one_that_returned_before_it_began_is_seen() {
        // Each has made its directory; nothing is promised of that.
        let (directory, mut writers) = written(1);
        let crash = Crash::PowerLoss(Durability::Fsync);
        std::fs::remove_dir(directory.path().join("w12")).unwrap();
        assert_eq!(check(&mut writers, directory.path(), crash).unwrap().undone, 1);
        std::fs::create_dir(directory.path().join("w12")).unwrap();
        std::fs::remove_dir(directory.path().join("w11")).unwrap();
        let reason = check(&mut writers, directory.path(), crash).unwrap_err();
        assert!(reason.contains("which had returned before"), "{reason}");
    }
}

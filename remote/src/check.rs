//! Whether a repository is whole: everything that is named is there, and, if asked for, has the bytes that it should.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::repository::{
    Hash, MARK, Newest, OBJECTS, Part, Repository, State, base_name, batch_name, mark_fault, object_in, object_name,
};

/// So many files are named that a damaged object is part of.
const NAMED: usize = 3;

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The newest batch.
    pub batch: u64,
    /// Files in its tree.
    pub files: u64,
    /// Those of them whose parts are not all of their bytes, as they were open or damaged.
    pub incomplete: u64,
    /// Objects that the tree names.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that it does not name.
    pub others: u64,
    /// Their bytes.
    pub other_bytes: u64,
    /// What is wrong, a line each.
    pub findings: Vec<String>,
}

/// The parts of one object that files are made of.
#[derive(Default)]
struct Use<'a> {
    parts: Vec<&'a Part>,
    end: u64,
}

/// Checks all batches, bases and the objects of the newest tree; their bytes too if `data`.
pub fn check(repository: &Repository, data: bool, progress: &dyn Fn(u64, u64)) -> Result<Report> {
    let mut report = Report::default();
    report.findings.extend(mark_fault(repository.place())?.map(|what| format!("{MARK}: {what}")));
    let logged = check_log(repository, &mut report, progress)?;
    let newest = match repository.newest() {
        Err(error @ Error::Damaged { .. }) => {
            report.findings.push(format!("the tree cannot be read: {error}"));
            return Ok(report);
        }
        newest => newest?,
    };
    report.batch = newest.number();
    for file in newest.tree.entries().filter_map(|entry| entry.file.as_ref()) {
        report.files += 1;
        report.incomplete += u64::from(file.state != State::Whole);
    }
    let used = used(&newest);
    let mut left: HashSet<Hash> = used.keys().copied().collect();
    let mut damaged: BTreeMap<Hash, String> = BTreeMap::new();
    repository.place().list(OBJECTS, |found| match object_in(&found.name).filter(|hash| left.remove(hash)) {
        Some(hash) => {
            report.objects += 1;
            report.bytes += found.size;
            if used.get(&hash).is_some_and(|used| used.end > found.size) {
                damaged.insert(hash, "it is cut short".into());
            }
        }
        None => {
            report.others += 1;
            report.other_bytes += found.size;
        }
    })?;
    damaged.extend(left.into_iter().map(|hash| (hash, "it is gone".to_owned())));
    if data {
        let there: Vec<_> = used.iter().filter(|(hash, _)| !damaged.contains_key(hash)).collect();
        for (done, (hash, used)) in there.iter().enumerate() {
            if let Some(what) = fault(repository, **hash, used)? {
                damaged.insert(**hash, what);
            }
            progress(logged + done as u64 + 1, logged + there.len() as u64);
        }
    }
    let paths = paths(&newest, &damaged);
    for (hash, what) in damaged {
        let files = paths.get(&hash).map(|paths| paths.join(", ")).unwrap_or_default();
        report.findings.push(format!("{}: {what}; part of {files}", object_name(hash)));
    }
    Ok(report)
}

fn used(newest: &Newest) -> BTreeMap<Hash, Use<'_>> {
    let mut used: BTreeMap<Hash, Use<'_>> = BTreeMap::new();
    for part in newest.tree.parts() {
        let Some((object, at)) = part.object() else { continue };
        let one = used.entry(object).or_default();
        one.end = one.end.max(at.saturating_add(part.len()));
        one.parts.push(part);
    }
    used
}

/// What is wrong with the bytes of an object.
fn fault(repository: &Repository, hash: Hash, used: &Use<'_>) -> Result<Option<String>> {
    let bytes = match repository.object(hash) {
        Err(Error::Damaged { what, .. }) => return Ok(Some(what)),
        bytes => bytes?,
    };
    let is_wrong = |part: &&&Part| {
        let (Some((_, at)), Some(hash)) = (part.object(), part.hash()) else { return false };
        let end = at.saturating_add(part.len()) as usize;
        bytes.get(at as usize..end).is_none_or(|bytes| repository.hash(bytes) != hash)
    };
    let wrong = used.parts.iter().filter(is_wrong).count();
    Ok((wrong > 0).then(|| format!("{wrong} parts in it are not what the tree says")))
}

/// Some files that each of some objects is part of.
fn paths(newest: &Newest, damaged: &BTreeMap<Hash, String>) -> HashMap<Hash, Vec<String>> {
    let mut paths: HashMap<Hash, Vec<String>> = HashMap::new();
    if damaged.is_empty() {
        return paths;
    }
    for (path, entry) in newest.tree.below(1) {
        for (object, _) in entry.file.iter().flat_map(|file| &file.parts).filter_map(Part::object) {
            if damaged.contains_key(&object) {
                let named = paths.entry(object).or_default();
                if named.len() < NAMED && !named.contains(&path) {
                    named.push(path.clone());
                }
            }
        }
    }
    paths
}

/// Every base, and that every batch follows the one before it. Returns how many there are.
fn check_log(repository: &Repository, report: &mut Report, progress: &dyn Fn(u64, u64)) -> Result<u64> {
    let listing = repository.listing()?;
    let (mut done, total) = (0, (listing.bases.len() + listing.batches.len()) as u64);
    let mut one_more = || {
        done += 1;
        progress(done, total);
    };
    let found = |error: Error, report: &mut Report| match error {
        error @ Error::Damaged { .. } => {
            report.findings.push(error.to_string());
            Ok(())
        }
        error => Err(error),
    };
    for number in listing.bases() {
        if let Err(error) = repository.from_base(Some(number)) {
            found(error, report)?;
        }
        one_more();
    }
    let mut before: Option<(u64, Option<Hash>)> = Some((0, None));
    for (number, _) in listing.batches {
        one_more();
        let name = batch_name(number);
        let bytes = match repository.place().get(&name) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => continue,
            Err(error) => {
                found(error, report)?;
                before = None;
                continue;
            }
        };
        let known = before.filter(|(last, _)| last + 1 == number);
        if known.is_none() && before.is_some_and(|(last, _)| last > 0) {
            report.findings.push(format!("{}: it is missing", batch_name(number - 1)));
        }
        let follows = match known {
            Some((_, hash)) => repository.check_batch(&name, &bytes, number, hash).map(drop),
            None => Ok(()),
        };
        let read = follows.and_then(|()| repository.each_line(&name, &bytes, |_| Ok(())));
        if let Err(error) = read {
            found(error, report)?;
        }
        before = Some((number, Some(Hash::of(&bytes))));
    }
    if let Some((last, _)) = before.filter(|(last, _)| *last > 0)
        && repository.place().get(&base_name(last + 1))?.is_some()
    {
        report.findings.push(format!("{}: it is missing, and there is a base of it", batch_name(last + 1)));
    }
    Ok(total)
}

//! Removing what nobody needs any more from a repository.
//!
//! Kept is the newest base that is older than the retention, every batch behind it, later bases, and every object that
//! any of these names. So the tree can be had as it was at any time within the retention.

use std::collections::HashSet;

use serde::Serialize;

use crate::error::Result;
use crate::place::Listed;
use crate::repository::{
    BASES, Hash, LOG, Line, OBJECTS, Part, Repository, base_name, batch_name, number_in, object_in, object_name,
};

/// For so long stays what is not named yet.
const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;

/// What is kept, in seconds by the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// For so long a tree can be had.
    pub trees: i64,
    /// For so long an object stays that nothing names: it may be about to be named.
    pub objects: i64,
}

impl Keep {
    /// As everybody keeps it: trees for so many days.
    pub fn days(days: u32) -> Self {
        Self { trees: i64::from(days) * DAY, objects: HOUR }
    }
}

/// What was removed.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Bases and batches.
    pub trees: u64,
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Objects that [`collect`], whoever calls it, leaves where they are until there is a batch that is newer than those of
/// now: those that were put since then, or not much before.
pub fn staying(repository: &Repository) -> Result<HashSet<Hash>> {
    let place = repository.place();
    let mut newest = None;
    for directory in [BASES, LOG] {
        place.list(directory, |found| {
            if number_in(&found.name).is_some() {
                newest = newest.max(Some(found.put));
            }
        })?;
    }
    let mut staying = HashSet::new();
    place.list(OBJECTS, |found| {
        if newest.is_none_or(|newest| found.put >= newest.saturating_sub(HOUR)) {
            staying.extend(object_in(&found.name));
        }
    })?;
    Ok(staying)
}

/// Removes what is not kept. Whoever calls it is the only one that puts anything.
pub fn collect(repository: &Repository, keep: Keep, dry_run: bool) -> Result<Removed> {
    let place = repository.place();
    let list = |directory| -> Result<Vec<(u64, Listed)>> {
        let mut all = Vec::new();
        place.list(directory, |found| all.extend(number_in(&found.name).map(|number| (number, found))))?;
        all.sort_unstable_by_key(|(number, _)| *number);
        Ok(all)
    };
    let (bases, batches) = (list(BASES)?, list(LOG)?);
    // The store's clock, not ours.
    let Some(newest) = bases.iter().chain(&batches).map(|(_, found)| found.put).max() else {
        return Ok(Removed::default());
    };
    let old_enough = |found: &Listed| found.put <= newest.saturating_sub(keep.trees);
    let mut first = None;
    for (number, _) in bases.iter().rev().filter(|(_, found)| old_enough(found)) {
        // One that cannot be read is none to rest on.
        if repository.from_base(Some(*number)).is_ok() {
            first = Some(*number);
            break;
        }
    }
    let named = named(repository, &bases, &batches, first)?;
    let mut removed = Removed::default();
    if let Some(first) = first {
        let bases = bases.iter().filter(|(number, _)| *number < first).map(|(number, _)| base_name(*number));
        let batches = batches.iter().filter(|(number, _)| *number <= first).map(|(number, _)| batch_name(*number));
        // Bases first: without one, batches that do not begin at the first say nothing.
        for name in bases.chain(batches) {
            removed.trees += 1;
            if !dry_run {
                place.delete(&name)?;
            }
        }
    }
    let mut unnamed = Vec::new();
    place.list(OBJECTS, |found| {
        // What is called otherwise is not ours.
        let is_ours = object_in(&found.name).is_some();
        if is_ours && !named.contains(&found.name) && found.put < newest.saturating_sub(keep.objects) {
            removed.objects += 1;
            removed.bytes += found.size;
            unnamed.push(found.name);
        }
    })?;
    for name in unnamed.iter().filter(|_| !dry_run) {
        place.delete(name)?;
    }
    let is_numbered =
        |name: &str| number_in(name).is_some_and(|at| [batch_name(at), base_name(at)].contains(&name.into()));
    let is_ours = |name: &str| object_in(name).is_some() || is_numbered(name);
    let limit = newest.saturating_sub(keep.objects);
    let staged = place.remove_staged(dry_run, |object, put| is_ours(object) && put < limit)?;
    removed.objects += staged.len() as u64;
    removed.bytes += staged.iter().sum::<u64>();
    Ok(removed)
}

/// The names of all objects that are kept. Fails if anything that names some cannot be read.
fn named(
    repository: &Repository,
    bases: &[(u64, Listed)],
    batches: &[(u64, Listed)],
    first: Option<u64>,
) -> Result<HashSet<String>> {
    let from = first.unwrap_or(0);
    let mut named: HashSet<Hash> = HashSet::new();
    let bases = bases.iter().filter(|(number, _)| *number >= from).map(|(number, _)| base_name(*number));
    let batches = batches.iter().filter(|(number, _)| *number > from).map(|(number, _)| batch_name(*number));
    for name in bases.chain(batches) {
        let Some(bytes) = repository.place().get(&name)? else { continue };
        repository.each_page(&name, &bytes, |page| {
            named.insert(page);
        })?;
        repository.each_line(&name, &bytes, |line| {
            if let Line::Object(entry) = line {
                let parts = entry.file.iter().flat_map(|file| &file.parts);
                named.extend(parts.filter_map(Part::object).map(|(object, _)| object));
            }
            Ok(())
        })?;
    }
    Ok(named.into_iter().map(object_name).collect())
}

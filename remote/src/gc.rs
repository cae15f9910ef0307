//! Removing what nobody needs any more from a repository.
//!
//! Kept is the tree of the newest batch that is older than the retention, every batch behind it, later bases, and every
//! object that any of these names. So the tree can be had as it was at any time within the retention. Where that tree
//! has no base, one is put: else what it does not need would stay until the carrier puts one for its own reasons.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::place::{Listed, Place};
use crate::repository::{
    BASES, Hash, LOG, Line, Listing, OBJECTS, Part, Repository, base_name, batch_name, number_in, object_in,
    object_name,
};

/// For so long stays what is not named yet.
const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;

/// What is kept, in seconds by the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// For so long a tree can be had.
    pub trees: i64,
    /// And so many trees, the newest ones, however old they are.
    pub last: u64,
    /// For so long an object stays that nothing names: it may be about to be named.
    pub objects: i64,
}

impl Keep {
    /// As everybody keeps it: trees for so many days.
    pub fn days(days: u32) -> Self {
        Self { trees: i64::from(days) * DAY, last: 1, objects: HOUR }
    }

    /// As they are asked for: trees of so many days, the last so many, or what either of both keeps.
    pub fn asked(days: Option<u32>, last: Option<u64>) -> Option<Self> {
        let last_one = last.unwrap_or(1).max(1);
        (days.is_some() || last.is_some()).then(|| Self { last: last_one, ..Self::days(days.unwrap_or(0)) })
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
    /// There are more, for which there was no time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
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

/// Hears how many objects of how many were looked at or removed.
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// Removes what is not kept. Whoever calls it is the only one that puts anything.
pub fn collect(repository: &Repository, keep: Keep, dry_run: bool, progress: Progress<'_>) -> Result<Removed> {
    collect_for(repository, (keep, None), dry_run, progress)
}

/// As [`collect`]; once it has removed for so long, it leaves the rest for the next time.
pub fn collect_for(
    repository: &Repository,
    (keep, time): (Keep, Option<Duration>),
    dry_run: bool,
    progress: Progress<'_>,
) -> Result<Removed> {
    let place = repository.place();
    let Listing { mut bases, batches, strays } = repository.listing()?;
    check_whole(place, &bases, &batches)?;
    // The store's clock, not ours; and the bases that this puts itself are no step of it, as long as there is a batch.
    let of = if batches.is_empty() { &bases } else { &batches };
    let Some(newest) = of.iter().map(|(_, found)| found.put).max() else {
        return Ok(Removed::default());
    };
    let cut = cut(&bases, &batches, newest.saturating_sub(keep.trees), keep.last);
    let mut first = None;
    for (number, _) in bases.iter().rev().filter(|(number, _)| *number <= cut) {
        match repository.from_base(Some(*number)) {
            Ok(_) => {
                first = Some(*number);
                break;
            }
            // One that is damaged is none to rest on; one that cannot be read now is as good as ever.
            Err(Error::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mut named_here = HashSet::new();
    // Before the first tree that can be had, there is none to make a base of.
    let from = if batches.first().is_some_and(|(number, _)| *number == 1) { Some(0) } else { first };
    if from.is_some_and(|from| first.unwrap_or(from) < cut) {
        let is_there = bases.iter().any(|(number, _)| *number == cut);
        if let Some(base) = base_at(repository, cut, (is_there, dry_run))? {
            named_here = base;
            first = Some(cut);
            bases.retain(|(number, _)| *number != cut);
        }
    }
    let (mut named, mut done) = named(repository, &bases, &batches, first, progress)?;
    named.extend(named_here);
    let mut removed = Removed::default();
    for stray in strays {
        removed.trees += 1;
        if !dry_run {
            place.delete(&batch_name(stray))?;
        }
    }
    if let Some(first) = first {
        let bases = bases.iter().filter(|(number, _)| *number < first).map(|(number, _)| base_name(*number));
        let batches = batches.iter().filter(|(number, _)| *number <= first).map(|(number, _)| batch_name(*number));
        let (bases, mut batches): (Vec<_>, Vec<_>) = (bases.collect(), batches.collect());
        // Bases first, and then the oldest batch: without these, batches that do not begin at the first say nothing.
        let others = batches.split_off(batches.len().min(1));
        for names in [bases, batches, others] {
            removed.trees += names.len() as u64;
            if !dry_run {
                done += names.len() as u64;
                place.delete_all(&names, |_| true)?;
                progress(done, done);
            }
        }
    }
    let (mut unnamed, mut sizes) = (Vec::new(), Vec::new());
    place.list(OBJECTS, |found| {
        // What is called otherwise is not ours.
        let is_ours = object_in(&found.name).is_some();
        if is_ours && !named.contains(&found.name) && found.put < newest.saturating_sub(keep.objects) {
            removed.objects += 1;
            removed.bytes += found.size;
            unnamed.push(found.name);
            sizes.push(found.size);
        }
    })?;
    if !dry_run {
        let begun = Instant::now();
        let all = done + unnamed.len() as u64;
        let mut gone = 0;
        let is_done = place.delete_all(&unnamed, |so_many| {
            gone = so_many;
            progress(done + gone, all);
            time.is_none_or(|time| begun.elapsed() < time)
        })?;
        (removed.objects, removed.more) = (gone, !is_done);
        removed.bytes = sizes.iter().take(gone as usize).sum();
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

/// Fails if a listing lacks a batch that has to be there, as one of which a page was lost on its way: what that batch
/// alone names would be taken for needless. (A listing that is merely older than what is there lacks the last ones;
/// what those name is not older than an hour by its own clock.)
fn check_whole(place: &Place, bases: &[(u64, Listed)], batches: &[(u64, Listed)]) -> Result<()> {
    let all = || bases.iter().chain(batches).map(|(number, _)| *number);
    let (Some(first), Some(newest)) = (all().min(), all().max()) else { return Ok(()) };
    let listed: HashSet<u64> = batches.iter().map(|(number, _)| *number).collect();
    // Behind the oldest base all are there, and before it nothing has to be.
    let from = bases.first().map_or(first, |(number, _)| number.saturating_add(1));
    match (from..newest).find(|number| !listed.contains(number)) {
        Some(number) => {
            let what = "the store does not list it, though later ones are there; nothing is removed";
            Err(Error::damaged(format!("{}/{}", place.shown(), batch_name(number)), what))
        }
        None => Ok(()),
    }
}

/// The batch whose tree has to do for all times before the retention: the newest one that is so old, unless it is one
/// of those that are kept for their number. 0 if there is none.
fn cut(bases: &[(u64, Listed)], batches: &[(u64, Listed)], limit: i64, last: u64) -> u64 {
    let all = || bases.iter().chain(batches);
    let newest = all().map(|(number, _)| *number).max().unwrap_or(0);
    let most = newest.saturating_sub(last.saturating_sub(1));
    // Of a batch that was put after another one, the clock of a store may say that it was before.
    let young = batches.iter().filter(|(_, found)| found.put > limit).map(|(number, _)| *number).min();
    let old = all().filter(|(number, found)| found.put <= limit && young.is_none_or(|young| *number < young));
    old.map(|(number, _)| *number).max().unwrap_or(0).min(most)
}

/// Puts a base of the tree that a batch made, and gives the names of all objects that it names. None if the tree cannot
/// be had: then a base before it has to do.
fn base_at(repository: &Repository, number: u64, (is_there, dry_run): (bool, bool)) -> Result<Option<HashSet<String>>> {
    let mut tree = match repository.tree_at(Some(number)) {
        Err(error @ Error::Damaged { .. }) => {
            log::warn!("{error}; what is before it stays");
            return Ok(None);
        }
        tree => tree?,
    };
    let parts = tree.tree.parts().filter_map(Part::object).map(|(object, _)| object);
    let mut named: HashSet<Hash> = parts.collect();
    if !dry_run {
        let name = base_name(number);
        if is_there {
            // It is damaged, and in the way.
            repository.place().delete(&name)?;
        }
        repository.put_base(&mut tree)?;
        if let Some(bytes) = repository.place().get(&name)? {
            repository.each_page(&name, &bytes, |page| {
                named.insert(page);
            })?;
        }
    }
    Ok(Some(named.into_iter().map(object_name).collect()))
}

/// The names of all objects that are kept, and how many others name them. Fails if anything that names some cannot be
/// read.
fn named(
    repository: &Repository,
    bases: &[(u64, Listed)],
    batches: &[(u64, Listed)],
    first: Option<u64>,
    progress: Progress<'_>,
) -> Result<(HashSet<String>, u64)> {
    let from = first.unwrap_or(0);
    let mut named: HashSet<Hash> = HashSet::new();
    let bases = bases.iter().filter(|(number, _)| *number >= from).map(|(number, _)| base_name(*number));
    let batches = batches.iter().filter(|(number, _)| *number > from).map(|(number, _)| batch_name(*number));
    let all: Vec<String> = bases.chain(batches).collect();
    for (done, name) in all.iter().enumerate() {
        progress(done as u64 + 1, all.len() as u64);
        let Some(bytes) = repository.place().get(name)? else { continue };
        repository.each_page(name, &bytes, |page| {
            named.insert(page);
        })?;
        repository.each_line(name, &bytes, |line| {
            if let Line::Object(entry) = line {
                let parts = entry.file.iter().flat_map(|file| &file.parts);
                named.extend(parts.filter_map(Part::object).map(|(object, _)| object));
            }
            Ok(())
        })?;
    }
    Ok((named.into_iter().map(object_name).collect(), all.len() as u64))
}

//! Where a file is gone on with that was sealed and has only grown: what was sealed need not be looked at again.

use tensorfs_formats::{Format, Front, Location};
use tensorfs_layout::log::{Summary, TensorEntry};
use tensorfs_layout::segment::{DESCRIPTIONS_MAX, GoneOn};
use tensorfs_layout::tree::{FileChain, Run};

use crate::reader::Wanted;

/// A place, and what is wanted from there on.
pub(super) struct Start {
    pub gone_on: GoneOn,
    pub wanted: Wanted,
}

/// Where a file may be gone on with, the likeliest place first. At none of them, if all has to be looked at.
pub(super) fn starts(chain: &FileChain) -> Vec<Start> {
    let Some(summary) = chain.summary() else { return unrecognised(chain).into_iter().collect() };
    if summary.format == Format::TfRecord {
        let behind_seals = goes_on_behind_seals(chain);
        return behind_seals.into_iter().chain(newest_part(chain).flatten()).map(of_frames).collect();
    }
    // What is left out of descriptions may be in the way; and what they take in all has a bound, too.
    if !summary.complete || described(chain) > DESCRIPTIONS_MAX / 2 {
        return Vec::new();
    }
    match summary.format {
        // It was something that nobody got through, or that was cut, before.
        Format::Opaque if !summary.cut => unrecognised(chain).into_iter().collect(),
        Format::Npy => arrays(chain, &summary).into_iter().collect(),
        Format::Torch if summary.reason.is_none() && !summary.cut => checkpoints(chain, &summary),
        Format::Npz if summary.reason.is_none() && !summary.cut => zips(chain, &summary),
        _ => Vec::new(),
    }
}

fn of_frames(gone_on: GoneOn) -> Start {
    let wanted = Wanted::From { at: gone_on.from, limit: u64::MAX };
    Start { gone_on, wanted }
}

/// Where a file of frames is gone on with, if all in front of that was recognised and nothing was left over: where its
/// seals end.
pub(super) fn goes_on_behind_seals(chain: &FileChain) -> Option<GoneOn> {
    let summary = chain.summary().filter(is_whole)?;
    let from = chain.seals_end();
    Some(GoneOn { from, tensors: tensors_before(chain, from), summary })
}

/// Where the last part of a file of frames began that was sealed at once, which is where a frame begins; `None` at the
/// file's beginning.
pub(super) fn newest_part(chain: &FileChain) -> Option<Option<GoneOn>> {
    chain.summary().filter(is_whole)?;
    let (from, summary) = chain.said_from()?;
    if from == 0 {
        return Some(None);
    }
    Some(Some(GoneOn { from, tensors: tensors_before(chain, from), summary: summary? }))
}

/// So many tensors of a file of frames are in front of a place where a run begins. Its seals may speak of more: some
/// may be gone since, after a power loss between two parts of them, or where an append shares the run of the last one.
fn tensors_before(chain: &FileChain, place: u64) -> u64 {
    let runs = chain.runs();
    let mut before = runs[..runs.partition_point(|run| run.offset < place)].iter().rev().filter_map(Run::any_seal);
    before.find_map(|seal| seal.tensors().last()).map_or(0, |entry| entry.index + 1)
}

/// True if a file is of frames, all of which were understood and described.
fn is_whole(summary: &Summary) -> bool {
    let whole = summary.complete && summary.reason.is_none() && summary.bad_frames == 0;
    summary.format == Format::TfRecord && whole
}

/// What the descriptions of a file take.
fn described(chain: &FileChain) -> usize {
    chain.runs().iter().filter_map(Run::any_seal).map(|seal| seal.description.len()).sum()
}

/// One in which nothing was recognised.
fn unrecognised(chain: &FileChain) -> Option<Start> {
    let from = chain.seals_end();
    if from == 0 || chain.tensors().next().is_some() {
        return None;
    }
    let summary =
        Summary { format: Format::Opaque, tensors: 0, complete: true, bad_frames: 0, reason: None, cut: false };
    let gone_on = GoneOn { from, tensors: 0, summary };
    Some(Start { gone_on, wanted: Wanted::Behind { at: from, front: Front::Nothing } })
}

/// One of arrays, behind the last one whose end is where a sealed record ends.
fn arrays(chain: &FileChain, summary: &Summary) -> Option<Start> {
    let sealed = sealed_runs(chain);
    let (mut count, mut last) = (0, None);
    for run in sealed {
        for TensorEntry { index, tensor, .. } in run.any_seal().into_iter().flat_map(|seal| seal.tensors()) {
            // They are in order, and one of objects ends where only its pickle says.
            let (offset, len) = tensor.range();
            if index != count || !matches!(tensor.location, Location::Raw { .. }) {
                return None;
            }
            count += 1;
            let end = offset.saturating_add(len);
            // One without elements may belong to the record that begins where it ends, and is found anew with that.
            if run.offset < end && sealed.binary_search_by_key(&end, Run::end).is_ok() {
                last = Some((end, count));
            }
        }
    }
    let (at, tensors) = last?;
    let gone_on = GoneOn { from: at, tensors, summary: summary.clone() };
    Some(Start { gone_on, wanted: Wanted::Behind { at, front: Front::Arrays(tensors) } })
}

/// One of torch checkpoints, behind the last of them: at the end of what is sealed, or, if what was appended shares its
/// last record, where that began which was appended before.
fn checkpoints(chain: &FileChain, summary: &Summary) -> Vec<Start> {
    let sealed = sealed_runs(chain);
    places(chain).filter_map(|at| behind_checkpoints(sealed, at, summary)).collect()
}

/// Where the last of some archives may end.
fn places(chain: &FileChain) -> impl Iterator<Item = u64> {
    let mut pairs = sealed_runs(chain).windows(2).rev();
    let began = pairs.find(|pair| pair[0].origin != pair[1].origin).map(|pair| pair[1].offset);
    std::iter::once(chain.seals_end()).chain(began)
}

/// One of zips, of which the last one counts: nothing more is said of the one that was the last.
fn zips(chain: &FileChain, summary: &Summary) -> Vec<Start> {
    let is_said = |run: &Run| run.any_seal().is_some_and(|seal| seal.tensors().next().is_some());
    let said = sealed_runs(chain).iter().find(|run| is_said(run)).map(|run| run.offset);
    // What is said of the whole goes with the tensors, and has to be said anew.
    let summary = Summary { tensors: 0, ..summary.clone() };
    let start = |at: u64| {
        let gone_on = GoneOn { from: said.map_or(at, |said| said.min(at)), tensors: 0, summary: summary.clone() };
        Start { gone_on, wanted: Wanted::Behind { at, front: Front::Zips } }
    };
    places(chain).map(start).collect()
}

fn behind_checkpoints(sealed: &[Run], at: u64, summary: &Summary) -> Option<Start> {
    let front = &sealed[..sealed.partition_point(|run| run.end() <= at)];
    let (mut tensors, mut last) = (0, None::<TensorEntry>);
    for entry in entries(front) {
        tensors += 1;
        if last.as_ref().is_none_or(|last| last.index < entry.index) {
            last = Some(entry);
        }
    }
    // If all are there, the last one has the highest number.
    let last = last.filter(|last| last.index + 1 == tensors)?.tensor;
    let front = Front::Checkpoints { tensors, last: last.range().0, number: last.number() };
    let gone_on = GoneOn { from: at, tensors, summary: summary.clone() };
    Some(Start { gone_on, wanted: Wanted::Behind { at, front } })
}

/// The records from the first one on that are sealed.
fn sealed_runs(chain: &FileChain) -> &[Run] {
    let end = chain.seals_end();
    &chain.runs()[..chain.runs().partition_point(|run| run.end() <= end)]
}

/// The tensors that records speak of.
fn entries(runs: &[Run]) -> impl Iterator<Item = TensorEntry> {
    runs.iter().filter_map(Run::any_seal).flat_map(|seal| seal.tensors())
}

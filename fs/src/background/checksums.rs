//! The checksums that a file was sealed with, and whether its bytes still have them.

use std::io;

use tensorfs_formats::Source;
use tensorfs_layout::Ino;
use tensorfs_layout::check::{crc_of_run, fault_of_run, other_checksum};
use tensorfs_layout::log::Seal;
use tensorfs_layout::segment::NotAsSealed;
use tensorfs_layout::tree::Run;

use crate::store::{BadRun, Store};

/// The checksum of a sealed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum {
    pub offset: u64,
    pub len: u64,
    pub crc: u32,
}

/// The checksums of a file's sealed runs.
pub(super) fn checksums(store: &Store, ino: Ino) -> Vec<Checksum> {
    of_runs(store, ino, Run::seal)
}

/// The checksums of a file's runs that are sealed provisionally.
pub(super) fn provisional_checksums(store: &Store, ino: Ino) -> Vec<Checksum> {
    of_runs(store, ino, Run::provisional_seal)
}

fn of_runs(store: &Store, ino: Ino, seal: impl Fn(&Run) -> Option<&Seal>) -> Vec<Checksum> {
    let view = store.view();
    let runs = view.object(ino).and_then(|object| object.chain()).map_or(&[][..], |chain| chain.runs());
    let sealed = runs.iter().filter_map(|run| Some((run, seal(run)?)));
    sealed.map(|(run, seal)| Checksum { offset: run.offset, len: run.len, crc: seal.crc }).collect()
}

/// The runs that do not have the checksums that they were sealed with. Means nothing once `go_on` has said no.
pub(super) fn bad_runs(source: &dyn Source, runs: &[Checksum], go_on: &dyn Fn() -> bool) -> Vec<BadRun> {
    let mut bad = Vec::new();
    for Checksum { offset, len, crc } in runs.iter().copied() {
        if !go_on() {
            break;
        }
        if let Some(what) = fault_of_run(source, offset, len, crc, &|_| {}) {
            bad.push(BadRun::new(offset, len, what));
        }
    }
    bad
}

/// The runs that were found not to have the checksums that they were sealed with, if that is what an error says.
pub(super) fn not_as_sealed(error: &io::Error) -> Option<Vec<BadRun>> {
    let bad = NotAsSealed::of(error)?.0.iter().map(|unlike| BadRun {
        offset: unlike.offset,
        len: unlike.len,
        what: other_checksum(unlike.offset, unlike.len),
        tensors: unlike.tensors.clone(),
    });
    Some(bad.collect())
}

/// True if all runs have their checksums. Means nothing once `go_on` has said no.
///
/// # Errors
/// One cannot be read: nobody knows what its bytes are.
pub(super) fn have_checksums(source: &dyn Source, runs: &[Checksum], go_on: &dyn Fn() -> bool) -> io::Result<bool> {
    for Checksum { offset, len, crc } in runs.iter().copied() {
        if !go_on() || crc_of_run(source, offset, len, &|_| {})? != crc {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_runs_are_found_and_no_others() {
        let bytes: Vec<u8> = (0..100).collect();
        let crc = |range: std::ops::Range<usize>| tensorfs_formats::crc32c(&bytes[range]);
        let runs = [(0, 10, crc(0..10)), (10, 20, crc(10..30) ^ 1), (30, 70, crc(30..100)), (100, 1, 0)];
        let runs = runs.map(|(offset, len, crc)| Checksum { offset, len, crc });
        let bad: Vec<u64> = bad_runs(&&bytes[..], &runs, &|| true).iter().map(|bad| bad.offset).collect();
        assert_eq!(bad, [10, 100]);
    }
}

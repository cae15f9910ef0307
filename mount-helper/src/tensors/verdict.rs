//! Whether the bytes of a sealed file are still those that were sealed.

use std::ops::ControlFlow;
use std::rc::Rc;

use tensorfs_fs::{FileState, Inspector};
use tensorfs_layout::check::{crc_of_run, fault_of_run, fault_of_size, is_hurt};
use tensorfs_layout::log::TensorEntry;
use tensorfs_layout::medium::Direct;
use tensorfs_layout::reason;

use crate::show::failure::Failure;
use crate::tensors::place::Place;
use crate::tensors::recorded::{Recorded, wrong_frames};

/// How often a file is read again that is written meanwhile.
const TRIES: usize = 3;

/// What came of a file.
pub enum Verdict {
    /// It has checksums; or some of its bytes have, and are not those that were sealed.
    Verified { recorded: Recorded, runs: Vec<BadRun> },
    /// It has none, or some of its bytes have, and are as they were sealed: so many. Of those that were sealed while it
    /// was open some are not: they were changed since, by whom nobody knows.
    Unsealed { state: FileState, verified: u64, changed: Vec<Changed> },
}

/// Bytes that are not those that were sealed while the file was open for writing.
#[derive(Clone, Copy)]
pub struct Changed {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    crc: u32,
}

/// A run of a sealed file whose bytes are not those that were sealed.
pub struct BadRun {
    offset: u64,
    len: u64,
    what: String,
    /// What it was sealed with. None for what is behind the end.
    crc: Option<u32>,
    file: Rc<Direct>,
}

impl Verdict {
    /// How far the file had come.
    pub fn state(&self) -> FileState {
        match self {
            Verdict::Verified { recorded, .. } => recorded.state(),
            Verdict::Unsealed { state, .. } => *state,
        }
    }

    /// Whether the bytes are those that were sealed, and the file's own checksums say that they are wrong.
    pub fn is_wrong_by_itself(&self) -> bool {
        let Verdict::Verified { recorded, runs } = self else { return false };
        runs.is_empty() && recorded.summary().is_some_and(|summary| wrong_frames(&summary).is_some())
    }

    /// Whether bytes are not those that were sealed.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Verdict::Verified { runs, .. } if !runs.is_empty())
    }
}

impl BadRun {
    /// Where the run begins in its file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What is wrong, in words.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Whether bytes of the tensor are among those that are damaged.
    pub fn hurts(&self, entry: &TensorEntry) -> bool {
        is_hurt(&*self.file, entry, self.offset, self.len)
    }
}

/// Reads a file, and compares it with what was recorded of it. `read` is told of bytes as they are read.
pub fn verify(place: &Place, inspector: &Inspector, read: &dyn Fn(u64)) -> Result<Verdict, Failure> {
    let file = Rc::new(place.open_direct()?);
    for _ in 0..TRIES {
        let Some(recorded) = place.recorded(file.file())? else {
            return Err(Failure::at(place.path(), "not on a tensorfs mount, and in no pool"));
        };
        let mut runs = Vec::new();
        let mut verified = 0;
        for (offset, len, seal) in recorded.sealed() {
            verified += len;
            if let Some(what) = fault_of_run(&*file, offset, len, seal.crc, read) {
                runs.push(BadRun { offset, len, what, crc: Some(seal.crc), file: file.clone() });
            }
        }
        let mut changed = Vec::new();
        for (offset, len, seal) in recorded.provisional() {
            match crc_of_run(&*file, offset, len, read) {
                Ok(crc) if crc == seal.crc => verified += len,
                Ok(_) => changed.push(Changed { offset, len, crc: seal.crc }),
                Err(error) => {
                    let what = format!("cannot be read: {}", reason(&error));
                    runs.push(BadRun { offset, len, what, crc: Some(seal.crc), file: file.clone() });
                }
            }
        }
        if !changed.is_empty()
            && let Some(why) = wrong_by_itself(place, inspector)?
        {
            let damaged = |Changed { offset, len, crc }: Changed| {
                let what = format!("{len} bytes from offset {offset} are not those that were sealed, and {why}");
                BadRun { offset, len, what, crc: Some(crc), file: file.clone() }
            };
            runs.extend(changed.drain(..).map(damaged));
        }
        if recorded.is_sealed() {
            let grown = place.host_size(file.file())?.and_then(|found| fault_of_size(found, recorded.size()));
            runs.extend(grown.map(|(offset, len, what)| BadRun { offset, len, what, crc: None, file: file.clone() }));
        }
        if runs.is_empty() && changed.is_empty() && !recorded.is_sealed() {
            return Ok(Verdict::Unsealed { state: recorded.state(), verified, changed });
        }
        if runs.is_empty() && changed.is_empty() {
            return Ok(Verdict::Verified { recorded, runs });
        }
        // Not damaged, but written: then the seals that were asked for first are gone before the first byte changed.
        place.check_unused()?;
        let Some(now) = place.recorded(file.file())? else { continue };
        let stands = |bad: &BadRun| match bad.crc {
            Some(crc) => now.has_seal(bad.offset, bad.len, crc),
            None => now.is_same_version(&recorded) && now.is_sealed(),
        };
        let still = |changed: &Changed| now.has_seal(changed.offset, changed.len, changed.crc);
        if runs.is_empty() && changed.iter().all(still) {
            return Ok(Verdict::Unsealed { state: now.state(), verified, changed });
        }
        if !runs.is_empty() && runs.iter().all(stands) {
            return Ok(Verdict::Verified { recorded, runs });
        }
    }
    Ok(Verdict::Unsealed { state: FileState::Open, verified: 0, changed: Vec::new() })
}

/// What a file's own checksums say is wrong with it, if its format has some.
fn wrong_by_itself(place: &Place, inspector: &Inspector) -> Result<Option<String>, Failure> {
    let found = inspector.recognise(&place.open()?, &mut |_| ControlFlow::Continue(()));
    Ok(found.reason.filter(|_| found.bad_frames > 0))
}

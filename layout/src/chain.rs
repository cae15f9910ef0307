//! A regular file's chain: the runs that partition `[0, size)`, in order, and the segment they lie in.

use crate::codec::padded;
use crate::ids::SegmentId;
use crate::ledger::{Ledger, Placed};
use crate::record::{DATA_BODY, HEADER, REPLACE_BODY, TRUNCATION_BODY};

/// One run of a file's bytes, as a data record describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 only in the last run, where it marks the end of the file.
    pub len: u64,
    pub(crate) placed: Placed,
    /// Size of the segment before a truncation that has not been confirmed, with the record's kind.
    pub(crate) cut_from: Option<u64>,
}

impl Run {
    /// The first byte behind the run.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    fn record_len(&self) -> usize {
        HEADER + padded(if self.cut_from.is_some() { TRUNCATION_BODY } else { DATA_BODY })
    }
}

/// The chain of a regular file.
#[derive(Clone, Debug, Default)]
pub struct FileChain {
    runs: Vec<Run>,
    allocated: u64,
    replacing: Option<(SegmentId, Placed)>,
}

impl FileChain {
    /// The runs, which follow each other without gaps from 0 to the size of the file.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        self.runs.last().map_or(0, Run::end)
    }

    /// Bytes that the host had allocated to the segment when the newest data record was made.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// The segment that is to replace the file's own.
    pub fn replacing(&self) -> Option<SegmentId> {
        self.replacing.map(|(segment, _)| segment)
    }

    pub(crate) fn replacing_placed(&self) -> Option<Placed> {
        self.replacing.map(|(_, placed)| placed)
    }

    pub(crate) fn append(&mut self, ledger: &mut Ledger, run: Run, allocated: u64) {
        while let Some(last) = self.runs.last_mut() {
            if last.offset >= run.offset {
                ledger.sub(last.placed, last.record_len());
                self.runs.pop();
            } else {
                last.len = last.len.min(run.offset - last.offset);
                break;
            }
        }
        ledger.add(run.placed, run.record_len());
        self.runs.push(run);
        self.allocated = allocated;
    }

    /// Drops all runs: the file's bytes are in another segment now, or gone.
    pub(crate) fn clear(&mut self, ledger: &mut Ledger) {
        for run in self.runs.drain(..) {
            ledger.sub(run.placed, run.record_len());
        }
        self.allocated = 0;
    }

    pub(crate) fn set_replacing(&mut self, ledger: &mut Ledger, replacing: Option<(SegmentId, Placed)>) {
        const LEN: usize = HEADER + padded(REPLACE_BODY);
        if let Some((_, placed)) = self.replacing.take() {
            ledger.sub(placed, LEN);
        }
        if let Some((_, placed)) = replacing {
            ledger.add(placed, LEN);
        }
        self.replacing = replacing;
    }

    /// A live record of the chain was copied to another block; false if it is not live.
    pub(crate) fn relocate(&mut self, ledger: &mut Ledger, from: Placed, to: Placed) -> bool {
        if let Some(run) = self.runs.iter_mut().find(|run| run.placed == from) {
            ledger.sub(from, run.record_len());
            ledger.add(to, run.record_len());
            run.placed = to;
            return true;
        }
        if let Some((segment, _)) = self.replacing.filter(|(_, placed)| *placed == from) {
            self.set_replacing(ledger, Some((segment, to)));
            return true;
        }
        false
    }
}

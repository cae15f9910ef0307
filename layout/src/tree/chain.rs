//! A regular file's chain: the runs that partition `[0, size)`, in order, and the segment they lie in.

use crate::ids::SegmentId;
use crate::log::Origin;
use crate::log::description::{Summary, TensorEntry};
use crate::log::ledger::{Ledger, Placed};
use crate::log::length;
use crate::log::seal::Seal;
use crate::tree::run::Run;

/// The file's bytes, in the log.
#[derive(Clone, Debug)]
struct Value {
    placed: Placed,
    record_len: usize,
    /// None once the segment is known to hold them, durably.
    bytes: Option<Box<[u8]>>,
}

/// What is to replace the file's segment.
#[derive(Clone, Debug)]
struct Replacing {
    segment: SegmentId,
    placed: Placed,
    stands: Option<Stands>,
}

/// The record that says that a replacement stands if power is lost, and how much of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stands {
    pub size: u64,
    pub allocated: u64,
    pub origin: Origin,
    placed: Placed,
    record_len: usize,
}

/// Which seals are provisional, by the newest record that says so.
#[derive(Clone, Copy, Debug)]
struct Provisional {
    from: u64,
    placed: Placed,
}

/// The chain of a regular file.
#[derive(Clone, Debug, Default)]
pub struct FileChain {
    runs: Vec<Run>,
    /// So many runs, from the first one on, have seals that hold.
    sealed: usize,
    /// So many of the runs behind them have seals, too.
    sealed_behind: usize,
    allocated: u64,
    /// What the runs take in memory.
    taken: u64,
    // Few files have one of these, and there may be millions of files.
    replacing: Option<Box<Replacing>>,
    /// Where the record is that voids the seals of all runs before it. Kept while such runs are there.
    thaw: Option<Box<Placed>>,
    /// Kept while runs are there that it speaks of.
    provisional: Option<Box<Provisional>>,
    /// Kept while the record would count if the log was read back.
    value: Option<Box<Value>>,
}

impl FileChain {
    /// The runs, which follow each other without gaps from 0 to the size of the file.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The runs that have bytes behind a place.
    pub fn runs_behind(&self, place: u64) -> &[Run] {
        &self.runs[self.runs.partition_point(|run| run.end() <= place)..]
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        self.runs.last().map_or(0, Run::end)
    }

    /// What the runs take in memory.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// True if every byte is in a run whose seal holds.
    pub fn is_sealed(&self) -> bool {
        // Only the last one can be without bytes.
        self.runs[self.sealed..].iter().all(|run| run.len == 0)
    }

    /// True if the log holds the file's bytes, so that a thaw must come before the segment may differ from them.
    pub fn has_value(&self) -> bool {
        self.value.is_some()
    }

    /// The file's bytes, if only the log is known to hold them durably.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_ref()?.bytes.as_deref()
    }

    /// What [`FileChain::value`] gives, and the sequence number of its record.
    pub(crate) fn to_restore(&self) -> Option<(u64, Box<[u8]>)> {
        let value = self.value.as_ref()?;
        Some((value.placed.seq, value.bytes.clone()?))
    }

    pub(crate) fn value_placed(&self) -> Option<Placed> {
        self.value.as_ref().filter(|value| value.bytes.is_some()).map(|value| value.placed)
    }

    /// True if some run has a seal that holds, so that a thaw must come before the bytes may change.
    pub fn has_seals(&self) -> bool {
        self.sealed + self.sealed_behind > 0
    }

    /// So many bytes, from the first one on, are in runs whose seals hold. Before any of them may change, or be cut
    /// off, a thaw must come; what is behind them may change as it likes.
    pub fn sealed_end(&self) -> u64 {
        self.runs[..self.sealed].last().map_or(0, Run::end)
    }

    /// So many bytes, from the first one on, are in runs that have seals, whether those hold or are provisional.
    pub fn seals_end(&self) -> u64 {
        let behind = &self.runs[self.sealed..];
        behind.iter().take_while(|run| run.any_seal().is_some()).last().map_or(self.sealed_end(), Run::end)
    }

    /// True if a seal is provisional.
    pub fn has_provisional_seals(&self) -> bool {
        self.provisional.is_some() && self.runs[self.sealed..].iter().any(|run| run.provisional_seal().is_some())
    }

    /// From where on seals are provisional, and the record that says so.
    pub(crate) fn provisional_from(&self) -> Option<(u64, Placed)> {
        self.provisional.as_ref().map(|mark| (mark.from, mark.placed))
    }

    /// What the file was recognised as when it was sealed last, provisionally or not. None if it is not sealed, or
    /// opaque.
    pub fn summary(&self) -> Option<Summary> {
        let index = self.runs.last()?.said.checked_sub(1)?;
        self.runs[index as usize].any_seal()?.summary()
    }

    /// Where the run begins whose seal says what the file is, and what the seals in front of it say.
    pub fn said_from(&self) -> Option<(u64, Option<Summary>)> {
        let index = self.runs.last()?.said.checked_sub(1)? as usize;
        let before = index.checked_sub(1).and_then(|before| self.runs[before].said.checked_sub(1));
        let before = before.and_then(|index| self.runs[index as usize].any_seal()?.summary());
        Some((self.runs[index].offset, before))
    }

    /// The tensors of a sealed file, in the order of their bytes.
    pub fn tensors(&self) -> impl Iterator<Item = TensorEntry> {
        self.runs.iter().filter_map(Run::any_seal).flat_map(Seal::tensors)
    }

    /// A number that grows with every change of the runs and their seals. While it stays the same, so do they.
    pub fn version(&self) -> u64 {
        let newest = self.runs.last().map_or(0, |run| run.placed.seq);
        let provisional = self.provisional.as_ref().map_or(0, |mark| mark.placed.seq);
        newest.max(self.thaw.as_ref().map_or(0, |thaw| thaw.seq)).max(provisional)
    }

    /// Bytes that the host had allocated to the segment when the newest data record was made.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// The segment that is to replace the file's own.
    pub fn replacing(&self) -> Option<SegmentId> {
        self.replacing.as_ref().map(|replacing| replacing.segment)
    }

    pub(crate) fn replacing_placed(&self) -> Option<Placed> {
        self.replacing.as_ref().map(|replacing| replacing.placed)
    }

    /// What stands of a replacement if power is lost.
    pub(crate) fn stands(&self) -> Option<Stands> {
        self.replacing.as_ref()?.stands
    }

    /// A data record of the segment that is to replace the file's own: that much of it stands from now on.
    pub(crate) fn set_stands(&mut self, ledger: &mut Ledger, segment: SegmentId, run: &Run, allocated: u64) {
        let describes_all = run.offset == 0 && run.seal.is_none() && run.cut_from.is_none();
        let Some(replacing) = self.replacing.as_mut().filter(|replacing| replacing.segment == segment) else { return };
        if describes_all {
            ledger.add(run.placed, run.record_len);
            let Run { len: size, origin, placed, record_len, .. } = *run;
            let stands = Stands { size, allocated, origin, placed, record_len };
            if let Some(old) = replacing.stands.replace(stands) {
                ledger.sub(old.placed, old.record_len);
            }
        }
    }

    /// The bytes of all runs. The record of the last one stands right before this one.
    pub(crate) fn set_value(&mut self, ledger: &mut Ledger, bytes: Box<[u8]>, placed: Placed, record_len: usize) {
        let counts = match &*self.runs {
            [.., last] => {
                let all = last.end() == bytes.len() as u64 && last.cut_from.is_none();
                all && !self.has_seals() && last.placed.seq + 1 == placed.seq && self.thaw.is_none()
            }
            [] => false,
        };
        if counts {
            self.drop_value(ledger);
            ledger.add(placed, record_len);
            self.value = Some(Box::new(Value { placed, record_len, bytes: Some(bytes) }));
        }
    }

    fn drop_value(&mut self, ledger: &mut Ledger) {
        self.settle_value(ledger, u64::MAX);
        self.value = None;
    }

    /// The segment holds the bytes of the value with this sequence number, or an older one, durably: the record need
    /// not be kept. It still counts while it is there.
    pub(crate) fn settle_value(&mut self, ledger: &mut Ledger, seq: u64) {
        if let Some(value) = self.value.as_mut().filter(|value| value.placed.seq <= seq)
            && value.bytes.take().is_some()
        {
            ledger.sub(value.placed, value.record_len);
        }
    }

    /// The value was copied to another block.
    pub(crate) fn relocate_value(&mut self, ledger: &mut Ledger, from: Placed, to: Placed) {
        if let Some(value) = self.value.as_mut().filter(|value| value.placed == from && value.bytes.is_some()) {
            ledger.sub(from, value.record_len);
            ledger.add(to, value.record_len);
            value.placed = to;
        }
    }

    pub(crate) fn append(&mut self, ledger: &mut Ledger, mut run: Run, allocated: u64) {
        self.drop_value(ledger);
        while let Some(last) = self.runs.last_mut() {
            if last.offset >= run.offset {
                if last.offset == run.offset && run.cut_from.is_some() {
                    // What is left of it was part of the file before.
                    run.origin = last.origin;
                }
                ledger.sub(last.placed, last.record_len);
                let sealed = last.seal().is_some();
                self.taken -= last.taken();
                self.runs.pop();
                self.unsealed(sealed);
            } else {
                if last.end() > run.offset {
                    last.len = run.offset - last.offset;
                    self.taken -= last.taken();
                    let sealed = last.seal().is_some();
                    (last.seal, last.provisional) = (None, false);
                    self.taken += last.taken();
                    self.unsealed(sealed);
                    self.tell_last();
                }
                break;
            }
        }
        ledger.add(run.placed, run.record_len);
        if self.runs.len() < 4 {
            // Most files have few runs, and there are many files.
            self.runs.reserve_exact(1);
        }
        let sealed = run.seal().is_some();
        self.taken += run.taken();
        self.runs.push(run);
        if sealed && self.sealed + 1 == self.runs.len() {
            self.sealed += 1;
        } else if sealed {
            self.sealed_behind += 1;
        }
        self.tell_last();
        self.allocated = allocated;
        if let Some(thaw) = &self.thaw
            && self.runs.iter().all(|run| run.placed.seq > thaw.seq)
        {
            self.set_thaw(ledger, None);
        }
        if let Some(mark) = &self.provisional
            && self.runs.iter().all(|run| run.placed.seq > mark.placed.seq)
        {
            self.mark_provisional(ledger, None);
        }
    }

    /// The last run has lost its seal, if it was `sealed`, by going or by getting shorter.
    fn unsealed(&mut self, sealed: bool) {
        if sealed && self.sealed_behind > 0 {
            self.sealed_behind -= 1;
        } else if sealed {
            self.sealed -= 1;
        }
    }

    /// Notes in the last run which one says what the file is, so that nobody has to look for it.
    fn tell_last(&mut self) {
        let Some((last, front)) = self.runs.split_last_mut() else { return };
        let says = last.any_seal().is_some_and(|seal| seal.summary().is_some());
        let before = front.last().map_or(0, |run| run.said);
        // A log has room for fewer records than that.
        last.said = if says { u32::try_from(front.len() + 1).unwrap_or(before) } else { before };
    }

    /// Voids all seals.
    pub(crate) fn thaw(&mut self, ledger: &mut Ledger, placed: Placed) {
        self.drop_value(ledger);
        for run in &mut self.runs {
            (run.seal, run.provisional, run.said) = (None, false, 0);
        }
        self.taken = self.runs.iter().map(Run::taken).sum();
        (self.sealed, self.sealed_behind) = (0, 0);
        // Without a run that the record could void again when the log is read back, it need not be kept.
        self.set_thaw(ledger, (!self.runs.is_empty()).then_some(placed));
    }

    /// Of the seals those from this byte on are provisional, and all others hold.
    pub(crate) fn set_provisional(&mut self, ledger: &mut Ledger, from: u64, placed: Placed) {
        self.drop_value(ledger);
        for run in &mut self.runs {
            run.provisional = run.seal.is_some() && run.offset >= from;
        }
        self.sealed = self.runs.iter().take_while(|run| run.seal().is_some()).count();
        self.sealed_behind = self.runs[self.sealed..].iter().filter(|run| run.seal().is_some()).count();
        let mark = (!self.runs.is_empty()).then_some(Provisional { from, placed });
        self.mark_provisional(ledger, mark);
    }

    fn mark_provisional(&mut self, ledger: &mut Ledger, mark: Option<Provisional>) {
        if let Some(old) = self.provisional.take() {
            ledger.sub(old.placed, length::PROVISIONAL);
        }
        if let Some(mark) = mark {
            ledger.add(mark.placed, length::PROVISIONAL);
        }
        self.provisional = mark.map(Box::new);
    }

    fn set_thaw(&mut self, ledger: &mut Ledger, thaw: Option<Placed>) {
        if let Some(placed) = self.thaw.take() {
            ledger.sub(*placed, length::THAW);
        }
        if let Some(placed) = thaw {
            ledger.add(placed, length::THAW);
        }
        self.thaw = thaw.map(Box::new);
    }

    /// The run that a record of this offset, at this place, describes.
    fn run_at(&mut self, offset: u64, placed: Placed) -> Option<&mut Run> {
        let index = self.runs.partition_point(|run| run.offset < offset);
        self.runs.get_mut(index).filter(|run| run.offset == offset && run.placed == placed)
    }

    /// True if the chain rests on the data record of this offset at this place.
    pub(crate) fn has_run(&self, offset: u64, placed: Placed) -> bool {
        let index = self.runs.partition_point(|run| run.offset < offset);
        self.runs.get(index).is_some_and(|run| run.offset == offset && run.placed == placed)
            || self.stands().is_some_and(|stands| stands.placed == placed)
    }

    /// True if the chain rests on the thaw record at this place.
    pub(crate) fn is_thawed_at(&self, placed: Placed) -> bool {
        self.thaw.as_deref() == Some(&placed)
    }

    /// True if the chain rests on the record at this place that says which seals are provisional.
    pub(crate) fn is_provisional_at(&self, placed: Placed) -> bool {
        self.provisional.as_deref().is_some_and(|mark| mark.placed == placed)
    }

    /// Drops all runs: the file's bytes are in another segment now, or gone.
    pub(crate) fn clear(&mut self, ledger: &mut Ledger) {
        for run in self.runs.drain(..) {
            ledger.sub(run.placed, run.record_len);
        }
        self.set_thaw(ledger, None);
        self.mark_provisional(ledger, None);
        self.drop_value(ledger);
        (self.sealed, self.sealed_behind) = (0, 0);
        (self.allocated, self.taken) = (0, 0);
    }

    pub(crate) fn set_replacing(&mut self, ledger: &mut Ledger, replacing: Option<(SegmentId, Placed)>) {
        if let Some(old) = self.replacing.take() {
            ledger.sub(old.placed, length::REPLACE);
            old.stands.iter().for_each(|stands| ledger.sub(stands.placed, stands.record_len));
        }
        self.replacing = replacing.map(|(segment, placed)| {
            ledger.add(placed, length::REPLACE);
            Box::new(Replacing { segment, placed, stands: None })
        });
    }

    /// The data record of a run was copied to another block.
    pub(crate) fn relocate_run(&mut self, ledger: &mut Ledger, offset: u64, from: Placed, to: Placed) {
        if let Some(run) = self.run_at(offset, from) {
            ledger.sub(from, run.record_len);
            ledger.add(to, run.record_len);
            run.placed = to;
        }
        let stands = self.replacing.as_mut().and_then(|replacing| replacing.stands.as_mut());
        if let Some(stands) = stands.filter(|stands| stands.placed == from) {
            ledger.sub(from, stands.record_len);
            ledger.add(to, stands.record_len);
            stands.placed = to;
        }
    }

    /// The thaw, provisional or replace record was copied to another block.
    pub(crate) fn relocate_state(&mut self, ledger: &mut Ledger, from: Placed, to: Placed) {
        if self.is_thawed_at(from) {
            self.set_thaw(ledger, Some(to));
        }
        if let Some(mark) = self.provisional.as_deref().copied().filter(|mark| mark.placed == from) {
            self.mark_provisional(ledger, Some(Provisional { placed: to, ..mark }));
        }
        if let Some(replacing) = self.replacing.as_mut().filter(|replacing| replacing.placed == from) {
            ledger.sub(from, length::REPLACE);
            ledger.add(to, length::REPLACE);
            replacing.placed = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensorfs_formats::Format;

    use super::*;
    use crate::log::description::start;

    fn run(seq: u64, (offset, len): (u64, u64), seal: Option<u64>) -> Run {
        let summary = |tensors| {
            let (complete, bad_frames, reason, cut) = (true, 0, None, false);
            Summary { format: Format::TfRecord, tensors, complete, bad_frames, reason, cut }
        };
        let seal = seal.map(|tensors| {
            let description = if tensors == 0 { Vec::new() } else { start(Some(&summary(tensors))) };
            Seal { crc: 0, description: description.into() }
        });
        let placed = Placed { seq, incarnation: 1 };
        Run {
            offset,
            len,
            seal,
            provisional: false,
            origin: Origin::default(),
            placed,
            record_len: 40,
            cut_from: None,
            said: 0,
        }
    }

    proptest! {
        /// What is kept of the runs is what one would find by walking over them.
        #[test]
        fn what_is_sealed_and_said_is_kept_as_the_runs_change(
            steps in prop::collection::vec((0..14_u8, 0..40_u64, 0..9_u64, prop::option::of(0..4_u64)), 1..60),
        ) {
            let (mut chain, mut ledger) = (FileChain::default(), Ledger::default());
            for (seq, (what, back, len, seal)) in (1..).zip(steps) {
                match what {
                    0 => chain.thaw(&mut ledger, Placed { seq, incarnation: 1 }),
                    1 => chain.clear(&mut ledger),
                    12.. => {
                        let from = chain.size().saturating_sub(back);
                        chain.set_provisional(&mut ledger, from, Placed { seq, incarnation: 1 });
                        for run in chain.runs() {
                            prop_assert!(run.seal().is_none() || run.offset < from);
                            prop_assert!(run.provisional_seal().is_none() || run.offset >= from);
                        }
                    }
                    2..5 => {
                        let offset = chain.size().saturating_sub(back);
                        chain.append(&mut ledger, run(seq, (offset, len), seal.filter(|_| len > 0)), 0);
                    }
                    _ => {
                        let offset = chain.size();
                        chain.append(&mut ledger, run(seq, (offset, len + 1), seal), 0);
                    }
                }
                let runs = chain.runs();
                prop_assert_eq!(chain.taken(), runs.iter().map(Run::taken).sum::<u64>());
                let sealed = runs.iter().take_while(|run| run.seal().is_some()).last().map_or(0, Run::end);
                prop_assert_eq!(chain.sealed_end(), sealed);
                let seals = runs.iter().take_while(|run| run.any_seal().is_some()).last().map_or(0, Run::end);
                prop_assert_eq!(chain.seals_end(), seals);
                prop_assert_eq!(chain.has_seals(), runs.iter().any(|run| run.seal().is_some()));
                let provisional = runs.iter().any(|run| run.provisional_seal().is_some());
                prop_assert_eq!(chain.has_provisional_seals(), provisional);
                prop_assert_eq!(chain.is_sealed(), runs.iter().all(|run| run.seal().is_some() || run.len == 0));
                let said = |at: usize| runs[at].seal.as_ref().and_then(Seal::summary);
                let saying = (0..runs.len()).rfind(|at| said(*at).is_some());
                prop_assert_eq!(chain.summary(), saying.and_then(said));
                let before = |at: usize| (0..at).rev().find_map(said);
                prop_assert_eq!(chain.said_from(), saying.map(|at| (runs[at].offset, before(at))));
            }
        }
    }
}

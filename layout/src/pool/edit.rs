//! Transactions in: exclusive access to the view, and the one place where a transaction is stored.

use std::ops::Deref;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ids::{Ino, POOL, ROOT, SegmentId, TxId};
use crate::log::blocks::Reserve;
use crate::log::draft::Draft;
use crate::log::ledger::Placed;
use crate::log::record::Record;
use crate::log::transaction::Transaction;
use crate::pool::hearer::WhenStored;
use crate::pool::opened::{Changing, Live, Pool};
use crate::pool::unanswered::answering;
use crate::tree::view::View;

/// The right to change the view: read it, and store transactions. Others read it meanwhile.
#[derive(Debug)]
pub struct Edit<'a> {
    pool: &'a Pool,
    pub(super) state: Changing<'a>,
}

impl Pool {
    /// The live view, to read and to change by transactions. Nobody else changes it meanwhile: never sync or commit
    /// while holding this. Others read it, also while the host takes a frame of the log.
    pub fn edit(&self) -> Edit<'_> {
        Edit { pool: self, state: self.state_with_room(None) }
    }

    /// Has `when` called with each transaction from now on. The first one stays.
    pub fn when_stored(&self, when: WhenStored) {
        self.commits.hearer.is(when);
    }

    /// As [`Pool::edit`], unless others have that right for longer: for what is not worth waiting for the host.
    pub fn edit_within(&self, patience: Duration) -> Option<Edit<'_>> {
        Some(Edit { pool: self, state: self.state.try_upgradable_read_for(patience)? })
    }

    /// As [`Pool::edit`], for cleaning, and for what a commit records, which cleaning waits for: it makes room, and
    /// waits for none.
    pub fn edit_with_any_room(&self) -> Edit<'_> {
        Edit { pool: self, state: self.state.upgradable_read() }
    }

    /// As [`Pool::edit`], for a transaction that takes so many bytes of the log.
    pub(super) fn edit_with_room(&self, len: usize) -> Edit<'_> {
        Edit { pool: self, state: self.state_with_room(Some(len)) }
    }
}

impl Deref for Edit<'_> {
    type Target = View;
    fn deref(&self) -> &View {
        &self.state.view
    }
}

impl Edit<'_> {
    /// A number for a new object or segment. A number that no stored transaction uses is lost, not given out again.
    pub fn next_id(&mut self) -> u64 {
        self.state.with_upgraded(|live| live.view.draw_id())
    }

    /// The next number for an object or a segment is at least this one.
    pub(super) fn draw_from(&mut self, first: u64) {
        self.state.with_upgraded(|live| live.view.raise_next_id(first));
    }

    /// Stores a transaction and makes it part of the view. After `Ok` its operation may be answered; after an error
    /// nothing has changed. On [`Error::NoSpace`] let go of this, call [`Pool::reclaim`], and try once more.
    pub fn store(&mut self, transaction: Transaction) -> Result<TxId> {
        self.store_with(transaction, Reserve::Untouched)
    }

    /// As [`Edit::store`], for deletion and for what completes an operation: may use space that others may not.
    pub fn store_from_reserve(&mut self, transaction: Transaction) -> Result<TxId> {
        self.store_with(transaction, Reserve::Deletion)
    }

    /// As [`Edit::store`], for what a commit has to record before it can go on: may use all there is.
    pub fn store_for_commit(&mut self, transaction: Transaction) -> Result<TxId> {
        self.store_with(transaction, Reserve::Cleaning)
    }

    /// As [`Edit::store`], for a transaction that gives directories other names: what lies below them is recorded
    /// before a commit passes it ([`Pool::before_moves`]). If it `deletes` something, it may use space as that.
    pub fn store_moved(&mut self, transaction: Transaction, directories: &[Ino], deletes: bool) -> Result<TxId> {
        let reserve = if deletes { Reserve::Deletion } else { Reserve::Untouched };
        let id = self.store_with(transaction, reserve)?;
        self.pool.commits.moved(id, directories);
        Ok(id)
    }

    /// Stores what cleaning says, under the number of a request that somebody may be about to answer.
    pub(super) fn store_again(&mut self, transaction: Transaction) -> Result<TxId> {
        self.store_as(transaction, Reserve::Cleaning)
    }

    pub(crate) fn store_with(&mut self, transaction: Transaction, reserve: Reserve) -> Result<TxId> {
        // Before it is in the log: from then on cleaning finds it there.
        answering(transaction.unique());
        self.store_as(transaction, reserve)
    }

    fn store_as(&mut self, transaction: Transaction, reserve: Reserve) -> Result<TxId> {
        self.pool.check_writable()?;
        let (draft, numbers) = self.draft(&transaction)?;
        self.mention(&transaction)?;
        let pool = self.pool;
        pool.append(&mut self.state, draft, reserve, |live, id| {
            // Rule 2: the frame is stored. Should anything panic from here on, memory and log would differ.
            let guard = AbortOnPanic;
            pool.commits.hearer.hears(&live.view, transaction.records(), id);
            pool.apply(live, transaction.into_records(), numbers, id);
            pool.queue_freed(live, id, None);
            std::mem::forget(guard);
            id
        })
    }

    /// The frame of a transaction, and the sequence number of each of its records. An error says which record cannot be
    /// stored.
    fn draft(&self, transaction: &Transaction) -> Result<(Draft, Vec<u64>)> {
        let records = transaction.records();
        if records.len() > usize::from(u16::MAX) {
            let bytes = records.iter().map(Record::encoded_len).sum();
            return Err(Error::TooLarge { pool: self.pool.path.clone(), bytes });
        }
        let view = &self.state.view;
        let mut draft = Draft::new(transaction.unique());
        let mut chains: Vec<(Ino, u64)> = Vec::new();
        let mut numbers = Vec::with_capacity(records.len());
        for record in records {
            let ino = record.ino();
            if let Some(flaw) = record.flaw() {
                return Err(Error::Invalid { pool: self.pool.path.clone(), what: flaw.into() });
            }
            let seq = match chains.iter_mut().find(|(chain, _)| *chain == ino) {
                Some((_, seq)) => {
                    *seq += 1;
                    *seq
                }
                None => {
                    if let Some(what) = view.objection(record) {
                        return Err(Error::Invalid { pool: self.pool.path.clone(), what });
                    }
                    let seq = view.next_seq(ino);
                    chains.push((ino, seq));
                    seq
                }
            };
            if ino == POOL {
                draft.say_of_pool();
            }
            draft.push(record, seq);
            numbers.push(seq);
        }
        Ok((draft, numbers))
    }

    /// Tells the segments which of them the records of a transaction, which is about to be stored, speak of.
    fn mention(&self, transaction: &Transaction) -> Result<()> {
        let segments = &self.pool.segments;
        // Bytes that are durable by a value may turn out not to be: then the segment is to be synced.
        let by_value = transaction.records().iter().any(|record| matches!(record, Record::Value { .. }));
        for record in transaction.records() {
            let (segment, new) = match record {
                Record::Data { segment, .. } | Record::Truncation { segment, .. } => {
                    (*segment, by_value || !transaction.are_durable_in(*segment))
                }
                // They end what the log's own copy of the bytes counts for.
                Record::Thaw { ino, segment, .. }
                | Record::Provisional { ino, segment, .. }
                | Record::Sealed { ino, segment, .. } => {
                    let chain = self.state.view.object(*ino).and_then(|object| object.chain());
                    if chain.is_none_or(|chain| chain.value().is_none()) {
                        continue;
                    }
                    (*segment, false)
                }
                _ => continue,
            };
            let mentioned = segments.mention(segment, record.ino(), new, transaction.are_durable_in(segment));
            mentioned.map_err(|error| Error::io(segments.path_of(segment), "open to sync", error))?;
        }
        Ok(())
    }

    /// Drops an object that has no name left and that nothing holds. Its segments are removed from the host once the
    /// horizon covers what was stored so far.
    pub fn reap(&mut self, ino: Ino) {
        self.reap_holding(ino, None);
    }

    /// As [`Edit::reap`], where one of its segments may be known to hold another number of bytes of the host than what
    /// is recorded.
    pub fn reap_holding(&mut self, ino: Ino, held: Option<(SegmentId, u64)>) {
        if self.object(ino).is_some_and(|object| object.names() == 0) && ino != ROOT {
            self.drop_object(ino, held);
            // Nobody misses its bytes any more.
            self.pool.commits.failures.told(ino);
        }
    }

    /// Drops an object that no path leads to, whatever names point to it.
    pub(crate) fn drop_unreachable(&mut self, ino: Ino) {
        self.drop_object(ino, None);
    }

    fn drop_object(&mut self, ino: Ino, held: Option<(SegmentId, u64)>) {
        let pool = self.pool;
        self.state.with_upgraded(|live| {
            pool.budget.recorded(ino);
            live.view.drop_object(ino);
            pool.queue_freed(live, pool.newest(), held);
        });
    }
}

impl Pool {
    /// Makes records that were stored under these sequence numbers part of the view.
    fn apply(&self, state: &mut Live, records: Vec<Record>, numbers: Vec<u64>, id: TxId) {
        let incarnation = state.log.head_incarnation();
        for (record, seq) in records.into_iter().map(|record| record.stored(id)).zip(numbers) {
            let value = match &record {
                Record::Value { ino, segment, bytes } => Some((*ino, *segment, bytes.len())),
                _ => None,
            };
            let placed = Placed { seq, incarnation };
            self.budget.recorded(record.ino());
            state.view.apply(record, placed);
            let Some((ino, segment, len)) = value else { continue };
            self.budget.take_values(len);
            let chain = state.view.object(ino).and_then(|object| object.chain());
            if chain.is_some_and(|chain| chain.value_placed() == Some(placed)) {
                self.segments.cover(segment, ino, seq);
            } else {
                self.segments.recall(segment);
            }
        }
    }

    fn queue_freed(&self, state: &mut Live, id: TxId, held: Option<(SegmentId, u64)>) {
        let mut freed = state.view.take_freed();
        for (segment, bytes) in &mut freed {
            *bytes = held.filter(|(holds, _)| holds == segment).map_or(*bytes, |(_, held)| held);
        }
        freed.iter().for_each(|(segment, _)| self.segments.not_lost(*segment));
        self.removals.add(|| id, freed);
    }
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!(
                "a stored transaction could not be applied: the server ends, and recovers when it is started again"
            );
            std::process::abort();
        }
    }
}

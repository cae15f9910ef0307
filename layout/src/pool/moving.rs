//! Moving a file's bytes to another segment, which may be in another tier.

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::Origin;
use crate::log::record::{Attributes, Record};
use crate::log::transaction::Transaction;
use crate::pool::opened::Pool;
use crate::segment::examine::SealedRun;
use crate::tree::Run;
use crate::tree::chain::FileChain;
use crate::tree::object::Object;

/// The most records of a file that is not sealed that are kept as they are when it is moved: they are stored at once.
const RECORDS_KEPT: usize = 1024;

impl Pool {
    /// Announces that a segment is going to be a copy of a file's own, durably: should the machine go down before it
    /// has become that, it is removed, and not set aside as bytes that nobody knows.
    pub fn announce_copy(&self, ino: Ino, copy: SegmentId) -> Result<()> {
        self.edit().store(Transaction::new(0).with(Record::Thaw { ino, segment: copy, offset: 0, len: 0 }))?;
        self.commit(self.newest())
    }

    /// Makes a whole copy of a file's segment the file's own, in one transaction, with the file's seals; the caller
    /// sees to it that nothing can write the file meanwhile. The copy is durable before that, and the segment that it
    /// is a copy of is removed once that is durable too. False if the file is not as it was any more: then nothing has
    /// changed. What is recorded of damage stays, unless the caller has seen that the copy is `whole`: that what was
    /// sealed has its checksums in it, and all of it is sealed. What is sealed of one that has grown stays then, too.
    pub fn switch_to_copy(
        &self,
        ino: Ino,
        (from, copy): (SegmentId, SegmentId),
        size: u64,
        whole: bool,
    ) -> Result<bool> {
        // One that the caller has seen to be whole need not be a copy of what is there.
        let of = (!whole).then_some(from);
        self.segments.sync_copy(copy, of).map_err(|error| Error::io(self.segments.path_of(copy), "sync", error))?;
        // Opened to be synced before the pool's state is locked.
        let io = |error| Error::io(self.segments.path_of(copy), "open to sync", error);
        let _announced = self.segments.begin_write(copy).map_err(io)?;
        let switched = self.switch(ino, (from, copy), size, whole);
        self.segments.end_write(copy);
        switched
    }

    fn switch(&self, ino: Ino, (from, copy): (SegmentId, SegmentId), size: u64, whole: bool) -> Result<bool> {
        let stat = self.segments.stat(copy).map_err(|error| Error::io(self.segments.path_of(copy), "stat", error))?;
        let runs: Vec<SealedRun> = {
            let mut edit = self.edit();
            let as_it_was = |object: &&Object| {
                object.names() > 0
                    && object.attributes.segment == Some(from)
                    && object.pending_replace().is_none()
                    && !object.is_cut_unconfirmed()
                    && object.size() == size
                    && stat.size == size
            };
            let Some(object) = edit.object(ino).filter(as_it_was) else { return Ok(false) };
            let chain = object.chain();
            let is_sealed = chain.is_some_and(FileChain::is_sealed);
            let sealed = chain.filter(|chain| whole || chain.is_sealed());
            let sealed_end = sealed.map_or(0, FileChain::sealed_end);
            let sealed = sealed.map_or(&[][..], FileChain::runs).iter().filter(|run| run.end() <= sealed_end);
            let sealed = sealed.filter_map(|run| {
                let &Run { offset, len, origin, .. } = run;
                Some(SealedRun { offset, len, seal: run.seal().cloned()?, origin })
            });
            let sealed: Vec<SealedRun> = sealed.collect();
            let damaged = object.attributes.damaged && !(whole && is_sealed);
            let attributes = Attributes { segment: Some(copy), damaged, ..object.attributes.clone() };
            let mut tx = Transaction::new(0).with(Record::Attributes { ino, attributes });
            if object.is_interrupted() {
                tx.push(Record::interrupted(ino, copy));
            }
            let (segment, allocated) = (copy, stat.allocated);
            let runs = chain.map_or(&[][..], FileChain::runs);
            // Of a file with more of them, not much would fit into one transaction.
            let has_all = is_sealed && !sealed.is_empty();
            let kept = if !has_all && runs.len() <= RECORDS_KEPT { runs } else { &[] };
            for &Run { offset, len, origin, .. } in kept {
                tx.push(Record::Data { ino, segment, offset, len, allocated, origin });
            }
            if kept.is_empty() {
                let origin = runs.last().map_or(Origin::default(), |run| run.origin);
                tx.push(Record::Data { ino, segment, offset: 0, len: size, allocated, origin });
            }
            edit.store(tx)?;
            sealed
        };
        // The switch has been made, whatever becomes of the seals.
        let stored = match runs.last().map(|run| run.offset + run.len) {
            None => Ok(true),
            Some(end) if end < size => self.carry_seals(ino, copy, runs),
            Some(_) => self.seal(ino, copy, stat.allocated, runs),
        };
        if let Err(error) = stored {
            log::warn!("{}: inode {ino}: its seals are not there any more: {error}", self.path.display());
        }
        Ok(true)
    }
}

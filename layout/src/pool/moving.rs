//! Moving a file's bytes to another segment, which may be in another tier.

use crate::error::{Error, Result};
use crate::ids::{Ino, SegmentId};
use crate::log::record::{Attributes, Record};
use crate::log::transaction::Transaction;
use crate::pool::opened::Pool;
use crate::segment::examine::SealedRun;
use crate::tree::object::Object;

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
    /// changed.
    pub fn switch_to_copy(&self, ino: Ino, from: SegmentId, copy: SegmentId, size: u64) -> Result<bool> {
        self.segments.sync_copy(copy).map_err(|error| Error::io(self.segments.path_of(copy), "sync", error))?;
        // Opened to be synced before the pool's state is locked.
        let io = |error| Error::io(self.segments.path_of(copy), "open to sync", error);
        let _announced = self.segments.begin_write(copy).map_err(io)?;
        let switched = self.switch(ino, from, copy, size);
        self.segments.end_write(copy);
        switched
    }

    fn switch(&self, ino: Ino, from: SegmentId, copy: SegmentId, size: u64) -> Result<bool> {
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
            let sealed = object.chain().filter(|chain| chain.is_sealed());
            let runs = sealed
                .map_or(&[][..], |chain| chain.runs())
                .iter()
                .filter_map(|run| Some(SealedRun { offset: run.offset, len: run.len, seal: run.seal.clone()? }));
            let runs = runs.collect();
            let attributes = Attributes { segment: Some(copy), ..object.attributes.clone() };
            let data = Record::Data { ino, segment: copy, offset: 0, len: size, allocated: stat.allocated };
            edit.store(Transaction::new(0).with(Record::Attributes { ino, attributes }).with(data))?;
            runs
        };
        // The switch has been made, whatever becomes of the seals.
        if !runs.is_empty()
            && let Err(error) = self.seal(ino, copy, stat.allocated, runs)
        {
            log::warn!("{}: inode {ino}: its seals are not there any more: {error}", self.path.display());
        }
        Ok(true)
    }
}

//! Small files are committed *by value*: their bytes go into the log, whose flush makes them durable together with what
//! names them. The segment is synced behind, in the background, and then the log need not keep them.
//!
//! That is sound only while nothing can be promised to be durable in the segment that is newer than what the log holds,
//! as recovery after a power loss gives the segment the log's bytes. So it is done
//!
//! * while whoever can write has the file open to write alone, and not with `O_SYNC`; or nobody can write it: a lease
//!   says so;
//! * until the file is opened otherwise, which first voids the value, durably, as it does seals;
//! * unless a sync of the segment failed: then what it holds may not be what was written.

use std::sync::Arc;
use std::time::Instant;

use tensorfs_layout::log::{PM, Record, Transaction};
use tensorfs_layout::segment::DueSegment;
use tensorfs_layout::tree::Object;

use crate::store::host;

use super::Files;
use super::learn::Switch;
use super::locked::Locked;
use super::look::{Made, Synced};

/// More files than this are synced instead.
const MOST: usize = 16;

impl Locked<'_> {
    /// The bytes of a file that is open for writing, if it can be committed by value.
    pub(super) fn read_value(&self) -> Option<Made> {
        let (store, serving) = (self.files.store(), self.serving()?);
        let (segment, writing) = (serving.segment, serving.writing.as_ref()?);
        if writing.unheard || serving.mappable || segment.tier() != PM || store.nearly_full() {
            return None;
        }
        let room = store.pool().value_room()?;
        // Bytes that were lost are not the better for standing in the log.
        let damaged = || store.view().object(self.ino()).is_some_and(|object| object.attributes.damaged);
        // Nor does a value count beside seals.
        let sealed = store.sealed_end(self.ino(), segment) > 0;
        if sealed || store.segments().failed(segment) || (serving.replacing.is_none() && damaged()) {
            return None;
        }
        let before = self.look().ok()?;
        let len = usize::try_from(before.size).ok().filter(|len| *len <= room)?;
        let mut bytes = vec![0; len];
        let whole = host::read_at(&writing.fd, &mut bytes, 0).ok()? == len;
        let synced = Synced { segment, before };
        // Of a file that is written meanwhile, what was read may never have been in it.
        let still = self.look().is_ok_and(|now| synced.covers(segment, &now));
        if !whole || !still || store.pool().allow_values().is_err() {
            return None;
        }
        Some(Made::Value(synced, Arc::from(bytes)))
    }

    /// The file counts as changed from now on, if its bytes are in the log.
    pub(super) fn doubt_value(&mut self) {
        let Some(serving) = self.serving_mut() else { return };
        if serving.writing.as_mut().is_some_and(|writing| writing.valued.take().is_some()) {
            // As if that look had been too early to tell.
            serving.seen.iter_mut().for_each(|seen| seen.at = seen.ctime);
        }
    }

    /// Commits by value the bytes that are due of this file. False if that cannot be.
    fn cover(&mut self, due: &DueSegment, room: usize) -> bool {
        let (store, ino, segment) = (self.files.store(), self.ino(), due.segment);
        if self.is_written() {
            // What it is being replaced by is not recorded yet, and what it has grown by is not for others to record.
            let recorded = |made: &Made| {
                let view = store.view();
                let len = made.value().map(|bytes| bytes.len() as u64);
                len.is_some() && view.object(ino).map(Object::size) == len
            };
            let made = if self.is_replacing() { None } else { self.read_value().filter(recorded) };
            return made.is_some_and(|made| {
                self.learn_made(0, Switch::Leave, Some(made)).is_ok_and(|learned| learned.durable)
            });
        }
        // Nobody opens it while we have its lock.
        if self.is_open_to_write() || self.is_replacing() || !store.segments().quiescent(segment) {
            return false;
        }
        let Ok(fd) = store.segments().open(segment, libc::O_RDONLY) else { return false };
        let Some(host) = host::stat(&fd).ok().filter(|host| host.size <= room as u64) else { return false };
        let mut bytes = vec![0; host.size as usize];
        if host::read_at(&fd, &mut bytes, 0).ok() != Some(bytes.len()) {
            return false;
        }
        let mut edit = store.pool().edit();
        let as_recorded = |object: &&Object| {
            object.names() > 0
                && object.attributes.segment == Some(segment)
                && !object.attributes.damaged
                && object.size() == host.size
                && object.chain().is_some_and(|chain| !chain.has_seals() && !chain.runs().is_empty())
        };
        let Some(object) = edit.object(ino).filter(as_recorded) else { return false };
        // The last record once more, so that the value stands right behind it.
        let (offset, allocated, origin) = (object.tail().0, host.allocated, object.tail_origin());
        let len = host.size - offset;
        let mut tx = Transaction::new(0).with(Record::Data { ino, segment, offset, len, allocated, origin });
        tx.push(Record::Value { ino, segment, bytes: bytes.into() });
        tx.bytes_are_durable(segment);
        edit.store(tx).is_ok()
    }
}

impl Files {
    /// Before a commit that a client waits for: where all that it would have to sync are a few small files, they are
    /// committed by value, so that the log's flush is the only one.
    pub(super) fn cover_small(&self) {
        let store = self.store();
        let Some(room) = store.pool().value_room() else { return };
        let segments = store.segments();
        let Some(due) = segments.due(MOST).filter(|due| !due.is_empty()) else { return };
        let small = |due: &DueSegment| {
            due.ino.is_some()
                && !segments.failed(due.segment)
                && due.segment.tier() == PM
                && segments.stat(due.segment).is_ok_and(|stat| stat.size <= room as u64)
        };
        if store.nearly_full() || !due.iter().all(small) || store.pool().allow_values().is_err() {
            return;
        }
        for one in &due {
            let Some(ino) = one.ino else { return };
            let node = self.node(ino);
            if !self.try_lock(&node).is_some_and(|mut file| file.cover(one, room)) {
                return;
            }
        }
    }

    /// Files that are still open and whose bytes the log holds count as changed from now on: what is written to them
    /// is not heard of. One that somebody else has locked once there is no patience left gets its turn the next time.
    pub fn doubt_values(&self, patience: Instant) {
        for ino in self.store().segments().covered() {
            let Some(node) = self.node_in_use(ino) else { continue };
            if let Some(mut file) = self.lock_until(&node, patience) {
                file.doubt_value();
            }
        }
    }
}

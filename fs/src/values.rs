//! Small files are committed *by value*: their bytes go into the log, whose flush makes them durable together with what names
//! them. The segment is synced behind, in the background, and then the log need not keep them.
//!
//! That is sound only while nothing can be promised to be durable in the segment that is newer than what the log holds, as
//! recovery after a power loss gives the segment the log's bytes. So it is done
//!
//! * while whoever can write has the file open to write alone, and not with `O_SYNC`; or nobody can write it: a lease says so;
//! * until the file is opened otherwise, which first voids the value, durably, as it does seals;
//! * unless a sync of the segment failed: then what it holds may not be what was written.

use std::sync::Arc;

use tensorfs_layout::{DueSegment, Ino, Object, PM, Record, Run, Transaction};

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::host;
use crate::learn::{Made, Switch, Synced};
use crate::nodes::State;

/// More files than this are synced instead.
const MOST: usize = 16;

impl Filesystem {
    /// The bytes of a file that is open for writing, if it can be committed by value.
    pub fn read_value(&self, ino: Ino, state: &State) -> Option<Made> {
        let (segment, fd) = (state.segment?, state.writing.as_ref()?);
        if state.unheard || state.mappable || segment.tier() != PM || self.nearly_full() {
            return None;
        }
        let room = self.pool.value_room()?;
        // Bytes that were lost are not the better for standing in the log.
        let damaged = || self.pool.view().object(ino).is_some_and(|object| object.attributes.damaged);
        if self.pool.segments().failed(segment) || (state.replace.is_none() && damaged()) {
            return None;
        }
        let before = self.look(state).ok()?;
        let len = usize::try_from(before.size).ok().filter(|len| *len <= room)?;
        let mut bytes = vec![0; len];
        let whole = host::read_at(fd, &mut bytes, 0).ok()? == len;
        let synced = Synced { segment, before };
        // Of a file that is written meanwhile, what was read may never have been in it.
        let still = self.look(state).is_ok_and(|now| synced.covers(segment, &now));
        if !whole || !still || self.pool.allow_values().is_err() {
            return None;
        }
        Some(Made::Value(synced, Arc::from(bytes)))
    }

    /// Before a commit that a client waits for: where all that it would have to sync are a few small files, they are
    /// committed by value, so that the log's flush is the only one.
    pub fn cover_small(&self) {
        let Some(room) = self.pool.value_room() else { return };
        let segments = self.pool.segments();
        let Some(due) = segments.due(MOST).filter(|due| !due.is_empty()) else { return };
        let small = |due: &DueSegment| {
            due.ino.is_some()
                && !segments.failed(due.segment)
                && due.segment.tier() == PM
                && segments.stat(due.segment).is_ok_and(|stat| stat.size <= room as u64)
        };
        if self.nearly_full() || !due.iter().all(small) || self.pool.allow_values().is_err() {
            return;
        }
        for one in &due {
            if !self.cover(one, room) {
                return;
            }
        }
    }

    fn cover(&self, due: &DueSegment, room: usize) -> bool {
        let (segment, Some(ino)) = (due.segment, due.ino) else { return false };
        let node = self.nodes.take(ino);
        let Some(mut state) = node.try_lock() else { return false };
        if state.writing.is_some() {
            // What it is being replaced by is not recorded yet.
            let made = if state.replace.is_none() { self.read_value(ino, &state) } else { None };
            return made.is_some_and(|made| {
                self.learn_made(&node, &mut state, 0, Switch::Leave, Some(made)).is_ok_and(|learned| learned.durable)
            });
        }
        // Nobody opens it while we have its lock.
        if state.writers > 0 || state.replace.is_some() || !self.pool.segments().quiescent(segment) {
            return false;
        }
        let Ok(fd) = self.pool.segments().open(segment, libc::O_RDONLY) else { return false };
        let Some(host) = host::stat(&fd).ok().filter(|host| host.size <= room as u64) else { return false };
        let mut bytes = vec![0; host.size as usize];
        if host::read_at(&fd, &mut bytes, 0).ok() != Some(bytes.len()) {
            return false;
        }
        let mut edit = self.pool.edit();
        let as_recorded = |object: &&Object| {
            let whole = |runs: &[Run]| matches!(runs, [run] if run.offset == 0 && run.seal.is_none());
            object.names() > 0
                && object.attributes.segment == Some(segment)
                && !object.attributes.damaged
                && object.size() == host.size
                && object.chain().is_some_and(|chain| whole(chain.runs()))
        };
        if edit.object(ino).filter(as_recorded).is_none() {
            return false;
        }
        let (len, allocated) = (host.size, host.allocated);
        let mut tx = Transaction::new(0).with(Record::Data { ino, segment, offset: 0, len, allocated });
        tx.push(Record::Value { ino, segment, bytes: bytes.into() });
        tx.bytes_are_durable(segment);
        edit.store(tx).is_ok()
    }

    /// Makes durable in their segments what only the log holds. Files that are still open count as changed: what is written to
    /// them now is not heard of.
    pub fn settle_values(&self) -> Result<()> {
        let nodes: Vec<_> = self.writers.lock().values().map(|watched| watched.node.clone()).collect();
        for node in nodes {
            let mut state = node.lock();
            if state.valued.take().is_some() {
                // As if that look had been too early to tell.
                state.seen.iter_mut().for_each(|seen| seen.at = seen.ctime);
            }
        }
        Ok(self.pool.settle_values()?)
    }
}

//! Learning: recording what the segments of files in use have become, and bringing files to rest when they close.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfs_layout::{Attributes, FileChain, Ino, Object, Record, SegmentId, Transaction};

use crate::attributes::{Stat, change_time};
use crate::clock;
use crate::error::{Host, Result};
use crate::filesystem::Filesystem;
use crate::host::{self, HostStat};
use crate::nodes::{Node, Seen, State};

/// The host gets the space of a deleted file of this size back at once, not only after the commit interval.
const LARGE: u64 = 16 << 20;

/// RELEASE comes after `close` has returned. Where space is short, a file that is deleted waits so long for one.
const RELEASE: Duration = Duration::from_millis(20);

/// What to do about a pending replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// The new content stands from now on.
    Store,
    /// The same, and it is the last word: what is recorded may use space that is otherwise kept for deletion.
    Last,
    /// Only if it has been pending too long.
    Leave,
}

/// How bytes were made durable before they are recorded.
#[derive(Clone, Debug)]
pub(crate) enum Made {
    /// Their segment was synced.
    Synced(Synced),
    /// They are going to be stored with the record.
    Value(Synced, Arc<[u8]>),
}

impl Made {
    /// This, if it is true of all bytes that the segment holds now.
    pub fn if_covers(self, segment: SegmentId, now: &HostStat) -> Option<Self> {
        let (Self::Synced(before) | Self::Value(before, _)) = &self;
        before.covers(segment, now).then_some(self)
    }

    fn value(&self) -> Option<&Arc<[u8]>> {
        match self {
            Self::Value(_, bytes) => Some(bytes),
            Self::Synced(_) => None,
        }
    }
}

/// A segment that was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Synced {
    pub segment: SegmentId,
    /// What it was: all that it held then is what this is about.
    pub before: HostStat,
}

impl Synced {
    /// True if the segment is as it was: what is recorded of it now is durable.
    pub fn covers(&self, segment: SegmentId, now: &HostStat) -> bool {
        self.segment == segment && self.before.size == now.size && self.before.ctime == now.ctime
    }
}

/// What learning found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Learned {
    /// The segment may differ from what was last synced.
    pub changed: bool,
    /// It does not: it was synced just before, or its bytes are recorded by value.
    pub durable: bool,
}

impl Filesystem {
    /// Brings a file's records up to date with its segment. Says nothing about durability.
    pub fn learn(&self, node: &Node, state: &mut State, unique: u64, switch: Switch) -> Result<Learned> {
        self.learn_made(node, state, unique, switch, None)
    }

    /// The same for a file whose bytes may just have been made durable.
    pub fn learn_made(
        &self,
        node: &Node,
        state: &mut State,
        unique: u64,
        switch: Switch,
        made: Option<Made>,
    ) -> Result<Learned> {
        let Some(segment) = state.segment.filter(|_| state.writing.is_some()) else {
            return Ok(Learned::default());
        };
        if let Some(replace) = state.replace {
            if switch == Switch::Leave && replace.since.elapsed() < self.options.replace {
                return Ok(Learned::default());
            }
            let durable = self.store_switch(node, state, unique, made)?;
            state.grew = true;
            return Ok(Learned { changed: true, durable });
        }
        let at = clock::now();
        let host = self.look(state)?;
        let made = made.and_then(|made| made.if_covers(segment, &host));
        let (has_value, needed) = {
            let view = self.pool.view();
            let chain = view.object(node.ino).and_then(Object::chain);
            (chain.is_some_and(FileChain::has_value), chain.is_some_and(|chain| chain.value().is_some()))
        };
        // Of one that was settled meanwhile the log may have nothing any more.
        let valued = state.valued.clone().filter(|_| needed);
        let value = made.as_ref().and_then(Made::value);
        // The same bytes are in the log already.
        let stored = match (value, &valued) {
            (Some(value), Some(valued)) => value == valued,
            (None, Some(valued)) if made.is_none() => self.holds(state, &host, valued),
            _ => false,
        } && self.pool.segments().hold_value(segment);
        // A value that was read while a write was under way may lack bytes that are there now, though nothing shows it.
        let as_recorded = stored || (value.is_none() && !has_value);
        if as_recorded && state.seen.is_some_and(|seen| seen.still(&host)) {
            return Ok(Learned { changed: false, durable: made.is_some() });
        }
        let durable = made.is_some() || stored;
        if !durable {
            self.pool.segments().touch(segment).host("opening a segment to sync it")?;
        }
        let (grew, named) = self.edit(|edit| {
            let Some(object) = edit.object(node.ino).filter(|object| object.names() > 0) else {
                return Ok((false, false));
            };
            let grew = host.allocated > object.allocated();
            let mut tx = Transaction::new(unique);
            if durable {
                tx.bytes_are_durable(segment);
            }
            let (ino, allocated) = (node.ino, host.allocated);
            let changed = host.size != object.size() || allocated != object.allocated() || object.is_cut_unconfirmed();
            match &value {
                Some(bytes) if !stored => {
                    tx.push(Record::Data { ino, segment, offset: 0, len: host.size, allocated });
                    tx.push(Record::Value { ino, segment, bytes: bytes[..].into() });
                }
                // What the log holds goes on to count.
                _ if stored => {}
                // A value that is there is not the last word any more.
                _ if changed || object.has_value() => {
                    let offset = object.tail().0.min(host.size);
                    tx.push(Record::Data { ino, segment, offset, len: host.size - offset, allocated });
                }
                _ => {}
            }
            let attributes = self.observed(&object.attributes, &host, state);
            if attributes != object.attributes {
                tx.push(Record::Attributes { ino: node.ino, attributes });
            }
            if !tx.is_empty() {
                if switch == Switch::Last { edit.store_from_reserve(tx) } else { edit.store(tx) }?;
                self.counters.learned.add(1);
            }
            Ok((grew, true))
        })?;
        if !stored {
            state.valued = value.filter(|_| named).cloned();
        }
        state.seen = Some(Seen { ctime: host.ctime, size: host.size, at });
        state.grew |= grew;
        Ok(Learned { changed: !stored, durable })
    }

    /// True if the segment of an open file holds just these bytes.
    fn holds(&self, state: &State, host: &HostStat, bytes: &[u8]) -> bool {
        let Some(fd) = state.writing.as_ref().filter(|_| host.size == bytes.len() as u64) else { return false };
        let mut found = vec![0; bytes.len()];
        host::read_at(fd, &mut found, 0).is_ok_and(|count| count == bytes.len()) && found == bytes
    }

    /// Learns every file that something may write, and says whether any had changed. One that fails does not keep
    /// the others from being learned.
    pub fn learn_all(&self, switch: Switch) -> Result<bool> {
        self.learn_all_but(switch, &[])
    }

    /// The same without some files, whose turn comes later.
    pub fn learn_all_but(&self, switch: Switch, later: &[Ino]) -> Result<bool> {
        let nodes: Vec<_> = {
            let writers = self.writers.lock();
            writers.iter().filter(|(ino, _)| !later.contains(ino)).map(|(_, watched)| watched.node.clone()).collect()
        };
        let mut changed = false;
        let mut first = Ok(());
        for node in nodes {
            let mut state = node.lock();
            let before = state.seen;
            match self.learn(&node, &mut state, 0, switch) {
                Ok(learned) => changed |= learned.changed,
                Err(fault) => {
                    first = first.and(Err(fault));
                    continue;
                }
            }
            let stale = state.mappable && state.seen.map(|seen| seen.ctime) != before.map(|seen| seen.ctime);
            if state.writers == 0 {
                self.settle(&node, &mut state, 0);
            }
            drop(state);
            if stale {
                self.forget_attributes(node.ino);
            }
        }
        first.map(|()| changed)
    }

    /// Brings to rest what has been closed, but was still open for the kernel when its RELEASE came. The background does
    /// so too, once an interval. The caller may have the lock of some inode.
    pub fn settle_closed(&self) {
        let nodes: Vec<_> = self.writers.lock().values().map(|watched| watched.node.clone()).collect();
        for node in nodes {
            if let Some(mut state) = node.try_lock().filter(|state| state.writers == 0) {
                self.settle(&node, &mut state, 0);
            }
        }
    }

    /// Learns a file before it gets a name, so that no name points to bytes that are not recorded.
    pub fn learn_before_naming(&self, ino: Ino, unique: u64) -> Result<()> {
        if let Some(node) = self.nodes.peek(ino) {
            let mut state = node.lock();
            self.learn(&node, &mut state, unique, Switch::Store)?;
        }
        Ok(())
    }

    /// Brings an inode to rest as far as its handles allow: after a release, or an open that failed.
    pub fn settle(&self, node: &Node, state: &mut State, unique: u64) {
        if state.writers == 0 {
            self.end_writing(node, state, unique);
        }
        if state.handles() > 0 {
            return;
        }
        state.backing = None;
        state.mode = None;
        if let Some(segment) = state.segment {
            self.fds.forget(segment);
        }
        if state.opening > 0 {
            return;
        }
        if self.is_unnamed(node.ino) {
            if self.wants_space() { self.reap(node, state) } else { self.keep_removed(node, state) }
        } else if state.writing.is_none() {
            self.come_to_rest(state);
        }
    }

    /// True if no name leads to an object any more.
    fn is_unnamed(&self, ino: Ino) -> bool {
        self.pool.view().object(ino).is_some_and(|object| object.names() == 0)
    }

    /// Nothing uses the file's segment any more.
    fn come_to_rest(&self, state: &mut State) {
        if let Some(segment) = state.segment.take() {
            self.fds.forget(segment);
        }
        state.seen = None;
        state.grew = false;
        state.mappable = false;
        state.valued = None;
        state.unheard = false;
    }

    /// No handle can write any more: records what was written, and ends the watch unless a mapping still can.
    fn end_writing(&self, node: &Node, state: &mut State, unique: u64) {
        let (Some(segment), true) = (state.segment, state.writing.is_some()) else { return };
        self.fds.forget(segment);
        // Looked at before learning, so that what is learned is the last word. Who had it open to write alone could not map
        // it.
        let quiescent = !state.mappable || self.pool.segments().quiescent(segment);
        let recorded = self.recorded_end(node.ino, state);
        if let Err(fault) = self.learn(node, state, unique, Switch::Store) {
            // It stays on the list of writers, so the next background commit tries again.
            log::log!(fault.level.min(log::Level::Warn), "inode {}: not recorded at close: {}", node.ino, fault);
            return;
        }
        if let (Some(from), Some(seen)) = (recorded, state.seen) {
            self.write_out_closed(node.ino, segment, from..seen.size);
        }
        if quiescent {
            self.stop_watching(node.ino, state);
            self.sealing.add(node.ino, self.pool.newest(), crate::seal::QUIET);
        }
    }

    /// Takes a file off the list of writers.
    pub fn stop_watching(&self, ino: Ino, state: &mut State) {
        if let (Some(segment), Some(_)) = (state.segment, state.writing.take()) {
            self.pool.segments().end_write(segment);
        }
        let gone = self.writers.lock().remove(&ino);
        drop(gone);
    }

    /// Drops an object that has no name left and no handle. The kernel may still ask about it: for a process that holds it
    /// with `O_PATH`, and for one that looked it up a moment ago.
    fn reap(&self, node: &Node, state: &mut State) {
        self.removed.take(node.ino);
        let last = self.stat_in(node.ino, state);
        self.stop_watching(node.ino, state);
        self.come_to_rest(state);
        state.replace = None;
        let mut edit = self.pool.edit();
        let Some(object) = edit.object(node.ino).filter(|object| object.names() == 0) else { return };
        self.ghosts.keep(last.unwrap_or_else(|_| Stat::of(node.ino, object)));
        let allocated = object.allocated();
        edit.reap(node.ino);
        drop(edit);
        if allocated >= LARGE {
            self.bell.commit();
        }
    }

    /// An object has lost a name. If that was its last one, it goes once it is open nowhere and the kernel has forgotten
    /// it; where space is short, the kernel is not waited for.
    pub fn retire(&self, ino: Ino) {
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        let wants_space = self.wants_space();
        if state.handles() > 0 && wants_space {
            // A full disk: who has just closed the file and deleted it will try again with a smaller one.
            let deadline = Instant::now() + RELEASE;
            while state.handles() > 0 && !node.released.wait_until(&mut state, deadline).timed_out() {}
        }
        if !self.is_unnamed(ino) {
            return;
        }
        // Whoever reads it to seal it would keep its space.
        self.interrupt_seal(&node, &mut state);
        if state.handles() > 0 || state.opening > 0 {
            return;
        }
        if wants_space { self.reap(&node, &mut state) } else { self.keep_removed(&node, &mut state) }
    }

    /// Keeps an object that has no name and no handle until the kernel forgets it.
    fn keep_removed(&self, node: &Node, state: &mut State) {
        if state.replace.is_some() {
            return self.reap(node, state);
        }
        self.stop_watching(node.ino, state);
        self.come_to_rest(state);
        if let Some(object) = self.pool.view().object(node.ino) {
            self.removed.keep(node.ino, object);
        }
    }

    /// The kernel holds an object no longer.
    pub fn forgotten(&self, ino: Ino) {
        if self.removed.take(ino) {
            let node = self.nodes.take(ino);
            let mut state = node.lock();
            if state.handles() == 0 && state.opening == 0 {
                self.reap(&node, &mut state);
            }
        }
        self.ghosts.forget(ino);
    }

    /// Drops what only the kernel still knows. The caller may have the lock of some inode.
    pub fn reap_removed(&self) {
        for ino in self.removed.all() {
            let node = self.nodes.take(ino);
            if let Some(mut state) = node.try_lock().filter(|state| state.handles() == 0 && state.opening == 0)
                && self.removed.take(ino)
            {
                self.reap(&node, &mut state);
            }
        }
    }

    /// A file's attributes with what its segment says of times.
    pub fn observed(&self, recorded: &Attributes, host: &HostStat, state: &State) -> Attributes {
        let atime = if self.options.noatime { recorded.atime } else { host.atime };
        Attributes { atime, mtime: host.mtime, ctime: change_time(recorded, host, state), ..recorded.clone() }
    }
}

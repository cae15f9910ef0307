//! Sealing: a file that nothing can write any more is read once, behind everybody's back, for its checksums and tensors.
//!
//! A file comes into the queue when its last writer has gone, and is sealed when that is committed and [`QUIET`] has
//! passed, so that a file that is opened again and again is left alone; one that was written again although it was sealed
//! is left alone twice as long each time. Opening a file for writing has a seal that is
//! under way given up; the file is sealed when it is closed again. A sealed file is thawed, durably, before it can be
//! written (rule 5).

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorfs_layout::{Ino, Record, SegmentId, Transaction, TxId, examine};

use crate::error::{Fault, Host, Result};
use crate::filesystem::Filesystem;
use crate::host;
use crate::nodes::{Node, NodeRef, State};

/// So long after its last writer a file is left alone.
pub(crate) const QUIET: Duration = Duration::from_secs(1);
/// A file is left alone for `QUIET` times two to the power of this at most.
const PATIENCE: u32 = 8;
/// So many files are kept in mind as ones that were written again.
const REMEMBERED: usize = 1 << 16;
/// When to try again with a file that something was in the way of.
const AGAIN: Duration = Duration::from_secs(10);
/// So many bytes are sealed at most while the pool is being closed; the rest waits for the next mount.
const LAST_BYTES: u64 = 1 << 30;
/// The niceness of the thread that seals.
const NICENESS: libc::c_int = 10;

/// What came of sealing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is sealed now.
    Sealed,
    /// It was sealed, or has no bytes.
    Already,
    /// It is open for writing, or mapped so: it comes into the queue when that is over.
    InUse,
    /// Something was in the way, such as a process of an earlier mount that can write it: to be tried again.
    Later,
    /// It has no name any more, or is damaged: it is not to be sealed.
    Unfit,
}

/// The files that are to be sealed.
#[derive(Default)]
pub(crate) struct SealQueue {
    waiting: Mutex<Waiting>,
    rung: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// Since when each file is to be left alone, and which commit must come first.
    files: HashMap<Ino, Turn>,
    /// The same in the order of time. A file that is queued again leaves a stale turn behind.
    turns: VecDeque<(Ino, Turn)>,
    /// How often a file was opened for writing after it had been sealed.
    thawed: HashMap<Ino, u32>,
    /// Files being sealed.
    running: usize,
    stop: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Turn {
    at: Instant,
    after: TxId,
}

impl SealQueue {
    /// Nothing can write the file any more, once this transaction is durable.
    pub fn add(&self, ino: Ino, after: TxId, delay: Duration) {
        let mut waiting = self.waiting.lock();
        let times = waiting.thawed.get(&ino).map_or(0, |times| (*times).min(PATIENCE));
        let turn = Turn { at: Instant::now() + delay * (1 << times), after };
        waiting.files.insert(ino, turn);
        waiting.turns.push_back((ino, turn));
        self.rung.notify_one();
    }

    /// A sealed file was opened for writing.
    fn thawed(&self, ino: Ino) {
        let thawed = &mut self.waiting.lock().thawed;
        if thawed.len() >= REMEMBERED {
            thawed.clear();
        }
        *thawed.entry(ino).or_default() += 1;
    }

    /// Files in the queue or being sealed.
    pub fn len(&self) -> usize {
        let waiting = self.waiting.lock();
        waiting.files.len() + waiting.running
    }

    /// Waits for the next file whose turn has come; `None` when there is to be none any more.
    fn next(&self, horizon: impl Fn() -> TxId) -> Option<Ino> {
        let mut waiting = self.waiting.lock();
        while !waiting.stop {
            let Some((ino, turn)) = waiting.turns.front().copied() else {
                self.rung.wait(&mut waiting);
                continue;
            };
            if waiting.files.get(&ino) != Some(&turn) {
                waiting.turns.pop_front();
                continue;
            }
            let now = Instant::now();
            if turn.at > now {
                self.rung.wait_for(&mut waiting, turn.at - now);
            } else if turn.after > horizon() {
                // The next commit is at most an interval away.
                self.rung.wait_for(&mut waiting, QUIET / 10);
            } else {
                waiting.turns.pop_front();
                waiting.files.remove(&ino);
                waiting.running += 1;
                return Some(ino);
            }
        }
        None
    }

    /// What [`SealQueue::next`] gave is done with.
    fn done(&self) {
        self.waiting.lock().running -= 1;
    }

    fn stop(&self) {
        self.waiting.lock().stop = true;
        self.rung.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.waiting.lock().stop
    }

    fn drain(&self) -> Vec<Ino> {
        let mut waiting = self.waiting.lock();
        waiting.turns.clear();
        waiting.files.drain().map(|(ino, _)| ino).collect()
    }
}

/// The thread that seals; it ends when this is dropped.
pub(crate) struct Sealer {
    fs: Arc<Filesystem>,
    thread: Option<JoinHandle<()>>,
}

impl Sealer {
    /// Starts it. The files that an earlier mount left unsealed come first.
    pub fn start(fs: Arc<Filesystem>) -> io::Result<Self> {
        let served = fs.clone();
        let thread = thread::Builder::new().name("tensorfs-seal".into()).spawn(move || {
            stand_back();
            served.queue_unsealed();
            while let Some(ino) = served.sealing.next(|| served.pool.horizon()) {
                served.seal_queued(ino);
                served.sealing.done();
            }
        })?;
        Ok(Self { fs, thread: Some(thread) })
    }
}

impl Drop for Sealer {
    fn drop(&mut self) {
        self.fs.sealing.stop();
        if let Some(thread) = self.thread.take() {
            // It catches its own panics.
            let _ = thread.join();
        }
    }
}

/// Lets everybody else go first, to the processor and to the disk.
fn stand_back() {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;
    // SAFETY: both calls take integers and touch no memory; 0 is the calling thread. Where they fail, nothing changes.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE);
    }
}

impl Filesystem {
    fn queue_unsealed(&self) {
        if self.pool.is_read_only().is_some() {
            return;
        }
        let unsealed = |object: &tensorfs_layout::Object| {
            object.names() > 0 && !object.attributes.damaged && object.chain().is_some_and(|chain| !chain.is_sealed())
        };
        let mut files: Vec<Ino> =
            self.pool.view().objects().filter(|(_, object)| unsealed(object)).map(|(ino, _)| ino).collect();
        files.sort_unstable();
        let newest = self.pool.newest();
        for ino in files {
            self.sealing.add(ino, newest, QUIET);
        }
    }

    fn seal_queued(&self, ino: Ino) {
        let stopped = || self.sealing.is_stopped();
        match catch_unwind(AssertUnwindSafe(|| self.seal_file(ino, &stopped))) {
            Ok(Ok(Outcome::Later)) if !stopped() => self.sealing.add(ino, self.pool.newest(), AGAIN),
            Ok(Ok(_)) => {}
            Ok(Err(fault)) => log::log!(fault.level, "inode {ino}: not sealed: {fault}"),
            Err(_) => {
                self.counters.panics.add(1);
                log::error!("inode {ino}: sealing it panicked");
            }
        }
    }

    /// Seals what is left of the queue, as far as that does not take long.
    pub fn seal_the_rest(&self) {
        if self.sealing.len() == 0 || self.commit().is_err() {
            return;
        }
        let mut left = LAST_BYTES;
        for ino in self.sealing.drain() {
            let size = self.pool.view().object(ino).map_or(0, tensorfs_layout::Object::size);
            if let Some(rest) = left.checked_sub(size) {
                left = rest;
                self.seal_queued_at_end(ino);
            }
        }
    }

    fn seal_queued_at_end(&self, ino: Ino) {
        match catch_unwind(AssertUnwindSafe(|| self.seal_file(ino, &|| false))) {
            Ok(Err(fault)) => log::log!(fault.level, "inode {ino}: not sealed: {fault}"),
            Ok(Ok(_)) => {}
            Err(_) => log::error!("inode {ino}: sealing it panicked"),
        }
    }

    /// Reads a committed file that nothing can write, and stores what it is. `stopped` is asked now and then.
    pub fn seal_file(&self, ino: Ino, stopped: &dyn Fn() -> bool) -> Result<Outcome> {
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        let segment = match self.may_seal(&node, &state)? {
            Ok(segment) => segment,
            Err(outcome) => return Ok(outcome),
        };
        let begun = node.writes_begun.load(Ordering::Relaxed);
        let file = self.pool.segments().open(segment, libc::O_RDONLY | libc::O_NOATIME).host("opening a segment")?;
        let before = host::stat(&file).host("looking at a segment")?;
        state.sealing = true;
        drop(state);
        let go_on = || node.writes_begun.load(Ordering::Relaxed) == begun && !stopped();
        let file = File::from(file);
        let runs = catch_unwind(AssertUnwindSafe(|| examine(&file, before.size, self.pool.description_room(), &go_on)));
        drop(file);
        let mut state = node.lock();
        state.sealing = false;
        node.released.notify_all();
        let runs = runs.map_err(|_| Fault::warn(libc::EIO, "recognising it panicked"))?;
        let after = match self.may_seal(&node, &state)? {
            Ok(same) if same == segment => self.pool.segments().stat(segment).host("looking at a segment")?,
            Ok(_) => return Ok(Outcome::Later),
            Err(outcome) => return Ok(outcome),
        };
        let undisturbed = node.writes_begun.load(Ordering::Relaxed) == begun
            && (after.size, after.ctime) == (before.size, before.ctime);
        let Some(runs) = runs.host("reading a segment")?.filter(|_| undisturbed) else { return Ok(Outcome::Later) };
        if self.pool.seal(ino, segment, after.allocated, runs)? {
            self.counters.sealed.add(1);
            self.counters.sealed_bytes.add(before.size);
            return Ok(Outcome::Sealed);
        }
        Ok(Outcome::Unfit)
    }

    /// The segment of a file that can be sealed now, or why it cannot.
    fn may_seal(&self, node: &Node, state: &State) -> Result<std::result::Result<SegmentId, Outcome>> {
        self.check_writable()?;
        let (segment, size) = {
            let view = self.pool.view();
            let Some(object) = view.object(node.ino).filter(|object| object.names() > 0) else {
                return Ok(Err(Outcome::Unfit));
            };
            let Some(chain) = object.chain() else { return Ok(Err(Outcome::Unfit)) };
            match object.attributes.segment {
                _ if object.attributes.damaged => return Ok(Err(Outcome::Unfit)),
                _ if chain.is_sealed() => return Ok(Err(Outcome::Already)),
                None => return Ok(Err(Outcome::Already)),
                Some(segment) => (segment, object.size()),
            }
        };
        if state.writing.is_some() || state.replace.is_some() {
            return Ok(Err(Outcome::InUse));
        }
        if state.opening > 0 || state.sealing {
            return Ok(Err(Outcome::Later));
        }
        if self.pool.segments().failed(segment) {
            return Ok(Err(Outcome::Unfit));
        }
        if !self.pool.segments().quiescent(segment) {
            return Ok(Err(Outcome::Later));
        }
        let host = self.pool.segments().stat(segment).host("looking at a segment")?;
        if host.size != size {
            return Err(Fault::warn(libc::EIO, format!("its segment has {} bytes, and the file {size}", host.size)));
        }
        Ok(Ok(segment))
    }

    /// Has a seal of the file that is under way given up, and waits until its descriptor is closed: it would pass for a
    /// mapping.
    pub fn interrupt_seal(&self, node: &NodeRef, state: &mut MutexGuard<'_, State>) {
        node.writes_begun.fetch_add(1, Ordering::Relaxed);
        while state.sealing {
            node.released.wait(state);
        }
    }

    /// True if opening the file for writing must wait for a commit.
    pub fn is_frozen(&self, ino: Ino) -> bool {
        self.pool.view().object(ino).and_then(|object| object.chain()).is_some_and(|chain| chain.has_seals())
    }

    /// Voids the seals of a file, durably, before its segment can be written.
    pub fn thaw(&self, ino: Ino, segment: SegmentId) -> Result<()> {
        if !self.is_frozen(ino) {
            return Ok(());
        }
        let thawed = self.edit(|edit| {
            let frozen = edit.object(ino).filter(|object| {
                object.attributes.segment == Some(segment) && object.chain().is_some_and(|chain| chain.has_seals())
            });
            let Some(len) = frozen.map(|object| object.size()) else { return Ok(false) };
            edit.store_from_reserve(Transaction::new(0).with(Record::Thaw { ino, segment, offset: 0, len }))?;
            Ok(true)
        })?;
        if thawed {
            self.counters.thawed.add(1);
            self.sealing.thawed(ino);
            self.commit()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_queued_again_waits_from_then_on() {
        let queue = SealQueue::default();
        queue.add(Ino(5), TxId(1), Duration::ZERO);
        queue.add(Ino(6), TxId(1), Duration::ZERO);
        queue.add(Ino(5), TxId(2), Duration::ZERO);
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.next(|| TxId(9)), Some(Ino(6)));
        assert_eq!(queue.len(), 2, "one waits, one is being sealed");
        queue.done();
        assert_eq!(queue.next(|| TxId(9)), Some(Ino(5)));
        queue.done();
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn no_file_is_sealed_before_it_is_committed() {
        let queue = SealQueue::default();
        queue.add(Ino(5), TxId(7), Duration::ZERO);
        let asked = std::cell::Cell::new(0);
        let horizon = || TxId(asked.replace(asked.get() + 1) + 5);
        assert_eq!(queue.next(horizon), Some(Ino(5)));
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn a_file_that_is_written_again_and_again_is_left_alone_longer() {
        let queue = SealQueue::default();
        let wait = |queue: &SealQueue| {
            queue.add(Ino(5), TxId(1), QUIET);
            queue.waiting.lock().files[&Ino(5)].at - Instant::now()
        };
        assert!(wait(&queue) <= QUIET);
        queue.thawed(Ino(5));
        assert!(wait(&queue) > QUIET);
        (0..100).for_each(|_| queue.thawed(Ino(5)));
        assert!(wait(&queue) <= QUIET * (1 << PATIENCE));
    }

    #[test]
    fn nothing_comes_out_of_a_queue_that_is_stopped() {
        let queue = SealQueue::default();
        queue.add(Ino(5), TxId(1), Duration::ZERO);
        queue.stop();
        assert_eq!(queue.next(|| TxId(9)), None);
        assert_eq!(queue.drain(), [Ino(5)]);
    }
}

//! Sealing: a file that nothing can write any more is read once, behind everybody's back, for its checksums and tensors.
//!
//! A file comes into the queue when its last writer has gone, and is sealed when that is committed and [`QUIET`] has
//! passed, so that a file that is opened again and again is left alone; one that was written again although it was sealed
//! is left alone twice as long each time. Opening a file for writing has a seal that is
//! under way given up; the file is sealed when it is closed again. A sealed file is thawed, durably, before it can be
//! written (rule 5).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorfs_layout::{FileChain, Ino, Record, SealedRun, SegmentId, Transaction, TxId, examine};

use crate::ask::Sealing;
use crate::error::{Fault, Host, Result};
use crate::filesystem::Filesystem;
use crate::host;
use crate::nodes::{Node, NodeRef, State};
use crate::scrub::bad_runs;

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
            while let Some((ino, again)) = served.sealing.next(|| served.pool.horizon()) {
                served.seal_queued(ino, again);
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
pub(crate) fn stand_back() {
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

    fn seal_queued(&self, ino: Ino, again: bool) {
        let stopped = || self.sealing.is_stopped();
        match catch_unwind(AssertUnwindSafe(|| self.seal_file(ino, again, &stopped))) {
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
        match catch_unwind(AssertUnwindSafe(|| self.seal_file(ino, false, &|| false))) {
            Ok(Err(fault)) => log::log!(fault.level, "inode {ino}: not sealed: {fault}"),
            Ok(Ok(_)) => {}
            Err(_) => log::error!("inode {ino}: sealing it panicked"),
        }
    }

    /// Reads a committed file that nothing can write, and stores what it is. `stopped` is asked now and then. A file that is
    /// sealed already is sealed `again` only if its bytes are those that were sealed, and if there is something new to
    /// say of them.
    pub fn seal_file(&self, ino: Ino, again: bool, stopped: &dyn Fn() -> bool) -> Result<Outcome> {
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        let segment = match self.may_seal(&node, &state, again)? {
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
        let runs = catch_unwind(AssertUnwindSafe(|| {
            let bad = bad_runs(&file, &self.sealed_runs(ino), &go_on);
            if !bad.is_empty() {
                return Ok(Err(bad));
            }
            examine(&file, before.size, self.pool.description_room(), &go_on).map(Ok)
        }));
        let mut state = node.lock();
        // Closed before the lock is let go of: whoever waited would take it for a program that has the file mapped.
        let file = file;
        state.sealing = false;
        node.released.notify_all();
        let runs = runs.map_err(|_| Fault::warn(libc::EIO, "recognising it panicked"))?;
        let after = match self.may_seal(&node, &state, again)? {
            Ok(same) if same == segment => self.pool.segments().stat(segment).host("looking at a segment")?,
            Ok(_) => return Ok(Outcome::Later),
            Err(outcome) => return Ok(outcome),
        };
        let undisturbed = node.writes_begun.load(Ordering::Relaxed) == begun
            && (after.size, after.ctime) == (before.size, before.ctime);
        if !undisturbed || stopped() {
            return Ok(Outcome::Later);
        }
        let runs = match runs.host("reading a segment")? {
            Ok(Some(runs)) => runs,
            Ok(None) => return Ok(Outcome::Later),
            Err(bad) => {
                self.settle_damage(ino, &file, &bad);
                return Ok(Outcome::Unfit);
            }
        };
        drop(file);
        if again && self.says_no_more(ino, &runs) {
            return Ok(Outcome::Already);
        }
        if self.pool.seal(ino, segment, after.allocated, runs)? {
            self.counters.sealed.add(1);
            self.counters.sealed_bytes.add(before.size);
            return Ok(Outcome::Sealed);
        }
        Ok(Outcome::Unfit)
    }

    /// The seals that a file has.
    pub fn sealed_runs(&self, ino: Ino) -> Vec<(u64, u64, u32)> {
        let view = self.pool.view();
        let runs = view.object(ino).and_then(|object| object.chain()).map_or(&[][..], |chain| chain.runs());
        runs.iter().filter_map(|run| Some((run.offset, run.len, run.seal.as_ref()?.crc))).collect()
    }

    /// True if a file has these seals.
    fn says_no_more(&self, ino: Ino, runs: &[SealedRun]) -> bool {
        let view = self.pool.view();
        let Some(chain) = view.object(ino).and_then(|object| object.chain()) else { return false };
        chain
            .runs()
            .iter()
            .map(|run| (run.offset, run.len, run.seal.as_ref()))
            .eq(runs.iter().map(|run| (run.offset, run.len, Some(&run.seal))))
    }

    /// Has a file sealed soon; or, if that was begun before, says what came of it.
    pub fn ask_for_seal(&self, ino: Ino, begin: bool, again: bool) -> Result<Sealing> {
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        if state.writers == 0 && state.writing.is_some() {
            // What kept it from being settled when its last writer closed it may be over.
            self.settle(&node, &mut state, 0);
        }
        let waits = !begin && self.sealing.is_under_way(ino);
        Ok(match self.may_seal(&node, &state, again && begin)? {
            Ok(_) if begin => {
                self.sealing.add_first(ino, self.pool.newest(), again);
                // The commit that it waits for need not be waited for.
                self.bell.commit();
                Sealing::Waiting
            }
            Ok(_) | Err(Outcome::Already) if waits => Sealing::Waiting,
            Err(Outcome::Later) if state.sealing || state.opening > 0 => Sealing::Waiting,
            _ if self.is_known_damaged(ino) => Sealing::Unfit("its bytes are not those that were sealed".into()),
            Err(Outcome::Already | Outcome::Sealed) => Sealing::Sealed,
            Err(Outcome::InUse) if state.writers > 0 => Sealing::InUse("it is open for writing".into()),
            Err(Outcome::InUse | Outcome::Later) => {
                Sealing::InUse("it is mapped for writing, or open since before".into())
            }
            Err(Outcome::Unfit) => Sealing::Unfit("it is no file with a name, or is damaged".into()),
            Ok(_) if self.sealing.has(ino) => Sealing::InUse("it was written meanwhile".into()),
            Ok(_) => Sealing::Unfit("it could not be sealed; the server's log says why".into()),
        })
    }

    /// The segment of a file that can be sealed now, or why it cannot. A sealed one can be sealed `again`.
    fn may_seal(&self, node: &Node, state: &State, again: bool) -> Result<std::result::Result<SegmentId, Outcome>> {
        self.check_writable()?;
        let (segment, size) = {
            let view = self.pool.view();
            let Some(object) = view.object(node.ino).filter(|object| object.names() > 0) else {
                return Ok(Err(Outcome::Unfit));
            };
            let Some(chain) = object.chain() else { return Ok(Err(Outcome::Unfit)) };
            match object.attributes.segment {
                _ if object.attributes.damaged => return Ok(Err(Outcome::Unfit)),
                _ if chain.is_sealed() && !(again && chain.has_seals()) => return Ok(Err(Outcome::Already)),
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
        if self.pool.segments().failed(segment) || self.pool.segments().gone(segment).is_some() {
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

    /// True if a commit has to come before the file can be written; `unheard` as for [`Filesystem::thaw`].
    pub fn is_frozen(&self, ino: Ino, unheard: bool) -> bool {
        let frozen = |chain: &FileChain| chain.has_seals() || (unheard && chain.has_value());
        self.pool.view().object(ino).and_then(|object| object.chain()).is_some_and(frozen)
    }

    /// Voids the seals of a file, durably, before its segment can be written; and what the log holds of its bytes, if `unheard`:
    /// they can be changed, or made durable, without our hearing of it.
    pub fn thaw(&self, ino: Ino, segment: SegmentId, unheard: bool) -> Result<()> {
        if !self.is_frozen(ino, unheard) {
            return Ok(());
        }
        let thawed = self.edit(|edit| {
            let own = edit.object(ino).filter(|object| object.attributes.segment == Some(segment));
            let Some(object) = own else { return Ok(None) };
            let sealed = object.chain().is_some_and(|chain| chain.has_seals());
            if !(sealed || unheard && object.has_value()) {
                return Ok(None);
            }
            let len = object.size();
            edit.store_from_reserve(Transaction::new(0).with(Record::Thaw { ino, segment, offset: 0, len }))?;
            Ok(Some(sealed))
        })?;
        if thawed == Some(true) {
            self.counters.thawed.add(1);
            self.sealing.thawed(ino);
        }
        if thawed.is_some() { self.commit() } else { Ok(()) }
    }
}

/// Seals files of a pool that is not mounted, those whose path from the root is `wanted`, and closes it. `each` hears of
/// every one: its path, and what came of it. It says whether to go on.
pub fn seal_pool(
    pool: tensorfs_layout::Pool,
    again: bool,
    wanted: &dyn Fn(&[u8]) -> bool,
    each: &mut dyn FnMut(&[u8], Sealing) -> bool,
) -> std::result::Result<(), crate::error::Error> {
    let options = crate::options::Options::default();
    let fs = Filesystem::new(Arc::new(pool), options, crate::options::Durability::Fsync, 1024);
    let files = {
        let view = fs.pool.view();
        let mut files = view.below(tensorfs_layout::ROOT);
        files.retain(|(path, ino)| view.object(*ino).is_some_and(tensorfs_layout::Object::is_file) && wanted(path));
        files
    };
    for (path, ino) in files {
        let result = match fs.seal_file(ino, again, &|| false) {
            Ok(Outcome::Sealed | Outcome::Already) => Sealing::Sealed,
            Ok(Outcome::InUse | Outcome::Later) => {
                Sealing::InUse("a program of an earlier mount can still write it".into())
            }
            Ok(Outcome::Unfit) if fs.is_known_damaged(ino) => {
                Sealing::Unfit("its bytes are not those that were sealed".into())
            }
            Ok(Outcome::Unfit) => Sealing::Unfit("it is marked as damaged".into()),
            Err(fault) => Sealing::Unfit(fault.to_string()),
        };
        if !each(&path, result) {
            break;
        }
    }
    Ok(fs.pool.close()?)
}

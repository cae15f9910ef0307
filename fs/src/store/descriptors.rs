//! Descriptors of segments that the server reads and writes itself: opened on demand, the coldest closed.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use log::Level;
use parking_lot::Mutex;
use tensorfs_layout::SegmentId;
use tensorfs_layout::pool::Pool;

use crate::caller::Caller;
use crate::error::{Fault, Host, Result};

use crate::shares::{Share, Shares};

/// At most this many are kept, and never more than a sixteenth of what the process may open.
const MOST: usize = 1024;
/// What the server needs besides: the log, connections, what is opened for a moment.
const OTHERS: usize = 512;

/// A bounded cache of descriptors. Closing one loses no error of a sync: those are reported to the descriptor that
/// `begin_write` holds.
pub(crate) struct Descriptors {
    cache: Mutex<Cache>,
    bound: usize,
    for_syncing: usize,
    /// Those of files that are open to write, by who has opened them.
    shares: Shares,
}

#[derive(Default)]
struct Cache {
    open: HashMap<(SegmentId, bool), Slot>,
    clock: u64,
}

struct Slot {
    fd: Arc<OwnedFd>,
    used: u64,
}

impl Descriptors {
    /// A cache for a process that may have `limit` descriptors.
    pub fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let bound = (limit / 16).clamp(16, MOST);
        let for_syncing = limit.saturating_sub(bound + OTHERS).max(limit / 2);
        Self { cache: Mutex::default(), bound, for_syncing, shares: Shares::new(for_syncing) }
    }

    /// How many descriptors are left for syncing.
    pub fn for_syncing(&self) -> usize {
        self.for_syncing
    }

    /// One of them for who opens a file to write it; none where it is not counted who does.
    pub fn share(&self, caller: Caller) -> Result<Option<Share>> {
        if caller.is_trusted() {
            return Ok(None);
        }
        let full =
            || Fault { level: Level::Debug, ..Fault::warn(libc::ENFILE, "a user has too many files open to write") };
        self.shares.take(caller.uid).map(Some).ok_or_else(full)
    }

    /// A descriptor to read a segment, or with `write` to read and write it.
    pub fn get(&self, pool: &Pool, segment: SegmentId, write: bool) -> Result<Arc<OwnedFd>> {
        {
            let mut cache = self.cache.lock();
            cache.clock += 1;
            let now = cache.clock;
            if let Some(slot) = cache.open.get_mut(&(segment, write)) {
                slot.used = now;
                return Ok(slot.fd.clone());
            }
        }
        let flags = if write { libc::O_RDWR } else { libc::O_RDONLY };
        let fd = Arc::new(pool.segments().open(segment, flags).host("opening a segment")?);
        let mut cache = self.cache.lock();
        let used = cache.clock;
        cache.open.insert((segment, write), Slot { fd: fd.clone(), used });
        if cache.open.len() > self.bound {
            cache.evict(self.bound / 8 + 1);
        }
        Ok(fd)
    }

    /// Closes what is open of a segment: a lease on it is wanted, or nobody uses it any more.
    pub fn forget(&self, segment: SegmentId) {
        let mut cache = self.cache.lock();
        let slots = [cache.open.remove(&(segment, false)), cache.open.remove(&(segment, true))];
        drop(cache);
        drop(slots);
    }
}

impl Cache {
    fn evict(&mut self, count: usize) {
        let mut by_use: Vec<_> = self.open.iter().map(|(key, slot)| (slot.used, *key)).collect();
        by_use.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in by_use.into_iter().take(count) {
            self.open.remove(&key);
        }
    }
}

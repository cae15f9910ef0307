//! How much of the pool's limit is used, and the limit itself.
//!
//! What is recorded, the pool knows; what open files have grown by since is estimated from above by the bytes that
//! went through the server. Only near the limit is each file asked, and then writes pass one at a time.

use std::sync::atomic::Ordering::Relaxed;

use nix::sys::statvfs::statvfs;
use parking_lot::MutexGuard;

use crate::error::{Host, Result};

use super::{Store, host};

/// The unit in which space is counted and shown.
pub(crate) const BLOCK: u64 = 4096;

/// "Near" is this far from the limit, or a sixteenth of it if that is less.
const NEAR: u64 = 64 << 20;

/// The host is tight if it has less than this left, or less than a 64th of all it has if that is less.
const TIGHT: u64 = 256 << 20;

/// So often it is counted anew because something was recorded meanwhile.
const TRIES: u32 = 16;

/// What `statfs` shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub total: u64,
    pub free: u64,
    pub available: u64,
    pub objects: u64,
    pub free_objects: u64,
}

impl Store {
    /// Bytes of the host that the pool uses: its log and its segments.
    pub fn used(&self) -> u64 {
        let usage = self.usage();
        usage.log_bytes + usage.segment_bytes
    }

    /// Counts what is used, open files included.
    pub fn recount(&self) -> u64 {
        let files = self.writers.all();
        let mut tries = 0;
        let (mut used, view) = loop {
            let newest = self.pool.newest();
            let used = self.used();
            let view = self.pool.view();
            tries += 1;
            // What was recorded in between would be missing in the one, and no longer be new in the other.
            if self.pool.newest() == newest || tries == TRIES {
                break (used, view);
            }
        };
        for file in files {
            let Ok(host) = host::stat(&*file.fd) else { continue };
            // A segment that is still to replace the file's own comes on top of it.
            let object = view.object(file.ino).filter(|object| object.attributes.segment == Some(file.segment));
            used = (used + host.allocated).saturating_sub(object.map_or(0, |object| object.allocated()));
        }
        drop(view);
        self.limit.estimate.store(used, Relaxed);
        used
    }

    fn near(limit: u64) -> u64 {
        limit - NEAR.min(limit / 16)
    }

    /// True if the next large write might meet the limit. Asked at every open for writing, so that what the kernel has
    /// written past the server is counted too; with many open files that takes longer, and is done less often.
    pub fn nearly_full(&self) -> bool {
        let Some(limit) = self.limit.get() else { return false };
        let every = 1 + self.writers.len() as u64 / 64;
        let asked = self.limit.asked.fetch_add(1, Relaxed);
        let estimate = self.limit.estimate.load(Relaxed);
        if estimate >= Self::near(limit) || asked.is_multiple_of(every) {
            return self.recount() >= Self::near(limit);
        }
        false
    }

    /// Sets or lifts the limit.
    pub fn resize(&self, limit: Option<u64>) -> tensorfs_layout::Result<()> {
        // Writers near the limit wait meanwhile.
        let _gate = self.limit.gate.lock();
        self.pool.resize(limit, self.recount(), self.removed.bytes())?;
        self.limit.limit.store(limit.unwrap_or(0), Relaxed);
        Ok(())
    }

    /// True if nothing more fits.
    pub fn is_full(&self) -> bool {
        self.limit.get().is_some_and(|limit| self.limit.estimate.load(Relaxed) >= limit && self.recount() >= limit)
    }

    /// True if the kernel has written more than fits.
    pub fn is_over(&self) -> bool {
        self.limit.get().is_some_and(|limit| self.recount() > limit)
    }

    /// How much of `len` bytes at `offset` may be written. Near the limit the guard keeps other writers waiting until
    /// the write is done.
    pub fn admit(
        &self,
        fd: impl std::os::fd::AsFd,
        offset: u64,
        len: u64,
    ) -> Result<(u64, Option<MutexGuard<'_, ()>>)> {
        let Some(limit) = self.limit.get() else { return Ok((len, None)) };
        // Whatever a client asks for, the estimate does not run over.
        let raised = |estimate: u64| estimate.saturating_add(len).saturating_add(2 * BLOCK);
        let before = self.limit.estimate.fetch_update(Relaxed, Relaxed, |estimate| Some(raised(estimate)));
        if before.is_ok_and(|before| raised(before) <= Self::near(limit)) {
            return Ok((len, None));
        }
        let gate = self.limit.gate.lock();
        let free = limit.saturating_sub(self.recount()) / BLOCK * BLOCK;
        let missing = host::unallocated(&fd, offset, len, BLOCK).host("measuring a segment")?;
        let mut fits = len;
        if missing > free {
            // The longest front part whose holes are not larger than what is free.
            let (mut low, mut high) = (0, len);
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if host::unallocated(&fd, offset, middle, BLOCK).host("measuring a segment")? <= free {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            fits = low;
        }
        Ok((fits, Some(gate)))
    }

    /// True if deleted files hold space on the host that somebody may be waiting for: the host is short of it, or was
    /// so until a part of what they hold came back to it. Whoever deletes many files to make room waits for them all.
    pub fn is_tight(&self) -> bool {
        if !self.pool.has_freed() && self.removed.is_empty() {
            self.has_given_back();
            return false;
        }
        self.was_tight() || (self.pool.has_freed() && self.host_is_tight())
    }

    /// True if the host was short of space, and has not got back since what deleted files hold.
    pub fn was_tight(&self) -> bool {
        self.limit.was_tight.load(Relaxed)
    }

    /// The host has everything back that deleted files held.
    pub fn has_given_back(&self) {
        self.limit.was_tight.store(false, Relaxed);
    }

    /// True if the host is short of space.
    pub fn host_is_tight(&self) -> bool {
        let tight = || {
            let host = statvfs(self.pool.path()).ok()?;
            let unit = host.fragment_size();
            Some(host.blocks_available() * unit < TIGHT.min(host.blocks() * unit / 64))
        };
        let tight = tight().unwrap_or(false);
        if tight {
            self.limit.was_tight.store(true, Relaxed);
        }
        tight
    }

    /// True if the pool has a limit.
    pub fn is_limited(&self) -> bool {
        self.limit.get().is_some()
    }

    /// True if what is used and what only the kernel still knows of come near the limit together.
    pub fn holds_too_much(&self) -> bool {
        let usage = self.pool.usage();
        self.limit.get().is_some_and(|limit| usage.log_bytes + usage.segment_bytes >= Self::near(limit))
    }

    /// True if whoever deletes a file may be about to use its space.
    pub fn wants_space(&self) -> bool {
        self.host_is_tight() || self.nearly_full() || self.holds_too_much()
    }

    /// The space of the pool, in bytes and objects.
    pub fn space(&self) -> Result<Space> {
        let usage = self.usage();
        // What all tiers have together: each filesystem of the host counts once.
        let (mut host_total, mut host_free, mut host_available, mut free_objects) = (0, 0, 0, 0);
        for directory in self.tiers.hosts() {
            let host = statvfs(directory).host("asking for the host's space")?;
            let unit = host.fragment_size();
            host_total += host.blocks() * unit;
            host_free += host.blocks_free() * unit;
            host_available += host.blocks_available() * unit;
            free_objects += host.files_available();
        }
        let (total, free, available) = match self.limit.get() {
            Some(limit) => {
                let left = limit.saturating_sub(self.recount());
                (limit, left.min(host_free), left.min(host_available))
            }
            None => (host_total, host_free, host_available),
        };
        Ok(Space { total, free, available, objects: usage.objects + free_objects, free_objects })
    }
}

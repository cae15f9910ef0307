//! How much of the pool's limit is used, and the limit itself.
//!
//! In a pool with a limit every write is asked for here, also where the kernel could move the bytes itself. What is
//! recorded, the pool knows; what open files have grown by since is estimated from above by the bytes that went through
//! the server. Whoever has written a file asks the host what it takes then. Near the limit all that is added up, and
//! writes pass one at a time; but nothing is asked of the host meanwhile, as an answer for one file may be late, and
//! that is nobody else's business: until it comes, that file counts with all that it may have got.
//!
//! A mapping fills holes without asking, so a file that can be mapped for writing counts with its holes.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use tensorfs_layout::{Error, Ino};

use crate::error::{Host, Result};

use super::asking::Which;
use super::host::HostStat;
use super::limit::{BLOCK, UnderWay};
use super::writers::Written;
use super::{Store, host};

/// "Near" is this far from the limit, or a sixteenth of it if that is less.
const NEAR: u64 = 64 << 20;

/// The host is tight if it has less than this left, or less than a 64th of all it has if that is less.
const TIGHT: u64 = 256 << 20;

/// So long who comes near the limit waits for writes that began before, and for what the host says of files.
const OTHERS: Duration = Duration::from_millis(20);

/// So long who sets a limit waits for the host.
const TO_SET: Duration = Duration::from_secs(10);

/// How often he looks whether they are done.
const AGAIN: Duration = Duration::from_micros(100);

/// What `statfs` shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Space {
    /// What the pool can hold: its limit, as far as the host has so much at all.
    pub capacity: u64,
    /// What it uses and what is free, as `df` wants it.
    pub total: u64,
    pub free: u64,
    pub available: u64,
    pub objects: u64,
    pub free_objects: u64,
}

impl Store {
    /// Counts the bytes of the host that the pool uses: its log, its segments, those of open files as they are now, and
    /// what is in quarantine. Of files that are written without our hearing of it the host is asked, and those that it
    /// is late with count as they did.
    pub fn recount(&self) -> u64 {
        self.ask_host(Which::Unknown);
        self.limit.count(|| self.count())
    }

    /// As [`Store::recount`], for who only wants to see it: others may have removed some of what is in quarantine. If
    /// there is no limit and many files are open, it may be how much it was a moment ago.
    pub fn used(&self) -> u64 {
        self.pool.quarantine().recount();
        if self.is_limited() {
            return self.recount();
        }
        self.asking.ask_to_see(&self.writers, &self.pool, OTHERS);
        self.limit.count(|| self.count())
    }

    /// As [`Store::recount`], asking the host for all open files: what they take may change without their being
    /// written, when the host writes them out.
    pub fn recount_all(&self) -> u64 {
        self.ask_host(Which::All);
        self.limit.count(|| self.count())
    }

    fn ask_host(&self, which: Which) {
        self.asking.ask(&self.writers, &self.pool, which, OTHERS);
    }

    /// What a file takes of the host may be another than it was: the caller has changed it, and asks.
    pub fn changed(&self, ino: Ino) {
        self.writers.written(ino, 0);
        self.measure(ino);
    }

    fn measure(&self, ino: Ino) {
        if self.is_limited() {
            self.asking.measure(&self.writers, ino);
        }
    }

    /// A file is on the list of writers from now on.
    pub fn is_written(&self, written: Written) {
        let ino = written.ino;
        self.writers.insert(written);
        self.removed.is_written(ino);
        self.measure(ino);
    }

    /// A program of an earlier mount has a file mapped for writing, whether there is room for its holes or not.
    pub fn map_for_good(&self, ino: Ino) {
        if self.is_limited()
            && let Some(written) = self.writers.get(ino)
            && let Ok(host) = host::stat(&*written.fd)
        {
            self.look_behind(&written, &host);
            let written = self.writers.get(ino).unwrap_or(written);
            self.map(ino, written.extent_if_mapped(&host).saturating_sub(written.extent(&host)));
        } else {
            self.writers.map(ino, 0);
        }
        self.measure(ino);
    }

    /// The file can be mapped for writing from now on. What that may fill is in the estimate at once.
    fn map(&self, ino: Ino, more: u64) {
        let filled = self.limit.begin(more);
        self.writers.map(ino, more);
        drop(filled);
    }

    /// What a file that is about to be mapped has behind its end, since before it was opened, stays there as its holes
    /// are filled.
    fn look_behind(&self, written: &Written, host: &HostStat) {
        let (bytes, reach) = host::behind(&*written.fd, host.size.next_multiple_of(BLOCK), host.allocated);
        if bytes > 0 {
            self.writers.has_behind(written.ino, bytes, reach);
        }
    }

    /// Adds up what is known.
    fn count(&self) -> u64 {
        // At the same time: what was recorded in between would be missing in the one, and no longer be new in the
        // other.
        let (recorded, known) = self.pool.usage_and(|view| {
            self.writers.known(|file| {
                // A segment that is still to replace the file's own comes on top of it.
                let object = view.object(file.ino).filter(|object| object.attributes.segment == Some(file.segment));
                object.map_or(0, |object| object.allocated())
            })
        });
        let recorded = self.removed.discount(recorded);
        let besides = self.pool.kept_bytes() + self.removed.left();
        let used = (recorded.bytes() + known.extents).saturating_sub(known.recorded) + besides;
        self.pool.claim(used.saturating_sub(recorded.log_bytes + recorded.segment_bytes));
        used
    }

    fn near(limit: u64) -> u64 {
        limit - NEAR.min(limit / 16)
    }

    /// True if the next large write might meet the limit.
    pub fn nearly_full(&self) -> bool {
        let near = |limit| self.limit.estimate() >= Self::near(limit) && self.recount() >= Self::near(limit);
        self.limit.get().is_some_and(near)
    }

    /// Sets or lifts the limit. Until that is durable the lower one holds.
    pub fn resize(&self, limit: Option<u64>) -> tensorfs_layout::Result<()> {
        let _setting = self.limit.setting.lock();
        // Whoever sets a limit can wait; what the host has not told counts as it did.
        self.asking.ask(&self.writers, &self.pool, Which::All, TO_SET);
        let before = self.limit.limit.load(SeqCst);
        // The log may get longer meanwhile, and is made shorter if it has to be.
        let log = self.pool.usage().log_bytes;
        let counted = {
            let _gate = self.limit.gate.lock();
            let meanwhile = limit.map_or(before, |limit| if before == 0 { limit } else { limit.min(before) });
            self.limit.limit.store(meanwhile, SeqCst);
            let others = self.limit.under_way();
            self.limit.count(|| self.count()).saturating_add(others)
        };
        let resized = match self.writers.unasked() {
            // They have their files for good, and would go on past it.
            unasked if before == 0 && limit.is_some() && unasked > 0 => Err(Error::Invalid {
                pool: self.pool.path().to_owned(),
                what: format!(
                    "open or mapped for writing since there was no limit: {unasked} files, which it would not stop; \
                     try again when they are closed"
                ),
            }),
            _ => self.pool.resize(limit, counted.saturating_sub(log), self.removed.recorded()),
        };
        self.limit.limit.store(if resized.is_ok() { limit.unwrap_or(0) } else { before }, SeqCst);
        resized
    }

    /// True if writes to a file that is being opened are to be asked for one by one. If not, it is known that it is
    /// written unasked, whatever limit is set meanwhile.
    pub fn asks_of_writes(&self, ino: Ino) -> bool {
        if self.is_limited() {
            return true;
        }
        self.writers.let_write_unasked(ino);
        self.is_limited()
    }

    /// Sees to it that there is room for the holes of a file that is about to be mapped for writing, which fills them
    /// unasked. False if there is none.
    pub fn reserve_holes(&self, ino: Ino) -> Result<bool> {
        if !self.is_limited() {
            self.writers.map(ino, 0);
            return Ok(true);
        }
        let Some(written) = self.writers.get(ino) else { return Ok(true) };
        let host = host::stat(&*written.fd).host("looking at a segment")?;
        if !written.is_mapped() {
            self.look_behind(&written, &host);
        }
        let Some(written) = self.writers.get(ino) else { return Ok(true) };
        let more = written.extent_if_mapped(&host).saturating_sub(written.extent(&host));
        if more == 0 {
            self.writers.map(ino, 0);
            self.measure(ino);
            return Ok(true);
        }
        let fits = self.beside_others(|free, _| {
            let fits = more <= free;
            if fits {
                self.map(ino, more);
            }
            fits.then_some(())
        });
        self.measure(ino);
        Ok(fits.is_some())
    }

    /// True if there must be room for the holes of a file, as it can be mapped for writing.
    pub fn keeps_room_for_holes(&self, ino: Ino) -> bool {
        self.writers.get(ino).is_some_and(|written| written.is_mapped())
    }

    /// Leave to allocate a range of a file, whose size stays: all of it, or nothing.
    pub fn admit_kept(&self, ino: Ino, fd: impl AsFd, (offset, len): (u64, u64)) -> Result<Admitted<'_>> {
        if !self.is_limited() || !self.keeps_room_for_holes(ino) {
            return self.admit(ino, fd, offset, len);
        }
        // As it can be mapped for writing, everything below its end counts already.
        let end = host::stat(&fd).host("looking at a segment")?.size.next_multiple_of(BLOCK);
        let from = offset.max(end);
        let more = offset.saturating_add(len).saturating_sub(from);
        let begin = |bytes: u64| self.limit.begin(self.limit.get().map_or(bytes, |limit| bytes.min(limit)));
        let under_way = begin(more);
        if self.limit.get().is_none_or(|limit| self.limit.estimate() <= Self::near(limit)) {
            return Ok(self.admitted(ino, len, under_way));
        }
        drop(under_way);
        let holes = if more > 0 { host::unallocated(&fd, from, more, BLOCK).host("measuring a segment")? } else { 0 };
        let under_way = self.beside_others(|free, _| (holes <= free).then(|| begin(holes)));
        Ok(match under_way {
            Some(under_way) => self.admitted(ino, len, under_way),
            None => self.admitted(ino, 0, self.limit.begin(0)),
        })
    }

    /// How much of `len` bytes at `offset` of a file may be written, until what is returned is let go of.
    pub fn admit(&self, ino: Ino, fd: impl AsFd, offset: u64, len: u64) -> Result<Admitted<'_>> {
        if !self.is_limited() {
            return Ok(Admitted { fits: len, under_way: None });
        }
        // Of a file that can be mapped for writing, everything below its end counts already.
        let mapped = match self.writers.get(ino).filter(Written::is_mapped) {
            Some(written) => Some((written, host::stat(&fd).host("looking at a segment")?)),
            None => None,
        };
        let gap = mapped.as_ref().map_or(0, |(_, host)| offset.saturating_sub(host.size.next_multiple_of(BLOCK)));
        // Whatever a client asks for, no number runs over.
        let begin = |bytes: u64| {
            let most = gap.saturating_add(bytes).saturating_add(2 * BLOCK);
            self.limit.begin(self.limit.get().map_or(most, |limit| most.min(limit.saturating_mul(2))))
        };
        let under_way = begin(len);
        if self.limit.get().is_none_or(|limit| self.limit.estimate() <= Self::near(limit)) {
            return Ok(self.admitted(ino, len, under_way));
        }
        drop(under_way);
        // What the host has to say of this file it is asked before others have to wait.
        let holes = match &mapped {
            Some(_) => 0,
            None => host::unallocated(&fd, offset, len, BLOCK).host("measuring a segment")?,
        };
        // Of a part, which of it has room is to be found out; so long nobody else gets that.
        let (fits, part, under_way) = self
            .beside_others(|free, last| {
                let free = free / BLOCK * BLOCK;
                let fits = match &mapped {
                    Some((written, host)) => written.end_within(host, free).saturating_sub(offset).min(len),
                    None if holes <= free => len,
                    None if last => return Some((0, Some(free), self.limit.begin(free))),
                    None => return None,
                };
                // Who comes next counts it, done or not.
                (fits == len || last).then(|| (fits, None, begin(fits)))
            })
            .unwrap_or_else(|| (0, None, self.limit.begin(0)));
        let Some(free) = part else { return Ok(self.admitted(ino, fits, under_way)) };
        let fits = front(fd, offset, len, free)?;
        let kept = begin(fits);
        drop(under_way);
        Ok(self.admitted(ino, fits, kept))
    }

    fn admitted<'a>(&'a self, ino: Ino, fits: u64, write: UnderWay<'a>) -> Admitted<'a> {
        Admitted { fits, under_way: Some((self, ino, write)) }
    }

    /// Decides with what is free beside what writes that go on may use yet. Those may not be done, and are so soon: if
    /// the answer is none, it is asked again for a while, and then for the last time.
    fn beside_others<T>(&self, decide: impl Fn(u64, bool) -> Option<T>) -> Option<T> {
        let decide = |last: bool| {
            let _gate = self.limit.gate.lock();
            let others = self.limit.under_way();
            let used = self.limit.count(|| self.count()).saturating_add(others);
            let free = self.limit.get().map_or(u64::MAX, |limit| limit.saturating_sub(used));
            (decide(free, last), others == 0)
        };
        let begun = Instant::now();
        loop {
            self.ask_host(Which::Unknown);
            let (answer, alone) = decide(false);
            if answer.is_some() {
                return answer;
            }
            if (alone && self.writers.count_unknown() == 0) || begun.elapsed() > OTHERS {
                break;
            }
            std::thread::sleep(AGAIN);
        }
        // The host may have got something back without our hearing of it. Who is refused again and again does not have
        // all files asked for each time.
        if self.limit.is_due_for_all() {
            self.ask_host(Which::All);
        }
        decide(true).0
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
            let host = self.pool.host_space().ok()?;
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

    /// True if what is used, `more`, and what only the kernel still knows of come near the limit together.
    pub fn holds_too_much(&self, more: u64) -> bool {
        let Some(limit) = self.limit.get() else { return false };
        let held = self.removed.held().saturating_add(more);
        let together = |used: u64| held.saturating_add(used) >= Self::near(limit);
        together(self.limit.estimate()) && together(self.recount())
    }

    /// True if so many bytes more, beside what is removed and stands on the host yet, pass the limit by far. What was
    /// let through and is not done counts: of those who write at the same time each sees the others.
    pub fn stands_beside_too_much(&self, more: u64) -> bool {
        let counted = || self.recount().saturating_add(self.limit.under_way());
        self.may_stand_beside_too_much(more) && self.passes_by_far(counted(), more)
    }

    /// True if that may be so, without asking the host.
    fn may_stand_beside_too_much(&self, more: u64) -> bool {
        self.is_limited() && self.passes_by_far(self.limit.estimate(), more)
    }

    /// True if whoever writes may have to wait until some of what is removed is gone from the host.
    pub fn may_wait_for_removals(&self) -> bool {
        self.may_stand_beside_too_much(u64::MAX)
    }

    /// True if what is removed and stands on the host yet has come to half of what may stand beside the limit, without
    /// asking the host: the background had better remove some before anybody has to wait for that.
    pub fn stands_beside_much(&self, more: u64) -> bool {
        self.limit.get().is_some_and(|limit| self.passes_by(self.limit.estimate(), more, Self::beside(limit) / 2))
    }

    fn passes_by_far(&self, used: u64, more: u64) -> bool {
        self.limit.get().is_some_and(|limit| self.passes_by(used, more, Self::beside(limit)))
    }

    fn passes_by(&self, used: u64, more: u64, beside: u64) -> bool {
        let Some(limit) = self.limit.get() else { return false };
        let removed = self.pool.freed_bytes().saturating_add(self.removed.held());
        // What does not fit anyway is refused, or cut to what does.
        removed > 0 && removed.saturating_add(used.saturating_add(more).min(limit)) > limit.saturating_add(beside)
    }

    /// So much of what is removed may stand on the host beside the limit.
    fn beside(limit: u64) -> u64 {
        limit - Self::near(limit)
    }

    /// True if there are bytes already on the host wherever `len` bytes at `offset` of a file go: that takes nothing of
    /// it, whatever counts.
    pub fn are_there(&self, ino: Ino, fd: impl AsFd, offset: u64, len: u64) -> Result<bool> {
        if host::unallocated(&fd, offset, len, BLOCK).host("measuring a segment")? > 0 {
            return Ok(false);
        }
        if !self.keeps_room_for_holes(ino) {
            return Ok(true);
        }
        // What would make it longer counts with the holes in front of it.
        let size = host::stat(&fd).host("looking at a segment")?.size.next_multiple_of(BLOCK);
        Ok(offset.saturating_add(len) <= size)
    }

    /// True if whoever deletes a file may be about to use its space.
    pub fn wants_space(&self) -> bool {
        self.host_is_tight() || self.nearly_full() || self.holds_too_much(0)
    }

    /// The space of the pool, in bytes and objects.
    pub fn space(&self) -> Result<Space> {
        let usage = self.usage();
        // What all tiers have together: each filesystem of the host counts once.
        let (mut host_total, mut host_free, mut host_available, mut free_objects) = (0, 0, 0, 0);
        for tier in self.tiers.hosts() {
            let Some(host) = self.pool.segments().host_space(*tier) else { continue };
            let host = host.host("asking for the host's space")?;
            let unit = host.fragment_size();
            host_total += host.blocks() * unit;
            host_free += host.blocks_free() * unit;
            host_available += host.blocks_available() * unit;
            free_objects += host.files_available();
        }
        let space = Space {
            capacity: host_total,
            total: host_total,
            free: host_free,
            available: host_available,
            objects: usage.objects + free_objects,
            free_objects,
        };
        let Some(limit) = self.limit.get() else { return Ok(space) };
        let used = self.used();
        let left = limit.saturating_sub(used);
        // What others have of the host is not used by the pool.
        let total = if left > host_free { used.saturating_add(host_free) } else { limit };
        let (capacity, available) = (limit.min(host_total), left.min(host_available));
        Ok(Space { capacity, total, free: left.min(host_free), available, ..space })
    }
}

/// Leave to write.
pub(crate) struct Admitted<'a> {
    /// So many bytes.
    fits: u64,
    /// In a pool with a limit it is known that it goes on, and for which file.
    under_way: Option<(&'a Store, Ino, UnderWay<'a>)>,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some((store, ino, write)) = self.under_way.take() {
            // Before it counts as done: it counts as what the file may have got until the host has said what it takes.
            store.writers.written(ino, write.bytes());
            drop(write);
            store.measure(ino);
        }
    }
}

impl Admitted<'_> {
    /// How many bytes may be written.
    pub fn fits(&self) -> u64 {
        self.fits
    }

    /// So many count as under way: what it may take of the host at most.
    pub fn counted(&self) -> u64 {
        self.under_way.as_ref().map_or(0, |(_, _, write)| write.bytes())
    }

    /// The write is done.
    pub fn done(self) {}
}

/// How many of `len` bytes at `offset` find room if so much is free: the longest front part whose holes are not larger.
fn front(fd: impl AsFd, offset: u64, len: u64, free: u64) -> Result<u64> {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if host::unallocated(&fd, offset, middle, BLOCK).host("measuring a segment")? <= free {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(low)
}

//! `open(O_TRUNC)`: a file that nobody else uses gets a new segment, and keeps its old content until the new one is
//! complete. A process that has the old one mapped keeps it.
//!
//! The switch to the new segment is stored at the first fsync, before a rename or link, when the last writer closes, or
//! after the time in [`Options::replace`](crate::Options): a pending replace does not hold back a file that stays open,
//! such as a log, for longer. A power loss before that leaves the old content. Where the writer is killed by a signal,
//! the new content stands, as POSIX has it, and the old version goes to quarantine.
//!
//! That a close was the last one is known only from the RELEASE behind it, for which `close` does not wait. Where
//! `close` promises that all is durable, each one that may be the last records that the new content stands if power is
//! lost; recovery then keeps the old version in quarantine, as it does not know whether the writers were done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfs_layout::SegmentId;
use tensorfs_layout::log::{Attributes, Origin, Record, Transaction};

use crate::caller::{Caller, Ending};
use crate::clock;
use crate::error::{Fault, Host, Result};
use crate::store::host;

use super::Files;
use super::change::Cut;
use super::learn::{Learned, Switch};
use super::locked::Locked;
use super::look::Made;
use super::mode::Access;
use super::state::{Replace, Route, Seen, Serving};

/// RELEASE comes after `close` has returned: so long is waited for one that may be on its way.
const RELEASES: Duration = Duration::from_millis(2);
/// So long is waited for a RELEASE where a close is known of and much depends on it.
const LATE_RELEASES: Duration = Duration::from_millis(50);
/// So long where a program hears of an error otherwise that it cannot explain.
const LAST_RELEASES: Duration = Duration::from_secs(1);

impl Locked<'_> {
    /// Brings the file's records up to date with its segment. Says nothing about durability.
    pub(super) fn learn(&mut self, unique: u64, switch: Switch) -> Result<Learned> {
        self.learn_made(unique, switch, None)
    }

    /// Brings the file's records up to date with its segment, whose bytes may just have been made durable.
    pub(super) fn learn_made(&mut self, unique: u64, switch: Switch, made: Option<Made>) -> Result<Learned> {
        let Some(replace) = self.serving().filter(|serving| serving.writing.is_some()).and_then(|s| s.replacing) else {
            return self.learn_own(unique, switch, made);
        };
        let is_early = replace.since.elapsed() < self.files.store().options().replace || replace.is_to_wait();
        if matches!(switch, Switch::Leave | Switch::Background) && is_early {
            return Ok(Learned::default());
        }
        match switch {
            // Whoever sets aside what has to be has the next round store the switch.
            Switch::Leave | Switch::Background | Switch::StoreHere if self.leave_to_set_aside()? => {
                return Ok(Learned::default());
            }
            Switch::Leave | Switch::Background | Switch::StoreHere => {}
            Switch::Store | Switch::Last => {
                self.set_aside()?;
                if !self.is_replacing() {
                    // Somebody else has stored it meanwhile.
                    return self.learn_own(unique, switch, made);
                }
            }
        }
        let durable = self.store_switch(unique, switch, made)?;
        Ok(Learned { changed: true, durable })
    }

    /// Empties a file that is being opened with `O_TRUNC`.
    pub(super) fn truncate_at_open(&mut self, caller: Caller, segment: SegmentId, access: Access) -> Result<()> {
        if self.look()?.size == 0 {
            return self.stamp(caller);
        }
        self.make_room_to_sync()?;
        // Who can only read never says when the new content is complete.
        if access.write && self.wait_until_alone(segment) {
            match self.start_replace(caller, segment) {
                Err(fault) if fault.errno != libc::EROFS => {
                    log::debug!("inode {}: truncating in place: {}", self.ino(), fault);
                }
                done => return done,
            }
        }
        self.files.store().counters().truncated_in_place.add(1);
        self.truncate(caller, 0, Cut::Anew(clock::now()))
    }

    /// True if a program runs from the file.
    pub(super) fn is_executed(&mut self) -> bool {
        // The RELEASE of one that has ended may be on its way. Hardly anybody else comes here: the kernel asks us only
        // where no write access is wanted.
        let deadline = Instant::now() + LATE_RELEASES;
        while self.state.opens.executing > 0 && !self.wait_until(deadline) {}
        self.state.opens.executing > 0
    }

    /// Waits a moment for the file's other handles to go, and for a pending replace with them; true if nothing else
    /// uses the segment then. A RELEASE can be late on a busy machine. Handles that have been waited for once stay open
    /// for good, as far as anybody knows: the next one who empties the file does not wait as long for them.
    fn wait_until_alone(&mut self, segment: SegmentId) -> bool {
        if self.state.opens.handles() == 0
            && self.is_replacing()
            && self.set_aside().is_ok()
            && !self.is_open_to_write()
        {
            self.end_writing(0);
        }
        let begun = Instant::now();
        let mut alone_since = None;
        loop {
            if self.segment() != Some(segment) {
                return false;
            }
            let handles = self.state.opens.handles();
            let alone = handles == 0 && !self.is_replacing();
            if alone {
                self.files.store().descriptors().forget(segment);
                // A mapping to read keeps the old segment and is not in the way; one to write must go on to be seen.
                if self.files.store().segments().quiescent(segment) {
                    return true;
                }
            }
            let now = Instant::now();
            let deadline = match alone {
                true => *alone_since.get_or_insert(now) + RELEASES,
                false if handles > self.state.opens.staying => begun + LATE_RELEASES,
                false => begun + RELEASES,
            };
            if now >= deadline {
                self.state.opens.staying = handles;
                return false;
            }
            // The lease can also be held up by the kernel's own last close, which signals nobody.
            let step = if alone { Duration::from_micros(100) } else { deadline - now };
            self.wait_for(step.min(deadline - now));
        }
    }

    /// Waits for the file's other handles, whose mode must not be that of a new one, as long as some of them may be
    /// gone and their RELEASE on its way. False once that is not to be expected any more since an open has `begun`.
    pub(super) fn wait_to_be_alone(&mut self, begun: Instant) -> bool {
        let handles = self.state.opens.handles();
        let stay = handles > 0 && handles <= self.state.opens.staying;
        let deadline = begun + if stay { RELEASES } else { LAST_RELEASES };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.state.opens.staying = handles;
            return false;
        }
        // Without handles, what is left is the kernel's own last close, which signals nobody.
        self.wait_for(if handles == 0 { left.min(Duration::from_millis(1)) } else { left });
        true
    }

    fn start_replace(&mut self, caller: Caller, old: SegmentId) -> Result<()> {
        let (files, ino) = (self.files, self.ino());
        let store = files.store();
        // The old version is to be whole, also if it was closed just before.
        self.learn_own(caller.unique, Switch::Store, None)?;
        let made = files.another_segment(ino, store.place_again(ino), Some(old))?;
        let new = made.segment;
        // The file counts as written from now on, whatever it is opened for: who closes it last stores the switch.
        let watch = files.begin_first_write(&made);
        let stored = files.edit(|edit| {
            if edit.object(ino).is_none_or(|object| object.names() == 0) {
                return Err(Fault::new(libc::ENOENT));
            }
            Ok(edit.store(Transaction::new(caller.unique).with(Record::Replace { ino, segment: new }))?)
        });
        if let Err(fault) = stored {
            drop(watch);
            store.segments().end_write(new);
            store.pool().discard_segment(new);
            return Err(fault);
        }
        self.stop_watching();
        let before = self.state.serving.take();
        self.state.serving = Some(Serving {
            route: Route::Closed { ready: made.backing.map(Arc::new) },
            seen: Some(Seen::CHANGED),
            replacing: Some(Replace::of(old, files.close_commits().then(|| caller.process()))),
            mappable: before.as_ref().is_some_and(|before| before.mappable),
            ..Serving::new(new)
        });
        self.watch(watch, false);
        store.counters().replaced.add(1);
        Ok(())
    }

    /// Makes the new segment of a pending replace the file's own. True if its bytes are durable as soon as the log is.
    fn store_switch(&mut self, unique: u64, switch: Switch, made: Option<Made>) -> Result<bool> {
        let (files, ino) = (self.files, self.ino());
        let store = files.store();
        let Some(segment) = self.segment() else { return Ok(false) };
        let emptied = self.serving().and_then(|serving| serving.replacing).map(|replace| replace.emptied);
        let at = clock::now();
        let host = self.look()?;
        let made = made.and_then(|made| made.if_covers(segment, &host));
        let durable = made.is_some();
        let value = made.as_ref().and_then(Made::value);
        let kept = self.keep_version_that_is_mapped();
        let stored = files.edit_for(switch, |edit| {
            let Some(object) = edit.object(ino).filter(|object| object.names() > 0) else {
                return Ok(false);
            };
            let observed = self.observed(&object.attributes, &host);
            // What it holds began when it was emptied, by which T13 tells what is of another save.
            let btime = emptied.unwrap_or(observed.btime);
            let attributes = Attributes { segment: Some(segment), damaged: false, btime, ..observed };
            let (len, allocated, origin) = (host.size, host.allocated, Origin::at(clock::now()));
            let data = Record::Data { ino, segment, offset: 0, len, allocated, origin };
            let mut tx = Transaction::new(unique).with(Record::Attributes { ino, attributes }).with(data);
            if let Some(bytes) = value {
                tx.push(Record::Value { ino, segment, bytes: (**bytes).into() });
            }
            if durable {
                tx.bytes_are_durable(segment);
            }
            // What is kept for deletion is not for bytes of files.
            if value.is_some() { edit.store(tx) } else { edit.store_from_reserve(tx) }?;
            Ok(true)
        });
        if let Some(kept) = kept.filter(|_| !stored.as_ref().is_ok_and(|stored| *stored)) {
            store.pool().let_go_of_segment(kept);
        }
        let stored = stored?;
        if !durable {
            store.segments().touch(segment).host("opening a segment to sync it")?;
        }
        let value = value.filter(|_| stored).cloned();
        let Some(serving) = self.serving_mut() else { return Ok(durable) };
        if let Some(writing) = &mut serving.writing {
            writing.valued = value;
        }
        if stored {
            serving.replacing = None;
            serving.seen = Some(Seen::of(&host, at));
            store.counters().learned.add(1);
        }
        Ok(durable)
    }

    /// In a pool with a limit the version before counts for as long as a program has it mapped.
    fn keep_version_that_is_mapped(&self) -> Option<SegmentId> {
        let store = self.files.store();
        let old = store.view().object(self.ino()).and_then(|object| object.attributes.segment);
        let old = old.filter(|old| store.is_limited() && self.segment() != Some(*old))?;
        store.descriptors().forget(old);
        let _claim = self.files.readings().claim(old);
        let is_mapped = store.segments().is_held(old, false);
        is_mapped.then(|| store.pool().keep_segment(old)).map(|()| old)
    }

    /// An `O_TRUNC` of an empty file changes its times alone.
    fn stamp(&mut self, caller: Caller) -> Result<()> {
        let (files, ino) = (self.files, self.ino());
        let now = clock::coarse();
        if let Some(serving) = self.serving_mut() {
            // Its times are the ones that count while the file is open.
            let fd = files.store().segments().open(serving.segment, libc::O_RDONLY).host("opening a segment")?;
            host::set_times(&fd, None, Some(now)).host("setting a segment's times")?;
            serving.seen = None;
        }
        files.edit(|edit| {
            let Some(object) = edit.object(ino) else { return Err(Fault::new(libc::ENOENT)) };
            let attributes = Attributes { mtime: now, ctime: now, ..object.attributes.clone() };
            edit.store(Transaction::new(caller.unique).with(Record::Attributes { ino, attributes }))?;
            Ok(())
        })
    }

    /// A handle of a file that is being replaced is closed by one of the processes that share it.
    pub(super) fn note_close(&mut self, ending: Ending) {
        if let Some(replace) = self.serving_mut().and_then(|serving| serving.replacing.as_mut()) {
            // That another one goes on, and ends of itself, does not make whole what was cut short.
            replace.ended = replace.ended.max(ending);
            (replace.closed, replace.flushed) = (true, true);
        }
    }
}

impl Locked<'_> {
    /// Who has the new content of a file synced lives, and needs the old one no longer.
    pub(super) fn note_sync(&mut self) {
        if let Some(replace) = self.serving_mut().and_then(|serving| serving.replacing.as_mut())
            && replace.ended == Ending::Unseen
        {
            replace.ended = Ending::OfItself;
        }
    }

    /// True if the version before could not be set aside, and is not tried again yet.
    pub(super) fn is_to_wait(&self) -> bool {
        self.serving().and_then(|serving| serving.replacing).is_some_and(|replace| replace.is_to_wait())
    }

    /// True if the version before could not be set aside so far.
    pub(super) fn is_refused(&self) -> bool {
        self.serving().and_then(|serving| serving.replacing).is_some_and(|replace| replace.refused.is_some())
    }

    /// True if a process is seen to have the file, which is being replaced, open to write: the one that closes a
    /// descriptor of it now, or the one that began. Then the new content does not stand yet. Of the one that began, and
    /// is not the one that closes, that is believed as long as nobody can see that it is not so: the version before may
    /// be all that there is. Lets go of the lock.
    pub(super) fn is_replaced_by_others(&mut self, caller: Caller) -> bool {
        let Some(replace) = self.serving().and_then(|serving| serving.replacing) else { return false };
        let (files, ino) = (self.files, self.ino());
        let Some(opener) = replace.opener else { return false };
        self.unlocked(|| {
            let has = |process: u32| match files.has_open_to_write(caller, process, ino) {
                Err(error) => {
                    log::debug!("inode {ino}: whether process {process} has it open is not seen: {error}");
                    process == opener && opener != caller.process()
                }
                Ok(has) => has,
            };
            [opener, caller.pid].into_iter().filter(|process| *process != 0).any(has)
        })
    }

    /// Has the new content of a file that is being replaced outlive a power loss, as far as it is there now. It may be
    /// the last close, or not: the old content is kept until that is known.
    pub(super) fn make_standing(&mut self, unique: u64) -> Result<Learned> {
        let (files, ino) = (self.files, self.ino());
        let store = files.store();
        let Some(segment) = self.segment() else { return Ok(Learned::default()) };
        let Some(synced) = self.sync_early() else {
            return match store.segments().failed(segment) {
                true => Err(Fault::warn(libc::EIO, "the file's segment could not be synced")),
                false => self.learn(unique, Switch::Store),
            };
        };
        if self.segment() != Some(segment) || !self.is_replacing() {
            return self.learn_made(unique, Switch::Store, Some(Made::Synced(synced)));
        }
        files.edit(|edit| {
            if edit.object(ino).is_some_and(|object| object.names() > 0) {
                let (len, allocated) = (synced.before.size, synced.before.allocated);
                let origin = Origin::at(clock::now());
                let data = Record::Data { ino, segment, offset: 0, len, allocated, origin };
                let mut tx = Transaction::new(unique).with(data);
                tx.bytes_are_durable(segment);
                edit.store_from_reserve(tx)?;
            }
            Ok(())
        })?;
        Ok(Learned { changed: true, durable: true })
    }
}

impl Files {
    /// Waits for the RELEASE of files being replaced that were closed before this was called: what a client did before
    /// it asks for all to be durable is durable then. Other descriptors may hold it back, which is found out once.
    pub(super) fn wait_for_closed_replaces(&self) {
        let deadline = Instant::now() + LATE_RELEASES;
        for ino in self.store().writers().inos() {
            let node = self.node(ino);
            let mut file = self.lock(&node);
            if let Some(replace) = file.serving_mut().and_then(|serving| serving.replacing.as_mut()) {
                replace.hurry();
            }
            while let Some(replace) = file.serving_mut().and_then(|serving| serving.replacing.as_mut())
                && replace.closed
            {
                if Instant::now() >= deadline {
                    replace.closed = false;
                    break;
                }
                file.wait_until(deadline);
            }
        }
    }
}

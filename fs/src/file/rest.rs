//! Coming to rest: what happens to a file when its last handle goes, and when its last name does.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, ROOT};

use crate::error::{Fault, Result};
use crate::store::Store;
use crate::waits::{self, Wait};

use super::Files;
use super::learn::Switch;
use super::learned::Outcome;
use super::letting_go::{PATIENCE, Removed};
use super::locked::Locked;
use super::stat::Stat;
use super::state::Route;
use super::to_seal::QUIET;

/// The host gets the space of a deleted file of this size back at once, not only after the commit interval.
const LARGE: u64 = 16 << 20;

/// RELEASE comes after `close` has returned. Where space is short, a file that is deleted waits so long for one.
const RELEASE: Duration = Duration::from_millis(20);

/// A file that somebody has locked is waited for so long by who commits in the background.
const LOCKED: Duration = Duration::from_millis(50);

/// The kernel's own last close of a segment can come after RELEASE: it is taken for a mapping only if it lasts longer.
const LAST_CLOSE: Duration = Duration::from_millis(2);

impl Locked<'_> {
    /// Brings an inode to rest as far as its handles allow: after a release, or an open that failed.
    pub fn settle(&mut self, unique: u64) {
        if !self.is_open_to_write() {
            self.end_writing(unique);
        }
        if self.is_open() {
            return;
        }
        let store = self.files.store();
        if let Some(serving) = self.serving_mut() {
            serving.route = Route::Closed { ready: None };
            store.descriptors().forget(serving.segment);
        }
        if self.is_opening() {
            return;
        }
        if store.is_unnamed(self.ino()) {
            self.let_go(store.wants_space(), if unique == 0 { Duration::ZERO } else { LAST_CLOSE });
        } else if !self.is_written() {
            self.come_to_rest();
        }
    }

    /// An object has no name and no handle any more. While a program has it mapped, it stays as it is.
    fn let_go(&mut self, wants_space: bool, patience: Duration) {
        let deadline = Instant::now() + patience;
        let store = self.files.store();
        while self.is_mapped_yet(patience) {
            if Instant::now() >= deadline {
                return store.removed().note_mapped(self.ino());
            }
            self.wait_for(Duration::from_micros(100));
            if !self.is_unused() || !store.is_unnamed(self.ino()) {
                return;
            }
        }
        if wants_space { self.reap(None) } else { self.keep_removed() }
    }

    /// True if the host would keep the space of a file that nothing has open here, or even fill its holes, as a program
    /// has it mapped. Who can only read it is of no consequence but for a limit. What reads it here is waited for no
    /// longer than that, and counts as one that has it mapped. Where the host does not say, nobody has.
    fn is_mapped_yet(&self, patience: Duration) -> bool {
        let store = self.files.store();
        if let Some(serving) = self.serving().filter(|serving| serving.writing.is_some() && serving.mappable)
            && store.segments().is_held(serving.segment, true)
        {
            return true;
        }
        let recorded = || store.view().object(self.ino()).and_then(|object| object.attributes.segment);
        let Some(segment) = recorded().filter(|_| store.is_limited()) else { return false };
        store.descriptors().forget(segment);
        let _claim = self.files.readings().claim_within(segment, patience);
        store.segments().is_held(segment, false)
    }

    /// Nothing uses the file's segment any more.
    pub fn come_to_rest(&mut self) {
        if let Some(serving) = self.state.serving.take() {
            self.files.store().descriptors().forget(serving.segment);
        }
    }

    /// No handle can write any more: records what was written, and ends the watch unless a mapping still can.
    pub(super) fn end_writing(&mut self, unique: u64) {
        let (files, ino) = (self.files, self.ino());
        let store = files.store();
        let Some(serving) = self.serving().filter(|serving| serving.writing.is_some()) else { return };
        if unique == 0 && self.is_to_wait() {
            return;
        }
        let segment = serving.segment;
        store.descriptors().forget(segment);
        // Looked at before learning, so that what is learned is the last word. Who had it open to write alone could not
        // map it.
        let quiescent = !serving.mappable || store.segments().quiescent(segment);
        let recorded = self.recorded_end();
        if let Err(fault) = self.learn(unique, Switch::StoreHere) {
            // It stays on the list of writers, so the next background commit tries again.
            log::log!(fault.level.min(log::Level::Warn), "inode {ino}: not recorded at close: {fault}");
            return;
        }
        if self.is_replacing() {
            // The version before is still to be set aside.
            return;
        }
        let seen = self.serving().and_then(|serving| serving.seen);
        self.complete();
        if let (Some(from), Some(seen)) = (recorded, seen) {
            files.write_out_closed(ino, segment, from..seen.size);
        }
        if quiescent {
            self.note_left();
            self.stop_watching();
            files.to_seal().add(ino, store.pool().newest(), QUIET);
        } else if unique != 0 {
            files.to_settle().add(ino);
        }
    }

    /// Nothing is recorded any more of what has no name, and is open or mapped yet.
    fn note_left(&self) {
        let (store, ino) = (self.files.store(), self.ino());
        if store.is_unnamed(ino)
            && let Ok(host) = self.look()
            && let Some(object) = store.view().object(ino)
        {
            store.removed().note_left(ino, object, host.allocated);
        }
    }

    /// Drops an object that has no name left and no handle. The kernel may still ask about it: for a process that holds
    /// it with `O_PATH`, and for one that looked it up a moment ago. If it is at rest, it `held` so much of the host.
    fn reap(&mut self, held: Option<u64>) {
        let (files, ino) = (self.files, self.ino());
        let store = files.store();
        let (forgotten, kept) = store.removed().end(ino);
        let last = self.stat();
        // What was written last was not recorded if the name went first.
        let in_use = self.segment().zip(self.look().ok().map(|host| host.allocated));
        self.stop_watching();
        self.come_to_rest();
        let mut edit = store.pool().edit();
        let Some(object) = edit.object(ino).filter(|object| object.names() == 0) else { return };
        if !forgotten {
            files.ghosts.keep(last.unwrap_or_else(|_| Stat::of(ino, object)));
        }
        let at_rest = object.attributes.segment.zip(held.or(kept));
        let recorded = object.allocated();
        let held = in_use.or(at_rest);
        edit.reap_holding(ino, held);
        drop(edit);
        if held.map_or(recorded, |(_, held)| held) >= LARGE {
            store.bells().commit().ring();
        }
    }

    /// Keeps an object that has no name and no handle until the kernel forgets it, as long as there is room.
    fn keep_removed(&mut self) {
        if self.is_replacing() {
            return self.reap(None);
        }
        // What was written last was not recorded if the name went first.
        let held = self.look().ok().map(|host| host.allocated);
        self.stop_watching();
        self.come_to_rest();
        let store = self.files.store();
        let keep = |object: &Object| store.removed().keep(self.ino(), object, held);
        let kept = store.view().object(self.ino()).is_none_or(keep);
        if !kept {
            self.reap(held);
        } else if store.holds_too_much(0) {
            self.reap(held);
            self.files.reap_removed();
        }
    }

    /// The object has lost a name.
    fn retire(mut self) {
        let store = self.files.store();
        let wants_space = store.wants_space();
        if self.is_open() && wants_space {
            // A full disk: who has just closed the file and deleted it will try again with a smaller one.
            let deadline = Instant::now() + RELEASE;
            while self.is_open() && !self.wait_until(deadline) {}
        }
        if !store.is_unnamed(self.ino()) {
            return;
        }
        // Whoever reads it to seal it would keep its space.
        self.give_up_quiet();
        if self.is_unused() {
            self.let_go(wants_space, LAST_CLOSE);
        }
    }

    /// True if neither a handle nor an open that is under way needs the inode.
    fn is_unused(&self) -> bool {
        !self.is_open() && !self.is_opening()
    }
}

impl Store {
    /// True if no name leads to an object any more.
    fn is_unnamed(&self, ino: Ino) -> bool {
        // No name leads to the root, which is there all the same.
        ino != ROOT && self.view().object(ino).is_some_and(|object| object.names() == 0)
    }
}

impl Files {
    /// Brings to rest what has been closed, but was still open for the kernel when its RELEASE came. The background
    /// does so too, once an interval. The caller may have the lock of some inode.
    pub(super) fn settle_closed(&self) {
        for ino in self.store().writers().inos() {
            let node = self.node(ino);
            if let Some(mut file) = self.try_lock(&node).filter(|file| !file.is_open_to_write()) {
                file.settle(0);
            }
        }
    }

    /// Brings one of them to rest. False if it is still to be looked at: the kernel has it open, or somebody else has
    /// it locked. The caller has no lock.
    pub fn settle_if_closed(&self, ino: Ino) -> bool {
        if !self.store().writers().has(ino) {
            return true;
        }
        let node = self.node(ino);
        let Some(mut file) = self.try_lock(&node) else { return false };
        if file.is_open_to_write() {
            return true;
        }
        let (before, mapped) = (file.change_time_seen(), file.is_mappable());
        file.settle(0);
        let stale = mapped && file.change_time_seen() != before;
        drop(file);
        if stale {
            self.store().forget_attributes(ino);
        }
        !self.store().writers().has(ino)
    }

    /// An object has lost a name. If that was its last one, it goes once it is open nowhere and the kernel has
    /// forgotten it; where space is short, the kernel is not waited for.
    pub fn retire(&self, ino: Ino) {
        let node = self.node(ino);
        self.lock(&node).retire();
    }

    /// As [`Files::retire`], unless somebody else has the inode locked: then it is returned, and is still to be
    /// retired. Whoever removes a name does not wait for what is done with the file.
    pub fn try_retire(&self, ino: Ino) -> Option<Ino> {
        let node = self.node(ino);
        match self.try_lock(&node) {
            Some(file) => file.retire(),
            None => return Some(ino),
        }
        None
    }

    /// The kernel holds an object no longer.
    pub fn forgotten(&self, ino: Ino) {
        let is_unnamed = self.store().is_unnamed(ino);
        if let Some(held) = self.store().removed().forget(ino, is_unnamed) {
            let node = self.node(ino);
            let mut file = self.lock(&node);
            if file.is_unused() {
                file.reap(Some(held));
            }
        } else if is_unnamed && self.store().view().object(ino).is_none() {
            // It went just now.
            self.store().removed().end(ino);
        }
        self.ghosts.forget(ino);
    }

    /// Lets go of what was removed while a program had it mapped, where that is over: a round of the background. True
    /// if there was any. What the host is late with is left to the next round.
    pub fn let_go_of_unmapped(self: &Arc<Self>) -> bool {
        let files = self.clone();
        let look = move |removed| {
            let look = || files.let_go_if_unmapped(removed);
            if catch_unwind(AssertUnwindSafe(look)).is_err() {
                files.store().counters().panics.add(1);
                log::error!("{removed:?}: letting go of it panicked");
            }
        };
        self.queues.letting_go.round(|most| {
            let removed = self.removed_and_mapped(most);
            let any = !removed.is_empty();
            self.queues.letting_go.walks().each(removed, Instant::now() + PATIENCE, look);
            any
        })
    }

    fn removed_and_mapped(&self, most: usize) -> Vec<Removed> {
        let kept = self.store().pool().kept_segments().into_iter().take(most).map(Removed::Segment);
        kept.chain(self.store().removed().mapped(most).into_iter().map(Removed::File)).collect()
    }

    fn let_go_if_unmapped(&self, removed: Removed) {
        let store = self.store();
        match removed {
            Removed::Segment(segment) => {
                if !store.segments().is_held(segment, false) {
                    store.pool().let_go_of_segment(segment);
                }
            }
            Removed::File(ino) => {
                let node = self.node(ino);
                if let Some(mut file) = self.try_lock(&node).filter(Locked::is_unused)
                    && store.is_unnamed(ino)
                {
                    file.let_go(false, Duration::ZERO);
                }
            }
        }
    }

    /// True if something was removed while a program had it mapped, and may be let go of.
    fn has_removed_and_mapped(&self) -> bool {
        self.store().removed().has_mapped() || !self.store().pool().kept_segments().is_empty()
    }

    /// True if the pool may have something to let go of for who finds no space at its limit.
    pub(super) fn may_let_go(&self) -> bool {
        self.has_removed_and_mapped() || self.store().pool().may_be_shortened()
    }

    /// Shortens the log, and lets go of what was removed and is mapped no more, for who finds no space at the limit.
    /// False if there was nothing. Not to be called with an inode locked.
    pub(super) fn let_go_for_space(&self) -> bool {
        let pool = self.store().pool();
        let shorten = || {
            pool.shorten().unwrap_or_else(|error| {
                log::debug!("shortening the log: {error}");
                false
            })
        };
        let shortened = pool.may_be_shortened() && waits::during(Wait::Others, shorten);
        self.let_go_of_mapped() || shortened
    }

    /// Has the background let go of what was removed and is mapped no more, for who finds no space. True if there was
    /// any. The caller may have the lock of some inode.
    fn let_go_of_mapped(&self) -> bool {
        let store = self.store();
        if !self.has_removed_and_mapped() {
            return false;
        }
        if store.bells().let_go().is_stopped() {
            // At the end there is no background.
            self.removed_and_mapped(usize::MAX).into_iter().for_each(|removed| self.let_go_if_unmapped(removed));
        } else {
            waits::during(Wait::Others, || self.queues.letting_go.wait_for_round(|| store.bells().let_go().ring()));
        }
        true
    }

    /// Drops what only the kernel still knows, and what was mapped and is not any more, for who finds no space. The
    /// caller may have the lock of some inode.
    pub(super) fn reap_for_space(&self) {
        self.let_go_of_mapped();
        self.reap_removed();
    }

    /// Drops what only the kernel still knows. The caller may have the lock of some inode.
    pub fn reap_removed(&self) {
        for ino in self.store().removed().all() {
            let node = self.node(ino);
            if let Some(mut file) = self.try_lock(&node).filter(Locked::is_unused)
                && let Some(held) = self.store().removed().take(ino)
            {
                file.reap(Some(held));
            }
        }
    }

    /// Learns every file that something may write, and says whether any had changed. One that fails does not keep the
    /// others from being learned.
    pub fn learn_all(&self, switch: Switch) -> Result<bool> {
        let mut outcome = Outcome::default();
        for ino in self.store().writers().inos() {
            let node = self.node(ino);
            self.learn_one(self.lock(&node), switch, &mut outcome);
        }
        outcome.into_result()
    }

    /// As [`Files::learn_all`], by who commits in the background, and waits no longer than this: what the host, or
    /// whoever has a file locked, is late with is left to the next round, and may have changed. What is large is
    /// written out first, and recorded then: meanwhile others can commit without waiting for it.
    pub fn learn_in_background(self: &Arc<Self>, patience: Instant) -> Result<bool> {
        // What is written to them is not heard of.
        let doubted: HashSet<Ino> = self.store().segments().covered().into_iter().collect();
        let files = self.clone();
        let learn = move |ino| {
            let learn = || files.learn_unless_locked(ino, doubted.contains(&ino), patience);
            let outcome = catch_unwind(AssertUnwindSafe(learn)).unwrap_or_else(|_| {
                files.store().counters().panics.add(1);
                log::error!("inode {ino}: recording what it has become panicked");
                let mut outcome = Outcome::default();
                outcome.changed(true);
                outcome
            });
            files.queues.learning.note(outcome);
        };
        let all = self.queues.learning.walks().each(self.store().writers().inos(), patience, learn);
        // With what was late in the rounds before.
        self.queues.learning.take().into_result().map(|changed| changed || !all)
    }

    fn learn_unless_locked(&self, ino: Ino, doubted: bool, patience: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        if self.write_out_grown(ino) {
            return outcome;
        }
        let node = self.node(ino);
        // Whoever has it locked for long keeps none of those who go through the files.
        match self.lock_until(&node, patience.min(Instant::now() + LOCKED)) {
            Some(mut file) => {
                if doubted {
                    file.doubt_value();
                }
                self.learn_one(file, Switch::Background, &mut outcome);
            }
            None => outcome.changed(true),
        }
        outcome
    }

    fn learn_one(&self, mut file: Locked<'_>, switch: Switch, outcome: &mut Outcome) {
        let (ino, is_waited_for) = (file.ino(), switch != Switch::Background);
        let before = file.change_time_seen();
        match file.learn(0, switch) {
            Ok(learned) => outcome.changed(learned.changed),
            Err(fault) => return outcome.fail(fault),
        }
        let stale = file.is_mappable() && file.change_time_seen() != before;
        if !file.is_open_to_write() {
            if is_waited_for {
                // Somebody waits for it, and hears below if it could not be.
                let _ = file.set_aside();
            }
            file.settle(0);
            if file.is_refused() && is_waited_for {
                let what = "the version before cannot be set aside, so that the new one does not stand";
                outcome.fail(Fault::warn(libc::EIO, what));
            }
        }
        drop(file);
        if stale {
            self.store().forget_attributes(ino);
        }
    }

    /// Learns a file before it gets a name, so that no name points to bytes that are not recorded.
    pub fn learn_before_naming(&self, ino: Ino) -> Result<()> {
        if let Some(node) = self.node_in_use(ino) {
            self.lock(&node).learn(0, Switch::Store)?;
        }
        Ok(())
    }

    /// The kernel is gone: whatever is still open counts as closed. False if what became of a file could not be
    /// recorded.
    pub fn close_all(&self) -> bool {
        self.queues.learning.walks().finish();
        self.queues.letting_go.walks().finish();
        for handle in self.handles.drain() {
            self.release_handle(0, &handle);
        }
        self.reap_for_space();
        // Nobody hears any more of when they are unmapped.
        for ino in self.store().removed().mapped(usize::MAX) {
            self.lock(&self.node(ino)).reap(None);
        }
        // Files that are still mapped get their last word too.
        match self.learn_all(Switch::Last) {
            Ok(_) => true,
            Err(fault) => {
                log::error!("at the end: {fault}");
                self.store().pool().is_read_only().is_some()
            }
        }
    }
}

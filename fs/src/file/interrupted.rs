//! That a process was killed while it had a file open to write, or that what was stored through a mapping could not be
//! written, so that nobody has said that the file holds what it should.
//!
//! The kernel tells of each process that closes a descriptor, also of one that a signal ends, and not of who wrote. Who
//! opened the file is taken for its writer; another process that has the descriptor is, once that one has it no longer.

use std::io;

use tensorfs_layout::log::{Record, Transaction};
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::{Caller, process_of};
use crate::clock;
use crate::privileged::privileged;

use super::Files;
use super::locked::Locked;
use super::open::Handle;
use super::state::{Before, Seen};

impl Files {
    /// True if a process is seen to have a file open to write, looked at for a request. See
    /// [`Privileged::has_open_to_write`](crate::privileged::Privileged::has_open_to_write).
    ///
    /// # Errors
    /// It is not seen, or whoever asks has no time left for it.
    pub(super) fn has_open_to_write(&self, caller: Caller, process: u32, ino: Ino) -> io::Result<bool> {
        let look = || privileged().has_open_to_write(process, self.store().options().device, ino.0);
        match caller.limited() {
            None => look(),
            Some(uid) => self.allowance.spend(uid, look).unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl Locked<'_> {
    /// Something can write the file from now on. If it could before, by programs of an `earlier` mount, nobody knows
    /// since when.
    pub(super) fn begin_session(&mut self, earlier: bool) {
        let began = if earlier { None } else { self.look().ok().map(|host| Seen::of(&host, clock::now())) };
        let interrupted = earlier && self.is_marked();
        if let Some(writing) = self.serving_mut().and_then(|serving| serving.writing.as_mut()) {
            (writing.began, writing.interrupted) = (began, interrupted);
        }
    }

    /// The server takes the place of another one, under which something could write the file already.
    pub(super) fn go_on_with_session(&mut self) {
        self.begin_session(true);
    }

    /// What the file is, for one who is about to get a handle to write it. If he, or who has started him, may have it
    /// mapped for writing, what it was before anything could write it: by that he may go on to change it unseen.
    pub(super) fn before_writing(&self, caller: Caller) -> Option<Before> {
        let segment = self.segment()?;
        let mappers = &self.serving()?.mappers;
        let maps = !mappers.is_empty() && mappers.may_be(&[caller.process(), caller.parent()]);
        let seen = if maps { self.writing()?.began? } else { Seen::of(&self.look().ok()?, clock::now()) };
        Some(Before { segment, seen, tells: self.files.store().tells_each_change(segment.tier()) })
    }

    /// True if it would say something of the file that a process was killed which had this handle.
    pub(super) fn can_be_interrupted(&self, handle: &Handle) -> bool {
        self.writing().is_some_and(|writing| !writing.interrupted) && self.has_changed_since(handle)
    }

    /// True if a process that was killed, and that has a handle, is taken for the writer of its file. Lets go of the
    /// lock.
    pub(super) fn was_its_writer(&mut self, handle: &Handle, caller: Caller) -> bool {
        let (files, ino, opener) = (self.files, self.ino(), handle.opener);
        let has = |process: u32| process != 0 && files.has_open_to_write(caller, process, ino).is_ok_and(|has| has);
        self.unlocked(|| {
            let opened = opener == caller.pid || (opener != 0 && process_of(opener) == Some(caller.process()));
            // The thread that opened it may have ended; the process that it was one of has started this one.
            opened || !(has(opener) || has(caller.parent()))
        })
    }

    /// A process that had this handle was killed: that is noted, if the file has changed since it was opened.
    pub(super) fn note_interrupted(&mut self, handle: &Handle) {
        if self.has_changed_since(handle) {
            self.mark_interrupted("a process was killed which had it open to write");
        }
    }

    /// What a program has stored through a mapping could not be written to a segment, and the kernel has dropped it. If
    /// the file has another one by now, it was replaced meanwhile.
    pub(super) fn note_not_kept(&mut self, segment: SegmentId) {
        if self.segment() != Some(segment) {
            return;
        }
        self.mark_interrupted("what was stored through a mapping could not be written");
    }

    fn mark_interrupted(&mut self, why: &str) {
        let (files, ino) = (self.files, self.ino());
        let Some(segment) = self.segment() else { return };
        if self.writing().is_none_or(|writing| writing.interrupted) {
            return;
        }
        let is_named = files.store().view().object(ino).is_some_and(|object| object.names() > 0);
        let mark = || Transaction::new(0).with(Record::interrupted(ino, segment));
        if is_named && let Err(fault) = files.edit(|edit| Ok(edit.store_from_reserve(mark())?)) {
            log::warn!("inode {ino}: {why}, and that is not recorded: {fault}");
        }
        if let Some(writing) = self.serving_mut().and_then(|serving| serving.writing.as_mut()) {
            writing.interrupted = true;
        }
    }

    /// Whoever could write the file has closed it, or it has been emptied: what one who was killed left there before is
    /// what it should be now, if it has changed since.
    pub(super) fn complete(&mut self) {
        let (files, ino) = (self.files, self.ino());
        let is_marked = files.store().view().object(ino).is_some_and(|object| object.left_unfinished().is_some());
        if !is_marked || self.writing().is_none_or(|writing| writing.interrupted) || !self.surely_changed() {
            return;
        }
        let done = || Transaction::new(0).with(Record::completed(ino));
        if let Err(fault) = files.edit(|edit| Ok(edit.store_from_reserve(done())?)) {
            log::debug!("inode {ino}: that it was written anew is not recorded: {fault}");
        }
    }

    /// The file has been emptied in place: nothing of what a writer left who was killed is there any more.
    pub(super) fn forget_interrupted(&mut self) {
        if let Some(writing) = self.serving_mut().and_then(|serving| serving.writing.as_mut()) {
            (writing.began, writing.interrupted) = (None, false);
        }
    }

    /// True if what the file holds was left so by a writer who was killed, or whose stores were dropped.
    fn is_marked(&self) -> bool {
        let segment = self.segment();
        let view = self.files.store().view();
        view.object(self.ino()).is_some_and(|object| segment.is_some() && object.left_unfinished() == segment)
    }

    /// True unless it is known that the file is what it was when the handle was opened. Who had it before, and has
    /// closed it, may go on to be its writer for us: his RELEASE comes later.
    fn has_changed_since(&self, handle: &Handle) -> bool {
        let still =
            |before: Before| self.segment().zip(self.look().ok()).is_some_and(|(now, host)| before.still(now, &host));
        !handle.before.is_some_and(still)
    }

    /// True if it is known that the file is not what it was before anything could write it.
    fn surely_changed(&self) -> bool {
        let began = self.writing().and_then(|writing| writing.began);
        let differs = |began: Seen| self.look().is_ok_and(|host| (host.ctime, host.size) != (began.ctime, began.size));
        began.is_none_or(differs)
    }
}

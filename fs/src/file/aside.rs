//! Setting aside the version of a file that it had before a writer died in the middle of replacing it (R4).
//!
//! That may take long: the host syncs the version, and where its filesystem has no second names it is copied. So it is
//! done with the inode's lock let go of, by whoever waits for the new content to stand (`fsync`, renaming, emptying the
//! file once more), else in the background; never by who commits, nor by who hears of a close. The replace stays
//! pending meanwhile: until the version is in quarantine the new one does not stand.

use tensorfs_layout::segment::{Note, QuarantineEntry, Reason};
use tensorfs_layout::tree::spelled;
use tensorfs_layout::{Ino, SegmentId};

use crate::caller::Ending;
use crate::clock;
use crate::error::{Host, Result};
use crate::store::Store;

use super::Files;
use super::locked::Locked;
use super::state::{Aside, Replace};

impl Locked<'_> {
    /// The pending replace, and why the version before has to be set aside before the new one stands, if that is so.
    fn to_set_aside(&self) -> Result<Option<(Replace, &'static str)>> {
        let Some(replace) = self.serving().filter(|serving| serving.writing.is_some()).and_then(|s| s.replacing) else {
            return Ok(None);
        };
        if replace.aside == Aside::Done || !self.files.store().has_name(self.ino()) {
            return Ok(None);
        }
        let why = match replace.ended {
            Ending::BySignal => Some("a process that had it open to write was killed"),
            Ending::Unseen => Some("it cannot be seen whether its writer was killed"),
            // The kernel asks security modules (such as Landlock) about the truncation after it has asked us to open
            // the file.
            Ending::OfItself if self.is_open_to_write() || replace.flushed || self.look()?.size > 0 => None,
            Ending::OfItself => Some("who emptied it never closed it"),
        };
        Ok(why.map(|why| (replace, why)))
    }

    /// Has the version before set aside in the background, if that is to be done: then this is true.
    pub(super) fn leave_to_set_aside(&mut self) -> Result<bool> {
        let due = self.to_set_aside()?.is_some();
        if due {
            self.files.queues.to_set_aside.add(self.ino());
            self.files.store().bells().aside().ring();
        }
        Ok(due)
    }

    /// Sets the version before aside, if that is to be done. Lets go of the lock meanwhile: anything may have changed.
    pub(super) fn set_aside(&mut self) -> Result<()> {
        while let Some((replace, why)) = self.to_set_aside()? {
            let Some(left) = self.segment() else { break };
            if replace.aside == Aside::UnderWay {
                self.wait();
                continue;
            }
            let (files, ino) = (self.files, self.ino());
            let mut under_way = UnderWay::begin(self, replace.old);
            let kept = under_way.file.unlocked(|| files.store().set_aside(ino, replace.old, left, why));
            under_way.kept = kept.is_ok();
            drop(under_way);
            if let Err(fault) = kept {
                if replace.refused.is_none() {
                    log::error!("inode {ino}: {why}; the old version is kept until it can be set aside: {fault}");
                }
                // Until that is done the new version does not stand: it is tried again, in the background or by
                // recovery.
                if let Some(replace) = self.replacing(replace.old) {
                    replace.refuse();
                }
                return Err(fault);
            }
        }
        Ok(())
    }

    /// The pending replace of a segment.
    fn replacing(&mut self, old: SegmentId) -> Option<&mut Replace> {
        self.serving_mut()?.replacing.as_mut().filter(|replace| replace.old == old)
    }
}

/// A version is being set aside.
struct UnderWay<'l, 'a> {
    file: &'l mut Locked<'a>,
    old: SegmentId,
    kept: bool,
}

impl<'l, 'a> UnderWay<'l, 'a> {
    fn begin(file: &'l mut Locked<'a>, old: SegmentId) -> Self {
        if let Some(replace) = file.replacing(old) {
            replace.aside = Aside::UnderWay;
        }
        Self { file, old, kept: false }
    }
}

impl Drop for UnderWay<'_, '_> {
    fn drop(&mut self) {
        let aside = if self.kept { Aside::Done } else { Aside::No };
        if let Some(replace) = self.file.replacing(self.old) {
            replace.aside = aside;
        }
        self.file.node.released.notify_all();
    }
}

impl Files {
    /// What is in quarantine; so is what is just on its way there.
    pub fn quarantined(&self) -> Vec<QuarantineEntry> {
        self.queues.to_set_aside.wait_a_moment();
        self.store().quarantined()
    }

    /// Sets aside what was left to the background; and writes the notes that found no room before.
    pub fn set_aside_some(&self) {
        for ino in self.queues.to_set_aside.take() {
            let node = self.node(ino);
            let mut file = self.lock(&node);
            if !file.is_to_wait() && file.set_aside().is_ok() {
                file.settle(0);
            }
        }
        self.queues.to_set_aside.done();
        if let Err(error) = self.store().pool().quarantine().write_owed_notes() {
            log::debug!("writing a note in quarantine: {error}");
        }
    }
}

impl Store {
    /// True if a name leads to an object.
    fn has_name(&self, ino: Ino) -> bool {
        self.view().object(ino).is_some_and(|object| object.names() > 0)
    }

    fn set_aside(&self, ino: Ino, old: SegmentId, left: SegmentId, why: &str) -> Result<()> {
        let ((path, path_bytes), user) = {
            let view = self.view();
            // Looked up when it was opened; without that, all names would have to be gone through.
            let known = self.known_path(&view, ino).map(|path| [b"/", &path[..]].concat());
            let path = known.or_else(|| view.path_of(ino));
            let user = view.object(ino).map(|object| object.attributes.uid);
            (spelled(path), user)
        };
        let shown = path.clone().unwrap_or_else(|| format!("inode {ino}"));
        let reason = Reason::InterruptedReplace;
        let note = Note { ino: Some(ino), path, path_bytes, reason, offset: 0, time: clock::now() };
        self.mend_from_log(ino, old)?;
        let entry = self.pool().quarantine().keep_version(self.segments(), old, left, &note, user);
        if let Err(error) = &entry
            && self.segments().is_not_there(old, error)
        {
            // Somebody else has stored the switch, or removed the file meanwhile; or it was not there before.
            if self.view().object(ino).is_some_and(|object| object.attributes.segment == Some(old)) {
                log::error!("{shown}: {why}; the old version is lost: {error}");
            }
            return Ok(());
        }
        let entry = entry.host("setting aside the version before")?;
        log::warn!("{shown}: {why}; the old version is in quarantine as {entry}");
        Ok(())
    }
}

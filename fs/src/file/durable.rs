//! Making durable what a client waits for: one file, or everything.

use std::time::Duration;

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::options::Durability;
use crate::waits::{self, Wait};

use super::Files;
use super::learn::{Learned, Switch};
use super::locked::Locked;
use super::look::{Made, Synced};

/// So long who makes everything durable waits for who reads a file that was removed.
const CLOSING: Duration = Duration::from_millis(20);

impl Files {
    /// A commit that a client waits for.
    pub fn commit_for_client(&self) -> Result<()> {
        self.store().counters().commits_waited.add(1);
        self.cover_small();
        self.store().commit()
    }

    /// A commit that a client waits for, whose own segments were synced before.
    fn commit_stored_for_client(&self) -> Result<()> {
        self.store().counters().commits_waited.add(1);
        self.cover_small();
        self.store().commit_stored()
    }

    /// True if closing a file commits.
    pub(super) fn close_commits(&self) -> bool {
        self.store().durability() == Durability::Close
    }

    /// Makes everything durable that was done through this mount, except what is still replacing something. If a file
    /// could not be synced meanwhile, or before and nobody has heard of it, this is an error; it is heard then.
    pub fn sync_all(&self) -> Result<()> {
        let pool = self.store().pool();
        let before = pool.failed_syncs();
        self.commit_all()?;
        let files = pool.tell_failures();
        if files > 0 || pool.failed_syncs() > before {
            return Err(Fault::warn(libc::EIO, "files could not be synced, and are marked as damaged"));
        }
        Ok(())
    }

    /// As [`Files::sync_all`], for who is no program that has written anything: that a file could not be synced is no
    /// error, and stays to be told to one that has.
    pub fn commit_all(&self) -> Result<()> {
        self.wait_for_closed_replaces();
        let learned = self.learn_all(Switch::Leave);
        self.commit_for_client()?;
        // What was deleted goes in the background: it is as if it were gone, but for its space.
        self.wait_for_given_up(CLOSING);
        self.let_unlink();
        learned?;
        Ok(())
    }
}

impl Locked<'_> {
    /// Records what the file has become, and waits until that is durable.
    pub(super) fn make_durable(mut self, caller: Caller) -> Result<()> {
        self.note_sync();
        let learned = self.make_and_learn(caller.unique)?;
        self.commit_learned(learned)
    }

    /// As [`Locked::make_durable`], where one of the processes that share a handle closes it: it may be the last one.
    pub(super) fn make_durable_at_close(mut self, caller: Caller) -> Result<()> {
        if self.is_replaced_by_others(caller) {
            return Ok(());
        }
        let learned = match self.is_replacing() {
            true => self.make_standing(caller.unique)?,
            false => self.make_and_learn(caller.unique)?,
        };
        self.commit_learned(learned)
    }

    fn commit_learned(self, learned: Learned) -> Result<()> {
        let (files, node) = (self.files, self.node);
        let store = files.store();
        let segment = self.segment();
        drop(self);
        if learned.durable {
            files.commit_stored_for_client()?;
        } else {
            files.commit_for_client()?;
        }
        if segment.is_some_and(|segment| store.segments().failed(segment)) {
            store.pool().failure_told(node.ino());
            return Err(Fault::warn(libc::EIO, "the file's segment could not be synced"));
        }
        Ok(())
    }

    /// Makes the bytes of the file durable and records them: the log's next flush is all that is missing then.
    fn make_and_learn(&mut self, unique: u64) -> Result<Learned> {
        if let Some(value) = self.read_value() {
            match self.learn_made(unique, Switch::Store, Some(value)) {
                // The log may have room for less.
                Err(fault) if fault.errno == libc::ENOSPC => {}
                learned => return learned,
            }
        }
        let synced = self.sync_early().map(Made::Synced);
        self.learn_made(unique, Switch::Store, synced)
    }

    /// Syncs the segment of a file that is open for writing, before it is known what is to be recorded of it: so nobody
    /// else's commit waits for these bytes. Lets go of the inode's lock meanwhile. Returns what the file was before.
    pub(super) fn sync_early(&mut self) -> Option<Synced> {
        let segment = self.serving().filter(|serving| serving.writing.is_some())?.segment;
        let before = self.look().ok()?;
        // Also if it looks as it did after the last sync: a write that was under way then shows the time at which it
        // began.
        let pool = self.files.store().pool();
        let done = self.unlocked(|| waits::during(Wait::Sync, || pool.sync_early(segment)));
        done.unwrap_or(false).then_some(Synced { segment, before })
    }
}

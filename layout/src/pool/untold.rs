//! Segments whose sync failed where the log cannot say so any more: the host may go on to show bytes of theirs that are
//! not on its disk, so whoever opens the pool next, before the machine is started anew, has to know of them. After that
//! recovery believes nothing but what was durable. In the same way it is told that a server has ended where the pool
//! could not say so.

use std::io;

use crate::ids::SegmentId;
use crate::log::superblock::Superblock;
use crate::medium::boot_note::BootNote;
use crate::medium::dir::Dir;
use crate::pool::opened::Pool;
use crate::segment::segments::Segments;

/// The line that says so.
const ENDED: &str = "its server has ended";

fn note<'a>(pool: &'a Dir, superblock: &Superblock, boot: [u8; 16]) -> BootNote<'a> {
    BootNote::on(pool, &superblock.uuid_text(), boot)
}

/// Has the segments known as failed of which an earlier server could not have the log say so. True if that server has
/// ended, and was not killed.
pub(crate) fn hear(pool: &Dir, superblock: &Superblock, boot: [u8; 16], segments: &Segments) -> bool {
    let text = note(pool, superblock, boot).read().unwrap_or_default();
    // One that is not whole was being written when its server was killed.
    let whole = text.lines().filter(|line| line.len() == SegmentId(0).to_string().len());
    for segment in whole.filter_map(|line| u64::from_str_radix(line, 16).ok()) {
        segments.fail(SegmentId(segment), "a server before heard of it, and could not record it");
    }
    text.lines().any(|line| line == ENDED)
}

impl Pool {
    fn note(&self) -> BootNote<'_> {
        let note = self.superblock.of(|superblock| note(self.lock.dir(), superblock, self.boot_id));
        note.held(self.upkeep.note.get())
    }

    /// Holds open what the next mount has to be told by if the log takes nothing: for a server that is about to give up
    /// the rights to open it.
    ///
    /// # Errors
    /// What the host says. Then it can only be told by a note in the pool.
    pub fn hold_note(&self) -> io::Result<()> {
        let held = self.note().hold()?;
        let _ = self.upkeep.note.set(held);
        Ok(())
    }

    /// If the log takes nothing any more: notes elsewhere what it should say. Called behind each failure.
    pub(super) fn note_untold(&self) {
        let failed: Vec<SegmentId> = self.segments.unmarked().into_iter().map(|(segment, _)| segment).collect();
        if failed.is_empty() || self.is_read_only().is_none() {
            return;
        }
        if let Err(error) = self.note().write(&lines(&failed)) {
            self.unheard(&failed, &error);
        }
    }

    /// The pool's server ends, and the pool does not take that.
    pub(super) fn note_ended(&self) {
        let failed: Vec<SegmentId> = self.segments.unmarked().into_iter().map(|(segment, _)| segment).collect();
        match self.note().write(&format!("{}{ENDED}\n", lines(&failed))) {
            Err(error) if failed.is_empty() => {
                log::warn!("{}: the next mount will not know that its server has ended: {error}", self.path.display());
            }
            Err(error) => self.unheard(&failed, &error),
            Ok(()) => {}
        }
    }

    fn unheard(&self, failed: &[SegmentId], error: &io::Error) {
        let (pool, count) = (self.path.display(), failed.len());
        log::error!("{pool}: the next mount will not know of {count} files that could not be synced: {error}");
    }

    /// The log has said it, durably.
    pub(super) fn told(&self) {
        if let Err(error) = self.note().remove() {
            log::warn!("{}: a note on files that could not be synced stays: {error}", self.path.display());
        }
    }
}

fn lines(failed: &[SegmentId]) -> String {
    failed.iter().map(|segment| format!("{segment}\n")).collect()
}

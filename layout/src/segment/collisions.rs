//! Failures that are none: direct writes that collide with a mapping.
//!
//! Where a program writes a page directly while another one stores to it through a mapping, the kernel cannot drop the
//! page from its cache after the direct write. It has the next sync of each descriptor say `EIO`, though nothing was
//! lost: the page is still dirty, and is written like any other. A failed write looks the same to that descriptor. But
//! it also counts for its whole filesystem, which the next `syncfs` on any descriptor tells, and a collision does not.
//!
//! So a sync that failed is tried again, against rule 9, where all of this holds, and is believed only then:
//!
//! * a *witness*, a second descriptor, hears of each failure as well: so none was one of the disk's flush, of the
//!   filesystem's own tables, or of beginning to write. One that is open all the time hears of all; one that is opened
//!   for a sync, of those that were told to nobody before. The former is there for a file that was opened for direct
//!   writes; the latter for one that was opened before this server began, nobody knows how, and for one that the kernel
//!   itself maps, as `F_SETFL` is not heard of: asynchronous writes heed it where the kernel moves the bytes.
//! * in the end a sync succeeds, and after it one of the whole host, which has not failed to write any file's bytes
//!   since the pool was opened; and ext4 has counted no errors meanwhile.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::ids::SegmentId;
use crate::segment::segments::Segments;

/// So often a sync is tried while programs go on colliding.
const TRIES: usize = 100;

impl Segments {
    /// The segment is about to be written directly. Call it after [`Segments::begin_write`].
    pub fn expect_collisions(&self, id: SegmentId) {
        if self.unsynced.tracked.lock().get(id).is_none_or(|entry| entry.witness.is_some()) {
            return;
        }
        // Without it a collision is taken for a failure.
        let Ok(witness) = self.open(id, libc::O_RDONLY).map(Arc::new) else { return };
        self.unsynced.tracked.lock().change(id, |entry| entry.witness.get_or_insert(witness.clone()).clone());
    }

    /// Programs may write the segment directly that did not say so. Call it after [`Segments::begin_write`].
    pub fn may_collide(&self, id: SegmentId) {
        self.unsynced.tracked.lock().change(id, |entry| entry.unsaid = true);
    }

    /// Who hears of what fails from now on, and of what failed before and was told to nobody.
    fn witness(&self, id: SegmentId) -> Option<Arc<OwnedFd>> {
        let (open, unsaid) = {
            let tracked = self.unsynced.tracked.lock();
            let entry = tracked.get(id)?;
            (entry.witness.clone(), entry.unsaid)
        };
        // Without it a collision is taken for a failure.
        let opened = || if unsaid { self.open(id, libc::O_RDONLY).ok().map(Arc::new) } else { None };
        open.or_else(opened)
    }

    /// Syncs a segment, until no collision is in the way of it. The caller has the segment's turn: of two at the same
    /// time one would hear what the other's witness waits for.
    pub(super) fn sync_witnessed(&self, id: SegmentId, fd: BorrowedFd<'_>) -> io::Result<()> {
        let Some(witness) = self.witness(id) else { return self.medium.sync_segment(fd) };
        let mut collided = None;
        for _ in 0..TRIES {
            self.medium.write_out(fd, false)?;
            match self.medium.sync_segment(fd) {
                Ok(()) => return collided.map_or(Ok(()), |error| self.prove(id, error)),
                Err(error) if error.raw_os_error() == Some(libc::EIO) && hears(witness.as_fd()) => {
                    // Of one that came between the two the witness will not hear again, and the descriptor would.
                    hears(fd);
                    collided = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(collided.unwrap_or_else(|| io::ErrorKind::Other.into()))
    }

    /// After a sync that succeeded: that those before it, which failed, were collisions.
    fn prove(&self, id: SegmentId, error: io::Error) -> io::Result<()> {
        let home = self.home(id.tier())?;
        // Whoever may have bytes is asked first: see `sync.rs`.
        for (other, fd) in self.unsynced.descriptors() {
            if let Err(error) = self.medium.write_out(fd.as_fd(), false) {
                self.fail(other, error);
            }
        }
        let clean = self.sync_whole(home).is_ok() && !self.look_at_host(home)?;
        if clean && !home.is_doubtful() && !self.failed(id) {
            log::debug!("{}: direct writes collided with a mapping", self.path_of(id).display());
            return Ok(());
        }
        Err(error)
    }
}

/// True if a failure to write bytes was told to a descriptor just now.
fn hears(witness: BorrowedFd<'_>) -> bool {
    // SAFETY: takes integers alone, and changes no byte.
    unsafe { libc::sync_file_range(witness.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) == -1 }
}

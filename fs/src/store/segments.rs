//! New segments: a spare one where there is one, else one that is made at once.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorfs_layout::SegmentId;
use tensorfs_layout::log::PM;

use crate::clock;
use crate::error::{Fault, Host, Result};

use super::spares::NewSegment;
use super::{Store, host};

impl Store {
    /// A new, empty segment in a tier, for a project or for none. If it is to replace another one, it is younger than
    /// that.
    pub fn new_segment(&self, tier: u8, project: u32, replaced: Option<SegmentId>) -> Result<NewSegment> {
        // Spare ones are in the pool's own directory.
        let spare = if tier == PM { self.spares.take(replaced) } else { None };
        let made = match spare {
            Some(spare) => self.use_spare(spare),
            None => self.make_segment(tier),
        }?;
        if project != 0
            && let Err(fault) = self.count_new_for(&*made.fd, project)
        {
            self.pool.discard_segment(made.segment);
            return Err(fault);
        }
        Ok(made)
    }

    fn use_spare(&self, spare: NewSegment) -> Result<NewSegment> {
        self.counters.spares_used.add(1);
        // It has the times at which it was made.
        let now = clock::coarse();
        let timed = host::set_times(&*spare.fd, Some(now), Some(now)).host("setting a segment's times");
        self.segments().no_spare(spare.segment);
        if timed.is_err() {
            self.pool.discard_segment(spare.segment);
        }
        timed.map(|()| NewSegment { since: now, ..spare })
    }

    fn make_segment(&self, tier: u8) -> Result<NewSegment> {
        // A number can only be taken if a crash kept a segment but not the record that counted it.
        for _ in 0..16 {
            let number = SegmentId::in_tier(tier, self.pool.edit().next_id());
            let segment = number.ok_or(Fault::warn(libc::EIO, "no segment numbers are left"))?;
            match self.segments().create(segment) {
                Ok(fd) => {
                    let since = host::stat(&fd).host("looking at a segment").map(|host| host.mtime);
                    let since = since.inspect_err(|_| self.pool.discard_segment(segment))?;
                    return Ok(NewSegment { segment, fd: Arc::new(fd), backing: None, since });
                }
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error).host("creating a segment"),
            }
        }
        Err(Fault::warn(libc::EIO, "no free segment number"))
    }

    /// Makes the spares that are wanted.
    pub fn make_spares(&self) {
        while self.spares.put(self.make_spare()) {}
    }

    /// Nothing is made ahead on a host that is nearly full, nor in a pool that takes no changes.
    fn make_spare(&self) -> Option<NewSegment> {
        if self.host_is_tight() || self.check_writable().is_err() {
            return None;
        }
        let segment = SegmentId(self.pool.edit().next_id());
        let made = self.segments().create_spare(segment).inspect_err(|error| log::debug!("no spare: {error}"));
        let fd: Arc<OwnedFd> = Arc::new(made.ok()?);
        self.counters.spares_made.add(1);
        let backing = if self.link.has_passthrough() { self.register(&*fd).ok() } else { None };
        Some(NewSegment { segment, fd, backing, since: clock::coarse() })
    }

    /// Removes the spares that are left. The next recovery finds what cannot be removed.
    pub fn remove_spares(&self) {
        for spare in self.spares.take_all() {
            if self.segments().remove_spare(spare.segment).is_err() {
                // It is tried again as any other that no file has.
                self.pool().discard_segment(spare.segment);
            }
        }
    }
}

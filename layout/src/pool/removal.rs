//! Segments that no file has any more: they go once the horizon covers that (rule 5).

use crate::ids::SegmentId;
use crate::pool::opened::Pool;

impl Pool {
    /// Removes segments from the host whose removal the horizon covers; returns how many.
    pub fn unlink_covered(&self) -> usize {
        // One at a time: who waits for space finds either something to remove, or that it is removed.
        let _unlinking = self.unlinking.lock();
        let horizon = self.horizon();
        let mut count = 0;
        loop {
            let next = self.freed.lock().front().copied().filter(|(id, _)| *id <= horizon);
            let Some((_, segment)) = next else { return count };
            match self.segments.unlink(segment) {
                Ok(()) => count += 1,
                Err(error) => log::error!("{}: unlink: {error}", self.segments.path_of(segment).display()),
            }
            self.freed.lock().pop_front();
        }
    }

    /// True if this segment is to be removed from the host.
    pub(crate) fn is_freed(&self, segment: SegmentId) -> bool {
        self.freed.lock().iter().any(|(_, freed)| *freed == segment)
    }

    /// True if the host still holds segments that no file has any more.
    pub fn has_freed(&self) -> bool {
        !self.freed.lock().is_empty()
    }

    /// Has a segment removed from the host once everything stored so far is durable.
    pub fn discard_segment(&self, segment: SegmentId) {
        self.freed.lock().push_back((self.newest(), segment));
    }
}

//! Segments that no file has any more: they go once the horizon covers that (rule 5).

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::ids::{SegmentId, TxId};
use crate::segment::segments::Segments;

/// Segments to remove from the host once the horizon reaches the transaction that freed them.
#[derive(Debug, Default)]
pub(super) struct Removals {
    queue: Mutex<VecDeque<(TxId, SegmentId)>>,
    /// Held while they are removed.
    removing: Mutex<()>,
}

impl Removals {
    /// Has segments removed once the horizon reaches the transaction `by`, which is asked for when it is this caller's
    /// turn.
    pub fn add(&self, by: impl FnOnce() -> TxId, segments: impl IntoIterator<Item = SegmentId>) {
        let mut queue = self.queue.lock();
        let by = by();
        queue.extend(segments.into_iter().map(|segment| (by, segment)));
    }

    pub fn contains(&self, segment: SegmentId) -> bool {
        self.queue.lock().iter().any(|(_, freed)| *freed == segment)
    }

    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Removes at most so many of those that the horizon covers; returns how many. `horizon` is asked once it is this
    /// caller's turn.
    pub fn remove(&self, segments: &Segments, most: usize, horizon: impl FnOnce() -> TxId) -> usize {
        // One at a time: who waits for space finds either something to remove, or that it is removed.
        let _removing = self.removing.lock();
        let horizon = horizon();
        let mut count = 0;
        while count < most {
            let next = self.queue.lock().front().copied().filter(|(id, _)| *id <= horizon);
            let Some((_, segment)) = next else { break };
            match segments.unlink(segment) {
                Ok(()) => {}
                Err(error) => log::error!("{}: unlink: {error}", segments.path_of(segment).display()),
            }
            count += 1;
            self.queue.lock().pop_front();
        }
        count
    }
}

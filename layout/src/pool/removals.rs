//! Segments that no file has any more: they go once the horizon covers that (rule 5). One that the host would not
//! remove is tried again, as long as the pool is open.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::ids::{SegmentId, TxId};
use crate::segment::segments::Segments;

/// Those that are to be removed, in order: since which transaction, and what was recorded of their bytes.
#[derive(Debug, Default)]
struct Queue {
    segments: VecDeque<(TxId, SegmentId, u64)>,
    bytes: u64,
    /// Those that are not to be removed before they are let go of; the rest once no file has them any more.
    kept: HashMap<SegmentId, Option<(TxId, u64)>>,
    kept_bytes: u64,
}

impl Queue {
    fn let_go(&mut self, segment: SegmentId) {
        if let Some((by, bytes)) = self.kept.remove(&segment).flatten() {
            self.kept_bytes -= bytes;
            self.bytes += bytes;
            self.segments.push_back((by, segment, bytes));
        }
    }
}

/// Segments to remove from the host once the horizon reaches the transaction that freed them.
#[derive(Debug, Default)]
pub(super) struct Removals {
    queue: Mutex<Queue>,
    /// Those that the host would not remove, whoever was tried longest ago first.
    refused: Mutex<VecDeque<SegmentId>>,
    /// Held while they are removed.
    removing: Mutex<()>,
}

/// So many that the host would not remove are tried again at a time.
const AGAIN: usize = 64;

impl Removals {
    /// Has segments removed once the horizon reaches the transaction `by`, which is asked for when it is this caller's
    /// turn.
    pub fn add(&self, by: impl FnOnce() -> TxId, segments: impl IntoIterator<Item = (SegmentId, u64)>) {
        let mut queue = self.queue.lock();
        let by = by();
        for (segment, bytes) in segments {
            if let Some(kept) = queue.kept.get_mut(&segment) {
                let before = kept.replace((by, bytes)).map_or(0, |(_, bytes)| bytes);
                queue.kept_bytes = queue.kept_bytes - before + bytes;
                continue;
            }
            queue.bytes += bytes;
            queue.segments.push_back((by, segment, bytes));
        }
    }

    pub fn contains(&self, segment: SegmentId) -> bool {
        let queue = self.queue.lock();
        let kept = || queue.kept.get(&segment).is_some_and(Option::is_some);
        let freed = queue.segments.iter().any(|(_, freed, _)| *freed == segment) || kept();
        drop(queue);
        freed || self.refused.lock().contains(&segment)
    }

    pub fn is_empty(&self) -> bool {
        self.queue.lock().segments.is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.lock().segments.len()
    }

    /// The one whose turn it is, if the horizon covers it where it is now.
    pub fn next_until(&self, horizon: TxId) -> Option<SegmentId> {
        self.queue.lock().segments.front().filter(|(by, ..)| *by <= horizon).map(|(_, segment, _)| *segment)
    }

    pub fn bytes(&self) -> u64 {
        self.queue.lock().bytes
    }

    /// A segment is not to be removed before it is let go of.
    pub fn keep(&self, segment: SegmentId) {
        self.queue.lock().kept.entry(segment).or_default();
    }

    /// It may be.
    pub fn let_go(&self, segment: SegmentId) {
        self.queue.lock().let_go(segment);
    }

    /// All may be.
    pub fn let_go_of_all(&self) {
        let mut queue = self.queue.lock();
        let all: Vec<SegmentId> = queue.kept.keys().copied().collect();
        all.into_iter().for_each(|segment| queue.let_go(segment));
    }

    /// Those that no file has any more and that are kept.
    pub fn kept(&self) -> Vec<SegmentId> {
        let queue = self.queue.lock();
        queue.kept.iter().filter(|(_, freed)| freed.is_some()).map(|(segment, _)| *segment).collect()
    }

    pub fn kept_bytes(&self) -> u64 {
        self.queue.lock().kept_bytes
    }

    /// How many the host would not remove.
    pub fn refused(&self) -> usize {
        self.refused.lock().len()
    }

    /// Removes at most so many of those that the horizon covers; returns how many. `horizon` is asked once it is this
    /// caller's turn.
    pub fn remove(&self, segments: &Segments, most: usize, horizon: impl FnOnce() -> TxId) -> usize {
        // One at a time: who waits for space finds either something to remove, or that it is removed.
        let _removing = self.removing.lock();
        let horizon = horizon();
        let mut count = 0;
        while count < most {
            let next = self.queue.lock().segments.front().copied().filter(|(id, ..)| *id <= horizon);
            let Some((_, segment, bytes)) = next else { break };
            if let Err(error) = segments.unlink(segment) {
                let mut refused = self.refused.lock();
                // One line for all: where one cannot be removed, thousands may be.
                let level = if refused.is_empty() { log::Level::Error } else { log::Level::Debug };
                log::log!(level, "{}: unlink: {error}; tried again later", segments.path_of(segment).display());
                refused.push_back(segment);
            }
            count += 1;
            let mut queue = self.queue.lock();
            queue.segments.pop_front();
            queue.bytes -= bytes;
        }
        count
    }

    /// Tries some of those again that the host would not remove.
    pub fn retry(&self, segments: &Segments) {
        let _removing = self.removing.lock();
        for _ in 0..self.refused().min(AGAIN) {
            let Some(segment) = self.refused.lock().front().copied() else { break };
            let removed = segments.unlink(segment);
            // Only now: until then it is known to be no file's.
            let mut refused = self.refused.lock();
            refused.pop_front();
            if removed.is_err() {
                refused.push_back(segment);
            } else if refused.is_empty() {
                log::info!("{}: removed after all, as all others", segments.path_of(segment).display());
            }
        }
    }
}

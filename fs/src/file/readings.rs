//! Descriptors by which the server itself reads segments for a while, and how to have them closed for a moment.
//!
//! Such a descriptor would pass for a mapping when it is tested whether anything else has a segment open. Whoever tests
//! claims the segment first: readers close their descriptors, wait, and open them again.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::SegmentId;
use tensorfs_layout::pool::Pool;

/// So long a claim waits for readers, which are in the middle of one read at most.
const PATIENCE: Duration = Duration::from_millis(100);

/// The descriptors that are open, and the claims.
#[derive(Clone, Default)]
pub(crate) struct Readings(Arc<Shared>);

#[derive(Default)]
struct Shared {
    segments: Mutex<HashMap<SegmentId, Count>>,
    changed: Condvar,
    /// Claims on any segment, to be looked at without the lock.
    claims: AtomicUsize,
}

#[derive(Default)]
struct Count {
    open: u32,
    claims: u32,
}

/// A segment that is open to be read.
pub(crate) struct Reading {
    readings: Readings,
    segment: SegmentId,
    /// Only `None` while being dropped.
    fd: Option<OwnedFd>,
}

/// A segment that is closed, as far as this server can close it.
pub(crate) struct Claim {
    readings: Readings,
    segment: SegmentId,
}

impl Readings {
    /// Opens a segment to read it without changing its access time; waits while it is claimed.
    pub fn open(&self, pool: &Pool, segment: SegmentId) -> io::Result<Reading> {
        let mut segments = self.0.segments.lock();
        while segments.get(&segment).is_some_and(|count| count.claims > 0) {
            self.0.changed.wait(&mut segments);
        }
        segments.entry(segment).or_default().open += 1;
        drop(segments);
        let mut reading = Reading { readings: self.clone(), segment, fd: None };
        let open = |more| pool.segments().open(segment, libc::O_RDONLY | more);
        reading.fd = Some(match open(libc::O_NOATIME) {
            // Only the owner may.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => open(0)?,
            other => other?,
        });
        Ok(reading)
    }

    /// True if the segment's descriptors are to be closed.
    pub fn is_claimed(&self, segment: SegmentId) -> bool {
        self.0.claims.load(Ordering::Relaxed) > 0
            && self.0.segments.lock().get(&segment).is_some_and(|count| count.claims > 0)
    }

    /// Waits until nobody reads the segment here. Until the claim goes, nobody begins to.
    pub fn claim(&self, segment: SegmentId) -> Claim {
        self.claim_within(segment, PATIENCE)
    }

    /// As [`Readings::claim`], but waits no longer than that.
    pub fn claim_within(&self, segment: SegmentId, patience: Duration) -> Claim {
        let deadline = Instant::now() + patience;
        let mut segments = self.0.segments.lock();
        self.0.claims.fetch_add(1, Ordering::Relaxed);
        segments.entry(segment).or_default().claims += 1;
        while segments.get(&segment).is_some_and(|count| count.open > 0) {
            if self.0.changed.wait_until(&mut segments, deadline).timed_out() {
                break;
            }
        }
        Claim { readings: self.clone(), segment }
    }

    fn change(&self, segment: SegmentId, change: impl FnOnce(&mut Count)) {
        let mut segments = self.0.segments.lock();
        if let Some(count) = segments.get_mut(&segment) {
            change(count);
            if count.open == 0 && count.claims == 0 {
                segments.remove(&segment);
            }
        }
        drop(segments);
        self.0.changed.notify_all();
    }
}

impl AsFd for Reading {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("a reading is open until it is dropped").as_fd()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        drop(self.fd.take());
        self.readings.change(self.segment, |count| count.open -= 1);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.readings.0.claims.fetch_sub(1, Ordering::Relaxed);
        self.readings.change(self.segment, |count| count.claims -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use tensorfs_layout::pool::{CreateOptions, OpenOptions};

    /// A test that fails must not wait for a thread that goes on.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A reader that goes on reading gives way to every claim, and a claim that is over lets it go on.
    #[test]
    fn readers_give_way_to_a_claim() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
        let segment = SegmentId(1000);
        pool.segments().create(segment).unwrap();
        let readings = Readings::default();
        let (stop, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                let mut reading = None;
                while !stop.load(Ordering::Relaxed) {
                    if readings.is_claimed(segment) {
                        reading = None;
                    }
                    reading = Some(reading.unwrap_or_else(|| readings.open(&pool, segment).unwrap()));
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
            for _ in 0..50 {
                let before = reads.load(Ordering::Relaxed);
                while reads.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                let mut claim = readings.claim(segment);
                // A claim waits for a while only; the reader may not have had a processor meanwhile.
                while readings.0.segments.lock()[&segment].open > 0 {
                    claim = readings.claim(segment);
                }
                // A process that another test starts has copies of all descriptors until it has its program.
                let exclusive = || {
                    pool.segments().exclusive(segment) || {
                        std::thread::sleep(Duration::from_millis(10));
                        false
                    }
                };
                assert!((0..1000).any(|_| exclusive()));
                drop(claim);
            }
        });
        assert!(readings.0.segments.lock().is_empty());
        // One that does not exist leaves nothing behind either.
        assert!(readings.open(&pool, SegmentId(2000)).is_err());
        assert!(readings.0.segments.lock().is_empty());
        pool.close().unwrap();
    }
}

//! Scrubbing: the bytes of sealed files are read again and compared with their checksums, behind everybody's back.
//!
//! A file is read as it is for sealing: opening it for writing has the reading given up at once, and what was read is
//! then forgotten. So neither does a program wait for a scrub, nor is a file called damaged that was written meanwhile.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_formats::Source;
use tensorfs_layout::{Direct, Finding, Ino, Report, SegmentId, fault_of_run};

use crate::damage::BadRun;
use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::jobs::Job;

/// How often a file is tried that is opened for writing meanwhile.
const TRIES: usize = 3;
/// At most so long passes before a scrub hears that it is not wanted any more.
const NAP: Duration = Duration::from_millis(5);
/// What was not read in this time need not be made up for.
const SLACK: Duration = Duration::from_millis(200);

/// Bytes in time.
pub(crate) struct Pace {
    rate: Option<u64>,
    /// When the next byte may be read.
    next: Instant,
}

impl Pace {
    pub fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.filter(|rate| *rate > 0), next: Instant::now() }
    }

    /// Waits until it is time for more, after so many bytes.
    fn wait(&mut self, bytes: usize, go_on: &dyn Fn() -> bool) {
        let Some(rate) = self.rate else { return };
        let now = Instant::now();
        self.next = self.next.max(now.checked_sub(SLACK).unwrap_or(now));
        self.next += Duration::from_secs_f64(bytes as f64 / rate as f64);
        while go_on() {
            match self.next.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => thread::sleep(left.min(NAP)),
                _ => return,
            }
        }
    }
}

/// A file that is read at a pace, and not any more once that is not wanted.
struct Paced<'a> {
    file: &'a dyn Source,
    pace: RefCell<&'a mut Pace>,
    go_on: &'a dyn Fn() -> bool,
}

impl Source for Paced<'_> {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.pace.borrow_mut().wait(buffer.len(), self.go_on);
        if !(self.go_on)() {
            return Err(io::Error::other("no longer wanted"));
        }
        self.file.read_at(offset, buffer)
    }
}

/// The runs of a file that do not have the checksums that they were sealed with: offset, length, checksum. Means nothing
/// once `go_on` has said no.
pub(crate) fn bad_runs(source: &dyn Source, runs: &[(u64, u64, u32)], go_on: &dyn Fn() -> bool) -> Vec<BadRun> {
    let mut bad = Vec::new();
    for (offset, len, crc) in runs.iter().copied() {
        if !go_on() {
            break;
        }
        if let Some(what) = fault_of_run(source, offset, len, crc, &|_| {}) {
            bad.push(BadRun { offset, len, what });
        }
    }
    bad
}

/// What came of reading a file.
enum Look {
    Verified(Vec<Finding>),
    /// It has no seals, or something can write it.
    Unsealed,
    /// It was given up.
    Disturbed,
}

impl Filesystem {
    /// Verifies every sealed file. Returns how many were busy again and again; what was found and counted is in the report.
    /// Ends early if the job is not wanted any more.
    pub fn scrub(&self, job: &Job, rate: Option<u64>, report: &mut Report) -> Result<u64> {
        let files: Vec<(Ino, u64)> = {
            let view = self.pool.view();
            let files =
                view.objects().filter(|(_, object)| object.is_file() && object.names() > 0 && object.size() > 0);
            let mut files: Vec<(Ino, u64)> = files.map(|(ino, object)| (ino, object.size())).collect();
            files.sort_unstable();
            files
        };
        let total = files.iter().map(|(_, size)| size).sum();
        let (mut done, mut busy) = (0, 0);
        let mut pace = Pace::new(rate);
        for (ino, size) in files {
            job.progress("data", done, total);
            let mut look = Look::Disturbed;
            for _ in 0..TRIES {
                if !job.is_wanted() {
                    return Ok(busy);
                }
                let read = |bytes| job.progress("data", done + bytes, total);
                look = self.verify_file(ino, job, &mut pace, &read)?;
                if !matches!(look, Look::Disturbed) {
                    break;
                }
                thread::sleep(NAP * 4);
            }
            match look {
                Look::Verified(findings) => {
                    report.verified_bytes += size;
                    findings.into_iter().for_each(|finding| job.found(finding));
                }
                Look::Unsealed => report.unsealed_bytes += size,
                Look::Disturbed => busy += 1,
            }
            done += size;
        }
        job.progress("data", total, total);
        Ok(busy)
    }

    fn verify_file(&self, ino: Ino, job: &Job, pace: &mut Pace, read: &dyn Fn(u64)) -> Result<Look> {
        let node = self.nodes.take(ino);
        let mut state = node.lock();
        let sealed = || -> Option<(SegmentId, u64)> {
            let view = self.pool.view();
            let object = view.object(ino).filter(|object| object.names() > 0)?;
            let chain = object.chain().filter(|chain| chain.has_seals())?;
            Some((object.attributes.segment?, chain.version()))
        };
        if state.writing.is_some() || state.replace.is_some() {
            return Ok(Look::Unsealed);
        }
        if state.opening > 0 || state.sealing {
            return Ok(Look::Disturbed);
        }
        let Some(version) = sealed() else { return Ok(Look::Unsealed) };
        if self.pool.segments().gone(version.0).is_some() {
            return Ok(Look::Unsealed);
        }
        let runs = self.sealed_runs(ino);
        let begun = node.writes_begun.load(Ordering::Relaxed);
        let open =
            |flags| self.pool.segments().open(version.0, libc::O_RDONLY | libc::O_NOATIME | flags).map(File::from);
        let file = match Direct::open(open) {
            Ok(file) => file,
            Err(error) => {
                let (offset, len) = runs.first().map_or((0, 0), |run| (run.0, run.1));
                let bad = BadRun { offset, len, what: format!("its segment cannot be opened: {error}") };
                // There are no bytes to look at.
                return Ok(Look::Verified(self.settle_damage(ino, &&[][..], &[bad])));
            }
        };
        state.sealing = true;
        drop(state);
        let go_on = || node.writes_begun.load(Ordering::Relaxed) == begun && job.is_wanted();
        let paced = Paced { file: &file, pace: RefCell::new(pace), go_on: &go_on };
        let counted = Counted { source: &paced, read, done: std::cell::Cell::new(0) };
        let bad = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bad_runs(&counted, &runs, &go_on)));
        let mut state = node.lock();
        // Closed before the lock is let go of: whoever waited would take it for a program that has the file mapped.
        let file = file;
        state.sealing = false;
        node.released.notify_all();
        let undisturbed = go_on() && state.writing.is_none() && state.replace.is_none() && sealed() == Some(version);
        match bad {
            Ok(bad) if undisturbed => Ok(Look::Verified(self.settle_damage(ino, &file, &bad))),
            _ => Ok(Look::Disturbed),
        }
    }
}

/// A source that says how much was read of it.
struct Counted<'a> {
    source: &'a dyn Source,
    read: &'a dyn Fn(u64),
    done: std::cell::Cell<u64>,
}

impl Source for Counted<'_> {
    fn size(&self) -> io::Result<u64> {
        self.source.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read_at(offset, buffer)?;
        self.done.set(self.done.get() + count as u64);
        (self.read)(self.done.get());
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_kept() {
        let begin = Instant::now();
        let mut pace = Pace::new(Some(10_000_000));
        for _ in 0..6 {
            pace.wait(100_000, &|| true);
        }
        // What comes first may be SLACK early.
        assert!(begin.elapsed() >= Duration::from_millis(60) - SLACK.min(Duration::from_millis(60)));
        assert!(pace.next >= begin + Duration::from_millis(60));
        let mut slow = Pace::new(Some(1));
        slow.wait(1 << 30, &|| false);
        Pace::new(None).wait(1 << 30, &|| true);
    }

    #[test]
    fn damaged_runs_are_found_and_no_others() {
        let bytes: Vec<u8> = (0..100).collect();
        let crc = |range: std::ops::Range<usize>| tensorfs_formats::crc32c(&bytes[range]);
        let runs = [(0, 10, crc(0..10)), (10, 20, crc(10..30) ^ 1), (30, 70, crc(30..100)), (100, 1, 0)];
        let bad: Vec<u64> = bad_runs(&&bytes[..], &runs, &|| true).iter().map(|bad| bad.offset).collect();
        assert_eq!(bad, [10, 100]);
    }
}

//! Scrubbing: the bytes of sealed files are read again and compared with their checksums, behind everybody's back.
//!
//! A file is read as it is for sealing: opening it for writing has the reading given up at once, and what was read is
//! then forgotten. So neither does a program wait for a scrub, nor is a file called damaged that was written meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use tensorfs_formats::Source;
use tensorfs_layout::check::{Finding, Report, Unfinished, fault_of_size};
use tensorfs_layout::medium::Direct;
use tensorfs_layout::tree::Object;
use tensorfs_layout::{Ino, SegmentId, reason};

use crate::file::Files;
use crate::store::{BadRun, Scrub, Store};

use super::checksums::{bad_runs, checksums};
use super::job::Job;

/// How often a file is tried that is opened for writing meanwhile.
const TRIES: usize = 3;
/// At most so long passes before a scrub hears that it is not wanted any more.
const NAP: Duration = Duration::from_millis(5);
/// What was not read in this time need not be made up for.
const SLACK: Duration = Duration::from_millis(200);

/// Bytes in time.
struct Pace {
    rate: Option<u64>,
    /// When the next byte may be read.
    next: Instant,
}

impl Pace {
    fn new(rate: Option<u64>) -> Self {
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

    fn hole(&self, offset: u64) -> io::Result<u64> {
        self.file.hole(offset)
    }
}

/// What came of reading a file.
enum Look {
    Verified(Vec<Finding>),
    /// It has no seals, or something can write it.
    Unsealed,
    /// It was given up.
    Disturbed,
}

/// How far a scrub has come is kept so often, for one that goes on after the server was killed.
const KEPT: Duration = Duration::from_secs(60);

/// Verifies every sealed file, from where another scrub was interrupted on if there was one. Returns how many were busy
/// again and again, or how far it has come if the job is not wanted any more; what was found and counted is in the
/// report. What was told of a file before is not told again.
pub(super) fn scrub(
    files: &Files,
    job: &Job,
    rate: Option<u64>,
    told: &HashSet<(Option<Ino>, String)>,
    before: Option<Unfinished>,
    report: &mut Report,
) -> Result<u64, Unfinished> {
    let all = files_with_bytes(files.store());
    let total = all.iter().map(|(_, size)| size).sum();
    let (mut done, mut busy, mut first) = (0, 0, Ino(0));
    if let Some(before) = before {
        report.verified_bytes += before.verified_bytes;
        report.unsealed_bytes += before.unsealed_bytes;
        (busy, first) = (before.busy_files, before.next);
        done = all.iter().filter(|(ino, _)| *ino < first).map(|(_, size)| size).sum();
    }
    let mut pace = Pace::new(rate);
    let mut kept = Instant::now();
    for (ino, size) in all.into_iter().filter(|(ino, _)| *ino >= first) {
        job.progress("data", done, total);
        let so_far = |report: &Report| Unfinished {
            next: ino,
            verified_bytes: report.verified_bytes,
            unsealed_bytes: report.unsealed_bytes,
            busy_files: busy,
        };
        if kept.elapsed() > KEPT {
            files.store().keep_damage(Scrub::Stopped(so_far(report)));
            kept = Instant::now();
        }
        let mut look = Look::Disturbed;
        for _ in 0..TRIES {
            if !job.is_wanted() {
                return Err(so_far(report));
            }
            let read = |bytes| job.progress("data", done + bytes, total);
            look = verify_file(files, ino, job, &mut pace, &read);
            if !matches!(look, Look::Disturbed) {
                break;
            }
            thread::sleep(NAP * 4);
        }
        if !job.is_wanted() {
            return Err(so_far(report));
        }
        match look {
            Look::Verified(findings) => {
                report.verified_bytes += size;
                let is_new = |finding: &Finding| !told.contains(&(finding.ino, finding.what.clone()));
                findings.into_iter().filter(is_new).for_each(|finding| job.found(finding));
            }
            Look::Unsealed => report.unsealed_bytes += size,
            Look::Disturbed => busy += 1,
        }
        done += size;
    }
    job.progress("data", total, total);
    Ok(busy)
}

/// The files that have a name and bytes, with their sizes.
fn files_with_bytes(store: &Store) -> Vec<(Ino, u64)> {
    let view = store.view();
    let has_bytes = |object: &Object| object.is_file() && object.names() > 0 && object.size() > 0;
    let files = view.objects().filter(|(_, object)| has_bytes(object));
    let mut files: Vec<(Ino, u64)> = files.map(|(ino, object)| (ino, object.size())).collect();
    files.sort_unstable();
    files
}

/// What was sealed of a file: the segment, and the version of its chain.
fn sealed(store: &Store, ino: Ino) -> Option<(SegmentId, u64)> {
    let view = store.view();
    let object = view.object(ino).filter(|object| object.names() > 0)?;
    let chain = object.chain().filter(|chain| chain.has_seals())?;
    Some((object.attributes.segment?, chain.version()))
}

fn verify_file(files: &Files, ino: Ino, job: &Job, pace: &mut Pace, read: &dyn Fn(u64)) -> Look {
    let store = files.store();
    let node = files.node(ino);
    let file = files.lock(&node);
    if !file.is_unwritten() {
        return Look::Unsealed;
    }
    if file.is_opening() || file.is_quiet() {
        return Look::Disturbed;
    }
    let Some(version) = sealed(store, ino) else { return Look::Unsealed };
    if store.segments().gone(version.0).is_some() {
        return Look::Unsealed;
    }
    let runs = checksums(store, ino);
    let open = |flags| store.segments().open(version.0, libc::O_RDONLY | libc::O_NOATIME | flags).map(File::from);
    let bytes = match Direct::open(open) {
        Ok(bytes) => bytes,
        Err(error) => {
            let (offset, len) = runs.first().map_or((0, 0), |run| (run.offset, run.len));
            let bad = BadRun::new(offset, len, format!("its segment cannot be opened: {}", reason(&error)));
            // There are no bytes to look at.
            return Look::Verified(store.settle_damage(ino, &&[][..], &[bad]));
        }
    };
    let quiet = file.read_quietly(bytes);
    let go_on = || quiet.is_undisturbed() && job.is_wanted();
    let paced = Paced { file: quiet.open(), pace: RefCell::new(pace), go_on: &go_on };
    let counted = Counted { source: &paced, read, done: Cell::new(0) };
    let bad = catch_unwind(AssertUnwindSafe(|| bad_runs(&counted, &runs, &go_on)));
    // Closed before the lock is let go of: whoever waited would take it for a program that has the file mapped.
    let (file, bytes, undisturbed) = quiet.end();
    let bad = bad.map(|mut bad| {
        bad.extend(bad_size(store, ino, &bytes));
        bad
    });
    let undisturbed = undisturbed && job.is_wanted() && file.is_unwritten() && sealed(store, ino) == Some(version);
    match bad {
        Ok(bad) if undisturbed => Look::Verified(store.settle_damage(ino, &bytes, &bad)),
        _ => Look::Disturbed,
    }
}

/// What is behind the end of a file that is sealed.
fn bad_size(store: &Store, ino: Ino, bytes: &Direct) -> Option<BadRun> {
    let recorded = store.view().object(ino)?.chain().filter(|chain| chain.is_sealed())?.size();
    let (offset, len, what) = fault_of_size(bytes.size().ok()?, recorded)?;
    Some(BadRun::new(offset, len, what))
}

/// A source that says how much was read of it.
struct Counted<'a> {
    source: &'a dyn Source,
    read: &'a dyn Fn(u64),
    done: Cell<u64>,
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

    fn hole(&self, offset: u64) -> io::Result<u64> {
        self.source.hole(offset)
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
}

//! Jobs: what takes long and was asked for by a program, which asks now and then how far it has come. A job that
//! nobody asks about any more ends, so that one whose program was killed does not go on for ever.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use tensorfs_layout::Ino;
use tensorfs_layout::check::{LastScrub, Report, check_in_use};

use crate::clock;
use crate::error::{Fault, Result};
use crate::file::Files;
use crate::protocol::{Event, Output, Work};
use crate::store::Scrub;

use super::job::Job;
use super::scrub::scrub;
use super::task::{guarded, stand_back};

/// A job that reads all files gives way to the next if nobody has asked for it for so long: its program is gone, or
/// stopped. On a busy machine one that goes on may not have run for a second or two.
const GONE: Duration = Duration::from_secs(5);
/// Jobs at one time.
const MOST: usize = 4;

/// A job, and the thread that does it, once it is started.
type Running = (Arc<Job>, Option<JoinHandle<()>>);

/// The jobs of a server.
pub(crate) struct Jobs {
    files: Arc<Files>,
    next: AtomicU64,
    all: Mutex<HashMap<u64, Running>>,
}

impl Jobs {
    /// There are none yet.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files, next: AtomicU64::new(0), all: Mutex::default() }
    }

    /// Begins a job, and returns its number.
    pub fn start(&self, work: Work) -> Result<u64> {
        if work.data {
            self.clear_the_way()?;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let job = Arc::new(Job::new(work.data));
        {
            let mut all = self.all.lock();
            if tidy(&mut all) >= MOST {
                return Err(Fault::new(libc::EBUSY));
            }
            all.insert(number, (job.clone(), None));
        }
        let (files, served) = (self.files.clone(), job.clone());
        let thread = thread::Builder::new().name("tensorfs-job".into()).spawn(move || run(&files, &served, &work));
        let mut all = self.all.lock();
        match thread {
            Ok(thread) => all.entry(number).and_modify(|(_, started)| *started = Some(thread)),
            Err(error) => {
                all.remove(&number);
                return Err(Fault::warn(libc::EAGAIN, format!("cannot start a thread: {error}")));
            }
        };
        Ok(number)
    }

    /// What a job has said, from `at` on, and how far it is.
    pub fn poll(&self, number: u64, at: u64) -> Result<Output> {
        let job = self.all.lock().get(&number).map(|(job, _)| job.clone()).ok_or(Fault::new(libc::ESRCH))?;
        Ok(job.output(at))
    }

    /// Ends a job.
    pub fn cancel(&self, number: u64) -> Result<()> {
        let all = self.all.lock();
        let (job, _) = all.get(&number).ok_or(Fault::new(libc::ESRCH))?;
        job.cancel();
        Ok(())
    }

    /// Ends all jobs, and waits until they have. Nobody starts one any more.
    pub fn finish(&self) {
        let all: Vec<_> = self.all.lock().drain().map(|(_, job)| job).collect();
        for (job, _) in &all {
            job.cancel();
        }
        for thread in all.into_iter().filter_map(|(_, thread)| thread) {
            // It catches its own panics.
            let _ = thread.join();
        }
    }

    /// Sees to it that no other job reads all files: one of whose program nothing is heard is ended.
    fn clear_the_way(&self) -> Result<()> {
        let others: Vec<Arc<Job>> = {
            let all = self.all.lock();
            all.values().map(|(job, _)| job).filter(|job| job.reads() && !job.has_ended()).cloned().collect()
        };
        for job in others {
            if job.unasked() < GONE {
                return Err(Fault::new(libc::EBUSY));
            }
            job.cancel();
            while !job.has_ended() {
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

/// Forgets what has ended, once that was heard or was not for long. Returns how many go on.
fn tidy(all: &mut HashMap<u64, Running>) -> usize {
    all.retain(|_, (job, _)| !job.is_over());
    all.values().filter(|(job, _)| !job.has_ended()).count()
}

/// Does a job, on its thread.
fn run(files: &Files, job: &Job, work: &Work) {
    stand_back();
    match guarded(files.store().counters(), || "a check or scrub".into(), || check(files, job, work)) {
        Some(Ok(())) => {}
        Some(Err(reason)) => job.say(&Event::Failed(reason)),
        None => job.say(&Event::Failed("the server panicked; its log says where".into())),
    }
    job.end();
}

fn check(files: &Files, job: &Job, work: &Work) -> std::result::Result<(), String> {
    let mut report = Report::default();
    let (mut told, last_scrub) = (HashSet::new(), files.store().last_scrub());
    if work.structure {
        let progress = |what, done, total| job.progress(what, done, total);
        let still = |ino, look: &mut dyn FnMut(bool)| keep_still(files, ino, look);
        let checked = check_in_use(files.store().pool(), &still, clock::now(), &progress, &|| job.is_wanted());
        match checked.map_err(|error| error.to_string())? {
            Some(checked) => report = checked,
            None => return Err("it was interrupted".into()),
        }
        if !work.data {
            report = report.with_known(&files.store().known_damage());
        }
        for finding in std::mem::take(&mut report.findings) {
            told.insert((finding.ino, finding.what.clone()));
            job.found(finding);
        }
    }
    if work.data {
        let store = files.store();
        let before = store.unfinished_scrub().filter(|_| work.resume);
        let busy = match scrub(files, job, work.rate, &told, before, &mut report) {
            Ok(busy) => busy,
            Err(stopped) => {
                store.keep_damage(Scrub::Stopped(stopped));
                return Err("it was interrupted".into());
            }
        };
        let found = store.known_damage().len() as u64;
        store.keep_damage(Scrub::Ended(LastScrub::new(clock::now(), &report, busy, found)));
        if busy > 0 {
            job.say(&Event::Busy(busy));
        }
    }
    report.last_scrub = last_scrub;
    job.say(&Event::Report(report));
    Ok(())
}

/// Calls back with the lock of a file held, and says whether something may be writing it all the same.
fn keep_still(files: &Files, ino: Ino, look: &mut dyn FnMut(bool)) {
    let node = files.node(ino);
    let file = files.lock(&node);
    look(!file.is_unwritten() || file.is_opening());
}

#[cfg(test)]
mod tests {
    use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};

    use crate::options::{Durability, Options};
    use crate::store::Store;

    use super::*;

    /// Calls something with the jobs of a new pool.
    fn with_jobs(call: impl FnOnce(&Jobs)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let store = Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024);
        let jobs = Jobs::new(Arc::new(Files::new(Arc::new(store))));
        call(&jobs);
        jobs.finish();
        pool.close().unwrap();
    }

    /// Proves B15.
    #[test]
    fn there_are_so_many_jobs_at_a_time_and_no_more() {
        with_jobs(|jobs| {
            let others: Vec<Arc<Job>> = (0..MOST).map(|_| Arc::new(Job::new(false))).collect();
            for (number, job) in (1000..).zip(&others) {
                jobs.all.lock().insert(number, (job.clone(), None));
            }
            let start = || jobs.start(Work { structure: true, ..Work::default() });
            assert_eq!(start().err().map(|fault| fault.errno), Some(libc::EBUSY));
            others[0].end();
            assert!(start().is_ok());
        });
    }

    /// On a busy machine who asks may not run for so long.
    #[test]
    fn a_job_that_was_asked_about_two_seconds_ago_does_not_give_way() {
        with_jobs(|jobs| {
            let job = Arc::new(Job::new(true));
            jobs.all.lock().insert(1000, (job.clone(), None));
            let works = job.clone();
            let working = thread::spawn(move || {
                while works.is_wanted() {
                    thread::sleep(Duration::from_millis(5));
                }
                works.end();
            });
            thread::sleep(Duration::from_secs(2));
            let started = jobs.start(Work { structure: true, data: true, ..Work::default() });
            assert_eq!(started.err().map(|fault| fault.errno), Some(libc::EBUSY));
            assert!(job.is_wanted());
            job.cancel();
            working.join().unwrap();
        });
    }
}

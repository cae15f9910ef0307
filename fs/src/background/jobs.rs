//! Jobs: what takes long and was asked for by a program, which asks now and then how far it has come. A job that nobody asks
//! about any more ends, so that one whose program was killed does not go on for ever.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorfs_layout::{Finding, Ino, Report, check_in_use};

use crate::ask::{Event, Output, SIZE, Work};
use crate::clock;
use crate::error::{Fault, Result};
use crate::filesystem::Filesystem;
use crate::seal;

/// A job ends if nobody has asked about it for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// One that reads all files gives way to the next after so long: its program is gone, or stopped.
const GONE: Duration = Duration::from_secs(1);
/// Jobs at one time.
const MOST: usize = 4;
/// What a job may say before somebody must have heard it.
const UNHEARD: usize = 1 << 20;
/// Bytes of one answer that are not text.
const OVERHEAD: usize = 128;

/// One job.
pub(crate) struct Job {
    /// It reads all files.
    reads: bool,
    cancelled: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
    said: Mutex<Said>,
}

struct Said {
    what: &'static str,
    asked: Instant,
    /// What was said from `from` on.
    text: Vec<u8>,
    from: u64,
    ended: bool,
    /// Somebody knows that it has ended.
    heard: bool,
}

/// A job, and the thread that does it.
type Running = (Arc<Job>, JoinHandle<()>);

/// The jobs of a server.
#[derive(Default)]
pub(crate) struct Jobs {
    next: AtomicU64,
    all: Mutex<HashMap<u64, Running>>,
}

impl Job {
    fn new(reads: bool) -> Self {
        let said = Said { what: "", asked: Instant::now(), text: Vec::new(), from: 0, ended: false, heard: false };
        Self { reads, cancelled: false.into(), done: 0.into(), total: 0.into(), said: Mutex::new(said) }
    }

    /// True while somebody wants it to go on.
    pub fn is_wanted(&self) -> bool {
        if self.cancelled.load(Ordering::Relaxed) {
            return false;
        }
        let wanted = self.said.lock().asked.elapsed() < PATIENCE;
        if !wanted {
            self.cancelled.store(true, Ordering::Relaxed);
        }
        wanted
    }

    pub fn progress(&self, what: &'static str, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.said.lock().what = what;
    }

    pub fn found(&self, finding: Finding) {
        self.say(&Event::Finding(finding));
    }

    fn say(&self, event: &Event) {
        let Ok(line) = serde_json::to_vec(event) else { return };
        loop {
            let mut said = self.said.lock();
            if said.text.len() < UNHEARD {
                said.text.extend_from_slice(&line);
                said.text.push(b'\n');
                return;
            }
            drop(said);
            if !self.is_wanted() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn output(&self, at: u64) -> Output {
        let mut said = self.said.lock();
        said.asked = Instant::now();
        let heard = usize::try_from(at.saturating_sub(said.from)).unwrap_or(usize::MAX).min(said.text.len());
        said.text.drain(..heard);
        said.from += heard as u64;
        let text = said.text[..said.text.len().min(SIZE - OVERHEAD)].to_vec();
        let ended = said.ended && text.len() == said.text.len();
        said.heard |= ended;
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        Output { what: said.what.to_owned(), done, total, text, ended }
    }
}

impl Jobs {
    /// What a job has said, from `at` on, and how far it is.
    pub fn poll(&self, number: u64, at: u64) -> Result<Output> {
        let job = self.all.lock().get(&number).map(|(job, _)| job.clone()).ok_or(Fault::new(libc::ESRCH))?;
        Ok(job.output(at))
    }

    /// Sees to it that no other job reads all files: one of whose program nothing is heard is ended.
    fn clear_the_way(&self) -> Result<()> {
        let others: Vec<Arc<Job>> = {
            let all = self.all.lock();
            all.values().map(|(job, _)| job).filter(|job| job.reads && !job.said.lock().ended).cloned().collect()
        };
        for job in others {
            if job.said.lock().asked.elapsed() < GONE {
                return Err(Fault::new(libc::EBUSY));
            }
            job.cancelled.store(true, Ordering::Relaxed);
            while !job.said.lock().ended {
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Ends a job.
    pub fn cancel(&self, number: u64) -> Result<()> {
        let all = self.all.lock();
        let (job, _) = all.get(&number).ok_or(Fault::new(libc::ESRCH))?;
        job.cancelled.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends all jobs, and waits until they have.
    pub fn finish(&self) {
        let all: Vec<_> = self.all.lock().drain().map(|(_, job)| job).collect();
        for (job, _) in &all {
            job.cancelled.store(true, Ordering::Relaxed);
        }
        for (_, thread) in all {
            // It catches its own panics.
            let _ = thread.join();
        }
    }

    /// Forgets what has ended, once that was heard or was not for long. Returns how many go on.
    fn tidy(all: &mut HashMap<u64, Running>) -> usize {
        all.retain(|_, (job, _)| {
            let said = job.said.lock();
            let forgotten = said.heard || said.asked.elapsed() >= PATIENCE || job.cancelled.load(Ordering::Relaxed);
            !said.ended || !forgotten
        });
        all.values().filter(|(job, _)| !job.said.lock().ended).count()
    }
}

impl Filesystem {
    /// Begins a job.
    pub fn start_job(self: &Arc<Self>, work: Work) -> Result<u64> {
        if work.data {
            self.jobs.clear_the_way()?;
        }
        let mut all = self.jobs.all.lock();
        if Jobs::tidy(&mut all) >= MOST {
            return Err(Fault::new(libc::EBUSY));
        }
        let number = self.jobs.next.fetch_add(1, Ordering::Relaxed) + 1;
        let job = Arc::new(Job::new(work.data));
        let (fs, served) = (self.clone(), job.clone());
        let thread = thread::Builder::new().name("tensorfs-job".into()).spawn(move || {
            seal::stand_back();
            let result = catch_unwind(AssertUnwindSafe(|| fs.work(&served, &work)));
            match result {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => served.say(&Event::Failed(reason)),
                Err(_) => {
                    fs.counters.panics.add(1);
                    log::error!("a check or scrub panicked");
                    served.say(&Event::Failed("the server panicked; its log says where".into()));
                }
            }
            served.said.lock().ended = true;
        });
        let thread = thread.map_err(|error| Fault::warn(libc::EAGAIN, format!("cannot start a thread: {error}")))?;
        all.insert(number, (job, thread));
        Ok(number)
    }

    fn work(&self, job: &Job, work: &Work) -> std::result::Result<(), String> {
        let mut report = Report::default();
        if work.structure {
            let progress = |what, done, total| job.progress(what, done, total);
            let keep_still = |ino, look: &mut dyn FnMut(bool)| self.keep_still(ino, look);
            let checked = check_in_use(&self.pool, &keep_still, clock::now(), &progress, &|| job.is_wanted());
            match checked.map_err(|error| error.to_string())? {
                Some(checked) => report = checked,
                None => return Err("it was interrupted".into()),
            }
            for finding in std::mem::take(&mut report.findings) {
                job.found(finding);
            }
        }
        if work.data {
            let busy = self.scrub(job, work.rate, &mut report).map_err(|fault| fault.to_string())?;
            if !job.is_wanted() {
                return Err("it was interrupted".into());
            }
            if busy > 0 {
                job.say(&Event::Busy(busy));
            }
        }
        job.say(&Event::Report(report));
        Ok(())
    }

    /// Calls back with the lock of a file held, and says whether something may be writing it all the same.
    fn keep_still(&self, ino: Ino, look: &mut dyn FnMut(bool)) {
        let node = self.nodes.take(ino);
        let state = node.lock();
        look(state.writing.is_some() || state.replace.is_some() || state.opening > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_says_is_heard_once_and_in_order() {
        let job = Job::new(true);
        job.say(&Event::Busy(1));
        job.say(&Event::Failed("x".repeat(2 * SIZE)));
        job.said.lock().ended = true;
        let (mut text, mut ended) = (Vec::new(), false);
        while !ended {
            let output = job.output(text.len() as u64);
            // Asked again, it says the same.
            assert_eq!(output, job.output(text.len() as u64));
            text.extend(output.text);
            ended = output.ended;
        }
        let lines: Vec<Event> = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        assert!(matches!(&lines[..], [Event::Busy(1), Event::Failed(long)] if long.len() == 2 * SIZE));
    }

    #[test]
    fn a_job_that_nobody_asks_about_is_not_wanted() {
        let job = Job::new(true);
        assert!(job.is_wanted());
        if let Some(long_ago) = Instant::now().checked_sub(PATIENCE) {
            job.said.lock().asked = long_ago;
            assert!(!job.is_wanted());
        }
    }
}

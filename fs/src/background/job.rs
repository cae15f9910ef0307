//! One job: what it has said and how far it has come, and whether anybody still wants it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorfs_layout::check::Finding;

use crate::protocol::{Event, Output, SIZE};

/// A job ends if nobody has asked about it for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a job may say before somebody must have heard it.
const UNHEARD: usize = 1 << 20;
/// Bytes of one answer that are not text.
const OVERHEAD: usize = 128;

/// One job.
pub(super) struct Job {
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

impl Job {
    /// Nothing is said yet. It `reads` all files, or none.
    pub fn new(reads: bool) -> Self {
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

    /// How far it has come.
    pub fn progress(&self, what: &'static str, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.said.lock().what = what;
    }

    /// It found something.
    pub fn found(&self, finding: Finding) {
        self.say(&Event::Finding(finding));
    }

    /// Says something, once there is room for it or nobody wants to hear it.
    pub fn say(&self, event: &Event) {
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

    /// What was said from `at` on, and how far the job is.
    pub fn output(&self, at: u64) -> Output {
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

    /// True if it reads all files.
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// It is not wanted any more.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Its thread has nothing more to say.
    pub fn end(&self) {
        self.said.lock().ended = true;
    }

    /// True if its thread has nothing more to say.
    pub fn has_ended(&self) -> bool {
        self.said.lock().ended
    }

    /// How long nobody has asked about it.
    pub fn unasked(&self) -> Duration {
        self.said.lock().asked.elapsed()
    }

    /// True if it has ended, and somebody has heard that or nobody will.
    pub fn is_over(&self) -> bool {
        let said = self.said.lock();
        let forgotten = said.heard || said.asked.elapsed() >= PATIENCE || self.cancelled.load(Ordering::Relaxed);
        said.ended && forgotten
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
        job.end();
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

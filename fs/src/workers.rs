//! Threads for what may take long.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::Ino;

/// More threads than this are not started unless asked for; jobs beyond wait their turn.
const MOST: usize = 128;
/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads that grows with the work and shrinks when idle. Each job is about one file, and those of a file
/// that is slow leave threads for those of others.
#[derive(Clone)]
pub(crate) struct Workers(Arc<Shared>);

struct Shared {
    most: usize,
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Ino, Job)>,
    /// Jobs about files that have their share of the threads: one of them comes when one of that file is done.
    parked: HashMap<Ino, VecDeque<Job>>,
    /// So many threads have a job, and so many one about each file.
    busy: usize,
    busy_with: HashMap<Ino, usize>,
    threads: usize,
    idle: usize,
}

impl State {
    /// The next job, if one can be done now.
    fn take(&mut self, most: usize) -> Option<(Ino, Job)> {
        while let Some((about, job)) = self.jobs.pop_front() {
            let share = share(most, self.busy);
            let with = self.busy_with.entry(about).or_default();
            if *with < share {
                *with += 1;
                self.busy += 1;
                return Some((about, job));
            }
            self.parked.entry(about).or_default().push_back(job);
        }
        None
    }

    /// A job is done.
    fn put(&mut self, about: Ino) {
        self.busy -= 1;
        if let Some(with) = self.busy_with.get_mut(&about) {
            *with -= 1;
            if *with == 0 {
                self.busy_with.remove(&about);
            }
        }
        if let Some(parked) = self.parked.get_mut(&about) {
            self.jobs.extend(parked.pop_front().map(|job| (about, job)));
            if parked.is_empty() {
                self.parked.remove(&about);
            }
        }
    }
}

/// So many of the threads one file may have while so many are busy: half of those that are free, so that there is
/// always one left for the next file until there are as many slow ones as threads.
pub(crate) fn share(most: usize, busy: usize) -> usize {
    (most.saturating_sub(busy) / 2).max(1)
}

impl Default for Workers {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Workers {
    /// At most so many threads.
    pub fn new(most: usize) -> Self {
        let shared = Shared { most, state: Mutex::default(), work: Condvar::new(), done: Condvar::new() };
        Self(Arc::new(shared))
    }

    /// Runs a job about a file on a worker thread, or here if there can be none.
    pub fn run(&self, about: Ino, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs.push_back((about, Box::new(job)));
        if state.idle >= state.jobs.len() {
            self.0.work.notify_one();
            return;
        }
        if state.threads < self.0.most {
            let shared = self.0.clone();
            match thread::Builder::new().name("tensorfs-work".into()).spawn(move || shared.serve()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    log::warn!("cannot start a worker thread: {error}");
                    let job = state.jobs.pop_back();
                    drop(state);
                    if let Some((_, job)) = job {
                        job();
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// Waits until nothing is queued or running.
    pub fn finish(&self) {
        let mut state = self.0.state.lock();
        while !state.jobs.is_empty() || state.busy > 0 {
            self.0.done.wait(&mut state);
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((about, job)) = state.take(self.most) {
                drop(state);
                // A job answers its request itself and catches its own panics; this one guards the count.
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                if result.is_err() {
                    log::error!("a background job panicked");
                }
                state = self.state.lock();
                state.put(about);
                if state.busy == 0 && state.jobs.is_empty() {
                    self.done.notify_all();
                }
                continue;
            }
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn every_job_runs_and_finish_waits_for_it() {
        let workers = Workers::default();
        let count = Arc::new(AtomicUsize::new(0));
        for i in 0..200 {
            let count = count.clone();
            workers.run(Ino(i % 3), move || {
                if i % 7 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                if i == 3 {
                    panic!("a job that panics");
                }
                count.fetch_add(1, Ordering::SeqCst);
            });
        }
        workers.finish();
        assert_eq!(count.load(Ordering::SeqCst), 199);
    }

    #[test]
    fn a_file_that_is_slow_leaves_threads_for_others() {
        let workers = Workers::new(8);
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        for slow in 1..4 {
            for _ in 0..50 {
                let gate = gate.clone();
                workers.run(Ino(slow), move || drop(gate.lock()));
            }
            let (tell, hear) = channel();
            workers.run(Ino(100), move || tell.send(()).unwrap());
            hear.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(shut);
        workers.finish();
        let state = workers.0.state.lock();
        assert!(state.parked.is_empty() && state.busy_with.is_empty());
    }
}

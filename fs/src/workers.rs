//! Threads for what may take long, so that the threads that read requests never wait for a disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// More threads than this are not started unless asked for; jobs beyond wait their turn.
const MOST: usize = 32;
/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);

/// A pool of threads that grows with the work and shrinks when idle.
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
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    running: usize,
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

    /// Runs a job on a worker thread, or here if there can be none.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(Box::new(job));
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
                    if let Some(job) = job {
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
        while !state.jobs.is_empty() || state.running > 0 {
            self.0.done.wait(&mut state);
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.running += 1;
                drop(state);
                // A job answers its request itself and catches its own panics; this one guards the count.
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                if result.is_err() {
                    log::error!("a background job panicked");
                }
                state = self.state.lock();
                state.running -= 1;
                if state.running == 0 && state.jobs.is_empty() {
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

    #[test]
    fn every_job_runs_and_finish_waits_for_it() {
        let workers = Workers::default();
        let count = Arc::new(AtomicUsize::new(0));
        for i in 0..200 {
            let count = count.clone();
            workers.run(move || {
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
}

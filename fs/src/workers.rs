//! Threads for what may take long.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorfs_layout::Ino;

use crate::shares::share;

/// More threads than this are not started unless asked for; jobs beyond wait their turn.
const MOST: usize = 128;
/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);

/// So many files that wait for a larger share are looked at whenever a job is done.
const PARKED: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads that grows with the work and shrinks when idle. Each job is about one file, and those of a file
/// that is slow leave threads for those of others.
#[derive(Clone)]
pub(crate) struct Workers(Arc<Shared>);

struct Shared {
    /// The threads that are shared out, and with those that are kept for whoever has none.
    most: usize,
    with_kept: usize,
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Jobs that wait, each file's in the order in which they came.
    waiting: HashMap<Ino, Waiting>,
    /// Files in the order of their turns: one that has had its turn comes behind all others.
    turns: VecDeque<Ino>,
    /// Files that had their share when it was their turn, each of them once, and in the order in which they came: the
    /// share grows as others end.
    parked: BTreeMap<u64, Ino>,
    /// The place of the next one.
    parking: u64,
    /// Jobs that may find that they can be done now.
    ready: usize,
    /// So many threads have a job, and so many one about each file.
    busy: usize,
    busy_with: HashMap<Ino, usize>,
    threads: usize,
    idle: usize,
}

/// Jobs about a file. So many of them are ready: none, and the file has no turn, while it has its share of the threads.
#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    ready: usize,
    /// Its place in [`State::parked`].
    parked: Option<u64>,
}

impl State {
    fn is_idle(&self) -> bool {
        self.ready == 0 && self.busy == 0
    }

    /// Puts a job behind the others about its file.
    fn push(&mut self, about: Ino, job: Job) {
        self.waiting.entry(about).or_default().jobs.push_back(job);
        self.give_turn(about, 1);
    }

    /// So many more jobs about a file, which has some, may be done now. If it has no turn, it is put behind the others.
    fn give_turn(&mut self, about: Ino, jobs: usize) {
        let Some(waiting) = self.waiting.get_mut(&about) else { return };
        if waiting.ready == 0 {
            self.turns.push_back(about);
        }
        waiting.ready += jobs;
        self.ready += jobs;
    }

    /// The next job, if one can be done now.
    fn take(&mut self, most: usize) -> Option<(Ino, Job)> {
        while let Some(about) = self.turns.pop_front() {
            let Some(waiting) = self.waiting.get_mut(&about) else { continue };
            let ready = std::mem::take(&mut waiting.ready);
            self.ready -= ready;
            let with = self.busy_with.entry(about).or_default();
            if *with >= share(most, self.busy) {
                self.park(about);
                continue;
            }
            *with += 1;
            self.busy += 1;
            let (with, job, left) = (*with, waiting.jobs.pop_front(), waiting.jobs.len());
            if left == 0 {
                if let Some(place) = self.waiting.remove(&about).and_then(|waiting| waiting.parked) {
                    self.parked.remove(&place);
                }
            } else if with < share(most, self.busy) {
                self.give_turn(about, left.min(ready));
            } else {
                self.park(about);
            }
            return job.map(|job| (about, job));
        }
        None
    }

    /// A file with jobs has its share. One that is parked already keeps its place.
    fn park(&mut self, about: Ino) {
        let Some(waiting) = self.waiting.get_mut(&about) else { return };
        if waiting.parked.is_none() {
            waiting.parked = Some(self.parking);
            self.parked.insert(self.parking, about);
            self.parking += 1;
        }
    }

    /// A job is done. Whoever did it takes the next one.
    fn put(&mut self, about: Ino, most: usize) {
        self.busy -= 1;
        if let Some(with) = self.busy_with.get_mut(&about) {
            *with -= 1;
            if *with == 0 {
                self.busy_with.remove(&about);
            }
        }
        if self.waiting.get(&about).is_some_and(|waiting| waiting.ready == 0) {
            self.give_turn(about, 1);
        } else {
            self.give_turn_to_parked(most);
        }
    }

    /// One that had its share may have more now.
    fn give_turn_to_parked(&mut self, most: usize) {
        for _ in 0..PARKED {
            let Some((_, about)) = self.parked.pop_first() else { return };
            let Some(waiting) = self.waiting.get_mut(&about) else { continue };
            waiting.parked = None;
            if waiting.ready != 0 {
                continue;
            }
            if self.busy_with.get(&about).is_none_or(|with| *with < share(most, self.busy)) {
                return self.give_turn(about, 1);
            }
            self.park(about);
        }
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Workers {
    /// At most so many threads.
    pub fn new(most: usize) -> Self {
        Self::keeping(most, 0)
    }

    /// At most so many threads, and beyond them so many that are kept for jobs about what has no thread yet: they are
    /// not to be had by those who take as many as they can get.
    pub fn keeping(most: usize, kept: usize) -> Self {
        let (work, done) = (Condvar::new(), Condvar::new());
        Self(Arc::new(Shared { most, with_kept: most + kept, state: Mutex::default(), work, done }))
    }

    /// Runs a job about a file on a worker thread, or here if there can be none.
    pub fn run(&self, about: Ino, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.push(about, Box::new(job));
        if state.idle > 0 {
            self.0.work.notify_one();
        }
        if state.idle >= state.ready {
            return;
        }
        if state.threads < self.0.with_kept {
            let shared = self.0.clone();
            match thread::Builder::new().name("tensorfs-work".into()).spawn(move || shared.serve()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    log::warn!("cannot start a worker thread: {error}");
                    // Also what could not be done before: nobody else comes for it.
                    drop(self.0.work_off(state));
                }
                Err(_) => {}
            }
        }
    }

    /// True if nothing is queued or running.
    pub fn is_idle(&self) -> bool {
        self.0.state.lock().is_idle()
    }

    /// Waits until nothing is queued or running.
    pub fn finish(&self) {
        let mut state = self.0.state.lock();
        while !state.is_idle() {
            self.0.done.wait(&mut state);
        }
    }
}

impl Shared {
    /// Does what can be done.
    fn work_off<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some((about, job)) = state.take(self.most) {
            if state.ready > 0 && state.idle > 0 {
                self.work.notify_one();
            }
            drop(state);
            // A job answers its request itself and catches its own panics; this one guards the count.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            if result.is_err() {
                log::error!("a background job panicked");
            }
            state = self.state.lock();
            state.put(about, self.most);
            if state.busy == 0 && state.ready == 0 {
                self.done.notify_all();
            }
        }
        state
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            state = self.work_off(state);
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.ready == 0 {
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
        assert!(state.waiting.is_empty() && state.busy_with.is_empty());
    }

    #[test]
    fn whoever_has_no_thread_finds_one_however_many_are_greedy() {
        let workers = Workers::keeping(12, 12);
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        for greedy in 0..16 {
            for _ in 0..50 {
                let gate = gate.clone();
                workers.run(Ino(greedy), move || drop(gate.lock()));
            }
            let (tell, hear) = channel();
            workers.run(Ino(100), move || tell.send(()).unwrap());
            hear.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(shut);
        workers.finish();
        assert!(workers.0.state.lock().threads <= 24);
    }

    #[test]
    fn whoever_waits_has_his_turn_before_one_who_had_his() {
        // One thread: what is done is done in turn.
        let workers = Workers::new(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        let held = gate.clone();
        workers.run(Ino(9), move || drop(held.lock()));
        for about in [1, 1, 1, 1, 2] {
            let order = order.clone();
            workers.run(Ino(about), move || order.lock().push(about));
        }
        drop(shut);
        workers.finish();
        let order = order.lock().clone();
        assert_eq!(order, [1, 2, 1, 1, 1]);
    }

    /// Of each job another one follows, so that the file always has some that wait.
    #[test]
    fn a_standing_backlog_takes_no_more_and_more_memory() {
        fn again(workers: &Workers, about: Ino, left: usize, most: &Arc<AtomicUsize>) {
            let (next, most) = (workers.clone(), most.clone());
            workers.run(about, move || {
                let state = next.0.state.lock();
                most.fetch_max(state.parked.len().saturating_sub(state.waiting.len()), Ordering::SeqCst);
                drop(state);
                if left > 0 {
                    again(&next, about, left - 1, &most);
                }
            });
        }
        let workers = Workers::new(4);
        let most = Arc::new(AtomicUsize::new(0));
        for n in 0..64 {
            again(&workers, Ino(n % 2), 200, &most);
        }
        workers.finish();
        assert_eq!(most.load(Ordering::SeqCst), 0, "more files are parked than wait");
        let state = workers.0.state.lock();
        assert!(state.waiting.is_empty() && state.parked.is_empty());
    }

    #[test]
    fn a_file_that_had_its_share_has_more_when_others_end() {
        let workers = Workers::new(8);
        let gates = [1, 2].map(|_| Arc::new(Mutex::new(())));
        let [first, second] = gates.each_ref().map(|gate| gate.lock());
        for (about, gate) in (1..).zip(&gates) {
            for _ in 0..8 {
                let gate = gate.clone();
                workers.run(Ino(about), move || drop(gate.lock()));
            }
        }
        let settled = |done: &dyn Fn(&State) -> bool| {
            loop {
                let state = workers.0.state.lock();
                if state.ready == 0 && done(&state) {
                    return state.busy_with[&Ino(2)];
                }
                drop(state);
                thread::yield_now();
            }
        };
        let before = settled(&|state| state.busy_with.len() == 2);
        drop(first);
        let after = settled(&|state| state.busy_with.len() == 1);
        assert!(before < after && after < 8, "{before} and then {after}");
        drop(second);
        workers.finish();
        assert!(workers.0.state.lock().waiting.is_empty());
    }
}

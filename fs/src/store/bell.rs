//! Calls whoever works in the background, and keeps the time of commits.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// What it is called for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Call {
    #[default]
    None,
    Work,
    Stop,
}

/// Calls a thread in the background to its work.
#[derive(Default)]
pub(crate) struct Bell {
    call: Mutex<Call>,
    rung: Condvar,
}

impl Bell {
    /// Has the work begin at once, and does not wait for it.
    pub fn ring(&self) {
        self.call(Call::Work);
    }

    /// There is to be no work any more.
    pub fn stop(&self) {
        self.call(Call::Stop);
    }

    /// True if there is to be no work any more.
    pub fn is_stopped(&self) -> bool {
        *self.call.lock() == Call::Stop
    }

    fn call(&self, what: Call) {
        let mut now = self.call.lock();
        if *now != Call::Stop {
            *now = what;
        }
        self.rung.notify_all();
    }

    /// Waits until it is rung, or for so long; false if there is to be no work any more.
    pub fn wait(&self, interval: Duration) -> bool {
        let mut call = self.call.lock();
        if *call == Call::None {
            self.rung.wait_for(&mut call, interval);
        }
        if *call == Call::Work {
            *call = Call::None;
        }
        *call != Call::Stop
    }
}

/// Tells who waits for somebody in the background that he has come on.
#[derive(Default)]
pub(crate) struct Steps {
    done: Mutex<u64>,
    one_more: Condvar,
}

impl Steps {
    /// One more is done.
    pub fn step(&self) {
        *self.done.lock() += 1;
        self.one_more.notify_all();
    }

    /// How many are.
    pub fn done(&self) -> u64 {
        *self.done.lock()
    }

    /// Waits until more than so many are done, or for so long.
    pub fn wait_beyond(&self, seen: u64, most: Duration) {
        let mut done = self.done.lock();
        if *done == seen {
            self.one_more.wait_for(&mut done, most);
        }
    }
}

/// The bells of the background, one for each thread that somebody may call.
#[derive(Default)]
pub(crate) struct Bells {
    commit: Bell,
    unlink: Bell,
    unlinked: Steps,
    settle: Bell,
    clean: Bell,
    grow: Bell,
    aside: Bell,
    let_go: Bell,
    rounds: Rounds,
}

impl Bells {
    /// Calls who commits.
    pub fn commit(&self) -> &Bell {
        &self.commit
    }

    /// Calls who removes segments that no file has any more.
    pub fn unlink(&self) -> &Bell {
        &self.unlink
    }

    /// How he comes on.
    pub fn unlinked(&self) -> &Steps {
        &self.unlinked
    }

    /// Calls who makes durable in segments what only the log holds.
    pub fn settle(&self) -> &Bell {
        &self.settle
    }

    /// Calls who cleans the log.
    pub fn clean(&self) -> &Bell {
        &self.clean
    }

    /// Calls who makes the log longer.
    pub fn grow(&self) -> &Bell {
        &self.grow
    }

    /// Calls who sets aside the versions that writers who died have replaced.
    pub fn aside(&self) -> &Bell {
        &self.aside
    }

    /// Calls who lets go of what was removed while it was mapped.
    pub fn let_go(&self) -> &Bell {
        &self.let_go
    }

    /// When commits in the background were done.
    pub fn rounds(&self) -> &Rounds {
        &self.rounds
    }
}

/// When the rounds of the background commit were over.
pub(crate) struct Rounds(Mutex<Times>);

struct Times {
    last: Instant,
    longest: Duration,
}

impl Default for Rounds {
    fn default() -> Self {
        Self(Mutex::new(Times { last: Instant::now(), longest: Duration::ZERO }))
    }
}

impl Rounds {
    /// What was done before this round began is durable now.
    pub fn done(&self) {
        let mut times = self.0.lock();
        let now = Instant::now();
        times.longest = times.longest.max(now - times.last);
        times.last = now;
    }

    /// How long ago the last round was over: what was done before that is durable.
    pub fn since(&self) -> Duration {
        self.0.lock().last.elapsed()
    }

    /// The longest time from the end of one round to the end of the next, the one under way included.
    pub fn longest(&self) -> Duration {
        let times = self.0.lock();
        times.longest.max(times.last.elapsed())
    }
}

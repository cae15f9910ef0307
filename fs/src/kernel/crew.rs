//! The threads that read requests. Whatever one of them does may turn out to wait, for a disk or for another thread
//! that waits for one; then another reads on.
//!
//! All of them are there from the start, as fuser starts its threads once. A few read, and whoever comes back when
//! enough others do sleeps. A watcher looks whether those who were given a request come back in time. While some do
//! not, it wakes as many others in their place: first a few, then more and more, so that a hundred requests that wait
//! hold up the one behind them for some ticks only. As long as somebody reads, the watcher sleeps, and a request costs
//! two counts.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// So many threads are there beyond those that read.
const MORE: usize = 28;
/// Who has not come back from one tick to the next is taken to wait.
const TICK: Duration = Duration::from_millis(2);
/// With each tick at which nobody reads, twice as many are woken, up to two to the power of this.
const HASTE: u32 = 4;

/// The threads that read requests.
pub(super) struct Crew {
    /// So many read, or do what does not wait.
    wanted: usize,
    /// Those of whom it is known that they read, or are about to.
    reading: AtomicUsize,
    /// The watcher has nothing to watch until nobody reads.
    asleep: AtomicBool,
    /// Another server is to do what is asked from now on.
    left: AtomicBool,
    state: Mutex<State>,
    /// Somebody is to read again.
    called: Condvar,
    /// The watcher is to wake up.
    alarm: Condvar,
}

#[derive(Default)]
struct State {
    /// Those that have had a request.
    members: Vec<Arc<Member>>,
    sleeping: usize,
    /// So many of the sleeping are to get up.
    calls: usize,
    /// The mount is gone: nobody sleeps any more.
    over: bool,
}

/// One thread, for the watcher.
#[derive(Default)]
struct Member {
    /// Odd while it has a request.
    turns: AtomicU64,
}

/// A thread's own place among them.
struct Place {
    crew: Arc<Crew>,
    member: Arc<Member>,
    /// It is among those that read.
    counted: bool,
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

impl Drop for Place {
    fn drop(&mut self) {
        // The thread ends, as it does when the mount is gone. Who sleeps would not hear of it.
        self.crew.end();
    }
}

impl Crew {
    /// So many that read, and others in their stead.
    pub fn new(wanted: usize) -> Self {
        Self {
            wanted: wanted.max(1),
            reading: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            left: AtomicBool::new(false),
            state: Mutex::default(),
            called: Condvar::new(),
            alarm: Condvar::new(),
        }
    }

    /// How many there are of them all.
    pub fn size(&self) -> usize {
        self.wanted + MORE
    }

    /// This thread has a request.
    pub fn take(self: &Arc<Self>) {
        PLACE.with_borrow_mut(|place| {
            let place = place.get_or_insert_with(|| self.join());
            place.member.turns.fetch_add(1, SeqCst);
            if self.left.load(SeqCst) {
                // The kernel sends it again, to the next server.
                place.member.turns.fetch_add(1, SeqCst);
                loop {
                    thread::park();
                }
            }
            let nobody_reads = std::mem::take(&mut place.counted) && self.reading.fetch_sub(1, SeqCst) == 1;
            if nobody_reads && self.asleep.swap(false, SeqCst) {
                drop(self.state.lock());
                self.alarm.notify_one();
            }
        });
    }

    /// Requests that come from now on are for another server: whoever reads one does nothing any more.
    pub fn leave(&self) {
        self.left.store(true, SeqCst);
    }

    /// True if nobody has a request.
    pub fn is_idle(&self) -> bool {
        self.state.lock().members.iter().all(|member| member.turns.load(SeqCst) % 2 == 0)
    }

    /// This thread is about to read the next request; it sleeps first if enough others read.
    pub fn put(&self) {
        PLACE.with_borrow_mut(|place| {
            let Some(place) = place else { return };
            place.member.turns.fetch_add(1, SeqCst);
            if self.reading.fetch_add(1, SeqCst) >= self.wanted {
                self.reading.fetch_sub(1, SeqCst);
                self.sleep();
                self.reading.fetch_add(1, SeqCst);
            }
            place.counted = true;
        });
    }

    fn join(self: &Arc<Self>) -> Place {
        let member = Arc::new(Member::default());
        self.state.lock().members.push(member.clone());
        Place { crew: self.clone(), member, counted: false }
    }

    fn sleep(&self) {
        let mut state = self.state.lock();
        // The watcher looks only when nobody reads any more, and must find everybody asleep who is to sleep then.
        if self.reading.load(SeqCst) == 0 {
            return;
        }
        state.sleeping += 1;
        while state.calls == 0 && !state.over {
            self.called.wait(&mut state);
        }
        state.calls = state.calls.saturating_sub(1);
        state.sleeping -= 1;
    }

    /// Nobody sleeps any more.
    pub fn end(&self) {
        self.state.lock().over = true;
        self.called.notify_all();
        self.alarm.notify_all();
    }

    fn watch(&self) {
        let (mut before, mut haste) = (Vec::new(), 0);
        let mut state = self.state.lock();
        while !state.over {
            let idle = |state: &State| self.reading.load(SeqCst) > 0 || state.sleeping == state.calls;
            if idle(&state) {
                self.asleep.store(true, SeqCst);
                // The last one that reads may have been given a request just now.
                if idle(&state) {
                    self.alarm.wait(&mut state);
                }
                self.asleep.store(false, SeqCst);
                (before, haste) = (Vec::new(), 0);
                continue;
            }
            let now: Vec<u64> = state.members.iter().map(|member| member.turns.load(SeqCst)).collect();
            let waiting = now.iter().zip(&before).filter(|(now, before)| now == before && *now % 2 == 1).count();
            before = now;
            let working = self.size().saturating_sub(state.sleeping + waiting);
            let missing = self.wanted.saturating_sub(working);
            if missing > 0 {
                let calls = (missing << haste).min(state.sleeping.saturating_sub(state.calls));
                haste = (haste + 1).min(HASTE);
                state.calls += calls;
                for _ in 0..calls {
                    self.called.notify_one();
                }
            }
            self.alarm.wait_for(&mut state, TICK);
        }
    }
}

/// The thread that watches; it ends when this is dropped.
pub(super) struct Watch {
    crew: Arc<Crew>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts it.
    pub fn start(crew: &Arc<Crew>) -> io::Result<Self> {
        let watched = crew.clone();
        let thread = thread::Builder::new().name("tensorfs-watch".into()).spawn(move || watched.watch())?;
        Ok(Self { crew: crew.clone(), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.crew.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// What fuser's threads do, with a channel in the place of the device.
    fn read(crew: &Arc<Crew>, device: &Mutex<Receiver<Request>>) {
        loop {
            let Ok(request) = device.lock().recv() else { return };
            crew.take();
            request();
            crew.put();
        }
    }

    type Request = Box<dyn FnOnce() + Send>;

    fn serve(wanted: usize, ask: impl FnOnce(&Sender<Request>)) {
        let crew = Arc::new(Crew::new(wanted));
        let watch = Watch::start(&crew).unwrap();
        let (requests, device) = channel::<Request>();
        let device = Arc::new(Mutex::new(device));
        let threads: Vec<_> = (0..crew.size())
            .map(|_| {
                let (crew, device) = (crew.clone(), device.clone());
                thread::spawn(move || read(&crew, &device))
            })
            .collect();
        ask(&requests);
        // The mount is gone.
        drop(requests);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(watch);
    }

    fn answer(requests: &Sender<Request>) {
        let (tell, hear) = channel();
        requests.send(Box::new(move || tell.send(()).unwrap())).unwrap();
        hear.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn requests_that_wait_hold_up_nobody_behind_them() {
        for wanted in [1, 4] {
            serve(wanted, |requests| {
                // All have had one, so that all but a few sleep.
                (0..200).for_each(|_| answer(requests));
                for waiting in [1, wanted, MORE] {
                    let gate = Arc::new(Mutex::new(()));
                    let shut = gate.lock();
                    for _ in 0..waiting {
                        let gate = gate.clone();
                        requests.send(Box::new(move || drop(gate.lock()))).unwrap();
                    }
                    // Nobody would ever answer if they were waited for.
                    (0..20).for_each(|_| answer(requests));
                    drop(shut);
                }
            });
        }
    }

    #[test]
    fn nobody_sleeps_when_the_mount_is_gone() {
        for requests_before in [0, 1, 5, 100] {
            serve(2, |requests| (0..requests_before).for_each(|_| answer(requests)));
        }
    }
}

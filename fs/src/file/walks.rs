//! Going through files, or segments, of each of which the host has to be asked: one that it is late with is left
//! behind, and the others have their turn.
//!
//! They are gone through one after the other on a thread apart. Where it comes no further for a moment, another one
//! goes on behind what it is at. What is being looked at is not looked at a second time.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// So many files are late at a time, and then nobody is looked at before one of them has been.
const MOST: usize = 32;

/// Who comes no further for so long is taken to be at a file that is late.
const LATE: Duration = Duration::from_millis(10);

/// No way through is given up before.
const LEAST: Duration = Duration::from_millis(100);

/// Those who go through files.
pub(super) struct Walks<T> {
    crew: Mutex<Crew<T>>,
    ended: Condvar,
}

struct Crew<T> {
    threads: usize,
    /// Where the next way begins: behind the one before, so that those that are late let all others have their turn.
    begun: usize,
    /// What is being looked at.
    at: HashSet<T>,
}

/// What can be gone through.
pub(super) trait Place: Copy + Eq + Hash + Send + Sync + 'static {}

impl<T: Copy + Eq + Hash + Send + Sync + 'static> Place for T {}

/// One way through some files.
struct Walk<T, F> {
    files: Vec<T>,
    look: F,
    places: Mutex<Places>,
    done: Condvar,
}

#[derive(Default)]
struct Places {
    /// The file that comes next.
    next: usize,
    /// So many have been looked at, and so many passed over, as somebody is looking at them since before.
    looked: usize,
    passed: usize,
    /// Nobody waits for the others any more.
    over: bool,
}

/// A file is being looked at until this goes.
struct Look<'a, T: Place>(&'a Walks<T>, T);

impl<T: Place> Drop for Look<'_, T> {
    fn drop(&mut self) {
        self.0.crew.lock().at.remove(&self.1);
    }
}

impl<T> Default for Walks<T> {
    fn default() -> Self {
        Self { crew: Mutex::new(Crew { threads: 0, begun: 0, at: HashSet::new() }), ended: Condvar::new() }
    }
}

impl<T: Place> Walks<T> {
    /// Has each of the files looked at. False if after the deadline nobody comes any further: those that were begun
    /// will be looked at, and the others are left out. `look` must not panic.
    pub fn each<F: Fn(T) + Send + Sync + 'static>(
        self: &Arc<Self>,
        mut files: Vec<T>,
        until: Instant,
        look: F,
    ) -> bool {
        let (all, until) = (files.len(), until.max(Instant::now() + LEAST));
        let start = self.crew.lock().begun.checked_rem(all).unwrap_or(0);
        files.rotate_left(start);
        let walk = Arc::new(Walk { files, look, places: Mutex::default(), done: Condvar::new() });
        let mut before = None;
        loop {
            let (gone, next) = walk.places.lock().so_far();
            // A host that is slow with each file is asked about several at a time in the end.
            let comes_no_further = before.is_none_or(|before| before == gone) || Instant::now() >= until;
            if comes_no_further && next < all && !self.send(&walk) && next == 0 {
                // There is no thread to be had.
                self.go(&walk);
            }
            before = Some(gone);
            let mut places = walk.places.lock();
            if places.so_far().0 < all && !walk.done.wait_until(&mut places, Instant::now() + LATE).timed_out() {
                continue;
            }
            let now = places.so_far().0;
            if now == all || (now == gone && Instant::now() >= until) {
                places.over = true;
                let (begun, looked) = (places.next, places.looked);
                drop(places);
                self.crew.lock().begun = (start + begun) % all.max(1);
                return looked == all;
            }
        }
    }

    /// Has one more thread go through the files, unless all are at files that are late. False if there is none to be
    /// had.
    fn send<F: Fn(T) + Send + Sync + 'static>(self: &Arc<Self>, walk: &Arc<Walk<T, F>>) -> bool {
        let mut crew = self.crew.lock();
        if crew.threads >= MOST {
            return true;
        }
        let (this, walk) = (self.clone(), walk.clone());
        let goes = move || {
            this.go(&walk);
            drop(walk);
            this.crew.lock().threads -= 1;
            this.ended.notify_all();
        };
        match thread::Builder::new().name("tensorfs-walk".into()).spawn(goes) {
            Ok(_) => crew.threads += 1,
            Err(error) => {
                log::warn!("cannot start a thread that looks at files: {error}");
                return false;
            }
        }
        true
    }

    fn go<F: Fn(T)>(&self, walk: &Walk<T, F>) {
        loop {
            let place = {
                let mut places = walk.places.lock();
                let Some(place) = walk.files.get(places.next).filter(|_| !places.over) else { return };
                places.next += 1;
                *place
            };
            let looks = self.begin(place).map(|_at| (walk.look)(place)).is_some();
            let mut places = walk.places.lock();
            if looks {
                places.looked += 1;
            } else {
                places.passed += 1;
            }
            if places.so_far().0 == walk.files.len() {
                walk.done.notify_all();
            }
        }
    }

    /// A file is looked at, unless somebody is about it.
    fn begin(&self, place: T) -> Option<Look<'_, T>> {
        self.crew.lock().at.insert(place).then(|| Look(self, place))
    }

    /// Waits until nobody is looked at any more.
    pub fn finish(&self) {
        let mut crew = self.crew.lock();
        while crew.threads > 0 {
            self.ended.wait(&mut crew);
        }
    }
}

impl Places {
    /// So many are behind those who go through the files, and that is the place of the one that comes next.
    fn so_far(&self) -> (usize, usize) {
        (self.looked + self.passed, self.next)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tensorfs_layout::Ino;

    use super::*;

    #[test]
    fn what_is_late_is_left_behind_and_passed_over_until_it_has_been_looked_at() {
        let walks = Arc::<Walks<Ino>>::default();
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        let (tell, hear) = channel();
        let (far, soon) = (Duration::from_secs(60), Duration::from_millis(200));
        let walk = |patience| {
            let (gate, tell) = (gate.clone(), tell.clone());
            walks.each((0..50).map(Ino).collect(), Instant::now() + patience, move |ino| {
                if ino.0 % 10 == 3 {
                    drop(gate.lock());
                }
                tell.send(ino).unwrap();
            })
        };
        assert!(!walk(soon));
        while hear.try_iter().count() + 5 < 50 {
            assert!(!walk(soon));
        }
        // Nobody waits for them again.
        assert!(!walk(far));
        assert_eq!(hear.try_iter().count(), 45);
        drop(shut);
        walks.finish();
        assert_eq!(hear.try_iter().count(), 5);
        assert!(walk(far));
        assert_eq!(hear.try_iter().count(), 50);
        walks.finish();
    }

    #[test]
    fn a_host_that_is_slow_with_each_file_is_waited_for() {
        let walks = Arc::<Walks<Ino>>::default();
        let look = |_| thread::sleep(Duration::from_millis(1));
        // It may be that none of its threads runs for a moment.
        assert!((0..20).any(|_| walks.each((0..500).map(Ino).collect(), Instant::now(), look)));
    }

    #[test]
    fn each_way_begins_behind_the_one_before() {
        let walks = Arc::<Walks<Ino>>::default();
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        let held = gate.clone();
        let files = || (0..100).map(Ino).collect();
        let late = Instant::now() + Duration::from_secs(2);
        assert!(!walks.each(files(), late, move |_| drop(held.lock())));
        let begun = walks.crew.lock().begun as u64;
        assert!((1..=MOST as u64).contains(&begun));
        drop(shut);
        walks.finish();
        let (tell, hear) = channel();
        assert!(walks.each(files(), Instant::now() + Duration::from_secs(60), move |ino| tell.send(ino).unwrap()));
        assert_eq!(hear.recv().unwrap(), Ino(begun));
        walks.finish();
    }

    #[test]
    fn those_who_are_late_have_a_bound() {
        let walks = Arc::<Walks<Ino>>::default();
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        let held = gate.clone();
        let all = walks.each((0..200).map(Ino).collect(), Instant::now() + Duration::from_secs(2), move |_| {
            drop(held.lock());
        });
        assert!(!all && walks.crew.lock().threads <= MOST);
        drop(shut);
        walks.finish();
        assert!(walks.crew.lock().at.is_empty());
    }
}

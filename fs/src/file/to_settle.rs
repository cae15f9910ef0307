//! Files that were closed, and that the host had still open to write when their RELEASE came.
//!
//! Either a program has one mapped, which may last, or the kernel's own last close of the segment is still to come: it
//! follows RELEASE within moments, but on a busy machine not before it. So each is looked at again soon, a few times;
//! from then on once a commit interval, as whatever is written.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::Ino;

/// So many milliseconds after each look the next one comes; the first is the one at RELEASE.
const PAUSES: [u64; 5] = [2, 8, 32, 128, 512];
/// So many files wait at most; who comes then is looked at once a commit interval.
const MOST: usize = 1 << 14;

/// The files that are to be looked at again.
#[derive(Default)]
pub(crate) struct ToSettle {
    waiting: Mutex<Waiting>,
    rung: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// The files in the order of their turns, and how many looks each has had since RELEASE.
    turns: BTreeMap<(Instant, Ino), usize>,
    /// When each file has its turn.
    files: HashMap<Ino, Instant>,
    stop: bool,
}

impl Waiting {
    fn add(&mut self, ino: Ino, looks: usize) {
        let Some(pause) = PAUSES.get(looks) else { return };
        if let Some(stale) = self.files.remove(&ino) {
            self.turns.remove(&(stale, ino));
        }
        if self.files.len() < MOST {
            let at = Instant::now() + Duration::from_millis(*pause);
            self.files.insert(ino, at);
            self.turns.insert((at, ino), looks);
        }
    }
}

impl ToSettle {
    /// A file was closed, and the host has it still open to write.
    pub fn add(&self, ino: Ino) {
        self.add_again(ino, 0);
    }

    /// The host has it still open after so many looks.
    pub fn add_again(&self, ino: Ino, looks: usize) {
        self.waiting.lock().add(ino, looks);
        self.rung.notify_one();
    }

    /// Waits for the next file whose turn has come, with how many looks it has had then; `None` when there is to be
    /// none any more.
    pub fn next(&self) -> Option<(Ino, usize)> {
        let mut waiting = self.waiting.lock();
        while !waiting.stop {
            let Some(((at, ino), looks)) = waiting.turns.first_key_value().map(|(place, looks)| (*place, *looks))
            else {
                self.rung.wait(&mut waiting);
                continue;
            };
            if at > Instant::now() {
                self.rung.wait_until(&mut waiting, at);
                continue;
            }
            waiting.turns.remove(&(at, ino));
            waiting.files.remove(&ino);
            return Some((ino, looks + 1));
        }
        None
    }

    /// There is to be no next file any more.
    pub fn stop(&self) {
        self.waiting.lock().stop = true;
        self.rung.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_at_a_few_times_and_then_no_more() {
        let queue = ToSettle::default();
        queue.add(Ino(5));
        for look in 1..=PAUSES.len() {
            assert_eq!(queue.next(), Some((Ino(5), look)));
            queue.add_again(Ino(5), look);
        }
        let waiting = queue.waiting.lock();
        assert!(waiting.turns.is_empty() && waiting.files.is_empty());
    }

    #[test]
    fn a_file_that_is_closed_again_has_one_turn_and_begins_anew() {
        let queue = ToSettle::default();
        queue.add_again(Ino(5), 4);
        queue.add(Ino(6));
        queue.add(Ino(5));
        assert_eq!(queue.next(), Some((Ino(6), 1)));
        assert_eq!(queue.next(), Some((Ino(5), 1)));
        assert!(queue.waiting.lock().files.is_empty());
    }

    #[test]
    fn files_that_wait_have_a_bound() {
        let queue = ToSettle::default();
        (0..2 * MOST as u64).for_each(|ino| queue.add(Ino(ino)));
        let waiting = queue.waiting.lock();
        assert_eq!((waiting.turns.len(), waiting.files.len()), (MOST, MOST));
    }

    #[test]
    fn nobody_waits_once_it_is_told_to_stop() {
        let queue = ToSettle::default();
        queue.add(Ino(5));
        queue.stop();
        assert_eq!(queue.next(), None);
    }
}

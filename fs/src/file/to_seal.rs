//! The files that nothing can write any more, and that are to be sealed.
//!
//! A file comes into the queue when its last writer has gone, and out of it when that is committed and [`QUIET`] has
//! passed, so that a file that is opened again and again is left alone; one that was written again although it was
//! sealed is left alone twice as long each time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use tensorfs_layout::{Ino, TxId};

/// So long after its last writer a file is left alone.
pub(crate) const QUIET: Duration = Duration::from_secs(1);
/// So long after it has grown, what a file has grown by is looked at while somebody still has it open to write.
const WHILE_OPEN: Duration = Duration::from_secs(10);
/// A file is left alone for `QUIET` times two to the power of this at most.
const PATIENCE: u32 = 8;
/// So many files are kept in mind as ones that were written again.
const REMEMBERED: usize = 1 << 16;

/// The files that are to be sealed.
#[derive(Default)]
pub(crate) struct ToSeal {
    waiting: Mutex<Waiting>,
    rung: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// Since when each file is to be left alone, and which commit must come first.
    files: FxHashMap<Ino, Turn>,
    /// The files in the order of their turns: those that somebody waits for, then by time.
    turns: BTreeMap<(bool, Instant, u64), Ino>,
    /// Turns so far, to tell those of the same time apart.
    count: u64,
    /// How often a file was opened for writing after it had been sealed.
    thawed: FxHashMap<Ino, u32>,
    /// The file being sealed.
    running: Option<Ino>,
    stop: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Turn {
    at: Instant,
    after: TxId,
    /// Somebody waits for it.
    asked: bool,
    /// Also if it is sealed already.
    again: bool,
    number: u64,
}

impl Turn {
    fn place(&self) -> (bool, Instant, u64) {
        (!self.asked, self.at, self.number)
    }
}

impl Waiting {
    fn add(&mut self, ino: Ino, turn: Turn) {
        self.count += 1;
        let turn = Turn { number: self.count, ..turn };
        self.turns.insert(turn.place(), ino);
        if let Some(stale) = self.files.insert(ino, turn) {
            self.turns.remove(&stale.place());
        }
    }

    /// The next file, and its turn.
    fn first(&self) -> Option<(Ino, Turn)> {
        let ino = self.turns.first_key_value().map(|(_, ino)| *ino)?;
        Some((ino, *self.files.get(&ino)?))
    }

    fn remove(&mut self, ino: Ino) {
        if let Some(turn) = self.files.remove(&ino) {
            self.turns.remove(&turn.place());
        }
    }
}

impl ToSeal {
    /// Nothing can write the file any more, once this transaction is durable.
    pub fn add(&self, ino: Ino, after: TxId, delay: Duration) {
        let mut waiting = self.waiting.lock();
        let times = waiting.thawed.get(&ino).map_or(0, |times| (*times).min(PATIENCE));
        let at = Instant::now() + delay * (1 << times);
        waiting.add(ino, Turn { at, after, asked: false, again: false, number: 0 });
        // Else the thread waits for one that comes before.
        if waiting.first().is_some_and(|(first, _)| first == ino) {
            self.rung.notify_one();
        }
    }

    /// The file has grown, and something can still write it. If it is in the queue already, the earlier turn is its
    /// own.
    pub fn add_open(&self, ino: Ino, after: TxId) {
        let mut waiting = self.waiting.lock();
        let at = Instant::now() + WHILE_OPEN;
        if waiting.files.get(&ino).is_some_and(|turn| turn.at <= at) {
            return;
        }
        waiting.add(ino, Turn { at, after, asked: false, again: false, number: 0 });
        if waiting.first().is_some_and(|(first, _)| first == ino) {
            self.rung.notify_one();
        }
    }

    /// A sealed file was opened for writing.
    pub fn thawed(&self, ino: Ino) {
        let thawed = &mut self.waiting.lock().thawed;
        if thawed.len() >= REMEMBERED {
            thawed.clear();
        }
        *thawed.entry(ino).or_default() += 1;
    }

    /// The file comes next, and if it is sealed already, `again`.
    pub fn add_first(&self, ino: Ino, after: TxId, again: bool) {
        let turn = Turn { at: Instant::now(), after, asked: true, again, number: 0 };
        self.waiting.lock().add(ino, turn);
        self.rung.notify_one();
    }

    /// True if the file is in the queue since somebody asked for it, or being sealed; not if it was written meanwhile,
    /// which puts it into the queue anew.
    pub fn is_under_way(&self, ino: Ino) -> bool {
        let waiting = self.waiting.lock();
        waiting.files.get(&ino).is_some_and(|turn| turn.asked) || waiting.running == Some(ino)
    }

    /// True if the file is in the queue.
    pub fn has(&self, ino: Ino) -> bool {
        self.waiting.lock().files.contains_key(&ino)
    }

    /// Files in the queue or being sealed.
    pub fn len(&self) -> usize {
        let waiting = self.waiting.lock();
        waiting.files.len() + usize::from(waiting.running.is_some())
    }

    /// Waits for the next file whose turn has come; `None` when there is to be none any more.
    pub fn next(&self, horizon: impl Fn() -> TxId) -> Option<(Ino, bool)> {
        let mut waiting = self.waiting.lock();
        while !waiting.stop {
            let Some((ino, turn)) = waiting.first() else {
                self.rung.wait(&mut waiting);
                continue;
            };
            let now = Instant::now();
            if turn.at > now {
                self.rung.wait_for(&mut waiting, turn.at - now);
            } else if turn.after > horizon() {
                // The next commit is at most an interval away.
                self.rung.wait_for(&mut waiting, QUIET / 10);
            } else {
                waiting.remove(ino);
                waiting.running = Some(ino);
                return Some((ino, turn.again));
            }
        }
        None
    }

    /// What [`ToSeal::next`] gave is done with.
    pub fn done(&self) {
        self.waiting.lock().running = None;
    }

    /// There is to be no next file any more.
    pub fn stop(&self) {
        self.waiting.lock().stop = true;
        self.rung.notify_all();
    }

    /// True if there is to be no next file any more.
    pub fn is_stopped(&self) -> bool {
        self.waiting.lock().stop
    }

    /// Takes all that are left.
    pub fn drain(&self) -> Vec<Ino> {
        let mut waiting = self.waiting.lock();
        waiting.turns.clear();
        waiting.files.drain().map(|(ino, _)| ino).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_queued_again_waits_from_then_on() {
        let queue = ToSeal::default();
        queue.add(Ino(5), TxId(1), Duration::ZERO);
        queue.add(Ino(6), TxId(1), Duration::ZERO);
        queue.add(Ino(5), TxId(2), Duration::ZERO);
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.next(|| TxId(9)), Some((Ino(6), false)));
        assert_eq!(queue.len(), 2, "one waits, one is being sealed");
        queue.done();
        assert_eq!(queue.next(|| TxId(9)), Some((Ino(5), false)));
        queue.done();
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn no_file_is_sealed_before_it_is_committed() {
        let queue = ToSeal::default();
        queue.add(Ino(5), TxId(7), Duration::ZERO);
        let asked = std::cell::Cell::new(0);
        let horizon = || TxId(asked.replace(asked.get() + 1) + 5);
        assert_eq!(queue.next(horizon), Some((Ino(5), false)));
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn a_file_that_is_written_again_and_again_is_left_alone_longer() {
        let queue = ToSeal::default();
        let wait = |queue: &ToSeal| {
            queue.add(Ino(5), TxId(1), QUIET);
            queue.waiting.lock().files[&Ino(5)].at - Instant::now()
        };
        assert!(wait(&queue) <= QUIET);
        queue.thawed(Ino(5));
        assert!(wait(&queue) > QUIET);
        (0..100).for_each(|_| queue.thawed(Ino(5)));
        assert!(wait(&queue) <= QUIET * (1 << PATIENCE));
    }

    #[test]
    fn a_file_that_is_left_alone_longer_is_in_nobodys_way() {
        let queue = ToSeal::default();
        (0..3).for_each(|_| queue.thawed(Ino(5)));
        queue.add(Ino(5), TxId(1), Duration::from_secs(3600));
        queue.add(Ino(6), TxId(1), Duration::ZERO);
        assert_eq!(queue.next(|| TxId(9)), Some((Ino(6), false)));
    }

    #[test]
    fn a_file_that_grows_while_it_is_open_keeps_its_turn() {
        let queue = ToSeal::default();
        queue.add_open(Ino(5), TxId(1));
        let at = queue.waiting.lock().files[&Ino(5)].at;
        queue.add_open(Ino(5), TxId(2));
        assert!(queue.waiting.lock().files[&Ino(5)].at == at);
        queue.add(Ino(5), TxId(3), Duration::ZERO);
        assert_eq!(queue.next(|| TxId(9)), Some((Ino(5), false)), "it was closed");
    }

    #[test]
    fn what_somebody_waits_for_comes_first() {
        let queue = ToSeal::default();
        queue.add(Ino(5), TxId(1), Duration::ZERO);
        queue.add(Ino(6), TxId(1), Duration::from_secs(3600));
        queue.add_first(Ino(6), TxId(1), true);
        assert!(queue.is_under_way(Ino(6)) && !queue.is_under_way(Ino(5)));
        assert_eq!(queue.next(|| TxId(9)), Some((Ino(6), true)));
        assert!(queue.is_under_way(Ino(6)) && !queue.has(Ino(6)));
        queue.done();
        queue.add_first(Ino(6), TxId(1), false);
        queue.add(Ino(6), TxId(1), Duration::ZERO);
        assert!(!queue.is_under_way(Ino(6)), "it was written meanwhile");
    }

    #[test]
    fn nothing_comes_out_of_a_queue_that_is_stopped() {
        let queue = ToSeal::default();
        queue.add(Ino(5), TxId(1), Duration::ZERO);
        queue.stop();
        assert_eq!(queue.next(|| TxId(9)), None);
        assert_eq!(queue.drain(), [Ino(5)]);
    }
}

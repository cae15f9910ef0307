//! Letting go of what was removed while a program had it mapped: rounds of the background, and who waits for one.
//!
//! The host is asked of each whether it is mapped yet, and may be late to answer. So nobody asks who finds no space: he
//! has the background go round, and waits for that, which leaves behind what is late.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::{Ino, SegmentId};

use super::walks::Walks;

/// So long a round waits for what the host is late with; rounds after it do so no more.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// So many are looked at in a round that somebody waits for.
const MOST: usize = 64;

/// So long who finds no space waits: for the round under way, and for the next one.
const ROUNDS: Duration = Duration::from_secs(3);

/// What may be mapped yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Removed {
    /// A file that has no name.
    File(Ino),
    /// A segment that no file has.
    Segment(SegmentId),
}

/// The rounds.
#[derive(Default)]
pub(super) struct LettingGo {
    walks: Arc<Walks<Removed>>,
    rounds: Mutex<Rounds>,
    over: Condvar,
}

#[derive(Default)]
struct Rounds {
    begun: u64,
    ended: u64,
    /// Somebody waits for the next one.
    called: bool,
}

impl LettingGo {
    /// Those who go through what was removed.
    pub fn walks(&self) -> &Arc<Walks<Removed>> {
        &self.walks
    }

    /// A round, in which so many are looked at: while somebody waits for it, of very many the others have their turn in
    /// later ones.
    pub fn round<T>(&self, work: impl FnOnce(usize) -> T) -> T {
        let called = {
            let mut rounds = self.rounds.lock();
            rounds.begun += 1;
            std::mem::take(&mut rounds.called)
        };
        let done = work(if called { MOST } else { usize::MAX });
        let mut rounds = self.rounds.lock();
        rounds.ended = rounds.begun;
        self.over.notify_all();
        done
    }

    /// Waits for a round that begins from now on, once it is `called` for.
    pub fn wait_for_round(&self, call: impl FnOnce()) {
        let deadline = Instant::now() + ROUNDS;
        let next = {
            let mut rounds = self.rounds.lock();
            rounds.called = true;
            rounds.begun + 1
        };
        call();
        let mut rounds = self.rounds.lock();
        while rounds.ended < next {
            if self.over.wait_until(&mut rounds, deadline).timed_out() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_waits_does_so_for_a_round_that_began_after_that() {
        let (letting_go, (call, called)) = (LettingGo::default(), channel());
        let (tell, hear) = channel();
        std::thread::scope(|scope| {
            letting_go.round(|most| {
                assert_eq!(most, usize::MAX);
                scope.spawn(|| {
                    letting_go.wait_for_round(|| call.send(()).unwrap());
                    tell.send(()).unwrap();
                });
                called.recv().unwrap();
            });
            assert!(hear.try_recv().is_err());
            letting_go.round(|most| assert_eq!(most, MOST));
            hear.recv().unwrap();
        });
    }
}

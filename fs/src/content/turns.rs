//! What is worked out for a file or directory is worked out by one at a time: others who want it wait.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::Ino;

/// Who waits looks so often whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// Those who work something out.
#[derive(Default)]
pub(super) struct Turns {
    taken: Mutex<HashSet<Ino>>,
    free: Condvar,
}

/// The turn to work something out, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    ino: Ino,
}

impl Turns {
    /// The turn of whoever asks, once nobody else has it. Until then `wanted` says now and then whether that is wanted.
    pub fn wait<E>(&self, ino: Ino, wanted: impl Fn() -> Result<(), E>) -> Result<Turn<'_>, E> {
        let mut taken = self.taken.lock();
        while !taken.insert(ino) {
            self.free.wait_for(&mut taken, LOOK);
            if taken.contains(&ino) {
                drop(taken);
                wanted()?;
                taken = self.taken.lock();
            }
        }
        Ok(Turn { turns: self, ino })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().remove(&self.ino);
        self.turns.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn one_at_a_time_has_the_turn() {
        let (turns, now, all) = (Turns::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let turn = turns.wait(Ino(1), || Ok::<_, ()>(())).unwrap();
                        assert_eq!(now.fetch_add(1, SeqCst), 0);
                        assert!(turns.wait(Ino(1), || Err(())).is_err(), "nobody else has it meanwhile");
                        all.fetch_add(1, SeqCst);
                        now.fetch_sub(1, SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        let other = turns.wait(Ino(2), || Err(()));
        assert!(all.into_inner() == 800 && other.is_ok() && turns.wait(Ino(1), || Err(())).is_ok());
    }
}

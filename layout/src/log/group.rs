//! Group commit: of those who wait for the log, one flushes it for all who came before, and those go on together as
//! soon as that is done, whoever flushes next.

use parking_lot::{Condvar, Mutex};

/// Those who wait.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// One of them is at work.
    led: Mutex<bool>,
    over: Condvar,
}

/// Whoever is at work; the others hear of its end also if that is a panic.
struct Leader<'a>(&'a Group);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        *self.0.led.lock() = false;
        self.0.over.notify_all();
    }
}

impl Group {
    /// Returns once `done` is true, or after doing the `work` that makes it so. One at a time does it; whoever finds
    /// afterwards that it was not enough does it next.
    pub fn wait<E>(&self, done: impl Fn() -> bool, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut led = self.led.lock();
        loop {
            if done() {
                return Ok(());
            }
            if !*led {
                break;
            }
            self.over.wait(&mut led);
        }
        *led = true;
        drop(led);
        let _leader = Leader(self);
        work()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_works_for_all_who_came_before() {
        let group = Group::default();
        let (newest, done, works) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let mine = newest.fetch_add(1, SeqCst) + 1;
                        let work = || {
                            let upto = newest.load(SeqCst);
                            thread::sleep(Duration::from_millis(2));
                            done.store(upto, SeqCst);
                            works.fetch_add(1, SeqCst);
                            Ok::<(), ()>(())
                        };
                        group.wait(|| done.load(SeqCst) >= mine, work).unwrap();
                        assert!(done.load(SeqCst) >= mine);
                    }
                });
            }
        });
        assert!(works.load(SeqCst) < 320, "everybody worked alone");
    }

    #[test]
    fn the_work_of_one_that_fails_or_panics_is_tried_by_the_next() {
        let group = Group::default();
        assert_eq!(group.wait(|| false, || Err(7)), Err(7));
        let panicked =
            thread::scope(|scope| scope.spawn(|| group.wait::<()>(|| false, || panic!("on purpose"))).join());
        assert!(panicked.is_err());
        assert_eq!(group.wait::<()>(|| false, || Ok(())), Ok(()));
        assert_eq!(group.wait(|| true, || Err(7)), Ok(()));
    }
}

//! Starting other programs without being taken for them.
//!
//! A process that starts another one is two for a moment: until the new one executes its program, it has everything
//! open that this one has. What is closed here meanwhile is still open there, and would pass for another's. So whoever
//! finds something open while a program is being started asks again when that is over; nobody who starts a program
//! waits for whoever asks.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Programs that are being started, and how many have been.
struct Starts {
    now: u32,
    ever: u64,
}

static STARTS: Mutex<Starts> = Mutex::new(Starts { now: 0, ever: 0 });
static ENDED: Condvar = Condvar::new();

/// Longer than this nobody waits for a program to be started: it comes from a disk that may not answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// So often it is asked again.
const TRIES: u32 = 3;

struct Starting;

impl Starting {
    fn begin() -> Self {
        STARTS.lock().now += 1;
        Self
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let mut starts = STARTS.lock();
        starts.now -= 1;
        starts.ever += 1;
        ENDED.notify_all();
    }
}

/// Starts a program, with a call that returns once it is executed.
pub fn start_apart<T>(start: impl FnOnce() -> T) -> T {
    let _starting = Starting::begin();
    start()
}

/// Whether something is open nowhere. If it seems to be, and a program was being started, it is asked again.
pub(super) fn ask_apart(is_free: impl Fn() -> bool) -> bool {
    for _ in 0..TRIES {
        let ever = STARTS.lock().ever;
        if is_free() {
            return true;
        }
        let mut starts = STARTS.lock();
        if starts.now == 0 && starts.ever == ever {
            return false;
        }
        ENDED.wait_while_for(&mut starts, |starts| starts.now > 0, PATIENCE);
    }
    is_free()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_a_program_that_is_being_started_has_open_is_asked_for_again_and_keeps_nobody() {
        let asked = Cell::new(0);
        let never = || {
            asked.set(asked.get() + 1);
            false
        };
        let (begun, wait_for_begin) = channel();
        let (end, wait_for_end) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                start_apart(|| {
                    begun.send(()).unwrap();
                    let _ = wait_for_end.recv();
                });
            });
            wait_for_begin.recv().unwrap();
            // What is free is so at once, whoever is starting something.
            assert!(ask_apart(|| true));
            // What is not may be so once it has been started.
            let again = || {
                asked.set(asked.get() + 1);
                if asked.get() == 1 {
                    end.send(()).unwrap();
                }
                asked.get() > 1
            };
            assert!(ask_apart(again));
        });
        // A start of another test may be seen as well.
        let before = asked.get();
        assert!(!ask_apart(never));
        assert!((before + 1..=before + TRIES + 1).contains(&asked.get()));
    }
}

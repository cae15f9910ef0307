//! What this thread has waited for since it began to work on a request. It is noted only while somebody traces the
//! mount; else it costs the reading of one number that nobody changes.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The lock of the file, which another request has.
    Lock,
    /// Others who have the file open, or read it quietly.
    Others,
    /// The host, over the bytes of a file.
    Host,
    /// The host, which makes the bytes of a file durable.
    Sync,
    /// The pool's log: others who change the pool, and the host that takes what is written.
    Log,
    /// A commit.
    Commit,
    /// A reader that looks into a file.
    Reader,
}

impl Wait {
    /// All of them, in the order of their numbers.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Lock, "lock"),
        (Self::Others, "others"),
        (Self::Host, "host"),
        (Self::Sync, "sync"),
        (Self::Log, "log"),
        (Self::Commit, "commit"),
        (Self::Reader, "reader"),
    ];
}

/// What was noted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notes {
    waited: [Duration; Wait::ALL.len()],
    /// Bytes that were read, written or copied.
    pub bytes: Option<u64>,
    /// Of a file that was opened: whether the kernel moves its bytes.
    pub passthrough: Option<bool>,
    /// What the request was answered with, if it failed.
    pub errno: i32,
}

impl Notes {
    /// How long something was waited for.
    pub fn waited(&self, wait: Wait) -> Duration {
        self.waited[wait as usize]
    }

    /// These notes and those of what followed.
    pub fn and(mut self, later: Self) -> Self {
        self.waited.iter_mut().zip(later.waited).for_each(|(waited, more)| *waited += more);
        Self {
            waited: self.waited,
            bytes: later.bytes.or(self.bytes),
            passthrough: later.passthrough.or(self.passthrough),
            errno: later.errno,
        }
    }
}

/// How many look.
static LOOKERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NOTES: Cell<Notes> = Cell::default();
    /// A wait within a wait is part of that.
    static WAITING: Cell<bool> = const { Cell::new(false) };
}

/// Somebody looks, until this is dropped.
pub(crate) struct Looker(());

impl Looker {
    /// Begins to look.
    pub fn begin() -> Self {
        LOOKERS.fetch_add(1, Relaxed);
        Self(())
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        LOOKERS.fetch_sub(1, Relaxed);
    }
}

/// True if somebody looks.
pub(crate) fn noted() -> bool {
    LOOKERS.load(Relaxed) > 0
}

/// Does what may wait.
pub(crate) fn during<T>(wait: Wait, work: impl FnOnce() -> T) -> T {
    if !noted() || WAITING.replace(true) {
        return work();
    }
    let begun = Instant::now();
    let done = work();
    WAITING.set(false);
    note(|notes| notes.waited[wait as usize] += begun.elapsed());
    done
}

/// Notes something about the request that this thread works on.
pub(crate) fn note(change: impl FnOnce(&mut Notes)) {
    if noted() {
        let mut notes = NOTES.get();
        change(&mut notes);
        NOTES.set(notes);
    }
}

/// Takes what was noted. What comes is about another request, or part of one.
pub(crate) fn take() -> Notes {
    WAITING.set(false);
    NOTES.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_noted_once_and_only_while_somebody_looks() {
        for (number, (wait, _)) in Wait::ALL.iter().enumerate() {
            assert_eq!(*wait as usize, number);
        }
        let looker = Looker::begin();
        take();
        let wait = || std::thread::sleep(Duration::from_millis(2));
        during(Wait::Commit, || during(Wait::Log, wait));
        note(|notes| notes.bytes = Some(7));
        let first = take();
        assert!(first.waited(Wait::Commit) >= Duration::from_millis(2));
        assert_eq!((first.waited(Wait::Log), first.bytes), (Duration::ZERO, Some(7)));
        during(Wait::Log, wait);
        let both = first.and(take());
        assert!(both.waited(Wait::Log) >= Duration::from_millis(2) && both.bytes == Some(7));
        drop(looker);
        if !noted() {
            during(Wait::Log, wait);
            assert_eq!(take().waited(Wait::Log), Duration::ZERO);
        }
    }
}

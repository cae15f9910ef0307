//! Lines on their way to the log, whose disk, socket or reader may be late: nobody who serves, takes over or answers
//! waits for that. A thread of its own writes them. What there is no room for meanwhile is counted, and said later.
//!
//! A program that ends soon writes its lines itself, as any program does ([`LogQueue::add`]), until it says that others
//! depend on it ([`LogQueue::hold_back`], [`LogQueue::write_beside`]).

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use log::Level;
use nix::sys::signal::{SigSet, SigmaskHow};

/// So many bytes of lines wait, at most.
const MOST: usize = 1 << 20;
/// Whoever logs waits for so long until the line is there, so that as a rule it is when what it tells of can be seen.
/// Once that was too short, nobody does until the log is no longer late.
const MOMENT: Duration = Duration::from_millis(20);
/// So long the end of a process waits for its last lines.
const AT_THE_END: Duration = Duration::from_millis(500);

thread_local! {
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// A line, as it is written.
pub struct Line {
    /// Its level.
    pub level: Level,
    /// The text.
    pub text: Vec<u8>,
}

/// The lines.
pub struct LogQueue {
    state: Mutex<State>,
    changed: Condvar,
    write: Box<dyn Fn(&Line) + Send + Sync>,
}

#[derive(Default)]
struct State {
    way: Way,
    lines: VecDeque<Line>,
    bytes: usize,
    /// There was no room for so many lines.
    left_out: u64,
    added: u64,
    written: u64,
    is_late: bool,
}

/// Who writes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Way {
    /// Whoever logs.
    #[default]
    Direct,
    /// Nobody yet.
    HeldBack,
    /// A thread.
    Beside,
}

impl LogQueue {
    /// Of lines that `write` writes.
    pub fn new(write: impl Fn(&Line) + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), write: Box::new(write) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or writes it.
    pub fn add(&self, line: Line) {
        let mut state = self.lock();
        if state.way == Way::Direct {
            drop(state);
            return (self.write)(&line);
        }
        if state.bytes + line.text.len() > MOST {
            state.left_out += 1;
            return;
        }
        state.bytes += line.text.len();
        state.lines.push_back(line);
        state.added += 1;
        self.changed.notify_all();
        if state.way == Way::Beside && !state.is_late && !IS_WRITER.get() {
            self.wait(state, MOMENT);
        }
    }

    /// Waits until what is there now is written, but no longer than this.
    fn wait(&self, state: MutexGuard<'_, State>, time: Duration) {
        let last = state.added;
        let waited = self.changed.wait_timeout_while(state, time, |state| state.written < last);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_late |= waited.timed_out();
    }

    /// Whether lines wait.
    pub fn is_one(&self) -> bool {
        self.lock().way != Way::Direct
    }

    /// Lines wait from now on. There is no other thread yet, nor is there to be one until [`LogQueue::write_beside`].
    pub fn hold_back(&self) {
        self.lock().way = Way::HeldBack;
    }

    /// A thread of its own writes from now on. Where there is none to be had, whoever logs does.
    pub fn write_beside(self: &Arc<Self>) {
        if self.lock().way == Way::Beside {
            return;
        }
        let queue = self.clone();
        // Signals are for others.
        let blocked = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let started = thread::Builder::new().name("log".to_owned()).spawn(move || queue.run());
        if let Ok(before) = blocked {
            let _ = before.thread_set_mask();
        }
        let mut state = self.lock();
        if started.is_ok() {
            state.way = Way::Beside;
            return;
        }
        state.way = Way::Direct;
        let lines = std::mem::take(&mut state.lines);
        (state.bytes, state.written) = (0, state.added);
        drop(state);
        lines.iter().for_each(&self.write);
    }

    fn run(&self) {
        IS_WRITER.set(true);
        loop {
            let waiting = self.changed.wait_while(self.lock(), |state| state.lines.is_empty());
            let mut state = waiting.unwrap_or_else(PoisonError::into_inner);
            let Some(line) = state.lines.pop_front() else { continue };
            state.bytes -= line.text.len();
            drop(state);
            (self.write)(&line);
            let mut state = self.lock();
            state.written += 1;
            state.is_late &= !state.lines.is_empty();
            let left_out = if state.bytes < MOST / 2 { std::mem::take(&mut state.left_out) } else { 0 };
            self.changed.notify_all();
            drop(state);
            if left_out > 0 {
                log::warn!("the log was late: {left_out} lines were left out");
            }
        }
    }

    /// The process is about to end. What is not written soon is lost.
    pub fn end(self: &Arc<Self>) {
        if self.lock().way == Way::HeldBack {
            self.write_beside();
        }
        let state = self.lock();
        if state.way == Way::Beside && !IS_WRITER.get() {
            self.wait(state, AT_THE_END);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn line(text: &str) -> Line {
        Line { level: Level::Info, text: text.into() }
    }

    #[test]
    fn nobody_waits_for_a_log_that_is_late() {
        let ((told, tell), (go, wait)) = (mpsc::channel(), mpsc::channel::<()>());
        let wait = Mutex::new(wait);
        let queue = Arc::new(LogQueue::new(move |line| {
            let _ = wait.lock().unwrap().recv();
            let _ = told.send(line.text.clone());
        }));
        queue.hold_back();
        queue.add(line("first"));
        assert!(tell.try_recv().is_err());
        queue.write_beside();
        // Far more than there is room for. Only one of them waits, for a moment.
        let long = "x".repeat(1000);
        (0..5000).for_each(|_| queue.add(line(&long)));
        queue.end();
        assert!(tell.try_recv().is_err());
        let left_out = queue.lock().left_out;
        assert!(left_out > 3000 && queue.lock().bytes <= MOST, "{left_out}");
        drop(go);
        assert_eq!(tell.recv().unwrap(), b"first");
        assert_eq!(tell.iter().take((5000 - left_out) as usize).count() as u64, 5000 - left_out);
        let over = || queue.lock().lines.is_empty() && !queue.lock().is_late;
        while !over() {
            thread::yield_now();
        }
        queue.add(line("in order"));
        assert_eq!(tell.recv().unwrap(), b"in order");
    }
}

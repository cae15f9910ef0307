//! The one kind of task in the background: on a thread of its own it waits for a piece of work, does it, and waits for
//! the next, until it is told to stop. A piece that panics is counted and said in the log, and the task goes on.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::file::Files;
use crate::store::Counters;

/// The niceness of threads that let everybody else go first.
const NICENESS: libc::c_int = 10;

/// What a thread in the background does.
pub(crate) trait Task: Send + 'static {
    /// The name of its thread; the kernel keeps 15 characters.
    const NAME: &'static str;
    /// What is done at one time.
    type Piece;

    /// Comes first, on the thread.
    fn begin(&mut self) {}

    /// Waits for the next piece; `None` when there is to be none any more.
    fn next(&mut self) -> Option<Self::Piece>;

    /// Does a piece.
    fn work(&mut self, piece: &Self::Piece);

    /// A piece in print, if doing it panicked.
    fn name(piece: &Self::Piece) -> String;

    /// Doing a piece panicked: puts right what would have the next one panic at once.
    fn panicked(&mut self) {}

    /// Comes last, on the thread.
    fn end(&mut self) {}

    /// What has [`Task::next`] give nothing any more, whoever waits in it.
    fn stopper(&self) -> Stopper;
}

/// Tells a task to stop.
pub(crate) type Stopper = Box<dyn Fn() + Send + Sync>;

/// A task that is running. It is told to stop, and waited for, when this is dropped.
pub(crate) struct Running {
    stop: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a task.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start<T: Task>(files: &Arc<Files>, task: T) -> io::Result<Self> {
        let (served, stop) = (files.clone(), task.stopper());
        let thread = thread::Builder::new().name(T::NAME.into()).spawn(move || run(task, served.store().counters()))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            // It catches its own panics.
            let _ = thread.join();
        }
    }
}

fn run<T: Task>(mut task: T, counters: &Counters) {
    let name = || T::NAME.to_owned();
    guarded(counters, name, || task.begin());
    while let Some(piece) = task.next() {
        if guarded(counters, || T::name(&piece), || task.work(&piece)).is_none() {
            task.panicked();
        }
    }
    guarded(counters, name, || task.end());
}

/// Does something that must not end its thread: if it panics, that is counted and said in the log, and there is no
/// result.
pub(crate) fn guarded<T>(counters: &Counters, name: impl Fn() -> String, work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        counters.panics.add(1);
        log::error!("{} panicked", name());
    }
    done
}

/// Has this thread let everybody else go first, to the processor and to the disk.
pub(crate) fn stand_back() {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;
    // SAFETY: both calls take integers and touch no memory; 0 is the calling thread. Where they fail, nothing changes.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};

    use crate::options::{Durability, Options};
    use crate::store::Store;

    struct Counting {
        said: Sender<&'static str>,
        stopped: Arc<AtomicBool>,
        at: u32,
    }

    impl Task for Counting {
        const NAME: &'static str = "tensorfs-test";
        type Piece = u32;

        fn begin(&mut self) {
            self.said.send("begin").unwrap();
        }

        fn next(&mut self) -> Option<u32> {
            while self.at == 3 && !self.stopped.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            self.at += 1;
            (self.at <= 3).then_some(self.at)
        }

        fn work(&mut self, piece: &u32) {
            assert_ne!(*piece, 2, "a piece that panics");
            self.said.send("work").unwrap();
        }

        fn name(piece: &u32) -> String {
            format!("piece {piece}")
        }

        fn panicked(&mut self) {
            self.said.send("panicked").unwrap();
        }

        fn end(&mut self) {
            self.said.send("end").unwrap();
        }

        fn stopper(&self) -> Stopper {
            let stopped = self.stopped.clone();
            Box::new(move || stopped.store(true, Ordering::SeqCst))
        }
    }

    #[test]
    fn a_task_goes_on_after_a_panic_and_ends_when_it_is_let_go_of() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let store = Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024);
        let files = Arc::new(Files::new(Arc::new(store)));
        let ((said, heard), stopped) = (channel(), Arc::new(AtomicBool::new(false)));
        let running = Running::start(&files, Counting { said, stopped: stopped.clone(), at: 0 }).unwrap();
        let first: Vec<_> = heard.iter().take(4).collect();
        assert_eq!(first, ["begin", "work", "panicked", "work"]);
        assert_eq!(files.store().counters().panics.get(), 1);
        drop(running);
        assert!(stopped.load(Ordering::SeqCst));
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["end"]);
        pool.close().unwrap();
    }
}

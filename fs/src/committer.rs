//! The background: what clients do not wait for becomes durable within the commit interval.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::learn::Switch;

/// The thread that commits in the background.
pub(crate) struct Committer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts it.
    pub fn start(fs: Arc<Filesystem>) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = stop.clone();
        let thread = thread::Builder::new().name("tensorfs-commit".into()).spawn(move || {
            let interval = fs.options.commit.max(Duration::from_millis(1));
            let mut quiet = false;
            loop {
                let mut stop = stopped.0.lock();
                if !*stop {
                    stopped.1.wait_for(&mut stop, interval);
                }
                if *stop {
                    return;
                }
                drop(stop);
                quiet = round(&fs, quiet);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // It catches its own panics.
            let _ = thread.join();
        }
    }
}

/// One round; returns whether there was nothing to do. A fault is said once, not every second.
fn round(fs: &Filesystem, was_quiet: bool) -> bool {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| commit_if_changed(fs, was_quiet)));
    match result {
        Ok(Ok(quiet)) => quiet,
        Ok(Err(fault)) => {
            log::log!(fault.level, "background commit: {}", fault);
            false
        }
        Err(_) => {
            fs.counters.panics.add(1);
            log::error!("the background commit panicked");
            false
        }
    }
}

fn commit_if_changed(fs: &Filesystem, was_quiet: bool) -> Result<bool> {
    if fs.pool.is_read_only().is_some() {
        return Ok(true);
    }
    let learned = fs.learn_all(Switch::Leave);
    if fs.capacity.limit.is_some() {
        fs.recount();
    }
    let changed = *learned.as_ref().unwrap_or(&true) || fs.pool.newest() > fs.pool.horizon();
    if changed {
        fs.counters.commits_background.add(1);
        fs.commit()?;
        fs.pool.unlink_covered();
        fs.pool.maintain()?;
    } else if !was_quiet {
        fs.pool.idle()?;
    }
    learned?;
    Ok(!changed)
}

//! The background: what clients do not wait for becomes durable within the commit interval.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::learn::Switch;

/// The thread that commits in the background; it ends when this is dropped.
pub(crate) struct Committer {
    fs: Arc<Filesystem>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts it.
    pub fn start(fs: Arc<Filesystem>) -> io::Result<Self> {
        let served = fs.clone();
        let thread = thread::Builder::new().name("tensorfs-commit".into()).spawn(move || {
            let interval = served.options.commit.max(Duration::from_millis(1));
            let mut quiet = false;
            while served.bell.wait(interval) {
                quiet = round(&served, quiet);
            }
        })?;
        Ok(Self { fs, thread: Some(thread) })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.fs.bell.ring(Call::Stop);
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

/// What one round does.
pub(crate) fn commit_if_changed(fs: &Filesystem, was_quiet: bool) -> Result<bool> {
    if fs.pool.is_read_only().is_some() {
        return Ok(true);
    }
    // What is large is written out first, and recorded then: meanwhile others can commit without waiting for it.
    let later = fs.write_out_grown();
    fs.settle_values()?;
    let learned = fs.learn_all_but(Switch::Leave, &later);
    if fs.capacity.limit().is_some() {
        if fs.holds_too_much() {
            fs.reap_removed();
        }
        fs.recount();
    }
    let changed = *learned.as_ref().unwrap_or(&true) || fs.pool.newest() > fs.pool.horizon();
    if changed {
        fs.counters.commits_background.add(1);
        fs.commit()?;
    } else if !was_quiet {
        fs.pool.idle()?;
    }
    // Also while nobody changes anything: the kernel forgets a file after its removal, and what was deleted last leaves a
    // log that is longer than it need be.
    fs.pool.unlink_covered();
    fs.pool.maintain()?;
    learned?;
    Ok(!changed)
}

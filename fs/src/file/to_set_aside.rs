//! Files being replaced whose versions before are to be set aside in the background.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::Ino;

/// As a rule it takes a few milliseconds: so long does who looks at the quarantine wait for one that has just begun.
const USUAL: Duration = Duration::from_millis(50);

/// The files, and since when there are some.
#[derive(Default)]
pub(crate) struct ToSetAside {
    queue: Mutex<Queue>,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    files: BTreeSet<Ino>,
    since: Option<Instant>,
}

impl ToSetAside {
    /// A file is to have its turn.
    pub fn add(&self, ino: Ino) {
        let mut queue = self.queue.lock();
        queue.files.insert(ino);
        queue.since.get_or_insert_with(Instant::now);
    }

    /// Those whose turn it is; that is over at [`ToSetAside::done`].
    pub fn take(&self) -> BTreeSet<Ino> {
        std::mem::take(&mut self.queue.lock().files)
    }

    /// What was taken is done.
    pub fn done(&self) {
        let mut queue = self.queue.lock();
        if queue.files.is_empty() {
            queue.since = None;
        }
        self.done.notify_all();
    }

    /// Waits a moment for what has just begun.
    pub fn wait_a_moment(&self) {
        let mut queue = self.queue.lock();
        while let Some(since) = queue.since {
            if self.done.wait_until(&mut queue, since + USUAL).timed_out() {
                break;
            }
        }
    }
}

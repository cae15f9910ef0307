//! Asking the host about files of others: on a thread apart, so that who counts waits for no answer that is late.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorfs_layout::Ino;
use tensorfs_layout::pool::Pool;

use super::host;
use super::writers::{Changed, Writers};

/// So many are late at a time, and then nobody is asked before one has answered.
const THREADS: usize = 8;

/// Of so few files who only wants to see what they take has the host asked each time.
const FEW: usize = 64;

/// Of more he has it asked anew after so many times as long as that took.
const REST: u32 = 20;

/// Who asks, and about what just now.
#[derive(Default)]
pub(super) struct Asking {
    /// The files whose answers are waited for.
    files: Mutex<HashSet<Ino>>,
    threads: Arc<()>,
    /// When the host is next asked of many for who only wants to see it.
    next_look: Mutex<Option<Instant>>,
}

/// Which of the files are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that have changed since, or may have without our hearing of it.
    Unknown,
    /// All, and quarantine: the host changes them, too.
    All,
}

/// A file is being asked about until this goes.
struct Asked<'a>(&'a Asking, Ino);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.files.lock().remove(&self.1);
    }
}

impl Asking {
    /// Notes that a file is being asked about, unless somebody does so.
    fn begin(&self, ino: Ino) -> Option<Asked<'_>> {
        self.files.lock().insert(ino).then(|| Asked(self, ino))
    }

    /// The caller, who has something to do with the file, asks what it takes.
    pub fn measure(&self, writers: &Writers, ino: Ino) {
        let _asked = self.begin(ino);
        if let Some(file) = writers.to_ask(ino) {
            measure(writers, &file);
        }
    }

    /// Asks the host what files take. What is not answered within this time counts as it does, until it is.
    pub fn ask(self: &Arc<Self>, writers: &Arc<Writers>, pool: &Arc<Pool>, which: Which, patience: Duration) {
        if let Some(done) = self.begin_to_ask(writers, pool, which) {
            // An error says that it is done.
            let _ = done.recv_timeout(patience);
        }
    }

    /// As [`Asking::ask`] for those that have changed, for whoever may see how it was a moment ago: however many are
    /// open, and however often he looks, the host is asked for a small part of the time.
    pub fn ask_to_see(self: &Arc<Self>, writers: &Arc<Writers>, pool: &Arc<Pool>, patience: Duration) {
        if writers.count_unknown() <= FEW {
            return self.ask(writers, pool, Which::Unknown, patience);
        }
        // Who comes while another has them asked sees what is known.
        let Some(mut next) = self.next_look.try_lock() else { return };
        let begun = Instant::now();
        if next.is_none_or(|next| next <= begun) {
            self.ask(writers, pool, Which::Unknown, patience);
            *next = Some(Instant::now() + begun.elapsed() * REST);
        }
    }

    fn begin_to_ask(self: &Arc<Self>, writers: &Arc<Writers>, pool: &Arc<Pool>, which: Which) -> Option<Receiver<()>> {
        let mut wanted = match which {
            Which::Unknown => writers.unknown(),
            Which::All => writers.all_to_ask(),
        };
        {
            let asked = self.files.lock();
            wanted.retain(|file| !asked.contains(&file.written.ino));
        }
        if which == Which::Unknown && wanted.is_empty() {
            return None;
        }
        let one = self.threads.clone();
        if Arc::strong_count(&one) > THREADS + 1 {
            return None;
        }
        let (this, writers, pool) = (self.clone(), writers.clone(), pool.clone());
        let (answered, done) = channel();
        let asks = move || {
            for file in &wanted {
                let Some(_asked) = this.begin(file.written.ino) else { continue };
                measure(&writers, file);
            }
            if which == Which::All {
                pool.quarantine().recount();
            }
            drop((wanted, one, answered));
        };
        thread::Builder::new().name("asking".into()).spawn(asks).ok()?;
        Some(done)
    }
}

/// Asks the host what a file takes. What it says nothing of counts as it did.
fn measure(writers: &Writers, file: &Changed) {
    if let Ok(host) = host::stat(&*file.written.fd) {
        writers.asked(file, file.written.extent(&host));
    }
}

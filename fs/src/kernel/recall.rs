//! Asking the kernel what it knows still. That it has forgotten something it says once, and a server that has read so
//! and died before it has done anything about it leaves what nobody will speak of any more.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::filesystem::Filesystem;

/// By then has been read what the kernel had to say when it was asked.
const PAUSE: Duration = Duration::from_secs(5);

/// Asks, a while after a server has taken the place of another one, and once more. Ends when it is dropped.
pub(super) struct Recall {
    stopped: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Recall {
    /// Starts it.
    pub fn start(fs: &Arc<Filesystem>) -> io::Result<Self> {
        let (stopped, fs) = (Arc::<(Mutex<bool>, Condvar)>::default(), fs.clone());
        let told = stopped.clone();
        let run = move || {
            // What was not known once and was told again meanwhile may be in doubt once more.
            while pause(&told) && fs.let_go_of_forgotten() > 0 {}
        };
        let thread = thread::Builder::new().name("tensorfs-recall".into()).spawn(run)?;
        Ok(Self { stopped, thread: Some(thread) })
    }
}

/// False if it is to end.
fn pause((stopped, changed): &(Mutex<bool>, Condvar)) -> bool {
    let mut stopped = stopped.lock();
    changed.wait_while_for(&mut stopped, |stopped| !*stopped, PAUSE);
    !*stopped
}

impl Drop for Recall {
    fn drop(&mut self) {
        *self.stopped.0.lock() = true;
        self.stopped.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

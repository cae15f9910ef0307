//! Keeping the log short: what is dead in it is cleaned away, and what it will not need soon goes back to the host.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::file::Files;

use super::task::{Running, Stopper, Task};

/// Cleans the log.
pub(super) struct Cleaner {
    files: Arc<Files>,
    interval: Duration,
}

impl Cleaner {
    /// Starts it.
    pub fn start(files: &Arc<Files>) -> io::Result<Running> {
        let interval = files.store().options().interval();
        Running::start(files, Self { files: files.clone(), interval })
    }
}

impl Task for Cleaner {
    const NAME: &'static str = "tensorfs-clean";
    type Piece = ();

    fn next(&mut self) -> Option<()> {
        self.files.store().bells().clean().wait(self.interval).then_some(())
    }

    fn work(&mut self, (): &()) {
        let pool = self.files.store().pool();
        if pool.is_read_only().is_none()
            && let Err(error) = pool.maintain()
        {
            log::warn!("cleaning the log: {error}");
        }
    }

    fn name((): &()) -> String {
        "cleaning the log".into()
    }

    fn stopper(&self) -> Stopper {
        let files = self.files.clone();
        Box::new(move || files.store().bells().clean().stop())
    }
}

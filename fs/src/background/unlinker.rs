//! Removing from the host the segments that no file has any more, once that is durable.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::file::Files;

use super::task::{Running, Stopper, Task};

/// So many are removed before others who want to remove some get their turn.
const STEP: usize = 64;

/// Removes segments.
pub(super) struct Unlinker {
    files: Arc<Files>,
    interval: Duration,
}

impl Unlinker {
    /// Starts it.
    pub fn start(files: &Arc<Files>) -> io::Result<Running> {
        let interval = files.store().options().interval();
        Running::start(files, Self { files: files.clone(), interval })
    }
}

impl Task for Unlinker {
    const NAME: &'static str = "tensorfs-unlink";
    type Piece = ();

    fn next(&mut self) -> Option<()> {
        self.files.store().bells().unlink().wait(self.interval).then_some(())
    }

    fn work(&mut self, (): &()) {
        let store = self.files.store();
        if store.holds_too_much(0) {
            self.files.reap_removed();
        }
        while !store.bells().unlink().is_stopped() && store.pool().unlink_some(STEP) > 0 {}
        store.pool().unlink_again();
    }

    fn name((): &()) -> String {
        "removing segments".into()
    }

    fn stopper(&self) -> Stopper {
        let files = self.files.clone();
        Box::new(move || files.store().bells().unlink().stop())
    }
}

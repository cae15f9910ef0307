//! Making durable in the segments of small files what only the log holds, so that the log need not keep it. No commit
//! waits for that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::file::Files;

use super::task::{Running, Stopper, Task};

/// Settles values.
pub(super) struct Settler {
    files: Arc<Files>,
    interval: Duration,
}

impl Settler {
    /// Starts it.
    pub fn start(files: &Arc<Files>) -> io::Result<Running> {
        let interval = files.store().options().interval();
        Running::start(files, Self { files: files.clone(), interval })
    }
}

impl Task for Settler {
    const NAME: &'static str = "tensorfs-settle";
    type Piece = ();

    fn next(&mut self) -> Option<()> {
        self.files.store().bells().settle().wait(self.interval).then_some(())
    }

    fn work(&mut self, (): &()) {
        let pool = self.files.store().pool();
        if pool.is_read_only().is_none()
            && let Err(error) = pool.settle_values()
        {
            log::warn!("settling small files: {error}");
        }
    }

    fn name((): &()) -> String {
        "settling small files".into()
    }

    fn stopper(&self) -> Stopper {
        let files = self.files.clone();
        Box::new(move || files.store().bells().settle().stop())
    }
}

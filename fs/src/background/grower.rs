//! Making the log longer before somebody needs it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::file::Files;

use super::task::{Running, Stopper, Task};

/// Makes the log longer.
pub(super) struct Grower {
    files: Arc<Files>,
    interval: Duration,
}

impl Grower {
    /// Starts it.
    pub fn start(files: &Arc<Files>) -> io::Result<Running> {
        let interval = files.store().options().interval();
        Running::start(files, Self { files: files.clone(), interval })
    }
}

impl Task for Grower {
    const NAME: &'static str = "tensorfs-grow";
    type Piece = ();

    fn next(&mut self) -> Option<()> {
        self.files.store().bells().grow().wait(self.interval).then_some(())
    }

    fn work(&mut self, (): &()) {
        let pool = self.files.store().pool();
        if pool.is_read_only().is_none()
            && let Err(error) = pool.grow_ahead()
        {
            // Whoever needs the room hears of it.
            log::debug!("making the log longer: {error}");
        }
    }

    fn name((): &()) -> String {
        "making the log longer".into()
    }

    fn stopper(&self) -> Stopper {
        let files = self.files.clone();
        Box::new(move || files.store().bells().grow().stop())
    }
}

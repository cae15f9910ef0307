//! Tasks that come round: at least once a commit interval, and at once where their bell is rung.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::file::Files;
use crate::store::{Bell, Bells};

use super::task::{Running, Stopper, Task};

/// What is done each time.
pub(super) trait Chore: Send + Sized + 'static {
    /// The name of its thread; the kernel keeps 15 characters.
    const THREAD: &'static str;
    /// What it does, in print.
    const NAME: &'static str;

    /// What is rung where it is wanted at once.
    fn bell(bells: &Bells) -> &Bell;

    /// Does it.
    fn work(&mut self, files: &Arc<Files>);

    /// Starts to do it, again and again.
    ///
    /// # Errors
    /// There is no thread to be had.
    fn start(self, files: &Arc<Files>) -> io::Result<Running> {
        let interval = files.store().options().interval();
        Running::start(files, Round { files: files.clone(), interval, chore: self })
    }
}

struct Round<C> {
    files: Arc<Files>,
    interval: Duration,
    chore: C,
}

impl<C: Chore> Task for Round<C> {
    const NAME: &'static str = C::THREAD;
    type Piece = ();

    fn next(&mut self) -> Option<()> {
        C::bell(self.files.store().bells()).wait(self.interval).then_some(())
    }

    fn work(&mut self, (): &()) {
        self.chore.work(&self.files);
    }

    fn name((): &()) -> String {
        C::NAME.into()
    }

    fn stopper(&self) -> Stopper {
        let files = self.files.clone();
        Box::new(move || C::bell(files.store().bells()).stop())
    }
}

//! Making spare segments before they are needed. When the pool is closed, what is left of them goes.

use std::io;
use std::sync::Arc;

use crate::file::Files;

use super::task::{Running, Stopper, Task};

/// Makes spares when some are wanted.
pub(super) struct SpareMaker {
    files: Arc<Files>,
}

impl SpareMaker {
    /// Starts it.
    pub fn start(files: &Arc<Files>) -> io::Result<Running> {
        Running::start(files, Self { files: files.clone() })
    }
}

impl Task for SpareMaker {
    const NAME: &'static str = "tensorfs-spare";
    type Piece = ();

    fn next(&mut self) -> Option<()> {
        self.files.store().spares().wait().then_some(())
    }

    fn work(&mut self, (): &()) {
        self.files.store().make_spares();
    }

    fn name((): &()) -> String {
        "making spare segments".into()
    }

    fn panicked(&mut self) {
        self.files.store().spares().pause();
    }

    fn end(&mut self) {
        self.files.store().remove_spares();
    }

    fn stopper(&self) -> Stopper {
        let files = self.files.clone();
        Box::new(move || files.store().spares().stop())
    }
}

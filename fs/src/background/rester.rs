//! Looking again at files that were closed, and that the host had still open to write when their RELEASE came.

use std::io;
use std::sync::Arc;

use tensorfs_layout::Ino;

use crate::file::Files;

use super::task::{Running, Stopper, Task};

/// Brings them to rest.
pub(super) struct Rester(Arc<Files>);

impl Rester {
    /// Starts it.
    pub fn start(files: &Arc<Files>) -> io::Result<Running> {
        Running::start(files, Self(files.clone()))
    }
}

impl Task for Rester {
    const NAME: &'static str = "tensorfs-rest";
    type Piece = (Ino, usize);

    fn next(&mut self) -> Option<Self::Piece> {
        self.0.to_settle().next()
    }

    fn work(&mut self, (ino, looks): &Self::Piece) {
        if !self.0.settle_if_closed(*ino) {
            self.0.to_settle().add_again(*ino, *looks);
        }
    }

    fn name((ino, _): &Self::Piece) -> String {
        format!("inode {ino}: bringing it to rest")
    }

    fn stopper(&self) -> Stopper {
        let files = self.0.clone();
        Box::new(move || files.to_settle().stop())
    }
}

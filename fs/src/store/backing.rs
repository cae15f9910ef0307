//! Segments that the kernel knows by a number, so that it can read, write and map them itself (passthrough).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use crate::handover::Kept;
use crate::privileged::take_back;

/// A segment's number. The kernel keeps its own reference to the open file, and opens it again with each client's
/// flags; it lets go when this is dropped.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Held weakly: the connection ends when the session does.
    device: Weak<OwnedFd>,
    id: u32,
    /// The next server is to know of it.
    kept: Option<Kept>,
}

impl Backing {
    /// A number that the kernel gave on this connection, and that nobody else lets go of.
    pub fn new(device: &Arc<OwnedFd>, id: u32, kept: Option<Kept>) -> Self {
        Self { device: Arc::downgrade(device), id, kept }
    }

    /// For tests: a number that no kernel knows.
    pub fn nobodys(id: u32) -> Self {
        Self { device: Weak::new(), id, kept: None }
    }

    /// The number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if self.kept.as_ref().is_some_and(Kept::is_left) {
            return;
        }
        let Some(device) = self.device.upgrade() else { return };
        take_back(&device, self.id);
    }
}

//! Segments that the kernel knows by a number, so that it can read, write and map them itself (passthrough).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use crate::handover::Kept;

nix::ioctl_write_ptr!(backing_close, 229, 2, u32);

/// A segment's number. The kernel keeps its own reference to the open file, and opens it again with each client's
/// flags; it lets go when this is dropped.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Held weakly: the connection ends when the session does.
    device: Weak<OwnedFd>,
    id: u32,
    /// The next server is to know of it.
    _kept: Option<Kept>,
}

impl Backing {
    /// A number that the kernel gave on this connection, and that nobody else lets go of.
    pub fn new(device: &Arc<OwnedFd>, id: u32, kept: Option<Kept>) -> Self {
        Self { device: Arc::downgrade(device), id, _kept: kept }
    }

    /// For tests: a number that no kernel knows.
    pub fn nobodys(id: u32) -> Self {
        Self { device: Weak::new(), id, _kept: None }
    }

    /// The number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let Some(device) = self.device.upgrade() else { return };
        close_backing(&device, self.id);
    }
}

/// Has the kernel forget a number.
pub(crate) fn close_backing(device: &OwnedFd, id: u32) {
    // SAFETY: the descriptor is open, and the kernel only reads the number.
    if let Err(errno) = unsafe { backing_close(device.as_raw_fd(), &id) } {
        log::debug!("backing {id}: {errno}");
    }
}

//! Segments that the kernel knows by a number, so that it can read, write and map them itself (passthrough).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

nix::ioctl_write_ptr!(backing_close, 229, 2, u32);

/// A segment's number. The kernel keeps its own reference to the open file, and opens it again with each client's
/// flags; it lets go when this is dropped.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Held weakly: the connection ends when the session does.
    device: Weak<OwnedFd>,
    id: u32,
}

impl Backing {
    /// A number that the kernel gave on this connection, and that nobody else lets go of.
    pub fn new(device: &Arc<OwnedFd>, id: u32) -> Self {
        Self { device: Arc::downgrade(device), id }
    }

    /// The number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let Some(device) = self.device.upgrade() else { return };
        // SAFETY: the descriptor is open, and the kernel only reads the number.
        if let Err(errno) = unsafe { backing_close(device.as_raw_fd(), &self.id) } {
            log::debug!("backing {}: {errno}", self.id);
        }
    }
}

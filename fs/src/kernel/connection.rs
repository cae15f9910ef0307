//! What the server asks of the kernel of its own accord, on the connection that requests come from.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fuser::{INodeNo, Notifier};
use tensorfs_layout::Ino;

use crate::handover::Handover;
use crate::privileged::privileged;
use crate::store::{Backing, Kernel};

/// The connection.
pub(super) struct Connection {
    device: Arc<OwnedFd>,
    notifier: Notifier,
    /// What the next server takes over, if there is to be one.
    handover: Option<Arc<Handover>>,
}

impl Connection {
    /// A connection over a duplicate of the device's descriptor.
    pub fn new(device: Arc<OwnedFd>, notifier: Notifier, handover: Option<Arc<Handover>>) -> Self {
        Self { device, notifier, handover }
    }
}

impl Kernel for Connection {
    fn register(&self, segment: BorrowedFd<'_>) -> io::Result<Backing> {
        let id = privileged().give_segment(self.device.as_fd(), segment)?;
        let kept = self.handover.as_ref().and_then(|handover| handover.keep_number(id));
        Ok(Backing::new(&self.device, id, kept))
    }

    fn inherited(&self, id: u32) -> Backing {
        let kept = self.handover.as_ref().and_then(|handover| handover.inherited_number(id));
        Backing::new(&self.device, id, kept)
    }

    fn forget_attributes(&self, ino: Ino) {
        // A negative offset means the attributes alone, which waits for nothing. Fails only for unknown inodes.
        let _ = self.notifier.inval_inode(INodeNo(ino.0), -1, 0);
    }

    fn forget_bytes(&self, ino: Ino, offset: u64, len: u64) {
        // Fails only for unknown inodes.
        let _ = self.notifier.inval_inode(INodeNo(ino.0), offset as i64, len as i64);
    }
}

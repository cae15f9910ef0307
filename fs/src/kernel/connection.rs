//! What the server asks of the kernel of its own accord, on the connection that requests come from.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{INodeNo, Notifier};
use nix::errno::Errno;
use nix::unistd::write;
use tensorfs_layout::Ino;

use crate::handover::Handover;
use crate::privileged::privileged;
use crate::store::{Backing, Kernel};

/// `FUSE_NOTIFY_INVAL_INODE` of `include/uapi/linux/fuse.h`.
const INVAL_INODE: i32 = 2;

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

    fn forget_name(&self, dir: Ino, name: &[u8]) {
        // Fails only for what it does not know.
        let _ = self.notifier.inval_entry(INodeNo(dir.0), OsStr::from_bytes(name));
    }

    fn knows(&self, ino: Ino) -> bool {
        // As `forget_attributes`, which does not say it: a `fuse_out_header`, and behind it the inode and the range.
        let mut message = [0; 40];
        message[..4].copy_from_slice(&40_u32.to_ne_bytes());
        message[4..8].copy_from_slice(&INVAL_INODE.to_ne_bytes());
        message[16..24].copy_from_slice(&ino.0.to_ne_bytes());
        message[24..32].copy_from_slice(&(-1_i64).to_ne_bytes());
        write(&*self.device, &message) != Err(Errno::ENOENT)
    }

    fn forget_bytes(&self, ino: Ino, offset: u64, len: u64) {
        // Fails only for unknown inodes.
        let _ = self.notifier.inval_inode(INodeNo(ino.0), offset as i64, len as i64);
    }
}

//! What the kernel does for this mount beyond asking: it moves the bytes of segments that it was given, and can be told
//! to forget what it knows.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use tensorfs_layout::Ino;

use crate::handover::Handover;

use super::backing::Backing;

/// What the server asks of the kernel of its own accord.
pub(crate) trait Kernel: Send + Sync {
    /// Gives a segment to the kernel, so that it can read, write and map it itself.
    fn register(&self, segment: BorrowedFd<'_>) -> io::Result<Backing>;

    /// A segment that was given to it by a server that has died.
    fn inherited(&self, id: u32) -> Backing;

    /// Tells the kernel that it no longer knows an inode's attributes. Waits for nothing.
    fn forget_attributes(&self, ino: Ino);

    /// Tells the kernel that a name in a directory leads elsewhere, or nowhere. Waits for whoever looks into that
    /// directory.
    fn forget_name(&self, dir: Ino, name: &[u8]);

    /// False if the kernel does not know an inode. Waits for one that it is just forgetting.
    fn knows(&self, ino: Ino) -> bool;

    /// Has the kernel drop a range of bytes that it has cached. Waits for reads of them that are under way.
    fn forget_bytes(&self, ino: Ino, offset: u64, len: u64);
}

/// Why something is not granted, if it is not.
type Grant = OnceLock<Result<(), String>>;

/// The connection to the kernel as the rest of the server knows it.
#[derive(Default)]
pub(crate) struct Link {
    /// While it is served.
    kernel: RwLock<Option<Arc<dyn Kernel>>>,
    /// Whether the kernel moves the bytes. Set once, before the first request.
    passthrough: Grant,
    /// Whether it maps what it does not cache. Set once, before the first request.
    maps_uncached: OnceLock<bool>,
    /// Whether the processors are kept from sleeping deeply. Set once, before the first request.
    latency: Grant,
    /// What the next server takes over when this one dies, if there is to be one.
    handover: Option<Arc<Handover>>,
}

impl Link {
    /// No kernel is there yet.
    pub fn new(handover: Option<Arc<Handover>>) -> Self {
        Self { handover, ..Self::default() }
    }

    /// What the next server takes over when this one dies, if there is to be one.
    pub fn handover(&self) -> Option<&Arc<Handover>> {
        self.handover.as_ref()
    }

    /// A segment that was given to the kernel by a server that has died.
    pub fn inherited(&self, id: u32) -> Option<Backing> {
        Some(self.kernel.read().as_ref()?.inherited(id))
    }

    /// The kernel is there, until it is told to be gone.
    pub fn connect(&self, kernel: Arc<dyn Kernel>) {
        *self.kernel.write() = Some(kernel);
    }

    /// The kernel is gone.
    pub fn disconnect(&self) {
        *self.kernel.write() = None;
    }

    pub(super) fn register(&self, segment: BorrowedFd<'_>) -> io::Result<Backing> {
        let kernel = self.kernel.read().clone();
        kernel.ok_or(io::ErrorKind::NotConnected)?.register(segment)
    }

    pub(super) fn forget_attributes(&self, ino: Ino) {
        let kernel = self.kernel.read().clone();
        if let Some(kernel) = kernel {
            kernel.forget_attributes(ino);
        }
    }

    /// Tells the kernel that a name in a directory leads elsewhere, or nowhere. Waits for whoever looks into that
    /// directory: not to be called on a thread that reads requests.
    pub fn forget_name(&self, dir: Ino, name: &[u8]) {
        let kernel = self.kernel.read().clone();
        if let Some(kernel) = kernel {
            kernel.forget_name(dir, name);
        }
    }

    /// False if the kernel does not know an inode. Waits for one that it is just forgetting.
    pub fn knows(&self, ino: Ino) -> bool {
        let kernel = self.kernel.read().clone();
        kernel.is_none_or(|kernel| kernel.knows(ino))
    }

    /// Has the kernel drop a range of bytes that it has cached. Waits for reads of them that are under way.
    pub fn forget_bytes(&self, ino: Ino, offset: u64, len: u64) {
        let kernel = self.kernel.read().clone();
        if let Some(kernel) = kernel {
            kernel.forget_bytes(ino, offset, len);
        }
    }

    /// Says whether the kernel moves the bytes, and if not, why. Only what is said first counts.
    pub fn set_passthrough(&self, granted: impl FnOnce() -> Result<(), String>) -> &Result<(), String> {
        self.passthrough.get_or_init(granted)
    }

    /// True if open files are given to the kernel on this mount.
    pub fn has_passthrough(&self) -> bool {
        matches!(self.passthrough.get(), Some(Ok(())))
    }

    /// Why open files are not given to the kernel, if they are not.
    pub fn no_passthrough(&self) -> Option<&str> {
        refusal(&self.passthrough)
    }

    /// Says whether the kernel maps files of which it caches nothing for who reads them.
    pub fn set_maps_uncached(&self, maps: bool) {
        let _ = self.maps_uncached.set(maps);
    }

    /// True if it does (Linux 6.6 or newer).
    pub fn maps_uncached(&self) -> bool {
        self.maps_uncached.get().is_some_and(|maps| *maps)
    }

    /// Says whether the processors are kept from sleeping deeply while requests arrive, and if not, why.
    pub fn set_latency(&self, granted: Result<(), String>) {
        let _ = self.latency.set(granted);
    }

    /// Why the processors are left alone, if they are.
    pub fn no_latency(&self) -> Option<&str> {
        refusal(&self.latency)
    }
}

fn refusal(grant: &Grant) -> Option<&str> {
    grant.get().and_then(|granted| granted.as_ref().err()).map(String::as_str)
}

//! Between two requests: what keeps the next one from finding everybody asleep.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::RwLock;

use super::crew::Crew;
use super::latency::Latency;
use super::linger::Linger;

/// What is done when a request has been answered.
pub(super) struct Awake {
    crew: Arc<Crew>,
    latency: Arc<Latency>,
    linger: Linger,
    /// The connection to the kernel, while it is served.
    device: RwLock<Option<Arc<OwnedFd>>>,
}

impl Awake {
    /// Nothing is served yet.
    pub fn new(crew: Arc<Crew>, latency: Arc<Latency>) -> Self {
        Self { crew, latency, linger: Linger::default(), device: RwLock::default() }
    }

    /// Requests come from this device; or none come any more.
    pub fn serve(&self, device: Option<Arc<OwnedFd>>) {
        *self.device.write() = device;
    }

    /// To be held until the request is answered.
    pub fn serving(&self) -> Serving<'_> {
        self.crew.take();
        Serving(self)
    }
}

/// From the arrival of a request until the thread is about to wait for the next one.
pub(super) struct Serving<'a>(&'a Awake);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.latency.note();
        if let Some(device) = &*self.0.device.read() {
            self.0.linger.wait(device);
        }
        self.0.crew.put();
    }
}

//! What is known of the tiers of the pool while it is mounted.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use nix::sys::stat::fstat;
use tensorfs_layout::pool::Pool;

/// What is known of the tiers.
#[derive(Default)]
pub(super) struct Tiers {
    /// One tier on each filesystem of the host that is in use, the pool's own first.
    hosts: Vec<u8>,
    /// Tiers for which the kernel refused passthrough, and why. Set once, before the first request.
    refused: OnceLock<BTreeMap<u8, String>>,
}

impl Tiers {
    /// The tiers of a pool that is about to be served.
    pub fn new(pool: &Pool) -> Self {
        let (mut hosts, mut devices) = (Vec::new(), Vec::new());
        for (tier, directory) in pool.segments().directories() {
            let device = fstat(directory).map(|found| found.st_dev).ok();
            if !devices.contains(&device) {
                devices.push(device);
                hosts.push(tier);
            }
        }
        Self { hosts, refused: OnceLock::new() }
    }

    /// One tier on each filesystem of the host that is in use.
    pub fn hosts(&self) -> &[u8] {
        &self.hosts
    }

    pub fn refused(&self, tier: u8) -> Option<&str> {
        self.refused.get()?.get(&tier).map(String::as_str)
    }

    /// The kernel refused passthrough for these, and why.
    pub fn refuse(&self, refused: BTreeMap<u8, String>) {
        let _ = self.refused.set(refused);
    }
}

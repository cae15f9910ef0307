//! What is known of the tiers of the pool while it is mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use nix::sys::stat::fstat;
use tensorfs_layout::log::PM;
use tensorfs_layout::pool::Pool;

use super::host;

/// What is known of the tiers.
#[derive(Default)]
pub(super) struct Tiers {
    /// One tier on each filesystem of the host that is in use, the pool's own first.
    hosts: Vec<u8>,
    /// Those whose host tells each change of a file that was looked at from the one before.
    telling: BTreeSet<u8>,
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
        let tells = |tier: u8| match tier {
            PM => pool.host_file().is_ok_and(host::tells_each_change),
            other => pool.segments().host_file(other).is_some_and(host::tells_each_change),
        };
        let telling = pool.segments().directories().map(|(tier, _)| tier).filter(|tier| tells(*tier)).collect();
        Self { hosts, telling, refused: OnceLock::new() }
    }

    /// True if a segment of the tier that was looked at has another change time after its next change.
    pub fn tells_each_change(&self, tier: u8) -> bool {
        self.telling.contains(&tier)
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

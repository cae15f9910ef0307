//! What is known of the tiers of the pool while it is mounted.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tensorfs_layout::log::PM;
use tensorfs_layout::pool::Pool;

/// What is known of the tiers.
#[derive(Default)]
pub(super) struct Tiers {
    /// One directory on each filesystem of the host that is in use, the pool's own first.
    hosts: Vec<PathBuf>,
    /// Tiers for which the kernel refused passthrough, and why. Set once, before the first request.
    refused: OnceLock<BTreeMap<u8, String>>,
}

impl Tiers {
    /// The tiers of a pool that is about to be served.
    pub fn new(pool: &Pool) -> Self {
        let mut hosts = vec![pool.path().to_owned()];
        let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
        let mut devices = vec![device(pool.path())];
        for (_, directory) in pool.segments().directories().filter(|(tier, _)| *tier != PM) {
            let device = device(directory);
            if !devices.contains(&device) {
                devices.push(device);
                hosts.push(directory.to_owned());
            }
        }
        Self { hosts, refused: OnceLock::new() }
    }

    /// One directory on each filesystem of the host that is in use.
    pub fn hosts(&self) -> &[PathBuf] {
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

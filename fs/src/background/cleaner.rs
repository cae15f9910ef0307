//! Keeping the log short: what is dead in it is cleaned away, and what it will not need soon goes back to the host.

use std::sync::Arc;

use crate::file::Files;
use crate::store::{Bell, Bells};

use super::chore::Chore;

/// Cleans the log.
pub(super) struct Cleaner;

impl Chore for Cleaner {
    const THREAD: &'static str = "tensorfs-clean";
    const NAME: &'static str = "cleaning the log";

    fn bell(bells: &Bells) -> &Bell {
        bells.clean()
    }

    fn work(&mut self, files: &Arc<Files>) {
        let pool = files.store().pool();
        if pool.is_read_only().is_none()
            && let Err(error) = pool.maintain()
        {
            log::warn!("cleaning the log: {error}");
        }
    }
}

//! Making durable in the segments of small files what only the log holds, so that the log need not keep it. No commit
//! waits for that.

use std::sync::Arc;

use crate::file::Files;
use crate::store::{Bell, Bells};

use super::chore::Chore;

/// Settles values.
pub(super) struct Settler;

impl Chore for Settler {
    const THREAD: &'static str = "tensorfs-settle";
    const NAME: &'static str = "settling small files";

    fn bell(bells: &Bells) -> &Bell {
        bells.settle()
    }

    fn work(&mut self, files: &Arc<Files>) {
        let pool = files.store().pool();
        if pool.is_read_only().is_none()
            && let Err(error) = pool.settle_values()
        {
            log::warn!("settling small files: {error}");
        }
    }
}

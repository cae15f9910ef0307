//! Making the log longer before somebody needs it.

use std::sync::Arc;

use crate::file::Files;
use crate::store::{Bell, Bells};

use super::chore::Chore;

/// Makes the log longer.
pub(super) struct Grower;

impl Chore for Grower {
    const THREAD: &'static str = "tensorfs-grow";
    const NAME: &'static str = "making the log longer";

    fn bell(bells: &Bells) -> &Bell {
        bells.grow()
    }

    fn work(&mut self, files: &Arc<Files>) {
        let pool = files.store().pool();
        if pool.is_read_only().is_none()
            && let Err(error) = pool.grow_ahead()
        {
            // Whoever needs the room hears of it.
            log::debug!("making the log longer: {error}");
        }
    }
}

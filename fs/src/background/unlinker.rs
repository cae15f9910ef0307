//! Removing from the host the segments that no file has any more, once that is durable.

use std::sync::Arc;

use crate::file::Files;
use crate::store::{Bell, Bells};

use super::chore::Chore;

/// So many are removed before others who want to remove some get their turn.
const STEP: usize = 64;

/// Removes segments.
pub(super) struct Unlinker;

impl Chore for Unlinker {
    const THREAD: &'static str = "tensorfs-unlink";
    const NAME: &'static str = "removing segments";

    fn bell(bells: &Bells) -> &Bell {
        bells.unlink()
    }

    fn work(&mut self, files: &Arc<Files>) {
        let store = files.store();
        if store.holds_too_much(0) {
            files.reap_removed();
        }
        while !store.bells().unlink().is_stopped() && store.pool().unlink_some(STEP) > 0 {
            store.bells().unlinked().step();
        }
        store.pool().unlink_again();
    }
}

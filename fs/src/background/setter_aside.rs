//! Setting aside the versions that writers who died have replaced, so that neither a commit nor a close waits for it.

use std::sync::Arc;

use crate::file::Files;
use crate::store::{Bell, Bells};

use super::chore::Chore;

/// Sets versions aside.
pub(super) struct SetterAside;

impl Chore for SetterAside {
    const THREAD: &'static str = "tensorfs-aside";
    const NAME: &'static str = "setting versions aside";

    fn bell(bells: &Bells) -> &Bell {
        bells.aside()
    }

    fn work(&mut self, files: &Arc<Files>) {
        if files.store().pool().is_read_only().is_none() {
            files.set_aside_some();
        }
    }
}

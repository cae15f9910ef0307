//! Committing: what clients do not wait for becomes durable within the commit interval.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::file::Files;
use crate::store::{Bell, Bells};

use super::chore::Chore;

/// A file of which the host does not say what it has become is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Commits.
#[derive(Default)]
pub(super) struct Committer {
    /// There was nothing to do the last time.
    was_quiet: bool,
}

impl Chore for Committer {
    const THREAD: &'static str = "tensorfs-commit";
    const NAME: &'static str = "the background commit";

    fn bell(bells: &Bells) -> &Bell {
        bells.commit()
    }

    fn work(&mut self, files: &Arc<Files>) {
        let was_quiet = std::mem::take(&mut self.was_quiet);
        match commit_if_changed(files, was_quiet) {
            Ok(is_quiet) => self.was_quiet = is_quiet,
            Err(fault) => log::log!(fault.level, "background commit: {fault}"),
        }
    }
}

/// One round. Returns whether there was nothing to do; `was_quiet` if so it was the last time. What is done here, all
/// who rely on the commit interval wait for: it commits, and does nothing else.
pub(crate) fn commit_if_changed(files: &Arc<Files>, was_quiet: bool) -> Result<bool> {
    let store = files.store();
    let pool = store.pool();
    if pool.is_read_only().is_some() {
        // There is nothing that could become durable.
        store.bells().rounds().done();
        return Ok(true);
    }
    let patience = (store.options().interval() / 2).min(PATIENCE);
    let learned = files.learn_in_background(Instant::now() + patience);
    let changed = *learned.as_ref().unwrap_or(&true) || pool.newest() > pool.horizon();
    if changed {
        store.counters().commits_background.add(1);
        store.commit()?;
    } else if !was_quiet {
        pool.idle()?;
    }
    store.bells().rounds().done();
    if changed {
        store.bells().unlink().ring();
    }
    if store.is_limited() {
        store.recount_all();
    }
    learned?;
    Ok(!changed)
}

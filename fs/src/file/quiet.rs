//! Reading a file behind everybody's back: to seal it, to scrub it, to copy it to another tier.
//!
//! Whoever does so lets go of the file's lock meanwhile, and has its segment open. Who opens the file to write is not
//! made to wait for that: it goes on, and the reader finds out that it was disturbed. Only who must have no descriptor
//! of ours in the way, as it would pass for a mapping, says so and waits until it is closed.

use std::time::{Duration, Instant};

use super::Files;
use super::locked::Locked;
use super::node::NodeRef;

/// So many are kept in mind.
const MOST: usize = 64;

/// A file that is being read behind everybody's back, and what is open of it. However the reading ends, what is open is
/// closed before anybody else may take the file for unread.
pub(crate) struct Quiet<'a, F> {
    files: &'a Files,
    node: &'a NodeRef,
    /// How often something had been about to begin writing when this began.
    begun: u64,
    /// What is open of the file's segment. Only `None` while being dropped.
    open: Option<F>,
}

impl<'a> Locked<'a> {
    /// Begins to read the file quietly, with what is open of it, and lets go of its lock.
    pub fn read_quietly<F>(mut self, open: F) -> Quiet<'a, F> {
        self.state.quiet = true;
        Quiet { files: self.files, node: self.node, begun: self.node.writes_begun(), open: Some(open) }
    }

    /// Has the quiet reading of the file, which was removed, given up, and does not wait for that.
    pub(super) fn give_up_quiet(&mut self) {
        if self.state.quiet {
            self.node.begin_writing();
            let mut given_up = self.files.given_up.lock();
            // Hardly ever more than one, unless nobody ever asks.
            if given_up.len() >= MOST {
                given_up.clear();
            }
            given_up.push(self.ino());
        }
    }

    /// Has the quiet reading of the file that is under way given up, and waits until its descriptor is closed: it would
    /// pass for a mapping.
    pub fn end_quiet(&mut self) {
        self.node.begin_writing();
        while self.state.quiet {
            self.wait();
        }
    }

    /// As [`Locked::end_quiet`], but waits for no longer than that. False if the descriptor is open yet.
    pub fn end_quiet_until(&mut self, deadline: Instant) -> bool {
        self.node.begin_writing();
        while self.state.quiet && !self.wait_until(deadline) {}
        !self.state.quiet
    }
}

impl Files {
    /// Waits a moment for those who were reading files quietly when these were removed: until they have closed them,
    /// the host does not have the space.
    pub(super) fn wait_for_given_up(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let given_up = std::mem::take(&mut *self.given_up.lock());
        for node in given_up.into_iter().filter_map(|ino| self.node_in_use(ino)) {
            // The caller may have the lock of another inode.
            let Some(mut file) = self.lock_until(&node, deadline) else { continue };
            while file.is_quiet() && !file.wait_until(deadline) {}
        }
    }
}

impl<'a, F> Quiet<'a, F> {
    /// What is open of the file.
    pub fn open(&self) -> &F {
        self.open.as_ref().expect("a quiet reading has its file until it ends")
    }

    /// True as long as nothing was about to begin writing.
    pub fn is_undisturbed(&self) -> bool {
        self.node.writes_begun() == self.begun
    }

    /// Ends the reading, with the file's lock taken again. What was open has to be closed before the lock is let go of.
    pub fn end(mut self) -> (Locked<'a>, F, bool) {
        let open = self.open.take().expect("a quiet reading has its file until it ends");
        let mut file = Locked::of(self.files, self.node);
        let undisturbed = self.is_undisturbed();
        file.state.quiet = false;
        self.node.notify();
        (file, open, undisturbed)
    }
}

impl<F> Drop for Quiet<'_, F> {
    fn drop(&mut self) {
        // Without its file it has ended already.
        let Some(open) = self.open.take() else { return };
        drop(open);
        Locked::of(self.files, self.node).state.quiet = false;
        self.node.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tensorfs_layout::Ino;
    use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};

    use super::*;
    use crate::options::{Durability, Options};
    use crate::store::Store;

    /// What is open of a file: says whether the file still counted as being read when it was closed.
    struct Open<'a>(&'a Files, &'a AtomicBool);

    impl Drop for Open<'_> {
        fn drop(&mut self) {
            let node = self.0.node(Ino(7));
            let quiet = self.0.try_lock(&node).is_none_or(|file| file.is_quiet());
            self.1.store(quiet, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_quiet_reading_that_is_given_up_is_closed_before_it_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let store = Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024);
        let files = Files::new(Arc::new(store));
        let (node, closed_in_time) = (files.node(Ino(7)), AtomicBool::new(false));
        let quiet = files.lock(&node).read_quietly(Open(&files, &closed_in_time));
        assert!(files.lock(&node).is_quiet() && quiet.is_undisturbed());
        drop(quiet);
        assert!(closed_in_time.load(Ordering::SeqCst), "whoever waited would take the descriptor for a mapping");
        assert!(!files.lock(&node).is_quiet());

        let quiet = files.lock(&node).read_quietly(());
        // Somebody wants to write, and waits until the reading is over.
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let node = files.node(Ino(7));
                files.lock(&node).end_quiet();
            });
            while quiet.is_undisturbed() {
                std::thread::yield_now();
            }
            let (file, (), undisturbed) = quiet.end();
            assert!(!undisturbed && !file.is_quiet());
            drop(file);
            writer.join().unwrap();
        });
        pool.close().unwrap();
    }
}

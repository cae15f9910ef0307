//! Reading a file behind everybody's back: to seal it, to scrub it, to copy it to another tier.
//!
//! Whoever does so lets go of the file's lock meanwhile, and has its segment open. Who opens the file to write is not
//! made to wait for that: it goes on, and the reader finds out that it was disturbed. Only who must have no descriptor
//! of ours in the way, as it would pass for a mapping, says so and waits until it is closed.

use super::Files;
use super::locked::Locked;
use super::node::NodeRef;

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

    /// Has the quiet reading of the file that is under way given up, and waits until its descriptor is closed: it would
    /// pass for a mapping.
    pub fn end_quiet(&mut self) {
        self.node.begin_writing();
        while self.state.quiet {
            self.wait();
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

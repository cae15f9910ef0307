//! The smallest thing that becomes durable by itself: a sector, a cache line, a file's size, a name.

/// A value, and the older ones that a power loss may bring back.
#[derive(Clone, Debug)]
pub struct Cell<T> {
    /// What the medium may hold, oldest first. The last one is what the running machine sees.
    versions: Vec<T>,
    /// The newest version is still to be written: the next sync makes it durable.
    dirty: bool,
    /// A write-back of this version was started and not waited for.
    flushing: Option<usize>,
}

impl<T: Clone + PartialEq> Cell<T> {
    /// A durable value.
    pub fn new(value: T) -> Self {
        Self { versions: vec![value], dirty: false, flushing: None }
    }

    /// What the running machine sees.
    pub fn now(&self) -> &T {
        &self.versions[self.versions.len() - 1]
    }

    /// A store. It may become durable at any time from now on.
    pub fn set(&mut self, value: T) {
        self.dirty = true;
        if *self.now() != value {
            self.versions.push(value);
        }
    }

    /// A sync that succeeds. What an earlier one failed to write is not dirty any more, and stays unknown.
    pub fn sync(&mut self) {
        if self.dirty {
            self.versions.drain(..self.versions.len() - 1);
            self.dirty = false;
            self.flushing = None;
        }
    }

    /// A sync that fails: the kernel reports it once, and from then on calls the page clean.
    pub fn fail(&mut self) {
        self.dirty = false;
    }

    /// True if what is seen is taken for written, and may not be.
    pub fn has_failed(&self) -> bool {
        !self.dirty && self.versions.len() > 1
    }

    /// A write-back of what is seen now begins.
    pub fn write_back(&mut self) {
        self.flushing = Some(self.versions.len() - 1);
    }

    /// Write-backs that were begun are done.
    pub fn fence(&mut self) {
        if let Some(done) = self.flushing.take() {
            self.versions.drain(..done);
            self.dirty = self.versions.len() > 1;
        }
    }

    /// True if a power loss can bring back nothing else.
    pub fn is_settled(&self) -> bool {
        self.versions.len() == 1
    }

    /// All that a power loss may leave.
    pub fn versions(&self) -> &[T] {
        &self.versions
    }
}

#[cfg(test)]
mod tests {
    use super::Cell;

    #[test]
    fn a_sync_settles_and_a_failed_one_never_does() {
        let mut cell = Cell::new(0);
        cell.set(1);
        cell.set(2);
        assert_eq!(cell.versions(), [0, 1, 2]);
        cell.fail();
        cell.sync();
        assert_eq!(cell.versions(), [0, 1, 2], "a page that is called clean is not written again");
        cell.set(3);
        cell.sync();
        assert_eq!(cell.versions(), [3]);
    }

    #[test]
    fn a_fence_makes_durable_what_was_written_back_and_not_what_was_stored_since() {
        let mut cell = Cell::new(0);
        cell.set(1);
        cell.fence();
        assert_eq!(cell.versions(), [0, 1], "never written back");
        cell.write_back();
        cell.set(2);
        cell.fence();
        assert_eq!(cell.versions(), [1, 2]);
    }
}

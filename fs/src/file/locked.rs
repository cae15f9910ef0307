//! An inode with its lock held: the only way to what is true of it.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tensorfs_layout::{Ino, SegmentId, TxId};

use crate::error::Result;
use crate::waits::{self, Wait};

use super::Files;
use super::node::NodeRef;
use super::state::{Serving, State, Writing};

/// An inode whose lock is held, the first one of the lock order: what is true of it can be asked and changed.
pub(crate) struct Locked<'a> {
    pub(super) files: &'a Files,
    pub(super) node: &'a NodeRef,
    pub(super) state: MutexGuard<'a, State>,
}

impl Files {
    /// Takes an inode's lock, the first one of the lock order.
    pub fn lock<'a>(&'a self, node: &'a NodeRef) -> Locked<'a> {
        Locked::of(self, node)
    }

    /// Takes an inode's lock if nobody has it; for whoever may have that of another inode already.
    pub fn try_lock<'a>(&'a self, node: &'a NodeRef) -> Option<Locked<'a>> {
        Some(Locked { files: self, node, state: node.state.try_lock()? })
    }

    /// Takes an inode's lock unless somebody else has it until the deadline.
    pub fn lock_until<'a>(&'a self, node: &'a NodeRef, deadline: Instant) -> Option<Locked<'a>> {
        Some(Locked { files: self, node, state: node.state.try_lock_until(deadline)? })
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.node.show(&self.state);
    }
}

impl<'a> Locked<'a> {
    /// Takes the inode's lock.
    pub(super) fn of(files: &'a Files, node: &'a NodeRef) -> Self {
        let waited = || waits::during(Wait::Lock, || node.state.lock());
        Self { files, node, state: node.state.try_lock().unwrap_or_else(waited) }
    }

    /// The inode's number.
    pub fn ino(&self) -> Ino {
        self.node.ino()
    }

    /// Does what may wait with the lock let go of.
    pub(super) fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.node.show(&self.state);
        MutexGuard::unlocked(&mut self.state, work)
    }

    /// Does what may wait with the lock let go of. Others may have changed anything meanwhile, but the file has not
    /// come to rest.
    pub(super) fn unlocked_in_use<T>(&mut self, work: impl FnOnce() -> T) -> T {
        Opening::of(self).unlocked(work)
    }

    /// This has to be durable before the file's bytes change in place.
    pub(super) fn announce(&mut self, tx: Option<TxId>) {
        self.state.announced = self.state.announced.max(tx);
    }

    /// Waits, with the lock let go of, until what was announced of the file is durable; true if it had to be waited
    /// for. The file's bytes do not change in place before.
    pub(super) fn commit_announced(&mut self) -> Result<bool> {
        let store = self.files.store();
        let Some(announced) = self.state.announced.take().filter(|tx| *tx > store.pool().horizon()) else {
            return Ok(false);
        };
        // Others who come meanwhile have to wait for it too.
        self.state.announced = Some(announced);
        self.unlocked_in_use(|| store.commit())?;
        Ok(true)
    }

    /// Lets go of the lock until a handle is released or somebody has done reading the file quietly. True if none was
    /// until the deadline.
    pub fn wait_until(&mut self, deadline: Instant) -> bool {
        self.node.show(&self.state);
        waits::during(Wait::Others, || self.node.released.wait_until(&mut self.state, deadline).timed_out())
    }

    /// Lets go of the lock until something was released, or for a while.
    pub(super) fn wait_for(&mut self, time: Duration) {
        self.node.show(&self.state);
        waits::during(Wait::Others, || self.node.released.wait_for(&mut self.state, time));
    }

    /// Lets go of the lock until something was released.
    pub(super) fn wait(&mut self) {
        self.node.show(&self.state);
        waits::during(Wait::Others, || self.node.released.wait(&mut self.state));
    }

    /// The segment that serves the file, if something has it in use.
    pub fn segment(&self) -> Option<SegmentId> {
        self.state.serving.as_ref().map(|serving| serving.segment)
    }

    pub(super) fn serving(&self) -> Option<&Serving> {
        self.state.serving.as_ref()
    }

    pub(super) fn serving_mut(&mut self) -> Option<&mut Serving> {
        self.state.serving.as_mut()
    }

    pub(super) fn writing(&self) -> Option<&Writing> {
        self.serving()?.writing.as_ref()
    }

    /// True if something has the file open.
    pub fn is_open(&self) -> bool {
        self.state.opens.handles() > 0
    }

    /// True if something has the file open to write it.
    pub fn is_open_to_write(&self) -> bool {
        self.state.opens.writers > 0
    }

    /// True if those who have the file open read what comes of it, as its bytes are away.
    pub fn is_away(&self) -> bool {
        self.serving().is_some_and(|serving| serving.away)
    }

    /// True if an open is under way.
    pub fn is_opening(&self) -> bool {
        self.state.opens.opening > 0
    }

    /// True if something may write the file: it is open for writing, or mapped so since.
    pub fn is_written(&self) -> bool {
        self.state.is_written()
    }

    /// True if the file is being replaced.
    pub fn is_replacing(&self) -> bool {
        self.serving().is_some_and(|serving| serving.replacing.is_some())
    }

    /// True if nothing can write the file, and its records are those of the bytes that readers see.
    pub fn is_unwritten(&self) -> bool {
        !self.is_written() && !self.is_replacing()
    }

    /// How often something was about to begin writing the file so far. Where the lock is let go of in between and this
    /// stays as it was, nothing has begun to write.
    pub fn writes_begun(&self) -> u64 {
        self.node.writes_begun()
    }

    /// True if somebody reads the file behind everybody's back.
    pub fn is_quiet(&self) -> bool {
        self.state.quiet
    }
}

/// An open that is under way, or another use: it may let go of the inode's lock, and the file does not come to rest
/// meanwhile.
pub(super) struct Opening<'l, 'a>(&'l mut Locked<'a>);

impl<'l, 'a> Opening<'l, 'a> {
    /// It begins.
    pub fn of(file: &'l mut Locked<'a>) -> Self {
        file.state.opens.opening += 1;
        Self(file)
    }
}

impl<'a> Deref for Opening<'_, 'a> {
    type Target = Locked<'a>;

    fn deref(&self) -> &Locked<'a> {
        self.0
    }
}

impl<'a> DerefMut for Opening<'_, 'a> {
    fn deref_mut(&mut self) -> &mut Locked<'a> {
        self.0
    }
}

impl Drop for Opening<'_, '_> {
    fn drop(&mut self) {
        self.0.state.opens.opening -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use tensorfs_layout::ROOT;
    use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};

    use crate::options::{Durability, Options};
    use crate::store::Store;

    #[test]
    fn a_use_that_panics_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let files = Files::new(Arc::new(Store::new(pool.clone(), Options::default(), Durability::Fsync, 1024)));
        let node = files.node(ROOT);
        let mut file = files.lock(&node);
        let panicked = catch_unwind(AssertUnwindSafe(|| file.unlocked_in_use(|| panic!("on purpose"))));
        assert!(panicked.is_err());
        assert!(!file.is_opening());
        drop(file);
        assert!(files.try_lock(&node).is_some());
        pool.close().unwrap();
    }
}

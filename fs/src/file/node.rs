//! The inodes that are in use: open, being written, or worked on right now; and [`Locked`], the only way to what is true
//! of one.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorfs_layout::{Ino, SegmentId};

use super::Files;
use super::state::{Serving, State, Writing};

const SHARDS: usize = 32;

/// One regular file in use.
pub(crate) struct Node {
    ino: Ino,
    state: Mutex<State>,
    /// Signalled whenever a handle is released, and when somebody has done with reading the file quietly.
    released: Condvar,
    /// How often something was about to begin writing. Whoever reads the file quietly watches it.
    writes_begun: AtomicU64,
}

impl Node {
    /// The inode's number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Something is about to begin writing.
    pub(super) fn begin_writing(&self) {
        self.writes_begun.fetch_add(1, Ordering::Relaxed);
    }

    /// How often something was about to begin writing so far.
    pub(super) fn writes_begun(&self) -> u64 {
        self.writes_begun.load(Ordering::Relaxed)
    }

    /// Wakes who waits in [`Locked::wait_until`].
    pub(super) fn notify(&self) {
        self.released.notify_all();
    }
}

type Shard = Mutex<HashMap<Ino, Arc<Node>>>;

/// The inodes in use.
#[derive(Clone)]
pub(super) struct Nodes(Arc<[Shard; SHARDS]>);

impl Default for Nodes {
    fn default() -> Self {
        Self(Arc::new(std::array::from_fn(|_| Mutex::default())))
    }
}

impl Nodes {
    fn shard(&self, ino: Ino) -> &Shard {
        &self.0[ino.0 as usize % SHARDS]
    }

    /// The node of an inode, which is in use from now on.
    pub fn take(&self, ino: Ino) -> NodeRef {
        let new = || Arc::new(Node { ino, state: Mutex::default(), released: Condvar::new(), writes_begun: 0.into() });
        let node = self.shard(ino).lock().entry(ino).or_insert_with(new).clone();
        NodeRef { nodes: self.clone(), node: Some(node) }
    }

    /// The node of an inode, if it is in use.
    pub fn peek(&self, ino: Ino) -> Option<NodeRef> {
        let node = self.shard(ino).lock().get(&ino)?.clone();
        Some(NodeRef { nodes: self.clone(), node: Some(node) })
    }
}

/// A use of an inode. The node goes when the last use does, unless something may still write the file.
pub(crate) struct NodeRef {
    nodes: Nodes,
    /// Only `None` while being dropped.
    node: Option<Arc<Node>>,
}

impl Clone for NodeRef {
    fn clone(&self) -> Self {
        Self { nodes: self.nodes.clone(), node: self.node.clone() }
    }
}

impl Deref for NodeRef {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.node.as_deref().expect("a node reference is whole until it is dropped")
    }
}

impl Drop for NodeRef {
    fn drop(&mut self) {
        let Some(node) = self.node.take() else { return };
        let ino = node.ino;
        let mut shard = self.nodes.shard(ino).lock();
        // The table's own and this one: nobody else can get at it, because that takes the shard's lock. So nobody has
        // its own lock either.
        let last = Arc::strong_count(&node) == 2;
        let written = |node: &Node| node.state.try_lock().is_none_or(|state| is_written(&state));
        let removed = if last && !written(&node) { shard.remove(&ino) } else { None };
        drop(node);
        drop(shard);
        drop(removed);
    }
}

fn is_written(state: &State) -> bool {
    state.serving.as_ref().is_some_and(|serving| serving.writing.is_some())
}

/// An inode whose lock is held, the first one of the lock order: what is true of it can be asked and changed.
pub(crate) struct Locked<'a> {
    pub(super) files: &'a Files,
    pub(super) node: &'a NodeRef,
    pub(super) state: MutexGuard<'a, State>,
}

impl<'a> Locked<'a> {
    /// Takes the inode's lock.
    pub(super) fn of(files: &'a Files, node: &'a NodeRef) -> Self {
        Self { files, node, state: node.state.lock() }
    }

    /// Takes the inode's lock if nobody has it; for whoever may have that of another inode already.
    pub(super) fn of_free(files: &'a Files, node: &'a NodeRef) -> Option<Self> {
        Some(Self { files, node, state: node.state.try_lock()? })
    }

    /// The inode's number.
    pub fn ino(&self) -> Ino {
        self.node.ino
    }

    /// Does what may wait with the lock let go of.
    pub(super) fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(&mut self.state, work)
    }

    /// Lets go of the lock until a handle is released or somebody has done reading the file quietly. True if none was
    /// until the deadline.
    pub fn wait_until(&mut self, deadline: Instant) -> bool {
        self.node.released.wait_until(&mut self.state, deadline).timed_out()
    }

    /// Lets go of the lock until something was released, or for a while.
    pub(super) fn wait_for(&mut self, time: Duration) {
        self.node.released.wait_for(&mut self.state, time);
    }

    /// Lets go of the lock until something was released.
    pub(super) fn wait(&mut self) {
        self.node.released.wait(&mut self.state);
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

    /// True if an open is under way.
    pub fn is_opening(&self) -> bool {
        self.state.opens.opening > 0
    }

    /// True if something may write the file: it is open for writing, or mapped so since.
    pub fn is_written(&self) -> bool {
        is_written(&self.state)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_lives_as_long_as_a_reference() {
        let nodes = Nodes::default();
        let first = nodes.take(Ino(7));
        first.state.lock().opens.readers = 3;
        let second = nodes.peek(Ino(7)).unwrap();
        drop(first);
        assert_eq!(nodes.take(Ino(7)).state.lock().opens.readers, 3);
        drop(second);
        assert!(nodes.peek(Ino(7)).is_none());
        assert_eq!(nodes.take(Ino(7)).state.lock().opens.readers, 0);
    }

    #[test]
    fn a_node_lives_as_long_as_something_may_write_its_file() {
        let nodes = Nodes::default();
        let node = nodes.take(Ino(7));
        let mut serving = Serving::new(SegmentId(8));
        let fd = Arc::new(tempfile::tempfile().unwrap().into());
        serving.writing = Some(Writing { fd, valued: None, unheard: false });
        node.state.lock().serving = Some(serving);
        drop(node);
        let node = nodes.peek(Ino(7)).unwrap();
        node.state.lock().serving = None;
        drop(node);
        assert!(nodes.peek(Ino(7)).is_none());
    }
}

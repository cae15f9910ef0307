//! The inodes that are in use: open, being written, or worked on right now.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use tensorfs_layout::Ino;

use crate::store::host::HostStat;

use super::state::{Sight, State};

const SHARDS: usize = 32;

/// One regular file in use.
pub(crate) struct Node {
    ino: Ino,
    pub(super) state: Mutex<State>,
    /// Signalled whenever a handle is released, and when somebody has done with reading the file quietly.
    pub(super) released: Condvar,
    /// What there was to see of it when its lock was let go of last: who only looks at the file waits for nobody.
    sight: Mutex<Option<Sight>>,
    /// Held while somebody appends through the server, in the place of the lock: to look where the end is, and to write
    /// there.
    pub(super) end: Mutex<()>,
    /// So many bytes, from the first one on, stay sealed while somebody has the file open to write: each change of them
    /// comes to the server, which has to void the seals before. 0 if a change need not wait.
    sealed_end: AtomicU64,
    /// How often something was about to begin writing. Whoever reads the file quietly watches it.
    writes_begun: AtomicU64,
}

impl Node {
    fn new(ino: Ino) -> Self {
        Self {
            ino,
            state: Mutex::default(),
            released: Condvar::new(),
            sight: Mutex::default(),
            end: Mutex::default(),
            sealed_end: AtomicU64::new(0),
            writes_begun: AtomicU64::new(0),
        }
    }

    /// The inode's number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// What there is to see of it.
    pub(super) fn sight(&self) -> Option<Sight> {
        self.sight.lock().clone()
    }

    /// The lock is about to be let go of.
    pub(super) fn show(&self, state: &State) {
        let sight = state.sight();
        let before = std::mem::replace(&mut *self.sight.lock(), sight);
        // What may be closed with it is closed without that lock.
        drop(before);
    }

    /// Before so many bytes of the file are changed, its seals are to be voided.
    pub(super) fn sealed_end(&self) -> u64 {
        self.sealed_end.load(Ordering::Acquire)
    }

    /// Who has the lock sets it: before anybody can change them, or once the seals are void, durably.
    pub(super) fn set_sealed_end(&self, end: u64) {
        self.sealed_end.store(end, Ordering::Release);
    }

    /// Something is about to begin writing.
    pub(super) fn begin_writing(&self) {
        self.writes_begun.fetch_add(1, Ordering::Relaxed);
    }

    /// How often something was about to begin writing so far.
    pub(super) fn writes_begun(&self) -> u64 {
        self.writes_begun.load(Ordering::Relaxed)
    }

    /// True if a segment looks as it did when the records of its file were last brought up to date with it. Never
    /// waits: of a file that somebody has locked nobody knows.
    pub(super) fn has_seen(&self, host: &HostStat) -> bool {
        let seen = self.state.try_lock().and_then(|state| state.serving.as_ref()?.seen);
        seen.is_some_and(|seen| seen.still(host))
    }

    /// Wakes who waits for a release.
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
        let node = self.shard(ino).lock().entry(ino).or_insert_with(|| Arc::new(Node::new(ino))).clone();
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
        let written = |node: &Node| node.state.try_lock().is_none_or(|state| state.is_written());
        let removed = if last && !written(&node) { shard.remove(&ino) } else { None };
        drop(node);
        drop(shard);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use tensorfs_layout::SegmentId;

    use super::super::state::{Serving, Writing};
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
        serving.writing = Some(Writing::new(fd, false));
        node.state.lock().serving = Some(serving);
        drop(node);
        let node = nodes.peek(Ino(7)).unwrap();
        node.state.lock().serving = None;
        drop(node);
        assert!(nodes.peek(Ino(7)).is_none());
    }
}

//! The inodes that are in use: open, being written, or worked on right now.

use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorfs_layout::{Ino, SegmentId, Timestamp};

use crate::backing::Backing;
use crate::host::HostStat;
use crate::mode::Mode;

const SHARDS: usize = 32;

/// One regular file in use.
pub(crate) struct Node {
    pub ino: Ino,
    state: Mutex<State>,
    /// Signalled whenever a handle is released.
    pub released: Condvar,
    /// How often something was about to begin writing. Whoever seals the file watches it.
    pub writes_begun: AtomicU64,
}

/// What is true of a file in use, beyond what the pool records.
#[derive(Default)]
pub(crate) struct State {
    /// Handles that can only read.
    pub readers: u32,
    /// Those of them that the kernel has for programs that run.
    pub executing: u32,
    /// Handles that can write.
    pub writers: u32,
    /// So many handles did not go when somebody waited for them.
    pub staying: u32,
    /// Opens that are under way; one may let go of the lock to wait for releases.
    pub opening: u32,
    /// Who moves the bytes; `None` while nothing is open.
    pub mode: Option<Mode>,
    /// The segment that serves reads and writes: the file's own, or the one that is to replace it.
    pub segment: Option<SegmentId>,
    /// The kernel's name for the segment in passthrough.
    pub backing: Option<Arc<Backing>>,
    /// The descriptor that will sync the segment: held from before the first possible write until none is possible.
    pub writing: Option<Arc<OwnedFd>>,
    /// `open(O_TRUNC)` gave the file a new segment that is not recorded as its own yet.
    pub replace: Option<Replace>,
    /// What the segment looked like when the records were last brought up to date with it.
    pub seen: Option<Seen>,
    /// The bytes as they were last committed by value.
    pub valued: Option<Arc<[u8]>>,
    /// A handle could change bytes, or make them durable, without our hearing of it: through a mapping, or as one opened
    /// with `O_SYNC` does. Then a copy of them in the log could be older than what is durable in the segment.
    pub unheard: bool,
    /// The segment is being read to be sealed.
    pub sealing: bool,
    /// It grew since a client last waited for it to be durable.
    pub grew: bool,
    /// A handle could map the segment for writing, which changes times without the kernel knowing, and outlives the handle.
    /// So may descriptors of processes of an earlier mount.
    pub mappable: bool,
}

/// A file being replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replace {
    pub old: SegmentId,
    pub since: Instant,
    /// The newest FLUSH of a writer came from a process that a signal is killing.
    pub dying: bool,
    /// A writer has closed its descriptor. If that was the last one, RELEASE is on its way.
    pub closed: bool,
    /// So it was at least once: somebody had a descriptor.
    pub flushed: bool,
}

/// A look at a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub ctime: Timestamp,
    pub size: u64,
    pub at: Timestamp,
}

/// Two changes within one tick of the host's clock can leave the same time.
const TICK_NSEC: i64 = 20_000_000;

impl Seen {
    /// Stands for a look before a change that the server made itself: whatever the segment looks like now is newer.
    pub const CHANGED: Self = {
        let never = Timestamp::new(i64::MIN, 0);
        Self { ctime: never, size: 0, at: never }
    };

    /// True if the segment has not changed since: nothing differs, and this look was late enough to tell.
    pub fn still(&self, stat: &HostStat) -> bool {
        let age = (self.at.sec - self.ctime.sec).saturating_mul(1_000_000_000)
            + (i64::from(self.at.nsec) - i64::from(self.ctime.nsec));
        self.ctime == stat.ctime && self.size == stat.size && age >= TICK_NSEC
    }
}

impl State {
    /// Open handles.
    pub fn handles(&self) -> u32 {
        self.readers + self.writers
    }
}

impl Node {
    /// Takes the inode's lock, the first one of the lock order.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes the inode's lock if nobody has it; for whoever may have that of another inode already.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock()
    }
}

type Shard = Mutex<HashMap<Ino, Arc<Node>>>;

/// The inodes in use.
#[derive(Clone)]
pub(crate) struct Nodes(Arc<[Shard; SHARDS]>);

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

/// A use of an inode. The node goes when the last one does.
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
        // The table's own and this one: nobody else can get at it, because that takes the shard's lock.
        let removed = if Arc::strong_count(&node) == 2 { shard.remove(&ino) } else { None };
        drop(node);
        drop(shard);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_lives_as_long_as_a_reference() {
        let nodes = Nodes::default();
        let first = nodes.take(Ino(7));
        first.lock().readers = 3;
        let second = nodes.peek(Ino(7)).unwrap();
        drop(first);
        assert_eq!(nodes.take(Ino(7)).lock().readers, 3);
        drop(second);
        assert!(nodes.peek(Ino(7)).is_none());
        assert_eq!(nodes.take(Ino(7)).lock().readers, 0);
    }

    #[test]
    fn a_look_within_the_same_tick_proves_nothing() {
        let t = Timestamp::new(100, 0);
        let stat = HostStat { size: 1, allocated: 0, atime: t, mtime: t, ctime: t };
        let seen = |nsec| Seen { ctime: t, size: 1, at: Timestamp::new(100, nsec) };
        assert!(!seen(1_000_000).still(&stat));
        assert!(seen(500_000_000).still(&stat));
        assert!(!seen(500_000_000).still(&HostStat { size: 2, ..stat }));
        assert!(!seen(500_000_000).still(&HostStat { ctime: Timestamp::new(100, 1), ..stat }));
    }
}

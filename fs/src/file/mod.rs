//! The files that are in use.
//!
//! What is true of one beyond the pool's records is its node's state, which only this room sees: [`Locked`] holds the
//! node's lock, and is the only way to it. What is true of all of them is in [`Files`].
//!
//! # Locks
//!
//! In this order, each to be let go of before one further left is taken:
//!
//! 1. a [`Locked`] inode; that of a second one only if it is free ([`Files::try_lock`]); or, in the place of a lock,
//!    the turn to append to a file through the server (`Node::end`);
//! 2. the capacity gate (`store/capacity.rs`), only near the pool's limit;
//! 3. the pool's view (`Store::view`, `Store::edit`), under which nothing is ever synced or waited for.
//!
//! Everything else that is locked in this crate is a leaf: nothing is taken under it. That is so of the tables of nodes
//! and handles, the store's lists (writers, removed objects, spares, damage, paths and uses of files), the queues of
//! what is to be sealed, written out, set aside and looked at again, what there is to see of a node without its lock,
//! and what is known of tensors, of the control tree, of jobs and of moves. A claim of a segment ([`Readings`]) may be
//! waited for under an inode's lock; who reads a segment for its tensors holds none.

mod accesses;
mod allowance;
mod aside;
mod attach;
mod attributes;
mod change;
mod durable;
mod entry;
mod ghosts;
mod growing;
mod handles;
mod inherit;
mod interrupted;
mod io;
mod learn;
mod learned;
mod letting_go;
mod locked;
mod look;
mod mode;
mod moved;
mod node;
mod open;
mod outlived;
mod privileges;
mod project;
mod quiet;
mod readings;
mod replace;
mod rest;
mod room;
mod stat;
mod state;
mod to_seal;
mod to_set_aside;
mod to_settle;
mod to_write_out;
mod value;
mod walks;
mod watch;
mod write_out;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tensorfs_layout::Ino;

use crate::reader::Readers;
use crate::store::Store;

pub(crate) use accesses::{Accesses, Uses};
pub(crate) use entry::{Listed, ListedPlus};
pub(crate) use growing::Grown;
pub(crate) use handles::Handles;
pub(crate) use io::{WriteRequest, Written};
pub(crate) use locked::Locked;
pub(crate) use look::Version;
pub(crate) use mode::{Access, Manner};
pub(crate) use node::NodeRef;
pub(crate) use open::{Handle, OpenReply};
pub(crate) use privileges::{CAPABILITY, without_privileges};
pub(crate) use readings::{Reading, Readings};
pub(crate) use stat::{LONG, Stat};
pub(crate) use to_seal::{QUIET, ToSeal};
pub(crate) use to_write_out::{Part as PartToWriteOut, ToWriteOut};

use allowance::Allowance;
use ghosts::Ghosts;
use handles::Inherited;
use learned::Learning;
use letting_go::LettingGo;
use node::Nodes;
use outlived::Outlived;
use to_set_aside::ToSetAside;
use to_settle::ToSettle;

/// All files in use.
pub(crate) struct Files {
    store: Arc<Store>,
    nodes: Nodes,
    handles: Handles<Arc<Handle>>,
    ghosts: Ghosts,
    readings: Readings,
    readers: Readers,
    /// Files that were removed while they were read quietly.
    given_up: Mutex<Vec<Ino>>,
    before: Before,
    accesses: Accesses,
    allowance: Allowance,
    queues: Queues,
    /// The host turned down sharing bytes between segments; not asked again.
    cannot_clone: AtomicBool,
}

/// What there was before this server.
#[derive(Default)]
struct Before {
    /// What the kernel may ask again to be opened, and is.
    inherited: Inherited,
    outlived: Outlived,
}

/// What the background has to do with files.
#[derive(Default)]
struct Queues {
    to_seal: ToSeal,
    to_write_out: ToWriteOut,
    to_set_aside: ToSetAside,
    to_settle: ToSettle,
    learning: Learning,
    letting_go: LettingGo,
}

impl Files {
    /// No file is in use yet.
    pub fn new(store: Arc<Store>) -> Self {
        let nodes = Nodes::default();
        moved::learn_before_commits(&store, &nodes);
        let before = Before { inherited: Inherited::default(), outlived: Outlived::of(&store) };
        let first = store.link().handover().map(|handover| handover.first_handle());
        Self {
            store,
            nodes,
            handles: first.map_or_else(Handles::default, Handles::starting_at),
            ghosts: Ghosts::default(),
            readings: Readings::default(),
            readers: Readers::default(),
            given_up: Mutex::default(),
            before,
            accesses: Accesses::default(),
            allowance: Allowance::default(),
            queues: Queues::default(),
            cannot_clone: AtomicBool::new(false),
        }
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Who looks into the bytes of files.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Descriptors by which the server reads files for its own ends.
    pub fn readings(&self) -> &Readings {
        &self.readings
    }

    /// Files that programs of an earlier mount can still write, some of them. Asks the host.
    pub fn outlived(&self) -> Vec<Ino> {
        self.before
            .outlived
            .some(|segment| self.store.segments().quiescent(segment))
            .iter()
            .map(|open| open.ino)
            .collect()
    }

    /// How files are used.
    pub fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    /// The files that are to be sealed.
    pub fn to_seal(&self) -> &ToSeal {
        &self.queues.to_seal
    }

    /// The large files that are to be written out.
    pub fn to_write_out(&self) -> &ToWriteOut {
        &self.queues.to_write_out
    }

    /// The files that were closed, and are to be looked at again.
    pub fn to_settle(&self) -> &ToSettle {
        &self.queues.to_settle
    }

    /// An inode, which is in use from now on.
    pub fn node(&self, ino: Ino) -> NodeRef {
        self.nodes.take(ino)
    }

    /// An inode, if it is in use.
    pub fn node_in_use(&self, ino: Ino) -> Option<NodeRef> {
        self.nodes.peek(ino)
    }
}

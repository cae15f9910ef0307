//! The filesystem: a pool's tree behind a mounted `/dev/fuse` descriptor.
//!
//! [`Server::start`] shakes hands with the kernel, [`Server::run`] serves until the mount is gone and then closes the
//! pool. What a client may rely on:
//!
//! * The kernel moves the bytes where it can (passthrough); otherwise this crate does (server mode). Both show the
//!   same files.
//! * An operation is stored in the pool's log before it is answered, so a server that is killed while the machine
//!   stays up loses nothing.
//! * [`Durability`] says when bytes and records survive a power loss. In every mode the tree is then a prefix of what
//!   happened, and a name never points to bytes that were not there when the name was made.
//! * A file rewritten through `open(O_TRUNC)` keeps its old content until the new one is complete.
//!
//! # Locks
//!
//! In this order, each to be let go before one further left is taken:
//!
//! 1. the state of one inode (`nodes::Node`); that of a second one only if it is free (`Node::try_lock`);
//! 2. the capacity gate (`capacity`), only near the pool's limit;
//! 3. the pool's view (`Pool::view`, `Pool::edit`), under which nothing is ever synced or waited for.
//!
//! The shards of the node and handle tables, what is known of paths and uses of files, moves that are under way, the list of
//! writers, the queue of files to be sealed, the damage that is known, what jobs have said, the spare segments, and what is
//! known of tensors and of the control tree are leaves: nothing is taken under them. A claim of a
//! segment (`readings`) may be waited for under an inode's lock; who reads a segment for its tensors holds none.

mod accesses;
mod acl;
mod adapter;
mod ask;
mod attributes;
mod backing;
mod capacity;
mod clock;
mod committer;
mod control;
mod counters;
mod damage;
mod error;
mod fds;
mod file_xattrs;
mod filesystem;
mod ghosts;
mod handles;
mod host;
mod info;
mod io;
mod jobs;
mod latency;
mod learn;
mod linger;
mod listing;
mod mode;
mod mountinfo;
mod namespace;
mod nodes;
mod open;
mod options;
mod placement;
mod readings;
mod records;
mod relocate;
mod removed;
mod replace;
mod scrub;
mod seal;
mod server;
mod setattr;
mod spares;
mod tensors;
pub mod testing;
mod tiers;
mod values;
mod workers;
mod writeout;
mod xattr;

pub use ask::{Event, FileState, Moving, Output, Part, Place, Records, Reply, Request, Sealing, Work, ask};
pub use counters::Counts;
pub use error::Error;
pub use info::{Info, State};
pub use options::{Durability, LatencyMode, Options, PassthroughMode};
pub use placement::{check_placement, tiers_of_placement};
pub use relocate::move_in_pool;
pub use seal::seal_pool;
pub use server::{Server, ServerHandle};

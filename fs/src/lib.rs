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

mod acl;
mod ask;
mod background;
mod caller;
mod clock;
mod error;
mod file;
mod lane;
mod options;
mod protocol;
mod store;
mod workers;

pub use error::Error;
pub use options::{Durability, LatencyMode, Options, PassthroughMode};
pub use protocol::{Event, FileState, Moving, Output, Part, Place, Records, Reply, Request, Sealing, Work, ask};
pub use store::{Counts, check_placement, tiers_of_placement};

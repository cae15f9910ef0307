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
//! # Rooms
//!
//! Each may know those below it, and none above:
//!
//! | room | what it is |
//! |---|---|
//! | `kernel` | requests come in, are taken to a lane, and are answered; fuser's types stay here |
//! | `ask` | what programs ask the server by ioctl, and its answers |
//! | `tree`, `content`, `background` | names and attributes; tensors of files and `.tensorfs`; what nobody waits for |
//! | `file` | the files in use: their state is had only through `Locked` |
//! | `reader` | looks into the bytes of files, in processes that are locked in |
//! | `store` | what changes the pool, and knows no open file |
//!
//! What all may know is beside them: who asks (`caller`), on which thread something is done (`lane`), what goes wrong
//! (`error`), how programs ask (`protocol`), what outlives a server (`handover`), what a request waits for
//! (`waits`), how what is scarce is shared out (`shares`), what readers may take for a request (`budget`). `file` has
//! the order of locks.

mod acl;
mod ask;
mod background;
mod budget;
mod caller;
mod clock;
mod confine;
mod content;
mod error;
mod file;
mod handover;
mod holder;
mod kernel;
mod lane;
mod machine;
mod options;
mod privileged;
mod protocol;
mod reader;
mod rights;
mod shares;
mod store;
pub mod testing;
mod tree;
mod waits;
mod workers;

pub use background::{move_in_pool, seal_pool};
pub use confine::{Confinement, confine};
pub use content::control::{Info, SecondCopy, State, Unmended};
pub use content::{are_whole, is_called_as_trainers, is_unfinished};
pub use error::Error;
pub use handover::{Handover, KEEPER_DIED, KeeperInfo, STARTED_AGAIN, TOLD_TO_LEAVE, UPGRADE, has_left};
pub use holder::{device_of, file_of};
pub use kernel::{Server, ServerHandle, could_take_over};
pub use options::{Durability, ForRemote, LatencyMode, Options, PassthroughMode};
pub use privileged::{Own, Privileged, leave_privileged_to};
pub use protocol::{
    Damaged, Event, FileState, IS_WHOLE, LEAVES, Moving, NO_TIER, Output, Part, Place, Records, Reply, Request,
    Sealing, Work, ask,
};
pub use reader::{Inspector, READER, ReaderInfo, TensorBytes, serve_reader};
pub use rights::keep_to_quotas;
pub use store::{Counts, FollowInfo, check_placement, tiers_of_placement};
